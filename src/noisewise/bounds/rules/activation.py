"""Rules of activations.

An activation f acts on each entry. With ``slope`` = sup |f'|, ``offset`` = |f(0)|, ``growth`` =
sup |f(x) - f(0)|/|x| and ``ceiling`` = sup |f|, a record of n entries obeys ||f(x)|| <=
min(sqrt(n) ceiling, sqrt(n) offset + growth X) (an offset needs sqrt(n):
docs/proofs/layers.md#activations). Suprema that have no closed form are rounded up; a test
encloses each by a fine grid and a bound on the second derivative.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from noisewise.arithmetic import hypotenuse, loose, product, root, total
from noisewise.bounds.layer import Call, Diagonal, LayerRule
from noisewise.bounds.registry import register
from noisewise.bounds.rules.vectors import largest_entry

__all__ = ["Constants", "ElementwiseRule"]

# sup of the derivative; the exact GELU has its at sqrt(2): Phi(sqrt 2) + sqrt 2 phi(sqrt 2).
GELU_SLOPE = loose(0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi))
GELU_TANH_SLOPE = 1.128994
SILU_SLOPE = 1.099840
MISH_SLOPE = 1.088499
SELU_SLOPE = loose(1.0507009873554804934193349852946 * 1.6732632423543772848170429916717)


@dataclass(frozen=True)
class Constants:
    """What is known of a function of one number."""

    slope: float
    growth: float | None = None
    offset: float = 0.0
    ceiling: float = math.inf


class ElementwiseRule(LayerRule[Any]):
    """A function of each entry alone."""

    def constants(self, call: Call[Any]) -> Constants:
        """Return the function's constants for the layer's settings."""
        raise NotImplementedError

    def lipschitz(self, call: Call[Any]) -> float:
        return self.constants(call).slope

    def output_norm(self, call: Call[Any]) -> float:
        known, spread = self.constants(call), root(call.size)
        growth = known.slope if known.growth is None else known.growth
        grown = total(product(spread, known.offset), product(growth, call.norm))
        return min(grown, product(spread, known.ceiling))

    def diagonal(self, call: Call[Any]) -> Diagonal:
        known = self.constants(call)
        growth = known.slope if known.growth is None else known.growth
        return Diagonal(known.slope, growth, known.offset)


class _Fixed(ElementwiseRule):
    known = Constants(1.0)

    def constants(self, call: Call[Any]) -> Constants:
        return self.known


@register(nn.ReLU)
class ReLURule(_Fixed):
    """max(x, 0)."""


@register(nn.Hardshrink, nn.Softshrink, nn.Tanhshrink)
class ShrinkRule(_Fixed):
    """Functions between 0 and x, differentiable almost everywhere with slope at most 1."""

    def check(self, call: Call[Any]) -> None:
        if getattr(call.module, "lambd", 0.0) < 0:
            call.refuse("has a negative threshold.", "Use lambd >= 0.")

    def jump(self, call: Call[Any]) -> str:
        return "jumps at its threshold" if isinstance(call.module, nn.Hardshrink) else ""


@register(nn.LeakyReLU)
class LeakyReLURule(ElementwiseRule):
    """X for a negative slope of at most one."""

    def constants(self, call: Call[nn.LeakyReLU]) -> Constants:
        return Constants(max(1.0, abs(call.module.negative_slope)))


@register(nn.RReLU)
class RandomizedReLURule(ElementwiseRule):
    """Leaky with a random negative slope between two limits."""

    def constants(self, call: Call[nn.RReLU]) -> Constants:
        return Constants(max(1.0, abs(call.module.lower), abs(call.module.upper)))


@register(nn.ELU)
class ELURule(ElementwiseRule):
    """alpha (e^x - 1) below zero: slope at most alpha there."""

    def constants(self, call: Call[nn.ELU]) -> Constants:
        return Constants(max(1.0, abs(call.module.alpha)))


@register(nn.CELU)
class CELURule(_Fixed):
    """alpha (e^(x/alpha) - 1) below zero: slope at most 1 for alpha > 0."""

    def check(self, call: Call[nn.CELU]) -> None:
        if call.module.alpha <= 0:
            call.refuse("with alpha <= 0 grows exponentially.", "Use alpha > 0.")


@register(nn.SELU)
class SELURule(_Fixed):
    """scale * alpha, the left slope at zero."""

    known = Constants(SELU_SLOPE)


class _Concave(ElementwiseRule):
    """f odd, bounded by 1, and f(sqrt u)^2 concave in u.

    By Jensen sum f(x_i)^2 is largest when all |x_i| are equal, so sqrt(n) f(X/sqrt(n))
    bounds the output; it is at most min(X, sqrt(n)).
    """

    def function(self, value: float) -> float:
        raise NotImplementedError

    def constants(self, call: Call[Any]) -> Constants:
        return Constants(1.0, ceiling=1.0)

    def output_norm(self, call: Call[Any]) -> float:
        plain = super().output_norm(call)
        if math.isinf(call.norm) or call.size == 0:
            return plain
        spread = root(call.size)
        return min(plain, product(spread, loose(self.function(call.norm / math.sqrt(call.size)))))


@register(nn.Tanh)
class TanhRule(_Concave):
    """The derivative of tanh(s)^2 in u = s^2 is tanh(s)/s * (1 - tanh(s)^2), which decreases."""

    def function(self, value: float) -> float:
        return math.tanh(value)


@register(nn.Softsign)
class SoftsignRule(_Concave):
    """The derivative of (s/(1 + s))^2 in u = s^2 is (1 + s)^-3, which decreases."""

    def function(self, value: float) -> float:
        return value / (1.0 + value)


@register(nn.Sigmoid)
class SigmoidRule(_Fixed):
    """1/4 at zero, where its value is 1/2."""

    known = Constants(0.25, offset=0.5, ceiling=1.0)


@register(nn.Hardsigmoid)
class HardsigmoidRule(_Fixed):
    """Slope 1/6 between -3 and 3; torch's backward multiplies by the float32 above 1/6."""

    known = Constants(0.16666667163372040, offset=0.5, ceiling=1.0)


