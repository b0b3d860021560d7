"""Every sampler of the registry: complete, documented, and drawing what its event accounts for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.common.test_common_counting import anchor_exists

import noisewise as nw
from noisewise.privacy import PoissonGaussian
from noisewise.training.sampling import REFUSED, SAMPLERS, PoissonSampler, Shard, register
from noisewise.training.streams import Streams

DOCS = Path(__file__).parents[2] / "docs"
every = pytest.mark.parametrize("word", SAMPLERS)


def table_of_samplers() -> list[str]:
    """The table of docs/training.md, from the registry."""
    rows = (f'| `"{w}"` | {kind.told} | [proof]({kind.proof}) |' for w, kind in SAMPLERS.items())
    return ["| `sampling` | who takes part in a step | accounted by |", "|---|---|---|", *rows]


def test_the_documented_table_is_the_registry() -> None:
    table = "\n".join(table_of_samplers())
    assert table in (DOCS / "training.md").read_text("utf-8"), f"paste this:\n{table}"


@every
def test_a_sampler_says_where_its_event_is_proven(word: str) -> None:
    assert anchor_exists(SAMPLERS[word].proof)


@every
def test_a_run_is_accounted_by_the_event_of_its_sampler(word: str) -> None:
    x, y = torch.randn(60, 3), torch.zeros(60, dtype=torch.long)
    rate = None if SAMPLERS[word].takes_all else 0.25
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), noise_multiplier=2.0, steps=2, sample_rate=rate, sampling=word
    )
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = nw.make_private(model, optimizer, torch.nn.CrossEntropyLoss(), (x, y), plan)
    for inputs, targets in run.loader:
        run.step(inputs, targets)
    (event,) = run.statement().history
    assert isinstance(event, PoissonGaussian)
    assert event.sample_rate == (1.0 if rate is None else rate)


@every
def test_records_take_part_at_the_rate_that_is_accounted(word: str) -> None:
    """2,000 records, 50 steps: a count is within 6 deviations but once in 5e8 runs."""
    sampler = SAMPLERS[word].of(Shard(2000), 0.3, Streams(seed=1))
    rate = 1.0 if SAMPLERS[word].takes_all else 0.3
    drawn = [sampler.indices(step) for step in range(50)]
    assert all(len(set(one.tolist())) == len(one) for one in drawn)
    mean, deviation = 100_000 * rate, (100_000 * rate * (1 - rate)) ** 0.5
    assert abs(sum(map(len, drawn)) - mean) <= 6 * deviation


def test_a_word_is_taken_once_and_a_refused_one_is_no_word() -> None:
    assert not set(REFUSED) & set(SAMPLERS)
    for taken in ("poisson", "shuffle"):

        @dataclass(frozen=True)
        class Other(PoissonSampler):
            word = taken

        with pytest.raises(ValueError, match="there is a sampler called"):
            register(Other)


@pytest.mark.parametrize("word", [*REFUSED, "nonsense", ["poisson"], None])
def test_other_samplers_are_refused_with_the_reason(word: object) -> None:
    with pytest.raises(nw.UnsoundError, match="refused"):
        nw.Plan(gradients=nw.Clipped(1.0), epsilon=1.0, epochs=1, batch_size=8, sampling=word)
