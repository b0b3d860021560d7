"""Weights of which every process has some rows are refused, before anything is charged."""

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


def test_tensor_parallel_layers_are_refused_by_name(mesh):
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
