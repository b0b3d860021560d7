"""Certified norms that are computed anew only when a weight has moved.

A norm is linear algebra on public weights, and weights move little in a step. For the last
fully certified weight ``A`` (the *anchor*, of which a copy is kept) and the present ``W``,

    ||W|| <= ||A|| + ||W - A|| <= bound(A) + c ||W - A||_F,

the triangle inequality, with c = 1 for matrices and c = sqrt(taps) times the norm of the
padding for convolutions, which are linear in their kernel. If that costs more than
`tolerance`, a convolution tries the flat bound of the difference, which is cheaper than a
frequency grid and far tighter than Frobenius for noise; after that the norm is computed anew
and ``W`` becomes the anchor. The distance is always measured to the anchor, never summed up
over steps, so nothing accumulates and nothing can be forgotten. Every branch is a proof.

PyTorch counts in-place changes of a tensor in ``_version``, but a write through ``.data`` or a
shared NumPy array is not counted. Values are therefore compared by default, one pass over the
weight; ``trust_versions=True`` skips even that for whoever can promise such writes away.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from noisewise import checks
from noisewise.bounds.norms.convolution import conv_norm, kernel_factor
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.result import NormBound
from noisewise.bounds.norms.rounding import relative, up
from noisewise.bounds.norms.threads import one_thread

__all__ = ["NormCache"]

# What rescaling a weight may move it by, relative to its norm.
_ROUNDING = 1e-5
# Full certificates in a row after which the distance moved is only looked at now and then.
_PATIENCE = 2

Key = tuple[int, str, tuple[tuple[str, Any], ...]]


@dataclass
class _Entry:
    weight: weakref.ReferenceType[Tensor]
    anchor: Tensor
    scale: float
    certified: NormBound
    state: tuple[Any, ...]
    current: NormBound
    restless: int = 0


@dataclass
class NormCache:
    """Remember certified norms of weights; recompute when they moved too far.

    Parameters
    ----------
    tolerance : float
        A bound may exceed the last full certificate by this fraction before the norm is
        computed anew. Zero recomputes at every change.
    trust_versions : bool
        Believe ``weight._version`` when it says that nothing changed.

    Attributes
    ----------
    computed, drifted, reused : int
        How often a norm was certified in full, bounded by the distance moved, or unchanged.

    Examples
    --------
    >>> import torch
    >>> cache, weight = NormCache(), torch.eye(3)
    >>> a, b = cache.spectral_norm(weight), cache.spectral_norm(weight)
    >>> cache.computed, cache.reused
    (1, 1)
    """

    tolerance: float = 0.04
    trust_versions: bool = False
    computed: int = field(default=0, init=False)
    drifted: int = field(default=0, init=False)
    reused: int = field(default=0, init=False)
    _entries: dict[Key, _Entry] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.tolerance = checks.positive("tolerance", self.tolerance, zero=True)

    def __reduce__(self) -> tuple[Any, ...]:
        # Certificates belong to tensors of this process: a copy starts empty.
        return type(self), (self.tolerance, self.trust_versions)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget every certificate."""
        self._entries.clear()

    def spectral_norm(self, weight: Tensor, **options: Any) -> NormBound:
        """As `noisewise.bounds.norms.spectral_norm`, remembered."""
        return self._get(weight, "matrix", options, spectral_norm, _matrix_drift)

    def conv_norm(self, weight: Tensor, **options: Any) -> NormBound:
        """As `noisewise.bounds.norms.conv_norm`, remembered."""
        return self._get(weight, "convolution", options, conv_norm, _convolution_drift)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Trust versions for a while in which only the caller touches the weights."""
        held, self.trust_versions = self.trust_versions, True
        try:
            yield
        finally:
            self.trust_versions = held

    def rescale_(self, weight: Tensor, factor: float) -> None:
        """Multiply a weight in place and carry its certificates along.

        The stored result is rounded; the rounding is part of the distance to the rescaled
        anchor and so of the next bound.
        """
        factor = checks.positive("factor", factor, zero=True)
        fresh = []
        for key, entry in self._entries.items():
            if key[0] == id(weight) and entry.weight() is weight:
                known = self.trust_versions and entry.state == _state(weight)
                unmoved = known or not _is_new(weight, entry)
                if key[1] == "matrix" and entry.scale == 1.0 and unmoved:
                    fresh.append(entry)
                entry.scale *= factor
                value = up(entry.certified.value * factor)
                entry.certified = NormBound(value, entry.certified.method)
                entry.state = (None, *entry.state[1:])  # forces a look at the values
        with torch.no_grad():
            weight.mul_(factor)
        for entry in fresh:
            _settle_rounding(weight, entry)

    def _get(
        self,
        weight: Tensor,
        kind: str,
        options: dict[str, Any],
        compute: Callable[..., NormBound],
        drift: Callable[[Tensor, _Entry, dict[str, Any], float], float],
    ) -> NormBound:
        key = (id(weight), kind, tuple(sorted((k, _hashable(v)) for k, v in options.items())))
        state = _state(weight)
        entry = self._entries.get(key)
        if entry is None or entry.weight() is not weight or entry.state[2:] != state[2:]:
            return self._compute(key, weight, options, compute, state)
        if self.trust_versions and entry.state == state:
            self.reused += 1
            return entry.current
        allowance = self.tolerance * entry.certified.value
        moved = 0.0
        if entry.scale != 1.0 or _is_new(weight, entry):
            if entry.scale == 1.0 and entry.restless >= _PATIENCE and entry.restless % 8:
                # It moved too far every time of late (noise does that): do not measure how far.
                return self._compute(key, weight, options, compute, state)
            with one_thread(weight.shape):
                moved = drift(weight.detach(), entry, options, allowance)
        if moved == 0.0:
            self.reused += 1
            entry.current = entry.certified
        elif moved <= allowance:
            self.drifted += 1
            if entry.scale == 1.0:
                entry.restless = 0
            name = entry.certified.method + "+drift"
            entry.current = NormBound(up(entry.certified.value + moved), name)
            if entry.scale != 1.0 and moved <= _ROUNDING * entry.certified.value:
                # Only rounding moved it: the bound holds for this very weight, which is quicker
                # to recognise than a rescaled anchor.
                entry.anchor, entry.scale = _copy(weight, entry.anchor), 1.0
                entry.certified = entry.current
        else:
            return self._compute(key, weight, options, compute, state)
        entry.state = state
        return entry.current

    def _compute(
        self,
        key: Key,
        weight: Tensor,
        options: dict[str, Any],
        compute: Callable[..., NormBound],
        state: tuple[Any, ...],
    ) -> NormBound:
        former = self._entries.pop(key, None)  # if it raises, nothing stale is left behind
        bound = compute(weight, **options)
        entries = self._entries
        reference = weakref.ref(weight, lambda _: entries.pop(key, None))
        anchor = _copy(weight, None if former is None else former.anchor)
        restless = 0 if former is None else former.restless + 1
        entries[key] = _Entry(reference, anchor, 1.0, bound, state, bound, restless)
        self.computed += 1
        return bound


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _settle_rounding(weight: Tensor, entry: _Entry) -> None:
    """Make a matrix that was just rescaled its own anchor, its rounding bounded by hand.

    Each entry is off by at most eps of itself, or by the least normal number, so the matrix is
    off by eps times its Frobenius norm, at most sqrt(rank) times its norm.
    """
    kind = torch.finfo(weight.dtype)
    rank = math.sqrt(min(weight.shape)) if weight.dim() == 2 else math.inf
    moved = 2.0 * kind.eps * rank * entry.certified.value + 2.0 * kind.tiny * math.sqrt(
        weight.numel()
    )
    if not moved <= _ROUNDING * entry.certified.value:
        return
    value = up(entry.certified.value + up(moved))
    entry.certified = entry.current = NormBound(value, entry.certified.method)
    entry.anchor, entry.scale, entry.state = _copy(weight, entry.anchor), 1.0, _state(weight)


def _state(weight: Tensor) -> tuple[Any, ...]:
    """What changes with a weight, unless it is written to behind torch's back."""
    return weight._version, weight.data_ptr(), weight.shape, weight.dtype, weight.device


