"""Largest gradient norms of loss functions, per record and with respect to the outputs.

Proofs: docs/proofs/losses.md; all rounded up.
"""

from __future__ import annotations

import math

from noisewise.arithmetic import hypotenuse, loose, product, root

__all__ = ["cross_entropy", "cross_entropy_simplex", "entrywise"]


def _largest_miss(classes: int, logit_norm: float) -> float:
    """Largest 1 - p_y when no two logits differ by more than sqrt(2) * logit_norm."""
    if math.isinf(logit_norm):
        return 1.0
    least = math.exp(-math.sqrt(2.0) * logit_norm)
    return min(1.0, loose((classes - 1) / (classes - 1 + least)))


def cross_entropy(classes: int, logit_norm: float = math.inf) -> float:
    """Return the bound on ||p - e_y||: sqrt(2), or less for logits of bounded norm B.

    Two logits differ by at most sqrt(2) B. Hence 1 - p_y <= a and p_j <= m with
    e = exp(-sqrt(2) B), a = (c - 1)/(c - 1 + e), m = 1/(1 + (c - 1) e), and
    ||p - e_y||^2 <= a^2 + a min(a, m). A soft target is a mean of hard ones.
    """
    if classes < 2:
        return 0.0
    miss = _largest_miss(classes, logit_norm)
    if math.isinf(logit_norm):
        return root(2.0)
    least = math.exp(-math.sqrt(2.0) * logit_norm)
    largest = loose(1.0 / (1.0 + (classes - 1) * least))
    return min(root(2.0), loose(math.sqrt(miss * miss + miss * min(miss, largest))))


def cross_entropy_simplex(classes: int, logit_norm: float = math.inf) -> float:
    """Return a with p - e_y in a * conv{e_j - e_y}: the largest 1 - p_y."""
    return _largest_miss(classes, logit_norm)


def entrywise(slopes: list[float] | float, entries: int, reduction: str) -> float:
    """Norm of a gradient whose entries are at most `slopes`, summed or averaged over entries."""
    if isinstance(slopes, float):
        norm = product(slopes, root(entries))
    else:
        repeats = entries // len(slopes)
        norm = product(root(repeats), hypotenuse(*slopes))
    return loose(norm / entries) if reduction == "mean" else norm
