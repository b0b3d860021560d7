"""Units of several rows, each sampled by itself: the accountant's pair is the worst, and right."""

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.privacy import (
    PoissonGaussian,
    PoissonRows,
    Statement,
    epsilon_of,
    group_privacy_of,
    verify,
)
from noisewise.privacy.accounting import delta_of, epsilon, noise_multiplier
from noisewise.privacy.events.poisson_rows import binomial
from noisewise.privacy.independent import estimate_epsilon
from noisewise.privacy.relation import ADD_REMOVE


def test_the_mixture_is_dp_accountings_own():
    # Its own inversion, point by point, gives the same distribution; ours takes a hundredth.
    event = PoissonRows(2.0, 0.05, 4)
    told = pld.from_mixture_gaussian_mechanism(
        2.0,
        list(range(5)),
        list(binom.pmf(range(5), 4, 0.05)),
        value_discretization_interval=0.01,
    )
    ours = event.losses(ADD_REMOVE, 0.01)
    for at in (0.0, 0.1, 0.5, 1.0, 2.0):
        assert ours.get_delta_for_epsilon(at) == pytest.approx(
            told.get_delta_for_epsilon(at), rel=1e-6, abs=1e-15
        )
    assert ours.self_compose(50).get_epsilon_for_delta(1e-6) == pytest.approx(
        told.self_compose(50).get_epsilon_for_delta(1e-6), rel=1e-6
    )


def test_one_row_is_a_record():
    for accountant in ("pld", "rdp"):
        one = epsilon_of(PoissonRows(1.1, 0.02, 1, 500), delta=1e-6, accountant=accountant)
        assert one == pytest.approx(
            epsilon_of(PoissonGaussian(1.1, 0.02, 500), delta=1e-6, accountant=accountant),
            rel=1e-4,
        )


def divergence(noise, weights, means, order):
    """sup over sets of P(S) - order Q(S), in the plane, on a grid; P the mixture, Q around 0."""
    axis = np.linspace(-8 * noise, 8 * noise, 400)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(mean):
        gap = (x - mean[0]) ** 2 + (y - mean[1]) ** 2
        return np.exp(-gap / (2 * noise**2)) / (2 * math.pi * noise**2)

    mixture = sum(w * density(m) for w, m in zip(weights, means, strict=True))
    alone = density((0.0, 0.0))
    return (
        float(np.maximum(mixture - order * alone, 0).sum() * cell),
        float(np.maximum(alone - order * mixture, 0).sum() * cell),
    )


def test_rows_in_any_directions_are_no_worse_than_rows_in_one():
    rng = np.random.default_rng(0)
    rate, rows, noise = 0.3, 3, 1.0
    subsets = [s for n in range(rows + 1) for s in itertools.combinations(range(rows), n)]
    weights = [rate ** len(s) * (1 - rate) ** (rows - len(s)) for s in subsets]
    line = [(float(len(s)), 0.0) for s in subsets]
    for order in (0.5, 1.0, 1.5, 3.0):
        worst = divergence(noise, weights, line, order)
        for _ in range(30):
            angles = rng.uniform(0, 2 * math.pi, rows)
            lengths = rng.uniform(0, 1, rows) ** 0.3
            vectors = [
                (r * math.cos(a), r * math.sin(a)) for r, a in zip(lengths, angles, strict=True)
            ]
            means = [tuple(sum(vectors[i][d] for i in s) for d in (0, 1)) for s in subsets]
            found = divergence(noise, weights, means, order)
            assert found[0] <= worst[0] + 1e-6
            assert found[1] <= worst[1] + 1e-6


