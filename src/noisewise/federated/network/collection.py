"""The analyst's part: agree with the servers on a set of contributions, add up noisy shares.

Shares of a contribution add up to its histogram only if *all* servers count it. So the analyst
reads from every server which contributions are complete, takes those that all of them have,
reserves exactly that set, named by its SHA-256, at every server, and only when all of them have
reserved it asks for the release: nothing is spent anywhere before. Answers that are not about the
same question, set, map and noise are refused. A release that some server has already made is
completed with the set that it was made for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from noisewise.federated.domain import Records
from noisewise.federated.network.checking import Verdict, check_contributions
from noisewise.federated.network.client import Client
from noisewise.federated.network.errors import ConfigurationError, NetworkError, RefusedError
from noisewise.federated.network.manifest import set_digest, unframe
from noisewise.federated.network.masks.analyst import fetch
from noisewise.federated.network.masks.round import RELEASE, MaskedRound
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.reading import read_json, readable
from noisewise.federated.network.settings import ClientSettings
from noisewise.federated.network.threat import threat_of
from noisewise.federated.noise import SharedNoise
from noisewise.federated.protected import Protected
from noisewise.federated.questions import Question
from noisewise.federated.results import Sums
from noisewise.federated.sharing import additive
from noisewise.federated.sharing.field import PRIME, from_field, total
from noisewise.federated.threat import ThreatModel
from noisewise.privacy import Randomness
from noisewise.release import Agreed

__all__ = ["RemoteAggregator", "Taken", "progress_of"]

_ATTEMPTS = 8


@dataclass(frozen=True)
class Taken:
    """What one release was made of: its name, and how many contributions of how many parties.

    `excluded` are parties whose contributions did not prove to be valid.
    """

    name: str
    contributions: int
    parties: int
    records: int | None
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemoteAggregator:
    """The servers of a study, as an aggregator for the curves of :mod:`noisewise.federated`.

    The records stay where they are: wherever a curve wants the parties' records, give None.

    Parameters
    ----------
    settings : ClientSettings
        The analyst's.
    name : str
        Names the releases. The same name and question give the same answer again, at no cost.
        By default the question's own digest; choose a name to ask the same question anew,
        for example when more parties have contributed.
    parties : int, optional
        How many must have contributed; by default all.
    told : callable, optional
        Called with a :class:`Taken` for each release.
    """

    settings: ClientSettings
    name: str = ""
    parties: int | None = None
    told: Callable[[Taken], None] | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the records are at the parties, so that none are given here."""
        return True

    @property
    def noiseless(self) -> bool:
        """Whether the study is a test without noise."""
        return self.settings.study.noiseless_test

    @property
    def noise(self) -> SharedNoise:
        """Every server adds a full share; with route "masks", every party a part."""
        study = self.settings.study
        if study.route == "masks":
            return MaskedRound(study).aggregator.noise
        return SharedNoise(contributors=len(study.servers), honest=1)

    @property
    def protects(self) -> Protected:
        """The unit, as the study says."""
        return self.settings.study.protects

    @property
    def threat(self) -> ThreatModel:
        """Who must be trusted for what."""
        study = self.settings.study
        if study.route == "masks":
            return MaskedRound(study).threat()
        return threat_of(self.settings.study, self.noise.sentence)

    def count(self, data: Any) -> int:
        """Refuse: records are counted by the servers."""
        return self._refuse()

    def agree(self, data: Any, noise: Any) -> Agreed:
        """Refuse, before a curve of noisewise.ecdf is planned any further."""
        return self._refuse()

    def noisy_sum(
        self, data: Any, statistic: Callable[[Any], Any], noise: Callable[[Any], Any], rng: Any
    ) -> Any:
        """Refuse: a function cannot be sent to servers, a question can."""
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise NetworkError(
            "the servers of a study answer questions, and a function cannot be sent to them: ask "
            "with noisewise.federated.ecdf(None, aggregator, ...), roc, histogram or "
            "hosmer_lemeshow instead of aggregator= of noisewise.ecdf"
        )

    def ask(self, question: Question, parties: Sequence[Records], rng: Randomness) -> Sums:
        """Ask the servers; `parties` and `rng` are not used, records and noise are elsewhere."""
        study = self.settings.study
        if self.settings.signer.name not in study.analyst_keys:
            raise ConfigurationError(
                f"{self.settings.signer.name!r} is not an analyst of study {study.name!r}"
            )
        if study.route == "masks":
            return self._ask_masked(question)
        measurement = Measurement.of(study, question)
        sums, taken, randomness = asyncio.run(self._collect(measurement))
        if self.told is not None:
            self.told(taken)
        threat = replace(self.threat, excluded=taken.excluded)
        return Sums(sums, measurement.mechanism, threat, randomness, taken.records)

    def _ask_masked(self, question: Question) -> Sums:
        if self.name:
            raise ConfigurationError("a round with route 'masks' has one release, without a name")
        found = fetch(self.settings, question)
        arrived = len(found.arrived)
        if self.parties is not None and arrived < self.parties:
            raise NetworkError(
                f"{arrived} parties are in the result, {self.parties} are wanted; the others "
                "dropped out, and a masked round cannot be extended"
            )
        study = self.settings.study
        if self.told is not None:
            self.told(Taken(RELEASE, arrived, len(study.parties), found.records))
        return Sums(
            found.sums,
            MaskedRound(study).mechanism(arrived),
            MaskedRound(study).threat(arrived),
            f"each party: {Randomness.secure().description}",
            found.records,
        )

    async def _collect(self, measurement: Measurement) -> tuple[Any, Taken, str]:
        digest = measurement.digest
        name = f"{self.name}.{digest[:16]}" if self.name else digest[:32]
        async with Client(self.settings) as client:
            for _ in range(_ATTEMPTS):
                listed = await _everywhere(client, "GET", "/v1/contributions")
                complete = [_identifiers(answer) for answer in listed]
                try:
                    verdict = await self._checked(client, complete)
                    members = await self._members(client, name, complete, verdict)
                    await self._at_all(client, "reservations", name, measurement, complete, members)
                    answers = await self._at_all(
                        client, "releases", name, measurement, complete, members
                    )
                except RefusedError as error:
                    await self._give_up(client, name)
                    if error.code in ("moved", "other-set", "not-reserved"):
                        continue
                    raise
                return _combine(
                    answers, measurement, name, members, len(complete[0]), self._excluded(verdict)
                )
        raise NetworkError("contributions kept arriving while the release was prepared; try again")

    async def _checked(self, client: Client, complete: Sequence[set[str]]) -> Verdict | None:
        """Return whose contributions are valid, where the study checks them."""
        if not self.settings.study.checked:
            return None
        return await check_contributions(client, complete)

    @staticmethod
    def _excluded(verdict: Verdict | None) -> tuple[str, ...]:
        return () if verdict is None else tuple(sorted(set(verdict.false.values())))

    async def _members(
        self,
        client: Client,
        name: str,
        complete: Sequence[set[str]],
        verdict: Verdict | None,
    ) -> tuple[str, ...]:
        """Return the set of an earlier release of this name, or all that is complete."""
        found = []
        for server in self.settings.study.servers:
            try:
                answer = await client.request(server.name, "GET", f"/v1/releases/{name}")
                found.append((server.name, _identifiers(answer)))
            except RefusedError as error:
                if error.code != "unknown":
                    raise
        if any(members != found[0][1] for _, members in found):
            raise NetworkError(
                f"servers {', '.join(server for server, _ in found)} made release {name!r} for "
                "different contributions; choose another name"
            )
        if found:
            members = found[0][1]
            for server, own in zip(self.settings.study.servers, complete, strict=True):
                if not members <= own:
                    raise NetworkError(
                        f"release {name!r} was begun with contributions that server "
                        f"{server.name!r} does not have; choose another name"
                    )
        else:
            members = set.intersection(*complete)
        if verdict is not None:
            if found and not members <= verdict.valid:
                raise NetworkError(
                    f"release {name!r} was begun with contributions that are not valid; choose "
                    "another name"
                )
            members &= verdict.valid
        wanted = self.parties
        if wanted is None:
            wanted = len(self.settings.study.parties) - len(self._excluded(verdict))
        if not found and len(members) < wanted:
            raise NetworkError(await self._who_is_missing(client, len(members), wanted))
        return tuple(sorted(members))

    async def _who_is_missing(self, client: Client, there: int, wanted: int) -> str:
        states = await _everywhere(client, "GET", "/v1/progress")
        lines = []
        for server, answer in zip(self.settings.study.servers, states, strict=True):
            with readable(server.name):
                absent = ", ".join(map(str, list(read_json(answer)["absent"])[:10])) or "nobody"
            lines.append(f"server {server.name!r} waits for: {absent}")
        return (
            f"{there} contributions are complete at all servers, {wanted} are wanted; "
            + "; ".join(lines)
            + ". Wait for them, or ask for fewer parties. Nothing was spent."
        )

    async def _at_all(
        self,
        client: Client,
        what: str,
        name: str,
        measurement: Measurement,
        complete: Sequence[set[str]],
        members: tuple[str, ...],
    ) -> list[tuple[str, bytes]]:
        """Reserve ("reservations") or ask for a release ("releases") at all servers."""

        async def at(server: str, own: set[str]) -> tuple[str, bytes]:
            request = {
                "question": json.loads(measurement.encoded),
                "set": set_digest(members),
                "excluded": sorted(own - set(members)) if what == "reservations" else [],
            }
            # Servers evaluate all keys before they answer, so this may take its time.
            answer = await client.request(
                server,
                "PUT",
                f"/v1/{what}/{name}",
                json.dumps(request).encode(),
                seconds=self.settings.patience,
            )
            return server, answer

        servers = [server.name for server in self.settings.study.servers]
        found = await asyncio.gather(
            *(at(server, own) for server, own in zip(servers, complete, strict=True)),
            return_exceptions=True,
        )
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in found if not isinstance(answer, BaseException)]

    async def _give_up(self, client: Client, name: str) -> None:
        """Let the servers that have reserved go on without this release."""
        for server in self.settings.study.servers:
            with contextlib.suppress(NetworkError):  # it forgets by itself, only later
                await client.request(server.name, "DELETE", f"/v1/reservations/{name}")


