"""Counterexamples of docs/proofs/published.md that have no other home."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.func import jacrev


def test_centring_is_no_contraction_in_the_largest_entry() -> None:
    """Eq. 5.2.2 of Barczewski (2025) for p = 1 and infinity (docs/proofs/published.md#induced)."""
    x = 0.1 * torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def normalise(v: torch.Tensor) -> torch.Tensor:
        return (v - v.mean()) / v.std(unbiased=False).clamp_min(1.0)

    jacobian = jacrev(normalise)(x)
    for p in (1, float("inf")):
        assert float(torch.linalg.matrix_norm(jacobian, p)) == pytest.approx(1.75)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) <= 1 + 1e-12


def closed_groups(scores: np.ndarray, labels: np.ndarray, cuts: list[float]) -> np.ndarray:
    """Observed and expected numbers of Algorithm 10 of Barczewski (2025), groups closed."""
    rows = []
    for low, high in pairwise(cuts):
        inside = (scores >= low) & (scores <= high)
        positive, expected = labels[inside].sum(), scores[inside].sum()
        rows.append([positive, inside.sum() - positive, expected, inside.sum() - expected])
    return np.array(rows, dtype=float)


def test_noise_that_two_sums_share_hides_nothing_of_their_difference() -> None:
    """Lines 7 and 8 give E and O the same noise (docs/proofs/published.md#shared-noise)."""
    rng = np.random.default_rng(0)
    scores, labels = rng.random(50), rng.integers(0, 2, 50).astype(float)

    def differences(noise: np.random.Generator) -> np.ndarray:
        sums = closed_groups(scores, labels, [0.0, 0.5, 1.0])
        shared = noise.laplace(scale=100.0, size=(2, 2))
        return (sums[:, :2] + shared) - (sums[:, 2:] + shared)

    first, second = (differences(np.random.default_rng(seed)) for seed in (1, 2))
    assert np.allclose(first, second, atol=1e-9)  # whatever the noise, the same answer
    labels[0] = 1 - labels[0]
    assert not np.allclose(first, differences(np.random.default_rng(3)), atol=0.5)


def test_a_score_on_a_cut_of_closed_groups_moves_more_than_eight_statistics() -> None:
    """The proof of Theorem 6.5.1 counts two groups for a replaced record; cuts have four."""
    cuts = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    others = np.array([0.1, 0.3, 0.5, 0.7, 0.9]), np.array([0.0, 1.0, 0.0, 1.0, 0.0])

    def sums(score: float) -> np.ndarray:
        return closed_groups(np.append(others[0], score), np.append(others[1], 1.0), cuts)

    on_cuts = np.abs(sums(0.2) - sums(0.8)) > 0
    assert on_cuts.any(axis=1).sum() == 4
    inside = np.abs(sums(0.21) - sums(0.79)) > 0
    assert inside.any(axis=1).sum() == 2
    # O1, E1 and E0 of every group move.
    assert on_cuts.sum() == 12 > 8
