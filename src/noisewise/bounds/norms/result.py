"""What a certified norm is: an upper bound that is proven, and the method that proved it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NormBound"]


@dataclass(frozen=True)
class NormBound:
    """A proven upper bound on the norm of a linear map.

    Attributes
    ----------
    value : float
        The true norm of the stored weight is at most this number; every rounding
        error made on the way is already included.
    method : str
        The proof that gave the number, for example ``"cholesky"``.
    """

    value: float
    method: str

    def __float__(self) -> float:
        return self.value
