"""Every estimator of ours, attacked through the code that trains: all of them keep their claim.

Two audits. `private-steps` takes steps of a run with and without a canary in a batch that the
auditor chose. `run-canaries` gives thousands of canaries to a run as its data and lets it draw
its own batches, so that sampler, bound, noise and divisor are attacked at once. All at a level
of 1 - 1e-6: that is the false-alarm probability of each test over seeds, and seeds are fixed.
"""

from __future__ import annotations

import copy

import pytest
import torch
from benchmarks._our_engine import network
from benchmarks.audit_estimators import DELTA, NIGHTLY, attack, claim, private_run
from torch import Tensor, nn

from noisewise.auditing import ViolatedClaimError, audit
from noisewise.errors import UnsoundError
from noisewise.gradients import BatchMaxScaled, Clipped, Factored
from noisewise.nn import BoundedInput
from noisewise.training import Plan, PrivateRun, make_private


def test_a_run_is_audited_and_its_weights_are_put_back() -> None:
    result, strength = attack("Clipped", repeats=60)
    assert result.passed is True
    assert strength == pytest.approx(1 / 1.001, rel=1e-3)
    assert "noisy gradient of a step" in result.threat_model
    torch.manual_seed(0)
    model = network()
    before = copy.deepcopy(model.state_dict())
    with private_run(model, Clipped(0.3)) as run:
        canary = (9 * torch.ones(1, 8), torch.tensor([2]))
        data = (torch.zeros(2, 8), torch.tensor([0, 1]))
        audit(run, claimed=claim(), data=data, canary=canary, repeats=3)
        # Nothing is free: the steps of an audit are steps.
        assert run.steps_taken == 12
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_run_with_a_budget_is_not_used_up_by_an_audit() -> None:
    model = network()
    with private_run(model, Clipped(0.3), noise_multiplier=None, epsilon=1.0) as run:
        data = (torch.zeros(2, 8), torch.tensor([0, 1]))
        with pytest.raises(ValueError, match="Make a twin"):
            audit(run, claimed=claim(), data=data, canary=data)
        assert run.steps_taken == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("Clipped", 0.8),
        ("Clipped, automatic", 0.8),
        ("Clipped, per layer", 0.8),
        ("Factored", 0.8),
        # What a random record reaches of a worst-case bound; the tightness follows from it.
        ("Clipped, global", 0.0),
        ("InputScaled", 0.0),
        ("Propagated", 0.0),
        ("InputScaled, loss clipped", 0.0),
        ("Propagated, loss clipped", 0.0),
    ],
)
def test_every_estimator_keeps_its_claim(name: str, share: float) -> None:
    result, strength = attack(name)
    print(f"{name}: canary {strength:.3f}, tightness {result.tightness:.3f}")
    assert result.passed is True
    assert strength <= 1.0
    assert result.tightness is not None
    assert result.tightness >= share


class Canaries:
    """A private run whose data are canaries; each call is its next step.

    The model is linear and its loss is its output, so a record's gradient is the record.
    """

    def __init__(self, estimator: object, rate: float, steps: int, noise: float = 1.0) -> None:
        self.estimator, self.rate, self.steps, self.noise = estimator, rate, steps, noise
        self.runs: dict[bool, tuple[PrivateRun, object]] = {}

    def __call__(self, gradients: Tensor, *, seed: int) -> Tensor:
        present = len(gradients) > 0
        if present not in self.runs:
            self.runs[present] = self.start(gradients, seed)
        run, batches = self.runs[present]
        x, y = next(batches)
        run.step(x, y)
        weight = run.plain_model.weight
        noisy = weight.grad[0].detach() * run.resolved.batch_size
        with torch.no_grad():
            weight.zero_()
        return noisy

    def start(self, gradients: Tensor, seed: int) -> tuple[PrivateRun, object]:
        # A dataset must have a record: one without gradient stands for none.
        data = gradients if len(gradients) else torch.zeros(1, gradients.shape[1])
        model = nn.Linear(gradients.shape[1], 1, bias=False)
        nn.init.zeros_(model.weight)
        plan = Plan(
            gradients=self.estimator,
            noise_multiplier=self.noise,
            delta=DELTA,
            steps=self.steps,
            batch_size=20,
            sample_rate=self.rate,
            seed=seed,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        targets = torch.zeros(len(data))
        run = make_private(model, optimizer, lambda z, _: z.squeeze(-1), (data, targets), plan)
        return run, iter(run.loader)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [Clipped(1.0), Factored(1.0)], ids=["Clipped", "Factored"])
def test_a_hundred_steps_with_the_runs_own_batches_keep_their_claim(estimator: object) -> None:
    rate, steps, repeats = 0.02, 100, 8
    result = audit(
        Canaries(estimator, rate, steps * repeats),
        claimed=claim(1.0, rate, steps),
        attack="run-canaries",
        clip=1.0,
        canaries=2000,
        repeats=repeats,
    )
    print(f"tightness {result.tightness:.3f}")
    assert result.passed is True
    assert result.tightness is not None
    assert result.tightness >= 0.6


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["half the noise", "three times the rate"])
def test_the_same_audit_refutes_an_engine_that_does_less(wrong: str) -> None:
    rate, steps, repeats = 0.02, 100, 4
    engine = (
        Canaries(Clipped(1.0), rate, steps * repeats, noise=0.5)
        if wrong == "half the noise"
        else Canaries(Clipped(1.0), 3 * rate, steps * repeats)
    )
    result = audit(
        engine,
        claimed=claim(1.0, rate, steps),
        attack="run-canaries",
        clip=1.0,
        canaries=2000,
        repeats=repeats,
        confidence=NIGHTLY,
    )
    assert result.passed is False


def batch_maximum(records: int) -> tuple[PrivateRun, dict[str, object]]:
    """Many short records on the wrong side of the boundary, and a long one on the right side."""
    model = nn.Sequential(BoundedInput((2,), 30.0, mode="clip"), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[4000.0, 0.0], [-4000.0, 0.0]]))
    run = private_run(model, BatchMaxScaled(study=True), noise_multiplier=1.0)
    small = torch.tensor([[1e-3, 0.0]]).repeat(records, 1)
    data = (small, torch.ones(records, dtype=torch.long))
    canary = (torch.tensor([[30.0, 0.0]]), torch.tensor([0]))
    return run, {"data": data, "canary": canary}


@pytest.mark.slow
@pytest.mark.parametrize("records", [16, 256])
def test_the_batch_maximum_is_caught_far_above_what_it_claims(records: int) -> None:
    """One step of sigma = 1 would be 4.38, and 0.20 with a sampling rate of 0.01."""
    run, inputs = batch_maximum(records)
    with pytest.raises(UnsoundError, match="no epsilon can be stated"):
        run.epsilon()
    result = audit(run, claimed=claim(1.0), confidence=NIGHTLY, repeats=300, **inputs)
    assert result.claimed_epsilon == pytest.approx(4.377, abs=1e-3)
    assert result.passed is False
    assert result.epsilon_lower_bound > 20
    with pytest.raises(ViolatedClaimError):
        result.raise_if_violated()
    sampled = audit(run, claimed=claim(1.0, 0.01), confidence=NIGHTLY, repeats=300, **inputs)
    assert sampled.claimed_epsilon == pytest.approx(0.20, abs=0.01)
    assert sampled.epsilon_lower_bound > 10
    run.close()
