"""The best of a random number of trials: its cost, against the exact law of the selection."""

from __future__ import annotations

import itertools
import math
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest

from noisewise.privacy import (
    PoissonGaussian,
    Pure,
    Randomness,
    Selection,
    Statement,
    epsilon_of,
    verify,
)
from noisewise.privacy.events import selection
from noisewise.privacy.events.profile import Profile
from noisewise.privacy.relation import ADD_REMOVE
from noisewise.privacy.trials import TrialNumber

LAWS = [
    ("negative-binomial", 1.0, 0.1),
    ("negative-binomial", 0.0, 0.02),
    ("negative-binomial", -0.5, 0.01),
    ("negative-binomial", 2.5, 0.3),
    ("poisson", 0.0, 4.0),
    ("poisson", 0.0, 0.5),
]


def law_of_number(law, shape, parameter):
    """Probabilities of 1, 2, ... trials, as Papernot and Steinke define them."""
    last = 120 if law == "poisson" else 40 / parameter
    k = np.arange(1, last, dtype=np.float64)
    if law == "poisson":
        log = k * math.log(parameter) - np.array([math.lgamma(x + 1) for x in k])
    elif shape == 0:
        log = k * math.log(1 - parameter) - np.log(k)
    else:
        lengths = np.log(np.abs((np.arange(len(k)) + shape) / (np.arange(len(k)) + 1)))
        log = k * math.log(1 - parameter) + np.cumsum(lengths)
    mass = np.exp(log - log.max())
    return k, mass / mass.sum()


def best_law(outcomes, law):
    """Exact law of the best of K draws; later outcomes are better."""
    k, mass = law
    below = np.r_[0.0, np.cumsum(outcomes)].clip(0, 1)
    reached = np.array([mass @ x**k for x in below])
    return np.diff(reached)


