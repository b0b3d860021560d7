"""Write tables in the layouts of their publishers, to test the parsers on whole sets.

For Adult and NATICUSdroid the bytes are those of the published files: their digests, which
the registry pins, say so.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd


def zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return buffer.getvalue()


def lines(frame: pd.DataFrame, separator: str, null: str = "", end: str = "\n") -> str:
    cells = frame.astype(object).where(frame.notna(), null)
    return "".join(
        separator.join(map(_cell, row)) + end for row in cells.itertuples(index=False, name=None)
    )


def _cell(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def adult(frame: pd.DataFrame) -> dict[str, bytes]:
    train = lines(frame.iloc[:32561], ", ", "?") + "\n"
    test = lines(frame.iloc[32561:], ", ", "?", ".\n") + "\n"
    return {"adult.data": train.encode(), "adult.test": b"|1x3 Cross validator\n" + test.encode()}


def naticusdroid(frame: pd.DataFrame) -> dict[str, bytes]:
    return {"data.csv": frame.to_csv(index=False, lineterminator="\r\n").encode()}


def wdbc(frame: pd.DataFrame) -> dict[str, bytes]:
    diagnosis = frame["target"].map({0: "M", 1: "B"})
    table = frame.drop(columns="target")
    table.insert(0, "diagnosis", diagnosis)
    table.insert(0, "id", range(842302, 842302 + len(frame)))
    return {"wdbc.data": lines(table, ",").encode()}


def default_credit(frame: pd.DataFrame) -> dict[str, bytes]:
    header = ",".join(frame.columns).replace("PAY_0", "PAY_1")
    body = lines(frame, ",").replace(",500000,", ",5e+05,")
    return {"UCI_Credit_Card.csv": f"{header}\n{body}".encode()}


def students(frame: pd.DataFrame) -> dict[str, bytes]:
    header = ";".join(frame.columns).replace("attendance;", "attendance\t;")
    return {"data.csv": b"\xef\xbb\xbf" + f"{header}\n{lines(frame, ';')}".encode()}


def german(frame: pd.DataFrame) -> dict[str, bytes]:
    return {"german.data": lines(frame, " ").encode()}


def nursery(frame: pd.DataFrame) -> dict[str, bytes]:
    return {"nursery.data": (lines(frame, ",") + "\n").encode()}


def framingham(frame: pd.DataFrame) -> dict[str, bytes]:
    table = frame.astype(object).where(frame.notna(), "NA")
    # Whole numbers are written without a point, as in the source.
    for name in table.columns:
        table[name] = table[name].map(
            lambda cell: int(cell) if isinstance(cell, float) and cell.is_integer() else cell
        )
    padding = ";" * 25
    header = ",".join(frame.columns) + padding + "\n"
    return {"framingham.csv": (header + lines(table, ",", end=padding + "\n")).encode()}


def bank(frame: pd.DataFrame) -> dict[str, bytes]:
    quoted = frame.copy()
    for name in quoted.columns:
        if not pd.api.types.is_numeric_dtype(quoted[name]):
            quoted[name] = '"' + quoted[name].astype(str) + '"'
    header = ";".join(f'"{name}"' for name in frame.columns)
    inner = zipped({"bank-full.csv": f"{header}\n{lines(quoted, ';')}".encode()})
    return {"bank.zip": inner}


def diabetes(frame: pd.DataFrame) -> dict[str, bytes]:
    header = ",".join(frame.columns)
    return {"dataset/diabetic_data.csv": f"{header}\n{lines(frame, ',', '?')}".encode()}


def wine(frame: pd.DataFrame, name: str) -> dict[str, bytes]:
    header = ";".join(f'"{column}"' for column in frame.columns)
    return {name: f"{header}\n{lines(frame, ';')}".encode()}


def california(frame: pd.DataFrame) -> dict[str, bytes]:
    body = "".join(
        ",".join(f"{value:.6f}" for value in row) + "\n"
        for row in frame.itertuples(index=False, name=None)
    )
    return {"CaliforniaHousing/cal_housing.data": body.encode()}


def sst2(frame: pd.DataFrame) -> dict[str, bytes]:
    def part(split: str, label_first: bool) -> bytes:
        rows = frame[frame["split"] == split]
        sentences = rows["sentence"].where(rows["sentence"] != "10,000", "10000")
        pairs = zip(rows["label"], sentences, strict=True)
        if label_first:
            return "".join(f"{label}\t{text}\n" for label, text in pairs).encode()
        return b"sentence\tlabel\n" + "".join(f"{t} \t{y}\n" for y, t in pairs).encode()

    return {
        "train.tsv": part("train", True),
        "dev.tsv": part("dev", False),
        "test.tsv": part("test", True),
    }


def snli(frame: pd.DataFrame) -> dict[str, bytes]:
    files = {}
    for split in ("dev", "test"):
        rows = frame[frame["split"] == split]
        for stem, column in (("s1", "premise"), ("s2", "hypothesis"), ("labels", "label")):
            files[f"{stem}.{split}"] = "".join(f"{cell}\n" for cell in rows[column]).encode()
    return files


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes(), compresslevel=1)


def cifar(images: np.ndarray, labels: np.ndarray) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()
