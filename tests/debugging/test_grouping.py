"""The bug finder knows units: right training passes, every wrong grouping is named."""

import pytest
import torch
from torch import nn

from noisewise.debugging import check
from noisewise.debugging.mutants.grouping import GROUPINGS, train_units

EXAMPLE = (torch.randn(4, 5), torch.randint(0, 3, (4,)))
NAMED = {
    "clipped-per-row": "unit-contributes-by-rows",
    "split-over-batches": "unit-contributes-by-rows",
    "units-by-position": "unit-contributes-by-rows",
    "first-unit-unclipped": None,  # any finding: it is a clipping bug for rows, too
    "counted-by-rows": "units-not-drawn-whole",
    "divided-by-rows": "noise-counts-rows",
}


def found(mistake, **options):
    train = train_units(lambda: nn.Linear(5, 3), nn.functional.cross_entropy, mistake)
    tests = ("preflight", "contribution", "separation", "whole-units")
    return check(train, lambda: nn.Linear(5, 3), nn.functional.cross_entropy, example=EXAMPLE,
                 effort="quick", tests=tests, **options)  # fmt: skip


def test_right_training_on_units_is_not_accused():
    findings = found(None)
    assert not findings.bugs, str(findings)
    assert "whole-units" in findings.ran


# One for each name that is given.
QUICK = ("clipped-per-row", "counted-by-rows", "divided-by-rows")


@pytest.mark.parametrize(
    "mistake",
    [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in GROUPINGS],
)
def test_a_wrong_grouping_is_named(mistake):
    findings = found(mistake)
    names = set(findings.bugs)
    assert names, str(findings)
    assert NAMED[mistake] is None or NAMED[mistake] in names


def test_training_without_units_is_asked_nothing_about_them():
    train = train_units(lambda: nn.Linear(5, 3), nn.functional.cross_entropy)

    def rows(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        return train(clip=clip, noise_multiplier=noise_multiplier, batch_size=batch_size,
                     seed=seed, data=data, init=init, steps=steps, lr=lr)  # fmt: skip

    findings = check(rows, lambda: nn.Linear(5, 3), nn.functional.cross_entropy, example=EXAMPLE,
                     effort="quick", tests=("preflight", "whole-units"))  # fmt: skip
    assert "whole-units" not in findings.ran
