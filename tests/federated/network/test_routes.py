"""From records over shares to sums, on both routes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from hypothesis import given, settings, strategies as st

from noisewise.federated import Records
from noisewise.federated.network import Study
from noisewise.federated.network.measurement import domains_of
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.trial import make_trial
from noisewise.federated.sharing import additive


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    made = {}
    for route, servers in (("functions", 2), ("vectors", 2), ("vectors", 3)):
        trial = make_trial(
            tmp_path_factory.mktemp("routes"), servers=("a", "b", "c")[:servers], route=route,
            curves=("roc", "ecdf", "histogram"), bins=6, relation="add-remove",
        )  # fmt: skip
        made[route, servers] = Study.read(trial.folder / "study.toml")
    return made


CASES = [("functions", 2), ("vectors", 2), ("vectors", 3)]


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(-0.5, 1.5), max_size=5), min_size=1, max_size=4))
@pytest.mark.parametrize("case", CASES)
def test_shares_of_all_servers_add_up_to_the_histograms(studies, case, parties):
    study = studies[case]
    route = route_of(study)
    records = [
        Records(np.array(values, np.float64), np.arange(len(values)) % 2 == 0) for values in parties
    ]
    shares = [route.make(part) for part in records]
    for part, made in zip(records, shares, strict=True):
        common = set()
        for server, data in enumerate(made):
            assert len(data) == route.size(server, len(part))
            common.add(route.check(server, data, len(part)))
        assert len(common) == 1
    totals = [route.add(server, [made[server] for made in shares]) for server in range(case[1])]
    for index, domain in enumerate(domains_of(study)):
        words = [additive.as_words(total[index]) for total in totals]
        expected = np.sum([domain.count(part) for part in records], axis=0)
        assert np.array_equal(additive.combine(words), expected)


@pytest.mark.parametrize("case", CASES)
def test_a_share_of_another_length_is_not_a_share(studies, case):
    route = route_of(studies[case])
    records = Records(np.array([0.1, 0.9]), np.array([True, False]))
    for server, data in enumerate(route.make(records)):
        with pytest.raises(ValueError, match="bytes instead of"):
            route.check(server, data[:-1], 2)


def test_a_key_for_the_other_server_or_another_study_is_not_a_key(studies):
    study = studies["functions", 2]
    route = route_of(study)
    records = Records(np.array([0.1, 0.9]), np.array([True, False]))
    first, second = route.make(records)
    for server, data in ((1, first), (0, second)):
        with pytest.raises(ValueError, match="server"):
            route.check(server, data, 2)
    from dataclasses import replace

    other = route_of(replace(study, round="2"))
    with pytest.raises(ValueError, match="another round"):
        other.check(0, first, 2)


def test_shares_of_the_same_records_are_never_the_same(studies):
    for case in CASES:
        route = route_of(studies[case])
        records = Records(np.array([0.1, 0.9]), np.array([True, False]))
        one, two = route.make(records), route.make(records)
        assert all(a != b for a, b in zip(one, two, strict=True))
