"""Published Lip-DP-SGD, as printed and with one fault after the other repaired.

Lip-DP-SGD (Barczewski and Ramon 2024, algorithm 2; Barczewski 2025, algorithm 8) has no clipping
norm: each layer has
a bound of its own, from the spectral norms of the layers above it. So that a tool for clipping
norms can look at it, every layer is measured in units of its bound: what is released is the sum
of layer k, and its noise, times C over its bound. That is a public factor per layer, like a
learning rate, and changes nothing about privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from noisewise.nn import GroupSort

__all__ = ["PRINTED_2024", "PRINTED_2025", "REPAIRED", "Printed", "network"]

Data = tuple[Tensor, Tensor]
# Inputs are scaled to this norm (Barczewski and Ramon 2024, section 3.2: "X_1").
INPUT_NORM = 2.0
TAU = math.sqrt(2)


def network() -> nn.Module:
    """Three layers that keep norms, so that a record can reach the bounds of all of them."""
    layers = [nn.Linear(8, 8, bias=False) for _ in range(3)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    first, second, third = layers
    return nn.Sequential(first, GroupSort(2), second, GroupSort(2), third)


@dataclass(frozen=True)
class Printed:
    """Lip-DP-SGD with four switches; the first value of each is what is printed.

    Parameters
    ----------
    scale
        ``batch`` divides by the largest layer input of the batch (004, algorithm 8, lines 11
        and 13); ``public`` leaves the gradient and bounds the input by propagation (000,
        algorithm 1); ``own`` divides by each record's own input norm, which is sound.
    product
        ``from k`` multiplies the norms of layer k and those above it (004, algorithm 8, line
        5); ``above k`` only those above (004, equation 5.2.14; 000, algorithm 1).
    noise
        ``each`` gives each of K layers sigma times its bound, accounted as one (000, line 13;
        004, line 12); ``joint`` takes sqrt(K) times as much.
    divisor
        ``drawn`` divides by the size of the batch (000, line 14; 004, line 13); ``expected``
        by a constant.
    empty
        ``again`` draws until a batch has records (000 and 004, line 7); ``noise`` takes a step
        of noise.
    """

    scale: str = "batch"
    product: str = "from k"
    noise: str = "each"
    divisor: str = "drawn"
    empty: str = "again"

    def __call__(
        self,
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: Data,
        init: dict[str, Tensor],
        steps: int,
        lr: float,
    ) -> dict[str, Tensor]:
        """Train from `init` and return the weights."""
        torch.manual_seed(seed)
        model = network()
        model.load_state_dict(init)
        weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
        x, y = data
        if self.scale == "public":
            x = INPUT_NORM * x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
        for _ in range(steps):
            batch = self._draw(len(x), batch_size)
            norms = [float(torch.linalg.matrix_norm(w.detach(), 2)) for w in weights]
            totals = self._sums(model, weights, x[batch], y[batch])
            size = len(batch) if self.divisor == "drawn" else batch_size
            spread = math.sqrt(len(weights)) if self.noise == "joint" else 1.0
            with torch.no_grad():
                for k, (weight, total) in enumerate(zip(weights, totals, strict=True)):
                    bound = TAU * math.prod(norms[k if self.product == "from k" else k + 1 :])
                    if self.scale == "public":
                        bound *= INPUT_NORM * math.prod(norms[:k])
                    released = total / bound + spread * noise_multiplier * torch.randn_like(weight)
                    weight -= lr * clip * released / size
        return model.state_dict()

    def _draw(self, total: int, batch_size: int) -> Tensor:
        while True:
            batch = torch.nonzero(torch.rand(total) < batch_size / total).flatten()
            if len(batch) > 0 or self.empty == "noise":
                return batch

    def _sums(self, model: nn.Module, weights: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the sum of each layer over the records, scaled as the algorithm says."""
        gradients, inputs = [], []
        for one, target in zip(x, y, strict=True):
            hidden, seen = one[None], []
            for layer in model:
                seen += [float(hidden.detach().norm())] if isinstance(layer, nn.Linear) else []
                hidden = layer(hidden)
            found = torch.autograd.grad(cross_entropy(hidden, target[None]), weights)
            # A record that is not finite is none of the faults that are looked for here.
            if all(bool(torch.isfinite(g).all()) for g in found):
                gradients.append(found)
                inputs.append(seen)
        totals = []
        for k, weight in enumerate(weights):
            largest = max((seen[k] for seen in inputs), default=1.0)
            total = torch.zeros_like(weight)
            for gradient, seen in zip(gradients, inputs, strict=True):
                own = {"batch": largest, "own": seen[k], "public": 1.0}[self.scale]
                total += gradient[k] / max(own, 1e-12)
            totals.append(total)
        return totals


PRINTED_2024 = Printed(scale="public", product="above k")
PRINTED_2025 = Printed()
REPAIRED = Printed("own", "above k", "joint", "expected", "noise")
