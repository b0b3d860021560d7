"""A party's part: make shares of its own records, send one to each server, go offline.

With route "masks" there is one server, and the party stays until the round is over
(:mod:`noisewise.federated.network.masks.party`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from noisewise.federated.domain import Records
from noisewise.federated.network.client import Client
from noisewise.federated.network.errors import ConfigurationError, NetworkError, RefusedError
from noisewise.federated.network.manifest import Manifest, frame
from noisewise.federated.network.masks.party import take_part
from noisewise.federated.network.outbox import Outbox
from noisewise.federated.network.settings import ClientSettings

__all__ = ["contribute", "withdraw"]

#: How often a server may ask for pieces that it was sent, for example after a restart.
_TIMES = 8


def contribute(
    settings: ClientSettings,
    records: Records,
    *,
    replace: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Contribute records to the round, once; return the receipt.

    Call it again after a crash or a failure: what was begun is completed, and what was done is
    not done again.

    Parameters
    ----------
    settings : ClientSettings
    records : Records
        This party's own records; they do not leave this process.
    replace : bool
        Withdraw an earlier contribution to this round first. Servers refuse that once a
        release has used it.
    progress : callable, optional
        Told what happens, in words.

    Raises
    ------
    NetworkError
        If a server refuses or cannot be reached.
    """
    study, party = settings.study, settings.signer.name
    if party not in study.party_keys:
        raise ConfigurationError(f"{party!r} is not a party of study {study.name!r}")
    check_records(settings, records)
    outbox = Outbox.of(settings.state, study, party)
    tell = progress or (lambda _: None)
    if study.route == "masks":
        if replace:
            raise NetworkError(
                "a masked sum cannot be taken back: the others' masks count on it. Take part in "
                "the next round."
            )
        return take_part(settings, records, outbox, tell)
    if replace:
        withdraw(settings)
    done = outbox.receipt()
    if done is not None:
        outbox.empty()
        tell("this party has contributed to this round before; nothing was sent")
        return done
    before = outbox.manifest() is not None
    tell("going on with the shares that were made before" if before else "making shares")
    manifest = outbox.prepare(records)
    asyncio.run(_send(settings, outbox, manifest, tell))
    return outbox.deliver(manifest)


def withdraw(settings: ClientSettings) -> None:
    """Take back this party's contribution to the round, if no release has used it."""
    outbox = Outbox.of(settings.state, settings.study, settings.signer.name)
    manifest, receipt = outbox.manifest(), outbox.receipt()
    identifiers = {manifest.identifier} if manifest is not None else set()
    if receipt is not None:
        identifiers.add(str(receipt["contribution"]))
    asyncio.run(_withdraw(settings, identifiers))
    outbox.forget()


def check_records(settings: ClientSettings, records: Records) -> None:
    """Refuse records that the study cannot use, before anything is made of them."""
    study = settings.study
    if study.labelled and records.positive is None:
        raise ValueError(f"study {study.name!r} needs labels: say which column holds them")
    if study.most_records is not None and len(records) > study.most_records:
        raise ValueError(
            f"study {study.name!r} takes at most {study.most_records} records of a party, got "
            f"{len(records)}"
        )
    unit = study.protects
    if unit.kind == "identifier" and records.codes is None:
        raise ValueError(
            f"study {study.name!r} protects {unit.name}: say which column holds its identifiers "
            "(noisewise contribute --unit COLUMN)"
        )
    if unit.kind != "identifier" and records.codes is not None:
        raise ValueError(
            f"study {study.name!r} protects {unit.name}, whoever the rows belong to: leave out "
            "--unit"
        )
    if len(records) == 0 and study.relation.count_is_public:
        raise ValueError("there are no records to contribute")
    if "hosmer-lemeshow" in study.curves and np.any((records.values < 0) | (records.values > 1)):
        raise ValueError("predictions must be probabilities in [0, 1]")


async def _send(
    settings: ClientSettings, outbox: Outbox, manifest: Manifest, tell: Callable[[str], None]
) -> None:
    async with Client(settings) as client:
        servers = [server.name for server in settings.study.servers]
        results = await asyncio.gather(
            *(_send_share(client, outbox, manifest, server, tell) for server in servers),
            return_exceptions=True,
        )
    failures = [error for error in results if isinstance(error, BaseException)]
    for error in failures:
        if not isinstance(error, NetworkError):
            raise error
    if failures:
        reached = len(servers) - len(failures)
        kind = failures[0]
        message = (
            f"{failures[0]} ({reached} of {len(servers)} servers have their share; until all of "
            "them do, nobody counts this contribution.)"
        )
        if isinstance(kind, RefusedError):
            raise RefusedError(message, kind.status, kind.code)
        raise type(kind)(message) if isinstance(kind, NetworkError) else kind


async def _send_share(
    client: Client, outbox: Outbox, manifest: Manifest, server: str, tell: Callable[[str], None]
) -> None:
    share = manifest.shares[server]
    data = await asyncio.to_thread(outbox.share, server)
    path = f"/v1/contributions/{manifest.identifier}"

    def piece(number: int) -> bytes:
        start = number * share.piece_size
        return data[start : start + share.piece_size]

    def missing(answer: Any) -> list[int]:
        """Return the pieces that a server still wants: none if it has all of them."""
        if answer["complete"] is True:
            return []
        wanted = list(answer["missing"])
        if not set() < set(wanted) <= set(range(len(share.digests))):
            raise ValueError("no pieces of this share")
        return wanted

    wanted = await client.ask(server, "PUT", path, frame(manifest.encoded, piece(0)), read=missing)
    for _ in range(_TIMES):
        left = wanted
        for number in wanted:
            left = await client.ask(server, "PUT", f"{path}/{number}", piece(number), read=missing)
        wanted = left
    if wanted:
        raise NetworkError(
            f"server {server!r} asks again and again for pieces that it was sent. Tell its "
            "administrator, and try again later."
        )
    tell(f"server {server} has its share ({share.size:,} bytes)")


async def _withdraw(settings: ClientSettings, identifiers: set[str]) -> None:
    done: list[str] = []
    async with Client(settings) as client:
        for server in settings.study.servers:
            for identifier in identifiers:
                try:
                    await client.request(server.name, "DELETE", f"/v1/contributions/{identifier}")
                except NetworkError as error:
                    if not done:
                        raise
                    raise NetworkError(
                        f"server {server.name!r}: {error} (Withdrawn at {', '.join(done)}, so no "
                        "further release can have it; run this again for the rest.)"
                    ) from error
            done.append(server.name)
