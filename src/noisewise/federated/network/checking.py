"""The analyst's part of a check: have contributions challenged once, and read both proofs.

The analyst is the one who wants a right curve, so it carries the messages: what servers publish
says nothing about records, and whoever changes it on the way changes who is left out, and no more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from noisewise.federated.network.client import Client
from noisewise.federated.network.errors import NetworkError
from noisewise.federated.network.manifest import set_digest, unframe
from noisewise.federated.network.reading import digest_in, read_json, readable
from noisewise.federated.network.routes import Route, route_of
from noisewise.federated.sharing.field import Field

__all__ = ["Verdict", "check_contributions"]


@dataclass
class Verdict:
    """Who counts, and who does not.

    Parameters
    ----------
    valid : set of str
        Identifiers of contributions that count what they may.
    false : dict
        The party of each other contribution that was checked.
    """

    valid: set[str] = field(default_factory=set)
    false: dict[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> set[str]:
        """All that were checked."""
        return self.valid | self.false.keys()


@dataclass
class _Page:
    rows: list[tuple[str, str, int | None]]
    proofs: Any
    next: int | None


async def check_contributions(client: Client, complete: Sequence[set[str]]) -> Verdict:
    """Check all contributions that every server has, each once in the whole round.

    Parameters
    ----------
    client : Client
    complete : sequence of set
        Identifiers of the complete contributions of each server.
    """
    study = client.settings.study
    route = route_of(study)
    servers = [server.name for server in study.servers]
    known = await asyncio.gather(
        *(client.ask(name, "GET", "/v1/checks", read=_challenged) for name in servers)
    )
    verdict = Verdict()
    for name in sorted(set().union(*known)):
        seeds = [mine[name] for mine in known if name in mine]
        if any(other != seeds[0] for other in seeds):
            raise NetworkError(
                "the servers were given different numbers to check some contributions with, and a "
                "second check would show their records: these contributions cannot be used in this "
                "round any more"
            )
        if len(seeds) < len(servers):  # somebody was interrupted
            await _challenge(client, servers, name, seeds[0])
        await _read(client, route, servers, name, seeds[0], verdict)
    fresh = set.intersection(*complete) - verdict.seen
    if fresh:
        name = set_digest(sorted(fresh))
        drawn = await asyncio.gather(
            *(
                client.ask(
                    server,
                    "PUT",
                    f"/v1/checks/{name}",
                    json.dumps({"excluded": sorted(own - fresh - verdict.seen)}).encode(),
                    read=lambda answer: digest_in(answer["seed"]),
                )
                for server, own in zip(servers, complete, strict=True)
            )
        )
        await _challenge(client, servers, name, drawn)
        await _read(client, route, servers, name, drawn, verdict)
    return verdict


def _challenged(answer: Any) -> dict[str, list[str]]:
    """Return the seeds of each set, whose name goes into requests to the other servers."""
    return {digest_in(name): [digest_in(seed) for seed in seeds] for name, seeds in answer.items()}


async def _challenge(client: Client, servers: list[str], name: str, seeds: list[str]) -> None:
    body = json.dumps({"seeds": seeds}).encode()
    path = f"/v1/checks/{name}/challenge"
    await asyncio.gather(*(client.request(server, "PUT", path, body) for server in servers))


async def _read(
    client: Client, route: Route, servers: list[str], name: str, seeds: list[str], verdict: Verdict
) -> None:
    parts = [bytes.fromhex(seed) for seed in seeds]
    place: int | None = 0
    while place is not None:
        path = f"/v1/checks/{name}/{place}"
        pages = [
            _page(server, answer, place)
            for server, answer in zip(
                servers,
                await asyncio.gather(
                    *(
                        client.request(server, "GET", path, seconds=client.settings.patience)
                        for server in servers
                    )
                ),
                strict=True,
            )
        ]
        place = _judge(pages, lambda found: route.passes(found, parts, name), verdict)


def _page(server: str, answer: bytes, place: int) -> _Page:
    with readable(server):
        head, data = unframe(answer)
        fields = read_json(head)
        rows = [(str(a), str(b), None if c is None else int(c)) for a, b, c in fields["rows"]]
        proofs = np.frombuffer(data, "<u8").astype(np.uint64)
        further = None if fields["next"] is None else int(fields["next"])
        counts = [count or 0 for _, _, count in rows]
        if min(counts, default=0) < 0 or sum(counts) != len(proofs):
            raise ValueError("not as many numbers as were announced")
        if further is not None and further <= place:
            raise ValueError("the next page is none")
    return _Page(rows, proofs, further)


def _judge(
    pages: list[_Page], passes: Callable[[list[Field]], bool], verdict: Verdict
) -> int | None:
    """Decide about the contributions of one page; return where the next one begins."""
    size = min(len(page.rows) for page in pages)  # one that was withdrawn makes a page longer
    starts = [0] * len(pages)
    for rows in zip(*(page.rows[:size] for page in pages), strict=True):
        parts = [
            page.proofs[start : start + (count or 0)]
            for page, start, (_, _, count) in zip(pages, starts, rows, strict=True)
        ]
        starts = [start + len(part) for start, part in zip(starts, parts, strict=True)]
        if any(count is None for _, _, count in rows):
            continue  # withdrawn
        if len(set(rows)) > 1:
            raise NetworkError("the servers speak of different contributions; nothing is shown")
        name, party, _ = rows[0]
        try:
            # A party without records sends no keys, of which there is nothing to prove.
            good = passes(parts) if parts[0].size else True
        except ValueError as error:
            raise NetworkError(f"a server sent proofs that are none: {error}") from error
        if good:
            verdict.valid.add(name)
        else:
            verdict.false[name] = party
    return min(pages, key=lambda page: len(page.rows)).next
