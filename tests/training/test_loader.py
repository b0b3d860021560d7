"""The loader draws Poisson batches, of any dataset, empty ones included."""

import math
from typing import NamedTuple

import pytest
import torch
from making_runs import plan, start, table
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from noisewise.errors import UnsoundError
from noisewise.training.loader import ALL_ROWS, PrivateLoader
from noisewise.training.records import records_of
from noisewise.training.sampling import FullSampler, PoissonSampler, Shard
from noisewise.training.streamed import Streamed
from noisewise.training.streams import Streams


def loader(data, rate=0.1, steps=20, seed=0, **options):
    records = records_of(data, **options)
    sampler = PoissonSampler(Shard(len(records)), rate, Streams(seed))
    return PrivateLoader(records, sampler, steps)


class Squares(Dataset):
    """A map-style dataset whose items are dicts."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "label": index**2, "name": str(index)}


def collate_pair(items):
    batch = default_collate(items)
    return batch["x"], batch["label"]


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_every_record_is_drawn_independently_with_the_rate():
    # 300 batches of 1,000 records: counts per record and batch sizes against the binomial law.
    n, rate, batches = 1000, 0.05, 300
    sampler = PoissonSampler(Shard(n), rate, Streams(seed=5))
    drawn = torch.zeros(batches, n)
    for step in range(batches):
        indices = sampler.indices(step)
        assert len(set(indices.tolist())) == len(indices)
        drawn[step, indices] = 1
    # Chi-square tests by normal approximation; 5.2 deviations are reached with probability 2e-7.
    for counts, trials in ((drawn.sum(0), batches), (drawn.sum(1), n)):
        variance = trials * rate * (1 - rate)
        statistic = float(((counts - trials * rate) ** 2 / variance).sum())
        spread = math.sqrt(len(counts) * (2 + 1 / variance))
        assert abs(statistic - len(counts)) < 5.2 * spread
    # Records do not come together: correlation of neighbours.
    centred = drawn - rate
    together = float((centred[:, 1:] * centred[:, :-1]).mean() / (rate * (1 - rate)))
    assert abs(together) < 5.2 / math.sqrt(batches * (n - 1))


def test_seeded_batches_depend_on_the_step_alone_and_differ_between_steps_names_and_workers():
    x, y = table()
    first = [batch[0] for batch in loader((x, y))]
    again = loader((x, y))
    again.seek(7)
    later = [batch[0] for batch in again]
    assert all(torch.equal(a, b) for a, b in zip(first[7:], later, strict=True))
    assert not torch.equal(first[0], first[1])
    drawn = {
        tuple(PoissonSampler(Shard(100), 0.5, streams).indices(0).tolist())
        for streams in (Streams(0), Streams(1), Streams(0, "other"), Streams(0, worker=1))
    }
    assert len(drawn) == 4


def test_secret_batches_are_not_repeated():
    sampler = PoissonSampler(Shard(100), 0.5, Streams(None))
    assert sampler.indices(0).tolist() != sampler.indices(0).tolist()


@pytest.mark.parametrize("wrap", [tuple, list, lambda pair: TensorDataset(*pair)])
def test_tensors_come_as_rows_of_the_same_record(wrap):
    x = torch.arange(50.0).reshape(50, 1)
    seen = 0
    for inputs, targets in loader(wrap((x, torch.arange(50))), rate=0.3):
        assert inputs.flatten().tolist() == targets.tolist()
        seen += len(targets)
    assert 200 < seen < 400  # expected 300, deviation 14.5


def test_dicts_nested_inputs_and_arrays_keep_their_shape():
    x = torch.randn(30, 2)
    (batch,) = loader({"x": x, "label": x[:, 0].numpy()}, rate=1.0, steps=1)
    assert set(batch) == {"x", "label"}
    assert torch.equal(batch["label"], batch["x"][:, 0])
    assert torch.equal(batch["label"].sort().values, x[:, 0].sort().values)
    ((inputs, _),) = loader((({"a": x, "b": x + 1}), x[:, 0]), rate=1.0, steps=1)
    assert torch.equal(inputs["b"], inputs["a"] + 1)


@pytest.mark.parametrize("make", [
    lambda streams: PoissonSampler(Shard(5), 1.0, streams),
    lambda streams: FullSampler(Shard(5), streams),
])  # fmt: skip
def test_records_come_in_every_order_alike(make):
    """All 120 orders of five records; the proof about rounding needs them equally likely."""
    sampler, draws = make(Streams(seed=3)), 6_000
    counts: dict[tuple[int, ...], int] = {}
    for step in range(draws):
        order = tuple(sampler.indices(step).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 120
    # Chi-square with 119 degrees of freedom: above 208 with probability 1e-6.
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < 208


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_datasets_with_workers_and_collate(workers):
    batches = list(loader(Squares(40), rate=0.2, steps=6, workers=workers))
    assert len(batches) == 6
    for batch in batches:
        assert (batch["x"][:, 0] ** 2).tolist() == batch["label"].tolist()
        assert [float(name) for name in batch["name"]] == batch["x"][:, 0].tolist()
    pairs = list(loader(Squares(40), rate=0.2, steps=6, workers=workers, collate=collate_pair))
    expected = [batch["label"].tolist() for batch in batches]
    assert [targets.tolist() for _, targets in pairs] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_empty_batches_have_the_shapes_and_types_of_full_ones(workers):
    for batch in loader(Squares(40), rate=1e-9, steps=3, workers=workers):
        assert batch["x"].shape == (0, 3)
        assert batch["x"].dtype == torch.float32
        assert batch["label"].shape == (0,)
        assert batch["label"].dtype == torch.int64
        assert batch["name"] == []
    x, y = table()
    for inputs, targets in loader((x, y), rate=1e-9, steps=3):
        assert inputs.shape == (0, 5)
        assert targets.dtype == torch.int64


def test_named_tuples_survive_collation_and_emptiness():
    items = [Pair(torch.ones(2) * i, torch.tensor(i)) for i in range(20)]
    for batch in loader(items, rate=1e-9, steps=1):
        assert isinstance(batch, Pair)
        assert batch.x.shape == (0, 2)


def test_a_data_loader_lends_its_dataset_and_collate_but_not_its_sampler():
    x, y = table()
    shuffled = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
    sizes = {len(targets) for _, targets in loader(shuffled, rate=0.2, steps=10)}
    assert len(sizes) > 1
    collated = DataLoader(Squares(40), batch_size=4, collate_fn=collate_pair)
    inputs, targets = next(iter(loader(collated, rate=0.9)))
    assert (inputs[:, 0] ** 2).tolist() == targets.tolist()


def test_data_that_cannot_be_drawn_independently_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    x, y = table()
    weighted = WeightedRandomSampler([1.0] * 400, 400)
    with pytest.raises(UnsoundError, match="order of its own"):
        records_of(DataLoader(Stream()))
    with pytest.raises(UnsoundError, match="WeightedRandomSampler"):
        records_of(DataLoader(TensorDataset(x, y), batch_size=4, sampler=weighted))
    with pytest.raises(TypeError, match="data must be"):
        records_of(42)
    with pytest.raises(ValueError, match="one row per record"):
        records_of((x, y[:-1]))


def test_drawing_does_not_move_the_generator_of_torch():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(loader(Squares(40), steps=3))
    list(loader(table(), steps=3))
    assert torch.equal(before, torch.get_rng_state())


def test_shards_are_disjoint_and_complete():
    parts = [FullSampler(Shard(17, worker, 3)).indices(0).tolist() for worker in range(3)]
    assert sorted(index for part in parts for index in part) == list(range(17))


def test_iterating_gives_what_is_left_of_the_plan_and_epochs_are_counted():
    with start(the_plan=plan(steps=12, batch_size=100)) as run:
        assert len(run.loader) == 12
        assert len(list(run.loader.epoch())) == 4
        assert len(run.loader) == 8
        assert len(list(run.loader.take(3))) == 3
        assert len(list(run.loader)) == 5
        assert list(run.loader) == []


def test_a_full_sampler_gives_all_records():
    with start(the_plan=plan(sampling="full", batch_size=None, steps=2)) as run:
        for inputs, _ in run.loader:
            assert len(inputs) == 400


# ------------------------------------------------------------------ collate functions


def mixed_up(items):
    x, y = default_collate(items)
    return 0.5 * x + 0.5 * x.flip(0) - x.mean(0), y


def sorted_by_norm(items):
    x, y = default_collate(items)
    order = x.norm(dim=1).argsort()
    return x[order], y[order]


def longest(items):
    length = max(len(x) for x, _ in items)
    rows = [torch.nn.functional.pad(x, (0, length - len(x))) for x, _ in items]
    return torch.stack(rows), torch.stack([y for _, y in items])


def twice(items):
    x, y = default_collate(items)
    return torch.cat([x, x]), torch.cat([y, y])


def best_only(items):
    x, y = default_collate(items)
    return x[y > 0], y[y > 0]


def of_any_type(items):
    x, y = default_collate(items)
    return (x if bool(y[0] > 0) else x.double()), y


def pairs_of(lengths):
    return [
        (torch.arange(1.0, n + 1) * (i + 1), torch.tensor(i % 2)) for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [mixed_up, sorted_by_norm])
def test_a_collate_function_cannot_mix_records(collate, workers):
    """The usual place of mixup: what it makes of a record knows of no other."""
    items = pairs_of([4] * 30)
    alone = {
        int(x[0, 0]): collate([(x[0], y[0])]) for x, y in (default_collate([i]) for i in items)
    }
    made = DataLoader(items, batch_size=4, collate_fn=collate, num_workers=workers)
    for given in (made, Streamed(items, 30, collate=collate)):
        seen = 0
        for (x, y), (kept, _) in zip(
            loader(given, rate=0.5, steps=3), loader(items, rate=0.5, steps=3), strict=True
        ):
            for row, label, original in zip(x, y, kept, strict=True):
                expected = alone[int(original[0])]
                assert torch.equal(row, expected[0][0])
                assert label == expected[1][0]
                seen += 1
        assert seen > 20


@pytest.mark.parametrize("collate", [longest, twice, best_only, of_any_type])
def test_collate_functions_whose_rows_are_not_records_are_refused(collate):
    items = pairs_of([3, 4, 5] * 10 if collate is longest else [4] * 30)
    for given in (
        {"data": items, "collate": collate},
        {"data": Streamed(items, 30, collate=collate)},
    ):
        data = given.pop("data")
        with pytest.raises(UnsoundError, match=r"one by one|one row"):
            list(loader(data, rate=0.9, steps=2, **given))


def test_a_batch_in_another_type_is_recognised_whatever_its_numbers_are():
    """A record that is no number must not end the run."""
    x, y = torch.randn(40, 3), torch.zeros(40, dtype=torch.long)
    x[::5, 0], x[1::5, 1] = float("nan"), float("inf")
    batches = loader((x, y), rate=0.9)
    inputs, _ = next(iter(batches))
    assert inputs.isnan().any()
    assert batches.recognise(inputs.double()) == ALL_ROWS
