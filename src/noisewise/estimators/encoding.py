"""How records become numbers without looking at others: by a schema, a bound, or wavelets.

Everything here maps one record at a time by constants that were given, so it costs no
privacy. All forms say in the privacy statement what they rest on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from noisewise.datasets import Schema, schema_for

__all__ = ["Clamped", "Declared", "Scattered", "resolve_schema"]

_WHITENED = {
    "none": "They were not whitened.",
    "drawings": "They were whitened by statistics of random drawings, made by a public formula.",
    "given": "They were whitened by statistics of the pictures given as public_images, which are "
    "public and hold no private record.",
}


@dataclass(frozen=True)
class Clamped:
    """Numbers taken as they are, but none beyond a public bound.

    Implements the protocol of preprocessing that privacy statements ask.
    """

    bound: float
    notes: tuple[str, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the statement says about the input."""
        return (
            f"Features beyond +-{self.bound:g} were clamped; whatever scaling happened before used "
            "public constants only.",
            *self.notes,
        )

    def require_sound(self) -> None:
        """Nothing is read from the data."""

    def encode(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Clamp."""
        clamped: npt.NDArray[np.float32] = np.clip(x, -self.bound, self.bound).astype(np.float32)
        return clamped


@dataclass(frozen=True)
class Declared:
    """A schema, and what else the statement must say."""

    schema: Schema
    notes: tuple[str, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the statement says about the input."""
        return (*self.schema.assumptions, *self.notes)

    def require_sound(self) -> None:
        """Refuse a schema that was taken from the data."""
        self.schema.require_sound()


@dataclass(frozen=True)
class Scattered:
    """Pictures that became wavelet scattering features.

    Parameters
    ----------
    whitening : {"none", "drawings", "given"}
        Where the statistics of the whitening come from.
    """

    whitening: str
    notes: tuple[str, ...] = ()
    kind: str = "scattering"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the statement says about the input."""
        if self.kind == "auto":
            return (
                "The size of the pictures and the range of their values are public; each picture "
                "became responses to patches of random drawings, made by a public formula, by "
                "itself.",
                *self.notes,
            )
        return (
            "The size of the pictures and the range of their values are public; each picture "
            "became wavelet scattering features by itself.",
            _WHITENED[self.whitening],
            *self.notes,
        )

    def require_sound(self) -> None:
        """Nothing is read from the data."""


def resolve_schema(schema: Any) -> Schema | None:
    """Return a schema from itself, its file, its JSON text or the name of a registered dataset."""
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, os.PathLike):
        return Schema.read(schema)
    if isinstance(schema, str):
        text = schema.strip()
        if text.endswith((".toml", ".json")):
            return Schema.read(text)
        return Schema.from_json(text) if text.startswith("{") else schema_for(text)
    if isinstance(schema, dict):
        return Schema(schema)
    raise TypeError(
        "schema must be a noisewise.datasets.Schema, its file (.toml or .json), the columns as a "
        f"dict, JSON text or the name of a registered dataset, got {type(schema).__name__}"
    )
