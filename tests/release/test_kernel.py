"""The kernel: charged before a value exists, noised once, refused without a trace."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from noisewise.errors import (
    BudgetExceededError,
    ChargeConflictError,
    LedgerError,
    RelationError,
    UnsoundError,
)
from noisewise.privacy import (
    Gaussian,
    Laplace,
    Ledger,
    Pure,
    Randomness,
    Sensitivity,
    ZeroConcentrated,
    verify,
)
from noisewise.release import (
    Envelope,
    ExponentialChoice,
    GaussianNoise,
    GridNoise,
    IntegerNoise,
    LedgerAccount,
    MemoryAccount,
    NamedAccount,
    PermuteAndFlip,
    Query,
    StatedTuple,
    ThisProcess,
    open_account,
    received,
    release,
)

ONE = Sensitivity(1.0, "l1")


def noise(epsilon=0.5, planned=ONE):
    scale = Fraction(planned.value) / Fraction(epsilon)
    return IntegerNoise("laplace", scale, planned, Pure(epsilon), "discrete Laplace noise")


def people(sensitivity=ONE, seen=None):
    def measure(records):
        if seen is not None:
            seen.append(records)
        return len(records)

    return Query.of(measure, sensitivity, "number of people")


class Watched(Randomness):
    """A secure generator that says whether a number was drawn."""

    drawn = 0

    @classmethod
    def secure(cls):
        made = super().secure()
        made.drawn = 0
        return made

    def _draw(self, size):
        self.drawn += 1
        return super()._draw(size)


# ------------------------------------------------------------------ value and statement


def test_the_value_carries_noise_and_the_statement_what_was_charged():
    account = MemoryAccount()
    found = release(people(), noise(), ThisProcess("abc"), account, rng=3)
    again = release(people(), noise(), ThisProcess("abc"), MemoryAccount(), rng=3)
    other = release(people(), noise(), ThisProcess("abcd"), MemoryAccount(), rng=3)
    assert found.value == again.value == other.value - 1
    assert found.statement.history == account.history == (Pure(0.5),)
    assert verify(found.statement).ok
    value, statement = found
    assert (value, statement) == (found.value, found.statement)


def test_noise_is_drawn_once_for_each_number():
    query = Query.of(lambda rows: np.zeros(100_000, np.int64), ONE, "zeros")
    drawn = release(query, noise(1.0), ThisProcess(), MemoryAccount(), rng=5).value
    # Discrete Laplace of scale 1: variance 1.84; a false alarm has probability below 1e-6.
    assert abs(drawn.var() - 1.8413) < 0.09
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02


# ------------------------------------------------------ made elsewhere, or before a death


def test_what_others_released_is_stated_as_if_it_had_been_made_here():
    here = release(people(), noise(), ThisProcess("abc"), MemoryAccount(), rng=3)
    words = here.promise.randomness
    assert received(people(), noise(), delta=0.0, randomness=words) == here.promise
    trusted = received(people(), noise(), delta=0.0, randomness=words, assumptions=("a server",))
    assert trusted.assumptions == (*here.promise.assumptions, "a server")


@pytest.mark.parametrize("planned", [Sensitivity(0.9, "l1"), Sensitivity(0.5, "l1")])
def test_nothing_is_stated_of_a_sum_whose_noise_was_planned_for_less(planned):
    with pytest.raises(UnsoundError, match="its noise was planned for"):
        received(people(), noise(planned=planned), delta=0.0, randomness="a server's own")


def test_what_was_kept_before_a_death_is_paid_for_once_and_not_measured_again(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=0.7, delta=0.0)
    seen, rng = [], Watched.secure()

    def again(kept):
        account = NamedAccount(ledger, "an answer", "note", lambda value: value, kept)
        return release(people(seen=seen), noise(), ThisProcess("abc"), account, rng=rng).value

    assert again("00ff") == again("00ff") == "00ff"
    assert (seen, rng.drawn) == ([], 0)
    assert [charge.event for charge in ledger.charges] == [Pure(0.5)]
    with pytest.raises(ChargeConflictError):
        again("ff00")


# ------------------------------------------------------------------ refusals before a charge


@pytest.mark.parametrize(
    ("moves", "planned", "error"),
    [
        (ONE, Sensitivity(0.9, "l1"), UnsoundError),
        (Sensitivity(1.0, "l2"), ONE, UnsoundError),
        (Sensitivity(1.0, "linf"), ONE, UnsoundError),
        (ONE, Sensitivity(2.0, "l1", "replace-one"), RelationError),
    ],
)
def test_noise_that_was_planned_for_less_is_refused(moves, planned, error):
    account, seen, rng = MemoryAccount(), [], Watched.secure()
    query = people(moves, seen)
    with pytest.raises(error, match="Nothing was charged"):
        release(query, noise(planned=planned), ThisProcess("abc"), account, rng=rng)
    assert (account.history, seen, rng.drawn) == ((), [], 0)


@pytest.mark.parametrize(
    ("kind", "scale", "planned", "event"),
    [
        ("laplace", Fraction(2), ONE, Pure(0.5 - 1e-16)),
        ("laplace", Fraction(1), Sensitivity(120.0, "l1"), Pure(1.0)),
        # Ten such counts cost 9.75 at delta 0.01, and 8.37 by this event.
        ("laplace", Fraction(1), ONE, Laplace(1.0)),
        ("laplace", Fraction(120), Sensitivity(120.0, "l1"), Laplace(1.0)),
        ("laplace", Fraction(1), ONE, Gaussian(1.0)),
        ("laplace", Fraction(1), ONE, ZeroConcentrated(100.0)),
        ("laplace", Fraction(1), Sensitivity(1.0, "l2"), Pure(1.0)),
        ("laplace", Fraction(1), Sensitivity(1.0, "linf"), Pure(1.0)),
        ("laplace", Fraction(0), ONE, Pure(100.0)),
        ("gaussian", Fraction(4), Sensitivity(1.0), ZeroConcentrated(0.125 - 1e-16)),
        ("gaussian", Fraction(4), Sensitivity(2.0), ZeroConcentrated(0.125)),
        ("gaussian", Fraction(4), Sensitivity(1.0), Gaussian(2.0)),
        ("gaussian", Fraction(4), Sensitivity(1.0, "linf"), ZeroConcentrated(0.125)),
    ],
)
def test_an_event_that_costs_less_than_the_noise_is_refused(kind, scale, planned, event):
    with pytest.raises(UnsoundError):
        IntegerNoise(kind, scale, planned, event, "noise")


@pytest.mark.parametrize(
    ("kind", "scale", "planned", "event"),
    [
        ("laplace", Fraction(2), ONE, Pure(0.5)),
        ("laplace", Fraction(120), Sensitivity(120.0, "l1"), Laplace(1.0 - 1e-4)),
        ("gaussian", Fraction(4), Sensitivity(1.0), ZeroConcentrated(0.125)),
        ("gaussian", Fraction(4), ONE, ZeroConcentrated(0.125)),
    ],
)
def test_an_event_that_covers_the_noise_is_taken(kind, scale, planned, event):
    assert IntegerNoise(kind, scale, planned, event, "noise").event == event


@pytest.mark.parametrize(
    "exact", [2.5, np.float64(2.0), np.array([2.5, 1.0]), np.array([1.5], object), "three", 1 + 2j]
)
def test_integer_noise_refuses_numbers_whose_digits_it_cannot_hide(exact):
    query = Query.of(lambda held: held, ONE, "a sum")
    with pytest.raises(UnsoundError, match="integers"):
        release(query, noise(), ThisProcess(exact), MemoryAccount())


def test_integer_noise_keeps_large_unsigned_integers_exact():
    exact = np.array([2**63 + 1], np.uint64)
    query = Query.of(lambda held: held, ONE, "a sum")
    found = release(query, noise(30.0), ThisProcess(exact), MemoryAccount(), rng=1)
    # Noise of scale 1/30 is 0 but for a probability of 2e-13; a float would have lost the 1.
    assert found.value.tolist() == [2**63 + 1]


def test_a_bound_on_the_largest_entry_is_no_bound_for_gaussian_noise():
    # A hundred entries that move by 1 each are a vector that moves by 10.
    with pytest.raises(UnsoundError, match="l2 norm"):
        GaussianNoise(1.0, Sensitivity(1.0, "linf"), "Gaussian noise")


@pytest.mark.parametrize(
    ("grid", "units", "planned"),
    [(0.3, 100, ONE), (-0.5, 100, ONE), (0.5, 100, Sensitivity(1.0, "linf"))],
)
def test_a_grid_on_which_rounding_is_not_exact_is_refused(grid, units, planned):
    inner = noise(1.0, Sensitivity(units, "l1"))
    with pytest.raises(UnsoundError):
        GridNoise(grid, inner, planned)


def test_rounding_to_a_grid_is_part_of_what_its_noise_must_hide():
    # Of three numbers on a grid of 1/2, one unit moves 2 steps, and rounding one step each.
    query = Query.of(lambda held: held, ONE, "three means")
    for units, enough in ((4.9, False), (5, True)):
        fine = GridNoise(0.5, noise(1.0, Sensitivity(units, "l1")), ONE)
        account = MemoryAccount()
        if enough:
            release(query, fine, ThisProcess(np.zeros(3)), account)
        else:
            with pytest.raises(UnsoundError, match="grid"):
                release(query, fine, ThisProcess(np.zeros(3)), account)


@pytest.mark.parametrize("way", [ExponentialChoice, PermuteAndFlip])
def test_no_choice_is_monotonic_under_replacement(way):
    # Counts (2, 1) and (1, 2): each coin moves by epsilon in the other direction, 2 epsilon in all.
    with pytest.raises(ValueError, match="monotonic"):
        way(1.0, Sensitivity(1.0, "linf", "replace-one"), monotonic=True)


def test_more_groups_than_the_noise_knows_are_refused():
    query = Query.of(len, [ONE, ONE], "two groups")
    with pytest.raises(UnsoundError, match="planned"):
        release(query, noise(), ThisProcess("abc"), MemoryAccount())


def test_sensitivities_of_two_relations_are_no_query():
    with pytest.raises(RelationError, match="different relations"):
        Query.of(len, [ONE, Sensitivity(1.0, "l1", "replace-one")], "mixed")


def test_what_cannot_be_stated_costs_nothing():
    account, seen = MemoryAccount(), []
    gaussian = GaussianNoise(1.0, Sensitivity(1.0), "Gaussian noise")
    query = people(Sensitivity(1.0), seen)
    with pytest.raises(UnsoundError, match="finite epsilon"):
        release(query, gaussian, ThisProcess("abc"), account, delta=0.0)
    told = replace(query, assumptions=("NOT SOUND: a test",))
    with pytest.raises(UnsoundError, match="NOT SOUND"):
        release(told, gaussian, ThisProcess("abc"), account, delta=1e-6)
    assert (account.history, seen) == ((), [])


# ------------------------------------------------------------------ the ledger


def test_a_refused_budget_measures_nothing_draws_no_noise_and_charges_nothing(tmp_path):
    with Ledger.create(tmp_path / "l", epsilon=0.4) as ledger:
        for rng in (Watched.secure(), 3):
            seen = []
            account = LedgerAccount(ledger, ONE.relation, "one record")
            with pytest.raises(BudgetExceededError):
                release(people(seen=seen), noise(), ThisProcess("abc"), account, rng=rng)
            assert (seen, ledger.charges) == ([], ())
            if isinstance(rng, Watched):
                assert rng.drawn == 0


def test_the_ledger_adds_up_and_refuses_the_first_that_does_not_fit(tmp_path):
    with Ledger.create(tmp_path / "l", epsilon=1.2) as ledger:
        account = LedgerAccount(ledger, ONE.relation, "one record")
        for _ in range(2):
            release(people(), noise(), ThisProcess("abc"), account)
        with pytest.raises(BudgetExceededError):
            release(people(), noise(), ThisProcess("abc"), account)
        assert ledger.spent() == 1.0
        assert [charge.note for charge in ledger.charges] == ["number of people"] * 2


def test_a_ledger_of_other_neighbours_or_another_unit_is_refused(tmp_path):
    with (
        Ledger.create(tmp_path / "l", relation="replace-one") as replaced,
        Ledger.create(tmp_path / "m", unit="one patient") as patients,
    ):
        for ledger in (replaced, patients):
            with pytest.raises(RelationError, match="cannot mix"):
                LedgerAccount(ledger, ONE.relation, "one record")


def test_a_path_becomes_a_ledger_that_is_closed_afterwards(tmp_path):
    for _ in range(2):
        with open_account(tmp_path / "new", relation=ONE.relation) as account:
            release(people(), noise(), ThisProcess("abc"), account)
    with Ledger.open(tmp_path / "new") as ledger:
        assert ledger.spent() == 1.0


def test_a_concentrated_release_asks_for_a_ledger_that_can_add_it_up(tmp_path):
    wide = IntegerNoise("gaussian", Fraction(5), ONE, ZeroConcentrated(0.1), "Gaussian noise")
    for name in ("pld", "rdp"):
        with open_account(
            tmp_path / name, relation=ONE.relation, delta=1e-6, accountant=name
        ) as account:
            if name == "rdp":
                release(people(), wide, ThisProcess("a"), account, delta=1e-6)
            else:
                with pytest.raises(LedgerError, match="accountant='rdp'"):
                    release(people(), wide, ThisProcess("a"), account, delta=1e-6)
    with Ledger.open(tmp_path / "pld") as ledger:
        assert ledger.charges == ()


KILLED = """
import os, sys
from fractions import Fraction
from noisewise.privacy import Pure, Sensitivity
from noisewise.release import IntegerNoise, Query, ThisProcess, open_account, release

