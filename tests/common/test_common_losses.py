"""Every loss with a rule, found from the registry: gradients obey the bound and come near it.

For each example the gradient of one record's loss with respect to its output is measured at
random outputs, at far away ones and after gradient ascent, for all targets given; targets
that lie outside their range must not help.
"""

# ruff: noqa: E501 (a table is easier to read with one example per line)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisewise.bounds import Signal, loss_rule_for, per_record, registered_losses
from noisewise.nn import losses as nw

TOLERANCE = 1e-9
CLASSES = 5


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


@dataclass(frozen=True)
class LossExample:
    make: Callable[[], Any]
    targets: Callable[[], list[Tensor]]
    shape: tuple[int, ...] = (CLASSES,)
    norm: float = math.inf
    known: float = 0.9


def indices(*shape: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.full((1, *shape), label) for label in range(CLASSES)]


def soft() -> list[Tensor]:
    """Probabilities, and rows that are none: negative, too large, all zero."""
    eye = torch.eye(CLASSES, dtype=torch.float64)
    return [eye[:1], torch.full((1, CLASSES), 0.2), 50 * eye[1:2], -3 * eye[2:3], 0 * eye[:1]]


def values(*shape: int) -> Callable[[], list[Tensor]]:
    return lambda: [
        torch.full((1, *shape), value, dtype=torch.float64) for value in (0.0, 1.0, -7.0, 500.0)
    ]


