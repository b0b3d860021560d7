"""Every layer with a rule, found from the registry: no bound is ever exceeded, none is idle."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import nn

from common.layer_examples import EXAMPLES
from common.measuring import REGIMES, TOLERANCE, Example, Finding, bounds_of, search
from noisewise import nn as nw
from noisewise.bounds import registered
from noisewise.bounds.registry import lookup

EXPORTED = {
    kind
    for kind in (getattr(nw, name) for name in nw.__all__)
    if isinstance(kind, type) and issubclass(kind, nn.Module)
}
# A composition is read through the layers in it and has no rule of its own.
COMPOSED = {nw.LipschitzResidual}
TYPES = sorted(set(registered()) | EXPORTED, key=lambda kind: (kind.__module__, kind.__name__))
NAMES = [kind.__name__ for kind in TYPES]


@cache
def findings(kind: type[nn.Module]) -> list[tuple[Example, dict[str, Finding]]]:
    return [
        (example, search(example, regime))
        for example in EXAMPLES.get(kind, [])
        for regime in REGIMES
        if regime == "initial" or any(True for _ in example.make().parameters())
    ]


def best(kind: type[nn.Module]) -> dict[str, tuple[float, Example, Finding]]:
    """For each quantity the example that comes closest to what is expected of it."""
    result: dict[str, tuple[float, Example, Finding]] = {}
    for example, found in findings(kind):
        for name, finding in found.items():
            quantity = name.rpartition(".")[2]
            wanted = example.expected(quantity)
            if not wanted:
                continue
            reached = finding.ratio / wanted
            if quantity not in result or reached > result[quantity][0]:
                result[quantity] = (reached, example, finding)
    return result


def test_every_registered_layer_has_an_example() -> None:
    # Its slope has no bound at all, which tests of its own look at (tests/nn/test_patches.py).
    kinds = [kind for kind in TYPES if kind.__name__ != "PatchFeatures"]
    missing = [kind.__name__ for kind in kinds if not EXAMPLES.get(kind)]
    assert not missing, f"add examples for {missing} to tests/common/layer_examples.py"


def test_every_exported_layer_has_a_rule() -> None:
    assert not [kind for kind in EXPORTED - COMPOSED if lookup(kind) is None]


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_no_measured_value_exceeds_its_bound(kind: type[nn.Module]) -> None:
    for example, found in findings(kind):
        for quantity, finding in found.items():
            assert math.isfinite(finding.value), (quantity, example)
            assert finding.value <= finding.bound * (1 + TOLERANCE), (quantity, finding.ratio)


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_every_bound_is_nearly_reached(kind: type[nn.Module]) -> None:
    for quantity, (reached, example, finding) in best(kind).items():
        assert reached >= 1.0, (
            f"{quantity} of {kind.__name__}: best ratio {finding.ratio:.3f}, expected "
            f"{example.expected(quantity)}"
        )


@pytest.mark.parametrize("kind", TYPES, ids=NAMES)
def test_a_rule_that_is_ten_percent_too_small_is_found_out(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lookup(kind)
    if found is None:
        assert kind in COMPOSED
        return
    rule = type(found)
    for quantity, (_, example, finding) in best(kind).items():
        expected = example.expected(quantity)
        assert expected
        factor = min(0.9, expected) * 0.99
        with monkeypatch.context() as patched:
            shrink(rule, quantity, factor, patched)
            model = example.make().double()
            model.load_state_dict(finding.state)
            shrunk = bounds_of(model, example)
        name = next(key for key in shrunk if key.rpartition(".")[2] == quantity)
        if finding.bound > 0:
            assert shrunk[name] < finding.bound, f"the mutation did not reach {quantity}"
            assert finding.value > shrunk[name] * (1 + TOLERANCE), (quantity, finding.ratio)


def shrink(rule: type, quantity: str, factor: float, patched: pytest.MonkeyPatch) -> None:
    """Make one bound of a rule smaller than it may be."""
    if quantity == "output":
        original = rule.output_norm
        patched.setattr(rule, "output_norm", lambda self, call: factor * original(self, call))
    elif quantity == "lipschitz":
        passed = rule.cotangent
        patched.setattr(
            rule, "cotangent", lambda self, call, index, g: factor * passed(self, call, index, g)
        )
    else:
        factors = rule.parameter_factors

        def smaller(self: object, call: object) -> dict[str, float]:
            known = factors(self, call)
            return {**known, quantity: factor * known[quantity]}

        patched.setattr(rule, "parameter_factors", smaller)
        own = rule.own_gradients
        patched.setattr(
            rule,
            "own_gradients",
            lambda self, call: {name: factor * bound for name, bound in own(self, call).items()},
        )


def test_the_search_would_notice_a_bound_that_is_too_small() -> None:
    # The checker itself: a ratio above one fails the first test.
    finding = Finding(1.1, 1.0, {})
    assert finding.ratio > 1
    assert torch.isfinite(torch.tensor(finding.ratio))
