"""What ``noisewise train`` trains on, and the measurements its report shows.

A registered dataset or a table in a file; a published split, or a random one; the chosen
estimator, and beside it, if asked, flat clipping and training without privacy.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise import datasets
from noisewise.cli.training_run import Kept
from noisewise.datasets import Images, Schema, Table, read_table
from noisewise.estimators import (
    PrivateClassifier,
    PrivateRegressor,
    apply_network,
    build_network,
    weights_of,
)
from noisewise.privacy import Event, unit_codes
from noisewise.release import SealedAccount, Units, name_of_unit

__all__ = ["Comparison", "Data", "Trained", "read_data", "split", "train_plain", "train_private"]


@dataclass(frozen=True)
class Data:
    """Records to learn from and others to measure with."""

    name: str
    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    schema: Schema | None
    classes: tuple[Any, ...] | None
    pictures: bool = False
    units: Any = None
    test_units: Any = None

    def units_to_measure(self, name: str) -> Units | None:
        """Whose rows are measured with, under the name of the training's units."""
        return None if self.test_units is None else Units(self.test_units, name=name)

    @property
    def words(self) -> str:
        """What a row is called."""
        return "records" if self.units is None else "rows"

    @property
    def protected(self) -> int:
        """How many records, or units, there are to learn from."""
        if self.units is None:
            return len(self.y_train)
        return int(unit_codes(self.units).max(initial=-1)) + 1

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return self.classes is None


def read_data(
    source: str,
    schema: Path | None,
    target: str | None,
    test: float,
    seed: int,
    unit: str | None = None,
) -> Data:
    """Find a registered dataset, or read a file with its schema.

    `unit` names the column of identifiers; the schema may do so, too.
    """
    path = Path(source)
    if path.suffix.lower() in (".csv", ".parquet") or path.exists():
        return _from_file(path, schema, target, test, seed, unit)
    found = datasets.load(source)
    if isinstance(found, Images):
        if unit is not None:
            raise ValueError("pictures have no columns, so --unit names nothing")
        return Data(
            source,
            found.x_train,
            found.y_train.astype(np.int64),
            found.x_test,
            found.y_test.astype(np.int64),
            None,
            tuple(range(found.classes)),
            pictures=True,
        )
    assert isinstance(found, Table)
    public = found.schema if schema is None else Schema.read(schema)
    if public is None:
        raise ValueError(f"the dataset {source!r} has no schema: it is text, or give --schema")
    if {"train", "test"} <= set(found.splits):
        return _table(source, public, found.split("train"), found.split("test"), unit)
    return _table(source, public, *split(found.frame, test, seed, unit or public.unit), unit)


