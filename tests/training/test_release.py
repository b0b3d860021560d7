"""From sums to noisy means: noise first, rounding last."""

import pytest
import torch

from noisewise.gradients import Group
from noisewise.privacy import Randomness
from noisewise.training.release import NoisePlan, add_noise


def group(values):
    return Group("all", ("w",), {"w": values}, 1.0, values.numel())


@pytest.mark.parametrize("sums", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_sum_is_rounded_to_the_models_type_after_its_noise(sums, kind):
    total = torch.full((1000,), 257.0, dtype=sums)  # which bfloat16 would make 256 or 258
    plan = NoisePlan([1.0], [1000], 0.1, "global")
    found = add_noise([group(total)], plan, Randomness.seeded(1), 1.0, {"w": kind})["w"]
    wide = torch.promote_types(kind, torch.float32)
    like = torch.empty(1000, dtype=wide)
    (noise,) = Randomness.seeded(1).normal_for([like], [plan.deviations[0]])
    assert found.dtype == kind
    assert torch.equal(found, (noise.to(torch.promote_types(sums, wide)) + total).to(kind))


def test_the_same_seed_gives_the_same_noise_whatever_the_type_of_the_sum():
    plan = NoisePlan([1.0], [8], 1.0, "global")
    first, second = (
        add_noise(
            [group(torch.zeros(8, dtype=kind))],
            plan,
            Randomness.seeded(1),
            2.0,
            {"w": torch.float32},
        )["w"]
        for kind in (torch.float32, torch.float64)
    )
    assert torch.equal(first, second)


def test_a_group_that_no_record_can_move_gets_no_noise_and_shows_no_sum():
    plan = NoisePlan([0.0], [8], 1.0, "global")
    found = add_noise([group(torch.ones(8))], plan, Randomness.seeded(1), 2.0, {"w": torch.float16})
    assert torch.equal(found["w"], torch.zeros(8, dtype=torch.float16))
