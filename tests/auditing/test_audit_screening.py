"""Two quick audits of any training function: what they notice, and what they cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from noisewise.auditing import mutant_columns, screen
from noisewise.debugging.mutants import Training

EXAMPLE = (torch.zeros(4, 6), torch.tensor([0, 1, 2, 0]))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def test_training_without_noise_is_caught_by_its_canary_in_one_step() -> None:
    train = Training(build, cross_entropy, bug="no-noise")
    found = screen(train, build, cross_entropy, EXAMPLE, repeats=40, canaries=8)
    assert found.caught == (True, False)
    assert len(found.canary) == 1


def test_correct_training_is_watched_for_longer_and_passes() -> None:
    targets = (EXAMPLE[0], torch.zeros(4, 3))
    found = screen(Training(build, mse_loss), build, mse_loss, targets, repeats=40, canaries=8)
    assert found.caught == (False, False)
    assert [result is not None and result.passed for result in found.canary] == [True, True]


def test_a_training_that_cannot_be_attacked_is_not_accused() -> None:
    def train(**arguments):
        return arguments["init"]

    assert mutant_columns(train, build, cross_entropy, EXAMPLE) == (False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "caught"),
    [
        (None, (False, False)),
        ("no-noise", (True, True)),
        ("layer-clip-C-each", (True, False)),
        ("noise-lost-after-first-step", (True, False)),
        # Nothing that one batch of all records could show.
        ("shuffle", (False, False)),
    ],
)
def test_what_audits_notice(bug: str | None, caught: tuple[bool, bool]) -> None:
    train = Training(build, cross_entropy, bug=bug)
    assert screen(train, build, cross_entropy, EXAMPLE).caught == caught
