"""Where datasets are found, how they are verified, and what happens when they are not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import raw_forms
from hypothesis import given, settings, strategies as st
from local_web import Handler, Web, send

import noisewise.datasets as nd
from noisewise.datasets import entries, places
from noisewise.datasets.parse import parse
from noisewise.datasets.registry import RemoteFile, Source
from noisewise.errors import DatasetError

QUICK = nd.Transfer(timeout=0.3, deadline=3, attempts=2, backoff=0.01)
BUNDLED = Path(places.__file__).parent / "bundled" / "adult.parquet"


def need(name: str) -> Path:
    found = places.find_file(nd.info(name))
    if found is None:
        pytest.skip(f"the file {nd.info(name).filename} is in no folder of this machine")
    return found[1]


# Every dataset


@pytest.mark.parametrize("name", nd.list_datasets())
def test_every_dataset_loads_with_the_facts_of_the_registry(name: str) -> None:
    need(name)
    entry = nd.info(name)
    found = nd.load(name, download=False)
    if isinstance(found, nd.Images):
        assert len(found.x_train) + len(found.x_test) == entry.rows
        assert found.x_train.shape[1:] == found.x_test.shape[1:] == entry.shape
        assert set(np.unique(found.y_train)) == set(range(entry.classes))
        return
    assert found.frame.shape == (entry.rows, entry.columns)
    assert found.target in found.frame.columns
    assert found.target not in found.features
    assert not set(entry.ids) & set(found.features)
    assert (found.schema is None) == (entry.kind == "text")
    if found.schema is not None:
        assert set(found.schema.columns) == set(found.frame.columns) - {found.target}
        assert found.schema.target == found.target
        assert len(found.schema.classes or ()) == entry.classes


def test_the_registry_has_twenty_datasets_with_licence_citation_and_digests() -> None:
    assert len(nd.list_datasets()) == 20
    for name in nd.list_datasets():
        entry = nd.info(name)
        assert entry.licence
        assert entry.citation
        assert entry.source_url.startswith("http")
        assert len(entry.sha256) == len(entry.content) == 64
        assert len({entry.sha256, entry.content}) == 2


def test_adult_comes_with_the_package_and_its_licence(nowhere: Path) -> None:
    table = nd.load_table("adult", download=False)
    assert len(table.frame) == 48842
    assert "CC BY 4.0" in (BUNDLED.parent / "LICENCE.md").read_text()


def test_breast_cancer_comes_with_scikit_learn(nowhere: Path) -> None:
    assert len(nd.load_table("breast_cancer_wdbc", download=False).frame) == 569
    assert not nowhere.exists()


def test_parts_are_those_of_the_publisher(nowhere: Path) -> None:
    adult = nd.load_table("adult")
    assert adult.splits == ("train", "test")
    assert [len(adult.split(part)) for part in adult.splits] == [32561, 16281]
    assert adult.split("test").index[0] == 0
    with pytest.raises(DatasetError, match="no part 'dev'"):
        adult.split("dev")


def test_text_has_parts_and_no_schema() -> None:
    need("sst2")
    table = nd.load_table("sst2", download=False)
    assert [len(table.split(part)) for part in table.splits] == [67349, 872, 1821]
    assert table.features == ("sentence",)
    with pytest.raises(DatasetError, match="text"):
        table.encode()


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("adlt", "adult"), ("Fashion-MNIST", "fashion_mnist"), ("wine", "wine_quality_red")],
)
def test_an_unknown_name_is_told_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(DatasetError, match=f"did you mean.*{near}"):
        nd.load(wrong)


def test_the_two_typed_loaders_refuse_the_other_kind() -> None:
    with pytest.raises(DatasetError, match="holds images"):
        nd.load_table("mnist")
    with pytest.raises(DatasetError, match="holds table"):
        nd.load_images("adult")


# Places


def test_places_are_searched_in_the_documented_order(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = nd.info("adult")
    named = tmp_path / "named"
    monkeypatch.setenv("NOISEWISE_DATA", str(named))
    found = places.find_file(entry)
    assert found is not None
    assert found[0].label == "package"
    for folder, label in ((cache, "cache"), (named, "$NOISEWISE_DATA")):
        folder.mkdir(parents=True)
        shutil.copy(BUNDLED, folder / entry.filename)
        found = places.find_file(entry)
        assert found is not None
        assert found[0].label == label
        assert found[1].parent == folder


@pytest.mark.parametrize("damage", ["flipped", "empty", "truncated", "other table"])
def test_a_local_file_that_is_not_the_dataset_is_refused_and_named(
    damage: str, nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    path = tmp_path / "adult.parquet"
    good = BUNDLED.read_bytes()
    if damage == "other table":
        frame = pd.read_parquet(BUNDLED)
        frame.loc[17, "age"] += 1
        frame.to_parquet(path)
    else:
        middle = len(good) // 2
        flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
        path.write_bytes({"flipped": flipped, "empty": b"", "truncated": good[:-100]}[damage])
    with pytest.raises(DatasetError, match=r"adult\.parquet is not the dataset.*Delete or replace"):
        nd.load("adult")


def test_a_file_of_equal_values_but_other_bytes_is_accepted(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    pd.read_parquet(BUNDLED).to_parquet(tmp_path / "adult.parquet", compression="snappy")
    assert (tmp_path / "adult.parquet").read_bytes() != BUNDLED.read_bytes()
    assert len(nd.load_table("adult").frame) == 48842


def test_when_nothing_has_it_the_error_lists_every_place_and_what_to_do(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    _serve(monkeypatch, web.status("/gone/nursery.data", 404))
    with pytest.raises(DatasetError) as caught:
        nd.load("nursery", transfer=QUICK)
    message = str(caught.value)
    for part in ("$NOISEWISE_DATA", str(nowhere), "package", "HTTP 404", "uci.edu"):
        assert part in message
    with pytest.raises(DatasetError, match="download=False"):
        nd.load("nursery", download=False)


# Downloads into the cache


NURSERY = (
    b"usual,proper,complete,1,convenient,convenient,nonprob,recommended,recommend\n"
    b"usual,proper,complete,more,convenient,convenient,nonprob,priority,priority\n\n"
)


def _serve(monkeypatch: pytest.MonkeyPatch, *urls: str) -> None:
    """Let nursery be the table of two rows above, from sources at the addresses."""
    sources = tuple(Source("nursery", (RemoteFile(url, name="nursery.data"),)) for url in urls)
    content = nd.content_hash(parse("nursery", {"nursery.data": NURSERY}))
    changed = dataclasses.replace(nd.info("nursery"), sources=sources, content=content)
    monkeypatch.setitem(entries.ENTRIES, "nursery", changed)


def test_adult_downloads_as_published_is_cached_and_found_again(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = raw_forms.zipped(raw_forms.adult(pd.read_parquet(BUNDLED)))
    url = web.serve("/adult.zip", archive)
    published = nd.info("adult").sources[0].files[0]
    assert published.checksums
    source = Source("adult", (dataclasses.replace(published, url=url),))
    changed = dataclasses.replace(nd.info("adult"), sources=(source,), filename="fresh.parquet")
    monkeypatch.setitem(entries.ENTRIES, "adult", changed)
    first = nd.load_table("adult", transfer=QUICK)
    assert nd.content_hash(first.frame) == nd.info("adult").content
    assert [path.name for path in nowhere.iterdir()] == ["fresh.parquet"]
    again = nd.load_table("adult", download=False)
    assert nd.content_hash(again.frame) == nd.content_hash(first.frame)
    assert len(web.requests) == 1


def test_a_wrong_table_is_refused_and_leaves_nothing_behind(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = NURSERY.replace(b"more", b"2")
    _serve(monkeypatch, web.serve("/nursery.data", wrong))
    with pytest.raises(DatasetError, match="content hash"):
        nd.load("nursery", transfer=QUICK)
    assert not nowhere.exists() or not list(nowhere.iterdir())


def test_a_truncated_download_is_refused_and_leaves_nothing_behind(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.wfile.write(b"usual,proper\n")
        handler.close_connection = True

    web.routes["/nursery.data"] = answer
    _serve(monkeypatch, web.url("/nursery.data"))
    with pytest.raises(DatasetError, match="13 of 5000 bytes"):
        nd.load("nursery", transfer=QUICK)
    assert not nowhere.exists() or not list(nowhere.iterdir())


def test_the_second_source_is_used_when_the_first_fails(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    _serve(monkeypatch, web.status("/gone", 404), web.serve("/nursery.data", NURSERY))
    assert len(nd.load_table("nursery", transfer=QUICK).frame) == 2


def test_a_download_that_meets_a_passing_fault_and_a_redirect_succeeds(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(handler: Handler) -> None:
        busy = len(web.requests) == 2
        send(handler, 503 if busy else 200, b"" if busy else NURSERY)

    web.routes["/nursery.data"] = answer
    _serve(monkeypatch, web.status("/x", 302, Location="/nursery.data"))
    assert len(nd.load_table("nursery", transfer=QUICK).frame) == 2
    assert (nowhere / "nursery.parquet").is_file()


def test_a_cache_that_cannot_be_written_warns_and_still_loads(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere.parent.mkdir(parents=True)
    nowhere.write_text("a file where the folder should be")
    _serve(monkeypatch, web.serve("/nursery.data", NURSERY))
    with pytest.warns(UserWarning, match="could not be kept"):
        assert len(nd.load_table("nursery", transfer=QUICK).frame) == 2


def test_a_writer_that_dies_leaves_the_old_file_and_no_rest(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = nd.info("nursery")
    target = places.store(entry, pd.DataFrame({"a": [1]}), nowhere)
    before = target.read_bytes()

    def die(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(places.os, "fsync", die)
    with pytest.raises(OSError, match="disk full"):
        places.store(entry, pd.DataFrame({"a": [2]}), nowhere)
    assert target.read_bytes() == before
    assert list(nowhere.iterdir()) == [target]


def test_images_are_stored_and_read_back(nowhere: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(0, 256, shape).astype(np.uint8)
        for name, shape in (
            ("x_train", (3, 28, 28)),
            ("y_train", (3,)),
            ("x_test", (2, 28, 28)),
            ("y_test", (2,)),
        )
    }
    entry = dataclasses.replace(nd.info("mnist"), content=nd.content_hash(arrays))
    read = places.read_verified(entry, places.store(entry, arrays, nowhere))
    assert isinstance(read, dict)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


# The content hash

_cells = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=3),
    st.lists(st.floats(allow_nan=True, width=64), min_size=3, max_size=3),
    st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=3, max_size=3),
)


@given(st.lists(_cells, min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_the_hash_depends_on_values_alone_and_on_all_of_them(
    columns: list[list[object]], data: st.DataObject
) -> None:
    frame = pd.DataFrame(
        {f"c{i}": pd.Series(column, dtype=_dtype(column)) for i, column in enumerate(columns)}
    )
    digest = nd.content_hash(frame)
    assert nd.content_hash(frame.copy().set_axis([7, 8, 9], axis=0)) == digest
    place = data.draw(st.integers(0, len(columns) - 1)), data.draw(st.integers(0, 2))
    changed = [list(column) for column in columns]
    old = changed[place[0]][place[1]]
    new = "other" if old is None or isinstance(old, str) else (0 if old != 0 else 1)
    changed[place[0]][place[1]] = new if isinstance(new, str) else type(old)(new)
    if old != new:
        other = pd.DataFrame(
            {
                f"c{i}": pd.Series(column, dtype=_dtype(columns[i]))
                for i, column in enumerate(changed)
            }
        )
        assert nd.content_hash(other) != digest
    renamed = frame.rename(columns={"c0": "d0"})
    assert nd.content_hash(renamed) != digest


def _dtype(column: list[object]) -> str:
    if all(isinstance(cell, int) for cell in column):
        return "int64"
    return "float64" if all(isinstance(cell, float) for cell in column) else "object"


def test_the_hash_is_the_same_for_every_storage_of_the_same_values() -> None:
    frame = pd.DataFrame({"n": [1, 2], "x": [0.0, float("nan")], "t": ["a", None]})
    same = pd.DataFrame(
        {
            "n": pd.Series([1, 2], dtype="int8"),
            "x": pd.Series([-0.0, None], dtype="Float64"),
            "t": pd.Series(["a", None], dtype="string"),
        }
    )
    assert nd.content_hash(frame) == nd.content_hash(same)
    mixed = pd.DataFrame({"a": pd.Series(["x", 1], dtype=object)})
    with pytest.raises(DatasetError, match="mixes text"):
        nd.content_hash(mixed)
    with pytest.raises(DatasetError, match="unsigned bytes"):
        nd.content_hash(dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.zeros(3)))
    with pytest.raises(DatasetError, match="needs the arrays"):
        nd.content_hash({})
