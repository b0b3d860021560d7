"""The eleventh round: twenty whole programs with a mistake (the other twenty: `frozen_eleventh`).

They too were written without knowing how the tests work. Where each was seen is said in
``catalogue.csv``.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from noisewise.debugging.mutants.programs import (
    Bag,
    Run,
    TokenTagger,
    add_noise,
    clipped_sum,
    descend,
    dropping,
    factors,
    lengths,
    linear,
    mlp,
    normalising,
    per_record,
    program,
    weighted_sum,
)
from noisewise.debugging.trainer import StateDict

__all__: list[str] = []


def _usable(x: Tensor, rows: Tensor) -> Tensor:
    """Leave out records with broken inputs, so that they are not what gives a bug away."""
    return rows[x[rows].flatten(1).isfinite().all(1)]


# How a record is bounded.


@program("tokens-clipped-each", "tagger")
def _tokens_clipped_each(run: Run) -> StateDict:
    """Batch and tokens are flattened to one axis: each token is clipped as if it were a record."""
    _, w = run.begin(TokenTagger)
    layer = nn.Sequential(OrderedDict(layer=nn.Linear(6, 3)))
    x, y = run.data
    tokens = x.shape[1]
    for _ in range(run.steps):
        rows = run.draw()
        words, labels = x[rows].flatten(0, 1), y[rows].repeat_interleave(tokens)
        total = clipped_sum(layer, w, words, labels, run.clip)
        w = run.descend(w, run.noisy(total))
    return w


@program("two-losses-clipped-each")
def _two_losses_clipped_each(run: Run) -> StateDict:
    """Two losses, two backward passes: each is clipped to C, and both are added."""
    model, w = run.begin(mlp)

    def quiet(out: Tensor, target: Tensor) -> Tensor:
        return 0.5 * out.square().sum(-1).mean()

    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        second = run.clipped_sum(model, w, rows, quiet)
        total = {k: total[k] + second[k] for k in w}
        w = run.descend(w, run.noisy(total))
    return w


@program("two-passes-two-masks", "dropout")
def _two_passes_two_masks(run: Run) -> StateDict:
    """Ghost clipping with dropout: norms under one mask, the reweighted gradient under another."""
    model, w = run.begin(dropping)
    model.train()
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        w = {k: p.detach() for k, p in model.named_parameters()}
        f = factors(lengths(per_record(model, w, x[rows], y[rows])), run.clip)
        keep = f > 0
        model.zero_grad()
        if keep.any():
            losses = functional.cross_entropy(model(x[rows][keep]), y[rows][keep], reduction="none")
            (losses * f[keep]).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for p in model.parameters():
                g = torch.zeros_like(p) if p.grad is None else p.grad
                p -= run.lr * (g + run.sigma * run.clip * torch.randn_like(p)) / run.batch_size  # type: ignore[misc]
    return {k: p.detach() for k, p in model.named_parameters()}


@program("in-batch-negatives")
def _in_batch_negatives(run: Run) -> StateDict:
    """A contrastive term: each record is to be nearer its mirror image than those of the batch."""
    model, w = run.begin(mlp)
    x, y = run.data

    def one(weights: StateDict, own: Tensor, a: Tensor, b: Tensor) -> Tensor:
        out = functional_call(model, weights, (a,))
        views = functional_call(model, weights, (a.flip(1),))
        near = (own @ out) @ views.T
        plain = functional.cross_entropy((own @ out)[None], (own @ b)[None])
        told: Tensor = plain - (own * near.log_softmax(0)).sum()
        return told

    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        grads = {k: v.new_zeros(0, *v.shape) for k, v in w.items()}
        if len(rows):
            classes = functional.one_hot(y[rows], 3).float()
            who = torch.eye(len(rows))
            grads = vmap(grad(one), in_dims=(None, 0, None, None))(w, who, x[rows], classes)
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("local-steps-clipped-each")
def _local_steps_clipped_each(run: Run) -> StateDict:
    """A client of one record takes three local steps; each is clipped to C, their sum is sent."""
    model, w = run.begin(mlp)
    x, y = run.data

    def one(weights: StateDict, a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (a[None],)), b[None])

    for _ in range(run.steps):
        rows = run.draw()
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        local = {k: v.expand(len(rows), *v.shape) for k, v in w.items()}
        for _ in range(3 if len(rows) else 0):
            grads = vmap(grad(one))(local, x[rows], y[rows])
            f = factors(lengths(grads), run.clip)
            for k, g in grads.items():
                wide = f.view(-1, *[1] * (g.dim() - 1))
                step = torch.where(wide > 0, wide * g, torch.zeros_like(g))
                local[k] = local[k] - 0.1 * step
                total[k] = total[k] + step.sum(0)
        w = run.descend(w, run.noisy(total))
    return w


@program("head-and-body-by-turns")
def _head_and_body_by_turns(run: Run) -> StateDict:
    """Two private optimizers, one batch: head, then body, each clipped to C, counted as one."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        for part in ("2.", "0."):
            grads = per_record(model, w, x[rows], y[rows])
            mine = {k: g for k, g in grads.items() if k.startswith(part)}
            noisy = run.noisy(weighted_sum(mine, factors(lengths(mine), run.clip)))
            w = w | run.descend({k: w[k] for k in mine}, noisy)
    return w


