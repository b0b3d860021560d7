"""Training code as it stands, made callable: scripts with their own data, arrays, trainers.

`noisewise.debugging.check` wants a function of data and first weights. Code that loads its own
data and builds its own model need not be rewritten for that. A file ``nw_adapter.py`` of a few
lines says how to run it, with one of:

* `torch_script`: a script that trains a torch model. While it runs, every `DataLoader` gets the
  synthetic records, the model gets the first weights before its first forward pass, the optimizer
  is counted, and training ends after the number of steps that was asked for. Opacus is told
  clipping norm and noise multiplier.
* `array_function`: a function of numpy arrays, as JAX and Keras code has it.
* `trainer_function`: a function that makes a Hugging Face `Trainer` for a model and a dataset.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import os
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset

from noisewise.debugging.siblings import forget_strangers
from noisewise.debugging.trainer import Data, StateDict, TrainingFailedError

__all__ = ["Item", "array_function", "torch_script", "trainer_function"]

Item = Callable[[Tensor, Tensor], Any]


class _Done(BaseException):
    """Ends the script once enough steps were taken; no `except Exception` catches it."""


class _Records(Dataset[Any]):
    """The synthetic records in the form in which the code expects an item."""

    def __init__(self, data: Data, item: Item) -> None:
        self.data, self.item = data, item

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> Any:
        return self.item(self.data[0][index], self.data[1][index])


def _pair(x: Tensor, y: Tensor) -> Any:
    return x, y


@dataclass(frozen=True)
class torch_script:  # noqa: N801 - used like a function
    """A script that trains a torch model on data of its own, as a training function.

    Parameters
    ----------
    path
        The script.
    arguments
        Its command line, with ``{clip}``, ``{noise_multiplier}``, ``{batch_size}``, ``{seed}`` and
        ``{lr}`` where it takes them. What is missing is set from outside: the batch size in the
        `DataLoader`, the learning rate in the optimizer, the seed in the global generators, and
        clipping norm and noise multiplier in Opacus' `make_private`.
    item
        Makes an item of the dataset from a record: ``lambda x, y: {"input_ids": x, "labels": y}``.
    """

    path: str
    arguments: str = ""
    item: Item = _pair
    accepts: frozenset[str] = field(
        default=frozenset(
            ("clip", "noise_multiplier", "batch_size", "seed", "data", "init", "steps", "lr")
        )
    )

    def __call__(self, *, data: Data, init: StateDict, steps: int, **settings: Any) -> StateDict:
        """Run the script and return the weights after so many steps."""
        script = Path(self.path).resolve()
        if not script.exists():
            raise ValueError(f"there is no script {self.path}")
        words = [word.format(**settings) for word in shlex.split(self.arguments)]
        watch = _Watch(init, steps)
        forget_strangers(Path(script).resolve().parent)
        before = set(sys.modules)
        argv, search = sys.argv, list(sys.path)
        sys.argv, sys.path[:0] = [str(script), *words], [str(script.parent)]
        try:
            with _patched(_Records(data, self.item), settings, watch), _silent():
                runpy.run_path(str(script), run_name="__main__")
        except (_Done, SystemExit):
            pass
        finally:
            sys.argv, sys.path[:] = argv, search
            _forget(before, script.parent)
        if watch.taken == 0:
            raise TrainingFailedError(
                f"{script.name} ended without a step of a torch optimizer on a model whose "
                "parameters have the names of model_fn"
            )
        return watch.state()


class _Watch:
    """Follows the model with the right parameters and counts steps of its optimizer."""

    def __init__(self, init: StateDict, steps: int) -> None:
        self.init, self.steps, self.taken = init, steps, 0
        self.model: nn.Module | None = None

    def before_forward(self, module: nn.Module, inputs: Any) -> None:
        """Load the first weights into the model when it is first used."""
        if self.model is not None:
            return
        own = {_plain(name): value for name, value in module.state_dict().items()}
        wanted = {name for name, value in self.init.items()}
        if not wanted <= set(own):
            return
        with torch.no_grad():
            for name in wanted:
                own[name].copy_(self.init[name])
        self.model = module

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Count a step of the watched model, and end training after the last."""
        if self.model is None:
            return
        mine = {id(p) for p in self.model.parameters()}
        if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
            return
        self.taken += 1
        if self.taken >= self.steps:
            raise _Done

    def state(self) -> StateDict:
        """Return the weights as they are now."""
        assert self.model is not None
        found = {_plain(n): v.detach().clone() for n, v in self.model.state_dict().items()}
        return {name: found[name] for name in self.init}


def _plain(name: str) -> str:
    """Strip what wrappers of private and data-parallel modules put in front."""
    return name.replace("_module.", "").removeprefix("module.")


