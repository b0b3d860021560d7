"""A table that cannot be learnt from is refused in words that say what to change."""

import numpy as np
import pandas as pd
import pytest

from noisewise.estimators import PrivateClassifier, PrivateRegressor
from noisewise.estimators.refusals import TableError, TableTypeError

ROWS = np.random.default_rng(0).uniform(-1, 1, (40, 2))
LABELS = (ROWS[:, 0] > 0).astype(int)


def classifier(**settings):
    return PrivateClassifier(steps=2, hidden_layer_sizes=(), **settings)


def frame(names, *columns):
    made = pd.concat([pd.Series(column) for column in columns], axis=1)
    made.columns = names
    return made


TABLES = {
    "two of one name": (frame(["a", "a"], *ROWS.T), "several columns called 'a'"),
    "names of two types": (frame(["a", 1], *ROWS.T), "texts as names"),
    "dates": (
        frame(["a", "day"], ROWS[:, 0], pd.date_range("2020", periods=40)),
        "dates or categories: 'day'",
    ),
    "categories": (
        frame(["a", "kind"], ROWS[:, 0], pd.Categorical(["Zaphod"] * 40)),
        "dates or categories: 'kind'",
    ),
    "a mask": (np.ma.array(ROWS, mask=ROWS > 0.9), "masked"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused_with_the_columns_to_change(name):
    table, words = TABLES[name]
    for model in (classifier(), PrivateRegressor(steps=2, target_range=(0, 1))):
        with pytest.raises((TableError, TableTypeError), match=words) as refused:
            model.fit(table, LABELS)
        assert "Zaphod" not in str(refused.value)


def test_labels_under_a_mask_are_not_learnt():
    with pytest.raises(TableError, match="mask"):
        classifier().fit(ROWS, np.ma.array(LABELS, mask=LABELS == 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", [LABELS[:, None], pd.DataFrame({"y": LABELS})])
def test_a_target_in_a_column_is_read_by_every_look_at_it(target):
    assert classifier().fit(ROWS, target).predict(ROWS).shape == (40,)
    model = PrivateRegressor(steps=2, target_range=(0, 1)).fit(ROWS, target)
    assert model.predict(ROWS).shape == (40,)


@pytest.mark.parametrize("classes", [[], [1]])
def test_fewer_than_two_declared_classes_are_a_mistake_of_the_caller(classes):
    with pytest.raises(TableError, match="two or more public classes"):
        classifier(classes=classes).fit(ROWS, LABELS)
