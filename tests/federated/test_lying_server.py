"""A server that lies about who dropped out, and helpers among the parties, against masked sums.

The server tells different parties different lists of survivors, hands every party whatever
signatures it has (its helpers sign anything), and puts the revealed shares together. What it must
not get: both secrets of a party, or the sum of fewer honest parties than epsilon counts on.
"""

import copy
import itertools
import random

import numpy as np
import pytest

from noisewise.federated.masking import (
    AggregationError,
    Confirmation,
    MaskingClient,
    MaskingServer,
    Session,
    make_roll,
)
from noisewise.federated.masking.server import unmask
from noisewise.federated.masking.session import agree, from_limbs, mask_of
from noisewise.federated.sharing import shamir
from noisewise.federated.sharing.additive import as_signed
from noisewise.privacy.randomness import Randomness

NAME = bytes(range(16))
SIZE = 4


class LyingServer:
    """All parties up to their masked vectors; the last `helpers` of them obey the server.

    Parameters
    ----------
    gullible : bool
        Whether parties believe any signature, as they did when there were none: it shows that the
        attacks below work if nothing stands against them.
    """

    def __init__(self, parties, threshold, helpers, *, gullible=False, allowed=None, attempt=0):
        self.session = Session(NAME, parties, threshold, SIZE, allowed or 0)
        self.threshold, self.helpers = threshold, helpers
        self.signs, roll = make_roll(range(1, parties + 1), Randomness.seeded(5))
        believed = (lambda *_: True) if gullible else roll
        self.gullible = gullible
        self.clients = {
            n: MaskingClient(n, self.session, n + 100 * attempt, sign=self.signs[n], roll=believed)
            for n in range(1, parties + 1)
        }
        rng = np.random.default_rng(0)
        self.data = {n: rng.integers(0, 1000, SIZE) for n in self.clients}
        server = MaskingServer(self.session, roll)
        for client in self.clients.values():
            server.take_advertisement(client.advertise())
        self.advertised = {m.sender: m for m in server.advertisements()}
        for n, client in self.clients.items():
            server.take_shares(n, client.share(self.advertised.values()))
        self.masked = {n: c.mask(server.inbox(n), self.data[n]) for n, c in self.clients.items()}
        self.honest = [n for n in self.clients if n <= parties - helpers]
        self.bad = [n for n in self.clients if n not in self.honest]

    def attack(self, lists, replayed=()):
        """Tell each honest party its list; return the secrets that can be put together.

        Parameters
        ----------
        lists : dict
        replayed : sequence of (list, confirmations)
            Of an earlier attempt, handed to whoever is told that list.

        Returns
        -------
        seeds, keys : dict
            From a party's number to its secret.
        """
        clients = {n: copy.copy(self.clients[n]) for n in self.honest}
        signed = {}
        for n in self.honest:
            try:
                message = clients[n].confirm(lists[n])
            except AggregationError:
                continue
            signed.setdefault(frozenset(lists[n]), []).append(message)
        shares = {"seeds": {}, "keys": {}}
        for n in self.honest:
            listed = frozenset(lists[n])
            messages = list(signed.get(listed, []))
            fresh = {message.sender for message in messages}
            for known, old in replayed:
                if known == listed:
                    messages += [message for message in old if message.sender not in fresh]
            said = self.session.survivors(listed, self.session.keys(self.advertised.values()))
            messages += [Confirmation(b, self.signs[b](said)) for b in self.bad if b in listed]
            if self.gullible:
                messages = [Confirmation(m, bytes(64)) for m in listed]
            try:
                revealed = clients[n].reveal(messages)
            except AggregationError:
                continue
            for kind in shares:
                for owner, share in getattr(revealed, kind).items():
                    shares[kind].setdefault(owner, {})[n] = share
        for b in self.bad:  # helpers give both kinds of shares of everybody
            for owner, (key, seed) in self.clients[b]._shares.items():
                shares["keys"].setdefault(owner, {})[b] = key
                shares["seeds"].setdefault(owner, {})[b] = seed
        return tuple(
            {
                owner: from_limbs(shamir.combine(found, self.threshold))
                for owner, found in shares[kind].items()
                if len(found) >= self.threshold
            }
            for kind in ("seeds", "keys")
        )

    def opened(self, seeds, keys):
        """Return the honest parties whose vectors' sum is open: all masks of it are known."""
        stayed = [n for n in self.honest if n in seeds]
        others = [n for n in self.honest if n not in stayed]
        return stayed if stayed and all(n in keys for n in others) else []

    def vector(self, victim, seed, key):
        """Return one party's vector from both of its secrets."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.from_private_bytes(key)
        words = self.masked[victim].words - mask_of(seed, SIZE)
        for other, message in self.advertised.items():
            if other != victim:
                mask = mask_of(agree(private, message.masking, self.session, "mask"), SIZE)
                words = words - mask if victim < other else words + mask
        return as_signed(words)


def two_lists(server, victim=1):
    """Tell half of the honest that the victim stayed, and half that it dropped out."""
    everybody = list(server.clients)
    without = [n for n in everybody if n != victim]
    others = [n for n in server.honest if n != victim]
    told = dict.fromkeys(others[len(others) // 2 :], without)
    return {n: told.get(n, everybody) for n in server.honest}


def thinned(server):
    """Tell each honest party that others dropped out, so that enough shares open most keys."""
    parties, threshold = len(server.clients), server.threshold
    may_drop = parties - threshold
    needed = threshold - server.helpers
    told = {n: set(server.clients) for n in server.honest}
    for victim in reversed(server.honest):
        able = [n for n in server.honest if n != victim and parties - len(told[n]) < may_drop]
        able.sort(key=lambda n: parties - len(told[n]))
        if len(able) >= needed:
            for n in able[:needed]:
                told[n].discard(victim)
    return {n: sorted(listed) for n, listed in told.items()}


def test_without_signatures_two_helpers_of_five_open_a_victims_vector():
    server = LyingServer(5, 3, 2, gullible=True)
    seeds, keys = server.attack(two_lists(server))
    assert 1 in seeds
    assert 1 in keys
    assert server.vector(1, seeds[1], keys[1]).tolist() == server.data[1].tolist()


def test_without_signatures_a_sum_of_fewer_honest_parties_than_counted_on_is_opened():
    # 2 * 8 > 12 + 3, so nobody's two secrets can be had; but lists that differ open the sum of
    # two honest parties, and epsilon counts on the noise of 8 - 3 = 5.
    server = LyingServer(12, 8, 3, gullible=True)
    seeds, keys = server.attack(thinned(server))
    assert not set(seeds) & set(keys) & set(server.honest)
    few = server.opened(seeds, keys)
    assert 0 < len(few) < 8 - 3
    # Put together what the server has: the sum of those few is plain.
    words = sum(server.masked[n].words - mask_of(seeds[n], SIZE) for n in few)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    known = {n: X25519PrivateKey.from_private_bytes(k) for n, k in keys.items()}
    known |= {n: server.clients[n]._masking for n in server.bad}
    for n, other in itertools.product(few, server.clients):
        if other not in few:
            public = server.advertised[n].masking
            mask = mask_of(agree(known[other], public, server.session, "mask"), SIZE)
            words = words - mask if n < other else words + mask
    assert as_signed(words).tolist() == sum(server.data[n] for n in few).tolist()


def test_with_signatures_the_same_attacks_open_nothing():
    for parties, threshold, helpers in ((5, 4, 2), (12, 8, 3), (7, 5, 2), (4, 4, 3)):
        server = LyingServer(parties, threshold, helpers, allowed=helpers)
        for told in (two_lists(server), thinned(server)):
            seeds, keys = server.attack(told)
            assert not set(seeds) & set(keys) & set(server.honest)
            opened = server.opened(seeds, keys)
            assert not opened or len(opened) >= threshold - helpers


def test_signatures_of_earlier_attempts_at_the_same_round_open_nothing():
    # The server says again and again that everything was lost, and all begin anew, with new keys.
    # Each time it collects their signatures under another list, to hand them out in the end.
    now = LyingServer(12, 8, 3, allowed=3)
    told, old = thinned(now), []
    for attempt, listed in enumerate(sorted(map(tuple, told.values())), start=1):
        before = LyingServer(12, 8, 3, allowed=3, attempt=attempt)
        signers = [n for n in before.honest if n in listed]
        old.append((frozenset(listed), [before.clients[n].confirm(listed) for n in signers]))
    assert now.signs[1](b"") == before.signs[1](b"")  # the same people
    seeds, keys = now.attack(told, replayed=old)
    assert not set(seeds) & set(keys) & set(now.honest)
    assert not now.opened(seeds, keys)


def test_the_numbers_that_two_helpers_of_five_need_are_refused():
    with pytest.raises(ValueError, match="two different lists of survivors"):
        LyingServer(5, 3, 2, allowed=2)
    # Declared as a study in which nobody helps the server, it is one: that is the boundary.
    server = LyingServer(5, 3, 0)
    seeds, keys = server.attack(two_lists(server))
    assert not set(seeds) & set(keys)


@pytest.mark.parametrize(
    ("parties", "threshold", "helpers"),
    [(3, 2, 0), (4, 3, 1), (5, 4, 2), (6, 5, 3), (7, 5, 2), (8, 6, 3), (9, 7, 4)],
)
def test_whatever_lists_are_told_one_sum_of_enough_honest_parties_is_opened_or_none(
    parties, threshold, helpers
):
    server = LyingServer(parties, threshold, helpers, allowed=helpers)
    rng = random.Random(parties)
    results = set()
    for attempt in range(30):
        # Few different lists, or the server would defeat itself.
        lists = [
            sorted(rng.sample(list(server.clients), rng.randint(threshold, parties)))
            for _ in range(rng.choice((1, 1, 2, 2, 3)))
        ]
        told = {n: rng.choice(lists) for n in server.honest}
        if attempt % 2:  # each is told a list that it is in, or it would go
            told = {n: next((listed for listed in lists if n in listed), told[n]) for n in told}
        seeds, keys = server.attack(told)
        assert not set(seeds) & set(keys) & set(server.honest)
        stayed = [n for n in server.honest if n in seeds]
        opened = server.opened(seeds, keys)
        assert not opened or len(opened) >= threshold - helpers
        # Seeds are opened for one list only.
        assert not stayed or any(
            set(stayed) == set(listed) & set(server.honest) for listed in lists
        )
        results.add(bool(opened))
    assert results == {True, False}  # the search meets honest rounds and attacks


def test_too_few_forged_foreign_or_repeated_signatures_reveal_nothing():
    server = LyingServer(5, 4, 0)
    arrived = [1, 2, 3, 4]
    keys = server.session.keys(server.advertised.values())
    said = server.session.survivors(arrived, keys)
    right = [Confirmation(n, server.signs[n](said)) for n in arrived]
    other = Session(NAME[::-1], 5, 4, SIZE).survivors(arrived, keys)
    earlier = LyingServer(5, 4, 0, attempt=1).advertised.values()
    before = server.session.survivors(arrived, server.session.keys(earlier))
    for wrong in (
        right[:3],
        [*right[:3], right[0]],
        [*right[:3], Confirmation(4, bytes(64))],
        [*right[:3], Confirmation(4, server.signs[3](said))],
        [*right[:3], Confirmation(5, server.signs[5](said))],
        [*right[:3], Confirmation(4, server.signs[4](other))],
        [*right[:3], Confirmation(4, server.signs[4](before))],
        [*right[:3], Confirmation(9, bytes(64))],
    ):
        client = copy.copy(server.clients[1])
        client.confirm(arrived)
        with pytest.raises(AggregationError):
            client.reveal(wrong)
        with pytest.raises(AggregationError, match="once"):
            client.reveal(right)
    client = copy.copy(server.clients[1])
    client.confirm(arrived)
    revealed = client.reveal(right)
    assert set(revealed.seeds) == set(arrived)


def test_an_honest_server_still_gets_the_sum():
    server = LyingServer(5, 4, 0)
    arrived = [1, 2, 4, 5]
    signed = [server.clients[n].confirm(arrived) for n in arrived]
    revealed = {n: server.clients[n].reveal(signed) for n in arrived}
    words = unmask(
        server.session,
        server.advertised,
        server.clients,
        (server.masked[n] for n in arrived),
        revealed,
    )
    assert as_signed(words).tolist() == sum(server.data[n] for n in arrived).tolist()