def _copy(weight: Tensor, into: Tensor | None) -> Tensor:
    """Copy a weight, into the memory of an anchor that is no longer needed where it fits."""
    weight = weight.detach()
    alike = into is not None and (into.shape, into.dtype, into.device) == (
        weight.shape,
        weight.dtype,
        weight.device,
    )
    return into.copy_(weight) if into is not None and alike else weight.clone()


def _is_new(weight: Tensor, entry: _Entry) -> bool:
    """Whether a weight is neither the anchor nor a rescaling of it."""
    return entry.scale == 1.0 and not torch.equal(weight.detach(), entry.anchor)


def _distance(weight: Tensor, entry: _Entry) -> tuple[Tensor, float]:
    """Return ``D = weight - scale * anchor`` as computed, and a bound on the exact ||D||_F.

    The bound is infinite if something is not finite.
    """
    wide = torch.float64
    if weight.device.type == "mps":
        wide = torch.float32
    elif entry.scale == 1.0:  # then the only rounding is that of one subtraction
        wide = torch.promote_types(weight.dtype, torch.float32)
    # The anchor itself is never changed: all of its rescaling is in one exact number.
    scaled = entry.anchor.to(wide) * entry.scale
    difference = weight.to(wide) - scaled
    count = difference.numel()
    summed = torch.float64 if weight.device.type != "mps" else wide
    size = float(torch.linalg.vector_norm(difference, dtype=summed))
    reference = 0.0
    if entry.scale != 1.0:
        reference = float(torch.linalg.vector_norm(scaled, dtype=summed))
    if not (math.isfinite(size) and math.isfinite(reference)):
        return difference, math.inf
    roundings = 1.0 + relative(count) + 4.0 * (count + 8) * torch.finfo(summed).eps
    flushed = 4.0 * math.sqrt(count) * torch.finfo(wide).tiny
    unit = 2.0 * torch.finfo(wide).eps
    return difference, up((size * (1.0 + unit) + unit * reference) * roundings + flushed)


def _matrix_drift(weight: Tensor, entry: _Entry, options: dict[str, Any], limit: float) -> float:
    return _distance(weight, entry)[1]


def _convolution_drift(
    weight: Tensor, entry: _Entry, options: dict[str, Any], limit: float
) -> float:
    difference, distance = _distance(weight, entry)
    if distance == 0.0:
        return 0.0
    geometry = {k: v for k, v in options.items() if k not in ("method", "tolerance", "groups")}
    factor = kernel_factor(weight.shape, **geometry)
    moved = up(factor * distance)
    # Noise of n x m entries and length one has spectral norm about 1/sqrt(n) + 1/sqrt(m): try
    # the reshaped difference only where that would suffice.
    small = min(weight.shape[:2])
    noise = small**-0.5 + (small / weight.numel()) ** 0.5
    if moved <= limit or not moved * noise <= limit:
        return moved
    bound = conv_norm(difference, **{**options, "method": "flat"})
    reference = float(torch.linalg.vector_norm(weight, dtype=difference.dtype)) + distance
    rounding = 4.0 * torch.finfo(difference.dtype).eps * reference
    return min(moved, up(bound.value + factor * rounding))
