"""A hundred thousand contributions to two servers: ``python -m benchmarks federated_load``.

Each contribution is one record of one party with a signing key of its own: a pair of point keys,
a manifest, one signed HTTPS request to each server, answered after it is on the disk. Printed:
contributions a second, the servers' peak memory, bytes against the formula, and the time from
question to curve. The study adds no noise, so that the collected curve can be compared with the
true one, which must be equal to the bit. Set NOISEWISE_LOAD to another number of contributions, and
NOISEWISE_CHECKED=1 for keys that prove that they count one record each.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import table
from noisewise.federated import EcdfQuestion, Records
from noisewise.federated.fss import generate_checked, generate_point, key_bytes
from noisewise.federated.fss.wire import round_tag
from noisewise.federated.network import ClientSettings, RemoteAggregator, Study
from noisewise.federated.network.identity import Signer, public_key_text
from noisewise.federated.network.manifest import Manifest, frame
from noisewise.federated.network.measurement import curve_domain
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.trial import Trial, make_trial
from noisewise.privacy.randomness import resolve

BINS = 1024
CONNECTIONS = 128
CHECKED = os.environ.get("NOISEWISE_CHECKED") == "1"
SERVE = (
    "import sys; from pathlib import Path; from noisewise.federated.network import *; "
    "run_server(ServerSettings.read(Path(sys.argv[1])), lambda a: print('ready', flush=True))"
)


def crowd(folder: Path, size: int) -> tuple[Trial, list[Signer]]:
    """Write a trial with `size` parties, whose public keys are in a file of their own."""
    trial = make_trial(
        folder, parties=["placeholder"], curves=["ecdf"], bins=BINS, noiseless_test=True,
        checked=CHECKED, patience=3600.0,
    )  # fmt: skip
    signers = [Signer(f"phone-{i}", Ed25519PrivateKey.generate()) for i in range(size)]
    lines = (f"{signer.name},{public_key_text(signer.key)}\n" for signer in signers)
    (folder / "phones.csv").write_text("".join(lines))
    path = folder / "study.toml"
    text = path.read_text().replace('round = "1"', 'parties_file = "phones.csv"\nround = "1"')
    start = text.index("[[parties]]")
    path.write_text(text[:start] + text[text.index("[[analysts]]") :])
    return trial, signers


class Load:
    """Requests of all parties to both servers, and the bytes they took."""

    def __init__(self, trial: Trial, signers: list[Signer], cells: np.ndarray) -> None:
        self.trial = trial
        self.study = Study.read(trial.folder / "study.toml")
        domain = curve_domain(self.study, "ecdf")
        tag = round_tag(self.study.fingerprint, domain.digest)
        self.signers = signers
        self.route = route_of(self.study)
        began = time.perf_counter()
        self.keys = (generate_checked if CHECKED else generate_point)(cells, domain.levels, tag)
        self.generation = time.perf_counter() - began
        self.payload = self.manifests = self.sent = self.received = 0
        self.waiting: Iterator[int] = iter(range(len(signers)))

    def request(self, number: int, server: int, manifest: Manifest, share: bytes) -> bytes:
        """Return the bytes of one signed request."""
        body = frame(manifest.encoded, share)
        path = f"/v1/contributions/{manifest.identifier}"
        credential = self.signers[number].sign(
            server=self.trial.servers[server], study=self.study.fingerprint, method="PUT",
            path=path, body=body, time=int(time.time()),
        )  # fmt: skip
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credential.header}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.payload += len(share)
        self.manifests += len(manifest.encoded)
        return head.encode() + body

    def manifest(self, number: int, shares: list[bytes]) -> Manifest:
        """Describe a contribution."""
        return Manifest.of(
            study=self.study.fingerprint,
            party=self.signers[number].name,
            records=1,
            common=self.route.check(0, shares[0], 1),
            shares=dict(zip(self.trial.servers, shares, strict=True)),
            piece_size=1 << 20,
        )

    async def worker(self, trust: ssl.SSLContext) -> None:
        """Send contribution after contribution on two connections that stay open."""
        lines = [
            await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
            for port in self.trial.ports
        ]
        for number in self.waiting:
            shares = [keys.table[number : number + 1].tobytes() for keys in self.keys]
            manifest = self.manifest(number, shares)
            for server, (_, writer) in enumerate(lines):
                data = self.request(number, server, manifest, shares[server])
                self.sent += len(data)
                writer.write(data)
            for reader, _ in lines:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                answer = await reader.readexactly(length)
                self.received += len(head) + length
                if b'"complete": true' not in answer:
                    raise RuntimeError(answer.decode())
        for _, writer in lines:
            writer.close()

    async def run(self, connections: int = CONNECTIONS) -> None:
        """Send everything that waits."""
        trust = ssl.create_default_context(cafile=self.trial.folder / "authority.crt")
        await asyncio.gather(*(self.worker(trust) for _ in range(connections)))


def peak_memory(process: Any) -> int:
    """Return the largest resident size of a process so far, in bytes (Linux)."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def processor_seconds(process: Any) -> float:
    """Return the processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    size = int(os.environ.get("NOISEWISE_LOAD", "100000"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trial, signers = crowd(folder, size)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", SERVE, str(trial.config(server))], stdout=subprocess.PIPE
            )
            for server in trial.servers
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            measure(trial, signers, processes, size)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)


def measure(trial: Trial, signers: list[Signer], processes: list[Any], size: int) -> None:
    values = np.random.default_rng(0).beta(2, 5, size)
    study = Study.read(trial.folder / "study.toml")
    domain = curve_domain(study, "ecdf")
    load = Load(trial, signers, domain.place(Records(values)))
    resting = [peak_memory(process) for process in processes]
    busy = [processor_seconds(process) for process in processes]
    began, own = time.perf_counter(), time.process_time()
    asyncio.run(load.run())
    seconds, own = time.perf_counter() - began, time.process_time() - own
    busy = [processor_seconds(p) - before for p, before in zip(processes, busy, strict=True)]
    loaded = [peak_memory(process) for process in processes]
    settings = ClientSettings.read(trial.config("analyst"))
    question = EcdfQuestion(domain, 1.0, relation=study.relation)
    began = time.perf_counter()
    sums = RemoteAggregator(settings).ask(question, (), resolve(None))
    collecting = time.perf_counter() - began
    exact = np.array_equal(sums.noisy, question.statistic(Records(values)))
    assert exact, "the collected curve is wrong"
    length = key_bytes("checked" if CHECKED else "point", domain.levels)
    disk = sum(path.stat().st_size for path in trial.folder.glob("*-state/*") if path.is_file())
    table(
        f"{size:,} {'checked ' if CHECKED else ''}contributions of one record to two servers, "
        f"{BINS} cells",
        ("what", "measured"),
        [
            ("contributions a second", f"{size / seconds:,.0f}"),
            ("requests a second (both servers)", f"{2 * size / seconds:,.0f}"),
            ("seconds to take them in", f"{seconds:.1f}"),
            ("processor time of a server, a contribution", f"{max(busy) / size * 1e3:.2f} ms"),
            ("processor time of all senders, a contribution", f"{own / size * 1e3:.2f} ms"),
            ("seconds to make all keys", f"{load.generation:.2f}"),
            ("seconds from question to curve", f"{collecting:.1f}"),
            ("the curve is exact", "yes"),
            ("peak memory of a server, empty", f"{max(resting) / 1e6:.0f} MB"),
            ("peak memory of a server, loaded", f"{max(loaded) / 1e6:.0f} MB"),
            ("peak memory after collecting", f"{max(map(peak_memory, processes)) / 1e6:.0f} MB"),
            ("on both disks", f"{disk / 1e6:.0f} MB"),
        ],
    )
    vectors = size * (8 * domain.cells + 32)
    table(
        "bytes",
        ("part", "total", "a contribution"),
        [
            row(
                "keys, formula 2 n (46 + 16 L + ceil((L-1)/8)), 32 more if checked",
                2 * size * formula(domain),
                size,
            ),
            row("keys, sent", load.payload, size),
            row("manifests", load.manifests, size),
            row("HTTP and signatures", load.sent - load.payload - load.manifests, size),
            row("answers", load.received, size),
            row("secret-shared vectors instead, n (8 |B| + 32)", vectors, size),
        ],
    )
    assert load.payload == 2 * size * length == 2 * size * formula(domain)


def formula(domain: Any) -> int:
    """Return the bytes of a point key: header, identifier, root; L - 1 corrections; last value."""
    levels = domain.levels
    return 30 + 16 + 16 * (levels - 1) + -(-(levels - 1) // 8) + 16 + (32 if CHECKED else 0)


def row(name: str, total: int, size: int) -> tuple[str, str, str]:
    return name, f"{total:,}", f"{total / size:,.0f}"


if __name__ == "__main__":
    main()
