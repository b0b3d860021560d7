"""From sums to noisy means: noise first, rounding last."""

import pytest
import torch
from making_runs import start, table

from noisewise.privacy import Randomness, Sensitivity
from noisewise.release.tensors import TensorNoise


def planned(bound, size, multiplier, divisor, kind):
    return TensorNoise((Sensitivity(bound),), (size,), multiplier, "global", divisor, {"w": kind})


@pytest.mark.parametrize("sums", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_sum_is_rounded_to_the_models_type_after_its_noise(sums, kind):
    total = torch.full((1000,), 257.0, dtype=sums)  # which bfloat16 would make 256 or 258
    noise = planned(1.0, 1000, 0.1, 1.0, kind)
    found = noise.applied([{"w": total}], Randomness.seeded(1))["w"]
    wide = torch.promote_types(kind, torch.float32)
    like = torch.empty(1000, dtype=wide)
    (drawn,) = Randomness.seeded(1).normal_for([like], noise.deviations)
    assert found.dtype == kind
    assert torch.equal(found, (drawn.to(torch.promote_types(sums, wide)) + total).to(kind))


def test_the_same_seed_gives_the_same_noise_whatever_the_type_of_the_sum():
    noise = planned(1.0, 8, 1.0, 2.0, torch.float32)
    first, second = (
        noise.applied([{"w": torch.zeros(8, dtype=kind)}], Randomness.seeded(1))["w"]
        for kind in (torch.float32, torch.float64)
    )
    assert torch.equal(first, second)


def test_a_group_that_no_record_can_move_gets_no_noise_and_shows_no_sum():
    noise = planned(0.0, 8, 1.0, 2.0, torch.float16)
    found = noise.applied([{"w": torch.ones(8)}], Randomness.seeded(1))
    assert torch.equal(found["w"], torch.zeros(8, dtype=torch.float16))


@pytest.mark.parametrize("sums", [torch.float32, torch.float64])
def test_a_sum_is_divided_after_its_noise(sums):
    """A quotient rounds, and before the noise that would move the sum beyond its sensitivity."""
    generator = torch.Generator().manual_seed(0)
    total = (1000 * torch.randn(500, generator=generator)).to(sums)
    noise = planned(1.0, 500, 0.5, 37.0, torch.float32)
    found = noise.applied([{"w": total}], Randomness.seeded(1))["w"]
    (drawn,) = Randomness.seeded(1).normal_for([torch.empty(500)], noise.deviations)
    assert torch.equal(found, ((drawn.to(sums) + total) * (1 / 37.0)).float())
    if sums == torch.float32:  # the other order differs, so that this test can tell
        assert not torch.equal(found, drawn / 37.0 + total * (1 / 37.0))


def test_a_statement_says_what_its_numbers_rest_on():
    run = start()
    for batch in run.loader:
        run.step(*batch)
    said = run.statement().assumptions
    assert any("last bits" in line for line in said)
    assert not any("order drawn at random" in line for line in said)
    by_caller = start()
    by_caller.step(*table(40))
    assert any("order drawn at random" in line for line in by_caller.statement().assumptions)
