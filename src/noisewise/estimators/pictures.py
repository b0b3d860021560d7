"""Pictures as features that no record had a part in: wavelet scattering, normalised per record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["PictureFeatures"]

_CHUNK = 500


@dataclass(frozen=True)
class PictureFeatures:
    """Scattering of pictures of one size, (rows, height, width) with values 0 to 255 or 0 to 1."""

    height: int
    width: int
    channels: int
    largest: float

    @staticmethod
    def of(x: npt.NDArray[Any]) -> PictureFeatures:
        """Read the size from the shape; whole numbers are taken for 0 to 255."""
        largest = 255.0 if np.issubdtype(x.dtype, np.integer) else 1.0
        if x.ndim == 2:
            side = math.isqrt(x.shape[1])
            if side * side != x.shape[1]:
                raise ValueError(
                    f"rows of {x.shape[1]} numbers are no square pictures: give X the shape (rows, "
                    "height, width) or (rows, channels, height, width)"
                )
            return PictureFeatures(side, side, 1, largest)
        if x.ndim == 3:
            return PictureFeatures(x.shape[1], x.shape[2], 1, largest)
        if x.ndim == 4:
            return PictureFeatures(x.shape[2], x.shape[3], x.shape[1], largest)
        raise ValueError(f"pictures need 2 to 4 axes, got shape {x.shape}")

    def transform(self, x: Any) -> npt.NDArray[np.float32]:
        """Return the features, one row per picture."""
        from noisewise import nn

        layer = nn.Scattering2d(
            (self.height, self.width), J=2, L=8, channels=self.channels, normalise=27
        )
        values = np.asarray(x, dtype=np.float32) / np.float32(self.largest)
        values = values.reshape(-1, self.channels, self.height, self.width)
        rows = []
        with torch.no_grad():
            for start in range(0, len(values), _CHUNK):
                part = torch.from_numpy(values[start : start + _CHUNK]).clamp(0.0, 1.0)
                rows.append(layer(part).flatten(1).numpy())
        features: npt.NDArray[np.float32] = np.concatenate(rows)
        return features