one = Sensitivity(1.0, "l1")
def die(records):
    os._exit(9)
query = Query.of(die, one, "number of people")
noise = IntegerNoise("laplace", Fraction(2), one, Pure(0.5), "noise")
with open_account(sys.argv[1], relation=one.relation) as account:
    release(query, noise, ThisProcess("abc"), account)
"""


def test_a_death_between_charge_and_value_leaves_the_charge(tmp_path):
    path = tmp_path / "l"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False)
    assert done.returncode == 9
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(0.5),)


# ------------------------------------------------------------------ seeded noise


def test_a_seeded_release_is_free_again_and_its_noise_serves_nothing_else(tmp_path):
    path = tmp_path / "l"

    def ask(records, seed=7, query=None):
        with open_account(path, relation=ONE.relation) as account:
            return release(query or people(), noise(), ThisProcess(records), account, rng=seed)

    first = ask("abc")
    assert ask("abc").value == first.value
    with Ledger.open(path) as ledger:
        assert len(ledger.charges) == 1
    with pytest.raises(LedgerError, match="exact difference"):
        ask("abcd")
    shifted = Query.of(lambda records: len(records) + 5, ONE, "another question")
    with pytest.raises(LedgerError, match="exact difference"):
        ask("abc", query=shifted)
    ask("abcd", seed=8)
    with Ledger.open(path) as ledger:
        assert len(ledger.charges) == 2


def test_one_seeded_generator_serves_several_releases(tmp_path):
    rng = Randomness.seeded(7)
    with open_account(tmp_path / "l", relation=ONE.relation) as account:
        for records in ("abc", "abcd", "abc"):
            release(people(), noise(), ThisProcess(records), account, rng=rng)
    with Ledger.open(tmp_path / "l") as ledger:
        assert len(ledger.charges) == 3


def test_places_differ_wherever_numbers_do():
    rng = Randomness.seeded(7)
    places = [rng.place]
    rng.bytes(1)
    places.append(rng.place)
    places += [child.place for child in rng.spawn(2)]
    places += [Randomness.seeded(8).place, Randomness.seeded(b"7").place]
    assert len(set(places)) == len(places)
    assert rng.place == places[1]  # what was spawned took nothing of it
    assert Randomness.seeded(7).place == places[0]
    with pytest.raises(RuntimeError, match="never come again"):
        _ = Randomness.secure().place


# ------------------------------------------------------------------ envelopes


def test_an_envelope_is_charged_whole_and_first_and_holds_no_more():
    account = MemoryAccount()
    envelope = Envelope(account, 1.0, Randomness.secure())
    first = release(people(), noise(0.25), ThisProcess("abc"), envelope)
    assert account.history == (Pure(1.0),)
    second = release(people(), noise(0.75), ThisProcess("abc"), envelope)
    assert account.history == (Pure(1.0),)
    assert second.statement.epsilon == 1.0
    assert "then number of people" in second.statement.mechanism
    assert first.statement.epsilon == 0.25
    with pytest.raises(BudgetExceededError, match="set aside"):
        release(people(), noise(2.0**-40), ThisProcess("abc"), envelope)


def test_an_envelope_takes_pure_releases_only():
    gaussian = GaussianNoise(1.0, Sensitivity(1.0), "Gaussian noise")
    query = people(Sensitivity(1.0))
    envelope = Envelope(MemoryAccount(), 5.0, Randomness.secure())
    with pytest.raises(BudgetExceededError):
        release(query, gaussian, ThisProcess("abc"), envelope, delta=1e-6)


def test_seeded_noise_in_an_envelope_serves_once(tmp_path):
    def look(seed):
        rng = Randomness.seeded(seed)
        with open_account(tmp_path / "l", relation=ONE.relation) as account:
            envelope = Envelope(account, 1.0, rng)
            return release(people(), noise(0.25), ThisProcess("abc"), envelope, rng=rng)

    look(3)
    with pytest.raises(LedgerError, match="exact difference"):
        look(3)
    look(4)
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.spent() == 2.0


def test_a_result_that_was_changed_promises_nothing():
    class Pair(NamedTuple):
        x: float
        y: float

    class Point(StatedTuple, Pair):
        pass

    found = release(people(), noise(), ThisProcess("abc"), MemoryAccount())
    point = Point.stated((1.0, 2.0), found.promise.state)
    assert point.statement() == found.statement
    with pytest.raises(UnsoundError, match="changed"):
        point._replace(x=3.0).statement()
