"""Several processes that take one private step together, over torch.distributed.

Every worker draws a Poisson batch from its own part of the records with the same probability, so
the union is a Poisson batch of all records. The bounded sums are added in float64 on worker 0,
which charged the step to the ledger before, adds the noise *once* and sends the noisy mean to
all. One record is in one worker's sum, so the sensitivity does not depend on their number; nor
does the noise. A worker that dies takes no charge with it: the ledger is on worker 0's disk
before anything is added.

Models may be replicated (as with DistributedDataParallel, whose wrapper is not needed and is
taken off), sharded by ``fully_shard`` (FSDP2) or divided by tensor parallelism: then the whole
weights are gathered for the duration of a step; gradients and optimizer states are in parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from noisewise import checks
from noisewise.errors import BudgetExceededError, LedgerError, NoisewiseError
from noisewise.privacy import Randomness
from noisewise.release import Approval, Query, TensorNoise, ThisProcess
from noisewise.training.division import (
    compare_copies,
    compare_parts,
    compare_unit_copies,
    compare_unit_parts,
)
from noisewise.training.errors import CheckpointError, StepError
from noisewise.training.records import Records
from noisewise.training.sampling import Shard
from noisewise.training.sharding import (
    ParallelWeights,
    are_parallel,
    is_sharded,
    local_part,
    sharded_modules,
    whole_tensor,
)

__all__ = ["Distributed", "default_team"]

#: How a failure of worker 0 is told to the others.
_FAILURES: tuple[type[NoisewiseError], ...] = (
    NoisewiseError,
    BudgetExceededError,
    LedgerError,
    CheckpointError,
    StepError,
)


class Distributed:
    """The workers of a torch.distributed process group.

    Parameters
    ----------
    data : {"whole", "shard"}
        "whole": every worker was given the whole dataset and draws from every W-th record of it,
        or every W-th unit with its rows. "shard": every worker was given its own records, which no
        other has; of units, all their rows.
        Either is checked before training, see :mod:`noisewise.training.division`.
    group : ProcessGroup, optional
        Default: all processes.
    identifiers : sequence of int, str, bytes or UUID, optional
        One for every record that this worker was given, in the same order: what tells records
        apart where their content cannot, because rows of different people are equal, items are
        augmented at random, or reading all of them would take too long. They are compared in
        place of the content, and do not leave the worker but as keyed digests.
    """

    def __init__(
        self,
        data: str = "whole",
        group: dist.ProcessGroup | None = None,
        *,
        identifiers: Any = None,
    ) -> None:
        if not dist.is_initialized():
            raise StepError(
                "torch.distributed is not initialised: call "
                "torch.distributed.init_process_group('gloo') first, in a program that torchrun "
                "started."
            )
        self._data = checks.choice("data", data, ("whole", "shard"))
        self._group = group
        self._identifiers = identifiers
        self._parallel: weakref.WeakKeyDictionary[nn.Module, ParallelWeights]
        self._parallel = weakref.WeakKeyDictionary()
        self.worker = dist.get_rank(group)
        self.workers = dist.get_world_size(group)
        self._device = torch.device(
            "cuda" if dist.get_backend(group) == "nccl" else "cpu",
        )

    # ---------------------------------------------------------------- the beginning

    def prepare(self, model: nn.Module, plan: str) -> None:
        """Check that all have the same plan, and send worker 0's weights to all."""
        own = int(hashlib.sha256(plan.encode()).hexdigest()[:15], 16)
        if self.agree(self.share(own) != own):
            raise StepError("the workers have different plans; give all the same one")
        for tensor in (*model.parameters(), *model.buffers()):
            if not is_sharded(tensor):
                dist.broadcast(tensor.detach(), self._source, group=self._group)

    def public_size(self, held: int) -> int:
        """Number of records of all workers."""
        if self._data == "whole":
            if self.agree(self.share(held) != held):
                raise StepError(
                    "the workers were given datasets of different sizes; if these are different "
                    "records, say so: team=Distributed(data='shard')"
                )
            return held
        total = torch.tensor([held], device=self._device)
        dist.all_reduce(total, group=self._group)
        return int(total)

    def compare(self, records: Records | None, declared: int | None) -> str:
        """Raise unless the workers hold equal copies, or parts that do not overlap."""
        if self._data == "whole":
            return compare_copies(self, records, self._identifiers)
        return compare_parts(self, records, self._identifiers, declared)

    def compare_units(
        self, records: Records, units: Any, codes: Tensor, declared: int | None
    ) -> str:
        """Raise unless each unit's rows are one worker's to draw."""
        if self._data == "shard":
            return compare_unit_parts(self, units, declared)
        said = compare_copies(self, records, self._identifiers)
        compare_unit_copies(self, codes)
        return said

    def shard(self, held: int) -> Shard:
        """Every W-th record of the whole, or all of this worker's own."""
        if self._data == "shard":
            return Shard(held)
        return Shard(held, self.worker, self.workers)

    # ---------------------------------------------------------------- agreement

    def first(self, action: Callable[[], object]) -> None:
        """Let worker 0 act, and tell the others whether that failed."""
        failure: Exception | None = None
        code = 0
        if self.worker == 0:
            try:
                action()
            except Exception as error:
                failure = error
                known = [i for i, kind in enumerate(_FAILURES) if isinstance(error, kind)]
                code = 1 + max(known, default=0)
        code = self.share(code)
        if failure is not None:
            raise failure
        if code:
            raise _FAILURES[code - 1]("worker 0 refused, see there; nothing was released")

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set on any worker."""
        flags = torch.tensor([int(flag)], device=self._device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        return bool(flags)

    def share(self, number: int) -> int:
        """Return worker 0's number."""
        held = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.broadcast(held, self._source, group=self._group)
        return int(held)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Largest of each value, of which all workers should have the same."""
        held = torch.tensor(values, dtype=torch.float64, device=self._device)
        most = held.clone()
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._group)
        if self.agree(bool((most > held * (1 + 1e-3)).any())):
            raise StepError(
                "the workers' sensitivities differ, so their weights do: something changed the "
                "weights of one of them. Start again from a checkpoint."
            )
        return [float(value) for value in most]

    def each(self, tensor: Tensor) -> list[Tensor]:
        """Every worker's tensor, in order."""
        held = tensor.to(self._device)
        gathered = [torch.empty_like(held) for _ in range(self.workers)]
        dist.all_gather(gathered, held, group=self._group)
        return [part.cpu() for part in gathered]

    def from_worker(self, worker: int, tensor: Tensor) -> Tensor:
        """Return one worker's tensor; the others give one of the same shape and type."""
        held = tensor.to(self._device)
        source = worker if self._group is None else dist.get_global_rank(self._group, worker)
        dist.broadcast(held, source, group=self._group)
        return held.cpu()

    def barrier(self) -> None:
        """Wait for the others."""
        dist.barrier(group=self._group)

    # ---------------------------------------------------------------- a step

    def noisy(
        self, query: Query, noise: TensorNoise, rng: Randomness, approve: Approval | None = None
    ) -> dict[str, Tensor] | None:
        """Add the sums on worker 0, add noise there once, and send the mean to all."""
        groups = query.measure(None)
        tensors = {name: g for group in groups for name, g in group.items()}
        joined = torch.cat([t.detach().reshape(-1).double() for t in tensors.values()])
        joined = joined.to(self._device)
        dist.reduce(joined, self._source, group=self._group)
        kind = torch.float32
        if torch.float64 in noise.types.values():
            kind = torch.float64
        sent = torch.empty(joined.shape, dtype=kind, device=self._device)
        mean: dict[str, Tensor] = {}
        if self.worker == 0:
            parts = _split(joined, tensors, dict.fromkeys(tensors, torch.float64))
            sums = [{name: parts[name] for name in group} for group in groups]
            whole = replace(query, measure=lambda held: held)
            mean = ThisProcess(sums).noisy(whole, noise, rng)
        if approve is not None:
            answer: list[bool] = []
            self.first(lambda: answer.append(approve(mean)))
            if not self.share(int(all(answer))):
                return None
        if self.worker == 0:
            sent.copy_(torch.cat([mean[name].reshape(-1).to(kind) for name in tensors]))
        dist.broadcast(sent, self._source, group=self._group)
        return _split(sent, tensors, noise.types)

    def write(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        """Set the gradient, or this worker's part of it."""
        if gradient is None or not is_sharded(parameter):
            parameter.grad = gradient
        else:
            parameter.grad = local_part(gradient, parameter)

    @contextlib.contextmanager
    def gathered(self, model: nn.Module) -> Iterator[None]:
        """Gather sharded weights for a while; replicated ones are whole."""
        if are_parallel(model) and model not in self._parallel:
            self._parallel[model] = ParallelWeights(model, self.workers)
        if model in self._parallel:
            with self._parallel[model].gathered():
                yield
            return
        modules = sharded_modules(model)
        try:
            for module in modules:
                module.set_reshard_after_forward(False, recurse=False)
                module.set_reshard_after_backward(False, recurse=False)
                module.unshard()
            yield
        finally:
            for module in modules:
                module.reshard()

    # ---------------------------------------------------------------- checkpoints

    def whole(self, value: Any) -> Any:
        """Nested values with every sharded tensor gathered."""
        if isinstance(value, Tensor):
            return whole_tensor(value)
        if isinstance(value, Mapping):
            return {key: self.whole(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self.whole(item) for item in value)
        return value

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
    ) -> None:
        """Set model and optimizer, each worker its part."""
        held = model.state_dict()
        model.load_state_dict(
            {
                name: local_part(value, held[name]) if is_sharded(held[name]) else value
                for name, value in saved["model"].items()
            }
        )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        states = {
            index: {
                key: local_part(value, parameters[index])
                if isinstance(value, Tensor)
                and is_sharded(parameters[index])
                and value.shape == parameters[index].shape
                else value
                for key, value in state.items()
            }
            for index, state in saved["optimizer"]["state"].items()
        }
        optimizer.load_state_dict({**saved["optimizer"], "state": states})

    @property
    def _source(self) -> int:
        return 0 if self._group is None else dist.get_global_rank(self._group, 0)


def default_team() -> Distributed | None:
    """All processes of an initialised process group, if there are several."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Distributed()
    return None


def _split(
    joined: Tensor, like: Mapping[str, Tensor], types: Mapping[str, torch.dtype]
) -> dict[str, Tensor]:
    parts, start = {}, 0
    for name, tensor in like.items():
        part = joined[start : start + tensor.numel()].view(tensor.shape)
        parts[name] = part.to(device=tensor.device, dtype=types[name])
        start += tensor.numel()
    return parts
