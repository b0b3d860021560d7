"""A step never waits for its device: nothing asks a tensor for its value.

Meta tensors have no values, so whatever would make a GPU and the host wait for each other raises
here. The first batch is watched as well, whose shadows lie in the host's memory.
"""

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients.engine import GradientEngine
from noisewise.privacy import Randomness, Sensitivity
from noisewise.release.tensors import TensorNoise


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(4, 16), layer, nn.Flatten(), nn.Linear(96, 10))


MODELS = {"convolutions": (convolutions, (3, 16, 16)), "encoder": (encoder, (6, 4))}
ESTIMATORS = [
    nw.Clipped(1.0),
    nw.Clipped(1.0, per="layer"),
    nw.Clipped(1.0, per="parameter", rule="automatic"),
    nw.Clipped(1.0, rule="global"),
    nw.Factored(1.0),
]


def test_reading_a_value_would_be_noticed():
    with pytest.raises(RuntimeError):
        float(torch.empty((), device="meta"))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.parametrize("name", MODELS)
def test_a_private_step_reads_no_value_from_its_device(name, estimator):
    build, shape = MODELS[name]
    engine = GradientEngine(build().to("meta"), nn.CrossEntropyLoss(), estimator)
    x = torch.empty(64, *shape, device="meta")
    groups = engine.sum(x, torch.empty(64, dtype=torch.long, device="meta")).groups
    bounds = tuple(Sensitivity(group.sensitivity) for group in groups)
    types = {name: parameter.dtype for name, parameter in engine.parameters.items()}
    noise = TensorNoise(bounds, tuple(g.size for g in groups), 1.0, "optimal", 64.0, types)
    noisy = noise.applied([group.gradients for group in groups], Randomness.secure())
    assert {gradient.device.type for gradient in noisy.values()} == {"meta"}
    assert noisy.keys() == engine.parameters.keys()
