"""Point keys that prove that they count one record, without showing which.

The values of a checked key lie in the field of p = 2^61 - 1 elements: v, which is one in a single
cell and zero elsewhere, and w = k v with a secret k of the owner. *After* all keys were sent the
servers agree on a random r_j for every counted cell and a random t, and each publishes three
field elements for each key (:meth:`CheckedKeys.proofs`), shares of

    Z = a + sum_j r_j v_j,    A = k - 2 a,
    U = a^2 - a k - t - sum_j ((r_j^2 - t) v_j + r_j w_j),

where a, A and a^2 - a k are shared by the owner: each server expands uniform elements from its own
seed, and two words of the key correct their sums. The key is accepted if Z^2 + A Z + U = 0.

* Honest keys pass always.
* A key whose v is anything but a single one passes with probability at most 2/p < 2^-60: whatever
  its owner shared, Z^2 + A Z + U is a polynomial in the r_j and t, with coefficients v_j^2 - v_j of
  r_j^2, 2 v_i v_j of r_i r_j and sum v - 1 of t. One of them is not zero, the degree is two, and
  the owner fixed all of it before r and t were drawn (Schwartz, Zippel).
* What is published says nothing about the cell: for every cell, (Z, A) is uniform (a and k
  are), and U is what the equation says. So it may be shown to anybody, and it does not matter who
  chose r, *as long as one key is never sketched with two of them*, which would show
  sum_j (r_j - r'_j) v_j. Servers keep to one.

It is the sketch of Boneh et al. (2021, Poplar) with its multipliers opened at once, so that one
message from each server is enough and a server has nothing to tamper with. Values that are
counted are those that were checked: sums stay in the field until the analyst has added them up.

Proof: docs/proofs/checked.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.federated.fss import kernels
from noisewise.federated.fss.hashing import CODE, MASKS, VALUE, Words, hash_seeds
from noisewise.federated.fss.point import PointKeys, chunks, expand, grown, units
from noisewise.federated.fss.wire import Kind
from noisewise.federated.sharing.field import (
    PRIME,
    Field,
    multiply,
    negative,
    reduced,
    total,
)
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = [
    "PROOF_BYTES",
    "SOUNDNESS_BITS",
    "Challenge",
    "CheckedKeys",
    "accepted",
    "generate_checked",
]

#: What one server publishes for each key.
PROOF_BYTES = 24
#: A false key passes with probability below 2 to the power of minus this.
SOUNDNESS_BITS = 60
_P = np.uint64(PRIME)


@dataclass(frozen=True)
class Challenge:
    """The random numbers that keys are checked with, drawn after all of them were sent.

    Parameters
    ----------
    seed : bytes
        32 bytes that no owner could know when it made its keys.
    cells : int
        How many cells are counted.
    levels : int
        Binary digits of a cell's number.
    """

    seed: bytes
    cells: int
    levels: int

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise ValueError(f"a challenge has 32 bytes, got {len(self.seed)}")
        checks.integer("cells", self.cells, minimum=1, maximum=1 << self.levels)

    @classmethod
    def agreed(cls, parts: list[bytes], about: bytes, cells: int, levels: int) -> Challenge:
        """Return the challenge to which every server has contributed.

        Parameters
        ----------
        parts : list of bytes
            One random string from each server, drawn when the keys were fixed.
        about : bytes
            What fixes the keys.
        cells, levels : int
        """
        state = hashlib.sha256(b"noisewise/challenge/1/" + hashlib.sha256(about).digest())
        for part in parts:
            state.update(hashlib.sha256(part).digest())
        return cls(state.digest(), cells, levels)

    @cached_property
    def t(self) -> np.uint64:
        """The factor of the sum."""
        factor: np.uint64 = self._drawn[-1]
        return factor

    @cached_property
    def r(self) -> Field:
        """One element for each cell, zero where nothing is counted."""
        return self._padded(self._drawn[:-1])

    @cached_property
    def q(self) -> Field:
        """The factors r^2 - t."""
        return self._padded(reduced(multiply(self._drawn[:-1], self._drawn[:-1]) + (_P - self.t)))

    @cached_property
    def _drawn(self) -> Field:
        label = b"noisewise/challenge/2/" + self.cells.to_bytes(8, "little")
        drawn: Field = Randomness.seeded(label + self.seed).below(PRIME, self.cells + 1)
        return drawn.astype(np.uint64)

    def _padded(self, values: Field) -> Field:
        return np.concatenate([values, np.zeros((1 << self.levels) - self.cells, np.uint64)])


@dataclass(frozen=True, eq=False)
class CheckedKeys(PointKeys):
    """Checked point keys of many records, for one server.

    Examples
    --------
    >>> pair = generate_checked([2, 2, 5], levels=3, tag=bytes(8))
    >>> challenge = Challenge(bytes(32), cells=8, levels=3)
    >>> accepted(*(keys.proofs(challenge) for keys in pair)).tolist()
    [True, True, True]
    >>> shares = [keys.sum_over_domain() for keys in pair]
    >>> reduced(shares[0] + shares[1]).tolist()
    [0, 0, 2, 0, 0, 1, 0, 0]
    """

    kind: ClassVar[Kind] = "checked"

    def sum_over_domain(self, *, compiled: bool | None = None) -> Field:
        """Return this server's share of the histogram, in the field."""
        root, seeds, left, right, last = self.corrections()
        found = np.zeros(1 << self.levels, np.uint64)
        if kernels.use(compiled):
            kernels.load().point_sum(self.server, root, seeds, left, right, last, found)
        else:
            for part in chunks(len(self), self.levels):
                s, t = expand(self.server, root[part], seeds[part], left[part], right[part])
                found = reduced(found + total(_values(VALUE, s, t, last[part, :2])))
        return found if self.server == 0 else negative(found)

    def evaluate(self, points: Any) -> Words:
        """Refuse: a checked key is evaluated everywhere or not at all."""
        raise NotImplementedError("checked keys are summed over the domain")

    def proofs(self, challenge: Challenge, *, compiled: bool | None = None) -> Field:
        """Return what this server publishes: Z, A and U of each key.

        A second challenge for the same keys would give their cells away; the caller must not.
        """
        root, seeds, left, right, last = self.corrections()
        sketch = np.empty((len(self), 2), np.uint64)
        r, q = challenge.r, challenge.q
        if kernels.use(compiled):
            run = kernels.load().checked_sketch
            run(self.server, root, seeds, left, right, last, r, q, sketch)
        else:
            for part in chunks(len(self), self.levels):
                s, t = expand(self.server, root[part], seeds[part], left[part], right[part])
                v, w = (
                    _values(which, s, t, last[part, 2 * i : 2 * i + 2])
                    for i, which in enumerate((VALUE, CODE))
                )
                sketch[part, 0] = total(multiply(v, r), axis=1)
                sketch[part, 1] = total(reduced(multiply(v, q) + multiply(w, r)), axis=1)
        if self.server == 1:
            sketch = negative(sketch)
        a, multiplier, constant = _masks(root)
        if self.server == 0:
            proof = np.array(self.table["proof"], order="C")
            multiplier = reduced(multiplier + proof[:, 0])
            constant = reduced(reduced(constant + proof[:, 1]) + (_P - challenge.t))
        z = reduced(sketch[:, 0] + a)
        u = reduced(constant + negative(sketch[:, 1]))
        return np.column_stack([z, multiplier, u])


