"""Secret-shared counts that prove to be counts: none is negative, and all together are at most k.

Each count is written with binary digits (the last of which is worth so much that digits reach k
and no further), and so is their sum. Digits stand in blocks of 64. A block's digits are the values
at 1 to 64 of a polynomial f whose value at 0 is random; where all of them are digits, f (f - 1)
vanishes at 1 to 64, so it is Z h with Z = (X - 1) ... (X - 64), and h has degree 64. The owner
shares digits, random values and h in the field of p = 2^61 - 1 elements, as a seed for each server
but the last and one vector. *After* all contributions are fixed, the servers agree on a random
point x and random factors c; each publishes its shares of f(x) for every block, and of

    Y = Z(x) sum_b c_b h_b(x) + c' (sum of counts - sum by its own digits) [+ c'' (sum - n)].

The contribution is accepted if sum_b c_b f_b(x) (f_b(x) - 1) = Y.

* Honest contributions pass always.
* Any other one passes with probability at most 129 / (p - 130) < 2^-53, whatever its owner shared.
* What is published says nothing: every f_b(x) is uniform, because f_b(0) is, and Y follows from
  them. So it does not matter who sees it, or who chose x and c, as long as a contribution is
  challenged once; servers keep to that.

It is the fully linear proof of Boneh et al. (2019), on which Prio3 rests, without random numbers
that owner and servers have in common: an owner cannot try until it is lucky, and pays with a longer
proof, about as long as the digits.

Proof: docs/proofs/checked.md#vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.federated.sharing.field import PRIME, Field, multiply, negative, reduced, total
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = ["SOUNDNESS_BITS", "BoundedCounts", "Point", "expand", "passes", "share"]

#: Digits of a block.
BLOCK = 64
#: A false contribution passes with probability below 2 to the power of minus this.
SOUNDNESS_BITS = 53
SEED_BYTES = 32
# f is known at 0 to 64, h at 65 to 129.
_FIRST, _SECOND = tuple(range(BLOCK + 1)), tuple(range(BLOCK + 1, 2 * BLOCK + 2))


@dataclass(frozen=True)
class Point:
    """What contributions are challenged with, drawn after all of them were sent.

    Parameters
    ----------
    seed : bytes
        32 bytes that no owner could know.
    blocks : int
        For how many blocks there are factors.
    """

    seed: bytes
    blocks: int

    @classmethod
    def agreed(cls, parts: Sequence[bytes], about: bytes, blocks: int) -> Point:
        """Return the challenge to which every server has contributed a random string."""
        state = hashlib.sha256(b"noisewise/point/1/" + hashlib.sha256(about).digest())
        for part in parts:
            state.update(hashlib.sha256(part).digest())
        return cls(state.digest(), blocks)

    @cached_property
    def _drawn(self) -> Field:
        label = b"noisewise/point/1/" + self.blocks.to_bytes(8, "little")
        source = Randomness.seeded(label + self.seed)
        factors = source.below(PRIME, self.blocks + 2)
        # No point at which a polynomial is known: there digits would be seen.
        at = source.below(PRIME - len(_FIRST + _SECOND), 1) + np.uint64(len(_FIRST + _SECOND))
        return np.concatenate([factors, at]).astype(np.uint64)

    @property
    def factors(self) -> Field:
        """One for each block, one for the sum, one for a public number of records."""
        return self._drawn[:-1]

    @property
    def x(self) -> int:
        """The point."""
        return int(self._drawn[-1])


@dataclass(frozen=True)
class BoundedCounts:
    """Counts of some cells, of which there are at most so many.

    Parameters
    ----------
    cells : int
    most : int
        The largest sum of all counts.

    Examples
    --------
    >>> kind = BoundedCounts(cells=3, most=10)
    >>> shares = share(kind.encode([4, 0, 5]), 2)
    >>> held = [expand(shares[0][0], kind.length), shares[1]]
    >>> point = Point(bytes(32), kind.blocks)
    >>> passes([kind.published(part, point, first=i == 0) for i, part in enumerate(held)], point)
    True
    >>> reduced(kind.counts(held[0]) + kind.counts(held[1])).tolist()
    [4, 0, 5]
    """

    cells: int
    most: int

    def __post_init__(self) -> None:
        checks.integer("cells", self.cells, minimum=1)
        checks.integer("most", self.most, minimum=1)
        if self.cells * self.most >= PRIME // 4:
            raise ValueError(
                f"{self.most} records in {self.cells} cells are too many for sums in a field of "
                "2^61 elements"
            )

    @cached_property
    def weights(self) -> Field:
        """What each digit is worth: all numbers up to `most` can be written, and no others."""
        size = self.most.bit_length()
        worth = [1 << place for place in range(size - 1)]
        return np.array([*worth, self.most - sum(worth)], np.uint64)

    @property
    def digits(self) -> int:
        """Of all counts and their sum."""
        return (self.cells + 1) * self.weights.size

    @property
    def blocks(self) -> int:
        """How many blocks they fill."""
        return -(-self.digits // BLOCK)

    @property
    def length(self) -> int:
        """Elements that are shared: digits, random values, and h of each block."""
        return self.blocks * (BLOCK + 1 + len(_SECOND))

    @property
    def published_words(self) -> int:
        """What one server publishes, in words of 8 bytes."""
        return self.blocks + 1

    def encode(self, counts: Any, rng: Randomness | int | None = None) -> Field:
        """Return the elements that an owner shares.

        Raises
        ------
        ValueError
            If these are not counts of at most `most` records.
        """
        found = np.asarray(counts)
        if found.shape != (self.cells,) or found.dtype.kind not in "iu":
            raise ValueError(f"expected {self.cells} whole numbers, got {found.shape}")
        if int(found.min()) < 0 or int(found.sum()) > self.most:
            raise ValueError(f"counts are at least 0 and together at most {self.most}")
        numbers = np.append(found, found.sum()).astype(np.int64)
        digits = np.zeros((self.blocks, BLOCK), np.uint64)
        digits.reshape(-1)[: self.digits] = self._written(numbers).reshape(-1)
        return prove(digits, resolve(rng))

    def _written(self, numbers: NDArray[np.int64]) -> Field:
        """Return the digits of numbers, one row each."""
        worth = self.weights.astype(np.int64)
        top = (numbers >= worth[-1]) & (numbers > worth[:-1].sum())
        rest = numbers - top * worth[-1]
        low = (rest[:, None] >> np.arange(worth.size - 1)) & 1
        return np.column_stack([low, top]).astype(np.uint64)

    def _cut(self, elements: Field) -> tuple[Field, Field, Field]:
        """Return digits by block, random values, and h by block."""
        ends = (self.blocks * BLOCK, self.blocks * (BLOCK + 1))
        return (
            elements[: ends[0]].reshape(self.blocks, BLOCK),
            elements[ends[0] : ends[1]],
            elements[ends[1] :].reshape(self.blocks, len(_SECOND)),
        )

    def _numbers(self, elements: Field) -> Field:
        digits = elements[: self.digits].reshape(self.cells + 1, self.weights.size)
        return total(multiply(digits, self.weights), axis=1)

    def counts(self, elements: Field) -> Field:
        """Return a server's share of the counts, from its share of the elements."""
        return self._numbers(elements)[:-1]

    def published(
        self, elements: Field, point: Point, *, first: bool, records: int | None = None
    ) -> Field:
        """Return what a server publishes about a contribution: f(x) of each block, and Y.

        A second point for the same contribution would show its digits; the caller must not.

        Parameters
        ----------
        elements : array of uint64
            This server's share.
        point : Point
        first : bool
            Whether this is the first server, which takes public numbers into account.
        records : int, optional
            The number of records, where it is public.
        """
        digits, masks, h = self._cut(elements)
        at_first, at_second, vanishing = _at(point.x)
        values = reduced(
            total(multiply(digits, at_first[1:]), axis=1) + multiply(masks, at_first[0])
        )
        factors = point.factors
        quotient = total(multiply(h, at_second), axis=1)
        right = multiply(total(multiply(quotient, factors[: self.blocks])), vanishing)
        numbers = self._numbers(elements)
        whole = total(numbers[:-1])
        right = reduced(right + multiply(reduced(whole + negative(numbers[-1])), factors[-2]))
        if records is not None:
            missing = reduced(whole + negative(np.array(records, np.uint64))) if first else whole
            right = reduced(right + multiply(missing, factors[-1]))
        return np.append(values, right)


