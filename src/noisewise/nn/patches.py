"""Features of pictures that no record and no photograph had a part in.

Patches of made-up drawings give a dictionary (whitening, gain-shape k-means, Coates and Ng 2012);
a picture is correlated with it at several scales, soft-thresholded, averaged over quadrants; the
drawings' own principal directions whiten the result, and every record gets length one. All of it
is a function of that record, a formula and a public seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise import checks
from noisewise.bounds import Call, LayerRule, register
from noisewise.nn.patch_learning import Scale, dictionary, kept, principal_directions

__all__ = ["PatchFeatures"]

#: Longest side of what the dictionary looks at, and shortest.
_LONGEST, _SHORTEST = 40, 12
_DRAWINGS = 12_000
#: By the number of colours. Grey pictures are mostly aligned, so that places tell more.
_ATOMS = {3: (256, 512, 256), 1: (160, 256, 96)}
_CELLS = {3: 2, 1: 3}
_CHUNK = 64


@dataclass(frozen=True)
class _Recipe:
    """Everything that the public constants of the layer follow from."""

    channels: int
    height: int
    width: int
    scales: tuple[Scale, ...]
    mirror: bool
    directions: int
    ridge: float
    threshold: float
    seed: int
    drawings: int

    @property
    def name(self) -> str:
        """For the file in which they are kept."""
        return repr(asdict(self))


class PatchFeatures(nn.Module):
    """Whitened responses to patches of made-up drawings, one row of length one for each picture.

    Parameters
    ----------
    shape : sequence of int
        (channels, height, width) of a picture; its values are in [0, 1]. Pictures with more than 40
        pixels on a side are averaged down to 32, ones with fewer than 12 repeated up to 16. One
        channel or three (red, green, blue) have a dictionary of their own; of any other number
        each channel is read as a grey picture.
    atoms : sequence of int, optional
        Patches at full resolution, at half, and small ones at half. Default: (256, 512, 256) for
        colours, whose responses are averaged over quadrants, else (160, 256, 96), over nine fields.
    directions : int
        Numbers for each dictionary; 3,000 by default.
    mirror : bool, optional
        Whether a picture and its mirror image have the same features. Default: colours only;
        digits and letters change their meaning.
    seed : int
        Of the drawings and the dictionary. Public.
    cache : bool
        Keep dictionary and whitening in the user's cache folder; computing them takes minutes.

    Examples
    --------
    >>> import torch
    >>> layer = PatchFeatures((1, 12, 12), atoms=(4, 4, 4), directions=8, drawings=60, cache=False)
    >>> features = layer(torch.rand(3, 1, 12, 12))
    >>> features.shape, bool((features.norm(dim=1) <= 1).all())
    (torch.Size([3, 8]), True)
    """

    mean: Tensor
    matrix: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        *,
        atoms: Sequence[int] | None = None,
        directions: int = 3000,
        mirror: bool | None = None,
        ridge: float = 1e-5,
        threshold: float = 0.5,
        seed: int = 0,
        drawings: int = _DRAWINGS,
        cache: bool = True,
    ) -> None:
        super().__init__()
        sizes = [checks.integer("shape", size, minimum=1) for size in shape]
        if len(sizes) != 3:
            raise ValueError(f"shape must be (channels, height, width), got {tuple(shape)}")
        self.shape = (sizes[0], sizes[1], sizes[2])
        colours = 3 if self.shape[0] == 3 else 1
        given = _ATOMS[colours] if atoms is None else atoms
        counts = [checks.integer("atoms", each, minimum=0) for each in given]
        if len(counts) != 3 or not any(counts):
            raise ValueError(f"atoms must be three numbers, not all 0, got {tuple(given)}")
        height, width = _working_size(self.shape[1], self.shape[2])
        cells = _CELLS[colours]
        known = (
            Scale(counts[0], side=6, halve=False, stride=2, seed=seed, cells=cells),
            Scale(counts[1], side=6, halve=True, stride=1, seed=seed + 1, cells=cells),
            Scale(counts[2], side=4, halve=True, stride=1, seed=seed + 3, cells=cells),
        )
        self.recipe = _Recipe(
            channels=colours,
            height=height,
            width=width,
            scales=tuple(scale for scale in known if scale.atoms),
            mirror=(colours == 3) if mirror is None else bool(mirror),
            directions=checks.integer("directions", directions, minimum=1),
            ridge=checks.positive("ridge", ridge),
            threshold=checks.positive("threshold", threshold, zero=True),
            seed=checks.integer("seed", seed),
            drawings=checks.integer("drawings", drawings, minimum=2),
        )
        self._hold(kept(self.recipe.name, self._learn, cache))

    @property
    def output_size(self) -> int:
        """Numbers for each picture."""
        return self.matrix.shape[1] * (1 if self.shape[0] == 3 else self.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return features, one row for each picture; each depends on its picture alone."""
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(
                f"pictures must have shape {self.shape}, got a batch of shape {tuple(x.shape)}"
            )
        x = torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0)
        channels, height, width = self.shape
        single = x if channels in (1, 3) else x.reshape(-1, 1, height, width)
        rows = (self._responses(_resized(single, self.recipe)) - self.mean) @ self.matrix
        if channels not in (1, 3):
            rows = rows.reshape(-1, channels * rows.shape[1])
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        # A little below one, so that rounding cannot lift a record above it.
        unit: Tensor = rows * ((1 - 1e-5) / length.clamp_min(1e-12))
        return unit

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Return the same in small parts, which fit into the cache of a processor."""
        parts = [self(x[start : start + _CHUNK]) for start in range(0, len(x), _CHUNK)]
        return torch.cat(parts) if parts else x.new_zeros(0, self.output_size)

    def _responses(self, x: Tensor) -> Tensor:
        """Roots of soft-thresholded correlations, averaged over fields (and mirror images)."""
        parts, recipe = [], self.recipe
        for index, scale in enumerate(recipe.scales):
            small = functional.avg_pool2d(x, 2) if scale.halve else x
            maps = self._at(index, scale, small * 255.0 - 128.0)
            parts.append(_pooled(maps, scale.cells, recipe.mirror))
        return torch.cat(parts, 1)

    def _at(self, index: int, scale: Scale, x: Tensor) -> tuple[Tensor, Tensor]:
        """Responses of either sign at every place: (picture, row, column, atom)."""
        filters: Tensor = getattr(self, f"filters{index}")
        offset: Tensor = getattr(self, f"offset{index}")
        box = filters.new_full((1, *filters.shape[1:]), 1.0 / filters[0].numel())
        mean = functional.conv2d(x, box, stride=scale.stride)
        square = functional.conv2d(x * x, box, stride=scale.stride)
        contrast = (square - mean * mean).clamp_min(0.0).add(10.0).rsqrt()
        z = _convolved(x, filters, scale.stride) * contrast.permute(0, 2, 3, 1) + offset
        return torch.relu_(z - self.recipe.threshold), torch.relu_(-z - self.recipe.threshold)

    def _learn(self) -> dict[str, Tensor]:
        """Learn the constants from drawings."""
        from noisewise.nn.drawings import dead_leaves

        recipe = self.recipe
        made = dead_leaves(
            recipe.drawings, recipe.channels, recipe.height, recipe.width, recipe.seed
        )
        found: dict[str, Tensor] = {}
        for index, scale in enumerate(recipe.scales):
            filters, offset = dictionary(made, scale, recipe.mirror)
            found[f"filters{index}"], found[f"offset{index}"] = filters, offset
        with torch.no_grad():
            self._hold(found)
            starts = range(0, len(made), _CHUNK)
            responses = torch.cat([self._responses(made[i : i + _CHUNK]) for i in starts])
        mean, matrix = principal_directions(responses, recipe.directions, recipe.ridge, recipe.seed)
        for name in found:
            delattr(self, name)
        return {**found, "mean": mean, "matrix": matrix}

    def _hold(self, constants: dict[str, Tensor]) -> None:
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

    def extra_repr(self) -> str:
        """Return the settings."""
        atoms = tuple(scale.atoms for scale in self.recipe.scales)
        return f"{self.shape}, atoms={atoms}, directions={self.matrix.shape[1]}"


def _working_size(height: int, width: int) -> tuple[int, int]:
    longest, shortest = max(height, width), min(height, width)
    if longest > _LONGEST:
        height, width = (max(1, round(32 * side / longest)) for side in (height, width))
        shortest = min(height, width)
    if shortest < _SHORTEST:
        factor = math.ceil(_SHORTEST / shortest)
        height, width = factor * height, factor * width
    return height, width


def _resized(x: Tensor, recipe: _Recipe) -> Tensor:
    wanted = (recipe.height, recipe.width)
    if tuple(x.shape[2:]) == wanted:
        return x
    if x.shape[2] > wanted[0] or x.shape[3] > wanted[1]:
        return functional.adaptive_avg_pool2d(x, wanted)
    return functional.interpolate(x, size=wanted, mode="nearest")


def _convolved(x: Tensor, filters: Tensor, stride: int) -> Tensor:
    """Correlations, (picture, row, column, filter), in the memory layout that is fastest."""
    last = torch.channels_last
    z = functional.conv2d(
        x.contiguous(memory_format=last), filters.contiguous(memory_format=last), stride=stride
    )
    return z.permute(0, 2, 3, 1)


def _pooled(maps: tuple[Tensor, Tensor], cells: int, mirror: bool) -> Tensor:
    """Roots of averages over cells x cells fields, which overlap where sizes do not divide."""
    parts = []
    for part in maps:
        count, height, width, atoms = part.shape
        weights = torch.einsum("ap,bq->abpq", _fields(height, cells), _fields(width, cells))
        flat = weights.reshape(cells * cells, height * width).to(part)
        means = (flat @ part.reshape(count, height * width, atoms)).reshape(-1, cells, cells, atoms)
        if mirror:  # filters come in pairs of mirror images; so do left and right
            means = 0.5 * (means[..., : atoms // 2] + means[..., atoms // 2 :].flip(2))
        parts.append(means.flatten(1))
    return torch.cat(parts, 1).sqrt()


def _fields(size: int, cells: int) -> Tensor:
    """Weights of the positions of a line in the mean of each of its fields."""
    length = math.ceil(size / cells)
    rows = torch.zeros(cells, size)
    for index in range(cells):
        start = index * (size - length) // max(cells - 1, 1)
        rows[index, start : start + length] = 1.0 / length
    # Symmetric about the middle, as mirror images need it.
    return 0.5 * (rows + rows.flip(0, 1))


@register(PatchFeatures)
class PatchFeaturesRule(LayerRule[PatchFeatures]):
    """Every record leaves with length at most one; roots and lengths have no bounded slope."""

    def output_norm(self, call: Call[Any]) -> float:
        """Of every record."""
        return 1.0

    def lipschitz(self, call: Call[Any]) -> float:
        """None is known."""
        return math.inf

    def jump(self, call: Call[Any]) -> str:
        """Roots are steep at zero."""
        return "takes roots and divides by lengths, which have no bounded slope"
