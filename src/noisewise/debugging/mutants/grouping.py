"""Training on units, right and with groupings that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

__all__ = ["GROUPINGS", "train_units"]

#: What each mistake does.
GROUPINGS = {
    "clipped-per-row": "rows are clipped one by one, and a unit is their sum",
    "split-over-batches": "a unit's rows in two micro-batches are clipped twice",
    "counted-by-rows": "each row is drawn by itself, with batch_size / rows",
    "divided-by-rows": "sum and noise are divided by the number of rows drawn",
    "units-by-position": "neighbouring rows are taken for a unit, whatever their identifiers",
    "first-unit-unclipped": "the unit that comes first keeps its whole gradient",
}


def train_units(
    model_fn: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    mistake: str | None = None,
) -> Callable[..., Mapping[str, Tensor]]:
    """Return DP-SGD on units: each is drawn by itself, and the sum over its rows is clipped."""
    if mistake is not None and mistake not in GROUPINGS:
        raise ValueError(f"unknown mistake {mistake!r}: {', '.join(GROUPINGS)}")

    def train(
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: tuple[Tensor, Tensor],
        init: Mapping[str, Tensor],
        steps: int,
        lr: float,
        units: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        model = model_fn()
        chance = torch.Generator().manual_seed(seed)
        x, y = data
        ids = torch.arange(len(x)) if units is None else torch.as_tensor(units)
        _, codes = torch.unique(ids, return_inverse=True)
        state = {name: value.clone() for name, value in init.items()}
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        count = int(codes.max()) + 1

        def loss(weights: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            output = functional_call(model, {**state, **weights}, (one[None],))
            return loss_fn(output, target[None])

        for _ in range(steps):
            if mistake == "counted-by-rows":
                kept = torch.rand(len(x), generator=chance) < batch_size / len(x)
            else:
                kept = (torch.rand(count, generator=chance) < batch_size / count)[codes]
            group = _groups(codes, mistake)[kept]
            gradients: dict[str, Tensor] = {n: torch.zeros(0) for n in names}
            weights = {n: state[n] for n in names}
            if bool(kept.any()):
                gradients = vmap(grad(loss), (None, 0, 0))(weights, x[kept], y[kept])
            total = _clipped(gradients, group, clip, mistake)
            divisor = batch_size
            if mistake == "divided-by-rows":
                divisor = max(1, int(kept.sum()))
            for name in names:
                noise = torch.randn(state[name].shape, generator=chance)
                step = total.get(name, 0.0) + noise_multiplier * clip * noise
                state[name] = state[name] - lr * step / divisor
        return state

    return train


def _groups(codes: Tensor, mistake: str | None) -> Tensor:
    """What is taken for a unit."""
    rows = torch.arange(len(codes))
    if mistake == "clipped-per-row":
        return rows
    if mistake == "split-over-batches":
        return 2 * codes + (2 * rows >= len(rows)).long()
    if mistake == "units-by-position":
        per = max(1, len(codes) // (int(codes.max()) + 1))
        return rows // min(per, 4)
    return codes


def _clipped(
    gradients: dict[str, Tensor], group: Tensor, clip: float, mistake: str | None
) -> dict[str, Tensor]:
    """The sum of clipped sums over groups."""
    total: dict[str, Any] = {}
    for place, unit in enumerate(sorted(set(group.tolist()))):
        mine = {n: g[group == unit].sum(0) for n, g in gradients.items()}
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in mine.values()))  # type: ignore[arg-type]
        factor = float(torch.clamp(clip / (norm + 1e-12), max=1.0))
        if mistake == "first-unit-unclipped" and place == 0:
            factor = 1.0
        for n, g in mine.items():
            total[n] = total.get(n, 0.0) + factor * g
    return total
