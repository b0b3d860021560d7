"""fix: the repaired model can be certified, the old one is untouched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noisewise.bounds import certify
from noisewise.errors import UnsupportedModelError
from noisewise.nn import LipschitzGroupNorm, fix


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def model() -> nn.Sequential:
    inner = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))
    return nn.Sequential(
        inner,
        nn.ReLU(),
        nn.InstanceNorm2d(6, track_running_stats=True, affine=True),
        nn.Flatten(),
        nn.Linear(24, 5),
        nn.BatchNorm1d(5, affine=False),
    )


@pytest.mark.parametrize("norm", ["group", "lipschitz"])
def test_a_fixed_model_keeps_records_apart_and_has_bounds(norm: str) -> None:
    old = model()
    with torch.no_grad():
        old[0][1].weight.fill_(2.0)
    with pytest.raises(UnsupportedModelError, match="fix"):
        certify(old, (3, 4, 4), 1.0, nn.CrossEntropyLoss())
    new = fix(old, norm)
    assert certify(new, (3, 4, 4), 1.0, nn.CrossEntropyLoss()).total > 0
    assert float(new[0][1].weight[0].detach()) == 2.0
    assert isinstance(old[0][1], nn.BatchNorm2d)
    x = torch.randn(4, 3, 4, 4)
    other = x.clone()
    other[1:] *= 10.0
    assert torch.allclose(new(x)[0], new(other)[0], atol=1e-6)


def test_the_root_itself_is_replaced_and_groups_divide_the_channels() -> None:
    fixed = fix(nn.BatchNorm1d(6), "lipschitz", alpha=0.5)
    assert isinstance(fixed, LipschitzGroupNorm)
    assert (fixed.num_groups, fixed.alpha) == (2, 0.5)
    assert fix(nn.BatchNorm2d(48)).num_groups == 16


def test_what_does_not_mix_records_is_left_alone() -> None:
    kept = nn.Sequential(nn.InstanceNorm1d(3), nn.GroupNorm(1, 3))
    assert [type(layer) for layer in fix(kept)] == [nn.InstanceNorm1d, nn.GroupNorm]


def test_frozen_batch_norm_stays_and_what_did_not_learn_does_not_learn():
    frozen = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8)).eval()
    x = torch.randn(3, 2, 6, 6)
    kept = fix(frozen)
    assert isinstance(kept[1], nn.BatchNorm2d)
    torch.testing.assert_close(kept(x), frozen(x))
    still = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8).requires_grad_(False))
    fixed = fix(still)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert not fixed[1].weight.requires_grad
    assert not fixed[1].bias.requires_grad
