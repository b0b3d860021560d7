"""A party's part in a masked round: five messages, each of which it can repeat to the bit.

Everything that a party decides by chance (keys, seed, noise) grows from one root of 32 bytes from
the operating system. The journal holds that root and what the server has said so far, and a party
that was killed replays it: the same messages come out, to the bit, so no message is ever sent in
two versions and no sum gets two different noises. What the server says is taken once: should it
name another list of survivors after a restart, the first one counts, which is noted before it is
signed; signing two lists could lay a party's vector open. The others' signatures are not noted,
because they only say whether that list may be acted on.

The journal is as secret as the data. It is deleted when the receipt is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.federated.domain import Records
from noisewise.federated.masking import AggregationError, MaskingClient
from noisewise.federated.network.client import Client
from noisewise.federated.network.errors import NetworkError
from noisewise.federated.network.manifest import unframe
from noisewise.federated.network.masks.round import STAGES, MaskedRound
from noisewise.federated.network.masks.stages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    REVEAL,
    SHARE,
    listed_first,
    split_sealed,
    split_signed,
)
from noisewise.federated.network.outbox import Outbox, digest_of
from noisewise.federated.network.reading import read_json, readable
from noisewise.federated.network.settings import ClientSettings
from noisewise.files import replace_file
from noisewise.privacy import Randomness

__all__ = ["Journal", "take_part"]


@dataclass(frozen=True)
class Journal:
    """What a party must not forget while a round lasts.

    Parameters
    ----------
    path : Path
        Of the file.
    """

    path: Path

    def open(self, source: str) -> bytes:
        """Return the root of everything drawn by chance, made now or before for these records.

        Raises
        ------
        NetworkError
            If the round was begun with other records.
        """
        if not self.path.exists():
            replace_file(self.path, _encode({"root": os.urandom(32).hex(), "source": source}))
        content = self._content()
        if content["source"] != source:
            raise NetworkError(
                "this party began the round with other records, and their masked sum may have "
                "been sent. Go on with the same data, or take part in the next round."
            )
        return bytes.fromhex(content["root"])

    def heard(self, stage: int) -> bytes | None:
        """Return what the server said after a stage, if that was noted."""
        text = self._content().get(STAGES[stage - 1])
        return None if text is None else bytes.fromhex(text)

    def note(self, stage: int, data: bytes) -> None:
        """Note what the server said after a stage, once."""
        content = self._content()
        if content.setdefault(STAGES[stage - 1], data.hex()) != data.hex():
            raise NetworkError("the server has said something else about this stage before")
        replace_file(self.path, _encode(content))

    def forget(self) -> None:
        """Delete the journal."""
        self.path.unlink(missing_ok=True)
        self.path.with_name(self.path.name + ".new").unlink(missing_ok=True)

    def _content(self) -> dict[str, str]:
        content: dict[str, str] = read_json(self.path.read_bytes())
        return content


def _encode(content: dict[str, str]) -> bytes:
    return json.dumps(content).encode()


def take_part(
    settings: ClientSettings, records: Records, outbox: Outbox, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Take part in a masked round to its end; return the receipt.

    Call it again after a crash or a failure: it goes on where it was.
    """
    journal = Journal(outbox.folder / "masking.json")
    done = outbox.receipt()
    if done is not None:
        journal.forget()
        tell("this party has contributed to this round before; nothing was sent")
        return done
    outbox.own()
    root = journal.open(digest_of(records))
    try:
        sent = asyncio.run(_Party(settings, journal, root, tell).run(records))
    except AggregationError as error:
        raise NetworkError(str(error)) from error
    (server,) = settings.study.servers
    identifier = hashlib.sha256(b"noisewise/masked-contribution/2/" + root).hexdigest()
    receipt = outbox.acknowledge(identifier, {server.name: sent})
    journal.forget()
    return receipt


class _Party:
    def __init__(
        self,
        settings: ClientSettings,
        journal: Journal,
        root: bytes,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._root = root
        self._tell = tell
        self._round = MaskedRound(settings.study)
        (server,) = settings.study.servers
        self._server = server.name
        self._sent = 0

    async def run(self, records: Records) -> int:
        """Pass all stages; return the bytes of all messages."""
        signer = self._settings.signer
        party = MaskingClient(
            self._round.number_of(signer.name),
            self._round.session,
            Randomness.seeded(b"masking/" + self._root),
            sign=self._round.sign(signer),
            roll=self._round.roll,
        )
        vector = self._round.vector(records, Randomness.seeded(b"noise/" + self._root))
        async with Client(self._settings) as client:
            own = self._round.seal_advertisement(party.advertise(), signer)
            everybody = await self._pass(client, ADVERTISE, own)
            advertised = self._round.open_advertisements(everybody)
            sealed = b"".join(message.to_bytes() for message in party.share(advertised))
            shared, inbox = listed_first(await self._pass(client, SHARE, sealed))
            masked = party.mask(split_sealed(inbox), vector, shared).to_bytes()
            arrived, signed = listed_first(await self._pass(client, MASK, masked))
            vouchers = {found.sender: found.signature for found in split_signed(signed)}
            await self._send(client, CONFIRM, party.confirm(arrived, vouchers).to_bytes())
            signed = await self._follow(client, CONFIRM)
            revealed = party.reveal(split_signed(signed)).to_bytes()
            await self._send(client, REVEAL, revealed)
        return self._sent

    async def _pass(self, client: Client, stage: int, message: bytes) -> bytes:
        """Send the message of a stage and return what the server says when it is closed."""
        heard = self._journal.heard(stage)
        if heard is not None:
            self._sent += len(message)
            return heard
        await self._send(client, stage, message)
        said = await self._follow(client, stage)
        await asyncio.to_thread(self._journal.note, stage, said)
        return said

    async def _send(self, client: Client, stage: int, message: bytes) -> None:
        await client.request(self._server, "PUT", f"/v1/masked/{stage}", message)
        self._sent += len(message)
        self._tell(f"stage {stage} of {REVEAL}, '{STAGES[stage - 1]}': {len(message):,} bytes sent")

    async def _follow(self, client: Client, stage: int) -> bytes:
        deadline = time.monotonic() + self._settings.wait
        # Many who wait ask less often each, so that waiting costs the server the same.
        pause, longest, told = 0.1, max(5.0, self._round.session.parties / 50), False
        while True:
            answer = await client.request(self._server, "GET", f"/v1/masked/{stage}")
            with readable(self._server):
                head, data = unframe(answer)
                fields = read_json(head)
                if fields["closed"]:
                    return data
                missing = ", ".join(list(fields["missing"])[:10])
            if not told:
                self._tell(f"waiting for {missing}")
                told = True
            if time.monotonic() + pause > deadline:
                raise NetworkError(
                    f"still waiting for {missing} after {self._settings.wait:g} seconds in the "
                    f"stage '{STAGES[stage - 1]}'. Nothing is lost: run this again to go on."
                )
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, longest)