@contextlib.contextmanager
def _patched(records: _Records, settings: Mapping[str, Any], watch: _Watch) -> Iterator[None]:
    """Patch loaders, optimizers and Opacus for as long as the script runs."""
    make, walk = DataLoader.__init__, DataLoader.__iter__
    build = torch.optim.Optimizer.__init__

    def make_loader(self: Any, dataset: Any, *given: Any, **named: Any) -> None:
        # Copies that a library makes of a loader carry their own sampler and batches.
        if named.get("batch_sampler") is None and not isinstance(dataset, _Records):
            if given:
                given = (settings["batch_size"], *given[1:])
            else:
                named["batch_size"] = settings["batch_size"]
            named.pop("sampler", None)
            named["num_workers"] = 0
        make(self, records, *given, **named)

    def endless(self: Any) -> Iterator[Any]:
        # Epochs follow each other until enough steps were taken; without steps there is an end.
        start, empty = watch.taken, 0
        while empty < 3:
            yield from walk(self)
            empty = 0 if watch.taken > start else empty + 1
            start = watch.taken

    def build_optimizer(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        build(self, params, {**defaults, "lr": settings["lr"]})
        for group in self.param_groups:
            group["lr"] = settings["lr"]

    forward = nn.modules.module.register_module_forward_pre_hook(watch.before_forward)
    stepped = register_optimizer_step_post_hook(watch.after_step)
    with contextlib.ExitStack() as stack:
        stack.callback(forward.remove)
        stack.callback(stepped.remove)
        for owner, name, replacement in (
            (DataLoader, "__init__", make_loader),
            (DataLoader, "__iter__", endless),
            (torch.optim.Optimizer, "__init__", build_optimizer),
            *_opacus(settings),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


def _opacus(settings: Mapping[str, Any]) -> list[tuple[Any, str, Any]]:
    """Return patches that hand clipping norm and noise multiplier to Opacus, if it is there."""
    if importlib.util.find_spec("opacus") is None:
        return []
    engine = importlib.import_module("opacus").PrivacyEngine
    original = engine.make_private

    def make_private(self: Any, **named: Any) -> Any:
        named["noise_multiplier"] = settings["noise_multiplier"]
        norm = named.get("max_grad_norm", 1.0)
        clip = float(settings["clip"])
        if isinstance(norm, Sequence):
            # Norms per layer keep their proportions.
            length = math.sqrt(sum(float(part) ** 2 for part in norm))
            named["max_grad_norm"] = [clip * float(part) / length for part in norm]
        else:
            named["max_grad_norm"] = clip
        return original(self, **named)

    def with_epsilon(self: Any, **named: Any) -> Any:
        for name in ("target_epsilon", "target_delta", "epochs"):
            named.pop(name, None)
        return make_private(self, **named)

    return [
        (engine, "make_private", make_private),
        (engine, "make_private_with_epsilon", with_epsilon),
    ]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def _forget(before: set[str], folder: Path) -> None:
    """Forget modules from the script's folder, so that each run starts them afresh."""
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and os.path.dirname(os.path.abspath(file)).startswith(str(folder)):
            del sys.modules[name]


def array_function(
    train: Callable[..., Mapping[str, Any]], transposed: Sequence[str] = ()
) -> Callable[..., StateDict]:
    """Return a training function around one that takes and returns numpy arrays.

    ``train(*, params, x, y, clip, noise_multiplier, batch_size, seed, steps, lr)`` gets a dict of
    arrays and returns one with the same names (JAX arrays will do). Names in `transposed` are
    turned over on the way in and out: a dense layer of Keras or Flax is (inputs, outputs), one of
    torch the other way round.
    """
    turned = frozenset(transposed)

    def wrapped(
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
        params = {
            name: value.numpy().T if name in turned else value.numpy()
            for name, value in init.items()
        }
        result = train(
            params=params,
            x=data[0].numpy(),
            y=data[1].numpy(),
            clip=clip,
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            seed=seed,
            steps=steps,
            lr=lr,
        )
        arrays = {name: np.asarray(result[name]) for name in init}
        return {
            name: torch.from_numpy(np.array(value.T if name in turned else value))
            for name, value in arrays.items()
        }

    return wrapped


#: More steps than any test takes.
_PLANNED = 1_000


@dataclass(frozen=True)
class TrainerSettings:
    """What `make` of `trainer_function` gets beside model and records."""

    clip: float
    noise_multiplier: float
    batch_size: int
    seed: int
    steps: int
    lr: float


def trainer_function(
    make: Callable[..., Any],
    build: Callable[[], nn.Module],
    item: Item = lambda x, y: {"input_ids": x, "labels": y},
) -> Callable[..., StateDict]:
    """Return a training function around a Hugging Face `Trainer`.

    ``make(model, dataset, settings) -> Trainer`` makes it; `settings` has ``clip``,
    ``noise_multiplier``, ``batch_size``, ``seed``, ``steps`` and ``lr``, of which ``steps``
    belongs into ``TrainingArguments(max_steps=...)``. That is a number of steps which is planned,
    always the same, so that a learning rate which falls until the end of training is the same
    in every run; the trainer is stopped earlier.
    """

    def wrapped(
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
        model = build()
        model.load_state_dict(init)
        settings = TrainerSettings(clip, noise_multiplier, batch_size, seed, _PLANNED, lr)
        transformers = importlib.import_module("transformers")

        class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
            def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> Any:
                control.should_training_stop = state.global_step >= steps
                return control

        with _silent():
            trainer = make(model, _Records(data, item), settings)
            trainer.add_callback(Stop())
            trainer.train()
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    return wrapped
