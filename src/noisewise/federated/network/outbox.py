"""A contribution on its way: written down before anything is sent, so that a killed party goes on.

The shares are made once and stored, then sent, and when all servers have confirmed, the shares
are deleted and a receipt stays. A party that is killed and started again sends the *same*
shares, which the servers recognise; making new ones could leave the servers with halves of
different attempts.

Whoever has all shares of a contribution can read the records, so the folder is as secret as the
data itself: only its owner may read it, and it is emptied as soon as possible.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.federated.domain import Records
from noisewise.federated.network.errors import NetworkError
from noisewise.federated.network.manifest import Manifest
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.study import Study
from noisewise.federated.protected import canonical
from noisewise.files import private_folder, replace_file, sync_folder, write_anew
from noisewise.privacy import Randomness

__all__ = ["PIECE_SIZE", "Outbox", "digest_of"]

#: Bytes of a piece; servers take requests of 2 MiB by default.
PIECE_SIZE = 1 << 20


@dataclass(frozen=True)
class Outbox:
    """The folder of one party's contribution to one round."""

    folder: Path
    study: Study
    party: str

    @classmethod
    def of(cls, state: Path, study: Study, party: str) -> Outbox:
        """Return the outbox of this round, which need not exist."""
        return cls(state / f"{study.name}-{study.round}-{study.fingerprint[:12]}", study, party)

    @property
    def _ready(self) -> Path:
        return self.folder / "sending"

    @property
    def _receipt(self) -> Path:
        return self.folder / "receipt.json"

    def receipt(self) -> dict[str, Any] | None:
        """Return the receipt, if the contribution was delivered."""
        if not self._receipt.exists():
            return None
        receipt: dict[str, Any] = json.loads(self._receipt.read_text("utf-8"))
        return receipt

    def manifest(self) -> Manifest | None:
        """Return the manifest of a contribution that was prepared and not yet delivered."""
        path = self._ready / "manifest.json"
        return Manifest.decode(path.read_bytes()) if path.exists() else None

    def share(self, server: str) -> bytes:
        """Return a server's share."""
        return (self._ready / f"{server}.share").read_bytes()

    def prepare(self, records: Records) -> Manifest:
        """Make the shares, or return those that were made before from the same records.

        Raises
        ------
        NetworkError
            If a contribution of other records is on its way.
        """
        source = digest_of(records)
        found = self.manifest()
        if found is not None:
            if (self._ready / "source").read_text("utf-8") != source:
                raise NetworkError(
                    "a contribution of other records was prepared for this round and may have been "
                    "sent in part. Send it on with the same data, or give it up with --replace."
                )
            return found
        records = self.study.protects.bounded(records, Randomness.secure())
        route, count = route_of(self.study), self._count(records)
        shares = route.make(records)
        names = [server.name for server in self.study.servers]
        by_server = dict(zip(names, shares, strict=True))
        manifest = Manifest.of(
            study=self.study.fingerprint,
            party=self.party,
            records=count,
            common=route.check(0, shares[0], count),
            shares=by_server,
            piece_size=PIECE_SIZE,
        )
        making = self.folder / "preparing"
        self.own()
        if making.exists():  # a killed attempt, of which nothing was sent
            shutil.rmtree(making)
        making.mkdir(mode=0o700)
        for name, data in by_server.items():
            write_anew(making / f"{name}.share", data)
        write_anew(making / "source", source.encode())
        write_anew(making / "manifest.json", manifest.encoded)
        sync_folder(making)
        os.rename(making, self._ready)
        sync_folder(self.folder)
        return manifest

    def deliver(self, manifest: Manifest) -> dict[str, Any]:
        """Write the receipt and delete the shares."""
        sizes = {name: share.size for name, share in sorted(manifest.shares.items())}
        receipt = self.acknowledge(manifest.identifier, sizes)
        self.empty()
        return receipt

    def acknowledge(self, identifier: str, sizes: dict[str, int]) -> dict[str, Any]:
        """Write the receipt: what was sent to whom."""
        receipt = {
            "contribution": identifier,
            "party": self.party,
            "study": self.study.name,
            "round": self.study.round,
            "servers": sorted(sizes),
            "bytes": sizes,
        }
        self.own()
        replace_file(self._receipt, json.dumps(receipt, indent=2).encode())
        return receipt

    def own(self) -> None:
        """Make the folder, and let nobody else into it or the one around it."""
        private_folder(self.folder.parent)
        private_folder(self.folder)

    def empty(self) -> None:
        """Delete the shares."""
        if self._ready.exists():
            # Without its manifest a half-deleted folder is no contribution.
            (self._ready / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(self._ready)

    def forget(self) -> None:
        """Delete shares and receipt."""
        self.empty()
        self._receipt.unlink(missing_ok=True)

    def _count(self, records: Records) -> int | None:
        """Return the number of records where it is public or visible from the share anyway."""
        public = self.study.relation.count_is_public or self.study.route == "functions"
        return len(records) if public else None


def digest_of(records: Records) -> str:
    """Return the SHA-256 of records in any order, to know them again: a query has none."""
    if records.codes is not None:
        records = canonical(records)
        state = hashlib.sha256(np.ascontiguousarray(records.codes, "<i8").tobytes())
        state.update(np.ascontiguousarray(records.values, "<f8").tobytes())
        if records.positive is not None:
            state.update(np.packbits(records.positive).tobytes())
        return state.hexdigest()
    values, positive = records.values, records.positive
    order = np.lexsort((values,) if positive is None else (values, positive))
    state = hashlib.sha256(np.ascontiguousarray(values[order], "<f8").tobytes())
    if positive is not None:
        state.update(np.packbits(positive[order]).tobytes())
    return state.hexdigest()
