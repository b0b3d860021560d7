"""Pictures as features that no record had a part in: wavelet scattering, normalised per record.

The features of each channel may be whitened by statistics of public pictures; see `whitening`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noisewise.estimators.refusals import TableError
from noisewise.estimators.whitening import Whitening, drawings

__all__ = ["PictureFeatures"]

_CHUNK = 500
_DRAWINGS = 10_000


@dataclass(frozen=True)
class PictureFeatures:
    """Scattering of pictures of one size, (rows, height, width) with values 0 to 255 or 0 to 1."""

    height: int
    width: int
    channels: int
    largest: float
    whitening: Whitening | None = None
    kind: str = "scattering"

    @staticmethod
    def patches(x: npt.NDArray[Any]) -> PictureFeatures:
        """Read the size from the shape, for patches of drawings; colours may be the last axis."""
        if _colours_last(x.shape):
            x = np.moveaxis(x, 3, 1)
        return replace(PictureFeatures.of(x), kind="patches")

    @staticmethod
    def of(x: npt.NDArray[Any]) -> PictureFeatures:
        """Read the size from the shape; whole numbers are taken for 0 to 255."""
        largest = 255.0 if np.issubdtype(x.dtype, np.integer) else 1.0
        if x.ndim == 2:
            side = math.isqrt(x.shape[1])
            if side * side != x.shape[1]:
                raise TableError(
                    f"rows of {x.shape[1]} numbers are no square pictures: give X the shape (rows, "
                    "height, width) or (rows, channels, height, width)"
                )
            return PictureFeatures(side, side, 1, largest)
        if x.ndim == 3:
            return PictureFeatures(x.shape[1], x.shape[2], 1, largest)
        if x.ndim == 4:
            return PictureFeatures(x.shape[2], x.shape[3], x.shape[1], largest)
        raise TableError(f"pictures need 2 to 4 axes, got shape {x.shape}")

    def whitened_by(self, public: Any) -> PictureFeatures:
        """Return the same features, whitened by those of public pictures.

        Parameters
        ----------
        public : "drawings", array or None
            Random drawings, public pictures of the same size, or nothing.
        """
        if public is None:
            return self
        if isinstance(public, str):
            return replace(self, whitening=_drawn(self.height, self.width))
        given = PictureFeatures.of(np.asarray(public))
        if (given.height, given.width) != (self.height, self.width):
            raise TableError(
                f"public_images are {given.height} x {given.width}, but X holds pictures of "
                f"{self.height} x {self.width}: scale them by a public rule first"
            )
        pictures = np.asarray(public, dtype=np.float32) / np.float32(given.largest)
        single = torch.from_numpy(pictures.reshape(-1, self.height, self.width))
        return replace(self, whitening=Whitening.of(_scattered(single.clamp(0.0, 1.0))))

    @property
    def norm_bound(self) -> float:
        """Return a bound on the norm of a picture's features.

        Normalised groups have mean square at most one, so a channel has at most the root of the
        number of its features.
        """
        if self.kind == "patches":
            return 1.0
        layer = _layer(self.height, self.width)
        one = math.sqrt(math.prod(layer.output_shape))
        if self.whitening is not None:
            one = self.whitening.largest_norm(one)
        return one * math.sqrt(self.channels)

    def transform(self, x: Any) -> npt.NDArray[np.float32]:
        """Return the features, one row per picture."""
        given = np.asarray(x)
        if self.kind == "patches":
            return self._patched(np.moveaxis(given, 3, 1) if _colours_last(given.shape) else given)
        values = given.astype(np.float32) / np.float32(self.largest)
        values = values.reshape(-1, self.channels, self.height, self.width)
        rows = []
        for start in range(0, len(values), _CHUNK):
            part = torch.from_numpy(values[start : start + _CHUNK]).clamp(0.0, 1.0)
            features = _scattered(part.reshape(-1, self.height, self.width))
            if self.whitening is not None:
                features = self.whitening(features)
            rows.append(features.reshape(len(part), -1).numpy())
        result: npt.NDArray[np.float32] = np.concatenate(rows)
        return result

    def _patched(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        layer = _patch_layer(self.channels, self.height, self.width)
        pictures = x.reshape(-1, self.channels, self.height, self.width)
        rows = np.empty((len(pictures), layer.output_size), np.float32)
        for start in range(0, len(pictures), _CHUNK):
            part = pictures[start : start + _CHUNK].astype(np.float32) / np.float32(self.largest)
            rows[start : start + _CHUNK] = layer.features(torch.from_numpy(part)).numpy()
        return rows


def _colours_last(shape: tuple[int, ...]) -> bool:
    """Whether four axes are (rows, height, width, colours): three colours, or one, at the end."""
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)


@lru_cache(maxsize=2)
def _patch_layer(channels: int, height: int, width: int) -> Any:
    from noisewise import nn

    return nn.PatchFeatures((channels, height, width))


@lru_cache(maxsize=4)
def _layer(height: int, width: int) -> Any:
    from noisewise import nn

    return nn.Scattering2d((height, width), J=2, L=8, normalise=27)


def _scattered(single: Tensor) -> Tensor:
    """Features of pictures of one channel, one row each."""
    height, width = single.shape[-2:]
    features: Tensor = _layer(height, width).features(single).flatten(1)
    return features


@lru_cache(maxsize=4)
def _drawn(height: int, width: int) -> Whitening:
    """Whitening by drawings: half a minute for 28 x 28, so it is kept."""
    return Whitening.of(_scattered(drawings(_DRAWINGS, height, width)))
