"""Which mistake makes one record contribute too much: its contributions against its gradient.

The test `contribution` says *that* one is too long. Here its shape, tensor by tensor and over
several clipping norms, is compared with the raw gradient of the same record to say *why*.
"""

from __future__ import annotations

import math

import numpy as np

from noisewise.debugging.bench import Bench
from noisewise.debugging.knowledge import Canary

__all__ = ["clipping_mistake"]


def clipping_mistake(bench: Bench, canaries: list[Canary]) -> tuple[str, str]:
    """Compare the contributions with the raw gradients, tensor by tensor, to name the mistake."""
    slices = bench.box.slices
    middle = float(np.median([canary.norm for canary in canaries]))
    usual = [c for c in canaries if 1e-3 * middle < c.norm < 1e3 * middle]
    if usual and max(c.ratio for c in usual) > 1.01:
        canaries = usual
    elif usual:
        odd = max(canaries, key=lambda c: c.ratio)
        which = f"only a record with a gradient of norm {odd.norm:.1g} is not bounded: its norm "
        if odd.norm > middle:
            why = "overflows (half precision?) and counts as small or missing."
            return "norm-overflows", which + why
        why = "underflows (half precision?): squares of small elements vanish, so that it is small."
        return "norm-underflows", which + why
    strong = [d for d in canaries if d.clip < 0.5 * d.norm]
    if not strong:
        return "sensitivity-exceeds-clip", "contributions are not bounded by the clipping norm."
    if not bench.adam and all(
        np.allclose(d.row, d.gradient, rtol=1e-2, atol=1e-4 * d.norm) for d in strong
    ):
        return "no-clipping", "gradients are not clipped at all."
    pairs = [
        (a, b)
        for a in strong
        for b in strong
        if a.clip < b.clip and a.norm == b.norm and np.linalg.norm(a.row) > 0
    ]
    if pairs and all(np.allclose(a.row, b.row, rtol=1e-3, atol=1e-5 * a.norm) for a, b in pairs):
        return "clip-ignored", "the clipping norm that is asked for has no effect."
    unclipped = [
        name
        for name, part in slices.items()
        if not bench.adam
        and all(
            np.allclose(d.row[part], d.gradient[part], rtol=1e-2, atol=1e-5 * d.norm)
            for d in strong
        )
        and any(np.linalg.norm(d.gradient[part]) > 1e-3 * d.norm for d in strong)
    ]
    if unclipped:
        return "tensor-not-clipped", f"these tensors are not clipped: {', '.join(unclipped)}."
    factors = [_factor(d) for d in strong]
    if all(f is not None for f in factors):
        known = [(d, f) for d, f in zip(strong, factors, strict=True) if f is not None]
        ratios = np.asarray([f * d.norm / d.clip for d, f in known])
        if np.ptp(ratios) < 0.02 * ratios.mean():
            return "clips-to-multiple", f"gradients are clipped to {ratios.mean():.3g} C."
        squares = ratios * np.asarray([d.norm for d, _ in known])
        if np.ptp(squares) < 0.05 * np.max(squares):
            return "squared-norm", "gradients are divided by their squared norm."
        if (omitted := _omitted(slices, known)) is not None:
            return "norm-omits-tensor", f"the norm that is clipped leaves out {omitted}."
        # Contributions may be parallel to the gradient although every layer is bounded alone.
        worst = max(strong, key=lambda d: d.ratio)
        lengths = [float(np.linalg.norm(worst.row[part])) / worst.clip for part in slices.values()]
        if max(lengths) < 1.01 and sum(length > 0.9 for length in lengths) > 1:
            return "clipped-per-layer", _per_layer(len(slices))
        return "wrong-norm", "gradients are scaled by something other than C over their norm."
    if all(np.max(np.abs(d.row)) <= d.clip * 1.001 for d in strong):
        norms = [
            float(np.linalg.norm(d.row[part])) / d.clip for d in strong for part in slices.values()
        ]
        if max(norms) < 1.01:
            return "clipped-per-layer", _per_layer(len(slices))
        return "elements-clamped", "single elements are clamped to C instead of the norm."
    return "sensitivity-exceeds-clip", "contributions are not bounded by the clipping norm."


def _omitted(slices: dict[str, slice], known: list[tuple[Canary, float]]) -> str | None:
    """A tensor or module without which the norm fits every factor."""
    groups: dict[str, list[slice]] = {}
    for name, part in slices.items():
        groups.setdefault(name, []).append(part)
        groups.setdefault(name.rpartition(".")[0] or name, []).append(part)
    for name, parts in groups.items():
        distinct = {(part.start, part.stop): part for part in parts}.values()
        rest = [
            math.sqrt(max(d.norm**2 - sum(np.sum(d.gradient[p] ** 2) for p in distinct), 0.0))
            for d, _ in known
        ]
        if all(
            abs(f * r / d.clip - 1) < 0.02
            for (d, f), r in zip(known, rest, strict=True)
            if r > d.clip
        ):
            return name
    return None


def _per_layer(tensors: int) -> str:
    return (
        f"each tensor is clipped to C on its own, so the whole of {tensors} tensors is bounded "
        f"only by sqrt({tensors}) C."
    )


def _factor(canary: Canary) -> float | None:
    """Return the factor between contribution and gradient if they are parallel."""
    row, gradient = canary.row, canary.gradient
    size = float(np.linalg.norm(row))
    if size == 0:
        return None
    factor = float(row @ gradient) / float(gradient @ gradient)
    parallel = float(np.linalg.norm(row - factor * gradient)) < 1e-2 * size
    return factor if parallel else None