def _from_file(
    path: Path,
    schema: Path | None,
    target: str | None,
    test: float,
    seed: int,
    unit: str | None,
) -> Data:
    if not path.is_file():
        here = [found.name for found in path.parent.glob(f"*{path.suffix}")]
        near = difflib.get_close_matches(path.name, here, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ", and no dataset of that name"
        raise ValueError(f"no file at {str(path)!r}{hint}")
    if schema is None:
        raise ValueError(
            f"a file needs --schema {path.stem}.toml with public ranges and categories of its "
            f"columns. Begin one with: noisewise schema draft {path} --target COLUMN"
        )
    public = Schema.read(schema)
    if target is not None and public.target is not None and target != public.target:
        raise ValueError(f"--target {target} is not the schema's target {public.target!r}")
    frame = read_table(path, public)
    return _table(path.name, public, *split(frame, test, seed, unit or public.unit), unit)


def split(
    frame: pd.DataFrame, test: float, seed: int, unit: str | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Each row goes to the test part by a hash of what it holds, or of whose it is.

    So where a row goes depends on that row alone: a row more or less moves no other one. Copies,
    and all rows of a unit, stay on one side.
    """
    held = frame[[unit]] if unit in frame.columns else frame
    texts = held.astype("string").fillna("\x00")
    hashes = pd.util.hash_pandas_object(texts, index=False, hash_key=f"{seed % 10**16:016d}")
    drawn = hashes.to_numpy(np.uint64) < np.uint64(int(test * 2**64))
    return frame[~drawn].reset_index(drop=True), frame[drawn].reset_index(drop=True)


def _column(frame: pd.DataFrame, name: str, purpose: str) -> pd.Series:
    if name not in frame.columns:
        known = list(map(str, frame.columns))
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "it has " + ", ".join(map(repr, known))
        raise ValueError(f"the table has no column {name!r} for {purpose}; {hint}")
    return frame[name]


def _table(
    name: str, schema: Schema, train: pd.DataFrame, test: pd.DataFrame, unit: str | None = None
) -> Data:
    if schema.target is None:
        raise ValueError(
            "the schema names no target, the column to be predicted. Add to it: [target], then "
            'name = "COLUMN" and kind = "yes/no" (or "category" with values, "number" with range)'
        )
    target = schema.target
    unit = schema.unit if unit is None else unit
    if unit is not None:
        schema = replace(schema, unit=unit)  # refuses one that is encoded or predicted
    y_train, y_test = (
        _column(part, target, "the target of the schema").to_numpy() for part in (train, test)
    )
    return Data(
        name,
        train.drop(columns=[target]),
        y_train,
        test.drop(columns=[target]),
        y_test,
        schema,
        schema.classes,
        units=None if unit is None else _column(train, unit, "the unit"),
        test_units=None if unit is None else _column(test, unit, "the unit"),
    )


@dataclass
class Trained:
    """A model and how it does on the test part, which is not private."""

    model: Any
    seconds: float
    score: float
    measures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One row of the table of --compare."""

    name: str
    epsilon: float | None
    score: float
    seconds: float


def train_private(
    data: Data,
    settings: dict[str, Any],
    more: Callable[[Any, Any], dict[str, Any]] | None = None,
    kept: Kept | None = None,
    beside: tuple[Event, ...] = (),
    held: contextlib.ExitStack | None = None,
) -> tuple[Trained, SealedAccount | None]:
    """Fit the estimator for this kind of data; a run that is kept charges its ledger.

    Parameters
    ----------
    data : Data
    settings : dict
        Of the estimator.
    more : callable, optional
        Further options of ``fit``, given inputs and targets.
    kept : Kept, optional
        Where the run is kept.
    beside : tuple of events
        What will be released beside the fit, from the same budget.
    held : ExitStack, optional
        Closes the ledger of a run that is kept.

    Returns
    -------
    Trained, and the account of the ledger for what is released next.
    """
    import time

    common = dict(settings)
    if data.pictures:
        common["features"] = "scattering"
    else:
        common["schema"] = data.schema
    model: Any
    if data.regression:
        model = PrivateRegressor(**common)
    else:
        model = PrivateClassifier(classes=list(data.classes or ()), **common)
    model._released_later = beside
    if data.units is not None:
        model._unit_name = name_of_unit(None if kept is None else kept.ledger, data.units.name)
    account = None
    if kept is not None and held is not None:
        book, account = held.enter_context(kept.open(model, data.protected, data.units is not None))
        model._release_account, model._run_name = account, kept.name
        model._more_options = lambda x, y: {**(more(x, y) if more else {}), **kept.options(book)}
    else:
        model._more_options = more
    started = time.perf_counter()
    model.fit(data.x_train, data.y_train, units=data.units)
    seconds = time.perf_counter() - started
    # The account and what watched the training hold records and files; the model holds neither.
    model._more_options = model._release_account = None
    return Trained(model, seconds, float(model.score(data.x_test, data.y_test))), account


def train_plain(data: Data, like: Any) -> Trained:
    """Train the same network without privacy, for the comparison only.

    Twenty epochs, and on small tables as many as it takes to be trained at all.
    """
    import time

    import torch
    from torch import nn

    started = time.perf_counter()
    x = torch.from_numpy(np.ascontiguousarray(like._encode(data.x_train)))
    outputs = like.weights_[-1][0].shape[0]
    hidden = [matrix.shape[0] for matrix, _ in like.weights_[:-1]]
    network = build_network(x.shape[1], hidden, outputs, 0)
    y: Any
    loss: nn.Module
    if data.regression:
        low, high = like.target_range_
        scaled = 2 * (np.clip(data.y_train, low, high) - low) / (high - low) - 1
        y, loss = torch.tensor(scaled, dtype=torch.float32).unsqueeze(1), nn.HuberLoss(delta=0.5)
    else:
        codes = np.searchsorted(like.classes_, data.y_train)
        y, loss = torch.from_numpy(codes.astype(np.int64)), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(max(20, -(-1000 * 512 // len(x)))):
        for batch in torch.split(torch.randperm(len(x), generator=generator), 512):
            optimizer.zero_grad()
            loss(network(x[batch]), y[batch]).backward()
            optimizer.step()
    weights = weights_of(network)
    seconds = time.perf_counter() - started
    scores = apply_network(weights, like._encode(data.x_test))
    return Trained(weights, seconds, _plain_score(data, like, scores))


def _plain_score(data: Data, like: Any, scores: npt.NDArray[Any]) -> float:
    if data.regression:
        from sklearn.metrics import r2_score

        low, high = like.target_range_
        guess = low + (np.clip(scores[:, 0], -1, 1) + 1) * (high - low) / 2
        return float(r2_score(data.y_test, guess))
    return float(np.mean(like.classes_[scores.argmax(1)] == data.y_test))
