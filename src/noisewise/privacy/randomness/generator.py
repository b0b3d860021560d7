"""The generator that every mechanism draws from: integers, uniforms, normals, batches.

Integers, masks and batches are exact: they follow their law to the last bit, given
that the cipher stream is uniform. Normal numbers are rounded ones; what that means
for privacy is said in ``docs/randomness.md``.

Torch is imported when the first tensor is asked for: a server that counts needs none.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.privacy.randomness import integers
from noisewise.privacy.randomness.gaussian import LARGEST, Normals
from noisewise.privacy.randomness.keystream import (
    BLOCKS_PER_KEY,
    SLACK,
    Keystream,
    RandomnessError,
    derive,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Randomness", "Shape", "resolve", "sizes"]

Shape: TypeAlias = int | Sequence[int]


class Randomness:
    """A cryptographic generator of random numbers.

    Make one with :meth:`secure` (the default everywhere: the key comes from the
    operating system and is never shown) or with :meth:`seeded` (reproducible, hence
    not secret: for tests and for debugging only). It may be used from several
    threads. A forked process never repeats the numbers of its parent. Every release draws from
    a stream of its own, see :meth:`for_release`.

    Examples
    --------
    >>> rng = Randomness.secure()
    >>> rng.normal((2, 3)).shape
    torch.Size([2, 3])
    >>> Randomness.seeded(7).below(10, 5).tolist() == Randomness.seeded(7).below(10, 5).tolist()
    True
    """

    def __init__(
        self, stream: Keystream, name: str, spawned: int = 0, *, of_release: bool = False
    ) -> None:
        self._stream = stream
        self._name = name
        self._spawned = spawned
        self._of_release = of_release
        self._normals = Normals(stream)

    # ---------------------------------------------------------------- construction

    @classmethod
    def secure(cls) -> Randomness:
        """Return a generator whose key is drawn from the operating system."""
        return cls(Keystream(None), "")

    @classmethod
    def seeded(cls, seed: int | builtins.bytes) -> Randomness:
        """Return a reproducible generator. Whoever knows the seed knows the noise."""
        if isinstance(seed, builtins.bytes):
            material, name = b"bytes/" + seed, "seed of bytes"
        elif isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
            material, name = b"int/" + str(int(seed)).encode(), f"seed {int(seed)}"
        else:
            raise TypeError(f"seed must be an int or bytes, got {seed!r}")
        root = hashlib.sha256(b"noisewise/randomness/1/" + material).digest()
        return cls(Keystream(root), name)

    def spawn(self, count: int) -> list[Randomness]:
        """Return `count` generators that are independent of this one and of each other."""
        count = checks.integer("count", count, minimum=1)
        with self._stream.lock:
            root = self._stream.root
            if root is None:
                return [Randomness.secure() for _ in range(count)]
            first, self._spawned = self._spawned, self._spawned + count
            # A release's own parts are nobody else's children.
            label = "part of a release" if self._of_release else "spawn"
        return [
            Randomness(Keystream(derive(root, label, index)), f"{self._name}, child {index}")
            for index in range(first, first + count)
        ]

    def for_release(self) -> Randomness:
        """Return the generator of one release; nothing else ever draws its numbers.

        A secure generator is its own. A seeded one hands out a stream for each release, and none
        that was begun otherwise. So two releases of one seed draw the same numbers throughout, and
        then :attr:`place` of both is the same, or they have not one number in common: no two
        overlap in part, whatever was drawn, spawned or released between.
        """
        with self._stream.lock:
            if self._stream.root is None or self._of_release:
                return self
            root = self._next_release()
            self._stream.begin(derive(root, "next release"))
        return Randomness(Keystream(root), self._name, of_release=True)

    def _next_release(self) -> builtins.bytes:
        root = self._stream.root
        assert root is not None
        return root if self._stream.position == (0, 0) else derive(root, "next release")

    @property
    def is_secure(self) -> bool:
        """Whether the numbers are secret: keyed from the operating system."""
        return self._stream.root is None

    @property
    def description(self) -> str:
        """Where the numbers come from, in words, for a privacy statement."""
        if self.is_secure:
            return "AES-256-CTR keyed from the operating system"
        return f"seeded generator ({self._name}): reproducible, so NOT secret"

    @property
    def place(self) -> str:
        """Name of the numbers that the next release draws from a seeded stream.

        Raises
        ------
        RandomnessError
            If the generator is secure: its numbers never come again. If it is that of one release,
            which has begun: another one would draw numbers that lie within those of the first.
        """
        with self._stream.lock:
            if self._stream.root is None:
                raise RandomnessError("numbers of a secure generator never come again")
            if self._of_release and (self._stream.position != (0, 0) or self._spawned):
                raise RandomnessError(
                    "this generator belongs to a release that has begun: a second one would need "
                    "noise of its own"
                )
            name = hashlib.sha256(b"noisewise/place/1/" + self._next_release()).hexdigest()[:32]
            return f"stream {name} at 0.0.0"

    def __repr__(self) -> str:
        return f"<Randomness: {self.description}>"

    # ---------------------------------------------------------------- integers, exact

    def bytes(self, count: int) -> builtins.bytes:
        """Return `count` random bytes."""
        return self._draw(checks.integer("count", count)).tobytes()

    def coins(self, count: int) -> NDArray[np.bool_]:
        """Return fair coin tosses, one bit of the stream each."""
        count = checks.integer("count", count)
        packed = self._draw(-(-count // 8))
        return np.unpackbits(packed, count=count).view(np.bool_)

    def uint64(self, shape: Shape) -> NDArray[np.uint64]:
        """Return uniform 64-bit integers."""
        size = sizes(shape)
        return self._draw(8 * math.prod(size)).view(np.uint64).reshape(size)

    def below(self, bound: int | NDArray[Any], shape: Shape | None = None) -> NDArray[np.uint64]:
        """Return uniform integers in [0, bound), exactly, by rejection.

        Parameters
        ----------
        bound : int or array of uint64
            One bound for all numbers (up to 2^64), or one for each.
        shape : int or tuple, optional
            How many numbers; only with a single bound. Default: one, of shape ``()``.
        """
        if isinstance(bound, np.ndarray) and bound.ndim:
            if shape is not None:
                raise ValueError("shape is that of the bounds when bound is an array")
            bounds = integers.checked_bounds(bound)
            return integers.below_each(self.uint64, bounds.reshape(-1)).reshape(bounds.shape)
        single = checks.integer("bound", bound, minimum=1, maximum=integers.WORDS)
        size = sizes(() if shape is None else shape)
        if single == integers.WORDS:
            return self.uint64(size)
        return integers.below_one(self.uint64, single, math.prod(size)).reshape(size)

    def poisson_mask(self, count: int, rate: float | Fraction) -> Tensor:
        """Return a mask in which each of `count` records is drawn with probability `rate`.

        The probability is exact: `rate` is taken as the rational number that it is, and
        compared digit by digit with as many random bits as are needed.
        """
        import torch

        return torch.from_numpy(self._mask(count, rate))

    def poisson_indices(self, count: int, rate: float | Fraction) -> Tensor:
        """Return the indices of a Poisson batch in increasing order; it may be empty."""
        import torch

        return torch.from_numpy(np.flatnonzero(self._mask(count, rate)))

    # ---------------------------------------------------------------- real numbers

    def uniform(
        self,
        shape: Shape,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Return numbers in the open interval (0, 1): the midpoints of equal cells.

        There are 2^23 cells in float32 (the default), 2^52 in float64, 2^10 in float16 and 2^7
        in bfloat16, so that every midpoint is a number of that type and neither 0 nor 1.
        """
        import torch

        dtype = torch.float32 if dtype is None else dtype
        cells = self._midpoints(shape, _mantissa_bits(dtype))
        return torch.from_numpy(cells).to(device=device, dtype=dtype)

    def uniform_numpy(self, shape: Shape) -> NDArray[np.float64]:
        """Return numbers in the open interval (0, 1) as a float64 array."""
        return self._midpoints(shape, 52)

    def _midpoints(self, shape: Shape, bits: int) -> NDArray[Any]:
        size = sizes(shape)
        word, real = (np.uint64, np.float64) if bits == 52 else (np.uint32, np.float32)
        width = np.dtype(word).itemsize
        words = self._draw(width * math.prod(size)).view(word)
        cells: NDArray[Any] = (words >> word(8 * width - bits)).astype(real).reshape(size)
        cells += real(0.5)
        cells *= real(2.0**-bits)
        return cells

    def normal(
        self,
        shape: Shape,
        *,
        std: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        out: Tensor | None = None,
        hardened: bool = False,
    ) -> Tensor:
        """Return normal numbers of mean zero and deviation `std`, tails included.

        Parameters
        ----------
        std : float
            The standard deviation, > 0.
        dtype : torch.dtype, optional
            By default float32.
        out : Tensor, optional
            Where to write them; its shape, type and device are used.
        hardened : bool
            Add four independent numbers for each one, so that a number of the result
            does not show the uniforms it was made of (Holohan and Braghin, 2021).
        """
        if out is not None:
            if tuple(out.shape) != sizes(shape):
                raise ValueError(f"out has shape {tuple(out.shape)}, asked was {sizes(shape)}")
            return self.normal_(out, std, hardened=hardened)
        import torch

        empty = torch.empty(sizes(shape), dtype=dtype or torch.float32, device=device)
        return self.normal_(empty, std, hardened=hardened)

    def normal_(self, tensor: Tensor, std: float = 1.0, *, hardened: bool = False) -> Tensor:
        """Fill `tensor` with normal numbers of mean zero and deviation `std`, in place."""
        import torch

        std = _std(tensor.dtype, std)
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        direct = tensor.device.type == "cpu" and tensor.dtype == wide and tensor.is_contiguous()
        with torch.no_grad():
            target = tensor if direct else torch.empty(tensor.shape, dtype=wide)
            flat = target.detach().view(-1).numpy()
            with self._stream.lock:
                self._normals.fill(flat, std, hardened)
            if not direct:
                tensor.copy_(target)
        return tensor

    def normal_for(self, tensors: Sequence[Tensor], stds: Sequence[float]) -> list[Tensor]:
        """Return noise for several tensors, each like its tensor and with its own deviation.

        One call for all is much faster than one for each where tensors are small.
        """
        import torch

        if len(tensors) != len(stds):
            raise ValueError(f"stds must be one for each of {len(tensors)} tensors, got {stds!r}")
        if not tensors:
            return []
        scales = [_std(tensor.dtype, std) for tensor, std in zip(tensors, stds, strict=True)]
        double = any(tensor.dtype is torch.float64 for tensor in tensors)
        wide = torch.float64 if double else torch.float32
        counts = [tensor.numel() for tensor in tensors]
        flat = torch.empty(sum(counts), dtype=wide, device="cpu")
        one = scales[0] if scales.count(scales[0]) == len(scales) else 1.0
        with self._stream.lock:
            self._normals.fill(flat.numpy(), one, False)
        parts = flat.split_with_sizes(counts)
        if one != scales[0]:
            torch._foreach_mul_(parts, scales)
        shaped = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
        if all(tensor.dtype is wide and tensor.device.type == "cpu" for tensor in tensors):
            return shaped
        return [
            part.to(device=tensor.device, dtype=tensor.dtype)
            for part, tensor in zip(shaped, tensors, strict=True)
        ]

    def normal_numpy(
        self, shape: Shape, std: float = 1.0, *, hardened: bool = False
    ) -> NDArray[np.float64]:
        """Return normal numbers as a float64 array."""
        numbers = np.empty(sizes(shape))
        std = _within(np.finfo(np.float64), std, "float64")
        with self._stream.lock:
            self._normals.fill(numbers.reshape(-1), std, hardened)
        return numbers

    # ---------------------------------------------------------------- saving

    def state(self) -> dict[str, Any]:
        """Return where a seeded generator stands, to be continued by :meth:`from_state`."""
        with self._stream.lock:
            root = self._stream.root
            if root is None:
                raise RandomnessError(
                    "a secure generator has no state that could be saved: a key on disk would "
                    "reveal the noise to whoever reads it, and resuming twice would repeat it. "
                    "After a restart use a new Randomness.secure(); nothing depends on the old one."
                )
            epoch, block = self._stream.position
            return {
                "cipher": "AES-256-CTR/1",
                "name": self._name,
                "key": root.hex(),
                "epoch": epoch,
                "block": block,
                "spawned": self._spawned,
            }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Randomness:
        """Return a seeded generator that continues where :meth:`state` was taken."""
        if state.get("cipher") != "AES-256-CTR/1":
            raise ValueError(f"not a state of this generator: {state!r}")
        epoch = checks.integer("epoch", state["epoch"])
        block = checks.integer("block", state["block"], maximum=BLOCKS_PER_KEY)
        stream = Keystream(builtins.bytes.fromhex(state["key"]), epoch, block)
        return cls(stream, str(state["name"]), checks.integer("spawned", state["spawned"]))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_secure:
            raise RandomnessError(
                "a secure generator cannot be pickled: its key would leave this process and the "
                "copy would repeat its noise. Call Randomness.secure() where the numbers are "
                "needed, for example inside the worker."
            )
        return Randomness.from_state, (self.state(),)

    def __copy__(self) -> Randomness:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Randomness:
        """Return a new secure generator, or one that repeats this seeded one."""
        return Randomness.secure() if self.is_secure else Randomness.from_state(self.state())

    # ---------------------------------------------------------------- inside

    def _mask(self, count: int, rate: float | Fraction) -> NDArray[np.bool_]:
        count, exact = checks.integer("count", count), integers.checked_rate(rate)
        return integers.bernoulli(self.uint64, count, exact)

    def _draw(self, size: int) -> NDArray[np.uint8]:
        buffer = np.empty(-(-size // 16) * 16 + SLACK, np.uint8)
        with self._stream.lock:
            self._stream.fill(buffer, size)
        return buffer[:size]


def resolve(rng: Randomness | int | builtins.bytes | None) -> Randomness:
    """Return the generator that `rng` means: ``None`` is a secure one, a seed a seeded one.

    Examples
    --------
    >>> resolve(None).is_secure
    True
    >>> resolve(7).description
    'seeded generator (seed 7): reproducible, so NOT secret'
    """
    if rng is None:
        return Randomness.secure()
    if isinstance(rng, Randomness):
        return rng
    if isinstance(rng, (int, np.integer, bytes)) and not isinstance(rng, bool):
        return Randomness.seeded(rng)
    raise TypeError(
        f"rng must be None (secure), a seed or a Randomness, got {type(rng).__name__}. The "
        "generators of torch, numpy and random are predictable from their output, so noise from "
        "them protects nobody."
    )


def sizes(shape: Shape) -> tuple[int, ...]:
    """Return a shape as a tuple of checked integers."""
    whole = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return tuple(checks.integer("shape", size) for size in whole)


def _mantissa_bits(dtype: torch.dtype) -> int:
    import torch

    bits = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
    if dtype not in bits:
        raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype}")
    return bits[dtype]


@functools.lru_cache(typed=True)
def _std(dtype: torch.dtype, std: float) -> float:
    import torch

    _mantissa_bits(dtype)
    return _within(torch.finfo(dtype), std, str(dtype))


def _within(limits: Any, std: float, kind: str) -> float:
    std = checks.positive("std", std)
    if not limits.tiny <= std <= limits.max / LARGEST:
        raise ValueError(
            f"std must lie in [{limits.tiny:.3g}, {limits.max / LARGEST:.3g}] for {kind}, "
            f"got {std!r}: the numbers would vanish or overflow"
        )
    return std