def prove(digits: Field, source: Randomness) -> Field:
    """Return digits by block with random values and h: all that is shared."""
    blocks = len(digits)
    masks = source.below(PRIME, blocks).astype(np.uint64)
    known = np.column_stack([masks, digits])
    further = np.zeros((blocks, len(_SECOND)), np.uint64)
    onward, inverse = _onward()
    for place in range(len(_FIRST)):
        further = reduced(further + multiply(known[:, place, None], onward[place]))
    h = multiply(multiply(further, reduced(further + np.uint64(PRIME - 1))), inverse)
    return np.concatenate([digits.reshape(-1), masks, h.reshape(-1)])


def share(elements: Field, servers: int, rng: Randomness | int | None = None) -> Any:
    """Return the seeds of all servers but the last, and that one's vector."""
    source = resolve(rng)
    seeds = [source.bytes(SEED_BYTES) for _ in range(servers - 1)]
    masked = elements
    for seed in seeds:
        masked = reduced(masked + negative(expand(seed, elements.size)))
    return seeds, masked


def expand(seed: bytes, size: int) -> Field:
    """Return the share that a seed stands for: uniform elements."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
    drawn = Randomness.seeded(b"noisewise/bounded/1/" + seed).below(PRIME, size)
    return np.asarray(drawn, np.uint64)


def passes(parts: Sequence[Field], point: Point) -> bool:
    """Whether a contribution counts what it may, from what all servers published about it."""
    if any(part.shape != (point.blocks + 1,) for part in parts):
        raise ValueError("proofs of different contributions")
    if any(part.max(initial=0) >= PRIME for part in parts):
        raise ValueError("a proof is not in the field")
    whole = np.zeros(point.blocks + 1, np.uint64)
    for part in parts:
        whole = reduced(whole + part)
    values = whole[:-1]
    squares = multiply(values, reduced(values + np.uint64(PRIME - 1)))
    return bool(total(multiply(squares, point.factors[: point.blocks])) == whole[-1])


# ------------------------------------------------------------------------ interpolation


def _weights(nodes: tuple[int, ...], x: int) -> list[int]:
    """Return what each value at the nodes contributes to the polynomial's value at x."""
    found = []
    for node in nodes:
        above = below = 1
        for other in nodes:
            if other != node:
                above = above * (x - other) % PRIME
                below = below * (node - other) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def _vanishing(x: int) -> int:
    product = 1
    for node in _FIRST[1:]:
        product = product * (x - node) % PRIME
    return product


@lru_cache(maxsize=16)
def _at(x: int) -> tuple[Field, Field, Field]:
    """Return how f and h are evaluated at x, and Z there."""
    first, second = (np.array(_weights(nodes, x), np.uint64) for nodes in (_FIRST, _SECOND))
    return first, second, np.array(_vanishing(x), np.uint64)


@lru_cache(maxsize=1)
def _onward() -> tuple[Field, Field]:
    """Return how f is continued to the nodes of h (a row for each known value), and 1/Z there."""
    columns = [_weights(_FIRST, node) for node in _SECOND]
    inverse = [pow(_vanishing(node), -1, PRIME) for node in _SECOND]
    return np.array(columns, np.uint64).T.copy(), np.array(inverse, np.uint64)
