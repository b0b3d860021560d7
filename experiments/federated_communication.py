"""Communication of function sharing and secure aggregation (Figure 6.6.6): bytes really sent.

Run with ``python experiments/federated_communication.py``. All messages of a curve are made and
their bytes counted; lines are formulas, and the script stops if a count differs from them.
Writes docs/images/federated_communication.png and prints a table.

The thesis says that function sharing costs O(n + m|B|) against O(n|B|). With a key of K bytes for
each record and 8 bytes for each number, it is cheaper when n K + 8 m |B| < 8 n |B|, that is, for
|B| > n K / (8 (n - m)), about K/8 thresholds whatever n is. The key is not constant, though: it
has 16 bytes for each binary digit of the domain; and with more than two servers it is as long
as the histogram, so function sharing has no advantage there but that owners can leave.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from noisewise.federated import Domain, EcdfQuestion, FunctionSharing
from noisewise.federated.fss import generate_point, key_bytes
from noisewise.federated.fss.server import KeyStore, noisy_share, paired
from noisewise.federated.masking import MaskingClient, MaskingServer, Session, make_roll
from noisewise.federated.sharing import additive
from noisewise.privacy.randomness import Randomness

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WORD = 8
BANK = 45_211  # records of the Bank data


def question(bins: int) -> EcdfQuestion:
    """Independent noise on each count: as many sums as thresholds."""
    return EcdfQuestion(Domain(0.0, 1.0, bins), 1.0, relation="add-remove", mechanism="histogram")


# ------------------------------------------------------------------------ measured


def function_sharing_bytes(records: int, bins: int) -> int:
    """Keys to two servers, one roster from server to server, one noisy vector from each."""
    asked, sharing = question(bins), FunctionSharing()
    domain, sent = asked.domain, 0
    stores = [KeyStore(domain, server, "figure") for server in (0, 1)]
    cells = np.random.default_rng(0).integers(0, bins, records)
    for start in range(0, records, 10_000):
        part = cells[start : start + 10_000]
        for store, keys in zip(
            stores, generate_point(part, domain.levels, stores[0].tag), strict=True
        ):
            message = keys.to_bytes()
            sent += len(message)
            store.accept(message)
    rosters = [store.roster() for store in stores]
    sent += sum(len(name) + len(digest) for name, digest in rosters[0].items())
    assert len(paired(*rosters)) == records
    for _ in stores:
        # The length of an answer does not depend on its content; evaluating all keys of the
        # Bank data at all cells would take minutes and change nothing here.
        share = noisy_share(asked, np.zeros(bins, np.uint64), sharing.noise, Randomness.secure())
        sent += share.nbytes
    return sent


def vector_sharing_bytes(records: int, bins: int, servers: int) -> int:
    """Seeds and one masked vector from each owner, one noisy vector from each server."""
    asked, sharing = question(bins), FunctionSharing(servers=servers)
    sent = 0
    for _ in range(records):
        one = np.zeros(bins, np.int64)
        one[0] = 1
        seeds, masked = additive.share_compactly(one, servers)
        sent += sum(len(seed) for seed in seeds) + masked.nbytes
    for _ in range(servers):
        share = noisy_share(asked, np.zeros(bins, np.uint64), sharing.noise, Randomness.secure())
        sent += share.nbytes
    return sent


def masked_bytes(parties: int, bins: int) -> int:
    """All messages of a masked aggregation, to the server and from it."""
    session = Session(bytes(16), parties, 2 * parties // 3 + 1, bins)
    signs, roll = make_roll(range(1, parties + 1), Randomness.secure())
    clients = {n: MaskingClient(n, session, sign=sign, roll=roll) for n, sign in signs.items()}
    server, sent = MaskingServer(session, roll), 0
    for client in clients.values():
        message = client.advertise()
        sent += len(message.to_bytes())
        server.take_advertisement(message)
    public = server.advertisements()
    sent += parties * sum(len(message.to_bytes()) for message in public)
    for n, client in clients.items():
        sealed = client.share(public)
        sent += sum(len(message.to_bytes()) for message in sealed)
        server.take_shares(n, sealed)
    for n, client in clients.items():
        inbox = server.inbox(n)
        sent += sum(len(message.to_bytes()) for message in inbox)
        masked = client.mask(inbox, np.zeros(bins, np.int64))
        sent += len(masked.to_bytes())
        server.take_vector(masked)
    arrived = server.arrived()
    for client in clients.values():
        signed = client.confirm(arrived)
        sent += 4 * len(arrived) + len(signed.to_bytes())
        server.take_confirmation(signed)
    confirmed = server.confirmations()
    for client in clients.values():
        revealed = client.reveal(confirmed)
        sent += sum(len(signed.to_bytes()) for signed in confirmed) + len(revealed.to_bytes())
        server.take_revelation(revealed)
    server.total()
    return sent


# ------------------------------------------------------------------------ formulas


def function_sharing_formula(records: float, bins: int) -> float:
    levels = question(bins).domain.levels
    return records * (2 * key_bytes("point", levels) + 32) + 2 * WORD * bins


def vector_sharing_formula(records: float, bins: int, servers: int) -> float:
    return records * (32 * (servers - 1) + WORD * bins) + servers * WORD * bins


def masked_formula(parties: float, bins: int) -> float:
    n = parties
    keys = 100 * n + 100 * n * n
    shares = 2 * 116 * n * (n - 1)
    vectors = n * (4 + WORD * bins)
    confirmations = 68 * n + 68 * n * n
    return keys + shares + vectors + confirmations + n * (4 * n + 12 + 44 * n)


def crossover(records: int) -> int:
    """Smallest power of two of thresholds at which keys cost less than vectors alone."""
    bins = 2
    while function_sharing_formula(records, bins) >= records * WORD * bins:
        bins *= 2
    return bins


def exact_crossover(records: int) -> float:
    """Return n K / (8 (n - 2)), with the key length at that number of thresholds."""
    bins = crossover(records)
    per_record = function_sharing_formula(1, bins) - 2 * WORD * bins
    return records * per_record / (WORD * (records - 2))


def check(measured: int, formula: float) -> int:
    assert measured == formula, (measured, formula)
    return measured


def main() -> None:
    sizes = [2**k for k in range(1, 16)]
    some = [2**k for k in (2, 4, 6, 8, 10, 12, 15)]
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.3), layout="constrained")
    masked_colour, key_colour, vector_colour = "tab:blue", "tab:red", "tab:orange"

    panel, parties = axes[0], 30
    panel.plot(sizes, [masked_formula(parties, b) for b in sizes], color=masked_colour)
    panel.plot(sizes, [function_sharing_formula(parties, b) for b in sizes], color=key_colour)
    dots = [check(masked_bytes(parties, b), masked_formula(parties, b)) for b in some]
    panel.plot(some, dots, "o", color=masked_colour, label="secure aggregation, one round")
    dots = [
        check(function_sharing_bytes(parties, b), function_sharing_formula(parties, b))
        for b in some
    ]
    panel.plot(some, dots, "s", color=key_colour, label="function sharing, two servers")
    panel.set(title=f"{parties} parties with one record each", xlabel="thresholds |B|")

    panel = axes[1]
    vectors = [BANK * WORD * b for b in sizes]
    panel.plot(sizes, vectors, color=masked_colour, label="secure aggregation, vectors alone")
    panel.plot(sizes, [function_sharing_formula(BANK, b) for b in sizes], color=key_colour)
    dots = [
        check(function_sharing_bytes(BANK, b), function_sharing_formula(BANK, b))
        for b in (2**4, 2**8, 2**12, 2**15)
    ]
    panel.plot((2**4, 2**8, 2**12, 2**15), dots, "s", color=key_colour, label="function sharing")
    place = exact_crossover(BANK)
    panel.axvline(place, color="0.6", linestyle="--", linewidth=1)
    panel.annotate(
        f"n + m|B| = n|B|\nat |B| = {place:.0f}",
        (place, 2e9),
        (6, 0),
        textcoords="offset points",
        fontsize=9,
    )
    panel.set(title=f"Bank data, {BANK:,} owners", xlabel="thresholds |B|")

    panel, owners, bins = axes[2], 1000, 2**10
    servers = list(range(2, 17))
    panel.axhline(
        owners * WORD * bins, color=masked_colour, label="secure aggregation, vectors alone"
    )
    lines = [vector_sharing_formula(owners, bins, m) for m in servers]
    panel.plot(servers, lines, color=vector_colour)
    some_servers = [2, 3, 4, 8, 16]
    dots = [
        check(vector_sharing_bytes(owners, bins, m), vector_sharing_formula(owners, bins, m))
        for m in some_servers
    ]
    panel.plot(some_servers, dots, "^", color=vector_colour, label="seeds and one masked vector")
    keys = check(function_sharing_bytes(owners, bins), function_sharing_formula(owners, bins))
    panel.plot([2], [keys], "s", color=key_colour, label="keys (two servers only)")
    panel.set(title=f"{owners} owners, |B| = {bins}", xlabel="servers m", ylim=(2e5, 3e7))

    for panel in axes:
        panel.set_yscale("log")
        panel.set_ylabel("bytes sent in all")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    for panel in axes[:2]:
        panel.set_xscale("log", base=2)
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "federated_communication.png", dpi=120)

    print("every count of bytes equals its formula")
    print(f"{'|B|':>8} {'keys, n=45211':>16} {'vectors, n=45211':>18}  ratio")
    for b in (2**4, 2**6, 2**7, 2**10, 2**15):
        ours, theirs = function_sharing_formula(BANK, b), BANK * WORD * b
        print(f"{b:8} {ours:16,.0f} {theirs:18,.0f}  {theirs / ours:6.1f}")
    print(f"cross-over at |B| = {place:.0f} thresholds")


if __name__ == "__main__":
    main()