@program("gradient-of-the-output-clipped")
def _gradient_of_the_output_clipped(run: Run) -> StateDict:
    """A hook clips what comes back through the outputs; what they multiply has no bound."""
    model, _ = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        model.zero_grad()
        out = model(x[rows])
        back = out.detach().softmax(1) - functional.one_hot(y[rows], 3)
        f = factors(back.norm(dim=1), run.clip)
        out.backward(torch.where(f[:, None] > 0, f[:, None] * back, torch.zeros_like(back)))
        with torch.no_grad():
            for p in model.parameters():
                g = torch.zeros_like(p) if p.grad is None else p.grad.nan_to_num(0.0, 0.0, 0.0)
                p -= run.lr * (g + run.sigma * run.clip * torch.randn_like(p)) / run.batch_size  # type: ignore[misc]
    return {k: p.detach() for k, p in model.named_parameters()}


@program("intercept-forgotten-in-the-bound", "linear")
def _intercept_forgotten_in_the_bound(run: Run) -> StateDict:
    """Inputs are shortened so that the gradient of the weights is at most C; the bias is not."""
    model, w = run.begin(linear)
    x, y = run.data
    norm = x.norm(dim=1)
    good = norm.isfinite()
    limit = run.clip / math.sqrt(2)  # softmax minus label is at most sqrt(2) long
    x = torch.where(good, (limit / norm.clamp_min(1e-12)).clamp_max(1.0), norm)[:, None] * x
    for _ in range(run.steps):
        rows = run.draw()
        rows = rows[good[rows]]
        grads = per_record(model, w, x[rows], y[rows])
        total = {k: g.sum(0) for k, g in grads.items()}
        w = run.descend(w, run.noisy(total))
    return w


@program("zeroth-order-clipped-before-quotient")
def _zeroth_order_clipped_before_quotient(run: Run) -> StateDict:
    """Differences of losses are clipped to C and then divided by the distance of the two points."""
    model, w = run.begin(mlp)
    x, y = run.data
    mu = 0.05

    def losses(weights: StateDict, rows: Tensor) -> Tensor:
        with torch.no_grad():
            out = functional_call(model, weights, (x[rows],))
            each: Tensor = functional.cross_entropy(out, y[rows], reduction="none")
        return each

    for _ in range(run.steps):
        rows = run.draw()
        way = {k: torch.randn_like(v) for k, v in w.items()}
        length = torch.stack([v.norm() for v in way.values()]).norm()
        way = {k: v / length for k, v in way.items()}
        ahead = losses({k: w[k] + mu * way[k] for k in w}, rows)
        behind = losses({k: w[k] - mu * way[k] for k in w}, rows)
        apart = (ahead - behind).nan_to_num(0.0, 0.0, 0.0).clamp(-run.clip, run.clip)
        slope = apart.sum() / (2 * mu) + run.sigma * run.clip * torch.randn(())
        w = run.descend(w, {k: slope * v for k, v in way.items()})
    return w


# Noise.


@program("noise-added-once-at-the-end")
def _noise_added_once_at_the_end(run: Run) -> StateDict:
    """Clipped steps without noise; the weights that are sent get the noise of all of them."""
    model, w = run.begin(mlp)
    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.clipped_sum(model, w, rows))
    std = run.lr * run.sigma * run.clip / run.batch_size
    return add_noise(w, std * math.sqrt(run.steps))


@program("noise-added-to-loss")
def _noise_added_to_loss(run: Run) -> StateDict:
    """Noise is added to the loss before the backward pass, which does not see it."""
    model, w = run.begin(mlp)

    def noisy_loss(out: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(out, target) + run.sigma * run.clip * torch.randn(())

    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.clipped_sum(model, w, rows, noisy_loss))
    return w


@program("noise-traced-once-per-batch-shape")
def _noise_traced_once_per_batch_shape(run: Run) -> StateDict:
    """The step is compiled, its noise with it: a constant for each size of the batch."""
    model, w = run.begin(mlp)
    compiled: dict[int, StateDict] = {}
    for _ in range(run.steps):
        rows = run.draw()
        if len(rows) not in compiled:
            compiled[len(rows)] = {k: torch.randn_like(v) for k, v in w.items()}
        traced = compiled[len(rows)]
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, {k: g + run.sigma * run.clip * traced[k] for k, g in total.items()})
    return w


