"""Several uses of one parameter, joined before their norm is taken."""

from __future__ import annotations

from noisewise.gradients.contractions.base import Contraction
from noisewise.gradients.contractions.given import CombinedContraction
from noisewise.gradients.contractions.tied import tied

__all__ = ["joined"]


def joined(uses: list[Contraction]) -> list[Contraction]:
    """Join uses that share a parameter, so that the rest are orthogonal to each other."""
    if len(uses) == 1:
        return uses
    clusters: list[list[Contraction]] = []
    seen: set[str] = set()
    for use in uses:
        names = use.names
        if seen.isdisjoint(names):  # nearly always
            clusters.append([use])
        else:
            touching = [c for c in clusters if any(_overlap(use, member) for member in c)]
            apart = [c for c in clusters if not any(c is other for other in touching)]
            clusters = [*apart, [*(member for c in touching for member in c), use]]
        seen.update(names)
    return [part for cluster in clusters for part in _join(cluster)]


def _overlap(first: Contraction, second: Contraction) -> bool:
    for one in first.targets:
        for other in second.targets:
            if one.name != other.name:
                continue
            if one.rows is None or other.rows is None:
                return True
            if one.rows[0] < other.rows[1] and other.rows[0] < one.rows[1]:
                return True
    return False


def _join(cluster: list[Contraction]) -> list[Contraction]:
    if len(cluster) == 1:
        return cluster
    result = cluster[0].merged(cluster[1:])
    if result is not None:
        return [result]
    return tied(cluster) or [CombinedContraction(cluster)]
