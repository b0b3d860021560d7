"""Labels in the words of the public classes, whatever a person wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise.datasets.cells import Value
from noisewise.datasets.columns import Categorical
from noisewise.datasets.columns_by_rule import YesNo

__all__ = ["class_names", "labels_of"]


def class_names(rule: YesNo | Categorical) -> tuple[Value, ...]:
    """Return what the classes of a rule are called."""
    return (rule.no[0], rule.yes[0]) if isinstance(rule, YesNo) else rule.values


def labels_of(rule: YesNo | Categorical, name: str, y: Any) -> npt.NDArray[Any]:
    """Return labels by the names of their classes; what is none stays as it is."""
    cells: pd.Series[Any] = pd.Series(np.asarray(y, dtype=object))
    found = rule.codes(name, cells)
    names = np.array(class_names(rule), dtype=object)
    read = np.where(found >= 0, names[np.maximum(found, 0)], cells.to_numpy())
    return read if (found < 0).any() else np.array(read.tolist())
