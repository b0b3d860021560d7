"""One private training run of the image experiment: its setting, the training, its JSON line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import images_nets
import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.datasets import load_images
from noisewise.gradients.contractions.pair import PairContraction
from noisewise.nn import losses
from noisewise.training import Ema

__all__ = ["DELTA", "LIPSCHITZ", "Setting", "estimator_of", "read", "run"]

DELTA = 1e-5
HELD_BACK = 10_000
CLIPPING = ("flat", "per layer", "automatic", "factored", "products")
LIPSCHITZ = ("propagated", "input scaled")


@dataclass(frozen=True)
class Setting:
    """All that a run depends on.

    `rate` is the learning rate for gradients in units of the clipping norm: the optimiser gets
    rate / clip. The Lipschitz estimators have no clip, and get the rate itself. With several
    `views` a record's gradient is the mean over copies shifted by up to `shift` pixels.
    """

    data: str
    epsilon: float
    estimator: str
    layout: str
    epochs: float
    batch: int
    rate: float
    clip: float | None = 0.1
    loss_clip: float | None = None
    temperature: float = 1.0
    momentum: float = 0.9
    average: float = 0.95
    decay: float = 0.0
    views: int = 1
    shift: int = 0
    seed: int = 0


def estimator_of(setting: Setting) -> Any:
    """Return how the setting bounds a record."""
    clip, loss_clip = setting.clip or 1.0, setting.loss_clip
    return {
        "flat": lambda: nw.Clipped(clip, per="model"),
        "per layer": lambda: nw.Clipped(clip, per="layer"),
        "automatic": lambda: nw.Clipped(clip, per="model", rule="automatic"),
        "factored": lambda: nw.Factored(clip),
        "products": lambda: nw.Factored(clip),
        "propagated": lambda: nw.Propagated(loss_clip=loss_clip),
        "input scaled": lambda: nw.InputScaled(loss_clip=loss_clip),
    }[setting.estimator]()


@contextmanager
def products_only() -> Iterator[None]:
    """Keep `Factored` from forming any record's gradient, as it would in larger layers."""
    usual = PairContraction._instantiating_is_cheap
    PairContraction._instantiating_is_cheap = lambda self, cheap: False
    try:
        yield
    finally:
        PairContraction._instantiating_is_cheap = usual


@cache
def data_of(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images, each brought to mean zero by itself, and their labels."""
    images = load_images(name)
    labels = (torch.from_numpy(part).long() for part in (images.y_train, images.y_test))
    y, answers = labels
    return images_nets.prepare(images.x_train), y, images_nets.prepare(images.x_test), answers


def network_of(setting: Setting) -> tuple[nn.Module, Any, float]:
    """Return model, loss and learning rate."""
    layout = images_nets.LAYOUTS[setting.layout]
    if setting.estimator in LIPSCHITZ:
        loss = losses.CrossEntropy(temperature=setting.temperature)
        return layout.lipschitz(), loss, setting.rate
    assert setting.clip is not None
    return layout.plain(), nn.CrossEntropyLoss(), setting.rate / setting.clip


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return float((found == y).double().mean())


def run(setting: Setting, split: bool = False) -> dict[str, Any]:
    """Train once and measure on the test images, or with `split` on records held back."""
    x, y, judged, answers = data_of(setting.data)
    if split:
        x, judged = x[:-HELD_BACK], x[-HELD_BACK:]
        y, answers = y[:-HELD_BACK], y[-HELD_BACK:]
    torch.manual_seed(setting.seed)
    model, loss, rate = network_of(setting)
    plan = nw.Plan(
        gradients=estimator_of(setting),
        epsilon=setting.epsilon,
        delta=DELTA,
        epochs=setting.epochs,
        batch_size=setting.batch,
        records=len(x),
        seed=setting.seed,
    )
    copies: dict[str, Any] = {}
    if setting.shift:
        copies = {"views": setting.views, "augmentation": images_nets.shifts(setting.shift)}

    def optimizer(learnt: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(learnt, rate, momentum=setting.momentum, weight_decay=setting.decay)

    start = time.process_time()
    with products_only() if setting.estimator == "products" else nullcontext():
        fitted = nw.fit(
            model,
            (x, y),
            plan,
            loss=loss,
            optimizer=optimizer,
            averaging=Ema(setting.average),
            chunk=256,
            metrics=False,
            progress=False,
            **copies,
        )
    seconds = time.process_time() - start
    fixed, statement = plan.resolve(), fitted.statement()
    return {
        **asdict(setting),
        "measured on": "held back" if split else "test",
        "accuracy": round(100 * accuracy(fitted.model, judged, answers), 2),
        "spent": round(statement.epsilon, 4),
        "accountant": plan.accountant,
        "steps": fixed.steps,
        "noise multiplier": round(fixed.noise_multiplier, 4),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(seconds, 1),
    }


def read(file: Path) -> list[dict[str, Any]]:
    """Finished runs; a last line that was cut off by a crash is left out."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
