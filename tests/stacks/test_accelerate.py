"""Models, optimizers and loaders that Accelerate prepared are trained privately."""

import re
import subprocess
import sys
from pathlib import Path

import accelerate
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from noisewise.accelerate import make_private
from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.gradients import Clipped
from noisewise.training import Plan, make_private as make_plain_private


@pytest.fixture(autouse=True)
def fresh():
    """Accelerate keeps its precision for a whole process."""
    state = accelerate.state.AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)


def pieces():
    torch.manual_seed(0)
    x = torch.randn(200, 5)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=20, shuffle=True)
    return model, optimizer, loader, schedule


def plan(**changes):
    values = dict(
        gradients=Clipped(1.0), noise_multiplier=1.0, steps=5, batch_size=20, delta=1e-5, seed=3
    )
    return Plan(**{**values, **changes})


def test_a_loop_of_prepared_parts_is_the_same_as_one_of_plain_parts():
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader, schedule = accelerator.prepare(*pieces())
    assert type(optimizer) is not torch.optim.AdamW
    run = make_private(accelerator, model, optimizer, nn.CrossEntropyLoss(), loader, plan())
    for x, y in run.loader:
        optimizer.zero_grad()
        accelerator.backward(run.loss(run.model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 1e-9)  # there is nothing to clip yet
        optimizer.step()
        schedule.step()
    assert run.statement().steps == 5
    assert "promised by the caller" not in run.statement().sampler

    model, optimizer, loader, schedule = pieces()
    plain = make_plain_private(model, optimizer, nn.CrossEntropyLoss(), loader, plan())
    for x, y in plain.loader:
        plain.step(x, y)
        schedule.step()
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], value)


def test_mixed_precision_casts_the_model_and_nothing_else():
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model, optimizer, loader, _ = accelerator.prepare(*pieces())
    assert "forward" in vars(model)
    run = make_private(accelerator, model, optimizer, nn.CrossEntropyLoss(), loader, plan())
    types = set()
    model.register_forward_hook(lambda module, given, output: types.add(output.dtype))
    for x, y in run.loader:
        with accelerator.autocast():
            run.step(x, y)
    assert torch.bfloat16 in types
    assert run.statement().steps == 5
    assert all(p.dtype is torch.float32 for p in model.parameters())


class _Collated:
    def __call__(self, items):
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def test_the_collate_function_of_a_prepared_loader_is_kept():
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader, _ = pieces()
    loader = DataLoader(loader.dataset, batch_size=20, collate_fn=_Collated())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run = make_private(accelerator, model, optimizer, nn.CrossEntropyLoss(), loader, plan())
    assert isinstance(run.loader.records.collate, _Collated)


def test_what_accelerate_would_take_out_of_our_hands_is_refused():
    model, optimizer, loader, _ = pieces()
    loss = nn.CrossEntropyLoss()
    accumulating = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    with pytest.raises(UnsoundError, match="one Poisson batch"):
        make_private(accumulating, model, optimizer, loss, loader, plan())

    accelerator = accelerate.Accelerator(cpu=True)
    weighted = DataLoader(
        loader.dataset, batch_size=20, sampler=WeightedRandomSampler([1.0] * 200, 200)
    )
    with pytest.raises(UnsoundError, match="WeightedRandomSampler"):
        make_private(accelerator, model, optimizer, loss, accelerator.prepare(weighted), plan())
    streamed = accelerator.prepare(DataLoader(_Streamed(), batch_size=20))
    with pytest.raises(UnsoundError, match="order of its own"):
        make_private(accelerator, model, optimizer, loss, streamed, plan())
    accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(UnsupportedModelError, match="fp16"):
        make_private(accelerator, model, optimizer, loss, loader, plan())


class _Streamed(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(5), torch.tensor(0))] * 40)


@pytest.mark.slow
def test_two_processes_take_one_step_together():
    """Prepared models are wrapped for gradients that would be averaged; noise is added once."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = Path(__file__).with_name("accelerate_program.py")
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = re.findall(r"weights (\S+) steps (\d+) wrapped (\w+)", done.stdout)
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0][1:] == ("5", "DistributedDataParallel")
