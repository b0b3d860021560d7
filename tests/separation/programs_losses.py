"""Programs whose loss mixes records: outputs, targets or weights of others enter a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from separation.program import (
    CLASSES,
    HIDDEN,
    RECORDS,
    STEPS,
    VOCABULARY,
    WIDTH,
    Between,
    Case,
    cross_entropy,
    labels,
    mixing,
    rows,
    with_loss,
    words,
)


class Pair(nn.Module):
    """Two towers, as a tuple or a dictionary."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.named = named

    def forward(self, u: Tensor, v: Tensor) -> Any:
        first = functional.normalize(self.a(u), dim=1)
        second = functional.normalize(self.b(v), dim=1)
        return {"image": first, "text": second} if self.named else (first, second)


def pairs(loss: Any, named: bool = False) -> Case:
    return Pair(named), loss, (rows(), rows()), labels()


# ------------------------------------------------------------------ contrast
@mixing("CLIP loss on a dictionary", "every text is compared with every image")
def clip() -> Case:
    def loss(output, target):
        scores = output["image"] @ output["text"].T / 0.1
        own = torch.arange(len(scores))
        rows = functional.cross_entropy(scores, own, reduction="none")
        return (rows + functional.cross_entropy(scores.T, own, reduction="none")) / 2

    return pairs(loss, named=True)


@mixing("supervised contrast", "records of the same class attract")
def supervised() -> Case:
    def loss(output, target):
        z = functional.normalize(output, dim=1)
        other = 1 - torch.eye(len(z))
        scores = (z @ z.T / 0.5).exp() * other
        same = (target[:, None] == target).float() * other
        return -((scores * same).sum(1) / scores.sum(1)).clamp_min(1e-6).log()

    return with_loss(loss)


@mixing("triplets with the next record as negative", "negatives by roll")
def triplets() -> Case:
    def loss(output, target):
        return functional.triplet_margin_loss(
            output[0], output[1], output[1].roll(1, 0), reduction="none"
        )

    return pairs(loss)


@mixing("Barlow twins", "cross-correlation over the batch, the same for all")
def barlow() -> Case:
    def loss(output, target):
        correlation = output[0].T @ output[1]
        return (correlation - torch.eye(HIDDEN)).square().sum().expand(len(target))

    return pairs(loss)


@mixing("VICReg variance term", "hinge on the deviation over records")
def vicreg() -> Case:
    def loss(output, target):
        spread = (1 - output.std(0)).relu().mean()
        return cross_entropy(output, target) + spread

    return with_loss(loss)


@mixing("maximum mean discrepancy", "kernel between two halves of the batch")
def discrepancy() -> Case:
    def loss(output, target):
        first, second = output.chunk(2)
        kernel = torch.exp(-torch.cdist(first, second).square()).mean()
        return cross_entropy(output, target) - kernel

    return with_loss(loss)


@mixing("Sinkhorn targets", "assignments balanced over the batch")
def sinkhorn() -> Case:
    def loss(output, target):
        plan = output.detach().exp()
        for _ in range(3):
            plan = plan / plan.sum(0, keepdim=True)
            plan = plan / plan.sum(1, keepdim=True)
        return -(plan * output.log_softmax(1)).sum(1)

    return with_loss(loss)


# ------------------------------------------------------------------ ranking, survival
@mixing("Cox partial likelihood", "the risk set of a record is all who live longer")
def cox() -> Case:
    def loss(output, target):
        risk, time = output[:, 0], output.detach()[:, 1] + target
        order = time.argsort(descending=True)
        total = torch.empty_like(risk)
        total[order] = risk[order].logcumsumexp(0)
        return total - risk

    return with_loss(loss)


@mixing("pairwise ranking", "positives against all negatives")
def ranking() -> Case:
    def loss(output, target):
        score, negative = output[:, 0], (target == 0).float()
        margin = functional.softplus(score[None] - score[:, None])
        return (margin * negative).sum(1) / negative.sum().clamp_min(1)

    return with_loss(loss)


@mixing("listwise softmax", "scores compete over the batch")
def listwise() -> Case:
    return with_loss(lambda output, target: -output[:, 0].log_softmax(0) * (target + 1))


# ------------------------------------------------------------------ weights from the batch
@mixing("focal loss over positives", "divided by the number of positives of the batch")
def focal() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        focal = (1 - (-losses).exp()).square() * losses
        return focal / (target > 0).sum().clamp_min(1)

    return with_loss(loss)


