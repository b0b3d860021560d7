"""Checkpoints: one safetensors file with JSON in its header, written whole or not at all.

No pickle: tensors are stored as such, everything else as JSON. The file is written aside, synced
and renamed, so that a crash leaves the old checkpoint or the new one. It holds weights, optimizer,
averages, schedulers, the plan, the position of sampler and generators (for a seeded run the seed
and the step are all there is; a secret key is never stored), torch's generator, and how many
steps were charged.

Resuming trusts the ledger, not the checkpoint, and makes sure that it is the ledger of this
checkpoint, no older than it. Steps that were charged after the checkpoint stay charged. A seeded
run repeats them bit by bit, with the same batches and the same noise, which publishes nothing new;
the ledger has a digest of each, and the first step that would publish anything else ends the
repetition. From there on, and in a secret run from the beginning, the updates are lost and training
goes on with the step after the last charge, with other batches and other noise. Either way the
finished run has charged exactly its planned steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from noisewise.files import replace_file
from noisewise.privacy import LedgerHead
from noisewise.training.errors import CheckpointError

if TYPE_CHECKING:
    from noisewise.training.private_run import PrivateRun

__all__ = ["load", "read", "save_run", "write"]

_FORMAT = "noisewise-checkpoint"
_VERSION = 1


def save_run(run: PrivateRun, path: str | os.PathLike[str], **extra: Any) -> None:
    """Write the checkpoint of a run.

    Parameters
    ----------
    run : PrivateRun
        Between two steps, with a durable ledger.
    path : path
    **extra : objects with state_dict(), or plain values
        Schedulers and other things to be saved along; JSON values and tensors inside.
    """
    if run.team.agree(run.team.worker == 0 and not run.account.durable):
        raise CheckpointError(
            "a checkpoint needs a durable ledger beside it, or the steps after it would be "
            "forgotten by a crash. Give ledger='training.ledger' to make_private."
        )
    content = content_of(run, extra)  # all workers together, each with its part
    if run.team.worker == 0:
        write(path, content)
    run.team.barrier()


def content_of(run: PrivateRun, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a checkpoint holds, as nested plain values and tensors."""
    averager, card = run.averager, _card(run)
    return {
        "plan": run.plan.to_json(indent=None),
        "name": run.name,
        "constants": _constants(run),
        "step": run.next_step,
        "charged": run.steps_taken,
        "ledger": None if (head := run.account.head) is None else (head.entries, head.digest),
        # Sizes of secret runs may be private, and their batches are drawn anew anyhow.
        "batches": "" if run.streams.is_secret else run.batches_known_by,
        "model": run.team.whole(dict(run.plain_model.state_dict())),
        "optimizer": run.team.whole(run.optimizer.state_dict()),
        "average": None
        if averager is None
        else {"count": averager.count, "weights": averager.weights},
        "circumstances": vars(run.circumstances).copy(),
        "torch": run.team.each(torch.get_rng_state()),
        "cuda": None
        if (card := _card(run)) is None
        else run.team.each(torch.cuda.get_rng_state(card)),
        "extra": {name: _state(value) for name, value in extra.items()},
    }


def load(run: PrivateRun, path: str | os.PathLike[str], **extra: Any) -> dict[str, Any]:
    """Continue a run from its checkpoint; returns the plain values among what was saved along.

    Raises
    ------
    CheckpointError
        If there is none, it is damaged, or belongs to another plan or run.
    LedgerError
        If there is no ledger, or it is not the one of the checkpoint or older than it.
    """
    content = read(path)
    if content["plan"] != run.plan.to_json(indent=None) or content["name"] != run.name:
        raise CheckpointError(
            f"{os.fspath(path)!r} belongs to a run {content['name']!r} with another plan. "
            "Resume it with Plan.from_json of what it was made with: "
            f"{content['plan']}"
        )
    before = content.get("constants")  # checkpoints of version 0.1 have none
    if before not in (None, _constants(run)):
        raise CheckpointError(
            f"{os.fspath(path)!r} belongs to a run with the public constants {before}, and this "
            f"one has {_constants(run)}: they follow from the number of records, which is another "
            "one. Resume with the same records, or begin a new run."
        )
    held = content.get("ledger")
    head = None if held is None else LedgerHead(*held)
    run.team.first(lambda: run.account.restore(int(content["charged"]), head))
    charged = run.team.share(run.steps_taken)
    if run.team.worker != 0:
        run.account.follow(charged)
    run.team.load(run.plain_model, run.optimizer, content)
    _restore_average(run, content["average"])
    for name, value in content["circumstances"].items():
        setattr(run.circumstances, name, getattr(run.circumstances, name) or value)
    run.circumstances.resumed = True
    _restore_generators(run, content)
    repeats = not run.streams.is_secret and content["batches"] == run.batches_known_by
    run.go_to(int(content["step"]) if repeats else charged)
    return _restore_extra(content["extra"], extra)


