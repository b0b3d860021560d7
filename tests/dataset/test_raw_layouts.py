"""Parsers, on small files in the publishers' layouts and on whole tables written so."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pandas as pd
import pytest
import raw_forms

from noisewise.datasets import content_hash, info, list_datasets, load_images, load_table
from noisewise.datasets.parse import LAYOUTS, parse, read_cifar_batch, read_idx
from noisewise.datasets.places import find_file
from noisewise.datasets.raw import unpack
from noisewise.datasets.registry import Checksum, RemoteFile
from noisewise.errors import DatasetError


def need(name: str) -> None:
    if find_file(info(name)) is None:
        pytest.skip(f"the file {info(name).filename} is in no folder of this machine")


FILES = (
    *("adult.data", "adult.test", "german.data", "nursery.data", "wdbc.data", "cal_housing.data"),
    *("train.tsv", "dev.tsv", "test.tsv", "diabetic_data.csv"),
)


# Small files, written out


def test_adult_has_a_comment_line_a_full_stop_and_question_marks() -> None:
    row = "25, {}, 226802, 11th, 7, Never-married, {}, Own-child, Black, Male, 0, 0, 40, {}, {}"
    data = row.format("Private", "Sales", "United-States", "<=50K") + "\n\n"
    test = "|1x3 Cross validator\n" + row.format("?", "?", "?", ">50K.") + "\n"
    table = parse("adult", {"adult.data": data.encode(), "adult.test": test.encode()})
    assert isinstance(table, pd.DataFrame)
    assert list(table["income"]) == ["<=50K", ">50K"]
    assert list(table["age"]) == [25, 25]
    assert table.loc[1, ["workclass", "occupation", "native-country"]].isna().all()
    assert table["workclass"].iloc[0] == "Private"


def test_german_has_no_header_and_blanks_between_codes() -> None:
    row = b"A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1\n"
    table = parse("german", {"german.data": row * 2})
    assert table.shape == (2, 21)
    assert table.loc[0, ["Attribute1", "Attribute5", "class"]].tolist() == ["A11", 1169, 1]


def test_nursery_keeps_the_number_of_children_as_text() -> None:
    row = b"usual,proper,complete,1,convenient,convenient,nonprob,recommended,recommend\n\n"
    table = parse("nursery", {"nursery.data": row})
    assert table.loc[0, "children"] == "1"
    assert list(table.columns)[-1] == "class"


def test_wine_is_separated_by_semicolons_and_its_decimals_are_exact() -> None:
    raw = b'"fixed acidity";"density";"quality"\n7.4;0.99780;5\n7;1.00026;6\n'
    table = parse("wine", {"winequality-red.csv": raw})
    assert table["density"].tolist() == [0.9978, 1.00026]
    assert str(table["quality"].dtype) == "int64"


def test_credit_accepts_any_header_and_powers_of_ten() -> None:
    header = ",".join(["ID", *(f"X{i}" for i in range(1, 24)), "Y"])
    row = ",".join(["1", "4e+05", *["2"] * 22, "1"])
    table = parse("default-credit", {"data.csv": f"{header}\n{row}\n".encode()})
    assert table.loc[0, "LIMIT_BAL"] == 400000
    assert list(table.columns)[6] == "PAY_0"
    assert (table.dtypes == "int64").all()


@pytest.mark.parametrize("cell", ["4.5", "abc"])
def test_credit_refuses_cells_that_are_no_whole_numbers(cell: str) -> None:
    header = ",".join(["ID", *(f"X{i}" for i in range(1, 24)), "Y"])
    row = ",".join(["1", cell, *["2"] * 22, "1"])
    with pytest.raises(DatasetError):
        parse("default-credit", {"data.csv": f"{header}\n{row}\n".encode()})


def test_framingham_is_padded_and_has_na() -> None:
    raw = b"male,age,education,glucose;;;\n1,39,4,77;;;\n0,46,NA,NA;;;\n"
    table = parse("framingham", {"framingham.csv": raw})
    assert table.shape == (2, 4)
    assert table["education"].isna().tolist() == [False, True]


def test_diabetes_keeps_none_as_text_and_codes_as_text() -> None:
    raw = b"encounter_id,race,diag_1,diag_2,diag_3,max_glu_serum\n1,?,250.83,?,428,None\n"
    table = parse("diabetes", {"diabetic_data.csv": raw})
    assert table.loc[0, "max_glu_serum"] == "None"
    assert table.loc[0, "diag_3"] == "428"
    assert table["race"].isna().all()
    assert table["diag_2"].isna().all()


def test_students_have_a_mark_of_byte_order_and_a_tab() -> None:
    raw = b"\xef\xbb\xbfMarital status;Daytime/evening attendance\t;Target\n1;1;Dropout\n"
    table = parse("students", {"data.csv": raw})
    assert list(table.columns) == ["Marital status", "Daytime/evening attendance", "Target"]


def test_breast_cancer_codes_malignant_as_zero() -> None:
    raw = "".join(f"{i},{d},{','.join(['0.5'] * 30)}\n" for i, d in enumerate("MB"))
    assert parse("wdbc", {"wdbc.data": raw.encode()})["target"].tolist() == [0, 1]
    with pytest.raises(DatasetError, match="neither M nor B"):
        parse("wdbc", {"wdbc.data": raw.replace("B", "X").encode()})


def test_california_averages_are_per_household() -> None:
    raw = b"-122.230000,37.880000,41.000000,880.000000,129.000000,322.000000,126.000000,8.325200,452600.000000\n"  # noqa: E501
    table = parse("california", {"cal_housing.data": raw})
    assert table.loc[0, "AveRooms"] == 880 / 126
    assert table.loc[0, "AveOccup"] == 322 / 126
    assert table.loc[0, "MedHouseVal"] == 4.526


def test_sentiment_reads_both_orders_and_repairs_the_one_phrase() -> None:
    raw = {
        "train.tsv": b"1\t10000\n0\ta , b \n",
        "dev.tsv": b"sentence\tlabel\nfine film \t1\n",
        "test.tsv": b"0\tbad\n",
    }
    table = parse("sst2", raw)
    assert table["sentence"].tolist() == ["10,000", "a , b", "fine film", "bad"]
    assert table["label"].tolist() == [1, 0, 1, 0]
    assert table["split"].tolist() == ["train", "train", "dev", "test"]
    with pytest.raises(DatasetError, match="3 fields"):
        parse("sst2", {**raw, "dev.tsv": b"a\tb\tc\n"})


def test_inference_pairs_need_files_of_equal_length() -> None:
    raw = {
        f"{stem}.{part}": b"x\ny\n" for stem in ("s1", "s2", "labels") for part in ("dev", "test")
    }
    assert len(parse("snli", raw)) == 4
    with pytest.raises(DatasetError, match="layout 'snli'"):
        parse("snli", {**raw, "s2.dev": b"x\n"})


def test_idx_gives_the_array_back_and_refuses_what_is_not_whole() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = gzip.decompress(raw_forms.idx(array))
    np.testing.assert_array_equal(read_idx(content), array)
    for wrong in (content[:-1], content + b"x", b"\1" + content[1:], content[:6], b""):
        with pytest.raises((DatasetError, struct.error)):
            read_idx(wrong)


def test_cifar_planes_become_channels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    labels = np.array([3, 1, 9], dtype=np.uint8)
    batch = raw_forms.cifar(images, labels)
    assert batch[1 + 5] == images[0, 0, 5, 0]
    assert batch[1 + 1024 + 32] == images[0, 1, 0, 1]
    read_images, read_labels = read_cifar_batch(batch)
    np.testing.assert_array_equal(read_images, images)
    np.testing.assert_array_equal(read_labels, labels)
    with pytest.raises(DatasetError, match="not whole"):
        read_cifar_batch(batch[:-1])


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"wdbc-scikit-learn"}))
def test_a_web_page_in_place_of_the_file_is_never_taken_for_the_data(layout: str) -> None:
    page = b"<!DOCTYPE html>\n<html><body>Sorry, not here</body></html>\n"
    try:
        content = parse(layout, dict.fromkeys(FILES, page))
    except DatasetError:
        return
    assert content_hash(content) not in {info(name).content for name in list_datasets()}


# Archives


def test_members_are_found_by_their_last_name_and_verified() -> None:
    archive = raw_forms.zipped({"deep/er/a.csv": b"1", "b.csv": b"2"})
    remote = RemoteFile("http://h/x.zip", ("a.csv",), (("a.csv", _md5(b"1")),))
    assert unpack(remote, archive) == {"a.csv": b"1"}
    with pytest.raises(DatasetError, match="md5"):
        unpack(RemoteFile("http://h/x.zip", ("a.csv",), (("a.csv", _md5(b"2")),)), archive)
    with pytest.raises(DatasetError, match=r"no file 'c\.csv'"):
        unpack(RemoteFile("http://h/x.zip", ("c.csv",)), archive)


def _md5(content: bytes) -> Checksum:
    import hashlib

    return Checksum("md5", hashlib.md5(content).hexdigest())


def test_archives_inside_archives_and_tars_are_read() -> None:
    inner = raw_forms.zipped({"a.csv": b"1"})
    remote = RemoteFile("http://h/x.zip", ("in.zip>a.csv",))
    assert unpack(remote, raw_forms.zipped({"in.zip": inner})) == {"a.csv": b"1"}
    tar = raw_forms.tarred({"folder/a.bin": b"3"})
    assert unpack(RemoteFile("http://h/x.tar.gz", ("a.bin",)), tar) == {"a.bin": b"3"}


@pytest.mark.parametrize("content", [b"", b"PK but no zip", b"<html>", b"\x1f\x8b broken"])
@pytest.mark.parametrize("url", ["http://h/a.zip", "http://h/a.tar.gz"])
def test_what_is_no_archive_is_a_dataset_error(url: str, content: bytes) -> None:
    with pytest.raises(DatasetError):
        unpack(RemoteFile(url, ("a.csv",)), content)


def test_truncated_archives_never_give_a_truncated_file() -> None:
    noise = np.random.default_rng(0).bytes(10_000)
    for whole, remote in (
        (raw_forms.zipped({"a": noise}), RemoteFile("http://h/x.zip", ("a",))),
        (raw_forms.tarred({"a": noise}), RemoteFile("http://h/x.tar.gz", ("a",))),
        (gzip.compress(noise), RemoteFile("http://h/a.gz")),
    ):
        assert unpack(remote, whole) == {"a": noise}
        for cut in (1, 100, len(whole) // 2):
            with pytest.raises(DatasetError):
                unpack(remote, whole[:cut])
        # Only the padding behind the member may be missing.
        try:
            assert unpack(remote, whole[:-1]) == {"a": noise}
        except DatasetError:
            continue


def test_a_small_archive_cannot_unpack_into_a_large_file() -> None:
    bomb = b"\0" * 2_000_000
    for content, remote in (
        (raw_forms.zipped({"a": bomb}), RemoteFile("http://h/x.zip", ("a",))),
        (raw_forms.tarred({"a": bomb}), RemoteFile("http://h/x.tar.gz", ("a",))),
        (gzip.compress(bomb), RemoteFile("http://h/a.gz")),
    ):
        assert len(content) < 20_000
        with pytest.raises(DatasetError, match="more than 1000000 bytes"):
            unpack(remote, content, limit=1_000_000)


# Whole tables

WRITERS = {
    "adult": raw_forms.adult,
    "bank_marketing": raw_forms.bank,
    "breast_cancer_wdbc": raw_forms.wdbc,
    "california_housing_raw": raw_forms.california,
    "default_credit": raw_forms.default_credit,
    "diabetes130": raw_forms.diabetes,
    "framingham": raw_forms.framingham,
    "german_credit": raw_forms.german,
    "naticusdroid": raw_forms.naticusdroid,
    "nursery": raw_forms.nursery,
    "snli_dev_test": raw_forms.snli,
    "sst2": raw_forms.sst2,
    "students_dropout": raw_forms.students,
    "wine_quality_red": lambda frame: raw_forms.wine(frame, "winequality-red.csv"),
    "wine_quality_white": lambda frame: raw_forms.wine(frame, "winequality-white.csv"),
}


def parse_written(name: str, files: dict[str, bytes], *, pinned: bool) -> str:
    """Content hash after the way of a download, with or without the raw checksums."""
    source = [source for source in info(name).sources if source.files][-1]
    raw: dict[str, bytes] = {}
    for remote in source.files:
        if remote.members:
            kept = remote if pinned else RemoteFile(remote.url, remote.members)
            raw |= unpack(kept, raw_forms.zipped(files))
        else:
            basename = remote.name or remote.url.rsplit("/", 1)[-1]
            matching = {key: value for key, value in files.items() if key.endswith(basename)}
            assert len(matching) == 1
            raw[basename] = next(iter(matching.values()))
    return content_hash(parse(source.layout, raw))


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_table_written_in_its_raw_layout_parses_to_the_pinned_content(name: str) -> None:
    need(name)
    files = WRITERS[name](load_table(name, download=False).frame)
    # For these two, the bytes are those that their publisher's digest is of.
    pinned = name in ("adult", "naticusdroid")
    assert parse_written(name, files, pinned=pinned) == info(name).content


def test_california_averages_of_the_raw_table_are_the_pinned_table() -> None:
    need("california_housing_raw")
    files = raw_forms.california(load_table("california_housing_raw", download=False).frame)
    raw = {"cal_housing.data": next(iter(files.values()))}
    assert content_hash(parse("california", raw)) == info("california_housing").content


def test_images_written_as_idx_parse_to_the_pinned_content() -> None:
    need("mnist")
    images = load_images("mnist", download=False)
    arrays = (images.x_train, images.y_train, images.x_test, images.y_test)
    raw: dict[str, bytes] = {}
    for remote, array in zip(info("mnist").sources[0].files, arrays, strict=True):
        raw |= unpack(remote, raw_forms.idx(array))
    assert content_hash(parse("idx-images", raw)) == info("mnist").content


def test_cifar_batches_parse_to_the_pinned_content_and_only_2000_test_images_are_kept() -> None:
    need("cifar10_small")
    images = load_images("cifar10_small", download=False)
    test = raw_forms.cifar(images.x_test, images.y_test)
    raw = {
        "data_batch_1.bin": raw_forms.cifar(images.x_train, images.y_train),
        "test_batch.bin": test + test[: 3073 * 5],
    }
    assert content_hash(parse("cifar10-small", raw)) == info("cifar10_small").content


def test_every_dataset_has_a_layout_that_exists_and_its_members_are_what_it_reads() -> None:
    for name in list_datasets():
        for source in info(name).sources:
            assert source.layout in LAYOUTS
