"""Digests tell equal records from different ones, whatever holds them, and nothing else."""

import numpy as np
import pytest
import torch
from making_runs import table
from torch.utils.data import DataLoader, Dataset, TensorDataset

from noisewise.training.digests import changing, identifier_digests, layout_of, record_digests
from noisewise.training.records import records_of

KEY, OTHER = b"k" * 32, b"l" * 32


class Items(Dataset):
    """A list of whatever."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def first(items):
    return items[0]


def of(data, key=KEY, **options):
    return record_digests(records_of(data, **options), key).tolist()


def test_equal_rows_have_equal_digests_and_different_ones_do_not():
    x, y = table(300)
    x[7], y[7] = x[3], y[3]
    found = of((x, y))
    assert found[7] == found[3]
    assert len(set(found)) == 299
    assert of((x[::2], y[::2])) == found[::2]


def test_another_key_gives_other_digests():
    x, y = table(50)
    assert not set(of((x, y))) & set(of((x, y), OTHER))


@pytest.mark.parametrize(
    "kind",
    ["float64", "bfloat16", "float16", "int8", "int64", "bool", "complex64"],
)
def test_every_type_and_shape_of_tensor_is_read(kind):
    x = torch.arange(24).reshape(6, 4).remainder(5).to(getattr(torch, kind))
    found = of(x)
    assert found == of({"x": x})
    assert found == of((x[:, :1], x[:, 1:]))
    assert len(set(found)) == len({tuple(row) for row in x.tolist()})
    assert len(of(x[:, 0])) == 6
    assert of(x.t().contiguous().t()) == found


@pytest.mark.parametrize("rows", [1, 7, 8, 9])
def test_pieces_change_nothing(monkeypatch, rows):
    import noisewise.training.digests as module

    x, y = table(rows)
    whole = of((x, y))
    monkeypatch.setattr(module, "_CHUNK", 4 * (5 * 4 + 8))
    assert of((x, y)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_are_read_record_by_record(workers):
    x, y = table(20)
    items = [
        (x[i], y[i], f"name {i % 3}", {"more": np.float64(i % 2), "none": 2}) for i in range(20)
    ]
    items[9] = items[4]
    found = of(Items(items), workers=workers)
    assert found[9] == found[4]
    assert len(set(found)) == 19
    assert of(DataLoader(Items(items), batch_size=3)) == found


def test_what_differs_in_kind_or_place_differs():
    values = [1, 1.0, "1", b"1", [1], (1, 1), {"a": 1}, {"b": 1}, None, True, ["1", "1"], ["11"]]
    found = of(Items([[value] for value in values]), collate=first)
    assert len(set(found)) == len(values)


def test_what_has_no_bytes_is_refused_by_its_kind_alone():
    class Patient:
        def __repr__(self):
            return "Alice"

    with pytest.raises(TypeError, match="Patient") as caught:
        of(Items([Patient()] * 3), collate=first)
    assert "Alice" not in str(caught.value)


def test_records_that_change_when_read_again_are_noticed():
    class Flipped(Items):
        def __getitem__(self, index):
            return super().__getitem__(index) * (1 if torch.rand(()) < 0.5 else -1)

    torch.manual_seed(0)
    for data, expected in ((Flipped(table(40)[0]), True), (Items(table(40)[0]), False)):
        records = records_of(data, collate=first)
        assert changing(records, KEY, record_digests(records, KEY)) is expected


def test_identifiers_are_told_apart_by_value():
    assert identifier_digests([3, "4"], KEY).tolist() == identifier_digests(["3", 4], KEY).tolist()
    assert len(set(identifier_digests(range(1000), KEY).tolist())) == 1000
    assert identifier_digests(torch.arange(3), KEY).tolist() == (
        identifier_digests(np.arange(3), KEY).tolist()
    )
    for wrong in ([1.5], [True], [None], torch.rand(3)):
        with pytest.raises(TypeError, match="one per record"):
            identifier_digests(wrong, KEY)


def test_a_layout_names_types_and_shapes_but_no_value_or_number_of_records():
    x, y = table(20)
    assert layout_of(records_of((x, y))) == layout_of(records_of(TensorDataset(x + 1, y)[:7]))
    layouts = {
        layout_of(records_of(data))
        for data in ((x, y), (x.double(), y), (x[:, :2], y), {"x": x, "y": y}, x, (x, (y,)))
    }
    assert len(layouts) == 6
    assert layout_of(None) not in layouts