def _combine(
    answers: Sequence[tuple[str, bytes]],
    measurement: Measurement,
    name: str,
    members: tuple[str, ...],
    complete: int,
    excluded: tuple[str, ...] = (),
) -> tuple[Any, Taken, str]:
    expected = {
        "name": name,
        "request": measurement.digest,
        "set": set_digest(members),
        "contributions": len(members),
        "map": measurement.fingerprint,
    }
    shares, records, sources = [], set(), []
    for server, answer in answers:
        with readable(server):
            head, data = unframe(answer)
            fields = dict(read_json(head))
            share = np.frombuffer(data, "<i8").astype(np.int64)
            count = fields["records"]
            if count is not None and (type(count) is not int or count < 0):
                raise ValueError("no number of records")
        wrong = [key for key, value in expected.items() if fields.get(key) != value]
        if fields.get("server") != server or wrong:
            raise NetworkError(
                f"server {server!r} answered something else than was asked ({', '.join(wrong)}). "
                "Its shares do not fit the others'; compare the versions of noisewise."
            )
        shares.append(additive.as_words(share))
        records.add(count)
        sources.append(f"server {server}: {fields.get('noise')}")
    if len(records) != 1 or len({share.size for share in shares}) != 1:
        raise NetworkError("the servers disagree about the number of records; nothing is shown")
    (count,) = records
    taken = Taken(name, len(members), complete, count, excluded)
    if measurement.study.checked:
        if any(share.max(initial=0) >= PRIME for share in shares):
            raise NetworkError("a server sent sums that are not in the field")
        return from_field(total(np.stack(shares))), taken, "; ".join(sources)
    return additive.combine(shares), taken, "; ".join(sources)


async def _everywhere(client: Client, method: str, path: str) -> list[bytes]:
    servers = client.settings.study.servers
    return list(
        await asyncio.gather(*(client.request(server.name, method, path) for server in servers))
    )


def _identifiers(answer: bytes) -> set[str]:
    if len(answer) % 32:
        raise NetworkError("a server sent a list that cannot be read")
    return {answer[i : i + 32].hex() for i in range(0, len(answer), 32)}


def progress_of(settings: ClientSettings) -> dict[str, Any]:
    """Return, by server, how many contributions are complete, who is missing, what is spent."""

    async def ask() -> list[bytes]:
        async with Client(settings) as client:
            return await _everywhere(client, "GET", "/v1/progress")

    answers = asyncio.run(ask())
    servers = settings.study.servers
    found = {}
    for server, answer in zip(servers, answers, strict=True):
        with readable(server.name):
            found[server.name] = dict(read_json(answer))
    return found
