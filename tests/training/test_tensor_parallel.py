"""Weights of which one process alone has parts are refused, before anything is charged."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import noisewise as nw


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_parallel_layers_without_other_workers_are_refused_by_name(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    parallelize_module(model, mesh, {"0": ColwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=2, batch_size=2, records=8
    )
    data = torch.randn(8, 4), torch.randint(2, (8,))
    with pytest.raises(nw.UnsupportedModelError, match=r'"0.weight".*fully_shard'):
        nw.make_private(model, optimizer, nn.CrossEntropyLoss(), data, plan)


def test_parts_that_others_would_hold_or_that_only_add_up_are_refused_by_name(mesh):
    from torch.distributed.tensor import DTensor, Partial, Shard

    from noisewise.training.sharding import ParallelWeights

    for placed, workers, words in [
        (Partial(), 1, r'"weight" is a sum'),
        (Shard(0), 2, r'"weight" is spread over 1 processes, and 2 train'),
    ]:
        model = nn.Linear(4, 2, bias=False)
        parts = DTensor.from_local(model.weight.detach(), mesh, [placed])
        model.weight = nn.Parameter(parts)
        with pytest.raises(nw.UnsupportedModelError, match=words):
            ParallelWeights(model, workers)


def test_hooks_of_the_user_stay_and_keep_their_order(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    from noisewise.training.sharding import ParallelWeights

    model = nn.Sequential(nn.Linear(4, 8))
    called = []
    model[0].register_forward_hook(lambda *_: called.append("first"))
    parallelize_module(model, mesh, {"0": ColwiseParallel()})
    model[0].register_forward_hook(lambda *_: called.append("last"))
    before = list(model[0]._forward_hooks)
    parts = model[0].weight
    weights, x = ParallelWeights(model, 1), torch.randn(3, 4)
    expected = model(x)
    with weights.gathered():
        assert type(model[0].weight) is nn.Parameter
        torch.testing.assert_close(model(x), expected)
        held = model[0].weight
    assert called == ["first", "last"] * 2
    assert list(model[0]._forward_hooks) == before
    assert model[0].weight is parts
    assert held.untyped_storage().nbytes() == 0  # nothing but the parts is held