@register(nn.LogSigmoid)
class LogSigmoidRule(_Fixed):
    """-softplus(-x)."""

    known = Constants(1.0, offset=loose(math.log(2.0)))


@register(nn.Softplus)
class SoftplusRule(ElementwiseRule):
    """log(1 + e^(beta x))/beta, or x where beta x exceeds the threshold: no larger, slope 1."""

    def check(self, call: Call[nn.Softplus]) -> None:
        if call.module.beta <= 0:
            call.refuse("with beta <= 0 has no bounded slope.", "Use beta > 0.")

    def constants(self, call: Call[nn.Softplus]) -> Constants:
        return Constants(1.0, offset=loose(math.log(2.0) / call.module.beta))


@register(nn.GELU)
class GELURule(ElementwiseRule):
    """x times a number between 0 and 1; its slope exceeds 1."""

    def constants(self, call: Call[nn.GELU]) -> Constants:
        exact = call.module.approximate == "none"
        return Constants(GELU_SLOPE if exact else GELU_TANH_SLOPE, growth=1.0)


@register(nn.SiLU)
class SiLURule(_Fixed):
    """x sigmoid(x)."""

    known = Constants(SILU_SLOPE, growth=1.0)


@register(nn.Mish)
class MishRule(_Fixed):
    """x tanh(softplus(x))."""

    known = Constants(MISH_SLOPE, growth=1.0)


@register(nn.Hardswish)
class HardswishRule(_Fixed):
    """x relu6(x + 3)/6: slope (2x + 3)/6 up to x = 3."""

    known = Constants(1.5, growth=1.0)


@register(nn.Hardtanh)
class HardtanhRule(ElementwiseRule):
    """Clamp between two limits; ReLU6 is one."""

    def constants(self, call: Call[nn.Hardtanh]) -> Constants:
        low, high = float(call.module.min_val), float(call.module.max_val)
        at_zero = min(max(0.0, low), high)
        return Constants(1.0, offset=abs(at_zero), ceiling=max(abs(low), abs(high)))


@register(nn.ReLU6)
class ReLU6Rule(HardtanhRule):
    """Clamp between 0 and 6."""


@register(nn.Threshold)
class ThresholdRule(LayerRule[nn.Threshold]):
    """x above a threshold, a constant v below: ||y||^2 <= X^2 + n v^2."""

    def lipschitz(self, call: Call[nn.Threshold]) -> float:
        return 1.0

    def jump(self, call: Call[nn.Threshold]) -> str:
        same = call.module.value == call.module.threshold
        return "" if same else "jumps at its threshold"

    def output_norm(self, call: Call[nn.Threshold]) -> float:
        return hypotenuse(call.norm, product(root(call.size), abs(call.module.value)))


