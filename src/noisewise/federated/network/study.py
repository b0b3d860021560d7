"""The study: what all servers, parties and analysts have agreed on, in one public file.

Everybody holds the same file. Its fingerprint (SHA-256 over its meaning, not its spelling;
addresses of servers excepted, which may differ between networks) is part of every signed
request, so two sides that disagree about a threshold or a budget cannot talk to each other.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from noisewise.ecdf import Budget, Grid
from noisewise.federated.masking.neighbours import plan_neighbours
from noisewise.federated.masking.session import check_threshold
from noisewise.federated.network.errors import ConfigurationError
from noisewise.federated.network.identity import read_public_key
from noisewise.federated.network.toml import Section, read_toml
from noisewise.federated.protected import EACH_RECORD, Protected
from noisewise.federated.sharing.bounded import BoundedCounts
from noisewise.privacy import Relation

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["CURVES", "NAME", "Member", "Server", "Study"]

CURVES = ("ecdf", "histogram", "roc", "hosmer-lemeshow")
LABELLED = ("roc", "hosmer-lemeshow")
ROUTES = ("functions", "vectors", "masks")
TEST_PREFIX = "TEST-"
#: What servers, members, studies and rounds may be called.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Server:
    """An aggregation server: its name, and where it usually is."""

    name: str
    url: str


@dataclass(frozen=True)
class Member:
    """A party or an analyst: a name and the public key that it signs with."""

    name: str
    key: str


@dataclass(frozen=True)
class Study:
    """What everybody has agreed on.

    Parameters
    ----------
    name, round : str
        Which study, and which of its rounds: a party contributes once to a round.
    curves : tuple of str
        What may be asked for: "ecdf" (with quantiles), "histogram", "roc" (with the area
        under it), "hosmer-lemeshow".
    lower, upper : float
        Public bounds of the values, known without looking at them.
    bins : int
        Thresholds of the curves.
    route : {"functions", "vectors", "masks"}
        "functions": a pair of short keys for each record, two servers. "vectors": one
        secret-shared table for each party, two or more servers. "masks": sums with the parties'
        own noise under masks that cancel, one server, and parties that stay to the end; one
        curve, released once with the whole epsilon of the round.
    relation : Relation
        Which datasets are neighbours; under "replace-one" the number of records is public.
    epsilon, delta : float
        What all releases of the round together may cost.
    minimum_parties : int
        A server answers no request about fewer contributions. With route "masks" the number of
        parties that must stay to the end, more than half of all parties and `colluding` together.
    servers, parties, analysts : tuple
    noiseless_test : bool
        No noise at all: for tests of the machinery on made-up records. Such a study must have a
        name that begins with "TEST-", servers must allow it explicitly, and no result of it has
        an epsilon.
    colluding : int
        Route "masks" only, and required in its study file: how many parties may tell the server
        everything, or lie for it. Each party adds 1/(minimum_parties - colluding) of the noise.
    stage_seconds : float
        Route "masks" only: how long the server waits for the last parties of a stage once enough
        are there.
    neighbours : {"all", "few"}
        Route "masks" only: with whom a party shares keys; "few" is for hundreds of parties.
    checked : bool
        Routes "functions" and "vectors": every key proves that it counts one record, every table
        that it counts at most `most_records`; contributions that do not are left out and named.
    most_records : int or None
        How many records a party may contribute, at most, where that can be checked. None: any
        number of keys.
    protects : Protected
        The unit: one record, all rows of a patient, a whole party or device. Each party bounds what
        it holds of a unit before anything leaves it, and all noise is made for that.
    """

    name: str
    round: str
    curves: tuple[str, ...]
    lower: float
    upper: float
    bins: int
    route: Literal["functions", "vectors", "masks"]
    relation: Relation
    epsilon: float
    delta: float
    minimum_parties: int
    servers: tuple[Server, ...]
    parties: tuple[Member, ...]
    analysts: tuple[Member, ...]
    noiseless_test: bool = False
    colluding: int = 0
    stage_seconds: float = 600.0
    checked: bool = False
    most_records: int | None = None
    protects: Protected = EACH_RECORD
    neighbours: Literal["all", "few"] = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation.of(self.relation))
        try:
            self.protects.check(self.relation)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        if self.protects.parties > len(self.parties):
            raise ConfigurationError(
                f"{self.protects.parties} parties may hold rows of one unit, but there are "
                f"{len(self.parties)}"
            )
        if self.protects.common:
            raise ConfigurationError(
                "parties of a study do not compare identifiers: leave out common. If somebody else "
                "has given each unit to one of them, parties = 1 says so"
            )
        self._check_names()
        unknown = [curve for curve in self.curves if curve not in CURVES]
        if unknown or not self.curves or len(set(self.curves)) < len(self.curves):
            raise ConfigurationError(
                f"curves must be a choice of {', '.join(CURVES)}, got {list(self.curves)}"
            )
        if self.route not in ROUTES:
            raise ConfigurationError(f"route must be one of {ROUTES}, got {self.route!r}")
        if self.route == "functions" and len(self.servers) != 2:
            raise ConfigurationError(
                f"route 'functions' needs exactly two servers, got {len(self.servers)}; with more "
                "of them use route 'vectors'"
            )
        self._check_checked()
        if self.neighbours not in ("all", "few"):
            raise ConfigurationError(f"neighbours is 'all' or 'few', got {self.neighbours!r}")
        if self.route == "masks":
            self._check_masks()
        elif len(self.servers) < 2:
            raise ConfigurationError("a study needs at least two servers that do not collude")
        elif self.colluding or self.neighbours != "all":
            raise ConfigurationError("colluding_parties and neighbours go with route 'masks' only")
        if "hosmer-lemeshow" in self.curves and (self.lower, self.upper) != (0.0, 1.0):
            raise ConfigurationError("hosmer-lemeshow needs probabilities: lower = 0, upper = 1")
        if not 1 <= self.minimum_parties <= len(self.parties):
            raise ConfigurationError(
                f"minimum_parties must be between 1 and the {len(self.parties)} parties"
            )
        if self.noiseless_test != self.name.startswith(TEST_PREFIX):
            raise ConfigurationError(
                f"noiseless_test = true goes with a name that begins with {TEST_PREFIX!r}, and "
                "such a name with nothing else: nobody may mistake a test for a release"
            )
        Grid.of((self.lower, self.upper), self.bins)
        Budget(self.epsilon, self.delta)

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read a study file."""
        file = read_toml(path)
        budget = file.section("budget")
        route = file.choice("route", ROUTES)
        if route == "masks" and not file.has("colluding_parties"):
            raise ConfigurationError(
                f"{file.where}: route 'masks' needs colluding_parties, the number of parties that "
                "may tell the server everything or lie for it. It decides how much noise each "
                "party adds and what a lying server can learn, so nobody chooses it silently."
            )
        study = cls(
            name=file.text("name"),
            round=file.text("round"),
            curves=tuple(file.texts("curves")),
            lower=file.number("lower"),
            upper=file.number("upper"),
            bins=file.whole("bins", minimum=2),
            route=cast(Any, route),
            relation=_relation(file),
            epsilon=budget.number("epsilon"),
            delta=budget.number("delta", 0.0),
            minimum_parties=file.whole("minimum_parties", minimum=1),
            servers=tuple(_servers(file)),
            parties=tuple(_parties(file, path)),
            analysts=tuple(_members(file.sections("analysts"))),
            noiseless_test=file.flag("noiseless_test", False),
            colluding=file.whole("colluding_parties", 0),
            stage_seconds=file.number("stage_seconds", 600.0),
            checked=file.flag("checked", False),
            most_records=file.whole("most_records", minimum=1)
            if file.has("most_records")
            else None,
            protects=_protects(file),
            neighbours=cast(Any, file.choice("neighbours", ("all", "few"), "all")),
        )
        budget.done()
        file.done()
        return study

    @property
    def labelled(self) -> bool:
        """Whether records need a label."""
        return any(curve in LABELLED for curve in self.curves)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything agreed on, but for the servers' addresses."""
        meaning: dict[str, Any] = {
            "format": "noisewise-study-2",
            "name": self.name,
            "round": self.round,
            "curves": self.curves,
            "bounds": [self.lower.hex(), self.upper.hex()],
            "bins": self.bins,
            "route": self.route,
            "relation": self.relation.name,
            "budget": [self.epsilon.hex(), self.delta.hex()],
            "minimum_parties": self.minimum_parties,
            "servers": [server.name for server in self.servers],
            "parties": [(member.name, member.key) for member in self.parties],
            "analysts": [(member.name, member.key) for member in self.analysts],
            "noiseless_test": self.noiseless_test,
            "masks": [self.colluding, self.stage_seconds.hex()],
        }
        if self.protects != EACH_RECORD:
            meaning["protects"] = self.protects.to_dict()
        if self.route == "masks":  # with confirmed survivors, lists that say how long they are
            meaning["protocol"] = 3
        if self.neighbours != "all":
            meaning["neighbours"] = self.neighbours
        if self.checked:
            meaning["checked"] = 2
        if self.most_records is not None:
            meaning["most_records"] = self.most_records
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    @cached_property
    def party_keys(self) -> dict[str, Ed25519PublicKey]:
        """Public keys of the parties."""
        return {m.name: read_public_key(m.key, f"party {m.name!r}") for m in self.parties}

    @cached_property
    def analyst_keys(self) -> dict[str, Ed25519PublicKey]:
        """Public keys of the analysts."""
        return {m.name: read_public_key(m.key, f"analyst {m.name!r}") for m in self.analysts}

    def server_index(self, name: str) -> int:
        """Return which server this is, from 0."""
        names = [server.name for server in self.servers]
        if name not in names:
            raise ConfigurationError(f"{name!r} is not a server of this study: {', '.join(names)}")
        return names.index(name)

    def _check_checked(self) -> None:
        if self.checked and self.route == "masks":
            raise ConfigurationError(
                "checked = true goes with routes 'functions' and 'vectors', whose contributions "
                "prove what they count; masked sums have no such proof here"
            )
        tables = self.checked and self.route == "vectors"
        if tables and self.most_records is None:
            raise ConfigurationError(
                "route 'vectors' with checked = true needs most_records, the number of records "
                "that a party may count, at most: it is what tables prove"
            )
        counted = self.route == "functions" or tables
        if self.most_records is not None and (not counted or self.most_records < 1):
            raise ConfigurationError(
                "most_records is at least 1 and goes with route 'functions', where a server counts "
                "keys, or with checked = true; what a party says of its records in route "
                f"{self.route!r} is its word otherwise"
            )
        if tables:
            try:
                BoundedCounts(4 * self.bins, self.most_records or 1)  # more cells than a curve has
            except ValueError as error:
                raise ConfigurationError(f"bins and most_records: {error}") from error

    def _check_masks(self) -> None:
        parties, threshold = len(self.parties), self.minimum_parties
        if parties < 2:
            raise ConfigurationError("route 'masks' needs at least two parties")
        if len(self.servers) != 1:
            raise ConfigurationError(
                f"route 'masks' has one server, got {len(self.servers)}: more of them see no less"
            )
        if len(self.curves) != 1 or self.curves[0] == "hosmer-lemeshow":
            raise ConfigurationError(
                "route 'masks' releases one curve once (ecdf, histogram or roc), because parties "
                f"add noise for that very question; got {list(self.curves)}"
            )
        if self.delta != 0:
            raise ConfigurationError(
                "route 'masks' needs delta = 0: parties add shares of Laplace noise, which sum to "
                "it exactly"
            )
        try:
            check_threshold(parties, threshold, self.colluding)
            if self.neighbours == "few":
                plan_neighbours(parties, threshold, self.colluding)
        except ValueError as error:
            raise ConfigurationError(
                "route 'masks', minimum_parties (threshold) and colluding_parties (helpers): "
                f"{error}"
            ) from error
        if not self.stage_seconds > 0:
            raise ConfigurationError("stage_seconds must be above 0")

    def _check_names(self) -> None:
        groups = {
            "server": [server.name for server in self.servers],
            "party": [member.name for member in self.parties],
            "analyst": [member.name for member in self.analysts],
            "study": [self.name],
            "round": [self.round],
        }
        for kind, names in groups.items():
            wrong = [name for name in names if not NAME.fullmatch(name)]
            if wrong:
                raise ConfigurationError(
                    f"{kind} name {wrong[0]!r}: use letters, digits, '.', '_', '-', at most 64"
                )
            if len(set(names)) < len(names):
                raise ConfigurationError(f"every {kind} needs a name of its own")
        if set(groups["party"]) & set(groups["analyst"]):
            raise ConfigurationError("a party and an analyst may not share a name")
        keys = [member.key for member in (*self.parties, *self.analysts)]
        if len(set(keys)) < len(keys):
            raise ConfigurationError("every party and analyst needs a key of its own")


