"""Lemma 6.3.1 and the exact sensitivities of tree noise, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from noisewise.ecdf.mechanisms.laminar import least_l1, least_squares, run_cost


def path_matrix(base: int, height: int) -> np.ndarray:
    """Leaves x nodes: 1 where the node lies above the leaf."""
    leaves = base**height
    index = np.arange(leaves)
    return np.concatenate(
        [np.eye(leaves // base**level)[index // base**level] for level in range(height + 1)],
        axis=1,
    )


def runs(leaves: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(leaves) for b in range(a, leaves)]


@pytest.mark.parametrize(("base", "height"), [(2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (4, 2)])
def test_the_recursion_finds_the_least_real_shift_of_every_run(base: int, height: int) -> None:
    paths = path_matrix(base, height)
    leaves, nodes = paths.shape
    for first, last in runs(leaves):
        change = np.zeros(leaves)
        change[first : last + 1] = 1
        least = linprog(
            np.ones(2 * nodes), A_eq=np.hstack([paths, -paths]), b_eq=change, method="highs"
        )
        assert run_cost(first, last, base, height) == pytest.approx(least.fun)


@pytest.mark.parametrize("height", range(1, 9))
def test_every_run_up_to_height_eight_costs_at_most_the_stated_maximum(height: int) -> None:
    costs = {run: run_cost(*run, 2, height) for run in runs(2**height)}
    least = least_l1(2, height)
    assert max(costs.values()) == least.interval == height
    suffixes = [cost for (_, last), cost in costs.items() if last == 2**height - 1]
    prefixes = [cost for (first, _), cost in costs.items() if first == 0]
    assert max(suffixes) == max(prefixes) == least.suffix == math.ceil((height + 1) / 2)


@pytest.mark.parametrize("height", range(9, 21))
def test_closed_forms_hold_for_tall_trees(height: int) -> None:
    assert least_l1(2, height).interval == height
    assert least_l1(2, height).suffix == math.ceil((height + 1) / 2)


@pytest.mark.parametrize(("base", "height"), [(3, 1), (3, 2), (3, 3), (4, 3), (5, 2), (7, 2)])
def test_other_bases_match_the_recursion_over_all_runs(base: int, height: int) -> None:
    costs = {run: run_cost(*run, base, height) for run in runs(base**height)}
    assert max(costs.values()) == least_l1(base, height).interval
    suffixes = [cost for (_, last), cost in costs.items() if last == base**height - 1]
    assert max(suffixes) == least_l1(base, height).suffix


@pytest.mark.parametrize(
    ("base", "height"), [(2, 1), (2, 2), (2, 3), (2, 5), (2, 6), (3, 1), (3, 3), (4, 2), (5, 2)]
)
def test_squared_shifts_match_the_inverse_covariance(base: int, height: int) -> None:
    paths = path_matrix(base, height)
    inverse = np.linalg.inv(paths @ paths.T)
    leaves = base**height
    values = {}
    for first, last in runs(leaves):
        change = np.zeros(leaves)
        change[first : last + 1] = 1
        values[first, last] = change @ inverse @ change
    least = least_squares(base, height)
    exact = max(values.values())
    assert exact <= least.interval <= exact * (1 + 2e-6)
    suffix = max(value for (_, last), value in values.items() if last == leaves - 1)
    assert least.suffix == pytest.approx(suffix, rel=1e-9)
    assert least.suffix >= suffix * (1 - 1e-12)
