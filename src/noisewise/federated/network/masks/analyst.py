"""The analyst's part in a masked round: fetch the noisy sums, and know what was added to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.network.client import Client
from noisewise.federated.network.errors import NetworkError
from noisewise.federated.network.manifest import unframe
from noisewise.federated.network.masks.round import RELEASE, MaskedRound
from noisewise.federated.network.reading import read_json, readable
from noisewise.federated.network.settings import ClientSettings
from noisewise.federated.questions import Question

__all__ = ["Unmasked", "fetch"]


@dataclass(frozen=True, eq=False)
class Unmasked:
    """What the server handed out: noisy sums, of whom, and how many records if public."""

    sums: IntArray
    arrived: tuple[str, ...]
    records: int | None


def fetch(settings: ClientSettings, question: Question) -> Unmasked:
    """Return the noisy sums of a round; the same ones every time, at no further cost.

    Raises
    ------
    NetworkError
        If the round is not finished, is about another question, or its answer does not fit.
    """
    round_ = MaskedRound(settings.study)
    round_.check_question(question)
    (server,) = settings.study.servers

    async def ask() -> bytes:
        async with Client(settings) as client:
            # The server may have to rebuild every party's mask first.
            return await client.request(
                server.name, "GET", "/v1/masked/result", seconds=settings.patience
            )

    answer = asyncio.run(ask())
    with readable(server.name):
        head, data = unframe(answer)
        fields = dict(read_json(head))
        sums = np.frombuffer(data, "<i8").astype(np.int64)
        arrived = tuple(str(name) for name in fields["arrived"])
        records = fields["records"]
    expected = {
        "server": server.name,
        "name": RELEASE,
        "request": round_.measurement.digest,
        "map": round_.measurement.fingerprint,
    }
    wrong = [key for key, value in expected.items() if fields.get(key) != value]
    known = {member.name for member in settings.study.parties}
    public = settings.study.relation.count_is_public
    fits = (
        sums.size == round_.session.size - 1
        and set(arrived) <= known
        and len(set(arrived)) == len(arrived) >= settings.study.minimum_parties
        and (type(records) is int and records >= 0 if public else records is None)
    )
    if wrong or not fits:
        raise NetworkError(
            f"server {server.name!r} answered something else than was asked ({', '.join(wrong)}). "
            "Compare the versions of noisewise."
        )
    return Unmasked(sums, arrived, records)
