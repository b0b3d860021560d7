"""What :class:`~noisewise.nn.PatchFeatures` learns from drawings: dictionaries, and a whitening.

They follow from a formula and a seed, and are kept in a file named by everything they follow from.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Scale", "dictionary", "kept", "principal_directions"]

#: Changed whenever the same recipe would give other constants.
_VERSION = 2
_PICTURES, _PATCHES_EACH, _ROUNDS = 7500, 8, 12
_RIDGE = 0.1
#: Of the subspace iteration; and how far a direction is brought to the deviation of the others.
_PASSES, _POWER = 3, 1 / 3


@dataclass(frozen=True)
class Scale:
    """Patches of one size at one resolution; responses are averaged over cells x cells fields."""

    atoms: int
    side: int
    halve: bool
    stride: int
    seed: int
    cells: int = 2


def dictionary(made: Tensor, scale: Scale, mirror: bool) -> tuple[Tensor, Tensor]:
    """Learn atoms by gain-shape k-means on whitened patches; return filters and offsets.

    With `mirror` the second half of the filters are the mirror images of the first.
    """
    generator = torch.Generator().manual_seed(scale.seed)
    patches = _patches(made, scale, generator)
    both = torch.cat([patches, _mirrored(patches, scale, made.shape[1])]) if mirror else patches
    mean = both.mean(0)
    values, vectors = torch.linalg.eigh((both - mean).T @ (both - mean) / len(both))
    white = (vectors / (values + _RIDGE).sqrt()) @ vectors.T
    points = (patches - mean) @ white
    order = torch.randint(0, len(points), (scale.atoms,), generator=generator)
    atoms = functional.normalize(points[order])
    for _ in range(_ROUNDS):  # up to length and sign
        found = points @ atoms.T
        best = found.abs().argmax(1, keepdim=True)
        atoms = torch.zeros_like(atoms).index_add_(0, best[:, 0], points * found.gather(1, best))
        unused = atoms.norm(dim=1) < 1e-6
        again = torch.randint(0, len(points), (int(unused.sum()),), generator=generator)
        atoms[unused] = points[again]
        atoms = functional.normalize(atoms)
    if mirror:
        atoms = torch.cat([atoms, _mirrored(atoms, scale, made.shape[1])])
    filters = atoms @ white
    offset = -(filters @ mean)
    filters = filters - filters.mean(1, keepdim=True)
    return filters.reshape(-1, made.shape[1], scale.side, scale.side).contiguous(), offset


def _patches(made: Tensor, scale: Scale, generator: torch.Generator) -> Tensor:
    """Random patches of random drawings, of equal contrast; flat ones teach nothing."""
    some = made[torch.randint(0, len(made), (_PICTURES,), generator=generator)]
    some = (functional.avg_pool2d(some, 2) if scale.halve else some) * 255.0
    side = scale.side
    cut = some.unfold(2, side, 1).unfold(3, side, 1).permute(0, 2, 3, 1, 4, 5)
    cut = cut.reshape(len(some), -1, some.shape[1] * side * side)
    chosen = torch.randint(0, cut.shape[1], (len(cut), _PATCHES_EACH), generator=generator)
    patches = cut.gather(1, chosen[:, :, None].expand(-1, -1, cut.shape[2])).flatten(0, 1)
    patches = patches[patches.var(1) > 20]
    patches = patches - patches.mean(1, keepdim=True)
    return patches / (patches.square().mean(1, keepdim=True) + 10).sqrt()


def _mirrored(patches: Tensor, scale: Scale, channels: int) -> Tensor:
    pictures = patches.reshape(-1, channels, scale.side, scale.side)
    return pictures.flip(3).reshape(len(patches), -1)


def principal_directions(
    features: Tensor, directions: int, ridge: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the mean, and principal directions divided by their deviations.

    By subspace iteration, which takes a fraction of the time of all eigenvectors; the last
    directions are approximate, and as good.
    """
    mean = features.mean(0)
    centred = features - mean
    count, size = features.shape
    wanted = min(directions, size)
    total = float(centred.square().sum(1).mean())
    if size <= 1500 or 2 * wanted > min(size, count):
        values, vectors = torch.linalg.eigh(centred.T @ centred / count)
    else:
        generator = torch.Generator().manual_seed(seed)
        basis = torch.randn(size, wanted + 100, generator=generator)
        for _ in range(_PASSES):
            basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
        seen = centred @ basis
        values, inner = torch.linalg.eigh(seen.T @ seen / count)
        vectors = basis @ inner
    values, vectors = values.flip(0)[:wanted].clamp_min(0), vectors.flip(1)[:, :wanted]
    # A ridge keeps directions in which drawings hardly vary from being blown up.
    return mean, (vectors / (values + ridge * total).clamp_min(1e-30) ** _POWER).contiguous()


def kept(name: str, learn: Callable[[], dict[str, Tensor]], cache: bool) -> dict[str, Tensor]:
    """Return what was learnt before under this name, or learn it and keep it."""
    if not cache:
        return learn()
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    digest = hashlib.sha256(f"{_VERSION} {name}".encode()).hexdigest()[:24]
    path = _folder() / f"patches-{digest}.safetensors"
    if path.exists():
        try:
            return load_file(path)
        except (OSError, SafetensorError):
            path.unlink(missing_ok=True)  # cut off while it was written by an older program
    found = learn()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        save_file(found, temporary)
        Path(temporary).replace(path)
    except OSError:
        pass  # a folder that cannot be written to costs time, and nothing else
    return found


def _folder() -> Path:
    import platformdirs

    given = os.environ.get("NOISEWISE_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("noisewise"))