# Where logits are bounded, the closed form is up to 13 percent above the true supremum: it
# lets the largest miss and the largest rival happen at once.
WEIGHTS = [0.5, 2.0, 1.0, 3.0, 0.0]
EXAMPLES: dict[type, list[LossExample]] = {
    nn.CrossEntropyLoss: [
        LossExample(nn.CrossEntropyLoss, indices()),
        LossExample(lambda: nn.CrossEntropyLoss(label_smoothing=0.1), indices(), norm=1.0, known=0.8),
        LossExample(lambda: nn.CrossEntropyLoss(torch.tensor(WEIGHTS).double()), indices()),
        LossExample(nn.CrossEntropyLoss, soft, norm=2.0, known=0.85),
        LossExample(nn.CrossEntropyLoss, indices(3), (CLASSES, 3), known=0.85),
        LossExample(lambda: nn.CrossEntropyLoss(reduction="sum"), indices(3), (CLASSES, 3), known=0.85),
    ],
    nn.NLLLoss: [
        LossExample(nn.NLLLoss, indices()),
        LossExample(lambda: nn.NLLLoss(torch.tensor(WEIGHTS).double()), indices(2), (CLASSES, 2)),
    ],
    nn.MultiMarginLoss: [
        LossExample(nn.MultiMarginLoss, indices()),
        LossExample(lambda: nn.MultiMarginLoss(p=2, margin=0.5), indices(), norm=4.0, known=0.6),
    ],
    nn.L1Loss: [
        LossExample(nn.L1Loss, values(3), (3,)),
        LossExample(lambda: nn.L1Loss(reduction="sum"), values(2, 3), (2, 3)),
        LossExample(lambda: nn.L1Loss(reduction="none"), values(), ()),
    ],
    nn.SmoothL1Loss: [LossExample(lambda: nn.SmoothL1Loss(beta=0.5), values(3), (3,))],
    nn.HuberLoss: [LossExample(lambda: nn.HuberLoss("sum", 2.5), values(3), (3,))],
    nn.BCEWithLogitsLoss: [
        LossExample(nn.BCEWithLogitsLoss, values(3), (3,)),
        LossExample(
            lambda: nn.BCEWithLogitsLoss(
                torch.tensor([1.0, 2.0, 0.5]), "sum", pos_weight=torch.tensor([3.0, 0.5, 2.0])
            ),
            values(3), (3,), known=0.88,
        ),
    ],
    nw.CrossEntropy: [
        LossExample(nw.CrossEntropy, indices()),
        LossExample(lambda: nw.CrossEntropy(8.0), indices(), norm=0.2, known=0.85),
        LossExample(lambda: nw.CrossEntropy(4.0, "soften"), indices()),
        LossExample(lambda: nw.CrossEntropy(4.0, "soften"), soft, norm=3.0, known=0.85),
        LossExample(lambda: nw.CrossEntropy(2.0, label_smoothing=0.2, weight=WEIGHTS), indices(), known=0.8),
    ],
    nw.MulticlassHinge: [
        LossExample(lambda form=form: nw.MulticlassHinge(1.0, form), indices())
        for form in ("pairwise", "one-vs-all", "one-vs-all-mean", "max")
    ],
    nw.CosineSimilarity: [
        LossExample(lambda: nw.CosineSimilarity(0.5), indices()),
        LossExample(lambda: nw.CosineSimilarity(2.0), values(3), (3,)),
    ],
    nw.MeanAbsolute: [LossExample(nw.MeanAbsolute, values(3), (3,)), LossExample(lambda: nw.MeanAbsolute("sum"), values(3), (3,))],
    nw.Huber: [LossExample(lambda: nw.Huber(0.3, "sum"), values(3), (3,)), LossExample(lambda: nw.Huber(3.0), values(3), (3,))],
    nw.BinaryCrossEntropy: [
        LossExample(nw.BinaryCrossEntropy, values(3), (3,)),
        LossExample(lambda: nw.BinaryCrossEntropy(5.0, "sum"), values(3), (3,)),
        LossExample(lambda: nw.BinaryCrossEntropy([2.0, 0.1, 3.0]), values(3), (3,), known=0.88),
    ],
    nw.MeanSquared: [
        LossExample(lambda: nw.MeanSquared(-1.0, 2.0), values(3), (3,), norm=4.0),
        LossExample(lambda: nw.MeanSquared(-1.0, 2.0, clamp=True, over="sum"), values(3), (3,)),
    ],
    nw.KantorovichRubinstein: [
        LossExample(lambda: nw.KantorovichRubinstein(0.2), lambda: [torch.tensor([0]), torch.tensor([1])], (1,)),
        LossExample(lambda: nw.KantorovichRubinstein([0.1, 0.2, 0.3, 0.2, 0.2]), indices()),
    ],
    nw.HingeKantorovichRubinstein: [
        LossExample(lambda: nw.HingeKantorovichRubinstein(0.2, 0.7, 3.0), lambda: [torch.tensor([0]), torch.tensor([1])], (1,)),
        LossExample(lambda: nw.HingeKantorovichRubinstein([0.1, 0.2, 0.3, 0.2, 0.2], 0.9), indices()),
    ],
}  # fmt: skip
TYPES = sorted(registered_losses(), key=lambda kind: (kind.__module__, kind.__name__))
NAMES = [kind.__module__.split(".")[0] + "." + kind.__name__ for kind in TYPES]


