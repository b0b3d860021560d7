"""Rows of one person are never taken for those of two because of how identifiers are written."""

import traceback
import warnings
from collections import namedtuple
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from noisewise import ecdf
from noisewise.estimators import PrivateClassifier
from noisewise.privacy.randomness import resolve
from noisewise.privacy.units import identifiers_of, unit_codes
from noisewise.release import Units, per_unit

SECRET = "patient-4711"
Key = namedtuple("Key", "ward number")


def codes(units):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return unit_codes(units).tolist()


@pytest.mark.parametrize(
    "ids",
    [
        # Tensors are equal by value and have the hash of their place in memory.
        [torch.tensor(1), torch.tensor(1), torch.tensor(2)],
        [("a", torch.tensor(1)), ("a", torch.tensor(1)), ("a", torch.tensor(2))],
        [Key("a", torch.tensor(1)), Key("a", 1), Key("a", 2)],
        [1, True, 2],
        [1, 1.0, 2],
        [np.int64(3), np.float32(3), 4],
        [np.str_("a"), "a", "b"],
        [Decimal(1), 1, 2],
        pd.Categorical(["a", "a", "b"]),
        pd.Index([7, 7, 8]),
        pd.DataFrame({"i": [7, 7, 8]}),
        np.array([2**63, 2**63, 2**63 + 1], np.uint64),
        np.array([(1, 2), (1, 2), (1, 3)], [("a", int), ("b", int)]),
    ],
    ids=lambda ids: type(ids).__name__ + repr(ids[0] if isinstance(ids, list) else "")[:20],
)
def test_equal_identifiers_are_one_unit_whatever_their_type(ids):
    assert codes(ids) == [0, 0, 1]


def test_columns_of_polars_and_arrow():
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    assert codes(polars.Series(["a", "b", "a"])) == [0, 1, 0]
    assert codes(arrow.chunked_array([["a", "b"], ["a"]])) == [0, 1, 0]
    with pytest.raises(ValueError, match="missing"):
        unit_codes(polars.Series(["a", None, "a"]))


class ByPlace:
    """An identifier that is equal to nothing but itself, so that no two rows were one unit's."""

    def __repr__(self):
        return SECRET


class Loud:
    """Whose comparison and hash tell everything."""

    def __eq__(self, other):
        raise ValueError(SECRET)

    def __hash__(self):
        raise TypeError(SECRET)


@pytest.mark.parametrize(
    "ids",
    [
        [ByPlace(), ByPlace()],
        [("ward", ByPlace()), SECRET],
        [Loud(), SECRET],
        [Decimal("sNaN"), SECRET],
        [torch.tensor([1, 2]), SECRET],
        [np.array([1]), SECRET],
        [SECRET, ""],
        [SECRET, "  "],
        [SECRET, "nan"],
        [SECRET, "<NA>"],
        [SECRET, "NULL"],
        [SECRET, " nan "],
        [SECRET, "N/A"],
        [SECRET, float("nan")],
        [SECRET, ("ward", None)],
        [SECRET, pd.NaT],
        [SECRET, pd.NA],
        np.ma.array([4711, 4711], mask=[0, 1]),
        np.array(["2020-01-01", "NaT"], "M8[ns]"),
    ],
    ids=lambda ids: repr(type(ids[-1])),
)
def test_what_cannot_be_told_apart_is_refused_and_no_traceback_quotes_it(ids):
    for reader in (unit_codes, identifiers_of):
        with pytest.raises((TypeError, ValueError)) as caught:
            reader(ids)
        lines = traceback.format_exception(caught.value)
        said = "".join(line for line in lines if not line.lstrip().startswith("File"))
        assert "4711" not in said
        assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["17", 17], "text and numbers"),
        ([b"17", "17"], "text and numbers"),
        (["Ada", "ada "], "capitals"),
        (["Ada", "Ada\N{ZERO WIDTH SPACE}"], "capitals"),
        (["007", "7"], "of a number"),
        (["+7.0", "7"], "of a number"),
        (["Sofía", "Sofi\N{COMBINING ACUTE ACCENT}a"], "spelling"),
    ],
    ids=repr,
)
def test_what_may_be_one_unit_in_two_spellings_is_said_without_showing_it(ids, said):
    with pytest.warns(UserWarning, match=said) as caught:
        assert unit_codes(ids).tolist() == [0, 1]
    assert not any("17'" in str(w.message).replace("'17'", "") for w in caught)
    assert not any(w in str(caught[0].message).lower() for w in ("ada", "sof", "1e"))


