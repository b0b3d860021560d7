"""A dry run: who would see what in a study, and what made-up records would send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisewise.federated.domain import Records
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.study import Study

__all__ = ["Sight", "made_up", "sights", "sizes"]


@dataclass(frozen=True)
class Sight:
    """What one role would see, and what it would not."""

    who: str
    sees: str
    never: str


def sights(study: Study) -> list[Sight]:
    """Return who would see what, for the route and relation of this very study."""
    parties = ", ".join(member.name for member in study.parties[:5])
    if len(study.parties) > 5:
        parties += f" and {len(study.parties) - 5} more"
    analysts = ", ".join(member.name for member in study.analysts) or "nobody"
    servers = [server.name for server in study.servers]
    counted = study.relation.count_is_public or study.route == "functions"
    number = ", how many records each has" if counted else ""
    if study.route == "masks":
        return [
            Sight(f"party ({parties})", "its own records; who takes part", "any other's sums"),
            Sight(
                f"server {servers[0]}",
                "who takes part and when, the noisy curve",
                "records, or the sums of one party: they arrive under masks",
            ),
            Sight(
                f"server {servers[0]} with up to {study.colluding} colluding parties",
                "the same, and what those parties know",
                "records or sums of the others",
            ),
            Sight(
                f"server {servers[0]} with {2 * study.minimum_parties - len(study.parties)} or "
                "more parties",
                "the sums of single parties: this is what must not happen",
                "",
            ),
            Sight(f"analyst ({analysts})", "the noisy curve; who is in it", "records, sums"),
        ]
    return [
        Sight(
            f"party ({parties})",
            "its own records; that its contribution arrived",
            "anything of the others, the curve",
        ),
        *(
            Sight(
                f"server {name}",
                "one share of each contribution, which looks random; who contributed, when"
                f"{number}",
                "records, the curve",
            )
            for name in servers
        ),
        Sight(
            f"all servers together ({', '.join(servers)})",
            "every record: this is what must not happen",
            "",
        ),
        Sight(
            f"analyst ({analysts})",
            "the noisy curves, with the noise of all servers; how many contributions"
            + (", and which prove that they count records as agreed" if study.checked else ""),
            "records, shares",
        ),
    ]


def made_up(study: Study, number: int, seed: int = 0) -> Records:
    """Return records that nobody has: evenly spread over the bounds, labels at random."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(study.lower, study.upper, number)
    return Records(values, rng.random(number) < 0.5 if study.labelled else None)


def sizes(study: Study, number: int) -> dict[str, int] | None:
    """Return how many bytes each server would get of so many records; None with masks."""
    if study.route == "masks":
        return None
    shares = route_of(study).make(made_up(study, number))
    return {server.name: len(share) for server, share in zip(study.servers, shares, strict=True)}