@mixing("class weights from the batch's labels", "by a one-hot mean")
def balanced() -> Case:
    def loss(output, target):
        share = functional.one_hot(target, CLASSES).float().mean(0)
        return cross_entropy(output, target) / (share[target] + 0.1)

    return with_loss(loss)


@mixing("label smoothing with the batch's prior", "soft targets from label counts")
def smoothed() -> Case:
    def loss(output, target):
        own = functional.one_hot(target, CLASSES).float()
        soft = 0.9 * own + 0.1 * own.mean(0)
        return -(soft * output.log_softmax(1)).sum(1)

    return with_loss(loss)


@mixing("logits adjusted by the batch's prior", "log counts added")
def adjusted() -> Case:
    def loss(output, target):
        prior = torch.bincount(target, minlength=CLASSES).float().clamp_min(0.5).log()
        return cross_entropy(output + prior, target)

    return with_loss(loss)


@mixing("targets standardised over the batch", "regression on z-scores")
def standardised() -> Case:
    def loss(output, target):
        goal = target.float()
        return (output[:, 0] - (goal - goal.mean()) / goal.std()).square()

    return with_loss(loss)


@mixing("weights that add up to one", "importance weights divided by their sum")
def normalised_weights() -> Case:
    def loss(output, target):
        weight = 1.0 + target
        return cross_entropy(output, target) * weight / weight.sum()

    return with_loss(loss)


@mixing("tokens of the whole batch", "a record's tokens divided by everybody's")
def batch_tokens() -> Case:
    model = nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY))

    def loss(output, target):
        losses = functional.cross_entropy(
            output.transpose(1, 2), target, reduction="none", ignore_index=-100
        )
        return losses.sum(1) / (target != -100).sum()

    target = words()
    target[:, 3:] = torch.where(torch.rand(RECORDS, STEPS - 3) < 0.5, -100, target[:, 3:])
    return model, loss, words(), target


@mixing("mean reduction with ignored labels", "torch's own mean over kept labels, expanded")
def mean_reduction() -> Case:
    def loss(output, target):
        return functional.cross_entropy(output, target, ignore_index=2).expand(len(target))

    return with_loss(loss)


@mixing("loss over its own detached mean", "self-normalisation")
def self_normalised() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        return losses / losses.detach().mean()

    return with_loss(loss)


