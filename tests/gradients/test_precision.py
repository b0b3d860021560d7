"""Neither autocast nor reduced float32 kernels reach norms and sums.

Why: docs/proofs/contract.md#numbers.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.bounds.norms import precision
from noisewise.errors import UnsupportedModelError
from noisewise.gradients import piece
from noisewise.gradients.engine import GradientEngine

CROSS_ENTROPY = nn.CrossEntropyLoss()
SWITCHES = [path for paths in precision._SWITCHES.values() for path in paths]


def switch(path):
    found = precision._at(path)
    if found is None:
        pytest.skip("this torch has no switch of that name")
    return found


@pytest.fixture
def reduced():
    """All switches set to less than float32, and set back afterwards."""
    held = {path: switch(path).fp32_precision for path in SWITCHES}
    for path in SWITCHES:
        switch(path).fp32_precision = "tf32"
    yield
    for path, value in held.items():
        switch(path).fp32_precision = value


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def lipschitz():
    torch.manual_seed(0)
    return nn.Sequential(nw.nn.BoundedInput((4,), 1.0), nw.nn.SpectralLinear(4, 3))


def batch(records=6):
    torch.manual_seed(1)
    return torch.randn(records, 4), torch.randint(3, (records,))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_switch_is_full_inside_and_as_before_outside(reduced, device):
    with precision.full_precision(device):
        for path in precision._SWITCHES[device]:
            assert switch(path).fp32_precision == "ieee"
    assert all(switch(path).fp32_precision == "tf32" for path in SWITCHES)


def test_an_error_inside_restores_the_switches(reduced):
    with pytest.raises(ZeroDivisionError), precision.full_precision("cpu"):
        raise ZeroDivisionError
    assert all(switch(path).fp32_precision == "tf32" for path in SWITCHES)


def test_switches_of_older_versions_are_restored_too(monkeypatch):
    monkeypatch.setattr(precision, "_switches", lambda device: None)
    torch.set_float32_matmul_precision("medium")
    try:
        with precision.full_float32("cpu"):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("estimator", [nw.Clipped(0.1), nw.Factored(0.1)])
def test_norms_and_sums_are_computed_in_full_precision(reduced, monkeypatch, estimator):
    seen = []
    original = torch.linalg.vector_norm

    def watched(*args, **kwargs):
        seen.append(switch("mkldnn.matmul").fp32_precision)
        return original(*args, **kwargs)

    arrive = nw.gradients.tape.Tape._arrive

    def watching(self, contraction):
        seen.append(switch("mkldnn.matmul").fp32_precision)
        seen.append(torch.is_autocast_enabled("cpu"))
        arrive(self, contraction)

    monkeypatch.setattr(nw.gradients.tape.Tape, "_arrive", watching)
    monkeypatch.setattr(torch.linalg, "vector_norm", watched)
    with torch.autocast("cpu", torch.bfloat16):
        nw.bounded_sum(linear(), CROSS_ENTROPY, *batch(), estimator)
    assert seen
    assert set(seen) <= {"ieee", False}


@pytest.mark.parametrize(
    "estimator", [nw.Propagated(), nw.Propagated(loss_clip=0.1), nw.InputScaled()]
)
def test_a_model_whose_bounds_are_propagated_computes_in_full_precision(
    reduced, estimator, monkeypatch
):
    seen, original = [], piece.call_model

    def watched(model, x):
        seen.append(switch("mkldnn.matmul").fp32_precision)
        return original(model, x)

    monkeypatch.setattr(piece, "call_model", watched)
    engine = GradientEngine(lipschitz(), CROSS_ENTROPY, estimator)
    engine.sum(*batch())
    x, y = batch()
    output = engine.forward(x)
    engine.losses(output, y).backward()
    engine.collect()
    engine.detach()
    assert len(seen) >= 2
    assert set(seen) == {"ieee"}
    assert switch("mkldnn.matmul").fp32_precision == "tf32"


def test_propagated_bounds_refuse_autocast_before_anything_is_summed():
    engine = GradientEngine(lipschitz(), CROSS_ENTROPY, nw.Propagated())
    engine.sum(*batch())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="autocast"):
        engine.sum(*batch())
    assert not engine.is_open


@pytest.mark.parametrize("estimator", [nw.Propagated(), nw.InputScaled()])
def test_propagated_bounds_refuse_types_whose_rounding_exceeds_the_slack(estimator):
    with pytest.raises(UnsupportedModelError, match="bfloat16"):
        GradientEngine(lipschitz().bfloat16(), CROSS_ENTROPY, estimator)


# -- rounding a sum -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_low_precision_models_move_by_one_bound_at_most(dtype):
    # Rounded to eight bits, the sum of 300 equal records would move by four bounds at times.
    model, clip = linear().to(dtype), 0.01
    x, y = (part[:1] for part in batch())
    sums = [
        nw.bounded_sum(
            model, CROSS_ENTROPY, x.to(dtype).expand(n, 4), y.expand(n), nw.Clipped(clip)
        )
        for n in range(300, 306)
    ]
    for less, more in itertools.pairwise(sums):
        moved = [more.gradients[n].double() - less.gradients[n] for n in less.gradients]
        length = torch.cat([part.flatten() for part in moved]).norm()
        assert float(length) <= less.groups[0].sensitivity


def test_large_sums_stay_in_float64_until_their_noise():
    model = linear()
    x, y = batch(2049)
    whole = nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(1.0))
    assert whole.gradients["weight"].dtype == torch.float64
    parts = [
        nw.bounded_sum(model, CROSS_ENTROPY, x[s], y[s], nw.Clipped(1.0))
        for s in (slice(0, 1000), slice(1000, 2000))
    ]
    assert parts[0].gradients["weight"].dtype == torch.float32
    assert parts[0].add(parts[1]).gradients["weight"].dtype == torch.float64


@pytest.mark.parametrize("name", sorted(precision._VARIABLES))
def test_an_environment_that_reduces_float32_below_torch_is_refused(name, monkeypatch):
    for value in ("", precision._VARIABLES[name][-1]):
        monkeypatch.setenv(name, value)
        GradientEngine(linear(), CROSS_ENTROPY, nw.Clipped(1.0))
    for value in ("BF16", "any", "1"):
        monkeypatch.setenv(name, value)
        with pytest.raises(nw.UnsoundError, match=name):
            GradientEngine(linear(), CROSS_ENTROPY, nw.Clipped(1.0))


@pytest.mark.parametrize("by_hand", [False, True])
def test_threads_that_change_within_a_batch_are_refused(by_hand):
    class Restless(nn.Linear):
        def forward(self, x):
            torch.set_num_threads(torch.get_num_threads() + 1)
            return super().forward(x)

    def step():
        if not by_hand:
            return engine.sum(x, y)
        engine.losses(engine.forward(x), y).backward()
        return engine.collect()

    before = torch.get_num_threads()
    engine = GradientEngine(Restless(4, 3), CROSS_ENTROPY, nw.Clipped(1.0))
    x, y = batch()
    try:
        with pytest.raises(UnsupportedModelError, match="number of torch's threads"):
            step()
    finally:
        engine.detach()
        torch.set_num_threads(before)