@register(nn.PReLU)
class PReLURule(ElementwiseRule):
    """Leaky with learnt slopes. d/da sums d * min(x, 0): at most ||d|| ||x||."""

    parameters = ("weight",)

    def constants(self, call: Call[nn.PReLU]) -> Constants:
        return Constants(max(1.0, largest_entry(call.module.weight)))

    def parameter_factors(self, call: Call[nn.PReLU]) -> dict[str, float]:
        return {"weight": call.norm}


class _AlongAxis(LayerRule[Any]):
    """Softmax and relatives along one axis of each record."""

    def axis(self, call: Call[Any]) -> int:
        """Return the axis within a record."""
        dim, axes = call.module.dim, len(call.shape)
        if dim is None:
            call.refuse(
                "without dim picks an axis by the number of axes, which may be the batch.",
                "Set dim, for example dim=-1.",
            )
        axis = dim - 1 if dim > 0 else (dim + axes if dim < 0 else -1)
        if not 0 <= axis < axes:
            call.refuse(
                f"with dim={dim} runs over the batch, so records would mix.",
                "Use an axis of the record, for example dim=-1.",
            )
        return int(axis)

    def check(self, call: Call[Any]) -> None:
        self.axis(call)

    def lines(self, call: Call[Any]) -> tuple[int, int]:
        """Return the length of a line along the axis and the number of lines."""
        length = call.shape[self.axis(call)]
        return length, call.inputs[0].size // length


@register(nn.Softmax, nn.Softmin)
class SoftmaxRule(_AlongAxis):
    """Jacobian diag(p) - pp', at most 1/2.

    v' (diag(p) - pp') v is the variance of v under p, at most (max v - min v)^2/4
    (Popoviciu), and max v - min v <= sqrt(2) ||v||. A line sums to one, so its norm is <= 1.
    """

    def lipschitz(self, call: Call[Any]) -> float:
        return 0.5 if self.lines(call)[0] > 1 else 0.0

    def output_norm(self, call: Call[Any]) -> float:
        return root(self.lines(call)[1])


@register(nn.Softmax2d)
class Softmax2dRule(LayerRule[nn.Softmax2d]):
    """Softmax over the channels of an image."""

    def check(self, call: Call[nn.Softmax2d]) -> None:
        if len(call.shape) != 3:
            call.refuse(f"takes images, got records of shape {call.shape}.", "Use Softmax(dim=-1).")

    def lipschitz(self, call: Call[nn.Softmax2d]) -> float:
        return 0.5 if call.shape[0] > 1 else 0.0

    def output_norm(self, call: Call[nn.Softmax2d]) -> float:
        return root(call.shape[1] * call.shape[2])


@register(nn.LogSoftmax)
class LogSoftmaxRule(_AlongAxis):
    """Jacobian I - 1p', at most sqrt(n) for lines of length n.

    The norm is convex in p, hence largest at a vertex p = e_j, where it is exactly
    sqrt(n). At zero every entry is -log n.
    """

    def lipschitz(self, call: Call[Any]) -> float:
        length, _ = self.lines(call)
        return root(length) if length > 1 else 0.0

    def output_norm(self, call: Call[Any]) -> float:
        length, lines = self.lines(call)
        at_zero = product(root(length * lines), loose(math.log(length)))
        return total(at_zero, product(self.lipschitz(call), call.norm))


@register(nn.GLU)
class GLURule(LayerRule[nn.GLU]):
    """a * sigmoid(b): each entry's Jacobian is (s, a s (1 - s)) with s = sigmoid(b).

    Its squared norm s^2 (1 + a^2 (1 - s)^2) is largest at s = 1, where it is 1, or, if
    a^2 >= 8, at s = (3 - sqrt(1 - 8/a^2))/4, the smaller root of its derivative.
    """

    def check(self, call: Call[nn.GLU]) -> None:
        if call.module.dim == 0 or call.module.dim == -len(call.shape) - 1:
            call.refuse("splits the batch.", "Use an axis of the record, for example dim=-1.")

    def lipschitz(self, call: Call[nn.GLU]) -> float:
        largest = call.norm * call.norm
        if math.isinf(largest):
            return math.inf
        if largest < 8.0:
            return 1.0
        gate = (3.0 - math.sqrt(1.0 - 8.0 / largest)) / 4.0
        return max(1.0, loose(gate * math.sqrt(1.0 + largest * (1.0 - gate) ** 2)))

    def output_norm(self, call: Call[nn.GLU]) -> float:
        return call.norm
