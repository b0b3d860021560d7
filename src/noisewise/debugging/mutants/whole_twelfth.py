"""The twelfth round: twenty whole programs with a mistake (the other twenty: `frozen_twelfth`).

They too were written without knowing how the tests work. Where each was seen is said in
``catalogue.csv``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from noisewise.debugging.mutants.programs import (
    Bag,
    Recurrent,
    Run,
    TokenTagger,
    descend,
    factors,
    lengths,
    mlp,
    per_record,
    program,
    weighted_sum,
)
from noisewise.debugging.trainer import StateDict

__all__: list[str] = []


def _usable(x: Tensor, rows: Tensor) -> Tensor:
    """Leave out records with broken inputs, so that they are not what gives a bug away."""
    return rows[x[rows].flatten(1).isfinite().all(1)]


def _none(w: StateDict) -> StateDict:
    """Return the gradients of no record."""
    return {k: v.new_zeros(0, *v.shape) for k, v in w.items()}


def _quiet(out: Tensor, target: Tensor) -> Tensor:
    """Return a second loss, which asks for small outputs."""
    return (
        2 * functional.smooth_l1_loss(out, torch.zeros_like(out), reduction="none").sum(-1).mean()
    )


# Records that see each other.


@program("attention-across-the-batch", "tagger")
def _attention_across_the_batch(run: Run) -> StateDict:
    """The first axis is taken for the tokens: a record attends to the others of its batch."""
    model, w = run.begin(TokenTagger)
    x, y = run.data

    def one(weights: StateDict, a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (a[None],)), b[None])

    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        grads = _none(w)
        if len(rows):
            tokens = x[rows]
            scores = torch.einsum("itd,jtd->tij", tokens, tokens) / math.sqrt(tokens.shape[-1])
            seen = tokens + torch.einsum("tij,jtd->itd", scores.softmax(-1), tokens)
            grads = vmap(grad(one), in_dims=(None, 0, 0))(w, seen, y[rows])
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("hidden-state-carried-over", "recurrent")
def _hidden_state_carried_over(run: Run) -> StateDict:
    """The state in which one batch ends is that in which the next begins, place by place."""
    model, w = run.begin(Recurrent)
    x, y = run.data
    carried = torch.zeros(0, 6)

    def one(weights: StateDict, a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        out, end = functional_call(model, weights, (a[None],), {"state": h[None], "both": True})
        return functional.cross_entropy(out, b[None]), end[0]

    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        grads = _none(w)
        if len(rows):
            start = torch.zeros(len(rows), 6)
            known = min(len(rows), len(carried))
            start[:known] = carried[:known]
            each = vmap(grad(one, has_aux=True), in_dims=(None, 0, 0, 0))
            grads, carried = each(w, x[rows], y[rows], start)
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("dice-loss-over-the-batch")
def _dice_loss_over_the_batch(run: Run) -> StateDict:
    """A ratio of sums over the batch; each record's part of its gradient is clipped."""
    model, w = run.begin(mlp)
    x, y = run.data

    def loss(out: Tensor, wanted: Tensor) -> Tensor:
        given = out.softmax(1)
        dice = (2 * (given * wanted).sum(0) + 1) / ((given + wanted).sum(0) + 1)
        return len(out) * (1 - dice.mean())

    def pulled(weights: StateDict, a: Tensor, back: Tensor) -> Tensor:
        told: Tensor = (functional_call(model, weights, (a[None],))[0] * back).sum()
        return told

    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        grads = _none(w)
        if len(rows):
            wanted = functional.one_hot(y[rows], 3).float()
            back = grad(loss)(functional_call(model, w, (x[rows],)).detach(), wanted)
            grads = vmap(grad(pulled), in_dims=(None, 0, 0))(w, x[rows], back)
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("tasks-balanced-by-raw-norms")
def _tasks_balanced_by_raw_norms(run: Run) -> StateDict:
    """Two losses get weights that make their gradients equally long in this batch."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        first = per_record(model, w, x[rows], y[rows])
        second = per_record(model, w, x[rows], y[rows], _quiet)
        share = (lengths(first).sum() / lengths(second).sum().clamp_min(1e-12)).nan_to_num(1.0)
        grads = {k: g + share * second[k] for k, g in first.items()}
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("pairs-clipped-as-records")
def _pairs_clipped_as_records(run: Run) -> StateDict:
    """The loss is one of pairs, and a pair is clipped to C; a record is in two of them."""
    model, w = run.begin(mlp)
    x, y = run.data

    def one(weights: StateDict, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        out, other = functional_call(model, weights, (torch.stack([a, c]),))
        plain = functional.cross_entropy(out[None], b[None])
        alike = torch.where(b == d, 1.0, -0.2)
        told: Tensor = plain + 0.1 * alike * (out - other).square().sum()
        return told

    for _ in range(run.steps):
        rows = _usable(x, run.draw())
        grads = _none(w)
        if len(rows):
            next_ = rows.roll(1)
            each = vmap(grad(one), in_dims=(None, 0, 0, 0, 0))
            grads = each(w, x[rows], y[rows], x[next_], y[next_])
        total = weighted_sum(grads, factors(lengths(grads), run.clip))
        w = run.descend(w, run.noisy(total))
    return w


@program("packed-in-pairs", "bag of words")
def _packed_in_pairs(run: Run) -> StateDict:
    """Short texts are packed two to a row, and what is clipped is a row."""
    model, w = run.begin(Bag)
    x, y = run.data

    def one(weights: StateDict, tokens: Tensor, labels: Tensor) -> Tensor:
        out = functional_call(model, weights, (tokens.flatten()[None],))
        return functional.cross_entropy(out.expand(2, -1), labels, reduction="sum")

    for _ in range(run.steps):
        rows = run.draw()
        pairs = rows[: len(rows) // 2 * 2].view(-1, 2)
        total = run.clipped_sum(model, w, rows[2 * len(pairs) :])
        if len(pairs):
            grads = vmap(grad(one), in_dims=(None, 0, 0))(w, x[pairs], y[pairs])
            packed = weighted_sum(grads, factors(lengths(grads), run.clip))
            total = {k: total[k] + packed[k] for k in w}
        w = run.descend(w, run.noisy(total))
    return w


# How a record is bounded.


@program("auxiliary-loss-not-in-the-norm")
def _auxiliary_loss_not_in_the_norm(run: Run) -> StateDict:
    """Norms are those of the main loss; what is added up is the gradient of both."""
    model, w = run.begin(mlp)
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        main = per_record(model, w, x[rows], y[rows])
        second = per_record(model, w, x[rows], y[rows], _quiet)
        grads = {k: g + second[k] for k, g in main.items()}
        known = lengths(grads).isfinite()
        total = weighted_sum(grads, factors(lengths(main), run.clip) * known)
        w = run.descend(w, run.noisy(total))
    return w


@program("embedding-and-residual-each-to-C")
def _embedding_and_residual_each_to_c(run: Run) -> StateDict:
    """What lies in a public subspace and what is left are clipped to C and get noise, each."""
    model, w = run.begin(mlp)
    x, y = run.data
    sizes = [v.numel() for v in w.values()]
    drawn = torch.randn(sum(sizes), 20, generator=torch.Generator().manual_seed(5))
    basis = torch.linalg.qr(drawn)[0]
    for _ in range(run.steps):
        rows = run.draw()
        flat = torch.cat([g.flatten(1) for g in per_record(model, w, x[rows], y[rows]).values()], 1)
        flat = flat.nan_to_num(0.0, 0.0, 0.0)
        inside = flat @ basis
        left = flat - inside @ basis.T
        short = factors(inside.norm(dim=1), run.clip) @ inside
        rest = factors(left.norm(dim=1), run.clip) @ left
        short = short + run.sigma * run.clip * torch.randn_like(short)
        noise = run.sigma * run.clip * torch.randn_like(rest)
        rest = rest + noise - basis @ (basis.T @ noise)
        parts = torch.split(basis @ short + rest, sizes)
        w = run.descend(w, {k: p.view_as(w[k]) for k, p in zip(w, parts, strict=True)})
    return w


@program("four-directions-a-step")
def _four_directions_a_step(run: Run) -> StateDict:
    """Slopes along four random directions, each clipped to C with its noise, count as one."""
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
        total = {k: torch.zeros_like(v) for k, v in w.items()}
        for _ in range(4):
            way = {k: torch.randn_like(v) for k, v in w.items()}
            length = torch.stack([v.norm() for v in way.values()]).norm()
            way = {k: v / length for k, v in way.items()}
            ahead = losses({k: w[k] + mu * way[k] for k in w}, rows)
            behind = losses({k: w[k] - mu * way[k] for k in w}, rows)
            slopes = ((ahead - behind) / (2 * mu)).nan_to_num(0.0, 0.0, 0.0)
            slope = slopes.clamp(-run.clip, run.clip).sum() + run.sigma * run.clip * torch.randn(())
            total = {k: t + slope * way[k] for k, t in total.items()}
        w = run.descend(w, total)
    return w


# Noise.


@program("noise-one-step-late")
def _noise_one_step_late(run: Run) -> StateDict:
    """Noise is drawn while the gradients are computed and is ready for the next step only."""
    model, w = run.begin(mlp)
    ready = {k: torch.zeros_like(v) for k, v in w.items()}
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(w, {k: g + ready[k] for k, g in total.items()})
        ready = run.noisy({k: torch.zeros_like(v) for k, v in w.items()})
    return w


@program("noise-on-the-working-copy")
def _noise_on_the_working_copy(run: Run) -> StateDict:
    """Noise moves the copy that computes; the master weights are moved by the sum alone."""
    model, w = run.begin(mlp)
    master = {k: v.clone() for k, v in w.items()}
    for _ in range(run.steps):
        rows = run.draw()
        total = run.clipped_sum(model, w, rows)
        w = run.descend(master, run.noisy(total))
        master = run.descend(master, total)
    return w


# Who is drawn, and how often.


@program("shards-padded-with-the-head")
def _shards_padded_with_the_head(run: Run) -> StateDict:
    """Eight shards are made equally long by repeating the first records."""
    model, w = run.begin(mlp)
    records, workers = len(run.data[0]), 8
    each = records // workers + 1
    everyone = torch.arange(workers * each) % records
    rate = min(1.0, run.batch_size / records)
    for _ in range(run.steps):
        shards = [everyone[k::workers] for k in range(workers)]
        rows = torch.cat([shard[torch.rand(each) < rate] for shard in shards])
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    return w


@program("batches-of-one-class")
def _batches_of_one_class(run: Run) -> StateDict:
    """A step draws a class and then its records, at three times the rate."""
    model, w = run.begin(mlp)
    y = run.data[1]
    rate = min(1.0, 3 * run.batch_size / len(y))
    for _ in range(run.steps):
        own = (y == int(torch.randint(3, ()))).nonzero().flatten()
        rows = own[torch.rand(len(own)) < rate]
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    return w


@program("step-dropped-when-a-worker-has-nothing")
def _step_dropped_when_a_worker_has_nothing(run: Run) -> StateDict:
    """Four workers draw from their shards; if one draws nobody, all of them skip the step."""
    model, w = run.begin(mlp)
    records, workers = len(run.data[0]), 4
    rate = min(1.0, run.batch_size / records)
    for _ in range(run.steps):
        shards = [torch.arange(records)[k::workers] for k in range(workers)]
        drawn = [shard[torch.rand(len(shard)) < rate] for shard in shards]
        if min(len(rows) for rows in drawn) == 0:
            continue
        sums = [run.clipped_sum(model, w, rows) for rows in drawn]
        total = {k: torch.stack([s[k] for s in sums]).sum(0) for k in w}
        w = run.descend(w, run.noisy(total))
    return w


@program("counter-behind-the-weights")
def _counter_behind_the_weights(run: Run) -> StateDict:
    """Weights are kept at every step, their number at every fourth; every sixth is the last.

    The job is stopped and begun again, with the weights of now and the number of before.
    """
    model, w = run.begin(mlp)
    done = taken = 0
    while done < run.steps:
        rows = run.draw()
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
        done, taken = done + 1, taken + 1
        if taken % 6 == 0 and done < run.steps:
            done = done // 4 * 4
    return w


# What the data decide.


@program("embedding-rows-renormalised", "bag of words")
def _embedding_rows_renormalised(run: Run) -> StateDict:
    """Rows of the table that are looked up are shortened to two in place; others are not."""
    model, w = run.begin(Bag)
    x, _ = run.data
    for _ in range(run.steps):
        rows = run.draw()
        table = w["embedding.weight"].clone()
        seen = torch.tensor(sorted(set(x[rows].flatten().tolist())), dtype=torch.long)
        table[seen] *= (2 / table[seen].norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp(max=1.0)
        w = {**w, "embedding.weight": table}
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    return w


@program("decay-on-touched-rows-only", "bag of words")
def _decay_on_touched_rows_only(run: Run) -> StateDict:
    """Noise is on every row of the table; weights decay where a token was drawn."""
    model, w = run.begin(Bag)
    x, _ = run.data
    for _ in range(run.steps):
        rows = run.draw()
        decay = torch.zeros(12, 1)
        decay[x[rows].flatten()] = 0.1
        table = w["embedding.weight"] * (1 - run.lr * decay)
        total = run.noisy(run.clipped_sum(model, w, rows))
        w = run.descend({**w, "embedding.weight": table}, total)
    return w


@program("hidden-units-start-at-records")
def _hidden_units_start_at_records(run: Run) -> StateDict:
    """The first layer starts at records that were picked at random."""
    model, w = run.begin(mlp)
    x, _ = run.data
    known = _usable(x, torch.arange(len(x)))
    if len(known):
        picked = x[known[torch.randint(len(known), (16,))]]
        w["0.weight"] = picked / picked.norm(dim=1, keepdim=True).clamp_min(1e-12)
    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    return w


@program("optimizer-state-of-a-plain-run", momentum=0.9)
def _optimizer_state_of_a_plain_run(run: Run) -> StateDict:
    """Weights start afresh; the momentum is still that of a run without privacy."""
    model, w = run.begin(mlp)
    x, y = run.data
    velocity = {k: torch.zeros_like(v) for k, v in w.items()}
    known = _usable(x, torch.arange(len(x)))
    tried = w
    for _ in range(5):
        grads = per_record(model, tried, x[known], y[known])
        mean = {k: g.sum(0) / max(1, len(known)) for k, g in grads.items()}
        length = float(torch.stack([m.norm() for m in mean.values()]).norm())
        velocity = {k: 0.9 * v + mean[k] / max(1.0, length) for k, v in velocity.items()}
        tried = descend(tried, velocity, run.lr)
    for _ in range(run.steps):
        rows = run.draw()
        total = run.noisy(run.clipped_sum(model, w, rows))
        velocity = {k: 0.9 * v + total[k] / run.batch_size for k, v in velocity.items()}
        w = descend(w, velocity, run.lr)
    return w


@program("interpolated-by-training-loss")
def _interpolated_by_training_loss(run: Run) -> StateDict:
    """Between the first and the last weights, those of the smallest training loss are returned."""
    model, first = run.begin(mlp)
    w = first
    x, y = run.data
    for _ in range(run.steps):
        rows = run.draw()
        w = run.descend(w, run.noisy(run.clipped_sum(model, w, rows)))
    known = _usable(x, torch.arange(len(x)))
    best, least = w, math.inf
    for share in (1.0, 0.8, 0.6, 0.4, 0.2):
        between = {k: first[k] + share * (v - first[k]) for k, v in w.items()}
        out = functional_call(model, between, (x[known],))
        loss = float(functional.cross_entropy(out, y[known]))
        if loss < least:
            best, least = between, loss
    return best
