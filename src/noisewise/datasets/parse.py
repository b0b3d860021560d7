"""Turn the raw files of each public source into the published table or images.

One small parser per layout. None of them cleans, imputes or encodes; they give names
to columns, types to cells and undo what only the raw format did (a full stop behind
labels, semicolons behind lines). Whether the result is right is decided by its content
hash, not here.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise.datasets import column_names as names
from noisewise.errors import DatasetError

__all__ = ["LAYOUTS", "Content", "parse"]

Content = pd.DataFrame | dict[str, npt.NDArray[np.uint8]]
Raw = Mapping[str, bytes]


def parse(layout: str, raw: Raw) -> Content:
    """Parse raw files by the named layout; a file of another shape is a `DatasetError`."""
    try:
        return LAYOUTS[layout](raw)
    except DatasetError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, struct.error) as error:
        raise DatasetError(
            f"the files {', '.join(raw)} do not have the layout {layout!r}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _read(
    content: bytes,
    *,
    sep: str = ",",
    names: list[str] | None = None,
    null: str | None = None,
    text: tuple[str, ...] = (),
    floats: bool = False,
) -> pd.DataFrame:
    """Read separated values: whole numbers, else exact decimals, else stripped text.

    Every cell is read as text first and converted here, because how exactly, and whether
    "None" is null, has changed between versions of pandas.
    """
    cells: pd.DataFrame = pd.read_csv(
        io.BytesIO(content),
        sep=sep,
        header=None if names else 0,
        names=names,
        dtype=str,
        keep_default_na=False,
        encoding="utf-8-sig",
        skipinitialspace=True,
    )
    kinds = (float,) if floats else (int, float)
    typed = {
        name: _typed(cells[name], null, () if name in text else kinds) for name in cells.columns
    }
    table: pd.DataFrame = pd.DataFrame(typed)
    return table


def _typed(
    cells: pd.Series[Any], null: str | None, kinds: tuple[type[int] | type[float], ...]
) -> pd.Series[Any]:
    """One column in the first of `kinds` that all its cells have, or as text."""
    places, distinct = pd.factorize(cells)
    words = [str(word).strip() for word in distinct]
    values = np.array([None if word == null else word for word in words], dtype=object)
    for kind in kinds:
        if kind is int and null in words:
            continue
        try:
            converted = [np.nan if word == null else kind(word) for word in words]
            values = np.array(converted, dtype=np.int64 if kind is int else np.float64)
            break
        except (ValueError, OverflowError):
            continue
    column: pd.Series[Any] = pd.Series(values[places], index=cells.index)
    return column


def _only(raw: Raw, suffix: str = "") -> bytes:
    matching = [content for name, content in raw.items() if name.endswith(suffix)]
    if len(matching) != 1:
        raise DatasetError(f"expected one file {suffix!r} among {', '.join(raw)}")
    return matching[0]


def _adult(raw: Raw) -> pd.DataFrame:
    parts = []
    for name in ("adult.data", "adult.test"):
        lines = [
            line
            for line in _only(raw, name).decode().splitlines()
            if line.strip() and not line.startswith("|")
        ]
        parts.append(_read("\n".join(lines).encode(), names=names.ADULT, null="?"))
    table = pd.concat(parts, ignore_index=True)
    table["income"] = table["income"].str.removesuffix(".")
    return table


def _naticusdroid(raw: Raw) -> pd.DataFrame:
    return _read(_only(raw, ".csv"))


def _wdbc(raw: Raw) -> pd.DataFrame:
    table = _read(_only(raw, "wdbc.data"), names=["id", "diagnosis", *names.WDBC])
    malignant = table["diagnosis"].map({"M": 0, "B": 1})
    if malignant.isna().any():
        raise DatasetError("a diagnosis in wdbc.data is neither M nor B")
    table["target"] = malignant.astype("int64")
    chosen: pd.DataFrame = table[[*names.WDBC, "target"]]
    return chosen


def _wdbc_scikit_learn(raw: Raw) -> pd.DataFrame:
    """Read the copy that every scikit-learn carries; it has the same names and codes."""
    from sklearn.datasets import load_breast_cancer

    table: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return table


def _default_credit(raw: Raw) -> pd.DataFrame:
    """Columns go by position: copies name them PAY_0 or PAY_1, X1..X23 or in full."""
    table = _read(_only(raw, ".csv"))
    if table.shape[1] != len(names.DEFAULT_CREDIT):
        raise DatasetError(
            f"expected {len(names.DEFAULT_CREDIT)} columns of credit card clients, "
            f"found {table.shape[1]}"
        )
    table.columns = pd.Index(names.DEFAULT_CREDIT)
    # Some copies write 4e+05 for 400000.
    numbers = table.astype("float64")
    if (numbers % 1 != 0).any(axis=None):
        raise DatasetError("a cell of the credit card table is not a whole number")
    whole: pd.DataFrame = numbers.astype("int64")
    return whole


def _students(raw: Raw) -> pd.DataFrame:
    table = _read(_only(raw, ".csv"), sep=";")
    table.columns = table.columns.str.strip()
    return table


def _german(raw: Raw) -> pd.DataFrame:
    columns = [*(f"Attribute{index}" for index in range(1, 21)), "class"]
    return _read(_only(raw, "german.data"), sep=" ", names=columns)


def _nursery(raw: Raw) -> pd.DataFrame:
    return _read(_only(raw, "nursery.data"), names=names.NURSERY, text=tuple(names.NURSERY))


def _framingham(raw: Raw) -> pd.DataFrame:
    lines = [line.rstrip(";\r ") for line in _only(raw, ".csv").decode("utf-8-sig").splitlines()]
    return _read("\n".join(filter(None, lines)).encode(), null="NA")


def _bank(raw: Raw) -> pd.DataFrame:
    return _read(_only(raw, "bank-full.csv"), sep=";")


def _diabetes(raw: Raw) -> pd.DataFrame:
    return _read(_only(raw, "diabetic_data.csv"), null="?", text=("diag_1", "diag_2", "diag_3"))


def _wine(raw: Raw) -> pd.DataFrame:
    return _read(_only(raw, ".csv"), sep=";")


def _california_raw(raw: Raw) -> pd.DataFrame:
    content = _only(raw, "cal_housing.data")
    return _read(content, names=names.CALIFORNIA_RAW, floats=True)


def _california(raw: Raw) -> pd.DataFrame:
    """Averages per household, by the formulas of scikit-learn's `fetch_california_housing`."""
    source = _california_raw(raw)
    households = source["households"]
    averages: pd.DataFrame = pd.DataFrame(
        {
            "MedInc": source["medianIncome"],
            "HouseAge": source["housingMedianAge"],
            "AveRooms": source["totalRooms"] / households,
            "AveBedrms": source["totalBedrooms"] / households,
            "Population": source["population"],
            "AveOccup": source["population"] / households,
            "Latitude": source["latitude"],
            "Longitude": source["longitude"],
            "MedHouseVal": source["medianHouseValue"] / 100000.0,
        }
    )
    return averages


