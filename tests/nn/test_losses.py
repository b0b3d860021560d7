"""What the losses compute: compared with torch and with their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.bounds import per_record
from noisewise.nn import losses

Z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(6) % 5


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def test_reductions_combine_records() -> None:
    for loss in (losses.CrossEntropy, losses.MulticlassHinge):
        each = loss()(Z, Y)
        assert each.shape == (6,)
        assert torch.equal(loss(reduction="sum")(Z, Y), each.sum())
        assert torch.equal(loss(reduction="mean")(Z, Y), each.mean())


def test_cross_entropy_with_temperature() -> None:
    plain = functional.cross_entropy(3 * Z, Y, reduction="none") / 3
    assert torch.allclose(losses.CrossEntropy(3.0)(Z, Y), plain)
    soft = functional.cross_entropy(Z / 3, Y, reduction="none")
    assert torch.allclose(losses.CrossEntropy(3.0, "soften")(Z, Y), soft)


def test_hinges_follow_their_formulas() -> None:
    pairwise = functional.multi_margin_loss(Z, Y, reduction="none")
    assert torch.allclose(losses.MulticlassHinge()(Z, Y), pairwise)
    for row, (z, y) in enumerate(zip(Z, Y, strict=True)):
        others = [i for i in range(5) if i != y]
        top = max(0.0, float(1 - z[y] + z[others].max()))
        assert float(losses.MulticlassHinge(1.0, "max")(Z, Y)[row]) == pytest.approx(top)
        hal = sum(max(0.0, float(0.5 - z[i] * (1 if i == y else -1))) for i in range(5))
        assert float(losses.MulticlassHinge(1.0, "one-vs-all")(Z, Y)[row]) == pytest.approx(hal)


def test_elementwise_losses_agree_with_torch() -> None:
    target = torch.rand(6, 5, dtype=torch.float64)
    pairs = [
        (losses.MeanAbsolute(), nn.L1Loss(reduction="none")),
        (losses.Huber(0.4), nn.HuberLoss("none", 0.4)),
        (
            losses.BinaryCrossEntropy(2.0),
            nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(2.0)),
        ),
        (losses.MeanSquared(0.0, 1.0), nn.MSELoss(reduction="none")),
    ]  # fmt: skip
    for ours, theirs in pairs:
        assert torch.allclose(ours(Z, target), theirs(Z, target).mean(dim=1))


def test_cosine_similarity_agrees_with_torch_away_from_zero() -> None:
    target = torch.randn(6, 5, dtype=torch.float64)
    expected = 1 - functional.cosine_similarity(Z, target)
    assert torch.allclose(losses.CosineSimilarity(1e-6)(Z, target), expected)


def test_kantorovich_rubinstein_estimates_the_difference_of_class_means() -> None:
    # With priors equal to the shares in the data, the mean over records is exactly
    # -(mean over positives - mean over negatives).
    z, y = torch.randn(10, 1, dtype=torch.float64), torch.tensor([1] * 3 + [0] * 7)
    found = losses.KantorovichRubinstein(0.3, reduction="mean")(z, y)
    assert float(found) == pytest.approx(float(z[3:].mean() - z[:3].mean()))


def test_priors_make_records_independent() -> None:
    loss = losses.HingeKantorovichRubinstein([0.2] * 5)
    assert torch.equal(loss(Z, Y)[:1], loss(Z[:1], Y[:1]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_torch_losses_count_per_record_whatever_their_reduction(reduction: str) -> None:
    each = per_record(nn.CrossEntropyLoss(reduction=reduction))(Z, Y)
    assert torch.allclose(each, functional.cross_entropy(Z, Y, reduction="none"))
    absolute = per_record(nn.L1Loss(reduction=reduction))(Z, torch.zeros_like(Z))
    expected = Z.abs().mean(1) if reduction == "mean" else Z.abs().sum(1)
    assert torch.allclose(absolute, expected)


def test_class_weights_do_not_divide_by_the_weights_of_the_batch() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    together = per_record(nn.CrossEntropyLoss(weights))(Z, Y)
    alone = torch.cat(
        [per_record(nn.CrossEntropyLoss(weights))(Z[i : i + 1], Y[i : i + 1]) for i in range(6)]
    )
    assert torch.allclose(together, alone)


@pytest.mark.parametrize("function", [functional.cross_entropy, functional.multi_margin_loss])
def test_functions_are_read_as_losses(function: object) -> None:
    assert per_record(function)(Z, Y).shape == (6,)


def test_targets_out_of_range_are_moved_into_it() -> None:
    def gradient(loss: nn.Module, target: Tensor) -> float:
        z = Z.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(z, target).sum(), z)
        return float(g.norm(dim=1).max())

    wild = torch.full((6, 5), 1e6, dtype=torch.float64)
    assert gradient(losses.BinaryCrossEntropy(over="sum"), wild) <= 5**0.5
    assert gradient(losses.CrossEntropy(), wild) <= 2**0.5
    assert gradient(losses.MeanSquared(0.0, 1.0, clamp=True), -wild) <= 2.0
