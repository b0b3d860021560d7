"""Compiled and plain noise are the same to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from noisewise.privacy import Randomness
from noisewise.privacy.randomness import gaussian
from noisewise.privacy.randomness.gaussian import PairMaker

pytest.importorskip("numba")
PAIRS = 4096


def words(seed):
    return np.random.default_rng(seed).integers(-(2**31), 2**31, (3, PAIRS)).astype(np.int32)


def made(drawn, compiled):
    make = PairMaker(False, PAIRS)
    make.compiled = gaussian._compiled() if compiled else None
    first, second = np.empty(PAIRS, np.float32), np.empty(PAIRS, np.float32)
    make(drawn, first, second, lambda: 3)
    return np.concatenate([first, second])


@pytest.mark.parametrize("seed", range(8))
def test_pairs_are_the_same_to_the_bit(seed):
    plain, compiled = (made(words(seed), flag) for flag in (False, True))
    assert np.array_equal(plain.view(np.int32), compiled.view(np.int32))
    assert abs(float(plain.std()) - 1.0) < 0.1


@pytest.mark.parametrize("edge", [0, -(2**31), 1, -1, 2**31 - 1, 2**30])
@pytest.mark.parametrize("row", range(3))
def test_integers_at_the_edges_are_the_same_to_the_bit(row, edge):
    drawn = words(0)
    drawn[row, ::7] = edge
    plain, compiled = (made(drawn, flag) for flag in (False, True))
    assert np.array_equal(plain.view(np.int32), compiled.view(np.int32))
    assert np.isfinite(plain).all()


def test_a_stream_goes_on_when_compiled_code_takes_over(monkeypatch):
    shape = 3 * gaussian.BLOCK_PAIRS + 5
    monkeypatch.setattr(gaussian, "_compiled", lambda: None)
    plain = Randomness.seeded(4)
    expected = [plain.normal(shape).numpy() for _ in range(3)]
    monkeypatch.undo()
    monkeypatch.setattr(gaussian, "MANY", 2 * shape)
    rng = Randomness.seeded(4)
    found = [rng.normal(shape).numpy() for _ in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