def _sst2(raw: Raw) -> pd.DataFrame:
    """Lines of sentence and label, in either order, with or without a header."""
    rows: list[tuple[str, str, int]] = []
    # Both copies call a file test.tsv, so the three arrive under the names of their parts.
    for split in ("train", "dev", "test"):
        for line in raw[f"{split}.tsv"].decode("utf-8-sig").split("\n"):
            fields = line.rstrip("\r").split("\t")
            if len(fields) != 2 or set(map(str.strip, fields)) == {"sentence", "label"}:
                if line.strip() and len(fields) != 2:
                    raise DatasetError(f"a line of {split}.tsv has {len(fields)} fields, not 2")
                continue
            label, sentence = fields if fields[0] in ("0", "1") else fields[::-1]
            sentence = sentence.strip()
            # The stored copy lost the comma of this one phrase.
            rows.append((split, "10,000" if sentence == "10000" else sentence, int(label)))
    table: pd.DataFrame = pd.DataFrame(rows, columns=["split", "sentence", "label"])
    return table


def _snli(raw: Raw) -> pd.DataFrame:
    parts = []
    for split in ("dev", "test"):
        columns = {
            name: [line.rstrip("\r") for line in _lines(raw[f"{stem}.{split}"])]
            for name, stem in (("premise", "s1"), ("hypothesis", "s2"), ("label", "labels"))
        }
        parts.append(pd.DataFrame({"split": split, **columns}))
    table: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return table


def _lines(content: bytes) -> list[str]:
    """Lines by the newline alone: sentences may hold other characters Python splits at."""
    return content.decode().removesuffix("\n").split("\n")


def read_idx(content: bytes) -> npt.NDArray[np.uint8]:
    """Read the idx format of MNIST: two zero bytes, type 8, number of axes, sizes, values."""
    zero, kind, axes = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != 8 or not 1 <= axes <= 3:
        raise DatasetError("not an idx file of unsigned bytes")
    shape = struct.unpack_from(f">{axes}I", content, 4)
    start = 4 + 4 * axes
    if len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise DatasetError(f"an idx file of shape {shape} holds {len(content) - start} values")
    values: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8, offset=start).copy()
    return values.reshape(shape)


def _idx_images(raw: Raw) -> dict[str, npt.NDArray[np.uint8]]:
    return {
        "x_train": read_idx(raw["train-images-idx3-ubyte"]),
        "y_train": read_idx(raw["train-labels-idx1-ubyte"]),
        "x_test": read_idx(raw["t10k-images-idx3-ubyte"]),
        "y_test": read_idx(raw["t10k-labels-idx1-ubyte"]),
    }


def read_cifar_batch(content: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Read a binary batch: per record a label byte, then the red, green and blue planes."""
    if not content or len(content) % 3073:
        raise DatasetError(f"a CIFAR-10 batch of {len(content)} bytes is not whole")
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].copy()


def _cifar10(raw: Raw) -> dict[str, npt.NDArray[np.uint8]]:
    batches = [read_cifar_batch(raw[f"data_batch_{number}.bin"]) for number in range(1, 6)]
    x_test, y_test = read_cifar_batch(raw["test_batch.bin"])
    return {
        "x_train": np.concatenate([images for images, _ in batches]),
        "y_train": np.concatenate([labels for _, labels in batches]),
        "x_test": x_test,
        "y_test": y_test,
    }


def _cifar10_small(raw: Raw) -> dict[str, npt.NDArray[np.uint8]]:
    x_train, y_train = read_cifar_batch(raw["data_batch_1.bin"])
    x_test, y_test = read_cifar_batch(raw["test_batch.bin"])
    return {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_test[:2000].copy(),
        "y_test": y_test[:2000].copy(),
    }


LAYOUTS: dict[str, Callable[[Raw], Content]] = {
    "adult": _adult,
    "bank": _bank,
    "california": _california,
    "california-raw": _california_raw,
    "cifar10": _cifar10,
    "cifar10-small": _cifar10_small,
    "default-credit": _default_credit,
    "diabetes": _diabetes,
    "framingham": _framingham,
    "german": _german,
    "idx-images": _idx_images,
    "naticusdroid": _naticusdroid,
    "nursery": _nursery,
    "snli": _snli,
    "sst2": _sst2,
    "students": _students,
    "wdbc": _wdbc,
    "wdbc-scikit-learn": _wdbc_scikit_learn,
    "wine": _wine,
}
