"""A masked round of a thousand parties at one server: ``python -m benchmarks federated_masks``.

What is measured is the processor time of the *server*: a real process, spoken to over HTTPS with
signed requests, that writes every message to its disk before it confirms it. The parties are
simulated by this process, cheaply and so that the server cannot tell: sealed shares are random
bytes (it cannot read them), masks between two parties that both stay are left out (they cancel in
the sum), and secrets are shared with polynomials of degree one (which any number of shares rebuilds
as well). Everything that the server checks is genuine, and its sum must be exact, to the bit.

One party in twenty drops out before it sends its vector, and everybody asks twice too early after
each stage. Nine in ten must stay, one in twenty may help the server. Every number of parties is
measured with all of them as neighbours and with few. Set NOISEWISE_MASKS to other numbers of
parties, for example "100,200", and NOISEWISE_NEIGHBOURS to "few" or "all" for one of the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks import table
from benchmarks.federated_load import SERVE, peak_memory, processor_seconds
from noisewise.federated.masking import Advertisement, Confirmation, MaskedVector, Revelation
from noisewise.federated.masking.neighbours import Ring
from noisewise.federated.masking.server import near
from noisewise.federated.masking.session import agree, commit, mask_of, to_limbs
from noisewise.federated.network import ClientSettings, Study
from noisewise.federated.network.identity import Signer, public_key_text
from noisewise.federated.network.masks.analyst import fetch
from noisewise.federated.network.masks.round import STAGES, MaskedRound
from noisewise.federated.network.trial import Trial, make_trial
from noisewise.federated.sharing import shamir
from noisewise.federated.sharing.additive import as_words
from noisewise.privacy.randomness import Randomness

SIZES = (250, 500, 1000)
BINS = 256
CONNECTIONS = 32
TOO_EARLY = 2
SEALED = np.dtype([("sender", "<u4"), ("receiver", "<u4"), ("sealed", "u1", (108,))])


def crowd(folder: Path, size: int, neighbours: str) -> tuple[Trial, list[Signer]]:
    """Write a trial of `size` parties with keys of their own."""
    trial = make_trial(
        folder, servers=["alpha"], parties=["placeholder", "another"], curves=["ecdf"], bins=BINS,
        route="masks", minimum_parties=2, colluding=0,
        noiseless_test=True, stage_seconds=max(20.0, 0.2 * size), patience=3600.0,
    )  # fmt: skip
    signers = [Signer(f"party-{i}", Ed25519PrivateKey.generate()) for i in range(1, size + 1)]
    lines = (f"{signer.name},{public_key_text(signer.key)}\n" for signer in signers)
    (folder / "parties.csv").write_text("".join(lines))
    path = folder / "study.toml"
    text = path.read_text()
    for old, new in (
        ('round = "1"', 'parties_file = "parties.csv"\nround = "1"'),
        ("minimum_parties = 2", f"minimum_parties = {9 * size // 10}"),
        ("colluding_parties = 0", f"colluding_parties = {size // 20}"),
        ('neighbours = "all"', f'neighbours = "{neighbours}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    start = text.index("[[parties]]")
    path.write_text(text[:start] + text[text.index("[[analysts]]") :])
    return trial, signers


class Crowd:
    """All parties of a round: what each of them says in each stage."""

    def __init__(self, study: Study, signers: list[Signer]) -> None:
        self.round = MaskedRound(study)
        self.session = self.round.session
        self.signers = dict(enumerate(signers, start=1))
        self.numbers = list(self.signers)
        self.stayed = [number for number in self.numbers if number % 20]
        self.left = [number for number in self.numbers if number % 20 == 0]
        rng = np.random.default_rng(0)
        self.values = {n: rng.integers(0, 9, self.session.size) for n in self.numbers}
        self.keys = {n: X25519PrivateKey.generate() for n in self.numbers}
        self.seeds = {n: os.urandom(32) for n in self.numbers}
        self.public = {n: key.public_key().public_bytes_raw() for n, key in self.keys.items()}
        self._split = {
            "seeds": self._share([self.seeds[n] for n in self.numbers]),
            "keys": self._share([self.keys[n].private_bytes_raw() for n in self.numbers]),
        }

    def _share(self, secrets: Iterable[bytes]) -> dict[int, np.ndarray]:
        limbs = np.stack([to_limbs(secret) for secret in secrets])
        return shamir.share(limbs, self.session.shares[0], 2, Randomness.seeded(1))

    def advertised(self, number: int) -> Advertisement:
        """Return the keys of a party; a sealing key opens nothing here."""
        sealing = hashlib.sha256(self.seeds[number]).digest()
        commitment = commit(self.seeds[number], self.session)
        return Advertisement(number, sealing, self.public[number], commitment)

    def advertisement(self, number: int) -> bytes:
        """Return the message of the first stage."""
        return self.round.seal_advertisement(self.advertised(number), self.signers[number])

    @cached_property
    def ring(self) -> Ring | None:
        """Who is whose neighbour, as everybody can tell after the first stage."""
        return self.session.ring([self.advertised(number) for number in self.numbers])

    @cached_property
    def vouched(self) -> bytes:
        """What parties sign with their vectors."""
        return b"" if self.ring is None else self.session.vouching(self.ring, self.numbers)

    def slot(self, owner: int, holder: int) -> int:
        """Return at which point a party holds shares of another's secrets."""
        return holder if self.ring is None else self.ring.of(owner).index(holder) + 1

    def shares(self, number: int) -> bytes:
        """Return random bytes that look like sealed shares."""
        others = sorted(near(self.ring, number, self.numbers) - {number})
        rows = np.zeros(len(others), SEALED)
        rows["sender"] = number
        rows["receiver"] = others
        rows["sealed"] = np.frombuffer(os.urandom(rows.size * 108), "u1").reshape(-1, 108)
        return rows.tobytes()

    def vector(self, number: int) -> bytes:
        """Return a vector under the masks that do not cancel."""
        size = self.session.size
        words = as_words(self.values[number]) + mask_of(self.seeds[number], size)
        for other in sorted(near(self.ring, number, self.left)):
            seed = agree(self.keys[number], self.public[other], self.session, "mask")
            words = words + mask_of(seed, size) if number < other else words - mask_of(seed, size)
        sign = self.round.sign(self.signers[number])
        signature = sign(self.vouched) if self.vouched else b""
        return MaskedVector(number, words, signature).to_bytes()

    def confirmation(self, number: int) -> bytes:
        """Return the signed list of survivors."""
        sign = self.round.sign(self.signers[number])
        said = self.session.survivors(self.stayed, self.vouched)
        return Confirmation(number, sign(said)).to_bytes()

    def revelation(self, number: int) -> bytes:
        """Return shares of everybody's secrets."""
        shown = {
            kind: {
                owner: self._split[kind][self.slot(owner, number)][owner - 1]
                for owner in near(self.ring, number, owners)
            }
            for kind, owners in (("seeds", self.stayed), ("keys", self.left))
        }
        return Revelation(number, shown["seeds"], shown["keys"]).to_bytes()


