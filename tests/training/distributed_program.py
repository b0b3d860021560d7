"""What the workers of the distributed tests run; started by torchrun, as users do.

``python -m torch.distributed.run --nproc-per-node 2 distributed_program.py SCENARIO FOLDER``
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from dividing_records import division
from dividing_units import units
from making_runs import plan, small_model, start, table, weights

from noisewise.errors import BudgetExceededError
from noisewise.release import digest_of
from noisewise.release.steps import Step
from noisewise.training import Callback, Distributed, fit

STEPS = 12


def full_plan(**changes):
    return plan(sampling="full", batch_size=None, steps=STEPS, **changes)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.05)


def replicated(folder):
    """Full batches and seeded noise: the same as one process, whatever the number of workers."""
    torch.manual_seed(dist.get_rank())  # different weights, which worker 0's replace
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    if dist.get_rank() == 0:
        model.load_state_dict(small_model().state_dict())
    run = start(
        nn.parallel.DistributedDataParallel(model),
        adam(model),
        the_plan=full_plan(),
        ledger=folder / "replicated.ledger",
    )
    for x, y in run.loader:
        run.step(x, y)
    run.close()
    return {"weights": weights(model), "statement": run.statement().to_json()}


def by_hand(folder):
    """The same in a loop of one's own, with an empty batch on one worker now and then."""
    model = small_model()
    run = start(model, adam(model), the_plan=full_plan(), data=table(3))
    for x, y in run.loader:
        run.loss(run.model(x), y).backward()
        run.optimizer.step()
    return {"weights": weights(model)}


