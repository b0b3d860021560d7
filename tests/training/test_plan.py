"""A plan couples sampler, bound, noise and accountant, and refuses what does not fit together."""

import json
import warnings

import pytest
from hypothesis import given, strategies as st

from noisewise.errors import UnsoundError
from noisewise.gradients import BatchMaxScaled, Clipped, Factored, InputScaled, Schedule
from noisewise.privacy import epsilon as epsilon_of_training
from noisewise.training import Plan, default_delta

FITTING = dict(epsilon=2.0, epochs=10, batch_size=100, records=10_000)


def fitting(**changes):
    values = {**FITTING, **changes}
    return Plan(**{name: value for name, value in values.items() if value is not None})


@given(st.integers(1, 10**12))
def test_default_delta_is_the_largest_power_of_ten_at_most_a_tenth_of_one_over_n(n):
    delta = default_delta(n)
    exponent = round(-__import__("math").log10(delta))
    assert delta == float(f"1e-{exponent}")
    assert 10 ** (exponent - 1) < 10 * n <= 10**exponent


def test_target_epsilon_is_met_and_barely():
    fixed = fitting().resolve()
    assert (fixed.sample_rate, fixed.steps, fixed.batch_size) == (0.01, 1000, 100)
    assert fixed.delta == 1e-5
    cost = epsilon_of_training(
        noise_multiplier=fixed.noise_multiplier, sample_rate=0.01, steps=1000, delta=1e-5
    )
    assert 0.99 * 2.0 < cost <= 2.0
    assert fixed.epsilon == cost


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_noise_is_calibrated_under_the_plans_own_relation_and_accountant(accountant, relation):
    fixed = fitting(accountant=accountant, relation=relation).resolve()
    cost = epsilon_of_training(
        noise_multiplier=fixed.noise_multiplier,
        sample_rate=0.01,
        steps=1000,
        delta=1e-5,
        accountant=accountant,
        relation=relation,
    )
    assert 1.98 < cost <= 2.0


def test_rate_and_batch_size_together_need_no_dataset_size():
    plan = Plan(noise_multiplier=1.0, steps=100, batch_size=64, sample_rate=0.01, delta=1e-6)
    assert not plan.needs_size
    fixed = plan.resolve()
    assert (fixed.records, fixed.sample_rate, fixed.batch_size) == (None, 0.01, 64)
    assert not fixed.size_used


def test_full_sampling_takes_every_record_in_every_step():
    fixed = Plan(noise_multiplier=5.0, epochs=7, sampling="full", records=300).resolve()
    assert (fixed.sample_rate, fixed.steps, fixed.batch_size) == (1.0, 7, 300)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(noise_multiplier=1.0), "exactly one of epsilon and noise_multiplier"),
        (dict(epsilon=None), "exactly one of epsilon and noise_multiplier"),
        (dict(steps=10), "exactly one of epochs and steps"),
        (dict(epochs=None), "exactly one of epochs and steps"),
        (dict(epsilon=-1.0), "epsilon must be > 0"),
        (dict(epsilon=None, noise_multiplier=0.0), "without noise there is no privacy"),
        (dict(delta=0.0), "delta must be > 0"),
        (dict(delta=1.0), "delta must lie in"),
        (dict(batch_size=None), "expected batch size or the sample rate"),
        (dict(batch_size=20_000), "cannot exceed"),
        (dict(sample_rate=0.5), "contradicts"),
        (dict(sampling="full", batch_size=None, sample_rate=0.1), "every record"),
        (dict(noise="loud"), "noise must be one of"),
        (dict(accountant="moments"), "accountant must be one of"),
        (dict(relation="cousins"), "relation must be one of"),
        (dict(records=0), "records must be a whole number >= 1"),
    ],
)
def test_impossible_plans_are_refused_when_they_are_made(changes, words):
    with pytest.raises(ValueError, match=words):
        fitting(**changes)


def test_a_rule_that_was_not_made_yet_is_refused():
    with pytest.raises(TypeError, match=r"for example noisewise\.Clipped\(1\.0\)"):
        fitting(gradients=Clipped)


def test_a_target_that_no_noise_reaches_is_refused_when_the_plan_is_made():
    with pytest.raises(ValueError, match="larger epsilon"):
        fitting(epsilon=1e-9, delta=1e-11)


@pytest.mark.parametrize("sampling", ["shuffle", "fixed", "weighted", "sequential"])
def test_samplers_without_an_analysis_are_refused_with_an_alternative(sampling):
    with pytest.raises(UnsoundError, match="sampling='poisson'"):
        fitting(sampling=sampling)


def test_a_plan_that_is_no_estimator_or_seed_is_refused():
    with pytest.raises(TypeError, match="estimator"):
        fitting(gradients="clip")
    with pytest.raises(TypeError, match="seed"):
        fitting(seed=1.5)


def test_the_size_is_asked_for_and_not_guessed():
    with pytest.raises(ValueError, match="Declare it public"):
        fitting(records=None).resolve()
    with pytest.raises(ValueError, match="delta defaults"):
        Plan(epsilon=1.0, steps=10, batch_size=10, sample_rate=0.1).resolve()
    assert fitting(records=None).resolve(10_000) == fitting(records=None).resolve(
        public_size=10_000
    )


def test_a_delta_above_one_over_n_is_warned_of():
    with pytest.warns(UserWarning, match="publishes one record at random"):
        fitting(delta=1e-3).resolve()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitting(delta=1e-4).resolve()


@pytest.mark.parametrize(
    "gradients",
    [
        Clipped(0.5, per="layer", rule="automatic"),
        Clipped({"a": 1.0, "b": 2.0}, per={"a": ("0",), "b": ("2", "4")}),
        Factored(2.0),
        InputScaled(loss_clip=0.3),
        BatchMaxScaled(study=True),
        Schedule([(0.0, Clipped(1.0)), (0.5, Clipped(1.0, rule="global"))]),
    ],
)
def test_a_plan_survives_json(gradients):
    plan = fitting(gradients=gradients, seed=7, noise="per-layer", unit="one patient")
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.resolve() == plan.resolve()


def test_json_builds_nothing_but_estimators():
    content = json.loads(fitting().to_json())
    content["gradients"] = {"estimator": "GradientEngine"}
    with pytest.raises(ValueError, match="not an estimator"):
        Plan.from_dict(content)
    with pytest.raises(ValueError, match="no fields"):
        Plan.from_dict({**fitting().to_dict(), "nonsense": 1})
    with pytest.raises(ValueError, match="not a noisewise plan"):
        Plan.from_dict({})


def test_a_plan_cannot_be_changed():
    plan = fitting()
    with pytest.raises(AttributeError):
        plan.epsilon = 10.0
    assert plan.with_(epsilon=1.0).epsilon == 1.0
