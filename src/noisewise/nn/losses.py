"""Losses with a known Lipschitz constant, computed record by record.

Each returns one loss per record unless told otherwise; the constants (section 4 of the
soundness notes, losses) bound the gradient of one record's loss with respect to its output.
Targets are first brought into the range for which the constant holds, record by record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.bounds import LossRule, Signal, register_loss
from noisewise.bounds.arithmetic import hypotenuse, loose, product, quotient, root, total
from noisewise.bounds.losses import constants
from noisewise.bounds.losses.torch_losses import reduce_entries, to_simplex
from noisewise.bounds.rules.vectors import largest_entry
from noisewise.errors import UnsupportedModelError
from noisewise.privacy import _validate

__all__ = [
    "BinaryCrossEntropy",
    "CosineSimilarity",
    "CrossEntropy",
    "HingeKantorovichRubinstein",
    "Huber",
    "KantorovichRubinstein",
    "MeanAbsolute",
    "MeanSquared",
    "MulticlassHinge",
]


class RecordLoss(nn.Module):
    """A loss that is defined for one record; `reduction` only says how records are combined."""

    def __init__(self, reduction: str = "none") -> None:
        super().__init__()
        self.reduction = _validate.choice("reduction", reduction, ("none", "sum", "mean"))

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        raise NotImplementedError

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Losses of a batch: one per record, or their sum or mean."""
        losses = self.per_record(output, target)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()


