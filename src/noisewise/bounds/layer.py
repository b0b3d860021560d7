"""What the library must know of a layer: the interface that every rule implements.

A rule states, for one use of one layer and for every record whose input norm
is at most ``call.norm``:

* ``output_norm``: a bound on the norm of the record's output;
* ``lipschitz``: a bound on the spectral norm of the Jacobian with respect to the input;
* ``parameter_factors``: for each parameter a bound on the spectral norm of the
  Jacobian with respect to it, so that one record's gradient is at most the
  factor times the norm of the cotangent that arrives at the layer's output.

Norms are Euclidean, over all entries of one record. Nothing here sees data: a
rule may use the module's configuration, its (released) weights and shapes.
Notation, table and proofs: docs/proofs/layers.md. It is Algorithm 1 of Barczewski and Ramon (2024)
with the corrections of docs/proofs/published.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from torch import Tensor, nn

from noisewise.arithmetic import product
from noisewise.bounds.cache import NormCache
from noisewise.bounds.norms import conv_norm, spectral_norm
from noisewise.errors import UnsupportedModelError

__all__ = [
    "Call",
    "Diagonal",
    "LateSignal",
    "LayerBounds",
    "LayerRule",
    "NormMemory",
    "Shape",
    "Signal",
]

M = TypeVar("M")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Signal:
    """What is known of one record's tensor: its shape without the batch axis, and a norm bound."""

    shape: Shape
    norm: float

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class LateSignal(Signal):
    """A signal whose norm is bounded when somebody asks for it, and not before."""

    def __init__(self, shape: Shape, bound: Callable[[], float]) -> None:
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "_bound", bound)

    @cached_property
    def norm(self) -> float:
        """The bound, computed once."""
        bound: Callable[[], float] = self.__dict__["_bound"]
        return bound()


@dataclass
class NormMemory:
    """Certified norms of the current weights, each computed once per propagation.

    A cache that outlives the propagation serves weights that moved little since.
    """

    cache: NormCache | None = None
    known: dict[Hashable, float] = field(default_factory=dict)

    def of(self, key: Hashable, compute: Callable[[], float]) -> float:
        """Return the norm stored under `key`, or compute and keep it."""
        if key not in self.known:
            self.known[key] = compute()
        return self.known[key]

    def matrix(self, owner: object, weight: Callable[[], Tensor]) -> float:
        """Certified spectral norm of the matrix that a module applies."""

        def compute() -> float:
            matrix = weight()
            # An effective weight is made anew each time; only a parameter can be remembered.
            if self.cache is not None and isinstance(matrix, nn.Parameter):
                # A constrained layer has just certified its weight to project it.
                own = getattr(owner, "norms", None)
                cache = own if isinstance(own, NormCache) else self.cache
                return cache.spectral_norm(matrix).value
            return spectral_norm(matrix.detach()).value

        return self.of(("matrix", id(owner)), compute)

    def convolution(self, owner: object, kernel: Callable[[], Tensor], **settings: Any) -> float:
        """Certified operator norm of the convolution that a module applies."""

        def compute() -> float:
            weight = kernel()
            if self.cache is not None and isinstance(weight, nn.Parameter):
                if isinstance(getattr(owner, "norms", None), NormCache):
                    # A constrained layer has just certified its kernel, for images of any size.
                    return float(owner.norm_bound().value)  # type: ignore[attr-defined]
                return self.cache.conv_norm(weight, **settings).value
            return conv_norm(weight.detach(), **settings).value

        return self.of(("convolution", id(owner), settings["input_size"]), compute)


@dataclass(frozen=True)
class Call(Generic[M]):
    """One use of a layer: everything that a rule may look at."""

    module: M
    path: str
    inputs: tuple[Signal, ...]
    output_shape: Shape
    norms: NormMemory = field(default_factory=NormMemory, compare=False, repr=False)

    @property
    def norm(self) -> float:
        """Bound on the norm of the record's (first) input."""
        return self.inputs[0].norm

    @property
    def shape(self) -> Shape:
        """Shape of the record's (first) input."""
        return self.inputs[0].shape

    @property
    def size(self) -> int:
        """Number of entries of the record's output."""
        return math.prod(self.output_shape)

    def refuse(self, reason: str, fix: str) -> NoReturn:
        """Raise, saying what was refused, where, why and what to do."""
        raise UnsupportedModelError(f'{type(self.module).__name__} at "{self.path}" {reason} {fix}')


