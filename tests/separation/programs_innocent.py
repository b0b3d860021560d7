"""Programs that keep records apart, though some look as if they did not."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from separation.program import (
    CLASSES,
    HIDDEN,
    RECORDS,
    STEPS,
    VOCABULARY,
    WIDTH,
    Between,
    Case,
    between,
    cross_entropy,
    innocent,
    labels,
    over_time,
    rows,
    with_loss,
    words,
)


def lengths() -> Tensor:
    return torch.tensor([5, 3, 1, 4, 2, 5])


# ------------------------------------------------------------------ axes moved and merged
@innocent("linear map of the transposed rows", "records lie along axis 1 for a while")
def transposed() -> Case:
    return between(lambda self, h: (self.a.weight[:, :HIDDEN] @ h.T).tanh().T)


@innocent("pieces of a record as rows", "(B*4, 2), softmax, back")
def pieces() -> Case:
    return between(lambda self, h: h.reshape(-1, 2).softmax(1).view_as(h))


@innocent("time first, merged, back", "(T*B, d) and back in the same order")
def time_first() -> Case:
    def through(self, h):
        flat = h.transpose(0, 1).reshape(STEPS * len(h), HIDDEN)
        return (flat * flat.sigmoid()).view(STEPS, len(h), HIDDEN).transpose(0, 1)

    return over_time(through)


@innocent("batch in the middle", "(T, B, heads, d), attention per record and head")
def middle() -> Case:
    def attended(self, h):
        q = h.view(len(h), STEPS, 2, HIDDEN // 2).permute(1, 0, 2, 3)
        scores = torch.einsum("tbhd,sbhd->bhts", q, q).softmax(-1)
        return torch.einsum("bhts,sbhd->tbhd", scores, q).reshape(STEPS, len(h), -1).transpose(0, 1)

    return over_time(attended)


@innocent("heads merged with the batch", "(B*heads, T, d), bmm, back")
def merged_heads() -> Case:
    def attended(self, h):
        q = h.view(len(h), STEPS, 2, -1).transpose(1, 2).reshape(len(h) * 2, STEPS, -1)
        out = torch.bmm(torch.bmm(q, q.transpose(1, 2)).softmax(-1), q)
        return out.view(len(h), 2, STEPS, -1).transpose(1, 2).reshape(len(h), STEPS, HIDDEN)

    return over_time(attended)


@innocent("two views in one batch", "cat of the batch with its negative, chunked again")
def two_views() -> Case:
    def doubled(self, h):
        first, second = torch.cat([h, -h]).tanh().chunk(2)
        return first * second

    return between(doubled)


@innocent("halves one after the other", "split, two calls, cat")
def halves() -> Case:
    class Halves(Between):
        def forward(self, x):
            return torch.cat([super(Halves, self).forward(part) for part in x.split(3)])

    return Halves(), cross_entropy, rows(), labels()


@innocent("record by record", "a Python loop over the batch", hard=True)
def loop() -> Case:
    class Loop(Between):
        def forward(self, x):
            return torch.stack([self.b(self.a(row).relu()) for row in x])

    return Loop(), cross_entropy, rows(), labels()


@innocent("flipped twice", "flip(0), a pointwise function, flip(0)")
def flipped_twice() -> Case:
    return between(lambda self, h: h.flip(0).tanh().flip(0))


@innocent("rolled there and back", "roll(2, 0), layer norm, roll(-2, 0)")
def rolled() -> Case:
    return between(lambda self, h: functional.layer_norm(h.roll(2, 0), (HIDDEN,)).roll(-2, 0))


@innocent("a public permutation and its inverse", "indices made of constants")
def permuted() -> Case:
    def through(self, h):
        order = torch.arange(len(h)).roll(2)
        return h[order].softmax(1)[order.argsort()]

    return between(through)


@innocent("evens and odds", "strided slices of the batch, written back to their places")
def interleaved() -> Case:
    def through(self, h):
        out = torch.empty_like(h)
        out[::2] = h[::2].tanh()
        out[1::2] = h[1::2].tanh()
        return out

    return between(through)


@innocent("unfolded within a record", "windows along the features")
def windows() -> Case:
    return between(lambda self, h: functional.pad(h.unfold(1, 3, 1).amax(-1), (0, 2)))


@innocent("as_strided within a record", "overlapping windows that stay in the row")
def strided() -> Case:
    def through(self, h):
        seen = h.contiguous().as_strided((len(h), HIDDEN - 2, 3), (HIDDEN, 1, 1))
        return functional.pad(seen.mean(-1), (0, 2))

    return between(through)


@innocent("image patches", "unfold and fold of images")
def patches() -> Case:
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.map, self.head = nn.Linear(12, 12), nn.Linear(3, CLASSES)

        def forward(self, x):
            cut = functional.unfold(x, 2, stride=2)
            out = self.map(cut.transpose(1, 2)).transpose(1, 2)
            return self.head(functional.fold(out, (8, 8), 2, stride=2).mean((2, 3)))

    return Patches(), cross_entropy, torch.randn(RECORDS, 3, 8, 8), labels()


@innocent("images resized, padded, pooled and unpooled", "many spatial operations")
def spatial() -> Case:
    class Spatial(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, CLASSES)

        def forward(self, x):
            h = self.first(functional.pad(x, (1, 1, 1, 1), mode="reflect"))
            small, places = functional.max_pool2d(h, 2, return_indices=True)
            h = functional.max_unpool2d(small.relu(), places, 2)
            h = functional.interpolate(h, scale_factor=2, mode="bilinear")
            h = functional.pixel_unshuffle(h, 2)[:, :4]
            return self.head(functional.adaptive_avg_pool2d(h, 1).flatten(1))

    return Spatial(), cross_entropy, torch.randn(RECORDS, 3, 8, 8), labels()


@innocent("a spatial transformer", "each image sampled by a grid of its own")
def sampled() -> Case:
    class Sampler(nn.Module):
        def __init__(self):
            super().__init__()
            self.locate, self.head = nn.Linear(3 * 64, 6), nn.Linear(3, CLASSES)

        def forward(self, x):
            theta = self.locate(x.flatten(1)).view(-1, 2, 3)
            grid = functional.affine_grid(theta, x.shape, align_corners=False)
            seen = functional.grid_sample(x, grid, align_corners=False)
            return self.head(seen.mean((2, 3)))

    return Sampler(), cross_entropy, torch.randn(RECORDS, 3, 8, 8), labels()


# ------------------------------------------------------------------ order, scans, indices
@innocent("sorted within a record", "sort(1), cumsum(1), flip(1), roll(1, 1)")
def ordered() -> Case:
    return between(lambda self, h: h.sort(1).values.cumsum(1).flip(1).roll(1, 1))


@innocent("rank within a record", "argsort of argsort along features")
def ranked() -> Case:
    return between(lambda self, h: h * h.argsort(1).argsort(1))


@innocent("best tokens of a record", "topk and gather along time")
def best_tokens() -> Case:
    def kept(self, h):
        best = h.norm(dim=2).topk(2, dim=1).indices
        return h.gather(1, best[..., None].expand(-1, -1, HIDDEN))

    return over_time(kept)


@innocent("last token by own length", "advanced indices: arange and the record's own number")
def last_token() -> Case:
    return over_time(lambda self, h, n: h[torch.arange(len(h)), n - 1][:, None], lengths())


@innocent("masked mean", "padding of the record's own, by its own length")
def masked_mean() -> Case:
    def averaged(self, h, n):
        mask = (torch.arange(STEPS) < n[:, None]).float()[..., None]
        return (h * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)

    return over_time(averaged, lengths())


@innocent("masked attention", "SDPA with a key padding mask per record")
def masked_attention() -> Case:
    def attended(self, h, n):
        mask = (torch.arange(STEPS) < n[:, None])[:, None, None, :]
        q = h.view(len(h), STEPS, 2, -1).transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.1)
        return out.transpose(1, 2).reshape(len(h), STEPS, HIDDEN)

    return over_time(attended, lengths())


@innocent("positions counted from padding", "cumsum of a mask along time, as RoBERTa does")
def positions() -> Case:
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=0)
            self.place, self.head = nn.Embedding(STEPS + 2, HIDDEN), nn.Linear(HIDDEN, CLASSES)

        def forward(self, word):
            real = word.ne(0).int()
            place = (real.cumsum(1) * real).long() + 1
            return self.head((self.word(word) + self.place(place)).mean(1))

    return Positions(), cross_entropy, words(), labels()


@innocent("scatter along features", "scatter_add within the row")
def scattered() -> Case:
    def counted(self, h):
        return torch.zeros_like(h).scatter_add(1, h.detach().argsort(1), h)

    return between(counted)


@innocent("one-hot code", "torch looks at the largest and smallest class of the batch", hard=True)
def one_hot() -> Case:
    return between(lambda self, h: h * functional.one_hot(h.detach().argmax(1), HIDDEN))


@innocent("public edges of a merged graph", "index_add with offsets that are constants")
def merged_graph() -> Case:
    def spread(self, h):
        ring = torch.arange(STEPS)
        start = (ring + STEPS * torch.arange(len(h))[:, None]).reshape(-1)
        goal = ((ring + 1) % STEPS + STEPS * torch.arange(len(h))[:, None]).reshape(-1)
        flat = h.reshape(-1, HIDDEN)
        return flat.index_add(0, goal, flat[start]).view_as(h)

    return over_time(spread)


@innocent("table of constants", "bucketize and searchsorted in public edges")
def binned() -> Case:
    def placed(self, h):
        edges = torch.linspace(-2, 2, 9)
        return h * torch.bucketize(h.detach(), edges) + torch.searchsorted(edges, h.detach())

    return between(placed)


@innocent("distance to learnt prototypes", "cdist of the batch with parameters")
def prototypes() -> Case:
    class Prototypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(WIDTH, HIDDEN)
            self.centre = nn.Parameter(torch.randn(CLASSES, HIDDEN))

        def forward(self, x):
            return -torch.cdist(self.a(x), self.centre)

    return Prototypes(), cross_entropy, rows(), labels()


@innocent("experts weighed, all of them run", "soft routing, each record its own gate")
def experts() -> Case:
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(WIDTH, 4)
            self.weight = nn.Parameter(torch.randn(4, WIDTH, CLASSES) / 4)

        def forward(self, x):
            share, chosen = self.gate(x).softmax(1).topk(2, dim=1)
            dense = torch.zeros(len(x), 4).scatter(1, chosen, share)
            return torch.einsum("bi,eij,be->bj", x, self.weight, dense)

    return Experts(), cross_entropy, rows(), labels()


# ------------------------------------------------------------------ algebra per record
@innocent("batched linear algebra", "det, inverse, Cholesky, solve of a matrix per record")
def algebra() -> Case:
    class Algebra(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 9), nn.Linear(10, CLASSES)

        def forward(self, x):
            raw = self.a(x).view(-1, 3, 3)
            matrix = raw @ raw.transpose(1, 2) + torch.eye(3)
            root = torch.linalg.cholesky(matrix)
            solved = torch.linalg.solve(matrix, root)
            return self.b(torch.cat([solved.flatten(1), torch.logdet(matrix)[:, None]], 1))

    return Algebra(), cross_entropy, rows(), labels()


@innocent("a network per record", "weights made by the record itself, bmm")
def hyper() -> Case:
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Linear(WIDTH, WIDTH * CLASSES)

        def forward(self, x):
            return torch.bmm(x[:, None], self.make(x).view(-1, WIDTH, CLASSES))[:, 0]

    return Hyper(), cross_entropy, rows(), labels()


@innocent("outer products", "bilinear form of a record with itself")
def bilinear() -> Case:
    class Form(nn.Module):
        def __init__(self):
            super().__init__()
            self.form = nn.Bilinear(WIDTH, WIDTH, CLASSES)

        def forward(self, x):
            return self.form(x, torch.einsum("bi,bj->bij", x, x).mean(2))

    return Form(), cross_entropy, rows(), labels()


@innocent("Fourier within a record", "rfft along features")
def fourier() -> Case:
    return between(lambda self, h: torch.fft.irfft(torch.fft.rfft(h, dim=1) * 0.5, HIDDEN, 1))


@innocent("complex rotations", "rotary positions by view_as_complex")
def rotary() -> Case:
    def turned(self, h):
        angle = torch.outer(torch.arange(STEPS).float(), 10.0 ** -torch.arange(HIDDEN // 2))
        turn = torch.polar(torch.ones_like(angle), angle)
        pairs = torch.view_as_complex(h.reshape(len(h), STEPS, -1, 2))
        return torch.view_as_real(pairs * turn).flatten(2)

    return over_time(turned)


@innocent("scan in a Python loop", "a recurrence over time")
def recurrence() -> Case:
    def scanned(self, h):
        state, states = torch.zeros(len(h), HIDDEN), []
        for moment in h.unbind(1):
            state = 0.5 * state + moment
            states.append(state.clone())
        return torch.stack(states, 1)

    return over_time(scanned)


# ------------------------------------------------------------------ torch.func, inner gradients
@innocent("vmap over records", "in_dims=0, a function of one row")
def vmapped() -> Case:
    return between(lambda self, h: vmap(lambda row: row - row.mean())(h))


@innocent("gradient features by vmap", "each record's own slope as a feature", hard=True)
def vmap_grad() -> Case:
    return between(lambda self, h: h + vmap(grad(lambda row: row.tanh().square().sum()))(h))


@innocent("Jacobian per record", "jacrev under vmap", hard=True)
def jacobian() -> Case:
    return between(lambda self, h: h + vmap(jacrev(torch.tanh))(h).sum(2))


@innocent(
    "gradient penalty per record", "autograd.grad of the sum of outputs by the input", hard=True
)
def penalty() -> Case:
    class Penalised(Between):
        def forward(self, x):
            x = x.detach().requires_grad_()
            out = self.b(self.a(x).tanh())
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out, slope.square().sum(1)

    def loss(output, target):
        return cross_entropy(output[0], target) + 0.1 * output[1]

    return Penalised(), loss, rows(), labels()


@innocent("functional call", "the model is called with its own parameters", hard=True)
def functional_model() -> Case:
    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Between()

        def forward(self, x):
            return functional_call(self.inner, dict(self.inner.named_parameters()), (x,))

    return Called(), cross_entropy, rows(), labels()


# ------------------------------------------------------------------ backward of one's own
class Backward(torch.autograd.Function):
    """Identity whose gradient is what a function makes of it."""

    @staticmethod
    def forward(context, x, change):
        context.change = change
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return context.change(gradient), None


@innocent("gradient clipped per record", "custom function, norm along features")
def clipped_gradient() -> Case:
    return between(
        lambda self, h: Backward.apply(h, lambda g: g / (1 + g.norm(dim=1, keepdim=True)))
    )


@innocent("gradient reversed", "custom function, constant factor")
def reversed_gradient() -> Case:
    return between(lambda self, h: Backward.apply(h, lambda g: -0.3 * g))


@innocent("straight through a threshold of one's own", "record's own mean")
def straight() -> Case:
    return between(lambda self, h: h + ((h > h.mean(1, keepdim=True)).float() - h).detach())


@innocent("tensor hook per record", "scales a record's gradient by its own norm")
def tensor_hook() -> Case:
    def hooked(self, h):
        h.register_hook(lambda g: g / (1 + g.norm(dim=1, keepdim=True)))
        return h

    return between(hooked)


@innocent("module hook with a constant", "full backward hook, half the gradient")
def module_hook() -> Case:
    model, loss, x, y = with_loss(cross_entropy)
    model.b.register_full_backward_hook(lambda module, inner, outer: (0.5 * inner[0],))
    return model, loss, x, y


@innocent("saved tensors moved and brought back", "pack to double, unpack to float")
def saved() -> Case:
    def squashed(self, h):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            return h.tanh() * h

    return between(squashed)


@innocent("checkpointed twice", "a checkpoint within a checkpoint, with dropout")
def checkpointed() -> Case:
    def inner(h):
        return functional.dropout(h.tanh(), 0.3)

    def outer(h):
        return checkpoint(inner, h, use_reentrant=False) * h

    return between(lambda self, h: checkpoint(outer, h, use_reentrant=False))


# ------------------------------------------------------------------ writes in place
@innocent("writes in place along features", "h[:, 0] = 0, h[:, 1:] += h[:, :-1]")
def inplace() -> Case:
    def written(self, h):
        h = h.clone()
        h[:, 0] = 0
        h[:, 1:] += h[:, :-1].clone()
        h.masked_fill_(h > 2, 2.0)
        return h.clamp_(-1, 1)

    return between(written)


@innocent("writes through a chain of views", "view, select, mul_, add_")
def views() -> Case:
    def written(self, h):
        h = h.clone()
        pair = h.view(len(h), 2, 4)
        pair[:, 0].mul_(2)
        pair[:, 1].add_(pair[:, 0])
        return h

    return between(written)


@innocent("results collected in fresh memory", "new_empty filled row by row")
def collected() -> Case:
    def filled(self, h):
        out = h.new_empty(len(h), HIDDEN)
        for i in range(len(h)):
            out[i] = h[i].softmax(0)
        return out

    return between(filled)


# ------------------------------------------------------------------ randomness
@innocent("noise of many kinds", "uniform, normal, exponential, alpha dropout")
def noise() -> Case:
    def noisy(self, h):
        h = h + 0.1 * torch.randn_like(h) + torch.rand(len(h), 1)
        h = functional.alpha_dropout(h, 0.1, training=True)
        return h * torch.empty_like(h).exponential_()

    return between(noisy)


@innocent("a coin with one's own odds", "bernoulli of the entry's own probability")
def own_odds() -> Case:
    return between(lambda self, h: h * torch.bernoulli(h.detach().sigmoid()))


@innocent("a class drawn from one's own logits", "multinomial per row")
def own_class() -> Case:
    def drawn(self, h):
        chosen = torch.multinomial(h.detach().softmax(1), 2)
        return h * torch.zeros_like(h).scatter(1, chosen, 1.0)

    return between(drawn)


@innocent("a layer dropped for all", "one public coin, read in Python, as layer drop does")
def layer_drop() -> Case:
    def dropped(self, h):
        return h if torch.rand([]) < 0.5 else h.tanh()

    return between(dropped)


@innocent("features in a random order", "one permutation of features for all records")
def feature_order() -> Case:
    return between(lambda self, h: h[:, torch.randperm(HIDDEN)])


@innocent("random erasing", "a drawn interval per record")
def erased() -> Case:
    def erase(self, h):
        begin = torch.randint(0, HIDDEN, (len(h), 1))
        place = torch.arange(HIDDEN)
        return h.masked_fill((place >= begin) & (place < begin + 2), 0.0)

    return between(erase)


# ------------------------------------------------------------------ state that holds no record
@innocent("counter of steps", "a buffer that counts batches")
def counter() -> Case:
    def counted(self, h):
        self.count += 1
        return h

    model, loss, x, y = between(counted)
    model.register_buffer("count", torch.zeros((), dtype=torch.long))
    return model, loss, x, y


@innocent("average of weights", "a buffer that follows a parameter")
def averaged() -> Case:
    def followed(self, h):
        self.average.lerp_(self.a.weight.detach(), 0.1)
        return h

    model, loss, x, y = between(followed)
    model.register_buffer("average", torch.zeros(HIDDEN, WIDTH))
    return model, loss, x, y


@innocent("table made at first use", "positions kept on the module")
def lazy_table() -> Case:
    def shifted(self, h):
        if getattr(self, "table", None) is None:
            self.table = torch.sin(torch.arange(HIDDEN).float())
        return h + self.table

    return between(shifted)


@innocent("teacher", "a frozen copy of the model gives the target")
def teacher() -> Case:
    class Taught(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = Between()
            self.teacher = copy.deepcopy(Between()).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                wanted = self.teacher(x).softmax(1)
            return self.student(x), wanted

    def loss(output, target):
        return functional.kl_div(output[0].log_softmax(1), output[1], reduction="none").sum(1)

    return Taught(), loss, rows(), labels()


@innocent("parametrised weight", "tanh of a parameter, tied to a second layer")
def parametrised() -> Case:
    class Bounded(nn.Module):
        def forward(self, weight):
            return weight.tanh()

    model, loss, x, y = with_loss(cross_entropy)
    parametrize.register_parametrization(model.a, "weight", Bounded())
    return model, loss, x, y


@innocent("activation kept for reading", "the module stores this batch, and overwrites it unread")
def kept() -> Case:
    def stored(self, h):
        self.last = h.detach().shape
        return h

    return between(stored)


# ------------------------------------------------------------------ losses
@innocent("focal loss per record", "its own probability only")
def focal() -> Case:
    def loss(output, target):
        losses = cross_entropy(output, target)
        return (1 - (-losses).exp()).square() * losses

    return with_loss(loss)


@innocent("constant class weights", "a public table, indexed by the label")
def weighted() -> Case:
    table = torch.tensor([1.0, 2.0, 0.5])
    return with_loss(lambda output, target: cross_entropy(output, target) * table[target])


@innocent("weighted torch loss with smoothing", "nn.CrossEntropyLoss of all options")
def module_loss() -> Case:
    table = torch.tensor([1.0, 2.0, 0.5])
    return with_loss(nn.CrossEntropyLoss(weight=table, label_smoothing=0.1, reduction="none"))


@innocent("several heads, nested targets", "dictionaries of tuples")
def nested() -> Case:
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(WIDTH, n) for n in (HIDDEN, CLASSES, 1))
            self.d = nn.Linear(HIDDEN, CLASSES)

        def forward(self, first, second):
            h = self.a(first) * self.a(second)
            return {"class": (self.b(first), self.d(h)), "value": self.c(second)}

    def loss(output, target):
        one, two = output["class"]
        value = functional.huber_loss(output["value"][:, 0], target["value"], reduction="none")
        return (
            cross_entropy(one, target["class"][0]) + cross_entropy(two, target["class"][1]) + value
        )

    y: Any = {"class": (labels(), labels().flip(0).clone()), "value": torch.randn(RECORDS)}
    return Heads(), loss, (rows(), rows()), y


@innocent("triplet within a record", "anchor, positive and negative are one record's")
def triplet() -> Case:
    model = nn.Linear(WIDTH, HIDDEN)

    def loss(output, target):
        return functional.triplet_margin_loss(*output.unbind(1), reduction="none")

    return model, loss, torch.randn(RECORDS, 3, WIDTH), labels()


@innocent("candidates of a record", "softmax over its own negatives")
def candidates() -> Case:
    def loss(output, target):
        scores = torch.einsum("bd,bkd->bk", output[:, 0], output[:, 1:])
        return -scores.log_softmax(1)[:, 0]

    return nn.Linear(WIDTH, HIDDEN), loss, torch.randn(RECORDS, 5, WIDTH), labels()


@innocent("CTC with padded targets", "torch's own loss, one row of labels per record")
def padded_ctc() -> Case:
    def loss(output, target):
        steps = torch.full((len(output),), output.shape[1])
        scores = output.log_softmax(2).transpose(0, 1)
        return functional.ctc_loss(
            scores, target["labels"], steps, target["length"], reduction="none"
        )

    y = {"labels": torch.randint(1, 5, (RECORDS, 3)), "length": torch.tensor([1, 2, 3, 2, 1, 3])}
    return nn.Linear(WIDTH, 5), loss, torch.randn(RECORDS, 9, WIDTH), y


@innocent("regression with a variance", "torch looks whether any variance is negative", hard=True)
def gaussian() -> Case:
    def loss(output, target):
        return functional.gaussian_nll_loss(
            output[:, 0], target.float(), output[:, 1].exp(), reduction="none"
        )

    return with_loss(loss)


@innocent("several torch losses", "Poisson, smooth L1, margin and cosine losses per record")
def likelihoods() -> Case:
    def loss(output, target):
        goal = target.float()
        counts = functional.poisson_nll_loss(output[:, 2], goal, reduction="none")
        near = functional.smooth_l1_loss(output[:, 0], goal, reduction="none")
        margin = functional.multi_margin_loss(output, target, reduction="none")
        return counts + near + margin + 1 - functional.cosine_similarity(output, output.roll(1, 1))

    return with_loss(loss)


@innocent("preference pairs", "two answers of one record compared, with a frozen reference")
def preference() -> Case:
    def loss(output, target):
        chosen, rejected = output.log_softmax(-1).amax(-1).unbind(1)
        return -functional.logsigmoid(0.1 * (chosen - rejected))

    return nn.Linear(WIDTH, HIDDEN), loss, torch.randn(RECORDS, 2, WIDTH), labels()


@innocent("consistency of two passes", "R-Drop: the same record twice through dropout")
def consistency() -> Case:
    class Twice(Between):
        def forward(self, x):
            first = self.b(functional.dropout(self.a(x), 0.3))
            return first, self.b(functional.dropout(self.a(x), 0.3))

    def loss(output, target):
        one, two = (o.log_softmax(1) for o in output)
        apart = functional.kl_div(one, two, log_target=True, reduction="none").sum(1)
        return cross_entropy(output[0], target) + apart

    return Twice(), loss, rows(), labels()


# ------------------------------------------------------------------ true, but hard to see
@innocent("batch folded into groups", "a grouped convolution, one group per record", hard=True)
def grouped() -> Case:
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel, self.head = nn.Parameter(torch.randn(4, 3, 3)), nn.Linear(4, CLASSES)

        def forward(self, x):
            folded = x.reshape(1, -1, x.shape[2])
            out = functional.conv1d(folded, self.kernel.repeat(len(x), 1, 1), groups=len(x))
            return self.head(out.view(len(x), 4, -1).mean(2))

    return Grouped(), cross_entropy, torch.randn(RECORDS, 3, 7), labels()


@innocent("group norm with a group per record", "a flattened batch", hard=True)
def group_per_record() -> Case:
    return between(lambda self, h: functional.group_norm(h.reshape(1, -1), len(h)).view_as(h))


@innocent("sorted and put back", "sort over the batch, undone by its own inverse", hard=True)
def sorted_back() -> Case:
    def through(self, h):
        order = h.detach()[:, 0].argsort()
        out = torch.empty_like(h)
        out[order] = h[order].tanh()
        return out

    return between(through)


@innocent("branch that changes nothing", "mask.all() chooses between equal paths", hard=True)
def shortcut() -> Case:
    def masked(self, h, mask):
        if bool(mask.all()):
            return h
        return h * mask[..., None]

    return over_time(masked, torch.rand(RECORDS, STEPS) < 0.8)


@innocent("packed rows", "boolean selection of real tokens, put back by the same mask", hard=True)
def unpadded() -> Case:
    def packed(self, h, mask):
        out = torch.zeros_like(h)
        out[mask] = h[mask].tanh()
        return out

    return over_time(packed, torch.rand(RECORDS, STEPS) < 0.8)


@innocent("hard routing", "each expert runs on its own records, results put back", hard=True)
def routed() -> Case:
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(WIDTH, 2)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(2))

        def forward(self, x):
            share, chosen = self.gate(x).softmax(1).max(1)
            out = torch.zeros(len(x), CLASSES)
            for k, expert in enumerate(self.experts):
                (own,) = torch.where(chosen == k)
                out = out.index_add(0, own, expert(x[own]) * share[own, None])
            return out

    return Routed(), cross_entropy, rows(), labels()
