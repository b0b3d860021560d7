"""What may be asked of a private run beside its parts, for functions that hand it on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypedDict

import torch

from noisewise.privacy import Ledger, Preprocessing
from noisewise.training.averaging import Averaging
from noisewise.training.private_run import Augmentation
from noisewise.training.team import Team

__all__ = ["LoaderOptions", "RunOptions"]


class LoaderOptions(TypedDict, total=False):
    """Of :func:`noisewise.make_private`: how records are drawn, seen and bounded."""

    records: int | None
    units: Any
    views: int
    augmentation: Augmentation | None
    chunk: int | None
    averaging: Averaging | str | None
    collate: Callable[[list[Any]], Any] | None
    workers: int
    pin_memory: bool
    preprocessing: Preprocessing | None
    team: Team | None
    bound_to: bytes


class RunOptions(LoaderOptions, total=False):
    """All of :func:`noisewise.make_private` but `resume`: also where it runs and is charged."""

    ledger: Ledger | str | os.PathLike[str] | None
    name: str
    device: torch.device | str | None
