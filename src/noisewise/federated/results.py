"""Noisy sums as an aggregator hands them to the analyst."""

from __future__ import annotations

from dataclasses import dataclass

from noisewise.ecdf import Mechanism
from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.threat import ThreatModel

__all__ = ["Sums"]


@dataclass(frozen=True, eq=False)
class Sums:
    """Noisy sums over the records of all parties.

    Parameters
    ----------
    noisy : array of int64
        The sums with all noise.
    mechanism : Mechanism
        With the noise that was really added (variances) and that survives (guarantee).
    threat : ThreatModel
        The protocol.
    randomness : str
        Where the noise came from.
    records : int or None
        Their public number; None if it is private.
    """

    noisy: IntArray
    mechanism: Mechanism
    threat: ThreatModel
    randomness: str
    records: int | None = None