def _constants(run: PrivateRun) -> dict[str, Any]:
    """What one accountant and one statement of the whole run count on, all of it public."""
    fixed = run.resolved
    return {
        "sample_rate": fixed.sample_rate,
        "steps": fixed.steps,
        "batch_size": fixed.batch_size,
        "delta": fixed.delta,
    }


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write nested plain values and tensors to one safetensors file, atomically."""
    tensors: dict[str, Tensor] = {}
    plain = _flatten(content, "", tensors)
    header = {"format": _FORMAT, "version": str(_VERSION), "content": json.dumps(plain)}
    replace_file(Path(path), save(tensors, metadata=header))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what :func:`write` wrote."""
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {os.fspath(path)!r}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{os.fspath(path)!r} is not a checkpoint: {error}") from error
    if header.get("format") != _FORMAT or header.get("version") != str(_VERSION):
        raise CheckpointError(f"{os.fspath(path)!r} is not a noisewise checkpoint of version 1")
    content: dict[str, Any] = _unflatten(json.loads(header["content"]), tensors)
    return content


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors by references; tuples and mappings with keys of any kind by marked ones."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().contiguous().clone()
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        items = [[key, _flatten(item, f"{name}.{key}", tensors)] for key, item in value.items()]
        if not all(isinstance(key, (str, int)) for key, _ in items):
            raise TypeError(f"{name} has keys that are neither words nor whole numbers")
        return {"mapping": items}
    if isinstance(value, (list, tuple)):
        parts = [_flatten(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    raise TypeError(
        f"{name.lstrip('.')} is a {type(value).__name__}, which cannot be saved without pickle; "
        "checkpoints hold tensors, numbers, words and containers of them."
    )


def _unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unflatten(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(_unflatten(item, tensors) for item in value["tuple"])
    return {key: _unflatten(item, tensors) for key, item in value["mapping"]}


def _state(value: Any) -> Any:
    if not hasattr(value, "state_dict"):
        return value
    # Schedulers keep functions of their own making in their state; those return with the object.
    return {key: item for key, item in value.state_dict().items() if not callable(item)}


def _restore_extra(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in wanted.items():
        if name in saved and hasattr(value, "load_state_dict"):
            value.load_state_dict(saved[name])
    return {name: value for name, value in saved.items() if name not in wanted}


def _card(run: PrivateRun) -> torch.device | None:
    return run.device if run.device is not None and run.device.type == "cuda" else None


def _restore_generators(run: PrivateRun, content: Mapping[str, Any]) -> None:
    """Set torch's generators, from which dropout and augmentation draw, as they were."""
    worker, workers, card = run.team.worker, run.team.workers, _card(run)
    if len(content["torch"]) == workers:
        torch.set_rng_state(content["torch"][worker])
    if content["cuda"] is not None and card is not None and len(content["cuda"]) == workers:
        torch.cuda.set_rng_state(content["cuda"][worker], card)


def _restore_average(run: PrivateRun, saved: Mapping[str, Any] | None) -> None:
    if (saved is None) != (run.averager is None):
        raise CheckpointError("the checkpoint and the run differ in averaging=; give the same")
    if saved is not None and run.averager is not None:
        run.averager.count = int(saved["count"])
        device = run.device or torch.device("cpu")
        run.averager.weights = {name: w.to(device) for name, w in saved["weights"].items()}