def gradient(function: Callable[..., Tensor], z: Tensor, target: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    loss = function(z, target)
    assert loss.shape == (1,)
    (result,) = torch.autograd.grad(loss.sum(), z)
    return result


def starts(example: LossExample) -> list[Tensor]:
    torch.manual_seed(0)
    radius = example.norm if math.isfinite(example.norm) else 60.0
    size = math.prod(example.shape)
    eye = torch.eye(size, dtype=torch.float64)
    forms = [torch.randn(size, dtype=torch.float64) for _ in range(6)] + [*eye, *-eye]
    forms += [one - other for one in eye for other in eye if one is not other]
    forms += [eye.sum(dim=0), -eye.sum(dim=0)]
    forms = [form for form in forms if form.norm() > 0]
    scaled = [radius * form / form.norm() for form in forms]
    if math.isinf(example.norm):
        scaled += [0.3 * form / radius for form in scaled[:8]] + [1e-3 * form for form in forms]
        scaled += [torch.full((size,), value, dtype=torch.float64) for value in (-0.99, 1.99)]
    return [form.reshape(1, *example.shape) for form in scaled]


def ascend(function: Callable[..., Tensor], z: Tensor, target: Tensor, norm: float) -> float:
    """Gradient ascent on the norm of the gradient, within the ball."""
    best = float(gradient(function, z, target).norm())
    for _ in range(20):
        z = z.clone().requires_grad_()
        (g,) = torch.autograd.grad(function(z, target).sum(), z, create_graph=True)
        if not g.requires_grad or float(g.detach().norm()) == 0:
            return best
        try:
            (up,) = torch.autograd.grad(g.norm(), z, allow_unused=True)
        except RuntimeError:  # torch has no second derivative of this loss
            return best
        if up is None or float(up.norm()) < 1e-12:
            return best
        step = 0.2 * (norm if math.isfinite(norm) else 10.0) * up / up.norm()
        z = (z + step).detach()
        z = z * min(1.0, norm / float(z.norm()))
        best = max(best, float(gradient(function, z, target).norm()))
    return best


@cache
def measured(kind: type) -> list[tuple[LossExample, float, float]]:
    """Largest gradient norm and its bound, for each example."""
    results = []
    for example in EXAMPLES.get(kind, []):
        loss = example.make()
        rule, module = loss_rule_for(loss)
        output = Signal(example.shape, example.norm)
        rule.check(module, output)
        bound = rule.lipschitz(module, output)
        function = per_record(loss)
        ranked = []
        for target in example.targets():
            for z in starts(example):
                ranked.append((float(gradient(function, z, target).norm()), z, target))
        ranked.sort(key=lambda item: -item[0])
        best = ranked[0][0]
        for _, z, target in ranked[:3]:
            best = max(best, ascend(function, z, target, example.norm))
        results.append((example, best, bound))
    return results


def scaled_by(factor: float, original: Callable[..., float]) -> Callable[..., float]:
    return lambda self, loss, output: factor * original(self, loss, output)


def test_every_registered_loss_has_an_example() -> None:
    missing = [kind.__name__ for kind in TYPES if not EXAMPLES.get(kind)]
    assert not missing, f"add examples for {missing} to tests/common/test_common_losses.py"


def test_every_exported_loss_has_a_rule() -> None:
    assert {getattr(nw, name) for name in nw.__all__} <= set(TYPES)


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_no_loss_gradient_exceeds_its_constant(kind: type) -> None:
    for example, value, bound in measured(kind):
        assert value <= bound * (1 + TOLERANCE), (example, value / bound)


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_every_constant_is_nearly_reached(kind: type) -> None:
    for example, value, bound in measured(kind):
        assert value >= example.known * bound, (example, value / bound)


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_a_constant_that_is_ten_percent_too_small_is_found_out(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = registered_losses()[kind]
    original = type(rule).lipschitz
    caught = 0
    for example, value, bound in measured(kind):
        factor = min(0.9, example.known) * 0.99
        with monkeypatch.context() as patched:
            patched.setattr(type(rule), "lipschitz", scaled_by(factor, original))
            shrunk = rule.lipschitz(example.make(), Signal(example.shape, example.norm))
        assert shrunk < bound
        caught += value > shrunk * (1 + TOLERANCE)
    assert caught == len(EXAMPLES[kind])


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_a_record_s_loss_does_not_depend_on_other_records(kind: type) -> None:
    for example in EXAMPLES[kind]:
        function = per_record(example.make())
        first, second = example.targets()[0], example.targets()[-1]
        z = torch.randn(1, *example.shape, dtype=torch.float64)
        other = torch.randn(1, *example.shape, dtype=torch.float64)
        alone = function(z, first)
        together = function(torch.cat([z, other]), torch.cat([first, second]))
        assert together.shape == (2,)
        assert torch.allclose(alone, together[:1], rtol=1e-12, atol=0)