class Line:
    """One HTTPS connection to the server."""

    def __init__(self, trial: Trial, study: Study) -> None:
        self.trial, self.study = trial, study
        self.sent = self.received = 0
        self.reader: Any = None
        self.writer: Any = None

    async def open(self, trust: ssl.SSLContext) -> None:
        """Connect, anew if need be."""
        if self.writer is not None:
            self.writer.close()
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self.trial.ports[0], ssl=trust, server_hostname="localhost"
        )

    async def request(self, signer: Signer, method: str, stage: int, body: bytes = b"") -> bytes:
        """Send one signed request and return the answer."""
        path = f"/v1/masked/{stage}"
        credential = signer.sign(
            server="alpha", study=self.study.fingerprint, method=method, path=path, body=body,
            time=int(time.time()),
        )  # fmt: skip
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credential.header}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        data = await self.reader.readexactly(length)
        if b" 200 " not in answer[:20]:
            raise RuntimeError(data.decode())
        self.sent += len(head) + len(body)
        self.received += len(answer) + length
        return data


async def everybody(
    lines: list[Line], numbers: Iterable[int], job: Callable[[Line, int], Any]
) -> None:
    """Let every party do its part, over all connections."""
    waiting = iter(numbers)

    async def worker(line: Line) -> None:
        for number in waiting:
            await job(line, number)

    await asyncio.gather(*(worker(line) for line in lines))


