"""The training under test, seen as a black box: settings in, a checkpoint out.

Everything that the tests learn, they learn from :meth:`BlackBox.run`, which calls the
user's function and returns the *displacement* ``init - result`` of the parameters as one
float64 vector. Nothing is assumed about how the function works inside.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from noisewise.debugging.statistics import Vector
from noisewise.errors import NoisewiseError

__all__ = [
    "ARGUMENTS",
    "BlackBox",
    "Data",
    "Outcome",
    "StateDict",
    "TrainFunction",
    "TrainingFailedError",
]

StateDict: TypeAlias = dict[str, Tensor]
Data: TypeAlias = tuple[Tensor, Tensor]

ARGUMENTS = ("clip", "noise_multiplier", "batch_size", "seed", "data", "init", "steps", "lr")
REQUIRED = ("clip", "batch_size", "data", "init")


class TrainingFailedError(NoisewiseError, RuntimeError):
    """The training under test raised an error or returned no usable checkpoint."""


class InterfaceError(NoisewiseError, TypeError):
    """What was given as training cannot be called by the tests."""


class TrainFunction(Protocol):
    """What a user supplies: DP training that starts at `init` and returns a state dict."""

    def __call__(self, **arguments: Any) -> Mapping[str, Tensor]:
        """Train for `steps` steps with learning rate `lr` and return the weights."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What one run did: displacement of the parameters, buffers, and what else it returned.

    Where the user says what is observed, `moved` is that instead: what the last step released.
    """

    moved: Vector
    buffers: Mapping[str, Tensor]
    #: Numbers that were returned beside the state of the model: losses, counts, histories.
    beside: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class BlackBox:
    """A training function together with the layout of its parameters.

    Attributes
    ----------
    observe
        Picks from what `train` returns the release of the last step, one tensor per parameter.
        ``None``: the weights are what is released, and their displacement is read.
    zero_noise
        What is handed over for "no noise": some code refuses a noise multiplier of zero.
    progress
        Is told the number of calls after each one.
    returns_more
        Whether any run returned numbers beside the state of the model.
    """

    train: Callable[..., Mapping[str, Tensor]]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    accepted: frozenset[str]
    calls: int = 0
    wishes: frozenset[str] = field(default=frozenset())
    observe: Callable[[Any], Mapping[str, Tensor]] | None = None
    zero_noise: float = 0.0
    progress: Callable[[int], None] | None = None
    returns_more: bool = False

    @classmethod
    def of(
        cls,
        train: Callable[..., Mapping[str, Tensor]],
        model: torch.nn.Module,
        observe: Callable[[Any], Mapping[str, Tensor]] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> BlackBox:
        """Inspect the signature of `train` and the trainable parameters of `model`."""
        accepted, wishes = _accepted(train)
        missing = [name for name in REQUIRED if name not in accepted]
        if missing:
            raise InterfaceError(
                f"train must accept {', '.join(REQUIRED)} as keyword arguments, but "
                f"{', '.join(missing)} is missing: no test can run without it. Code that loads its "
                "own data can stay as it is: a file nw_adapter.py says how to run it (docs: Any "
                "stack, as it stands)"
            )
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return cls(
            train,
            tuple(name for name, _ in named),
            tuple(p.numel() for _, p in named),
            accepted,
            wishes=wishes,
            observe=observe,
            progress=progress,
        )

    @property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the vector of all parameters."""
        ends = np.cumsum(self.sizes)
        pairs = zip(self.names, self.sizes, ends, strict=True)
        return {name: slice(int(end) - size, int(end)) for name, size, end in pairs}

    def vector(self, state: Mapping[str, Tensor]) -> Vector:
        """Return the trainable parameters of a state dict as one float64 vector."""
        try:
            parts = [state[name].detach().to("cpu", torch.float64).flatten() for name in self.names]
        except KeyError as error:
            raise TrainingFailedError(
                f"the checkpoint has no tensor {error}; train must return the state dict of the "
                f"model that model_fn builds (it has {', '.join(sorted(state)[:4])}, ...)"
            ) from error
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float64)

    def run(
        self,
        *,
        init: StateDict,
        data: Data,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Outcome:
        """Train once. Copies are handed out, so the training may write into its arguments."""
        self.calls += 1
        given = dict(arguments)
        given["init"] = {name: value.clone() for name, value in init.items()}
        given["data"] = (data[0].clone(), data[1].clone())
        if given.get("noise_multiplier") == 0.0:
            given["noise_multiplier"] = self.zero_noise
        given = {name: value for name, value in given.items() if name in self.accepted}
        given.update(options or {})
        try:
            with _seeded(int(arguments.get("seed", 0))):
                state = self.train(**given)
        except NoisewiseError:
            raise
        except Exception as error:
            shown = {k: v for k, v in arguments.items() if isinstance(v, (int, float))}
            raise TrainingFailedError(
                f"train failed with {type(error).__name__}: {error} (arguments {shown}, "
                f"{len(data[0])} records)"
            ) from error
        if self.progress is not None:
            self.progress(self.calls)
        if self.observe is not None:
            return Outcome(self.vector(self.observe(state)), {})
        if not isinstance(state, Mapping):
            raise TrainingFailedError(
                f"train must return a state dict, got {type(state).__name__}: "
                "end it with `return model.state_dict()`"
            )
        moved = self.vector(init) - self.vector(state)
        own = set(self.names)
        buffers = {
            name: value.detach().clone()
            for name, value in state.items()
            if name not in own and name in init and isinstance(value, Tensor)
        }
        others = {name: value for name, value in state.items() if name not in init}
        beside = dict(_numbers(others))
        self.returns_more = self.returns_more or bool(beside)
        return Outcome(moved, buffers, beside)


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers in a nest of mappings and lists, by their path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _numbers(inner, f"{name}[{index}]")
    elif isinstance(value, (Tensor, np.ndarray, np.number, int, float)):
        found = torch.as_tensor(value).detach()
        yield name, found.to("cpu", torch.float64).flatten()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and leave them afterwards as they were.

    Code that seeds itself does so again and notices nothing. Code that does not would otherwise
    draw the same numbers in every run, or others each time: both would mislead the tests.
    """
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        # Without a device the general call spends two milliseconds on describing its caller.
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def _accepted(train: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the standard arguments that a function takes, and all further named ones."""
    declared = getattr(train, "accepts", None)
    if declared is not None:
        return frozenset(declared), frozenset()
    parameters = inspect.signature(train).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        return frozenset(ARGUMENTS), frozenset(named - set(ARGUMENTS))
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return frozenset(names & set(ARGUMENTS)), frozenset(names - set(ARGUMENTS))
