"""What other libraries say of a table that cannot be read, without the cells of the table.

scikit-learn, numpy and pandas show values in their exceptions: "could not convert string to float:
'Alice'", or the first rows of an array that has the wrong shape. Only sentences that are known to
hold nothing but shapes, types and names of columns are passed on; everything else is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from noisewise.errors import NoisewiseError

__all__ = ["TableError", "TableTypeError", "readable", "require_table"]

Result = TypeVar("Result")


class TableError(NoisewiseError, ValueError):
    """A table that cannot be learnt from; its text shows no value of a record."""


class TableTypeError(NoisewiseError, TypeError):
    """Something that is not the kind of table that is needed."""


def require_table(x: Any, y: Any, *, numbers: bool) -> None:
    """Refuse what others would read wrongly, or refuse in words that have to be withheld.

    With `numbers`, columns of other kinds are refused, too. Names of columns are public.
    """
    for given in (x, y):
        if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
            raise TableError(
                "X or y holds masked entries, and what lies under the mask would be learnt from. "
                "Leave such records out, or fill them with a public constant before fit."
            )
    names = list(getattr(x, "columns", ()))
    if twice := {name for name in names if names.count(name) > 1}:
        raise TableError(
            f"X has several columns called {_listed(twice)}: give each a name of its own"
        )
    if len({isinstance(name, str) for name in names}) > 1:
        raise TableTypeError(
            "some columns of X have texts as names and others have not. Rename them, for example "
            "X.columns = X.columns.astype(str)"
        )
    if numbers and hasattr(x, "dtypes"):
        others = [n for n, kind in zip(names, x.dtypes, strict=True) if _is_no_number(kind)]
        if others:
            raise TableTypeError(
                f"X has columns of dates or categories: {_listed(others)}. Declare them in a "
                "schema, or convert them by a public rule."
            )


def _is_no_number(kind: Any) -> bool:
    """Whether a pandas type is of dates, durations or categories that are no numbers."""
    categories = getattr(kind, "categories", None)
    if categories is not None:
        return getattr(categories.dtype, "kind", "O") not in "biuf"
    return getattr(kind, "kind", "") in ("M", "m")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(map(repr, names))[:5])


#: First lines that are shown as they are.
_HARMLESS = tuple(
    re.compile(pattern)
    for pattern in (
        r"Found array with \d+ (sample|feature)\(s\) \(shape=[\d, ()]+\) while a minimum of \d+ is "
        r"required( by \w+)?\.",
        r"Found array with dim \d+\. \w+ expected <= \d+\.",
        r"Found array with dim \d+,? while dim <= \d+ is required( by \w+)?\.",
        r"Found input variables with inconsistent numbers of samples: \[[\d, ]+\]",
        r"X has \d+ features, but \w+ is expecting \d+ features as input\.?",
        r"Unknown label type: (?!unknown)[\w-]+\..*",
        r"y should be a 1d array, got an array of shape \([\d, ]+\) instead\.",
        r"(This \w+ estimator|\w+) requires y to be passed, but the target y is None\.?",
        r"Sparse data was passed.*",
        r"dtype='numeric' is not compatible with arrays of bytes/strings\..*",
        r"setting an array element with a sequence\..*",
        r"(float|int|complex)\(\) argument must be a string.* a .*number, not '[\w.]+'",
        r"Expected a 2-dimensional container but got <class '[\w.]+'> instead\..*",
    )
)
_NO_LABEL = (
    "Labels are missing, of different types, or in several columns (y must be one); records "
    "without a target cannot be learnt from. "
    "noisewise.datasets.read_table(file, schema) reads a file as its schema declares it and leaves "
    "such rows out; so may you: a rule that looks at one row at a time costs no privacy."
)
#: What is said in place of texts that show values, by how those begin.
_REPLACED = (
    ("Complex data not supported", "Complex data not supported: give real numbers."),
    (
        "Expected 2D array",
        "Expected 2D array, one row per record. Reshape your data: array.reshape(-1, 1) if it has "
        "one feature, array.reshape(1, -1) if it is one record.",
    ),
    (
        "Input X contains NaN",
        "Input X contains NaN, a missing value. Declare columns with missing values in a schema, "
        "which encodes them by public rules, or fill them with a public constant before fit; an "
        "imputer that learns from the records would not be private.",
    ),
    (
        "Input X contains infinity",
        "Input X contains infinity or a value too large for its type. Clip it by a public constant "
        "before fit.",
    ),
    ("Input y contains NaN", _NO_LABEL),
    ("Unknown label type: unknown", _NO_LABEL),
    ("'<' not supported between instances of", _NO_LABEL),
    (
        "Input y contains infinity",
        "Input y contains infinity or a value too large for its type. Clip it by a public constant "
        "before fit.",
    ),
    (
        "could not convert string to float",
        "X or y holds text where numbers are needed. Declare such columns in a schema, or convert "
        "them by a public rule. The text itself is withheld: it may be private.",
    ),
)


def readable(action: Callable[[], Result]) -> Result:
    """Return what the action returns; if it fails, say so without a value of a record."""
    try:
        return action()
    except NoisewiseError:
        raise  # texts of our own show no value
    except Exception as error:
        public = _public(error)
    # Outside the clause above, so that the text with the value is not its context.
    raise public


def _public(error: Exception) -> Exception:
    kind = TypeError if isinstance(error, TypeError) else ValueError
    text = str(error)
    first = text.split("\n", 1)[0]
    if text.startswith("The feature names should match those that were passed during fit"):
        return kind(text)  # names of columns are public
    if any(pattern.fullmatch(first) for pattern in _HARMLESS):
        return kind(first)
    for beginning, replacement in _REPLACED:
        if text.startswith(beginning):
            return kind(replacement)
    return kind(
        f"X or y could not be read: {type(error).__name__} was raised, whose text is withheld "
        "because it may show a value of a record. Try the same with records that you may see."
    )
