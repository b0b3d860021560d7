"""Models and whole training steps that the step benchmarks compare.

A step is everything between a batch and changed weights. Ours: the bounded sum, Gaussian noise
from the secure generator at the optimal allocation, division by the public batch size, the
optimizer, and the projection where the estimator needs a Lipschitz model. Opacus: its own
optimizer's step in each of its modes, with torch's generator (its default, not a secure one).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.gradients import Clipped, Factored, InputScaled, Propagated
from noisewise.gradients.engine import GradientEngine
from noisewise.nn import BoundedInput, ScaledAvgPool2d, SpectralConv2d, SpectralLinear, project
from noisewise.privacy import Randomness, Sensitivity
from noisewise.release.tensors import TensorNoise

Step = Callable[[Tensor, Tensor], None]
RATE, NOISE, CLIP = 0.05, 1.0, 1.0
#: Bounds of `Propagated` are some hundred times larger, and so is its noise.
PROPAGATED_RATE = RATE / 100


# -- models -------------------------------------------------------------------------------


def cnn(width: int = 32) -> nn.Module:
    """Three convolutions and two dense layers, 356,810 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * width, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def _dense(inputs: int, outputs: int) -> nn.Module:
    # Radial, as the convolutions are; the default, cutting singular values, needs an eigenvalue
    # decomposition more a step.
    return SpectralLinear(inputs, outputs, projection="clip")


def lipschitz_cnn(width: int = 32) -> nn.Module:
    """The same architecture and number of parameters, of layers whose norms are certified."""
    return nn.Sequential(
        BoundedInput((3, 32, 32), 30.0),
        *(SpectralConv2d(3, width, 3, padding=1), nn.ReLU(), ScaledAvgPool2d(2)),
        *(SpectralConv2d(width, 2 * width, 3, padding=1), nn.ReLU(), ScaledAvgPool2d(2)),
        *(SpectralConv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), ScaledAvgPool2d(2)),
        *(nn.Flatten(), _dense(64 * width, 128), nn.ReLU(), _dense(128, 10)),
    )


def mlp() -> nn.Module:
    """Three dense layers, 855,050 parameters."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def lipschitz_mlp() -> nn.Module:
    """The same, of layers whose norms are certified."""
    return nn.Sequential(
        *(BoundedInput((3, 32, 32), 30.0), nn.Flatten(), _dense(3072, 256), nn.ReLU()),
        *(_dense(256, 256), nn.ReLU(), _dense(256, 10)),
    )


class Encoder(nn.Module):
    """Tokens, positions, four layers of torch's own transformer encoder, a linear head."""

    def __init__(self, width: int = 256, layers: int = 4, tokens: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, width)
        self.positions = nn.Embedding(tokens, width)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)
        self.register_buffer("places", torch.arange(tokens).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(self.places.expand(x.shape[0], -1))
        for layer in self.encoder:
            h = layer(h)
        return self.head(h.mean(1))


@dataclass(frozen=True)
class Task:
    """A model, its Lipschitz twin if it has one, and how batches look."""

    name: str
    model: Callable[[], nn.Module]
    lipschitz: Callable[[], nn.Module] | None
    batch: Callable[[int], tuple[Tensor, Tensor]]

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model().parameters())


def _images(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 32, 32), torch.randint(10, (size,))


def _sentences(size: int) -> tuple[Tensor, Tensor]:
    return torch.randint(1000, (size, 128)), torch.randint(10, (size,))


TASKS = {
    "cnn": Task("CNN", cnn, lipschitz_cnn, _images),
    "mlp": Task("MLP", mlp, lipschitz_mlp, _images),
    "transformer": Task("transformer", Encoder, None, _sentences),
}


# -- steps --------------------------------------------------------------------------------


def plain(model: nn.Module) -> Step:
    """Ordinary training."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loss = nn.CrossEntropyLoss()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


def ours(model: nn.Module, estimator: Any, expected: int, chunk: int | None = None) -> Step:
    """A whole private step: the engine's sum, then what `PrivateRun` does with it."""
    # As a run does: pieces follow from the expected batch, and no batch changes them.
    engine = GradientEngine(
        model, nn.CrossEntropyLoss(), estimator, chunk=chunk, expected=float(expected)
    )
    rate = PROPAGATED_RATE if isinstance(estimator, Propagated) else RATE
    optimizer = torch.optim.SGD(model.parameters(), rate)
    rng = Randomness.secure()
    projects = isinstance(estimator, (Propagated, InputScaled))

    def step(x: Tensor, y: Tensor) -> None:
        groups = engine.sum(x, y).groups
        bounds = tuple(Sensitivity(group.sensitivity) for group in groups)
        types = {name: p.dtype for name, p in engine.parameters.items()}
        sizes = tuple(group.size for group in groups)
        noise = TensorNoise(bounds, sizes, NOISE, "optimal", expected, types)
        noisy = noise.applied([group.gradients for group in groups], rng)
        for name, parameter in engine.parameters.items():
            parameter.grad = noisy[name]
        optimizer.step()
        if projects:
            project(model)

    return step


