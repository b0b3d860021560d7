"""Streams: Poisson batches from a dataset that is read from the beginning to the end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import noisewise as nw
from noisewise.training import StepError, Streamed, make_private

RECORDS = 40


class Stream(IterableDataset):
    """Records in another order with every pass."""

    def __init__(self, records=RECORDS):
        self.records, self.passes = records, 0

    def __iter__(self):
        self.passes += 1
        order = torch.randperm(self.records, generator=torch.Generator().manual_seed(self.passes))
        for number in order.tolist():
            yield torch.full((3,), float(number)), torch.tensor(number % 2)


def run_of(data, steps=12, batch_size=10):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    plan = nw.Plan(
        gradients=nw.Clipped(1.0),
        noise_multiplier=1.0,
        steps=steps,
        batch_size=batch_size,
        records=RECORDS,
        delta=1e-5,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return make_private(model, optimizer, nn.CrossEntropyLoss(), data, plan)


def test_a_run_over_a_stream_takes_all_steps_and_says_what_it_assumes():
    stream = Stream()
    run = run_of(Streamed(stream, records=RECORDS, steps_per_pass=5))
    for x, y in run.loader:
        assert len(set(x[:, 0].tolist())) == len(x)  # nobody twice in a batch
        run.step(x, y)
    assert run.finished
    assert stream.passes == math.ceil(12 / 5)
    assert any("pass over the stream" in line for line in run.statement().assumptions)


def test_every_record_enters_every_step_with_the_rate_of_the_plan():
    # 600 steps of rate 1/4: a record's count is binomial, and so is the number of its repetitions
    # in neighbouring steps. Six deviations, 80 counts: false alarm below 2e-7.
    steps, rate = 600, 0.25
    run = run_of(Streamed(Stream(), records=RECORDS, steps_per_pass=50), steps)
    drawn = torch.zeros(steps, RECORDS)
    for step, (x, _) in enumerate(run.loader):
        drawn[step, x[:, 0].long()] = 1.0
        run.discard()
    counts = drawn.sum(0)
    assert (counts - steps * rate).abs().max() < 6 * math.sqrt(steps * rate * (1 - rate))
    both = (drawn[1:] * drawn[:-1]).sum(0)
    deviation = math.sqrt((steps - 1) * rate**2 * (1 + 2 * rate - 3 * rate**2))
    assert (both - (steps - 1) * rate**2).abs().max() < 6 * deviation


def test_an_empty_batch_of_a_stream_has_the_shapes_of_a_full_one():
    run = run_of(Streamed(Stream(), records=RECORDS), steps=40, batch_size=1)
    sizes = []
    for x, y in run.loader:
        assert x.shape[1:] == (3,)
        assert y.dtype == torch.long
        sizes.append(len(x))
        run.step(x, y)
    assert 0 in sizes


def test_a_stream_that_is_longer_than_declared_is_refused_before_a_charge():
    run = run_of(Streamed(Stream(RECORDS + 1), records=RECORDS))
    with pytest.raises(StepError, match="more than the 40 records"):
        next(iter(run.loader))
    assert run.steps_taken == 0


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: DataLoader(s, batch_size=4)])
def test_a_stream_as_it_is_is_refused_with_the_way_out(wrap):
    with pytest.raises(nw.UnsoundError, match=r"Streamed\(dataset, records="):
        run_of(wrap(Stream()))


def test_shards_are_refused_with_the_reason():
    shards = type("WebDataset", (Stream,), {"__module__": "webdataset.compat"})
    with pytest.raises(nw.UnsoundError, match="some records come twice in a pass"):
        Streamed(shards(), records=RECORDS)


def test_what_can_be_read_only_once_is_refused():
    with pytest.raises(nw.UnsoundError, match="read only once"):
        Streamed((item for item in Stream()), records=RECORDS)