def _relation(file: Section) -> Relation:
    if file.has("neighbors"):  # the word of version 0.1, which left out meant another relation
        raise ConfigurationError(
            f'{file.where}: neighbors is called relation now: write relation = "replace-one" '
            'where it said neighbors = "replace" (the number of records is public), or '
            'relation = "add-remove"'
        )
    return Relation(file.choice("relation", ("add-remove", "replace-one"), "add-remove"))


def _protects(file: Section) -> Protected:
    if not file.has("unit"):
        return EACH_RECORD
    section = file.section("unit")
    kind = section.choice("kind", ("identifier", "party", "device"))
    several = section.whole("parties", minimum=1) if kind == "identifier" else 1
    try:
        found = Protected(
            cast(Any, kind), section.text("name"), section.whole("rows", minimum=1), several
        )
    except ValueError as error:
        raise ConfigurationError(f"{section.where}: {error}") from error
    section.done()
    return found


def _servers(file: Section) -> list[Server]:
    found = []
    for section in file.sections("servers"):
        found.append(Server(section.text("name"), section.text("url").rstrip("/")))
        section.done()
    return found


def _members(sections: list[Section]) -> list[Member]:
    found = []
    for section in sections:
        found.append(Member(section.text("name"), section.text("key")))
        section.done()
    return found


def _parties(file: Section, path: Path) -> list[Member]:
    """Return the parties of the study file, and those of a CSV file (name,key) beside it."""
    found = _members(file.sections("parties", optional=True))
    other = file.text("parties_file", "-")
    if other != "-":
        try:
            with (path.parent / other).open(newline="", encoding="utf-8") as rows:
                found += [Member(name, key) for name, key in csv.reader(rows)]
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"parties_file {other!r}: {error}") from error
    if not found:
        raise ConfigurationError(f"{file.where}: no [[parties]]")
    return found
