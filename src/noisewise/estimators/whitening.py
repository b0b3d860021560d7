"""Public whitening of features: directions and scales that no private record had a part in.

Directions in which features vary little are learnt slowly, and with noise hardly at all. Mean and
covariance of *other* pictures' features, public ones or random drawings, tell those directions
well enough (Tang et al. 2023 prepare private training by random processes). The drawings here
are a formula and a seed: overlapping ellipses and boxes in random grey.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Whitening", "drawings"]

#: Share of the total variance that is added to the variance of every direction.
_RIDGE = 1e-3


def drawings(count: int, height: int, width: int, seed: int = 1, most: int = 6) -> Tensor:
    """Draw random ellipses and boxes over black, with values in [0, 1].

    Parameters
    ----------
    count, height, width : int
    seed : int
        Public: the same pictures come again.
    most : int
        Shapes in a picture; each but the first is there with probability 0.7.

    Returns
    -------
    Tensor of shape (count, height, width)
    """
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.rand(count, 1, 1, generator=generator)

    size = min(height, width)
    rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
    images = torch.zeros(count, height, width)
    for index in range(most):
        present = (draw() < (0.7 if index else 1.0)).float()
        y = rows[:, None] - height * (0.15 + 0.7 * draw())
        x = columns - width * (0.15 + 0.7 * draw())
        tall, wide = (size * (0.03 + 0.45 * draw() ** 2) for _ in range(2))
        angle = math.pi * draw()
        u = (x * angle.cos() + y * angle.sin()) / wide
        v = (y * angle.cos() - x * angle.sin()) / tall
        box = torch.maximum(u.abs(), v.abs())
        inside = 1 - torch.where(draw() < 0.5, box, torch.hypot(u, v))
        cover = (inside * torch.minimum(wide, tall) + 0.5).clamp(0, 1) * present
        images = images * (1 - cover) + cover * draw()
    return images


@dataclass(frozen=True, eq=False)
class Whitening:
    """Principal directions of public features, each divided by its deviation there.

    Attributes
    ----------
    mean : array of shape (features,)
    matrix : array of shape (features, components)
    """

    mean: npt.NDArray[np.float32]
    matrix: npt.NDArray[np.float32]

    @staticmethod
    def of(features: Tensor, components: int = 1000) -> Whitening:
        """Take mean and covariance of public features.

        A ridge keeps directions in which the public features hardly vary from being blown up.
        Entries of the public features then have mean square one on average.
        """
        mean = features.mean(0)
        centred = features - mean
        variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
        ridge = _RIDGE * float(variances.sum())
        kept = min(components, features.shape[1])
        variances, directions = variances.flip(0)[:kept], directions.flip(1)[:, :kept]
        matrix = directions / (variances.clamp_min(0.0) + ridge).clamp_min(1e-30).sqrt()
        size = (centred @ matrix).square().sum(1).mean().sqrt().clamp_min(1e-15)
        return Whitening(mean.numpy(), (matrix * (math.sqrt(kept) / size)).numpy())

    def __call__(self, features: Tensor) -> Tensor:
        """Return the whitened features; each row depends on itself alone."""
        return (features - torch.from_numpy(self.mean)) @ torch.from_numpy(self.matrix)

    def largest_norm(self, norm: float) -> float:
        """Return a bound on the norm of a whitened row whose features have at most `norm`."""
        gain = float(np.linalg.norm(self.matrix.astype(np.float64), axis=0).max())
        # The columns are orthogonal, so the longest is the largest singular value.
        return gain * (norm + float(np.linalg.norm(self.mean.astype(np.float64))))