def delta(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def exact_profile(p, q):
    """The larger of both directions, at its own kinks: chords between them are exact."""
    ratios = np.abs(np.log(p / q))
    epsilons = np.unique(np.r_[0.0, ratios, ratios.max() + 1e-9])
    both = [max(delta(p, q, e), delta(q, p, e)) for e in epsilons]
    return Profile(epsilons, np.array(both))


def mechanisms(count=25, seed=3):
    """Pairs of laws on few ordered outcomes: random ones, and ones with a rare, telling best."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = int(rng.integers(2, 5))
        p, q = (rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0]))) + 1e-6 for _ in "pq")
        yield p / p.sum(), q / q.sum()
    for e, rare in itertools.product((0.2, 1.0, 2.0), (1e-3, 1e-2, 0.1)):
        lie = 1 / (1 + math.exp(e))
        p = np.array([(1 - rare) * (1 - lie), (1 - rare) * lie, rare * lie, rare * (1 - lie)])
        yield p, p[[1, 0, 3, 2]]
        for scale in (math.exp(e), math.exp(-e)):
            yield np.array([1 - rare, rare]), np.array([1 - rare * scale, rare * scale])


def faults(law, count=25):
    """By how much the exact delta of the selection exceeds what is claimed, at worst."""
    number, worst, tightest = law_of_number(*law), -1.0, 0.0
    for p, q in mechanisms(count):
        epsilons, claimed = selection.best_of(exact_profile(p, q), *law)
        a, b = best_law(p, number), best_law(q, number)
        for e in np.r_[epsilons, np.linspace(epsilons[0], epsilons[-1], 7)]:
            allowed = float(np.interp(math.exp(e), np.exp(epsilons), claimed))
            truth = max(delta(a, b, e), delta(b, a, e))
            worst = max(worst, truth - allowed)
            if allowed > 1e-6:
                tightest = max(tightest, truth / allowed)
    return worst, tightest


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_exact_law_of_a_selection_costs_no_more_than_claimed(law):
    worst, tightest = faults(law)
    assert worst <= 1e-9
    assert tightest > 0.3  # the bound is not idle


@pytest.mark.parametrize(
    ("law", "wrong"),
    [
        *itertools.product((LAWS[0], LAWS[4]), ("mean", "rank", "half the rank")),
        *itertools.product((LAWS[1],), ("mean", "rank")),
    ],
    ids=str,
)
def test_a_wrong_formula_is_found_out(law, wrong, monkeypatch):
    if wrong == "mean":
        monkeypatch.setattr(selection, "mean_trials", lambda *_: 1.0)
    elif law[0] == "poisson":
        part = 0.0 if wrong == "rank" else 0.5
        right = selection._poisson_profile
        monkeypatch.setattr(selection, "mean_trials", lambda *_, m=law[2]: m / -math.expm1(-m))
        monkeypatch.setattr(selection, "_SLOPES", (0.0,))

        def broken(base, mean):
            honest = base.delta
            object.__setattr__(base, "delta", lambda e: part * honest(e))
            return right(base, mean)

        monkeypatch.setattr(selection, "_poisson_profile", broken)
    else:
        part = 0.0 if wrong == "rank" else 0.5
        right = Profile.crossing
        monkeypatch.setattr(Profile, "crossing", lambda self, g: part * right(self, g))
    assert faults(law, 60)[0] > 1e-6


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_pure_trials_cost_their_closed_form_at_most(law):
    number = law_of_number(*law)
    for epsilon in (0.1, 0.7, 2.0):
        claimed = Selection(((Pure(epsilon),),), *law).pure_epsilon()
        reached = 0.0
        for p, q in mechanisms(25):
            if np.abs(np.log(p / q)).max() > epsilon:
                mix = (math.expm1(epsilon) / np.abs(np.expm1(np.log(p / q))).max()) * 0.4
                q = p + min(1.0, mix) * (q - p)
            if np.abs(np.log(p / q)).max() > epsilon:
                continue
            a, b = best_law(p, number), best_law(q, number)
            reached = max(reached, float(np.abs(np.log(a / b)).max()))
        assert reached <= claimed * (1 + 1e-9)


def test_the_closed_form_is_nearly_reached_by_randomised_response():
    law = ("negative-binomial", 1.0, 0.1)
    number, epsilon = law_of_number(*law), 0.5
    lie = 1 / (1 + math.exp(epsilon))
    best = 0.0
    for split in np.geomspace(1e-4, 0.999, 60):
        # Nothing telling, or an answer; the answer ranks above, one of its two values best.
        p = np.array([(1 - lie), lie * (1 - split), lie * split])
        q = np.array([lie, (1 - lie) * (1 - split), (1 - lie) * split])
        a, b = best_law(p, number), best_law(q, number)
        best = max(best, float(np.abs(np.log(a / b)).max()))
    claimed = Selection(((Pure(epsilon),),), *law).pure_epsilon()
    assert 0.6 * claimed < best <= claimed


def test_liu_and_talwar_three_times_epsilon_is_the_limit_of_many_trials():
    few = Selection(((Pure(0.5),),), "negative-binomial", 1.0, 0.2).pure_epsilon()
    many = Selection(((Pure(0.5),),), "negative-binomial", 1.0, 1e-6).pure_epsilon()
    assert few < many < 1.5 * (1 + 1e-9)
    assert many > 1.499


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_number_of_trials_follows_its_law(law):
    number = TrialNumber(*law)
    k, mass = law_of_number(*law)
    assert number.mean == pytest.approx(float(k @ mass), rel=1e-6)
    for place in (1, 2, 7):
        assert float(number.probability(place)) == pytest.approx(mass[place - 1], rel=1e-9)
    rng = Randomness.seeded(5)
    drawn = np.array([number.draw(rng) for _ in range(3000)])
    assert drawn.min() >= 1
    # Hoeffding for the empirical distribution function at three places: 6 exp(-2 n t^2) = 1e-6.
    tolerance = math.sqrt(math.log(6e6) / 2 / 3000)
    for place in (1, 3, 10):
        assert abs((drawn <= place).mean() - mass[:place].sum()) < tolerance


def test_probabilities_are_exact_to_many_digits():
    number = TrialNumber("negative-binomial", 0.0, 0.05)
    with localcontext(Context(prec=90)):
        total = sum((number.probability(k) for k in range(1, 1000)), Decimal(0))
        # The tail beyond is a geometric series at most.
        assert 0 < 1 - total < Decimal("0.95") ** 1000 / Decimal("0.05")


@pytest.mark.parametrize(("law", "shape"), [("negative-binomial", 0.0), ("poisson", 0.0)])
def test_a_mean_is_met(law, shape):
    assert TrialNumber.of_mean(8.0, law, shape).mean == pytest.approx(8.0, rel=1e-9)


def test_a_statement_of_a_selection_is_verified_and_a_smaller_epsilon_is_not():
    event = Selection(((PoissonGaussian(2.0, 0.1, 50),), (Pure(0.3),)), *LAWS[1])
    statement = Statement.derive(event, delta=1e-5, mechanism="the best of some trainings")
    outcome = verify(Statement.from_json(statement.to_json()))
    assert outcome.ok
    assert outcome.independent == pytest.approx(outcome.stated, rel=1e-2)
    assert outcome.other >= outcome.stated
    cheaper = statement.to_dict() | {"epsilon": 0.9 * statement.epsilon}
    cheaper.pop("digest")
    from noisewise.privacy.statement import digest

    forged = Statement.from_dict({**cheaper, "digest": digest(cheaper)})
    assert not verify(forged).ok


def test_one_trial_costs_less_than_the_best_of_some_and_more_trials_cost_more():
    trial = (PoissonGaussian(1.5, 0.05, 100),)
    one = epsilon_of(trial, delta=1e-5)
    some = [
        epsilon_of(
            Selection((trial,), "negative-binomial", 0.0, gamma), delta=1e-5, relation=ADD_REMOVE
        )
        for gamma in (0.3, 0.03, 0.003)
    ]
    assert one < some[0] < some[1] < some[2] < 3 * one


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trials": ()}, "at least one history"),
        ({"trials": ((),)}, "none that is empty"),
        ({"law": "uniform"}, "law must be one of"),
        ({"shape": -1.0}, "above -1"),
        ({"parameter": 1.0}, "parameter must lie in"),
        ({"law": "poisson", "shape": 1.0}, "must be 0"),
    ],
)
def test_what_is_no_selection_is_refused(fields, message):
    right = {"trials": ((Pure(1.0),),), "law": "negative-binomial", "shape": 0.0, "parameter": 0.1}
    with pytest.raises(ValueError, match=message):
        Selection(**{**right, **fields})
    with pytest.raises(ValueError, match="cannot be a selection"):
        Selection(((Selection(**right),),), "poisson", 0.0, 1.0)
