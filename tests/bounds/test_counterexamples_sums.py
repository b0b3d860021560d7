"""Mistakes in the *sum over records* (docs/proofs/published.md): each wrong by its stated size.

The sums are written out here; whatever computes them later must keep to the same rules.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor, nn
from torch.nn import functional

from noisewise import certify, privacy
from noisewise.nn import BoundedInput
from noisewise.nn.losses import CrossEntropy

SMALL, LARGE = 1e-3, 30.0


def batch(small: int, outlier: bool) -> tuple[Tensor, Tensor]:
    """`small` records of norm 1e-3, and perhaps one of norm 30 with the other label."""
    rows = torch.tensor([[SMALL, 0.0]], dtype=torch.float64).repeat(small, 1)
    labels = torch.ones(small, dtype=torch.long)
    if outlier:
        rows = torch.cat([rows, torch.tensor([[LARGE, 0.0]], dtype=torch.float64)])
        labels = torch.cat([labels, torch.tensor([0])])
    return rows, labels


def last_layer() -> nn.Linear:
    layer = nn.Linear(2, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) * 2 / math.sqrt(2))
        layer.bias.copy_(torch.tensor([9.0, -9.0]))
    return layer


def gradients(layer: nn.Linear, rows: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the weight, one record at a time."""
    cotangents = functional.softmax(layer(rows), dim=1) - functional.one_hot(labels, 2)
    return torch.einsum("bo,bi->boi", cotangents, rows).detach()


@pytest.mark.parametrize("small", [1, 16, 256])
def test_dividing_by_the_batch_maximum_lets_one_record_move_all_others(small: int) -> None:
    layer = last_layer()

    def by_batch_maximum(outlier: bool) -> Tensor:
        rows, labels = batch(small, outlier)
        return gradients(layer, rows, labels).sum(0) / rows.norm(dim=1).max()

    def by_own_norm(outlier: bool) -> Tensor:
        rows, labels = batch(small, outlier)
        own = rows.norm(dim=1)[:, None, None].clamp_min(1e-12)
        return (gradients(layer, rows, labels) / own).sum(0)

    claimed = math.sqrt(2)
    moved = float((by_batch_maximum(True) - by_batch_maximum(False)).norm())
    assert moved / claimed == pytest.approx(small * (1 - SMALL / LARGE) + 1, rel=1e-3)
    proven = certify(layer, (2,), input_norm=LARGE, loss=CrossEntropy()).layers[-1].cotangent
    assert float((by_own_norm(True) - by_own_norm(False)).norm()) <= proven


def test_one_step_tells_far_more_than_its_claimed_epsilon() -> None:
    """Lower bound on the true epsilon of a single Poisson step, by one threshold event."""
    small, records, delta = 256, 25_600, 1e-5
    rate = small / records
    claimed = privacy.epsilon(noise_multiplier=1.0, sample_rate=rate, steps=1, delta=delta)
    sizes = torch.arange(records + 1).numpy()
    drawn = binom.pmf(sizes, records, rate)
    lower = 0.0
    for threshold in range(0, small, 4):
        without = float((drawn * norm.cdf(threshold - sizes)).sum())
        shrunk = norm.cdf(threshold - (sizes * SMALL / LARGE - 1))
        with_record = (1 - rate) * without + rate * float((drawn * shrunk).sum())
        if with_record > delta:
            lower = max(lower, math.log((with_record - delta) / max(without, 1e-300)))
    assert claimed == pytest.approx(0.20, abs=0.01)
    assert lower >= 242


@pytest.mark.parametrize(("count", "wasted"), [(512, 0.5), (4096, 3.0)])
def test_a_sum_in_half_precision_moves_by_more_than_the_record(count: int, wasted: float) -> None:
    generator = torch.Generator().manual_seed(0)

    worst = {"bfloat16": 0.0, "chunks": 0.0}
    for _ in range(10):
        rows = functional.normalize(torch.randn(count + 1, 50, generator=generator) + 1, dim=1)
        half = rows.bfloat16()
        moved = half.sum(0).double() - half[:count].sum(0).double() - half[count].double()
        worst["bfloat16"] = max(worst["bfloat16"], float(moved.norm()))
        whole, part = chunked(rows), chunked(rows[1:])
        worst["chunks"] = max(worst["chunks"], float((whole - part - rows[0].double()).norm()))
    assert worst["bfloat16"] > wasted
    assert worst["chunks"] < 1e-3  # the slack that every sensitivity carries


def chunked(rows: Tensor) -> Tensor:
    """Sum in float32 over at most 256 rows, and those sums in float64."""
    parts = [part.sum(0).double() for part in rows.split(256)]
    return torch.stack(parts).sum(0)


def test_skipping_a_step_tells_that_a_record_overflowed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1))
    calm = torch.randn(8, 2)
    overflowing = torch.cat([calm, torch.tensor([[1e30, 1e30]])])

    def summed(rows: Tensor, bounded: bool) -> Tensor:
        network = nn.Sequential(BoundedInput((2,), 1.0), *model) if bounded else model
        output = network(rows)
        (gradient,) = torch.autograd.grad(output.square().sum(), model[0].weight)
        return gradient

    # "Skip the step if the gradient is not finite": no update at all, a deterministic event.
    assert torch.isfinite(summed(calm, False)).all()
    assert not torch.isfinite(summed(overflowing, False)).all()
    assert torch.isfinite(summed(overflowing, True)).all()
    broken = torch.cat([calm, torch.tensor([[math.nan, 1.0]])])
    # A record that is not finite counts as zero; the step is taken like any other.
    assert torch.isfinite(summed(broken, True)).all()