def fit_pieces(engine: GradientEngine, x: Any, records: int) -> None:
    """Let batches of exactly this size be one piece, or two if training would cut them at all."""
    engine.chunk = records if engine._best_size(x) >= records else -(-records // 2)


def plain_and_noise(model: nn.Module) -> Step:
    """Plain training with noise on its gradients: what no private step can undercut."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loss, rng = nn.CrossEntropyLoss(), Randomness.secure()
    parameters = list(model.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_add_(gradients, rng.normal_for(gradients, [1e-3] * len(gradients)))
        optimizer.step()

    return step


def opacus(model: nn.Module, mode: str, expected: int, losses: Any = None) -> Step:
    """One of Opacus's modes: ``hooks``, ``ew`` (ExpandedWeights) or ``ghost``.

    ``losses`` gives one loss per record, default cross-entropy.
    """
    warnings.filterwarnings("ignore", module=r"(opacus|torch)\.")
    from opacus import GradSampleModule
    from opacus.grad_sample import (
        GradSampleModuleExpandedWeights,
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import (
        DPOptimizerFastGradientClipping,
    )
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model)
    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": expected}
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], RATE)
    if mode == "ghost":
        wrapped = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIP, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(sgd, **settings)
        criterion = nn.CrossEntropyLoss() if losses is None else _Criterion(losses)
        loss = DPLossFastGradientClipping(wrapped, optimizer, criterion, loss_reduction="mean")
    else:
        kind = GradSampleModule if mode == "hooks" else GradSampleModuleExpandedWeights
        wrapped = kind(model)
        loss = nn.CrossEntropyLoss() if losses is None else _Criterion(losses)
        optimizer = DPOptimizer(sgd, **settings)

    def step(x: Any, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(wrapped(**x) if isinstance(x, dict) else wrapped(x), y).backward()
        optimizer.step()

    return step


class _Criterion(nn.Module):
    """Losses of records with a reduction, as Opacus wants a criterion to be."""

    def __init__(self, losses: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.losses, self.reduction = losses, "mean"

    def forward(self, output: Any, target: Any) -> Tensor:
        found = self.losses(output, target)
        return found.mean() if self.reduction == "mean" else found


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "Propagated": Propagated,
    "InputScaled": InputScaled,
    "Factored": lambda: Factored(CLIP),
    "Clipped per layer": lambda: Clipped(CLIP, per="layer"),
    "Clipped per model": lambda: Clipped(CLIP),
}
PEERS = {"Opacus hooks": "hooks", "Opacus ExpandedWeights": "ew", "Opacus ghost": "ghost"}
BASE, TWIN, FLOOR = "plain SGD", "plain SGD, Lipschitz layers", "plain SGD + noise"
#: The same sum from two halves of the batch, one after the other.
HALVES = "Clipped per model, two chunks"


def step_of(task: Task, name: str, batch: int) -> Step | None:
    """Build one candidate; None where the model has no Lipschitz twin."""
    torch.manual_seed(0)
    if name == BASE:
        return plain(task.model())
    if name == FLOOR:
        return plain_and_noise(task.model())
    if name in PEERS:
        return opacus(task.model(), PEERS[name], batch)
    if name == TWIN or name in ("Propagated", "InputScaled"):
        if task.lipschitz is None:
            return None
        twin = task.lipschitz()
        return plain(twin) if name == TWIN else ours(twin, ESTIMATORS[name](), batch)
    if name == HALVES:
        return ours(task.model(), Clipped(CLIP), batch, chunk=batch // 2)
    return ours(task.model(), ESTIMATORS[name](), batch)


def base_of(name: str) -> str:
    """The plain step that a candidate is compared with: of the same layers."""
    return TWIN if name in ("Propagated", "InputScaled") else BASE