@dataclass(frozen=True)
class Diagonal:
    """A layer that acts on each entry alone: |f(x)| <= growth |x| + offset, |f'(x)| <= slope."""

    slope: float
    growth: float
    offset: float


class LayerRule(Generic[M]):
    """Everything about one layer type; subclass it and register the subclass.

    Attributes
    ----------
    parameters : tuple of str
        The module's parameters for which ``parameter_factors`` gives bounds. A
        module with any other parameter is refused.
    effective : tuple of str
        Those of them that the layer maps to an effective weight before use. The
        bound then is on the gradient of the effective weight, which is what gets
        noise; the gradient of the raw parameter has no bound
        (docs/proofs/layers.md#effective).
    aligned : bool
        The output is the input, and the cotangent that leaves is a multiple between 0
        and 1 of the one that arrives.
    renews : bool
        The cotangent that leaves has a bound of its own, whatever arrives.
    inputs : int
        How many tensors of a record the layer takes.
    """

    parameters: ClassVar[tuple[str, ...]] = ()
    effective: ClassVar[tuple[str, ...]] = ()
    aligned: ClassVar[bool] = False
    renews: ClassVar[bool] = False
    inputs: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The rule's name in a certificate."""
        return type(self).__name__

    def check(self, call: Call[M]) -> None:
        """Refuse a configuration for which the rule does not hold."""

    def output_norm(self, call: Call[M]) -> float:
        """Bound on the norm of a record's output."""
        return product(call.norm, self.lipschitz(call))

    def lipschitz(self, call: Call[M]) -> float:
        """Bound on the Jacobian's norm with respect to the (first) input."""
        raise NotImplementedError

    def lipschitz_of(self, call: Call[M], index: int) -> float:
        """Bound on the Jacobian's norm with respect to input number `index`."""
        return self.lipschitz(call)

    def jump(self, call: Call[M]) -> str:
        """Why the layer is no Lipschitz function for use on inputs that are moved; empty if it is.

        A bounded Jacobian almost everywhere is enough for gradients, and not enough for that.
        """
        return ""

    def cotangent(self, call: Call[M], index: int, arriving: float) -> float:
        """Bound on the cotangent that leaves through input `index`, given the arriving one."""
        return product(arriving, self.lipschitz_of(call, index))

    def parameter_factors(self, call: Call[M]) -> dict[str, float]:
        """Bound on the Jacobian's norm with respect to each parameter present."""
        return {}

    def own_gradients(self, call: Call[M]) -> dict[str, float]:
        """Bounds on gradients of parameters that hold whatever cotangent arrives."""
        return {}

    def diagonal(self, call: Call[M]) -> Diagonal | None:
        """Constants per entry, if the layer acts on every entry alone."""
        return None


@dataclass(frozen=True)
class LayerBounds:
    """What was proven about one use of a layer, for every record.

    Attributes
    ----------
    cotangent : float
        Bound on the cotangent that arrives at the layer's output.
    passed : tuple of float
        Bound on the cotangent that it sends to each of its inputs.
    factors, gradients : dict of str to float
        Per parameter (by its name in the model): the bound on the Jacobian, and
        on one record's gradient through this use of the layer.
    """

    path: str
    kind: str
    rule: str
    input_norm: float
    output_norm: float
    lipschitz: float
    cotangent: float
    passed: tuple[float, ...]
    factors: dict[str, float]
    gradients: dict[str, float]
    output_shape: Shape
    module: Any = field(default=None, compare=False, repr=False)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that belong to the module itself, not to its children."""
    return dict(module.named_parameters(recurse=False))
