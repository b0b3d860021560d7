"""Absolute, Huber and squared error, with their constants."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from noisewise import checks
from noisewise.arithmetic import loose, product, root, total
from noisewise.bounds import Signal, register_loss
from noisewise.bounds.losses import constants, reduce_entries
from noisewise.nn.losses.base import EntryLoss, RecordLossRule

__all__ = ["Huber", "MeanAbsolute", "MeanSquared"]


class MeanAbsolute(EntryLoss):
    """|z - y|, the mean (or, with over="sum", the sum) over the outputs of a record."""

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        return reduce_entries((output - target).abs(), self.over)


@register_loss(MeanAbsolute)
class MeanAbsoluteRule(RecordLossRule):
    """1/sqrt(c) for the mean, sqrt(c) for the sum."""

    def lipschitz(self, loss: MeanAbsolute, output: Signal) -> float:
        """Slope one per output."""
        return constants.entrywise(1.0, output.size, loss.over)


class Huber(EntryLoss):
    """Quadratic up to `delta`, then linear; see ``torch.nn.HuberLoss``."""

    def __init__(self, delta: float = 1.0, over: str = "mean", reduction: str = "none") -> None:
        super().__init__(over, reduction)
        self.delta = checks.positive("delta", delta)

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        values = functional.huber_loss(output, target, reduction="none", delta=self.delta)
        return reduce_entries(values, self.over)


@register_loss(Huber)
class HuberRule(RecordLossRule):
    """delta sqrt(c) for the sum, delta/sqrt(c) for the mean."""

    def lipschitz(self, loss: Huber, output: Signal) -> float:
        """Slope delta per output."""
        return constants.entrywise(loss.delta, output.size, loss.over)


class MeanSquared(EntryLoss):
    """(z - y)^2 for targets in a public range [low, high], to which they are clamped.

    Parameters
    ----------
    low, high : float
        Public range of the targets.
    clamp : bool
        Also clamp the outputs, which bounds the slope by 2 (high - low); outside the range
        the gradient is zero. Without it, the bound comes from the norm of the outputs.
    """

    def __init__(
        self,
        low: float,
        high: float,
        clamp: bool = False,
        over: str = "mean",
        reduction: str = "none",
    ) -> None:
        super().__init__(over, reduction)
        self.low, self.high = checks.finite("low", low), checks.finite("high", high)
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {low!r} and {high!r}")
        self.clamp = clamp

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        inside = target.to(output.dtype).clamp(self.low, self.high)
        guess = output.clamp(self.low, self.high) if self.clamp else output
        return reduce_entries((guess - inside).square(), self.over)

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"low={self.low:g}, high={self.high:g}, clamp={self.clamp}, over={self.over!r}"


@register_loss(MeanSquared)
class MeanSquaredRule(RecordLossRule):
    """2 ||z - y|| <= 2 (B + R), R = sqrt(c) max(|low|, |high|); clamped 2 sqrt(c) (high - low)."""

    def lipschitz(self, loss: MeanSquared, output: Signal) -> float:
        """Smaller of what is known."""
        reach = product(root(output.size), max(abs(loss.low), abs(loss.high)))
        distance = total(output.norm, reach)
        if loss.clamp:
            width = loose(loss.high - loss.low)
            distance = min(distance, product(root(output.size), width))
        slope = product(2.0, distance)
        return loose(slope / output.size) if loss.over == "mean" else slope
