"""A table that cannot be read is refused without a word of what is in it."""

import traceback

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from noisewise.datasets import Categorical, Numeric, Schema
from noisewise.estimators import PrivateClassifier, PrivateRegressor

NAME, NUMBER = "Alice", 7431.25


def everything(error):
    texts, seen = [], error
    while seen is not None:
        texts += [str(seen), repr(seen), "".join(traceback.format_exception(seen))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


def table(rows=40):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 3))
    return x, (x[:, 0] > 0).astype(int)


def with_name(x):
    changed = x.astype(object)
    changed[5, 1] = NAME
    return changed


def with_name_in_frame(x):
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).astype(object)
    frame.loc[5, "b"] = NAME
    return frame


def one_dimensional(x):
    flat = x[:, 0].copy()
    flat[0] = NUMBER
    return flat


def complex_numbers(x):
    changed = x.astype(complex)
    changed[0, 0] = NUMBER + 1j
    return changed


def missing(x):
    changed = x.copy()
    changed[0] = NUMBER
    changed[3, 1] = np.nan
    return changed


def infinite(x):
    changed = x.copy()
    changed[0] = NUMBER
    changed[3, 1] = np.inf
    return changed


def ragged(x):
    rows = [list(row) for row in x]
    rows[3] = [NUMBER]
    return rows


def dates(x):
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).astype(object)
    frame.loc[5, "b"] = pd.Timestamp("2031-07-04")
    return frame


def dictionaries(x):
    changed = x.astype(object)
    changed[5, 1] = {NAME: NUMBER}
    return changed


TABLES = [
    with_name,
    with_name_in_frame,
    one_dimensional,
    complex_numbers,
    missing,
    infinite,
    ragged,
    dates,
    dictionaries,
]
SECRETS = (NAME, "7431", "2031")


@pytest.mark.parametrize("change", TABLES)
@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_no_cell_is_shown_when_a_table_is_refused(change, kind):
    x, y = table()
    model = kind(steps=2)
    with pytest.raises((TypeError, ValueError)) as caught:
        model.fit(change(x), y)
    shown = everything(caught.value)
    assert not any(secret in shown for secret in SECRETS)
    assert len(str(caught.value)) > 20
    fitted = kind(steps=2).fit(x, y)
    with pytest.raises((TypeError, ValueError)) as caught:
        fitted.predict(change(x))
    assert not any(secret in everything(caught.value) for secret in SECRETS)


def labels(*values):
    _, y = table()
    changed = y.astype(object)
    changed[7 : 7 + len(values)] = values
    return changed


@pytest.mark.parametrize(
    ("kind", "y", "settings"),
    [
        (PrivateClassifier, labels(7431), {"classes": [0, 1]}),
        (PrivateClassifier, np.where(table()[1] > 0, "no", NAME), {"classes": ["no", "yes"]}),
        (PrivateClassifier, np.full(40, NAME), {}),
        (PrivateClassifier, np.full(40, 7431), {}),
        (PrivateClassifier, labels(NAME), {}),
        (PrivateClassifier, table()[0][:, 0] * NUMBER, {}),
        (PrivateClassifier, np.where(table()[1] > 0, np.nan, NUMBER), {}),
        (PrivateRegressor, labels(NAME), {}),
        (PrivateRegressor, np.where(table()[1] > 0, NUMBER, np.inf), {}),
        (PrivateRegressor, np.stack([table()[1] * NUMBER] * 2, axis=1), {}),
        (PrivateRegressor, table()[1][:-1] * NUMBER, {}),
    ],
)
def test_no_label_is_shown_when_a_target_is_refused(kind, y, settings):
    with pytest.raises((TypeError, ValueError)) as caught:
        kind(steps=2, **settings).fit(table()[0], y)
    assert not any(secret in everything(caught.value) for secret in SECRETS)


def test_a_table_that_does_not_fit_its_schema_is_refused_without_its_cells():
    schema = Schema(
        {"age": Numeric(18, 90), "job": Categorical(["clerk", "smith"])},
        target="paid",
        classes=["no", "yes"],
        source="a form",
    )
    frame = pd.DataFrame({"age": [20, 30] * 20, "job": ["clerk", "smith"] * 20})
    y = np.array(["no", "yes"] * 20)
    wrong = [
        (frame.astype({"age": object}).replace({"age": {20: NAME}}), y),
        (frame.assign(job=[[NAME], "smith"] * 20), y),
        (frame, np.array(["no", NAME] * 20)),
        (frame.rename(columns={"age": "years"}), y),
        (frame, y[:-1]),
    ]
    for x, target in wrong:
        with pytest.raises((TypeError, ValueError)) as caught:
            PrivateClassifier(schema=schema, steps=2).fit(x, target)
        assert NAME not in everything(caught.value)
    cells = frame.assign(paid=np.where(y == "no", "no", NAME))
    with pytest.raises(ValueError, match="not among the public classes") as caught:
        schema.encode_target(cells)
    assert NAME not in everything(caught.value)


def test_advice_that_shows_nothing_is_kept():
    x, y = table()
    model = PrivateClassifier(steps=2)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[40, 39\]"):
        model.fit(x, y[:-1])
    with pytest.raises(ValueError, match="0 sample"):
        model.fit(x[:0], y[:0])
    with pytest.raises(ValueError, match="Reshape your data"):
        model.fit(x[:, 0], y)
    with pytest.raises(ValueError, match="imputer that learns from the records"):
        model.fit(missing(x), y)
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.fit(x, y)
    with pytest.raises(ValueError, match="2 features, but PrivateClassifier is expecting 3"):
        model.predict(x[:, :2])
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model.fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"b": "d"}))