async def play(people: Crowd, trial: Trial, study: Study, server: Any) -> list[tuple[str, ...]]:
    """Play the round; return rows of stage, processor time of the server, and bytes."""
    trust = ssl.create_default_context(cafile=trial.folder / "authority.crt")
    lines = [Line(trial, study) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(line.open(trust) for line in lines))
    enough = people.stayed if people.ring else people.stayed[: people.session.threshold]
    rows = []
    messages = (
        (people.advertisement, people.numbers),
        (people.shares, people.numbers),
        (people.vector, people.stayed),
        (people.confirmation, people.stayed),
        (people.revelation, enough),
    )
    for stage, (message, numbers) in enumerate(messages, start=1):
        before = processor_seconds(server)

        async def put(line: Line, number: int, stage: int = stage, say: Any = message) -> None:
            body = await asyncio.to_thread(say, number)
            await line.request(people.signers[number], "PUT", stage, body)

        async def get(line: Line, number: int, stage: int = stage) -> bool:
            answer = await line.request(people.signers[number], "GET", stage)
            return answer[4:].startswith(b'{"closed": true}')

        few = people.session.threshold - 1
        await everybody(lines, numbers[:few], put)
        if stage < len(STAGES):
            for _ in range(TOO_EARLY):
                await everybody(lines, numbers[:few], get)
        await everybody(lines, numbers[few:], put)
        if stage < len(STAGES):
            # Those who left are waited for, for stage_seconds.
            while not await get(lines[0], numbers[0]):
                await asyncio.sleep(1.0)
            await asyncio.gather(*(line.open(trust) for line in lines))  # the server hung up
            await everybody(lines, numbers, get)
        used = processor_seconds(server) - before
        rows.append((STAGES[stage - 1], f"{used:.1f}"))
    for line in lines:
        line.writer.close()
    sent, received = sum(line.sent for line in lines), sum(line.received for line in lines)
    return [*rows, ("MB sent", f"{sent / 1e6:.0f}"), ("MB received", f"{received / 1e6:.0f}")]


def measure(size: int, neighbours: str) -> tuple[float, list[tuple[str, ...]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trial, signers = crowd(folder, size, neighbours)
        study = Study.read(folder / "study.toml")
        people = Crowd(study, signers)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(trial.config("alpha"))], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()
            start = processor_seconds(server)
            rows = asyncio.run(play(people, trial, study, server))
            before = processor_seconds(server)
            settings = ClientSettings.read(trial.config("analyst"))
            found = fetch(settings, people.round.question)
            rows.insert(len(STAGES), ("unmasking", f"{processor_seconds(server) - before:.1f}"))
            total = processor_seconds(server) - start
            rows.append(("peak memory, MB", f"{peak_memory(server) / 1e6:.0f}"))
            truth = sum(people.values[n] for n in people.stayed)
            assert found.sums.tolist() == truth[:-1].tolist(), "the sum is wrong"
            assert len(found.arrived) == len(people.stayed)
            return total, rows
        finally:
            server.terminate()
            server.wait(60)


def main() -> None:
    sizes = os.environ.get("NOISEWISE_MASKS")
    chosen = SIZES if sizes is None else tuple(int(size) for size in sizes.split(","))
    ways = os.environ.get("NOISEWISE_NEIGHBOURS", "all,few").split(",")
    cases = [(size, way) for size in chosen for way in ways]
    found = {}
    for case in cases:
        found[case] = measure(*case)
        print(*case, f"{found[case][0]:.1f} s", found[case][1], file=sys.stderr, flush=True)
    names = [row[0] for row in found[cases[0]][1]]
    rows = [("all stages", *(f"{found[case][0]:.1f}" for case in cases))]
    rows.append(
        ("ms a party", *(f"{1e3 * found[case][0] / case[0]:.1f}" for case in cases)),
    )
    rows += [
        (name, *(found[case][1][place][1] for case in cases)) for place, name in enumerate(names)
    ]
    table(
        f"processor seconds of the server in a masked round, {BINS} cells, one in twenty drops out",
        ("parties, neighbours", *(f"{size}, {way}" for size, way in cases)),
        rows,
    )


if __name__ == "__main__":
    main()