class RecordLossRule(LossRule[Any]):
    """Common part of the rules below."""

    classes = False

    def check(self, loss: Any, output: Signal) -> None:
        """Class losses need one axis of outputs."""
        if self.classes and len(output.shape) != 1:
            raise UnsupportedModelError(
                f"the loss {type(loss).__name__} takes outputs of shape (batch, classes), got "
                f"records of shape {output.shape}. Flatten the model's output."
            )

    def losses(self, loss: RecordLoss, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        return loss.per_record(output, target)


class CrossEntropy(RecordLoss):
    """Softmax cross-entropy with a temperature.

    Parameters
    ----------
    temperature : float
        t > 0, see `form`.
    form : {"sharpen", "soften"}
        `sharpen`: CE(t z)/t, whose Lipschitz constant is sqrt(2) for every t; a large t
        makes the most of a network with a small range. `soften`: CE(z/t), constant
        sqrt(2)/t, the papers' form.
    label_smoothing : float
        As of torch.
    weight : sequence of float, optional
        Public class weights, one constant per class.

    Notes
    -----
    The target is a class index, or one row of probabilities per record; negative entries
    of such a row count as zero, and a row that sums to more than one is divided by its sum.

    Examples
    --------
    >>> import torch
    >>> CrossEntropy()(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([4.0000])
    """

    weight: Tensor | None

    def __init__(
        self,
        temperature: float = 1.0,
        form: str = "sharpen",
        label_smoothing: float = 0.0,
        weight: Sequence[float] | Tensor | None = None,
        reduction: str = "none",
    ) -> None:
        super().__init__(reduction)
        self.temperature = _validate.positive("temperature", temperature)
        self.form = _validate.choice("form", form, ("sharpen", "soften"))
        self.label_smoothing = _validate.probability("label_smoothing", label_smoothing, zero=True)
        self.register_buffer("weight", _public_weights(weight))

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        if target.is_floating_point():
            target = to_simplex(target)
        sharpen = self.form == "sharpen"
        logits = output * self.temperature if sharpen else output / self.temperature
        losses = functional.cross_entropy(
            logits,
            target,
            weight=None if self.weight is None else self.weight.to(logits.dtype),
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        return losses / self.temperature if sharpen else losses

    def extra_repr(self) -> str:
        """Settings, as given."""
        return f"temperature={self.temperature:g}, form={self.form!r}"


@register_loss(CrossEntropy)
class CrossEntropyRule(RecordLossRule):
    """The gradient is p - e_y, times 1/t for `soften`; logits are stretched by t or 1/t."""

    shift_invariant = True
    classes = True

    @staticmethod
    def _parts(loss: CrossEntropy, output: Signal) -> tuple[float, float]:
        """Bound on the stretched logits, and the factor before p - e_y."""
        weight, heat = largest_entry(loss.weight), loss.temperature
        if loss.form == "sharpen":
            return product(output.norm, heat), weight
        return quotient(output.norm, heat), quotient(weight, heat)

    def lipschitz(self, loss: CrossEntropy, output: Signal) -> float:
        """sqrt(2), or less where the logits are bounded."""
        norm, factor = self._parts(loss, output)
        return product(factor, constants.cross_entropy(output.shape[0], norm))

    def simplex(self, loss: CrossEntropy, output: Signal) -> float | None:
        """Scale of conv{e_j - e_y}."""
        norm, factor = self._parts(loss, output)
        return product(factor, constants.cross_entropy_simplex(output.shape[0], norm))


class MulticlassHinge(RecordLoss):
    """Hinge losses of a classifier with class index targets.

    Parameters
    ----------
    margin : float
        m >= 0.
    form : {"pairwise", "one-vs-all", "one-vs-all-mean", "max"}
        `pairwise`: sum over i != y of max(0, m - z_y + z_i), over c; constant
        sqrt((c - 1)/c). `one-vs-all`: sum of max(0, m/2 - s_i z_i) with s_i = 1 for the
        class and -1 for others; constant sqrt(c), or 1/sqrt(c) for the mean. `max`:
        max(0, m - z_y + max z_i) (Crammer and Singer); constant sqrt(2).
    """

    def __init__(
        self, margin: float = 1.0, form: str = "pairwise", reduction: str = "none"
    ) -> None:
        super().__init__(reduction)
        self.margin = _validate.positive("margin", margin, zero=True)
        self.form = _validate.choice(
            "form", form, ("pairwise", "one-vs-all", "one-vs-all-mean", "max")
        )

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        if self.form.startswith("one-vs-all"):
            hinges = (self.margin / 2 - _signs(output, target) * output).relu()
            return hinges.mean(dim=1) if self.form.endswith("mean") else hinges.sum(dim=1)
        own = output.gather(1, target[:, None])
        others = torch.ones_like(output, dtype=torch.bool).scatter(1, target[:, None], False)
        if self.form == "pairwise":
            hinges = (self.margin - own + output).relu() * others
            return hinges.sum(dim=1) / output.shape[1]
        rival = output.masked_fill(~others, -math.inf).amax(dim=1)
        return (self.margin - own[:, 0] + rival).relu()

    def extra_repr(self) -> str:
        """Settings, as given."""
        return f"margin={self.margin:g}, form={self.form!r}"


@register_loss(MulticlassHinge)
class MulticlassHingeRule(RecordLossRule):
    """Gradients have entries in {-1, 0, 1}, or (c - 1 times -1/c, 1/c, ...)."""

    classes = True

    def lipschitz(self, loss: MulticlassHinge, output: Signal) -> float:
        """The constant of the form."""
        classes = output.shape[0]
        if loss.form == "pairwise":
            return loose(math.sqrt((classes - 1) / classes))
        if loss.form == "max":
            return root(2.0)
        reduction = "mean" if loss.form.endswith("mean") else "sum"
        return constants.entrywise(1.0, classes, reduction)

    def simplex(self, loss: MulticlassHinge, output: Signal) -> float | None:
        """Scale of conv{e_j - e_y}: c - 1 pairs over c, or one pair."""
        if loss.form == "pairwise":
            return loose((output.shape[0] - 1) / output.shape[0])
        return 1.0 if loss.form == "max" else None


class CosineSimilarity(RecordLoss):
    """1 - <z, y>/(max(||z||, floor) ||y||): the floor makes it Lipschitz, 1/floor.

    The target is a class index (then y is its unit vector) or a vector per record.
    """

    def __init__(self, floor: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.floor = _validate.positive("floor", floor)

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        flat = output.flatten(1)
        if target.is_floating_point():
            direction = functional.normalize(target.flatten(1).to(flat.dtype), dim=1)
        else:
            direction = functional.one_hot(target, flat.shape[1]).to(flat.dtype)
        # The root of a value >= floor^2 keeps the gradient at zero finite.
        length = flat.square().sum(dim=1).clamp_min(self.floor**2).sqrt()
        return 1.0 - (flat * direction).sum(dim=1) / length

    def extra_repr(self) -> str:
        """Settings, as given."""
        return f"floor={self.floor:g}"


@register_loss(CosineSimilarity)
class CosineSimilarityRule(RecordLossRule):
    """y/floor inside the ball of that radius, (I - uu')y/||z|| outside."""

    def lipschitz(self, loss: CosineSimilarity, output: Signal) -> float:
        """One over the floor."""
        return quotient(1.0, loss.floor)


class _OverEntries(RecordLoss):
    """A function of each output, summed or averaged over the outputs of a record."""

    def __init__(self, over: str = "mean", reduction: str = "none") -> None:
        super().__init__(reduction)
        self.over = _validate.choice("over", over, ("mean", "sum"))

    def extra_repr(self) -> str:
        """Settings, as given."""
        return f"over={self.over!r}"


class MeanAbsolute(_OverEntries):
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


class Huber(_OverEntries):
    """Quadratic up to `delta`, then linear; see ``torch.nn.HuberLoss``."""

    def __init__(self, delta: float = 1.0, over: str = "mean", reduction: str = "none") -> None:
        super().__init__(over, reduction)
        self.delta = _validate.positive("delta", delta)

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


class BinaryCrossEntropy(_OverEntries):
    """Cross-entropy of independent yes/no outputs, from logits; targets are clamped to [0, 1].

    Parameters
    ----------
    pos_weight : float or sequence of float, optional
        Public factor before the positive term, one or one per output.
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        pos_weight: float | Sequence[float] | Tensor | None = None,
        over: str = "mean",
        reduction: str = "none",
    ) -> None:
        super().__init__(over, reduction)
        self.register_buffer("pos_weight", _public_weights(pos_weight))

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        values = functional.binary_cross_entropy_with_logits(
            output,
            target.to(output.dtype).clamp(0.0, 1.0),
            pos_weight=None if self.pos_weight is None else self.pos_weight.to(output.dtype),
            reduction="none",
        )
        return reduce_entries(values, self.over)


@register_loss(BinaryCrossEntropy)
class BinaryCrossEntropyRule(RecordLossRule):
    """Slope max(1, pos_weight) per output."""

    def check(self, loss: BinaryCrossEntropy, output: Signal) -> None:
        """One weight per output, on the last axis."""
        weight = loss.pos_weight
        if weight is not None and weight.numel() not in (1, (output.shape or (1,))[-1]):
            raise UnsupportedModelError(
                f"the loss BinaryCrossEntropy has {weight.numel()} values of pos_weight for "
                f"outputs of shape {output.shape}. Give one, or one per output."
            )

    def lipschitz(self, loss: BinaryCrossEntropy, output: Signal) -> float:
        """Root of the sum of squared slopes."""
        if loss.pos_weight is None:
            return constants.entrywise(1.0, output.size, loss.over)
        slopes = [max(1.0, float(value)) for value in loss.pos_weight.double().flatten()]
        return constants.entrywise(slopes, output.size, loss.over)


class MeanSquared(_OverEntries):
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
        self.low, self.high = _validate.finite("low", low), _validate.finite("high", high)
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {low!r} and {high!r}")
        self.clamp = clamp

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        inside = target.to(output.dtype).clamp(self.low, self.high)
        guess = output.clamp(self.low, self.high) if self.clamp else output
        return reduce_entries((guess - inside).square(), self.over)

    def extra_repr(self) -> str:
        """Settings, as given."""
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


class KantorovichRubinstein(RecordLoss):
    """Dual form of the Wasserstein distance between classes, with public class priors.

    E[f | y] - E[f | not y] estimated as a mean over records of z_k times 1/p_k (its class)
    or -1/(1 - p_k) (another), negated to be minimised, averaged over outputs. Priors p are
    constants; weighting by the class counts of a batch would couple its records.

    Parameters
    ----------
    priors : float or sequence of float
        Public probability of each class; one number for a single yes/no output.
    """

    priors: Tensor

    def __init__(self, priors: float | Sequence[float] = 0.5, reduction: str = "none") -> None:
        super().__init__(reduction)
        given = [priors] if isinstance(priors, (int, float)) else list(priors)
        values = [_validate.fraction("priors", prior) for prior in given]
        self.register_buffer("priors", torch.tensor(values, dtype=torch.float64))

    def weights(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the factors before the outputs: 1/p for the class, -1/(1 - p) for others."""
        priors = self.priors.to(output)
        own = _signs(output, target) > 0
        return torch.where(own, 1.0 / priors, -1.0 / (1.0 - priors))

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        flat = output.reshape(output.shape[0], -1)
        return -(self.weights(flat, target) * flat).mean(dim=1)


class HingeKantorovichRubinstein(KantorovichRubinstein):
    """(1 - alpha) times the Kantorovich-Rubinstein loss plus alpha times a mean hinge loss.

    The hinge of output k is max(0, margin/2 - s_k z_k), s_k = 1 for the class, -1 otherwise.
    """

    def __init__(
        self,
        priors: float | Sequence[float] = 0.5,
        alpha: float = 0.5,
        margin: float = 1.0,
        reduction: str = "none",
    ) -> None:
        super().__init__(priors, reduction)
        self.alpha = _validate.probability("alpha", alpha, zero=True)
        self.margin = _validate.positive("margin", margin, zero=True)

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        flat = output.reshape(output.shape[0], -1)
        hinge = (self.margin / 2 - _signs(flat, target) * flat).relu().mean(dim=1)
        return (1.0 - self.alpha) * super().per_record(output, target) + self.alpha * hinge


@register_loss(KantorovichRubinstein, HingeKantorovichRubinstein)
class KantorovichRubinsteinRule(RecordLossRule):
    """Both parts pull an output the same way, so their slopes add, output by output."""

    def check(self, loss: KantorovichRubinstein, output: Signal) -> None:
        """One prior per output."""
        if loss.priors.numel() != output.size:
            raise UnsupportedModelError(
                f"the loss {type(loss).__name__} has {loss.priors.numel()} priors for "
                f"{output.size} outputs. Give one public prior per output."
            )

    def lipschitz(self, loss: KantorovichRubinstein, output: Signal) -> float:
        """Largest over the classes of the norm of all slopes."""
        alpha = float(getattr(loss, "alpha", 0.0))
        own = [loose((1 - alpha) / p + alpha) for p in loss.priors.tolist()]
        other = [loose((1 - alpha) / (1 - p) + alpha) for p in loss.priors.tolist()]
        if len(own) == 1:
            return max(own[0], other[0])
        norms = [
            hypotenuse(*(own[k] if k == y else other[k] for k in range(len(own))))
            for y in range(len(own))
        ]
        return loose(max(norms) / len(own))


def _signs(output: Tensor, target: Tensor) -> Tensor:
    """Return +1 at the class of each record (or for a yes), -1 elsewhere."""
    if output.shape[1] == 1:
        positive = target.reshape(-1, 1) > 0
    else:
        positive = functional.one_hot(target, output.shape[1]).bool()
    return torch.where(positive, 1.0, -1.0).to(output.dtype)


def _public_weights(weight: float | Sequence[float] | Tensor | None) -> Tensor | None:
    if weight is None:
        return None
    values = torch.as_tensor(weight, dtype=torch.float64).detach().clone().reshape(-1)
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ValueError(f"weights must be finite and >= 0, got {weight!r}")
    return values
