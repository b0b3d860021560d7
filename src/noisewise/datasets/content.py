"""What a loaded dataset is, and the hash that says it is the right one.

:func:`content_hash` is SHA-256 over a canonical form of the *values*: it does not
depend on the file format, on compression or on the version of pandas, so one pinned
number verifies a parquet file, a cached copy and a fresh download alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise.errors import DatasetError

if TYPE_CHECKING:
    from noisewise.datasets.registry import DatasetInfo
    from noisewise.datasets.schema import Schema

__all__ = ["Images", "Table", "content_hash"]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Table:
    """A table (or a text set) as it was published, with its public schema.

    Attributes
    ----------
    name : str
    frame : pandas.DataFrame
        Every column of the source, in its order, label included; nothing cleaned.
    target : str
        Name of the label column.
    features : tuple of str
        The other columns, without record numbers and the split column.
    schema : Schema or None
        Public ranges and categories; None for text.
    info : DatasetInfo
        Licence, citation, source and traps.
    """

    name: str
    frame: pd.DataFrame
    target: str
    features: tuple[str, ...]
    schema: Schema | None
    info: DatasetInfo

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the parts the publisher made; empty if there is one part only."""
        if self.info.splits:
            return tuple(name for name, _, _ in self.info.splits)
        if "split" in self.frame.columns:
            return tuple(str(part) for part in pd.unique(self.frame["split"]))
        return ()

    def split(self, part: str) -> pd.DataFrame:
        """Return the rows of one published part, with a fresh index."""
        if part not in self.splits:
            known = ", ".join(map(repr, self.splits)) or "none: split it yourself"
            raise DatasetError(f"dataset {self.name!r} has no part {part!r}; its parts: {known}")
        for name, start, stop in self.info.splits:
            if name == part:
                rows: pd.DataFrame = self.frame.iloc[start:stop]
                break
        else:
            rows = self.frame[self.frame["split"] == part]
        fresh: pd.DataFrame = rows.reset_index(drop=True)
        return fresh

    def encode(
        self, frame: pd.DataFrame | None = None, *, unit_norm: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        """Return numbers and labels by the public schema: ``X, y = table.encode()``."""
        if self.schema is None:
            raise DatasetError(
                f"dataset {self.name!r} is text and has no schema; turn the sentences into "
                "vectors with a public model or vocabulary first"
            )
        rows = self.frame if frame is None else frame
        matrix, _ = self.schema.encode(rows, unit_norm=unit_norm)
        return matrix, self.schema.encode_target(rows)


@dataclass(frozen=True, eq=False)
class Images:
    """Images as unsigned bytes (record, height, width[, channel]) and their labels."""

    name: str
    x_train: npt.NDArray[np.uint8]
    y_train: npt.NDArray[np.uint8]
    x_test: npt.NDArray[np.uint8]
    y_test: npt.NDArray[np.uint8]
    info: DatasetInfo

    @property
    def classes(self) -> int:
        """Number of classes, from the registry and not from the labels."""
        return self.info.classes


def content_hash(content: pd.DataFrame | Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of the values of a table or of the four arrays of an image set.

    Parameters
    ----------
    content : pandas.DataFrame or mapping of str to array
        A table of integers, floats and text, or `x_train`, `y_train`, `x_test`, `y_test`.

    Returns
    -------
    str
        64 hexadecimal digits. Order of rows and columns, names and kinds count; the
        width of integers, the string dtype and the index do not.

    Examples
    --------
    >>> import pandas as pd
    >>> content_hash(pd.DataFrame({"a": [1, 2]})) == content_hash(pd.DataFrame({"a": [2, 1]}))
    False
    """
    digest = hashlib.sha256()
    if isinstance(content, pd.DataFrame):
        _write(digest, f"table {len(content)} {len(content.columns)}".encode())
        for position, name in enumerate(content.columns):
            _write(digest, str(name).encode())
            _hash_column(digest, content.iloc[:, position])
        return digest.hexdigest()
    missing = [name for name in _ARRAYS if name not in content]
    if missing:
        raise DatasetError(f"an image set needs the arrays {', '.join(missing)}")
    for name in _ARRAYS:
        array = np.ascontiguousarray(content[name])
        if array.dtype != np.uint8:
            raise DatasetError(f"{name} must hold unsigned bytes, got {array.dtype}")
        _write(digest, f"{name} {array.shape}".encode())
        _write(digest, array.tobytes())
    return digest.hexdigest()


def _hash_column(digest: hashlib._Hash, column: pd.Series[Any]) -> None:
    if pd.api.types.is_bool_dtype(column.dtype):
        column = column.astype("int64")
    if pd.api.types.is_integer_dtype(column.dtype):
        _write(digest, b"integer")
        _write(digest, column.to_numpy(dtype="<i8").tobytes())
        return
    if pd.api.types.is_float_dtype(column.dtype):
        values = column.to_numpy(dtype="<f8", na_value=np.nan)
        # One pattern of bits for every NaN, and no negative zero.
        values = np.where(np.isnan(values), np.float64("nan"), values + 0.0)
        _write(digest, b"float")
        _write(digest, values.astype("<f8").tobytes())
        return
    codes, uniques = pd.factorize(column)
    _write(digest, b"text")
    for value in uniques:
        if not isinstance(value, str):
            raise DatasetError(f"column {column.name!r} mixes text with {type(value).__name__}")
        _write(digest, value.encode())
    _write(digest, codes.astype("<i8").tobytes())


def _write(digest: hashlib._Hash, part: bytes) -> None:
    """Length first, so that no two sequences of parts give the same bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
