"""Lower precision in forward and backward; norms and sums are those of the numbers that are added.

Why: docs/proofs/rounding.md#autocast.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.errors import UnsupportedModelError
from noisewise.gradients.engine import GradientEngine
from noisewise.gradients.runner import WatchedWarning

RECORDS = 6
TYPES = [torch.bfloat16, torch.float16]


class Attention(nn.Module):
    """Embedding, positions, attention, layer norm and a head."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 16), nn.LayerNorm(16)
        self.place = nn.Parameter(torch.randn(5, 16) / 4)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = self.norm(self.embed(x) + self.place)
        return self.head((h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


def tokens():
    return torch.randint(11, (RECORDS, 5))


MODELS = {
    "dense": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), (8,)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 3),
        ),
        (2, 4, 4),
    ),
    "attention": (Attention, None),
}  # fmt: skip
ESTIMATORS = {
    "model": nw.Clipped(0.5),
    "layer": nw.Clipped(0.5, per="layer"),
    "parameter, automatic": nw.Clipped(0.5, per="parameter", rule="automatic"),
    "factored": nw.Factored(0.5),
}
LOSS = nn.CrossEntropyLoss()


def prepared(name):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    x = tokens() if shape is None else torch.randn(RECORDS, *shape)
    return build(), x, torch.randint(3, (RECORDS,))


def references(model, x, y, dtype):
    """Each record alone, by torch's own autocast."""
    rows = []
    for i in range(RECORDS):
        model.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = LOSS(model(x[i : i + 1]), y[i : i + 1])
        loss.backward()
        rows.append({n: p.grad.clone() for n, p in model.named_parameters()})
    model.zero_grad()
    return {n: torch.stack([row[n] for row in rows]) for n in rows[0]}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_sum_is_that_of_a_reference_of_the_same_precision(name, dtype):
    model, x, y = prepared(name)
    gradients = references(model, x, y, dtype)
    with torch.autocast("cpu", dtype):
        result = nw.bounded_sum(model, LOSS, x, y, nw.Clipped(1e6))
    # Both round every entry to eight (eleven) bits, at different places of the sum over positions.
    unit = float(torch.finfo(dtype).eps)
    for key, value in gradients.items():
        assert result.gradients[key].dtype == torch.float32
        scale = value.flatten(1).norm(dim=1).sum()
        assert (result.gradients[key] - value.sum(0)).norm() <= 4 * unit * scale + 1e-6, key


#: Every model, estimator and type, and in the slow part all that go together.
TOGETHER = [
    pytest.param(name, estimator, dtype, marks=[] if (a + b + c) % 3 == 0 else [pytest.mark.slow])
    for a, name in enumerate(sorted(MODELS))
    for b, estimator in enumerate(sorted(ESTIMATORS))
    for c, dtype in enumerate(TYPES)
]


def test_the_quick_part_has_every_model_estimator_and_type():
    quick = [param.values for param in TOGETHER if not param.marks]
    assert {name for name, _, _ in quick} == set(MODELS)
    assert {estimator for _, estimator, _ in quick} == set(ESTIMATORS)
    assert {dtype for _, _, dtype in quick} == set(TYPES)


@pytest.mark.parametrize(("name", "estimator", "dtype"), TOGETHER)
def test_a_record_moves_the_sum_by_at_most_the_sensitivity(name, estimator, dtype):
    model, x, y = prepared(name)
    chosen = ESTIMATORS[estimator]
    if x.is_floating_point():
        x[0] *= 300.0  # long, and coarse in eight bits
    with torch.autocast("cpu", dtype):
        whole = nw.bounded_sum(model, LOSS, x, y, chosen, chunk=RECORDS)
        rest = nw.bounded_sum(model, LOSS, x[1:], y[1:], chosen, chunk=RECORDS)
    for one, other in zip(whole.groups, rest.groups, strict=True):
        moved = [one.gradients[n].double() - other.gradients[n] for n in one.names]
        assert torch.cat([m.flatten() for m in moved]).norm() <= one.sensitivity


def test_records_that_overflow_float16_count_zero():
    model, x, y = prepared("dense")
    x[0] = 60_000.0
    with torch.autocast("cpu", torch.float16):
        result = nw.bounded_sum(model, LOSS, x, y, nw.Clipped(1.0))
    assert all(g.isfinite().all() for g in result.gradients.values())


def test_forward_under_autocast_and_backward_outside_is_bound_after_the_first_step(recwarn):
    model, x, y = prepared("dense")
    engine = GradientEngine(model, LOSS, nw.Clipped(1.0))
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = engine.losses(engine.forward(x), y)
        loss.backward()
        found = engine.collect()
    engine.detach()
    (wiring,) = engine._wirings.values()  # none for another precision
    assert len(wiring.paths) == 1
    assert not [w for w in recwarn if issubclass(w.category, WatchedWarning)]
    with torch.autocast("cpu", torch.bfloat16):
        whole = nw.bounded_sum(model, LOSS, x, y, nw.Clipped(1.0))
    for key, value in whole.gradients.items():
        torch.testing.assert_close(found.gradients[key], value, rtol=0.02, atol=0.02)


def test_another_precision_is_watched_before_it_is_believed():
    model, x, y = prepared("dense")
    engine = GradientEngine(model, LOSS, nw.Clipped(1.0))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            engine.sum(x, y)
    engine.sum(x, y)
    assert len(engine._wirings) == 3


def test_a_grad_scaler_is_refused_with_what_to_do_instead():
    model, x, y = prepared("dense")
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=3, batch_size=6, records=60
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = nw.make_private(model, optimizer, LOSS, None, plan)
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        loss = run.loss(run.model(x), y)
    with pytest.raises(UnsupportedModelError, match="GradScaler"):
        scaler.scale(loss).backward()
    assert run.steps_taken == 0
    run.discard()
    disabled = torch.amp.GradScaler("cpu", enabled=False)  # how scripts switch it off
    with torch.autocast("cpu", torch.bfloat16):
        loss = run.loss(run.model(x), y)
    disabled.scale(loss).backward()
    disabled.step(run.optimizer)
    disabled.update()
    assert run.steps_taken == 1