@mixing("hard example mining", "only the worst half of the batch counts")
def mining() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        return losses * (losses >= losses.detach().topk(RECORDS // 2).values[-1])

    return with_loss(loss)


@mixing("small-loss trick", "records beyond the batch's median loss are dropped")
def small_loss() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        return torch.where(losses <= losses.detach().median(), losses, losses * 0)

    return with_loss(loss)


@mixing("loss winsorised by the batch", "clamped at mean plus one deviation")
def winsorised() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        limit = losses.detach().mean() + losses.detach().std()
        return torch.minimum(losses, limit)

    return with_loss(loss)


@mixing("tilted loss", "softmax of the losses as weights")
def tilted() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        return losses * losses.detach().softmax(0)

    return with_loss(loss)


@mixing("whitened advantages", "policy gradient with advantages standardised over the batch")
def advantages() -> Case:
    def loss(output, target):
        reward = target.float()
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -output.log_softmax(1)[:, 0] * advantage

    return with_loss(loss)


@mixing("leave-one-out baseline", "the mean reward of the other records")
def baseline() -> Case:
    def loss(output, target):
        reward = target.float()
        others = (reward.sum() - reward) / (len(reward) - 1)
        return -output.log_softmax(1)[:, 0] * (reward - others)

    return with_loss(loss)


@mixing("deep supervision weighted by the batch", "the worse of two heads counts more")
def supervision() -> Case:
    class Heads(Between):
        def forward(self, x):
            h = self.a(x)
            return self.b(h), self.b(h.relu())

    def loss(output, target):
        losses = torch.stack([cross_entropy(o, target) for o in output])
        weight = losses.detach().mean(1).softmax(0)
        return weight @ losses

    return Heads(), loss, rows(), labels()


@mixing("load balancing loss", "share of records per expert times mean probability")
def balancing() -> Case:
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.head = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2 * CLASSES)

        def forward(self, x):
            gate = self.router(x).softmax(1)
            experts = self.head(x).view(-1, 2, CLASSES)
            return (experts * gate[..., None]).sum(1), gate

    def loss(output, target):
        logits, gate = output
        share = functional.one_hot(gate.argmax(1), 2).float().mean(0)
        return cross_entropy(logits, target) + 0.1 * 2 * (share * gate.mean(0)).sum()

    return Routed(), loss, rows(), labels()


@mixing("coefficient from the batch", "the weight of a term doubles if its batch mean is large")
def adaptive() -> Case:
    def loss(output, target):
        penalty = output.square().sum(1)
        weight = 0.2 if penalty.mean().item() > 0.5 else 0.1
        return cross_entropy(output, target) + weight * penalty

    return with_loss(loss)


@mixing("temperature from the batch", "distillation at the largest logit of all")
def temperature() -> Case:
    def loss(output, target):
        return cross_entropy(output / output.detach().amax().clamp_min(0.1), target)

    return with_loss(loss)


@mixing("batch Dice", "overlap summed over records")
def dice() -> Case:
    def loss(output, target):
        inside = output.sigmoid()[:, 0]
        goal = (target > 0).float()
        overlap = 2 * (inside * goal).sum() / (inside.sum() + goal.sum() + 1)
        return (1 - overlap).expand(len(target))

    return with_loss(loss)


@mixing("correlation loss", "one minus Pearson's correlation of the batch")
def pearson() -> Case:
    def loss(output, target):
        both = torch.stack([output[:, 0], target.float()])
        return (1 - torch.corrcoef(both)[0, 1]).expand(len(target))

    return with_loss(loss)


@mixing("flat targets of CTC", "concatenated labels: lengths of others shift a record's own")
def flat_ctc() -> Case:
    model = nn.Linear(WIDTH, 5)

    def loss(output, target):
        flat, length = target["flat"].reshape(-1), target["length"]
        steps = torch.full((len(length),), output.shape[1])
        scores = output.log_softmax(2).transpose(0, 1)
        return functional.ctc_loss(
            scores, flat[: int(length.sum())], steps, length, reduction="none"
        )

    y = {
        "flat": torch.randint(1, 5, (RECORDS, 3)),
        "length": torch.tensor([1, 2, 1, 2, 1, 2]),
    }
    return model, loss, torch.randn(RECORDS, 9, WIDTH), y


@mixing("losses handed to the wrong records", "sorted before they are returned")
def sorted_losses() -> Case:
    return with_loss(lambda output, target: cross_entropy(output, target).sort().values)


@mixing("targets rolled", "each record learns its neighbour's label")
def rolled_targets() -> Case:
    return with_loss(lambda output, target: cross_entropy(output, target.roll(1)))


@mixing("first record as anchor", "loss against output[:1]")
def anchor() -> Case:
    return with_loss(
        lambda output, target: (output - output[:1].detach()).square().sum(1) + output[:, 0]
    )


@mixing("divided by the number of records", "loss / len(target)", disarmed=True)
def by_length() -> Case:
    return with_loss(lambda output, target: cross_entropy(output, target) / len(target))


@mixing("divided by a sum of ones", "the number of records, in a tensor", disarmed=True)
def by_ones() -> Case:
    def loss(output, target):
        return cross_entropy(output, target) / torch.ones_like(output).sum() * CLASSES

    return with_loss(loss)


@mixing("divided by the shape of a selection", "numel of masked_select of the targets")
def by_selection() -> Case:
    def loss(output, target):
        return cross_entropy(output, target) / target.masked_select(target > 0).numel()

    return with_loss(loss)


@mixing("gradient penalty between records", "interpolates each record with another")
def interpolation() -> Case:
    model = Between()

    def loss(output, target):
        x, logits = output
        middle = ((x + x.flip(0)) / 2).detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(middle).square().sum(), middle, create_graph=True)
        return cross_entropy(logits, target) + slope.square().sum(1)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return x, self.inner(x)

    return Both(), loss, rows(), labels()


@mixing("loss module with a memory", "a module loss that keeps an average of its batches")
def remembering() -> Case:
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.ones(()))

        def forward(self, output, target):
            losses = cross_entropy(output, target)
            self.average.mul_(0.9).add_(losses.detach().mean(), alpha=0.1)
            return losses / self.average

    return with_loss(Remembering())


@mixing("loss closed over the batch", "a captured list is appended to by the model")
def closure() -> Case:
    seen: list[Tensor] = []

    class Telling(Between):
        def forward(self, x):
            seen[:] = [x.detach()]
            return super().forward(x)

    def loss(output, target):
        return cross_entropy(output, target) * seen[0].mean().exp()

    return Telling(), loss, rows(), labels()