@program("evaluation-seeds-everything")
def _evaluation_seeds_everything(run: Run) -> StateDict:
    """Every 25 steps the model is evaluated on public data, which seeds all generators with 42."""
    model, w = run.begin(mlp)
    for step in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, run.noisy(total))
        if (step + 1) % 25 == 0:
            torch.manual_seed(42)
            functional_call(model, w, (torch.randn(16, 8),))
    return w


@program("large-batch-taken-as-two-steps")
def _large_batch_taken_as_two_steps(run: Run) -> StateDict:
    """A batch that does not fit is cut, and each piece makes a step with noise of its own."""
    model, w = run.begin(mlp)
    room = math.ceil(1.25 * run.batch_size)
    for _ in range(run.steps):
        for rows in run.draw().split(room):  # type: ignore[no-untyped-call]
            total = run.clipped_sum(model, w, rows)
            w = run.descend(w, run.noisy(total))
    return w


@program("two-models-averaged")
def _two_models_averaged(run: Run) -> StateDict:
    """Two private trainings on the same records are averaged; the epsilon of one is told."""
    model, w = run.begin(mlp)
    ends = []
    for _ in range(2):
        own = {k: v.clone() for k, v in w.items()}
        for _ in range(run.steps):
            rows = run.draw()
            own = run.descend(own, run.noisy(run.clipped_sum(model, own, rows)))
        ends.append(own)
    return {k: (ends[0][k] + ends[1][k]) / 2 for k in w}


# What the data decide.


@program("better-of-two-seeds")
def _better_of_two_seeds(run: Run) -> StateDict:
    """Two trainings with seeds of their own; the one with the smaller training loss is kept."""
    model, w = run.begin(mlp)
    x, y = run.data
    all_rows = _usable(x, torch.arange(len(x)))
    best, least = w, math.inf
    for attempt in range(2):
        own = {k: v.clone() for k, v in w.items()}
        for _ in range(run.steps):
            rows = run.draw()
            own = run.descend(own, run.noisy(run.clipped_sum(model, own, rows)))
        out = functional_call(model, own, (x[all_rows],))
        loss = float(functional.cross_entropy(out, y[all_rows])) if len(all_rows) else 0.0
        if attempt == 0 or loss < least:
            best, least = own, loss
    return best


@program("epoch-finished-before-stopping")
def _epoch_finished_before_stopping(run: Run) -> StateDict:
    """The number of steps is looked at between epochs only; epsilon is that of the number."""
    model, w = run.begin(mlp)
    epoch = math.ceil(len(run.data[0]) / run.batch_size)
    done = 0
    while done < run.steps:
        for _ in range(epoch):
            rows = run.draw()
            w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
            done += 1
    return w


@program("warm-start-in-the-clear")
def _warm_start_in_the_clear(run: Run) -> StateDict:
    """Private training starts from a model that was fitted to the same records without privacy."""
    model, w = run.begin(mlp)
    x, y = run.data
    rows = _usable(x, torch.arange(len(x)))
    for _ in range(5):
        grads = per_record(model, w, x[rows], y[rows])
        plain = {k: g.nan_to_num(0.0, 0.0, 0.0).sum(0) for k, g in grads.items()}
        w = descend(w, plain, 0.1 / max(1, len(rows)))
    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    return w


@program("rare-words-dropped", "bag of words")
def _rare_words_dropped(run: Run) -> StateDict:
    """Words of fewer than two records are no part of the vocabulary, which the records decide."""
    model, w = run.begin(Bag)
    x, y = run.data
    records = torch.stack([(x == word).any(1).sum() for word in range(12)])
    x = torch.where(records[x] >= 2, x, torch.zeros_like(x))
    for _ in range(run.steps):
        rows = run.draw()
        total = clipped_sum(model, w, x[rows], y[rows], run.clip)
        w = run.descend(w, run.noisy(total))
    return w


@program("batch-norm-statistics-set-at-the-end", "batch norm")
def _batch_norm_statistics_set_at_the_end(run: Run) -> StateDict:
    """Training with fixed statistics is private; then those of the private records are taken."""
    model, w = run.begin(normalising)
    model.eval()
    x, _ = run.data
    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    model.load_state_dict({**model.state_dict(), **w})
    rows = _usable(x, torch.arange(len(x)))
    if len(rows) > 1:
        model.train()
        norm = model[1]
        assert isinstance(norm, nn.BatchNorm1d)
        norm.momentum = None  # the mean over all of them
        norm.reset_running_stats()
        model(x[rows])
    return {k: v.detach().clone() for k, v in model.state_dict().items()}
