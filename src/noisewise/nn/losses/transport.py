"""Losses of 1-Lipschitz classifiers from optimal transport, with public class priors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noisewise import checks
from noisewise.arithmetic import hypotenuse, loose
from noisewise.bounds import Signal, register_loss
from noisewise.errors import UnsupportedModelError
from noisewise.nn.losses.base import RecordLoss, RecordLossRule, signs

__all__ = ["HingeKantorovichRubinstein", "KantorovichRubinstein"]


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
        values = [checks.fraction("priors", prior) for prior in given]
        self.register_buffer("priors", torch.tensor(values))

    def weights(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the factors before the outputs: 1/p for the class, -1/(1 - p) for others."""
        priors = self.priors.to(output)
        own = signs(output, target) > 0
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
        self.alpha = checks.probability("alpha", alpha, zero=True)
        self.margin = checks.positive("margin", margin, zero=True)

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        flat = output.reshape(output.shape[0], -1)
        hinge = (self.margin / 2 - signs(flat, target) * flat).relu().mean(dim=1)
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
