"""Few neighbours instead of all: numbers that suffice, and servers that try to cut somebody off."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.federated import MaskedAggregator, ecdf
from noisewise.federated.masked import run_round
from noisewise.federated.masking import (
    AggregationError,
    MaskingClient,
    MaskingServer,
    Session,
    make_roll,
)
from noisewise.federated.masking.neighbours import (
    FAILURE_BITS,
    TRIES_BITS,
    Few,
    Ring,
    plan_neighbours,
)
from noisewise.federated.sharing.additive import as_signed
from noisewise.privacy.randomness import Randomness

NAME = bytes(range(16))

# ------------------------------------------------------------------------------- numbers


def at_least(parties: int, marked: int, reach: int, least: int) -> Fraction:
    """The chance that `reach` places hold `least` marked parties, in whole numbers."""
    ways = sum(
        math.comb(marked, found) * math.comb(parties - marked, reach - found)
        for found in range(least, min(marked, reach) + 1)
    )
    return Fraction(ways, math.comb(parties, reach))


@pytest.mark.parametrize(
    ("parties", "threshold", "colluding"),
    [(40, 38, 1), (60, 54, 3), (100, 90, 5), (300, 201, 30), (1000, 900, 50), (1000, 667, 100)],
)
def test_the_numbers_keep_both_failures_below_their_bounds(
    parties: int, threshold: int, colluding: int
) -> None:
    few = plan_neighbours(parties, threshold, colluding)
    assert few.neighbours < parties - 1
    helpers = parties * at_least(parties, colluding, few.reach, few.least)
    assert helpers <= Fraction(1, 2 ** (FAILURE_BITS + TRIES_BITS))
    lost = at_least(parties, parties - threshold, few.reach, few.reach - few.least + 1)
    assert 2 * parties * lost <= Fraction(1, 2**FAILURE_BITS)
    # One neighbour less on each side is too few, whatever `least` is.
    planned, reach = max(colluding, math.ceil(parties / 20)), few.reach - 1
    assert not any(
        parties * at_least(parties, planned, reach, least)
        <= Fraction(1, 2 ** (FAILURE_BITS + TRIES_BITS))
        and 2 * parties * at_least(parties, parties - threshold, reach, reach - least + 1)
        <= Fraction(1, 2**FAILURE_BITS)
        for least in range(1, reach + 1)
    )


def test_neighbours_grow_with_the_logarithm_of_the_parties() -> None:
    found = [plan_neighbours(n, 9 * n // 10, n // 20).neighbours for n in (1000, 10_000, 60_000)]
    assert found[2] < 1.5 * found[0]


def test_where_few_would_be_all_they_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="few neighbours are not safe enough"):
        plan_neighbours(20, 14, 5)
    with pytest.raises(ValueError, match="few neighbours are not safe enough"):
        ecdf([np.array([0.1])] * 5, MaskedAggregator(neighbours="few"), bounds=(0, 1), epsilon=1.0)


# ------------------------------------------------------------------------------- the ring


def made(order: list[int], reach: int, least: int) -> Ring:
    return Ring(b"", tuple(order), Few(reach, least))


def test_neighbours_are_those_within_reach_and_of_both_sides() -> None:
    ring = made([3, 1, 5, 2, 7, 4, 6, 8, 9], reach=2, least=1)
    assert ring.of(5) == [1, 2, 3, 7]
    assert all(a in ring.of(b) for b in range(1, 10) for a in ring.of(b) if b in ring.of(a))
    assert ring.held([1, 2, 9])[4] == 2


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_a_server_says_about_drop_outs_honest_survivors_stay_in_one_piece(data) -> None:
    """The server sees the ring, places are as bad as allowed, and it may keep any list."""
    size = data.draw(st.integers(12, 40))
    reach = data.draw(st.integers(2, (size - 1) // 2))
    least = data.draw(st.integers(1, reach))
    helpers: set[int] = set()
    for place in data.draw(st.lists(st.integers(0, size - 1), max_size=size)):
        more = helpers | {place}
        windows = [sum((start + k) % size in more for k in range(reach)) for start in range(size)]
        if max(windows) < least:
            helpers = more
    kept = set(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    ring = made(list(range(1, size + 1)), reach, least)
    if ring.lonely(place + 1 for place in kept):
        return  # nobody signs this list
    honest = sorted(kept - helpers)
    if not honest:
        return
    seen, todo = {honest[0]}, [honest[0]]
    while todo:
        here = todo.pop()
        for other in honest:
            apart = min((here - other) % size, (other - here) % size)
            if other not in seen and apart <= reach:
                seen.add(other)
                todo.append(other)
    assert seen == set(honest)


def test_without_the_check_a_server_cuts_a_victim_off() -> None:
    """The list that it would tell leaves the victim no honest neighbour; the check sees it."""
    ring = made(list(range(1, 31)), reach=4, least=2)
    dropped = {11, 12, 13, 14, 16, 17, 18, 19}
    kept = [n for n in range(1, 31) if n not in dropped]
    assert not set(ring.of(15)) & set(kept)
    assert 15 in ring.lonely(kept)
    assert ring.lonely(range(1, 31)) == []


def test_an_order_depends_on_every_advertisement() -> None:
    session = Session(NAME, 40, 38, 3, 1, sparse=True)
    signs, roll = make_roll(range(1, 41), Randomness.seeded(1))

    def advertised(seed: int) -> list:
        return [
            MaskingClient(n, session, 1000 * seed + n, sign=signs[n], roll=roll).advertise()
            for n in range(1, 41)
        ]

    first = advertised(1)
    ring = session.ring(first)
    assert ring is session.ring(reversed(first))
    assert sorted(ring.order) == list(range(1, 41))
    assert session.ring([*first[:-1], advertised(2)[-1]]).order != ring.order
    assert session.ring(first[:-1]).order != ring.order


# ------------------------------------------------------------------------------- rounds

PARTIES, THRESHOLD = 40, 38


def session_of(size: int = 3) -> Session:
    return Session(NAME, PARTIES, THRESHOLD, size, 1, sparse=True)


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "confirm", "reveal"])
def test_the_sum_is_exact_whoever_drops_out_and_when(stage: str) -> None:
    generator = np.random.default_rng(0)
    vectors = {n: generator.integers(-50, 50, 3) for n in range(1, PARTIES + 1)}
    absent = {7: stage, 23: stage}
    total, arrived = run_round(session_of(), vectors, Randomness.seeded(2), absent)
    assert as_signed(total).tolist() == sum(vectors[n] for n in arrived).tolist()
    assert len(arrived) == (PARTIES if stage in ("confirm", "reveal") else THRESHOLD)


def test_a_curve_of_many_parties_states_neighbours_and_probability() -> None:
    phones = [np.array([value]) for value in np.random.default_rng(0).random(PARTIES)]
    how = MaskedAggregator(threshold=THRESHOLD, colluding=1, neighbours="few")
    curve = ecdf(phones, how, bounds=(0, 1), bins=8, epsilon=1.0, seed=1)
    said = "\n".join(curve.statement().assumptions)
    assert "each with 10 neighbours" in said
    assert "2^-40" in said


class Stopped:
    """All parties after they have shared keys, and a server that lies from there on."""

    def __init__(self) -> None:
        self.session = session_of()
        signs, roll = make_roll(range(1, PARTIES + 1), Randomness.seeded(5))
        self.signs = signs
        self.clients = {
            n: MaskingClient(n, self.session, n, sign=signs[n], roll=roll)
            for n in range(1, PARTIES + 1)
        }
        self.server = MaskingServer(self.session, roll)
        for client in self.clients.values():
            self.server.take_advertisement(client.advertise())
        self.advertised = self.server.advertisements()
        self.ring = self.session.ring(self.advertised)

    def share(self) -> None:
        for n, client in self.clients.items():
            self.server.take_shares(n, client.share(self.advertised))

    def mask(self, number: int, shared: list[int], without: frozenset[int] = frozenset()):
        inbox = [m for m in self.server.inbox(number) if m.sender not in without]
        return self.clients[number].mask(inbox, np.arange(3), shared)


@pytest.fixture
def stopped() -> Stopped:
    found = Stopped()
    found.share()
    return found


EVERYBODY = list(range(1, PARTIES + 1))


def test_a_party_sends_nothing_if_a_neighbours_shares_are_withheld(stopped: Stopped) -> None:
    """Otherwise it would mask with fewer, and those few could be made to drop out."""
    neighbour = stopped.ring.of(1)[0]
    with pytest.raises(AggregationError, match="keeps parties apart"):
        stopped.mask(1, EVERYBODY, frozenset({neighbour}))
    with pytest.raises(AggregationError, match="keeps parties apart"):
        stopped.mask(2, [n for n in EVERYBODY if n != stopped.ring.of(2)[0]])
    with pytest.raises(AggregationError, match="not this party"):
        stopped.mask(3, EVERYBODY[3:])
    with pytest.raises(AggregationError, match="38 are needed"):
        stopped.mask(4, [4, *stopped.ring.of(4)])


def test_a_party_that_was_told_of_others_is_noticed_by_its_neighbours(stopped: Stopped) -> None:
    """Its masks may not be those that theirs cancel: no honest one signs a list with it."""
    victim = 1
    far = next(n for n in EVERYBODY if n != victim and n not in stopped.ring.of(victim))
    other = stopped.mask(victim, [n for n in EVERYBODY if n != far])  # a list without one far away
    assert other.signature
    neighbour = stopped.ring.of(victim)[0]
    vouchers = {}
    for n in stopped.ring.of(neighbour):
        vouchers[n] = other.signature if n == victim else stopped.mask(n, EVERYBODY).signature
    stopped.mask(neighbour, EVERYBODY)
    with pytest.raises(AggregationError, match=f"party {victim} did not sign"):
        stopped.clients[neighbour].confirm(EVERYBODY, vouchers)


def test_nobody_signs_a_list_that_leaves_somebody_alone(stopped: Stopped) -> None:
    place = stopped.ring.order.index(1)
    few = stopped.ring.few
    gone = {
        stopped.ring.order[(place + step) % PARTIES] for step in range(1, few.reach - few.least + 2)
    }
    assert len(gone) > PARTIES - THRESHOLD  # by these numbers, too few stay anyway
    kept = [n for n in EVERYBODY if n not in gone]
    assert 1 in stopped.ring.lonely(kept)
    speaker = kept[-1]
    stopped.mask(speaker, EVERYBODY)
    with pytest.raises(AggregationError):
        stopped.clients[speaker].confirm(kept, {})


def test_missing_vouchers_and_strangers_are_refused(stopped: Stopped) -> None:
    stopped.mask(1, EVERYBODY)
    with pytest.raises(AggregationError, match="did not sign"):
        stopped.clients[1].confirm(EVERYBODY, {})
    stopped.mask(2, EVERYBODY)
    with pytest.raises(AggregationError, match="never shared keys"):
        stopped.clients[2].confirm([*EVERYBODY, 41], {})


def test_parties_that_saw_other_keys_stand_on_other_rings_and_do_not_confirm_each_other() -> None:
    """A server that leaves a party's keys out for some cannot bring them together again."""
    found = Stopped()
    short = found.advertised[:-1]
    assert found.session.ring(short).order != found.ring.order
    one, two = found.clients[1], found.clients[2]
    one.share(found.advertised)
    two.share(short)
    said = found.session.vouching(found.ring, EVERYBODY)
    assert said != found.session.vouching(found.session.ring(short), EVERYBODY)


def test_equal_keys_are_refused_because_their_masks_would_cancel() -> None:
    found = Stopped()
    copied = list(found.advertised)
    first = copied[0]
    copied[1] = type(first)(2, first.sealing, first.masking, first.commitment)
    with pytest.raises(AggregationError, match="advertised twice"):
        found.clients[3].share(copied)


def test_wrong_shares_of_a_neighbour_end_the_round_and_never_give_a_wrong_sum(
    stopped: Stopped,
) -> None:
    server, session = stopped.server, stopped.session
    for n in EVERYBODY:
        server.take_vector(stopped.mask(n, server.shared()))
    for n in EVERYBODY:
        server.take_confirmation(stopped.clients[n].confirm(server.arrived(), server.vouchers(n)))
    signed = server.confirmations()
    for n in EVERYBODY:
        shown = stopped.clients[n].reveal(signed)
        if n == stopped.ring.of(5)[0]:
            shown.seeds[5][0] = (int(shown.seeds[5][0]) + 1) % (2**61 - 1)
        server.take_revelation(shown)
    with pytest.raises(AggregationError, match=r"party 5|fit together"):
        server.total()
    assert session.shares == (10, 5)