def accepted(first: Field, second: Field) -> NDArray[np.bool_]:
    """Whether each key counts one record, from what both servers published."""
    if first.shape != second.shape:
        raise ValueError(f"proofs of different keys: {first.shape} and {second.shape}")
    if max(first.max(initial=0), second.max(initial=0)) >= PRIME:
        raise ValueError("a proof is not in the field")
    z, a, u = reduced(first + second).T
    checked: NDArray[np.bool_] = reduced(multiply(z, reduced(z + a)) + u) == 0
    return checked


def generate_checked(
    cells: Any,
    levels: int,
    tag: bytes,
    rng: Randomness | int | None = None,
    *,
    compiled: bool | None = None,
) -> tuple[CheckedKeys, CheckedKeys]:
    """Make a pair of checked keys for each record; see :func:`~.point.generate_point`."""
    source = resolve(rng)
    tables, ends, control = grown("checked", cells, levels, tag, source, compiled=compiled)
    secret = source.below(PRIME, control.size).astype(np.uint64)
    last = np.concatenate(
        [_correction(VALUE, ends, units(cells, 1)), _correction(CODE, ends, units(cells, secret))],
        axis=1,
    )
    last = np.where(control[:, None] == 1, negative(last), last)
    shares = [_masks(np.array(table["root"], order="C")) for table in tables]
    a, multiplier, constant = (reduced(x + y) for x, y in zip(*shares, strict=True))
    opened = reduced(secret + negative(reduced(2 * a)))
    # a^2 - a k = -a (A + a)
    offset = negative(multiply(a, reduced(opened + a)))
    proof = np.column_stack(
        [reduced(opened + negative(multiplier)), reduced(offset + negative(constant))]
    )
    for table in tables:
        table["last"], table["proof"] = last, proof
    first, second = (CheckedKeys(table, levels, server) for server, table in enumerate(tables))
    return first, second


def _correction(which: int, ends: Words, wanted: Field) -> Field:
    """Return what makes the servers' values differ by what is wanted."""
    first, second = (_lifted(hash_seeds(which, end)) for end in ends)
    return reduced(reduced(wanted + negative(first)) + second)


def _values(which: int, s: Words, t: Words, last: Field) -> Field:
    """Values of some keys at all cells, before the second server's change of sign."""
    found = reduced(_lifted(hash_seeds(which, s)) + t[..., None] * last[:, None, :])
    return found.reshape(s.shape[0], -1)


def _masks(root: Words) -> tuple[Field, Field, Field]:
    """One server's shares of a, A and a^2 - a k, from its own seed."""
    blocks = [_lifted(hash_seeds(which, root)) for which in MASKS]
    return blocks[0][:, 0], blocks[0][:, 1], blocks[1][:, 0]


def _lifted(words: Words) -> Field:
    """Return 61 bits of each word as an element: uniform up to a distance of 2^-61."""
    return reduced(words & _P)