class Restless:
    """Equal ones have other hashes."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    def __hash__(self):
        return id(self)


class Settled(Restless):
    """As it should be."""

    def __hash__(self):
        return hash(self.number)


def test_equal_identifiers_with_other_hashes_are_refused():
    for reader in (unit_codes, identifiers_of):
        with pytest.raises(TypeError, match="different hashes") as caught:
            reader([Restless(4711), Restless(4712), Restless(4711)])
        assert "471" not in str(caught.value)
    assert unit_codes([Settled(1), Settled(2), Settled(1)]).tolist() == [0, 1, 0]


def liar(kind):
    """A type of somebody's own, of which no two are equal."""
    names = {"__eq__": lambda a, b: a is b, "__ne__": lambda a, b: False}
    return type("Liar", (kind,), {**names, "__hash__": lambda a: id(a)})


@pytest.mark.parametrize(("kind", "value"), [(str, "4711"), (int, 4711), (float, 4711.5),
                                             (bytes, b"4711"), (Decimal, "4711")])  # fmt: skip
def test_what_identifiers_hold_decides_and_not_what_their_type_says(kind, value):
    same = liar(kind)
    globals()["Liar"] = same  # as a type of a module has a place where it is found
    same.__qualname__ = "Liar"
    same.__module__ = __name__
    for reader in (unit_codes, identifiers_of):
        ids = [same(value), same(value), kind(value)]
        if kind in (str, int):
            assert len(set(reader(ids))) == 1
            continue
        with pytest.raises(TypeError, match="hold the same") as caught:
            reader(ids)
        assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    "ids",
    [
        [1e17, 2e17],
        np.array([2.0**53, 1.0]),
        np.array([16777216.0, 1.0], np.float32),  # 16777217 would be the same
        torch.tensor([16777217.0, 1.0]),
        torch.tensor([2050.0, 1.0], dtype=torch.float16),
        pd.Series([16777216.0, 1.0], dtype="float32"),
        pd.DataFrame({"patient": np.array([16777216.0, 1.0], np.float32)}),
        [np.float32(16777216.0), np.float32(1.0)],
        np.array([np.float32(16777216.0), 1], dtype=object),
        pd.Series([2**53 + 1, 1, None]).dropna(),  # whole numbers beside a missing one
    ],
    ids=lambda ids: f"{type(ids).__module__} {getattr(ids, 'dtype', '')}",
)
def test_numbers_that_lost_digits_may_be_two_people_and_are_refused(ids):
    for reader in (unit_codes, identifiers_of):
        with pytest.raises(ValueError, match="neighbours are the same") as caught:
            reader(ids)
        assert not any(word in str(caught.value) for word in ("1677", "2050", "1e"))


def test_columns_of_polars_and_arrow_that_lost_digits_are_refused():
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    for ids in (
        polars.Series([16777216.0, 1.0], dtype=polars.Float32),
        arrow.array([16777216.0, 1.0], arrow.float32()),
    ):
        with pytest.raises(ValueError, match="neighbours are the same"):
            unit_codes(ids)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([16777215.0, 3.0], np.float32),
        torch.tensor([5.0, 3.0]),
        [2.0**53 - 1, 3.0],
        [2**70, 3],
        np.array([2**63 - 1, 3]),
    ],
    ids=str,
)
def test_numbers_that_kept_their_digits_are_taken(ids):
    assert unit_codes(ids).tolist() == [0, 1]


def test_two_people_under_one_identifier_are_not_hidden_as_one_which_every_statement_assumes():
    """Why it is refused where it can be seen, and said where it cannot: the twin of the bound."""
    bounded = per_unit(Units([0]), 1, resolve(1))
    both, one = np.array([0, 0, 0, 0]), np.array([0])
    place = np.array([0, 0, 0, 1])  # three rows of one person, and one of the other
    moved = bounded.count(both, place, 2) - bounded.count(one, place[3:], 2)
    assert np.abs(moved).sum() > bounded.contribution.steps
    said = "".join(bounded.contribution.sentences)
    assert "and those of no other unit do" in said


def test_identifiers_that_stand_in_another_order_than_their_rows_are_refused():
    """Sorted alone, identifiers would belong to other rows: nobody's rows would be together."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(40), "b": rng.random(40), "who": np.arange(40) // 4})
    y, shuffled = (frame["a"] > 0.5).astype(int), frame.sort_values("b")
    options = {"epsilon": 1.0, "bins": 8, "seed": 1}
    classifier = PrivateClassifier(epsilon=1.0, steps=2, classes=[0, 1], random_state=1)
    for release in (
        lambda who: ecdf.dp_ecdf(frame["a"], bounds=(0, 1), units=who, **options),
        lambda who: ecdf.private_roc(y, frame["a"], units=Units(who), **options),
        lambda who: classifier.fit(frame[["a", "b"]], y, units=who),
    ):
        with pytest.raises(ValueError, match="another order"):
            release(shuffled["who"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            release(frame["who"])
            release(frame["who"].set_axis(range(100, 140)))  # labels of its own say nothing
