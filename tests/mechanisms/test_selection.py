import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from noisewise import privacy
from noisewise.privacy import Randomness

SCORES = [0.0, 1.0, 2.5, 2.0]


def exponential_law(scores, rate):
    weights = np.exp(rate * (np.asarray(scores) - max(scores)))
    return weights / weights.sum()


def permute_and_flip_law(scores, rate):
    """Probability of each candidate by going through all orders."""
    heads = np.exp(rate * (np.asarray(scores) - max(scores)))
    law = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for candidate in order:
            law[candidate] += left * heads[candidate] / len(orders)
            left *= 1 - heads[candidate]
    return law


LAWS = {
    "exponential": (privacy.exponential, exponential_law),
    "permute_and_flip": (privacy.permute_and_flip, permute_and_flip_law),
}
both = pytest.mark.parametrize("name", LAWS)


@both
@pytest.mark.parametrize("monotonic", [False, True])
def test_candidates_are_chosen_with_their_exact_probabilities(name, monotonic):
    """Chi-square test at level 1e-6, fixed seed."""
    choose, law = LAWS[name]
    rng = Randomness.seeded(4)
    picks = [
        choose(SCORES, sensitivity=1.0, epsilon=1.0, monotonic=monotonic, rng=rng).value
        for _ in range(3000)
    ]
    expected = 3000 * law(SCORES, 1.0 if monotonic else 0.5)
    assert stats.chisquare(np.bincount(picks, minlength=4), expected).pvalue > 1e-6


@both
def test_the_exact_privacy_loss_is_within_epsilon_and_reaches_it(name):
    """All neighbours of small integer scores, by the closed-form law."""
    _, law = LAWS[name]
    worst = 0.0
    base = np.array([0.0, 3.0, 3.0])
    for moves in itertools.product((-1, 0, 1), repeat=3):
        p, q = law(base, 0.5), law(base + np.array(moves), 0.5)
        worst = max(worst, float(np.abs(np.log(p) - np.log(q)).max()))
    assert 0.6 < worst <= 1.0 + 1e-12


@both
def test_one_candidate_huge_scores_and_ties(name):
    choose, _ = LAWS[name]
    assert choose([3.0], sensitivity=1, epsilon=1).value == 0
    assert choose([0.0, 1e300, 0.0], sensitivity=1, epsilon=1).value == 1
    assert choose(torch.tensor([5, 5]), sensitivity=1, epsilon=1).value in (0, 1)


@both
def test_the_statement_is_pure_and_verifies(name):
    statement = LAWS[name][0](SCORES, sensitivity=1, epsilon=0.7, relation="replace-one").statement
    assert (statement.epsilon, statement.delta) == (0.7, 0.0)
    assert privacy.verify(statement).ok


@both
@pytest.mark.parametrize("scores", [[], [[1.0]], [math.nan], ["a"], 3.0])
def test_bad_scores_are_refused(name, scores):
    with pytest.raises((TypeError, ValueError)):
        LAWS[name][0](scores, sensitivity=1, epsilon=1)


@both
def test_monotonic_scores_do_not_exist_under_replace_one(name):
    with pytest.raises(ValueError, match="monotonic"):
        LAWS[name][0](SCORES, sensitivity=1, epsilon=1, monotonic=True, relation="replace-one")


def test_permute_and_flip_is_never_worse_than_exponential():
    for rate in (0.1, 0.5, 2.0):
        scores = np.array(SCORES)
        assert permute_and_flip_law(SCORES, rate) @ scores >= exponential_law(SCORES, rate) @ scores
