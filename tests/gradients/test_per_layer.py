"""Different rules for different layers, records that count for less, and renewed cotangents."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.bounds.cache import NormCache
from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.gradients import GradientEngine
from noisewise.nn import BoundedInput, RenewGradient, losses
from noisewise.training.plan_values import from_plain, to_plain

LOSS = losses.CrossEntropy()


def network(renewing: bool = True) -> nn.Sequential:
    torch.manual_seed(0)

    def renewed(clip: float) -> nn.Module:
        return RenewGradient(clip) if renewing else nn.Identity()

    return nn.Sequential(
        BoundedInput((2, 6, 6), 4.0), nn.Conv2d(2, 4, 3, padding=1, bias=False), renewed(0.2),
        nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), renewed(0.3), nn.Tanh(), nn.Linear(8, 4),
        renewed(0.4),
    )  # fmt: skip


def batch(rows: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(rows, 2, 6, 6, generator=generator),
        torch.randint(4, (rows,), generator=generator),
    )


def sums(rule: Any, x: Tensor, y: Tensor, model: nn.Module | None = None, **settings: Any) -> Any:
    return GradientEngine(model or network(), LOSS, rule, chunk=4, **settings).sum(x, y)


MIXED = nw.PerLayer({"1": nw.Factored(0.05), "": nw.InputScaled(loss_clip=0.4)})


def test_every_layer_gets_what_its_own_rule_gives() -> None:
    x, y = batch()
    found = sums(MIXED, x, y)
    scaled = sums(nw.InputScaled(loss_clip=0.4), x, y)
    assert [g.name for g in found.groups] == ["1", "5", "8"]
    for name in ("5.weight", "5.bias", "8.weight"):
        assert torch.equal(found.gradients[name], scaled.gradients[name])
    assert found.sensitivities["5"] == scaled.sensitivities["5"] == pytest.approx(0.3 * 1.001)
    assert found.sensitivities["1"] == pytest.approx(0.05 * 1.001)
    # The loss clip belongs to the model's output, so the measured layer sees it too.
    alone = [sums(MIXED, x[i : i + 1], y[i : i + 1]).gradients["1.weight"] for i in range(len(y))]
    assert all(float(g.norm()) <= 0.05 * (1 + 1e-6) for g in alone)
    torch.testing.assert_close(sum(alone), found.gradients["1.weight"], rtol=1e-4, atol=1e-6)


def test_one_layer_may_be_bounded_in_two_parts() -> None:
    x, y = batch()
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Tanh(), nn.Linear(8, 4))
    parts = {"1.weight": nw.Clipped(0.02, per="layer"), "": nw.Clipped(0.03, per="layer")}
    found = sums(nw.PerLayer(parts), x, y, model)
    assert [g.name for g in found.groups] == ["1 of 1.weight", "1 of others", "3"]
    alone = [
        sums(nw.PerLayer(parts), x[i : i + 1], y[i : i + 1], model).gradients for i in range(len(y))
    ]
    for name, limit in (("1.weight", 0.02), ("1.bias", 0.03)):
        assert all(float(g[name].norm()) <= limit * (1 + 1e-6) for g in alone)
        together = sum(g[name] for g in alone)
        torch.testing.assert_close(together, found.gradients[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("knee", [None, 0.5])
def test_views_of_a_measured_layer_are_averaged_before_the_bound(knee: float | None) -> None:
    x, y = batch()
    for clip in (0.01, 1e6):
        rule = nw.PerLayer({"1": nw.Clipped(clip), "": nw.InputScaled(loss_clip=0.4, knee=knee)})
        once = sums(rule, x, y).gradients["1.weight"]
        views = x[:, None].expand(-1, 3, -1, -1, -1).contiguous()
        thrice = sums(rule, views, y, views=3).gradients["1.weight"]
        torch.testing.assert_close(thrice, once, rtol=1e-4, atol=1e-6)


def test_a_knee_lets_easy_records_count_less() -> None:
    x, y = batch(1)
    model = network(renewing=False)
    (cotangent,) = torch.autograd.grad(LOSS(z := model(x), y).sum(), z)
    length = float(cotangent.norm())
    for knee in (0.5 * length, 2 * length):
        share = min(1.0, length / knee)
        for rule in (nw.InputScaled, nw.Propagated):
            whole, less = sums(rule(), x, y, model), sums(rule(knee=knee), x, y, model)
            assert less.sensitivities == whole.sensitivities
            for name, gradient in whole.gradients.items():
                torch.testing.assert_close(less.gradients[name], share * gradient)
    measured = nw.PerLayer({"1": nw.Clipped(1e6), "": nw.InputScaled(knee=2 * length)})
    plain = nw.PerLayer({"1": nw.Clipped(1e6), "": nw.InputScaled()})
    torch.testing.assert_close(
        sums(measured, x, y, model).gradients["1.weight"],
        0.5 * sums(plain, x, y, model).gradients["1.weight"],
    )


def test_renewed_cotangents_need_no_certified_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = batch()
    engine = GradientEngine(network(), LOSS, nw.InputScaled(loss_clip=0.4))
    engine.sum(x, y)  # the first batch also looks whether everything has a bound
    asked: list[str] = []
    for name in ("spectral_norm", "conv_norm"):
        monkeypatch.setattr(NormCache, name, lambda *a, name=name, **k: asked.append(name))
    found = engine.sum(x, y)
    assert not asked
    expected = {"1": 0.2, "5": 0.3, "8": 0.4}
    slack = {group.name: group.slack for group in found.groups}
    assert slack["5"] == slack["8"] == 1e-3 < slack["1"] < 3e-3  # 36 positions: rounding.md
    stated = {name: value * (1 + slack[name]) for name, value in expected.items()}
    assert found.sensitivities == pytest.approx(stated)


def test_lazy_bounds_equal_those_of_a_certificate() -> None:
    model = network(renewing=False)
    x, y = batch()
    found = sums(nw.InputScaled(), x, y, model)
    certificate = nw.certify(
        model, (2, 6, 6), loss=LOSS, improvements=nw.bounds.Improvements(balancing=False)
    )
    by_path = {layer.path: layer.cotangent for layer in certificate.layers}
    stated = {group.name: by_path[group.name] * (1 + group.slack) for group in found.groups}
    assert found.sensitivities == stated


def test_renewing_lengthens_and_shortens_each_record_by_itself() -> None:
    x = torch.zeros(5, 3, requires_grad=True)
    lengths = torch.tensor([1e-30, 1e-3, 1.0, 1e20, math.inf])
    (RenewGradient(0.5)(x) * lengths[:, None]).sum().backward()
    found = x.grad.double().norm(dim=1)
    true = lengths.double() * math.sqrt(3)
    torch.testing.assert_close(found[:4], 0.5 * true[:4] / (true[:4] + 1e-3), rtol=1e-4, atol=0)
    assert float(found.max()) <= 0.5
    assert float(found[4]) == 0.0


def test_records_are_proven_apart_through_renewed_cotangents() -> None:
    x, y = batch()
    assert nw.prove_apart(network(), LOSS, x, y).proven


def test_a_renewal_that_looks_at_the_batch_is_refused() -> None:
    class Together(RenewGradient):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten().reshape(1, -1)).reshape(x.shape)

    model = nn.Sequential(nn.Linear(4, 3), Together(0.3))
    with pytest.raises(UnsupportedModelError, match="apart"):
        nw.bounded_sum(
            model, nn.CrossEntropyLoss(), torch.randn(6, 4), torch.zeros(6).long(), nw.Clipped()
        )


def test_a_plan_with_rules_per_layer_trains_with_a_statement() -> None:
    plan = nw.Plan(
        gradients=MIXED, epsilon=3.0, delta=1e-5, steps=2, batch_size=8, records=40, seed=0
    )
    assert from_plain(json.loads(json.dumps(to_plain(MIXED)))) == MIXED
    x, y = batch(40)
    fitted = nw.fit(network(), (x, y), plan, loss=LOSS, progress=False, metrics=False)
    statement = fitted.statement()
    assert statement.epsilon <= 3.0
    assert "PerLayer" in statement.mechanism
    assert "Factored" in statement.mechanism
    assert nw.privacy.verify(statement).ok


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="same loss_clip"):
        nw.PerLayer({"1": nw.InputScaled(loss_clip=0.1), "": nw.Propagated()})
    with pytest.raises(UnsoundError, match="for study"):
        nw.PerLayer({"": nw.BatchMaxScaled(study=True)})
    with pytest.raises(TypeError, match="must be an estimator"):
        nw.PerLayer({"": MIXED})
    with pytest.raises(ValueError, match="at least one"):
        nw.PerLayer({})
    x, y = batch()
    with pytest.raises(ValueError, match="belongs to no block"):
        sums(nw.PerLayer({"1": nw.Factored(0.1)}), x, y)
    with pytest.raises(UnsoundError, match="whole unit"):
        nw.bounded_sum(network(), LOSS, x, y, MIXED, units=list(range(7)))
    with pytest.raises(ValueError, match="gamma must be at least"):
        RenewGradient(0.1, gamma=1e-20)
    with pytest.raises(ValueError, match="knee"):
        nw.InputScaled(knee=-1.0)
