"""Operations whose weight gradient is a product of two matrices, record by record.

For one record the gradient of a dense layer, a sequence of them or a convolution is
``left @ right.T`` with left (M, T) the cotangents and right (N, T) the inputs at T positions.

* T = 1: the norm is the product of the two norms, exactly, and costs nothing.
* few positions: Gram matrices of size T (`noisewise.gradients.contractions.gram`).
* many positions: the gradient itself, a few records at a time that fit the cache. Summing
  the scaled pieces replaces the ordinary contraction, so the exact norm is almost free.

Positions that cancel leave a short gradient, but the rounding of long products. So records
share a kernel only as far as docs/proofs/rounding.md#kernels allows, and a record whose
products are much longer than their sum counts as longer than it is (#spread).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import (
    CHUNK_BYTES,
    Contraction,
    Rule,
    Sums,
    Target,
    chunks,
    even,
    masked,
    needed,
    runs,
    working,
)
from noisewise.gradients.contractions.given import GivenContraction, weighted
from noisewise.gradients.contractions.gram import Squares, price, squares
from noisewise.gradients.contractions.rounding import (
    PIECES,
    POSITIONS,
    RECORDS,
    RUN,
    SHARED_RUN,
    SLACK,
    Totals,
    alike,
    gamma,
    kernel_records,
    row_norms,
    spread,
)

__all__ = ["PairContraction", "over_positions", "whole"]

# Entries of a gradient that cost as much as one multiplication each when written and read
# back: a measured ratio, it only steers the choice of a kernel.
_MEMORY = 5
#: Numbers that a processor's vector holds: it only steers the choice of a kernel.
_LINE = 16
#: Numbers that are converted to float64 at a time.
_AT_A_TIME = 1 << 20


class PairContraction(Contraction):
    """A weight that meets pairs of factors at several positions, and a bias.

    Subclasses give the factors of any run of records and a kernel that contracts a whole run.
    """

    x: Tensor
    weight: Target | None
    bias: Target | None
    groups: int = 1
    #: Largest length of a record's products together, in units of what `lengths` said.
    _ratio: float = 1.0
    #: Whether `lengths` are those of the gradients as computed.
    _measured: bool = False
    _biases: Tensor | None = None

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """M and N per group, and the number of positions T."""

    @abstractmethod
    def left(self, start: int, stop: int) -> Tensor:
        """Cotangents (records, groups, M, T)."""

    @abstractmethod
    def right(self, start: int, stop: int) -> Tensor:
        """Inputs (records, groups, N, T)."""

    @abstractmethod
    def bias_gradients(self) -> Tensor:
        """Cotangents summed over positions (records, entries of the bias)."""

    @abstractmethod
    def factors(
        self, start: int, stop: int, scale: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Inputs and cotangents of a run of records, the smaller of both scaled."""

    @abstractmethod
    def contract(self, x: Tensor, cotangent: Tensor, total: Tensor | None) -> Tensor:
        """Weight gradient of factors that share a kernel.

        It may be added to `total`, which is then returned; else the caller adds it.
        """

    @abstractmethod
    def positions_bound(self) -> Tensor:
        """Sum over positions of |l_t| |r_t| in float64: what rounding is relative to."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Weight and bias, as far as they learn."""
        return tuple(t for t in (self.weight, self.bias) if t is not None)

    def _costs(self) -> tuple[float, float, float]:
        """Prices of instantiating, of Gram matrices and of the contraction alone."""
        m, n, t = self.sizes
        contraction = self.groups * m * n * t
        instantiate = contraction + _MEMORY * self.groups * m * n
        gram = self.groups * price(t, self.kernel_type) * (t + 8) * (m + n)
        return float(instantiate), float(gram), float(contraction)

    @property
    def step(self) -> int:
        """How many records' gradients exist at a time."""
        return max(1, min(RECORDS, CHUNK_BYTES // (4 * self.held)))

    @property
    def held(self) -> int:
        """Numbers that exist for one record while its gradient is computed."""
        m, n, _ = self.sizes
        return self.groups * m * n

    @property
    @abstractmethod
    def factor_entries(self) -> int:
        """Numbers in the two factors of one record."""

    @property
    def shared(self) -> int:
        """How many records share a kernel of the contraction; one: none does."""
        slack = SLACK if self.slack is None else self.slack
        return kernel_records(self.sizes[2], self._ratio, self.kernel_type, self.alone, slack)

    def spread(self) -> float:
        """Let products of a record be so many times longer than its bound, and return how many."""
        self._ratio = spread(self.sizes[2])
        return self._ratio

    @property
    def kernel_type(self) -> torch.dtype:
        """Type of the kernels."""
        return torch.promote_types(self.x.dtype, torch.float32)

    @property
    def biases(self) -> Tensor:
        """Gradients of the bias, computed once: they are measured and added."""
        if self._biases is None:
            self._biases = self.bias_gradients()
        return self._biases

    def _gradients(
        self, start: int, stop: int, pieces: bool = False, into: Tensor | None = None
    ) -> Tensor:
        """Weight gradients of a run of records (records, groups * M * N).

        In `pieces` of so many positions that they are close to the exact ones (#positions),
        where it is not they that are measured. They may be written `into` memory that is there.
        """
        left, right = self.left(start, stop), self.right(start, stop)
        if not pieces or left.shape[-1] <= POSITIONS:
            return self._product(left, right, into).flatten(1)
        kind = left.dtype
        total = left.new_zeros(())
        for number, (a, b) in enumerate(chunks(left.shape[-1], POSITIONS)):
            part = self._product(left[..., a:b], right[..., a:b])
            total = total + part if number < PIECES else total.double().add_(part)
        return total.to(kind).flatten(1)

    @staticmethod
    def _product(left: Tensor, right: Tensor, into: Tensor | None = None) -> Tensor:
        """``left @ right.T``, turned round where the right side would leave a line half empty."""
        if right.shape[-2] % _LINE and left.shape[-2] % _LINE == 0:
            return torch.matmul(right, left.transpose(-1, -2)).transpose(-1, -2)
        if into is None:
            return torch.matmul(left, right.transpose(-1, -2))
        shape = *left.shape[:-1], right.shape[-2]
        flat = into.view(-1, *shape[-2:])
        torch.bmm(left.flatten(0, 1), right.flatten(0, 1).transpose(-1, -2), out=flat)
        return flat.view(shape)

    def gradients_once(
        self, start: int, stop: int, room: Tensor | None = None
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Weight gradients of a few records at a time, to be measured and added as they are.

        They may come of another kernel than those of `_gradients`, which has to give the same
        numbers again whoever else is in its run. They may be written into `room`: side by side
        where there is some for all, else one few after the other into the same memory, since new
        memory for each costs as much as reading it.
        """
        for a, b in chunks(stop - start, self.step):
            into = None
            if room is not None:
                into = room[a:b] if len(room) >= stop - start else room[: b - a]
            yield a, b, self._gradients(start + a, start + b, into=into)

    def _room(self, records: int) -> Tensor:
        """Memory for gradients of so many records."""
        m, n, _ = self.sizes
        return working(self.x[:0]).new_empty(min(records, self.records), self.groups * m * n)

    def close_gradients(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        """Weight gradients close to the exact ones, to be added without having been measured.

        Kernels add few positions (#positions), and are of one size wherever a record is.
        """
        size = whole(self.step)
        for first, last, a, b in even(start, stop, size, self.records):
            found = self._gradients(first, last, pieces=True)
            yield a - start, b - start, found[a - first : b - first]

    def _weight_lengths(self) -> Tensor:
        """Lengths of the weight's part."""
        _, _, positions = self.sizes
        if positions == 1:
            return alike(self.positions_bound())
        self.spread()
        instantiate, gram, _ = self._costs()
        if instantiate <= gram:
            cut, room = runs(self.records, RECORDS, self.step), self._room(self.step)
            made = (self._gradients(a, b, into=room[: b - a]) for a, b in cut)
            norm = torch.cat([row_norms(gradients) for gradients in made])
            if self.shared == 1:  # the same numbers are added
                self._measured = True
                return alike(norm)
            products = self.positions_bound()
            error = gamma(positions, self.kernel_type)
            return torch.stack([norm + error * products, products / self._ratio])
        parts = [self._gram_lengths(a, b) for a, b in chunks(self.records, RECORDS)]
        return torch.cat(parts, 1)

    def gram(self, start: int, stop: int) -> Squares:
        """Squared lengths of a run of records by Gram matrices, of their products, and the doubt.

        The doubt is what rounding may have taken from a square.
        """
        found, products, known = squares(self.left(start, stop), self.right(start, stop))
        return found, self._within_range(products), known

    def _within_range(self, products: Tensor) -> Tensor:
        """Lengths of products, infinite if adding the products up could overflow a kernel."""
        most = torch.finfo(self.kernel_type).max / 2
        return torch.where(products < most, products, torch.inf)

    def _gram_lengths(self, start: int, stop: int) -> Tensor:
        found, products, known = self.gram(start, stop)
        norm = (found + known).clamp_min(0.0).sqrt()
        if self.shared == 1:
            error = gamma(min(self.sizes[2], POSITIONS + PIECES), self.kernel_type)
            return alike(norm + error * products)
        return torch.stack([norm, products / self._ratio])

    def lengths(self, cheap: bool) -> Tensor:
        """Weight by the cheapest way, bias by its gradients.

        A bound may take the place of the norm where that costs more than the contraction.
        """
        if self.records == 0:
            return torch.zeros((2, 0), dtype=torch.float64, device=self.x.device)
        if self.weight is None:
            return alike(row_norms(self.biases))
        _, gram, contraction = self._costs()
        bounded = cheap and self.sizes[2] > 1 and gram > contraction
        if bounded:
            weight = alike(self._within_range(self.positions_bound()))
        else:
            weight = self._weight_lengths()
        return weight if self.bias is None else torch.hypot(weight, row_norms(self.biases))

    def _instantiating_is_cheap(self, cheap: bool) -> bool:
        instantiate, gram, contraction = self._costs()
        _, _, positions = self.sizes
        if self.weight is None or positions == 1:
            return False
        # A bound needs the contraction too; exactness is worth as much again, twice over.
        return instantiate <= (3 * contraction if cheap else gram + contraction)

    def clipped_sums(self, rule: Rule, cheap: bool) -> tuple[Sums, Tensor]:
        """In one pass where the gradients of a few records at a time are affordable."""
        if self.records == 0 or not self._instantiating_is_cheap(cheap):
            return super().clipped_sums(rule, cheap)
        total = Totals()
        norms: list[Tensor] = []
        for a, b in chunks(self.records, RECORDS):
            for name, part in self._clipped_run(a, b, rule, norms).items():
                total.add(name, part)
        return self._placed(total.result()), torch.cat(norms)

    def _clipped_run(self, start: int, stop: int, rule: Rule, norms: list[Tensor]) -> Sums:
        """Norms and scaled sums of a run of records that may be summed in float32."""
        assert self.weight is not None
        total: Tensor | None = None
        of_bias = None if self.bias is None else row_norms(self.biases[start:stop])
        scales, found = [], []
        for a, b, gradients in self.gradients_once(start, stop, self._room(self.step)):
            norm = row_norms(gradients)
            if of_bias is not None:
                norm = torch.hypot(norm, of_bias[a:b])
            scale = rule(norm).to(gradients.dtype)
            flat = masked(gradients, needed(norm)).t()
            total = flat @ scale if total is None else total.addmv_(flat, scale)
            found.append(norm)
            scales.append(scale)
        assert total is not None
        norms.extend(found)
        parts = {self.weight.name: total}
        if self.bias is not None:
            finite = needed(torch.cat(found))
            biases = masked(self.biases[start:stop], finite)
            parts[self.bias.name] = weighted(torch.cat(scales), biases)
        return parts

    def condensed(self, room: int = 0) -> Contraction:
        """The gradients themselves where they take less memory than the two factors, or have room.

        For the group that waits for other layers: then nothing is contracted a second time.
        """
        m, n, positions = self.sizes
        if self.weight is None or positions == 1 or self.records == 0:
            return self
        entries = m * n * self.groups
        if entries > self.factor_entries and not self._saves(entries, room):
            return self
        gradients = self._room(self.records)
        for a, b, part in self.gradients_once(0, self.records, gradients):
            if part.data_ptr() != gradients[a].data_ptr():
                gradients[a:b] = part
        given = {self.weight: gradients}
        if self.bias is not None:
            given[self.bias] = self.biases
        return GivenContraction(given)

    def _saves(self, entries: int, room: int) -> bool:
        """Whether gradients are worth their room.

        They would be made one by one to be measured and again to be added; or they take little
        more than the factors, and spare the Gram matrices.
        """
        instantiate, gram, _ = self._costs()
        alone = kernel_records(self.sizes[2], spread(self.sizes[2]), self.kernel_type) == 1
        little = entries <= 2 * self.factor_entries
        return alone and (little or instantiate <= gram) and 4 * entries * self.records <= room

    def _placed(self, total: Sums) -> Sums:
        return {t.name: t.place(total[t.name]) for t in self.targets if t.name in total}

    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Contract scaled factors, as many records at a time as may share a kernel."""
        single = self.sizes[2] == 1 or self.shared == 1
        total = Totals(RUN if single else SHARED_RUN)

        def run(tensor: Tensor | None, start: int, stop: int) -> Tensor | None:
            return tensor if tensor is None or stop - start == len(tensor) else tensor[start:stop]

        if self.weight is not None:
            name, shared = self.weight.name, self.shared
            for start, stop in chunks(self.records, RECORDS if shared == 1 else RUN * RECORDS):
                factor, mask = run(scale, start, stop), run(keep, start, stop)
                if shared == 1:
                    total.add(name, self._by_record(start, stop, factor, mask))
                    continue
                x, cotangent = self.factors(start, stop, factor, mask)
                rows = len(x) // (stop - start)
                for a, b in chunks(len(x), shared * rows):
                    whole = b - a == len(x)
                    pair = (x, cotangent) if whole else (x[a:b], cotangent[a:b])
                    part = self.contract(*pair, total.open(name))
                    total.add(name, part)
        sums = total.result()
        if self.bias is not None:
            sums[self.bias.name] = self._bias_sum(scale, keep)
        return self._placed(sums)

    def _bias_sum(self, scale: Tensor | None, keep: Tensor | None) -> Tensor:
        """In float64, which is faster for so little than one kernel after the other."""
        size = max(RECORDS, _AT_A_TIME // self.biases.shape[1])
        if 0 < self.records <= size:
            return weighted(scale, masked(self.biases, keep).double())
        total = self.biases.new_zeros(self.biases.shape[1], dtype=torch.float64)
        for a, b in chunks(self.records, size):
            biases = masked(self.biases[a:b], None if keep is None else keep[a:b]).double()
            total += weighted(None if scale is None else scale[a:b], biases)
        return total

    def _singly(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        """Gradients of a few records at a time: those that were measured, or close ones."""
        if not self._measured:
            yield from self.close_gradients(start, stop)
            return
        room = self._room(self.step)
        for a, b in chunks(stop - start, self.step):
            yield a, b, self._gradients(start + a, start + b, into=room[: b - a])

    def _by_record(
        self, start: int, stop: int, scale: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        """Sum of gradients that are computed one by one, a few records at a time."""
        summed: Tensor | None = None
        for a, b, gradients in self._singly(start, stop):
            gradients = masked(gradients, None if keep is None else keep[a:b])
            ones = gradients.new_ones(b - a)
            factor = ones if scale is None else scale[a:b].to(gradients.dtype)
            flat = gradients.t()
            summed = flat @ factor if summed is None else summed.addmv_(flat, factor)
        assert summed is not None
        return summed

    def instantiate(self, start: int, stop: int) -> Sums:
        """Products and summed cotangents."""
        parts: Sums = {}
        if self.weight is not None:
            parts[self.weight.name] = self.weight.place_each(self._gradients(start, stop))
        if self.bias is not None:
            parts[self.bias.name] = self.bias.place_each(self.biases[start:stop])
        return parts


def whole(size: int) -> int:
    """Largest number that is no larger and divides `RECORDS`: so many records fill a kernel."""
    return next(count for count in range(size, 0, -1) if RECORDS % count == 0)


def over_positions(cotangents: Tensor, axis: int) -> Tensor:
    """Sum over an axis of positions, in float64 beyond a few (rounding.md#positions)."""
    positions = cotangents.shape[axis]
    if positions <= POSITIONS:
        return cotangents.sum(axis)
    runs = chunks(positions, POSITIONS)
    parts = [cotangents.narrow(axis, a, b - a).sum(axis).double() for a, b in runs]
    return torch.stack(parts).sum(0).to(cotangents.dtype)
