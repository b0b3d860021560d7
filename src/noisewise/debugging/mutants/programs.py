"""Whole programs: trainings that were written as such, each with a model of its own.

Other rounds change one stage of one program (`hooks`). A `Program` is the loop itself, from the
first draw to the last step, put together from the right pieces below; what is wrong or unusual
stands in the loop. ``@program("name")`` registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from noisewise.debugging.mutants.bounding import is_a_stack, of_a_stack
from noisewise.debugging.mutants.cases import Case
from noisewise.debugging.trainer import Data, StateDict

__all__ = [
    "PROGRAMS",
    "Program",
    "Run",
    "add_noise",
    "clipped_sum",
    "descend",
    "factors",
    "lengths",
    "per_record",
    "program",
    "weighted_sum",
]

Model = TypeVar("Model", bound=nn.Module)
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# --- models -------------------------------------------------------------------------------------


def linear() -> nn.Module:
    """Return a softmax regression."""
    return nn.Linear(8, 3)


def mlp() -> nn.Sequential:
    """Return a network of two layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def twin() -> nn.Module:
    """Return a network two of whose tensors have the same shape."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def normed() -> nn.Module:
    """Return a network with a layer norm."""
    return nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 3))


def dropping() -> nn.Module:
    """Return a network with dropout."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def normalising() -> nn.Sequential:
    """Return a network with batch norm, whose statistics are buffers."""
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Encode and decode."""
        return x @ self.weight.T @ self.weight


class TokenTagger(nn.Module):
    """One linear layer applied to every token, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean logits."""
        out: Tensor = self.layer(x).mean(-2)
        return out


class Bag(nn.Module):
    """The mean of embedded tokens, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.head(self.embedding(x).mean(-2))
        return out


class Recurrent(nn.Module):
    """A state that is moved by one token after another, and a head at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(12, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, state: Tensor | None = None, both: bool = False) -> Any:
        """Return the logits, and the last state if both are wanted."""
        h = x.new_zeros(len(x), 6) if state is None else state
        for token in x.unbind(1):
            h = torch.tanh(self.cell(torch.cat([token, h], 1)))
        out = self.head(h)
        return (out, h) if both else out


# --- pieces that are right ----------------------------------------------------------------------


def per_record(
    model: nn.Module, w: StateDict, x: Tensor, y: Tensor, loss: Loss = functional.cross_entropy
) -> StateDict:
    """Return one gradient per record, along a first dimension of its own."""
    if len(x) == 0:
        return {k: v.new_zeros(0, *v.shape) for k, v in w.items()}
    layers = dict(model.named_children()) or {"": model}
    if is_a_stack(layers.values()):
        return of_a_stack(layers, w, x, y, loss)

    def one(weights: StateDict, a: Tensor, b: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (a[None],)), b[None])

    grads: StateDict = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(w, x, y)
    return grads


def lengths(grads: StateDict) -> Tensor:
    """Return the norm of each record's gradient."""
    norms: Tensor = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    return norms


def factors(norm: Tensor, clip: float) -> Tensor:
    """Return what gradients of these norms are multiplied by; broken ones count as nothing."""
    f = (clip / norm.clamp_min(1e-12)).clamp_max(1.0)
    return torch.where(torch.isfinite(norm), f, torch.zeros_like(f))


def weighted_sum(grads: StateDict, f: Tensor) -> StateDict:
    """Add up the gradients of the records, each times its factor."""
    out = {}
    for k, g in grads.items():
        kept = torch.where(f.view(-1, *[1] * (g.dim() - 1)) > 0, g, torch.zeros_like(g))
        out[k] = torch.einsum("n,n...->...", f, kept)
    return out


def clipped_sum(
    model: nn.Module,
    w: StateDict,
    x: Tensor,
    y: Tensor,
    clip: float,
    loss: Loss = functional.cross_entropy,
) -> StateDict:
    """Return the sum of the clipped gradients of these records."""
    grads = per_record(model, w, x, y, loss)
    return weighted_sum(grads, factors(lengths(grads), clip))


