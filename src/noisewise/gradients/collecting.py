"""What the pieces of a batch add up to, and the units that fill several of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noisewise.gradients.batches import Part
from noisewise.gradients.contractions.base import Sums, add_to
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.piece import Piece
from noisewise.gradients.rules import held
from noisewise.gradients.tape import Factors

__all__ = ["Collection"]


class Collection:
    """Sums and norms of a batch, piece by piece.

    Attributes
    ----------
    total : dict of str to Tensor
        Sums over the units so far.
    nonfinite : Tensor
        How many units counted zero because they were not finite.

    With `ordered`, pieces come in the order of the records.
    """

    def __init__(
        self,
        factors: Factors,
        groups: Sequence[GroupSpec],
        limits: dict[str, float],
        device: torch.device,
        ordered: bool = False,
    ) -> None:
        self._ordered = ordered
        self._factors, self._groups, self._limits = factors, groups, limits
        self.total: Sums = {}
        self.nonfinite = torch.zeros((), dtype=torch.long, device=device)
        self._norms: dict[str, list[Tensor]] = {}
        self._owners: list[Tensor] = []
        self._unit: Sums = {}

    def add(self, piece: Piece, part: Part) -> None:
        """Add a piece, or keep it until its unit is complete."""
        if part.gathered is not None:
            add_to(self._unit, piece.tape.sums)
            if not part.gathered:
                self._bound(part)
            return
        add_to(self.total, piece.tape.sums)
        for name, values in piece.tape.norms.items():
            self._norms.setdefault(name, []).append(part.counting_units(values))
        owners = part.places if part.owners is None else part.owners
        self._owners.append(owners if part.valid is None else owners[owners >= 0])
        bad = piece.bad()
        if bad is not None:
            self.nonfinite = self.nonfinite + bad

    def _bound(self, part: Part) -> None:
        """Bound one unit by the norm of its whole gradient, in float64."""
        unit, self._unit = self._unit, {}
        bad = torch.zeros((), dtype=torch.bool, device=self.nonfinite.device)
        for group in self._groups:
            parts = [unit[name] for name in group.names if name in unit]
            if not parts:
                continue
            lengths = torch.stack([torch.linalg.vector_norm(g.double()) for g in parts])
            norm = torch.linalg.vector_norm(lengths).reshape(1)
            limit = self._limits[group.name]
            factor = held(self._factors[group.name](norm), norm, limit)
            finite = torch.isfinite(norm)
            scaled = {
                name: torch.where(finite, unit[name].double() * factor, 0.0)
                for name in group.names
                if name in unit
            }
            add_to(self.total, scaled)
            self._norms.setdefault(group.name, []).append(norm)
            bad = bad | ~finite[0]
        assert part.owners is not None
        self._owners.append(part.owners)
        self.nonfinite = self.nonfinite + bad

    def norms(self, kind: torch.dtype) -> dict[str, Tensor]:
        """What was measured of every unit, in their order."""
        if not self._norms:
            return {}
        joined = {
            name: (parts[0] if len(parts) == 1 else torch.cat(parts)).to(kind)
            for name, parts in self._norms.items()
        }
        if self._ordered:
            return joined
        order = torch.cat(self._owners).argsort()
        return {name: values[order.to(values.device)] for name, values in joined.items()}
