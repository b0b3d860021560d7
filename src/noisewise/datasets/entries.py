"""All datasets by name."""

from __future__ import annotations

from noisewise.datasets.entries_a_to_d import A_TO_D
from noisewise.datasets.entries_f_to_w import F_TO_W
from noisewise.datasets.registry import DatasetInfo

__all__ = ["ENTRIES"]

ENTRIES: dict[str, DatasetInfo] = {entry.name: entry for entry in (*A_TO_D, *F_TO_W)}