def add_noise(total: StateDict, std: float) -> StateDict:
    """Add Gaussian noise."""
    return {k: g + std * torch.randn_like(g) for k, g in total.items()}


def descend(w: StateDict, total: StateDict, rate: float) -> StateDict:
    """Take one step."""
    return {k: v - rate * total[k] for k, v in w.items()}


# --- programs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one training was asked for, and the right way to do each part of it."""

    clip: float
    sigma: float
    batch_size: int
    seed: int
    data: Data
    init: StateDict
    steps: int
    lr: float

    def begin(self, build: Callable[[], Model]) -> tuple[Model, StateDict]:
        """Seed torch and return a model with the first weights, and these by name."""
        torch.manual_seed(self.seed)
        model = build()
        model.load_state_dict(self.init)
        return model, {n: self.init[n].detach().clone() for n, _ in model.named_parameters()}

    def draw(self) -> Tensor:
        """Return the numbers of a Poisson batch."""
        n = len(self.data[0])
        return (torch.rand(n) < self.batch_size / n).nonzero().flatten()

    def clipped_sum(
        self, model: nn.Module, w: StateDict, rows: Tensor, loss: Loss = functional.cross_entropy
    ) -> StateDict:
        """Return the sum of the clipped gradients of some records."""
        x, y = self.data
        return clipped_sum(model, w, x[rows], y[rows], self.clip, loss)

    def noisy(self, total: StateDict) -> StateDict:
        """Return the sum with its noise."""
        return add_noise(total, self.sigma * self.clip)

    def descend(self, w: StateDict, total: StateDict) -> StateDict:
        """Take one step along the sum, divided by the expected batch size."""
        return descend(w, total, self.lr / self.batch_size)


@dataclass(frozen=True)
class Program:
    """A training as `check` calls it, its model, and what is declared about it."""

    name: str
    body: Callable[[Run], StateDict]
    case: Case
    declared: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: Data,
        init: StateDict,
        steps: int,
        lr: float,
    ) -> StateDict:
        """Train."""
        return self.body(Run(clip, noise_multiplier, batch_size, seed, data, init, steps, lr))


#: All whole programs by name.
PROGRAMS: dict[str, Program] = {}

_ROWS = torch.zeros(2, 8)
_CLASSES = torch.tensor([0, 2])
_EXAMPLES: dict[str, Case] = {
    "MLP": Case(mlp, functional.cross_entropy, (_ROWS, _CLASSES)),
    "linear": Case(linear, functional.cross_entropy, (_ROWS, _CLASSES)),
    "twin": Case(twin, functional.cross_entropy, (_ROWS, _CLASSES)),
    "layer norm": Case(normed, functional.cross_entropy, (_ROWS, _CLASSES)),
    "batch norm": Case(normalising, functional.cross_entropy, (_ROWS, _CLASSES)),
    "dropout": Case(dropping, functional.cross_entropy, (_ROWS, _CLASSES)),
    "autoencoder": Case(Tied, functional.mse_loss, (_ROWS, _ROWS)),
    "tagger": Case(TokenTagger, functional.cross_entropy, (torch.zeros(2, 5, 6), _CLASSES)),
    "recurrent": Case(Recurrent, functional.cross_entropy, (torch.zeros(2, 5, 6), _CLASSES)),
    "bag of words": Case(
        Bag, functional.cross_entropy, (torch.tensor([[0, 1, 2, 3], [11, 5, 5, 2]]), _CLASSES)
    ),
}


def program(
    name: str, model: str = "MLP", **declared: Any
) -> Callable[[Callable[[Run], StateDict]], Callable[[Run], StateDict]]:
    """Register a loop as the program `name`; `declared` are arguments of `check`."""

    def register(body: Callable[[Run], StateDict]) -> Callable[[Run], StateDict]:
        if name in PROGRAMS:
            raise ValueError(f"two programs are called {name}")
        PROGRAMS[name] = Program(name, body, _EXAMPLES[model], declared)
        return body

    return register
