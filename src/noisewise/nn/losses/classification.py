"""Cross-entropy, hinge and cosine losses of classifiers, with their constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from noisewise import checks
from noisewise.arithmetic import loose, product, quotient, root
from noisewise.bounds import Signal, register_loss
from noisewise.bounds.losses import class_labels, constants, reduce_entries, to_simplex
from noisewise.bounds.rules import largest_entry, wide
from noisewise.errors import UnsupportedModelError
from noisewise.nn.losses.base import (
    EntryLoss,
    RecordLoss,
    RecordLossRule,
    one_hot,
    public_weights,
    signs,
)

__all__ = ["BinaryCrossEntropy", "CosineSimilarity", "CrossEntropy", "MulticlassHinge"]


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
    >>> CrossEntropy()(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.6931])
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
        self.temperature = checks.positive("temperature", temperature)
        self.form = checks.choice("form", form, ("sharpen", "soften"))
        self.label_smoothing = checks.probability("label_smoothing", label_smoothing, zero=True)
        self.register_buffer("weight", public_weights(weight))

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        if target.is_floating_point():
            target = to_simplex(target)
        else:
            target = class_labels(target, output.shape[1])
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
        """Return the settings, as given."""
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
        self.margin = checks.positive("margin", margin, zero=True)
        self.form = checks.choice(
            "form", form, ("pairwise", "one-vs-all", "one-vs-all-mean", "max")
        )

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        if self.form.startswith("one-vs-all"):
            hinges = (self.margin / 2 - signs(output, target) * output).relu()
            return hinges.mean(dim=1) if self.form.endswith("mean") else hinges.sum(dim=1)
        known = class_labels(target, output.shape[1], -1)
        label, counts = known.clamp_min(0)[:, None], known >= 0
        own = output.gather(1, label)
        others = torch.ones_like(output, dtype=torch.bool).scatter(1, label, False)
        if self.form == "pairwise":
            hinges = (self.margin - own + output).relu() * others
            return hinges.sum(dim=1) / output.shape[1] * counts
        rival = output.masked_fill(~others, -math.inf).amax(dim=1)
        return (self.margin - own[:, 0] + rival).relu() * counts

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"margin={self.margin:g}, form={self.form!r}"


@register_loss(MulticlassHinge)
class MulticlassHingeRule(RecordLossRule):
    """Gradients have entries in {-1, 0, 1}, or (c - 1 times -1/c, 1/c, ...)."""

    classes = True

    def lipschitz(self, loss: MulticlassHinge, output: Signal) -> float:
        """Return the constant of the form."""
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
        self.floor = checks.positive("floor", floor)

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        flat = output.flatten(1)
        if target.is_floating_point():
            direction = functional.normalize(target.flatten(1).to(flat.dtype), dim=1)
        else:
            direction = one_hot(target, flat).to(flat.dtype)
        # The root of a value >= floor^2 keeps the gradient at zero finite.
        length = flat.square().sum(dim=1).clamp_min(self.floor**2).sqrt()
        return 1.0 - (flat * direction).sum(dim=1) / length

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"floor={self.floor:g}"


@register_loss(CosineSimilarity)
class CosineSimilarityRule(RecordLossRule):
    """y/floor inside the ball of that radius, (I - uu')y/||z|| outside."""

    def lipschitz(self, loss: CosineSimilarity, output: Signal) -> float:
        """One over the floor."""
        return quotient(1.0, loss.floor)


class BinaryCrossEntropy(EntryLoss):
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
        self.register_buffer("pos_weight", public_weights(pos_weight))

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
        slopes = [max(1.0, float(value)) for value in wide(loss.pos_weight).flatten()]
        return constants.entrywise(slopes, output.size, loss.over)
