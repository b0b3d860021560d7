"""Flower's SecAgg+ as an aggregator: exact integers, honest words, and a clear error without it."""

import importlib.util
import sys

import numpy as np
import pytest

from noisewise.errors import MissingExtraError
from noisewise.federated import LocalAggregator, ecdf, without_noise
from noisewise.federated.flower import FlowerAggregator, as_parameters, clipping_range
from noisewise.federated.masking import AggregationError

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="the extra 'flower' is not installed (pip install flwr)",
)


@needs_flower
@pytest.mark.parametrize("parties", [3, 5])
def test_a_curve_by_flower_is_the_local_one_to_the_bit(parties):
    data = [np.random.default_rng(n).random(50 + n) for n in range(parties)]
    asked = {"bounds": (0, 1), "epsilon": 1.0, "bins": 32}
    found = ecdf(data, without_noise(FlowerAggregator()), **asked)
    local = ecdf(data, without_noise(LocalAggregator()), **asked)
    assert found.counts.tobytes() == local.counts.tobytes()


@needs_flower
def test_with_the_same_seed_the_noise_is_that_of_one_machine():
    data = [np.random.default_rng(n).random(50) for n in range(3)]
    asked = {"bounds": (0, 1), "epsilon": 1.0, "bins": 32, "rng": 5}
    found = ecdf(data, FlowerAggregator(), **asked)
    assert (found.counts == ecdf(data, LocalAggregator(), **asked).counts).all()
    assert found.statement().epsilon <= 1.0


@needs_flower
def test_the_masks_of_this_version_come_from_32_bits():
    # If a later version mends this, the threat model's sentence may be mended too.
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    seed = bytes(range(32))
    folded = np.bitwise_xor.reduce(np.frombuffer(seed, "<u4")).tobytes()
    one = pseudo_rand_gen(seed, 1 << 32, [(5,)])[0]
    other = pseudo_rand_gen(folded, 1 << 32, [(5,)])[0]
    assert one.tolist() == other.tolist()


def test_the_threat_model_trusts_the_server_and_says_why():
    said = FlowerAggregator().threat
    assert said.adversary.startswith("none")
    assert any("32-bit seeds" in sentence for sentence in said.not_promised)


@pytest.mark.parametrize("parties", [3, 4, 100, 1000])
def test_numbers_that_would_overflow_are_refused(parties):
    limit = clipping_range(parties)
    assert parties * 2 * limit < 2**32
    assert as_parameters(np.array([limit - 1, 1 - limit]), parties)[0].dtype == np.float64
    with pytest.raises(AggregationError, match="MaskedAggregator"):
        as_parameters(np.array([limit]), parties)


def test_without_flower_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "flwr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    data = [np.array([0.5])] * 3
    with pytest.raises(MissingExtraError, match=r"noisewise\[flower\]"):
        ecdf(data, FlowerAggregator(), bounds=(0, 1), epsilon=1.0, bins=4)