@pytest.mark.parametrize(("rows", "rate"), [(8, 0.01), (100, 0.3), (5000, 0.001), (1, 0.5)])
def test_probabilities_are_rounded_up_and_add_up(rows, rate):
    numbers, probabilities = binomial(rows, rate)
    assert math.fsum(probabilities) == pytest.approx(1.0, abs=1e-12)
    assert numbers[-1] <= rows
    for most in (0, 1, 2, rows // 2, rows - 1):
        # At least as likely as they are to exceed any number.
        assert probabilities[numbers > most].sum() >= binom.sf(most, rows, rate) * (1 - 1e-9)


def test_more_rows_cost_more_and_less_than_group_privacy():
    costs = [epsilon(noise_multiplier=2.0, sample_rate=0.01, steps=500, delta=1e-6, unit_rows=k)
             for k in (1, 2, 4, 8, 16)]  # fmt: skip
    assert costs == sorted(costs)
    for k, cost in zip((2, 4, 8), costs[1:4], strict=True):
        bound = group_privacy_of(PoissonGaussian(2.0, 0.01, 500), size=k, delta=1e-6)
        assert bound > cost
    # Of sixteen rows the statement about one says nothing at this delta that could be computed.
    assert group_privacy_of(PoissonGaussian(0.7, 0.05, 500), size=16, delta=1e-6) == math.inf


def test_every_row_in_every_step_is_one_contribution_of_all_of_them():
    several = epsilon_of(PoissonRows(40.0, 1.0, 8, 50), delta=1e-6)
    assert several == pytest.approx(epsilon_of(PoissonGaussian(5.0, 1.0, 50), delta=1e-6), rel=1e-6)


@pytest.mark.slow
def test_very_many_rows_are_accounted_too():
    event = PoissonRows(30.0, 0.01, 500, 1000)
    cost = epsilon_of(event, delta=1e-5)
    assert cost == pytest.approx(estimate_epsilon(event, delta=1e-5), rel=2e-3)


def test_noise_is_found_for_a_unit_of_several_rows():
    sigma = noise_multiplier(epsilon=2.0, delta=1e-6, steps=500, sample_rate=0.01, unit_rows=8)
    cost = epsilon(noise_multiplier=sigma, delta=1e-6, steps=500, sample_rate=0.01, unit_rows=8)
    assert 1.98 <= cost <= 2.0
    assert sigma > 2 * noise_multiplier(epsilon=2.0, delta=1e-6, steps=500, sample_rate=0.01)


def test_delta_agrees_with_one_step_by_hand():
    noise, rate, rows = 1.5, 0.2, 3
    x = np.linspace(-30, 40, 700_001)
    mixture = sum(
        p * norm.pdf(x, j, noise) for j, p in enumerate(binom.pmf(range(rows + 1), rows, rate))
    )
    alone = norm.pdf(x, 0, noise)
    width = x[1] - x[0]
    for at in (0.0, 0.3, 1.0):
        told = max(
            np.maximum(mixture - math.exp(at) * alone, 0).sum() * width,
            np.maximum(alone - math.exp(at) * mixture, 0).sum() * width,
        )
        found = delta_of(PoissonRows(noise, rate, rows), epsilon=at)
        assert told * (1 - 1e-6) <= found <= told * 1.01 + 1e-9


# ------------------------------------------------------------------------------ statements


def test_a_statement_names_the_bound_on_rows_and_is_verified_from_it():
    event = PoissonRows(4.0, 0.02, 8, 300)
    statement = Statement.derive(event, delta=1e-6, mechanism="training", unit="one patient")
    assert statement.unit_rows == 8
    content = json.loads(statement.to_json())
    assert (content["unit"], content["unit_rows"]) == ("one patient", 8)
    assert Statement.from_json(statement.to_json()) == statement
    assert verify(statement).ok
    assert "at most 8 of its rows count" in str(statement)
    plain = Statement.derive(PoissonGaussian(4.0, 0.02, 300), delta=1e-6, mechanism="training")
    assert plain.unit_rows is None
    assert "unit_rows" not in json.loads(plain.to_json())


def test_a_statement_whose_bound_on_rows_was_changed_is_refused():
    from noisewise.errors import StatementError
    from noisewise.privacy.statement_form import digest

    event = PoissonRows(4.0, 0.02, 8, 300)
    told = Statement.derive(event, delta=1e-6, mechanism="training", unit="one patient")
    content = told.to_dict()
    for change in ({"unit_rows": 80}, {"unit_rows": None}, "missing"):
        forged = {k: v for k, v in content.items() if k != "digest"}
        if change == "missing":
            del forged["unit_rows"]
        else:
            forged.update(change)
        with pytest.raises(StatementError):
            Statement.from_dict({**forged, "digest": digest(forged)})
    # Fewer rows in the history make a smaller epsilon than the stated one, and more a larger.
    for rows in (4, 16):
        forged = {k: v for k, v in content.items() if k != "digest"}
        forged["unit_rows"] = rows
        forged["history"] = [{**forged["history"][0], "rows": rows}]
        assert not verify(Statement.from_dict({**forged, "digest": digest(forged)})).ok


def test_budget_answers_what_privacy_of_patients_costs():
    def asked(*more):
        words = ["budget", "--noise", "2", "--steps", "500", "--sample-rate", "0.01"]
        found = CliRunner().invoke(app, [*words, "--delta", "1e-6", "--json", *more])
        assert found.exit_code == 0, found.output
        return json.loads(found.output)

    row, patient = asked(), asked("--unit-rows", "8")
    assert patient["unit_rows"] == 8
    assert row["unit_rows"] is None
    assert patient["epsilon"] > 2 * row["epsilon"]
    assert patient["group_bound"] > patient["epsilon"]
    assert row["group_bound"] is None
    told = epsilon(noise_multiplier=2.0, steps=500, sample_rate=0.01, delta=1e-6, unit_rows=8)
    assert patient["epsilon"] == pytest.approx(told)


def test_group_privacy_of_many_steps_does_not_stop_at_a_delta_that_rounding_forbids():
    # The printed example of `noisewise budget --unit-rows 8`; it raised an error.
    single = PoissonGaussian(4.05, 0.00512, 3907)
    bound = group_privacy_of(single, size=8, delta=1e-6)
    assert epsilon_of(PoissonRows(4.05, 0.00512, 8, 3907), delta=1e-6) < bound < math.inf