def sharded(folder):
    """FSDP2, with a checkpoint halfway that another run continues."""
    from torch.distributed.fsdp import fully_shard

    def begin(**options):
        model = small_model()
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
        return start(
            model, adam(model), the_plan=full_plan(), ledger=folder / "sharded.ledger", **options
        )

    run = begin()
    for _, (x, y) in zip(range(STEPS // 2), run.loader, strict=False):
        run.step(x, y)
    run.save(folder / "sharded.safetensors")
    run.model(table()[0])  # gathered and opened, then thought better of
    run.discard()
    parts = all(hasattr(p, "full_tensor") for p in run.plain_model.parameters())
    run.close()
    run = begin(resume=folder / "sharded.safetensors")
    for x, y in run.loader:  # the second half in a loop by hand
        run.loss(run.model(x), y).backward()
        run.optimizer.step()
    run.close()
    state = run.plain_model.state_dict()
    return {
        "weights": {name: value.full_tensor() for name, value in state.items()},
        "local": {name: tuple(value.to_local().shape) for name, value in state.items()},
        "moments": run.optimizer.state_dict()["state"][0]["exp_avg"].to_local().shape[0],
        "in parts after a loop": parts,
    }


def in_parts(model):
    """The first layer by rows, the second by columns, as tensor parallelism is meant."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def parallel(folder):
    """Tensor parallel layers, with a checkpoint halfway that another run continues."""

    def begin(**options):
        model = in_parts(small_model())
        return start(
            model, adam(model), the_plan=full_plan(), ledger=folder / "parallel.ledger", **options
        )

    run = begin()
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in run.plain_model.modules()]
    for _, (x, y) in zip(range(STEPS // 2), run.loader, strict=False):
        run.step(x, y)
    run.save(folder / "parallel.safetensors")
    run.close()
    run = begin(resume=folder / "parallel.safetensors")
    for x, y in run.loader:  # the second half in a loop by hand
        run.loss(run.model(x), y).backward()
        run.optimizer.step()
    run.close()
    model = run.plain_model
    after = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    state = model.state_dict()
    whole = {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in state.items()}
    plain = small_model()
    plain.load_state_dict(whole)
    x = table()[0]
    forward = None
    if 6 % dist.get_world_size() == 0:  # torch's own parallel forward pass takes even parts only
        # Adding zero waits for the sum over the processes, which a view of it does not.
        forward = model(x).detach() + 0.0, plain(x).detach()
    return {
        "weights": whole,
        "local": {n: tuple(v.to_local().shape) for n, v in state.items() if "weight" in n},
        "in parts": all(hasattr(p, "full_tensor") for p in model.parameters()),
        "moments": tuple(run.optimizer.state_dict()["state"][0]["exp_avg"].to_local().shape),
        "gradients": tuple(model[0].weight.grad.to_local().shape),
        "hooks": (hooks, after),
        "forward": forward,
    }


def noise(folder):
    """Pure noise: empty batches, secret generator; the sum of squares of many gradients."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = start(
        model, optimizer, the_plan=plan(steps=300, noise_multiplier=2.0, seed=None, batch_size=1e-9)
    )
    squares, count = 0.0, 0
    for x, y in run.loader:
        run.step(x, y)
        flat = torch.cat([p.grad.flatten() for p in model.parameters()]) * 1e-9
        squares += float((flat.double() ** 2).sum())
        count += flat.numel()
    return {"squares": squares, "count": count, "weights": weights(model), "last": flat}


def sampling(folder):
    """Which records each worker draws, from the whole dataset and from shards of its own."""
    numbers = torch.arange(1000.0).reshape(-1, 1)
    whole = start(
        nn.Linear(1, 2),
        data=(numbers, numbers[:, 0].long() % 2),
        the_plan=plan(steps=60, batch_size=50),
    )
    drawn = [x[:, 0].long().tolist() for x, _ in whole.loader]
    rank, size = dist.get_rank(), dist.get_world_size()
    own = numbers[rank * 1000 // size : (rank + 1) * 1000 // size]
    shards = start(
        nn.Linear(1, 2),
        data=(own, own[:, 0].long() % 2),
        the_plan=plan(steps=60, batch_size=50),
        team=Distributed(data="shard"),
    )
    return {
        "drawn": drawn,
        "shard rate": shards.resolved.sample_rate,
        "shard drawn": [x[:, 0].long().tolist() for x, _ in shards.loader],
    }


def budget(folder):
    """Every worker stops before the step that would exceed, and says so in the same way."""
    model = small_model()
    run = start(
        model,
        the_plan=plan(noise_multiplier=None, epsilon=1.0, steps=3, accountant="rdp"),
        ledger=folder / "budget.ledger",
    )
    x, y = table()
    taken = 0
    try:
        for _ in range(20):
            run.step(x[:40], y[:40])
            taken += 1
    except BudgetExceededError:
        pass
    run.close()
    return {"taken": taken, "charged": run.steps_taken, "weights": weights(model)}


class Killer(Callback):
    """Ends one worker, without any warning, at a step."""

    def __init__(self, worker, step):
        self.worker, self.step = worker, step

    def on_step(self, run, metrics):
        if run.team.worker == self.worker and run.next_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def mortal(folder):
    """Poisson training with checkpoints; the folder says who dies when."""
    folder.mkdir(exist_ok=True)
    victim = folder / "victim"
    callbacks = []
    if victim.exists():
        worker, step = (int(word) for word in victim.read_text().split())
        callbacks = [Killer(worker, step)]
    model = small_model()
    model.insert(1, nn.Dropout(0.2))
    torch.manual_seed(100 + dist.get_rank())
    result = fit(
        model,
        table(),
        plan(steps=STEPS, accountant="rdp"),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.05),
        checkpoint=folder / "run.safetensors",
        checkpoint_every=4,
        resume=True,
        progress=False,
        metrics=False,
        callbacks=callbacks,
    )
    return {"weights": weights(model), "statement": result.statement().to_json()}


def undisturbed(folder):
    """The run that nobody kills."""
    return mortal(folder / "undisturbed")


def diverted(folder):
    """A seeded run that dies behind its checkpoint and is resumed with another learning rate."""

    def begin(**options):
        return start(the_plan=plan(steps=STEPS), ledger=folder / "diverted.ledger", **options)

    released, original = [], Step.pay

    def watched(self, mean=None):
        paid = original(self, mean)
        if paid:
            released.append((self.number, digest_of(mean)))
        return paid

    Step.pay = watched
    try:
        run = begin()
        for x, y in run.loader.take(3):
            run.step(x, y)
        run.save(folder / "diverted.safetensors")
        for x, y in run.loader.take(4):
            run.step(x, y)
        run.close()
        run = begin(resume=folder / "diverted.safetensors")
        run.optimizer.param_groups[0]["lr"] = 0.9
        for x, y in run.loader:
            run.step(x, y)
        run.close()
    finally:
        Step.pay = original
    return {"weights": weights(run.plain_model), "released": released, "next": run.next_step}


SCENARIOS = (
    *(replicated, by_hand, sharded, parallel, noise, sampling, budget, undisturbed, diverted),
    *(division, units),
)


def main(scenario, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(folder)
    chosen = SCENARIOS if scenario == "all" else (globals()[scenario],)
    results = {action.__name__: action(folder) for action in chosen}
    torch.save(results, folder / f"{scenario}-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # At once: threads of the communication library have been seen to abort a process that is
    # already on its way out.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
