"""The golden runs give what they gave when they were recorded."""

import copy

import pytest
from tests.golden.catalogue import CATALOGUE
from tests.golden.recording import compared, differences, load


@pytest.fixture(scope="module")
def stored():
    return load()


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_golden_run_gives_what_it_gave(name, stored):
    assert compared(name, stored) == []


def test_every_entry_is_stored_and_nothing_else(stored):
    assert sorted(stored["results"]) == sorted(CATALOGUE)


def test_one_changed_bit_is_seen_and_elsewhere_only_what_is_more_than_rounding(stored):
    name = "training: clipped"
    before = stored["results"][name]
    after = copy.deepcopy(before)
    weights = after["weights"]["0.weight"]
    weights["digest"] = "0" * 32
    assert len(list(differences(before, after, exact=True))) == 1
    weights["some"][0] *= 1 + 1e-9
    assert len(list(differences(before, after, exact=True))) == 2
    assert list(differences(before, after, exact=False)) == []
    weights["some"][0] *= 1.001
    assert len(list(differences(before, after, exact=False))) == 1
    del after["statement"]["epsilon"]
    assert any("only stored" in line for line in differences(before, after, exact=False))
