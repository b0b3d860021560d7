import json
import math

import pytest
from hypothesis import given, strategies as st

from noisewise.privacy import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    ZeroConcentrated,
    split_noise,
)
from noisewise.privacy.events import as_history, event_from_dict, simplify

positive = st.floats(1e-3, 1e3)
counts = st.integers(1, 10**6)
events = st.one_of(
    st.builds(PoissonGaussian, positive, st.floats(1e-6, 1), counts),
    st.builds(Gaussian, positive, counts),
    st.builds(Laplace, positive, counts),
    st.builds(Pure, positive, counts),
    st.builds(ZeroConcentrated, positive, counts),
)


@given(events)
def test_an_event_survives_json(event):
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


@given(st.lists(events, max_size=6))
def test_merging_keeps_every_release(history):
    merged = simplify(history + history)
    assert sum(event.count for event in merged) == 2 * sum(event.count for event in history)
    assert len(merged) == len({e.to_dict()["kind"] + repr(e) for e in simplify(history)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "magic"}, "kind must be one of"),
        ({"kind": "pure", "count": 1}, "wrong fields"),
        ({"kind": "pure", "epsilon": 1, "count": 1, "extra": 2}, "wrong fields"),
        ({"kind": "poisson-gaussian", "noise_multiplier": 0, "sample_rate": 0.1}, "without noise"),
        ({"kind": "poisson-gaussian", "noise_multiplier": 1, "sample_rate": 2}, "sample_rate"),
        ({"kind": "gaussian", "noise_multiplier": 1, "count": 0}, "count"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        event_from_dict(fields)


def test_a_history_holds_events_only():
    assert as_history(Pure(1.0)) == (Pure(1.0),)
    with pytest.raises(TypeError, match="a history holds events"):
        as_history([1.0])


@given(st.integers(1, 20), positive)
def test_equal_groups_divide_the_noise_by_the_root_of_their_number(groups, sigma):
    joint = split_noise([1.0] * groups, [sigma] * groups)
    assert joint == pytest.approx(sigma / math.sqrt(groups))


@given(st.lists(st.tuples(positive, st.integers(1, 10**6)), min_size=1, max_size=8), positive)
def test_every_allocation_of_the_design_is_the_same_mechanism(groups, sigma):
    bounds = [bound for bound, _ in groups]
    total = math.fsum(bound * math.sqrt(size) for bound, size in groups)
    allocations = {
        "global": [sigma * math.hypot(*bounds)] * len(groups),
        "per-layer": [sigma * math.sqrt(len(groups)) * bound for bound in bounds],
        "optimal": [sigma * math.sqrt(b / math.sqrt(d) * total) for b, d in groups],
    }
    for deviations in allocations.values():
        assert split_noise(bounds, deviations) == pytest.approx(sigma)


def test_groups_without_noise_or_without_data_are_refused():
    with pytest.raises(ValueError, match="deviation"):
        split_noise([1.0], [0.0])
    with pytest.raises(ValueError, match="nothing depends"):
        split_noise([0.0], [1.0])
    with pytest.raises(ValueError, match="at least one"):
        split_noise([], [])
