"""Any script as a training function: a command line with placeholders, files in and out.

``python train.py --clip {clip} --sigma {noise_multiplier} ... --data {data} --init {init}
--out {out}`` is filled in and run once per training. Data and weights travel as ``.pt``
files (read with ``weights_only=True``), ``.safetensors`` or ``.npz``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisewise import checks
from noisewise.debugging.preloaded import Preloaded, can_be_preloaded, shared
from noisewise.debugging.siblings import forget_strangers
from noisewise.debugging.trainer import ARGUMENTS, Data, StateDict, TrainingFailedError
from noisewise.errors import MissingExtraError

__all__ = ["FORMATS", "PLACEHOLDERS", "CommandTraining", "load_object", "read_state"]

FORMATS = ("pt", "safetensors", "npz")
PLACEHOLDERS = {
    "clip": "clipping norm; without it nothing can be tested",
    "batch_size": "batch size; without it nothing can be tested",
    "data": "file with x and y; without it nothing can be tested",
    "init": "file with the weights to start from; without it nothing can be tested",
    "out": "file for the weights at the end; without it nothing can be tested",
    "noise_multiplier": "sigma; without it all tests of the noise are skipped, and all others "
    "too if the script adds noise by itself",
    "seed": "seed; without it every run must draw new noise by itself",
    "steps": "number of steps; without it all that compares steps is skipped",
    "lr": "learning rate; without it law-of-noise is skipped",
}
_NEEDED = ("clip", "batch_size", "data", "init", "out")


@dataclass(frozen=True)
class CommandTraining:
    """A training function that runs a command.

    Parameters
    ----------
    template
        The command, with the placeholders of `PLACEHOLDERS` in braces.
    form
        File format of data and weights, one of `FORMATS`.
    timeout
        Seconds after which a run counts as failed.
    fresh
        Start a new interpreter for every run, even where a fork would do (see `preloaded`).
    usual
        Values of further placeholders, where a test does not vary them.
    """

    template: str
    form: str = "pt"
    timeout: float = 600.0
    fresh: bool = False
    usual: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.choice("form", self.form, FORMATS)
        found = self.placeholders
        missing = [name for name in _NEEDED if name not in found]
        unknown = sorted(found - set(PLACEHOLDERS) - set(self.usual))
        if unknown:
            raise ValueError(
                f"unknown placeholder {{{unknown[0]}}} in the command; known are "
                + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            )
        for name in self.usual:
            if name not in found:
                raise ValueError(f"{name} is to be varied, but the command has no {{{name}}}")
        if missing:
            what = "; ".join(f"{{{name}}}: {PLACEHOLDERS[name]}" for name in missing)
            raise ValueError(
                f"the command lacks {what}. A script that loads its own data can stay as it is: a "
                "file nw_adapter.py says how to run it (docs: Any stack, as it stands)"
            )

    @property
    def preloaded(self) -> Preloaded | None:
        """The process that runs the script, if it can be run without a new interpreter."""
        words = self.words
        if self.fresh or not can_be_preloaded(words):
            return None
        return shared(words[0], words[1])

    @property
    def words(self) -> list[str]:
        """The command in words; plain ``python`` is the interpreter that runs the check."""
        words = shlex.split(self.template)
        if words and words[0] in ("python", "python3"):
            words[0] = sys.executable
        return words

    @property
    def placeholders(self) -> set[str]:
        """Names between braces in the template."""
        fields = string.Formatter().parse(self.template)
        return {name for _, name, _, _ in fields if name}

    @property
    def accepts(self) -> frozenset[str]:
        """Arguments of a training function that this command takes."""
        return frozenset(self.placeholders & set(ARGUMENTS)) | {"seed"}

    @property
    def absent(self) -> dict[str, str]:
        """Placeholders that are missing, and what that disables."""
        return {name: why for name, why in PLACEHOLDERS.items() if name not in self.placeholders}

    def __call__(self, *, data: Data, init: StateDict, **arguments: Any) -> StateDict:
        """Write the files, run the command, read the weights."""
        with tempfile.TemporaryDirectory(prefix="noisewise-debug-") as folder:
            place = {k: Path(folder) / f"{k}.{self.form}" for k in ("data", "init", "out")}
            _write(place["data"], {"x": data[0], "y": data[1]})
            _write(place["init"], init)
            given = {**self.usual, **arguments}
            words = [
                word.format(**given, **{k: str(v) for k, v in place.items()}) for word in self.words
            ]
            # A script that takes no seed is seeded from outside, where that is possible.
            seed = None if "seed" in self.placeholders else int(arguments.get("seed", 0))
            code, said = self._run(words, seed)
            if code != 0 or not place["out"].exists():
                raise TrainingFailedError(
                    f"the command ended with code {code}"
                    f"{'' if place['out'].exists() else ' and wrote no {out}'}: "
                    + " / ".join(said.strip().splitlines()[-3:])
                )
            return read_state(place["out"])

    def _run(self, words: list[str], seed: int | None = None) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        if self.preloaded is not None:
            code, said = self.preloaded.run(words[1:], self.timeout, seed)
            if code is None:
                raise TrainingFailedError(f"{words[1]} took more than {self.timeout:g} s")
            return code, said
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=self.timeout, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TrainingFailedError(f"{words[0]} could not run: {error}") from error
        return done.returncode, done.stderr or done.stdout


def read_state(path: Path) -> StateDict:
    """Read weights; nothing but tensors is ever unpickled."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    if path.suffix == ".safetensors":
        loaded: StateDict = _safetensors().load_file(str(path))
        return loaded
    state = torch.load(path, weights_only=True, map_location="cpu")
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping):
        raise TrainingFailedError(
            f"{path.name} holds a {type(state).__name__}; save the weights with "
            "torch.save(model.state_dict(), out)"
        )
    # Wrappers of data-parallel and private modules put their own name in front.
    return {name.removeprefix("_module.").removeprefix("module."): v for name, v in state.items()}


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        _safetensors().save_file({k: v.contiguous() for k, v in tensors.items()}, str(path))
    else:
        torch.save(dict(tensors), path)


def _safetensors() -> Any:
    if importlib.util.find_spec("safetensors") is None:
        raise MissingExtraError("the format safetensors needs: pip install safetensors")
    return importlib.import_module("safetensors.torch")


def load_object(place: str, purpose: str) -> Callable[..., Any]:
    """Return the object named by ``file.py:name`` or ``package.module:name``."""
    source, _, name = place.rpartition(":")
    if not source or not name:
        raise ValueError(f"{purpose} must look like model.py:build, got {place!r}")
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.exists():
            raise ValueError(f"{purpose}: there is no file {source}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))
        forget_strangers(path.parent)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(source)
    if not hasattr(module, name):
        raise ValueError(f"{purpose}: {source} has no {name}")
    found: Callable[..., Any] = getattr(module, name)
    return found
