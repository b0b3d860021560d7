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

__all__ = ["Scale", "Second", "channels_of", "dictionary", "kept", "principal_directions", "second"]

#: Changed whenever the same recipe would give other constants.
_VERSION = 2
_PICTURES, _PATCHES_EACH, _ROUNDS = 7500, 8, 12
_RIDGE, _CHANNEL_RIDGE = 0.1, 1e-3
_SECOND_PATCHES = 60_000


@dataclass(frozen=True)
class Scale:
    """Patches of one size at one resolution; responses are averaged over cells x cells fields."""

    atoms: int
    side: int
    halve: bool
    stride: int
    seed: int
    cells: int = 2


@dataclass(frozen=True)
class Second:
    """Patches of the averaged responses to the patches of the first scale.

    Responses are averaged over windows of step x step, and their principal directions over
    positions are the channels of which patches are cut.
    """

    atoms: int
    channels: int
    seed: int
    side: int = 3
    step: int = 2
    cells: int = 2


def dictionary(made: Tensor, scale: Scale, mirror: bool) -> tuple[Tensor, Tensor]:
    """Learn atoms by gain-shape k-means on whitened patches; return filters and offsets.

    With `mirror` the second half of the filters are the mirror images of the first.
    """
    generator = torch.Generator().manual_seed(scale.seed)
    patches = _patches(made, scale, generator)
    channels = made.shape[1]

    def turned(rows: Tensor) -> Tensor:
        return rows.reshape(-1, channels, scale.side, scale.side).flip(3).reshape(len(rows), -1)

    filters, offset = _learnt(patches, scale.atoms, turned if mirror else None, generator)
    filters = filters - filters.mean(1, keepdim=True)
    return filters.reshape(-1, channels, scale.side, scale.side).contiguous(), offset


def _learnt(
    patches: Tensor,
    count: int,
    turned: Callable[[Tensor], Tensor] | None,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Whiten patches, find atoms; return what a patch is multiplied by, and what is added."""
    both = patches if turned is None else torch.cat([patches, turned(patches)])
    mean = both.mean(0)
    values, vectors = torch.linalg.eigh((both - mean).T @ (both - mean) / len(both))
    white = (vectors / (values + _RIDGE).sqrt()) @ vectors.T
    points = (patches - mean) @ white
    order = torch.randint(0, len(points), (count,), generator=generator)
    atoms = functional.normalize(points[order])
    for _ in range(_ROUNDS):  # up to length and sign
        found = points @ atoms.T
        best = found.abs().argmax(1, keepdim=True)
        atoms = torch.zeros_like(atoms).index_add_(0, best[:, 0], points * found.gather(1, best))
        unused = atoms.norm(dim=1) < 1e-6
        again = torch.randint(0, len(points), (int(unused.sum()),), generator=generator)
        atoms[unused] = points[again]
        atoms = functional.normalize(atoms)
    if turned is not None:
        atoms = torch.cat([atoms, turned(atoms)])
    filters = atoms @ white
    return filters, -(filters @ mean)


def channels_of(maps: Tensor, layer: Second, mirror: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and principal directions of responses over positions, and their signs.

    `maps` has the axes (drawing, row, column, response), its responses those of `PatchFeatures`:
    either sign of atoms and, with `mirror`, of their mirror images. Then a mirror image leaves a
    channel as it is or turns its sign.
    """
    rows = maps.flatten(0, 2)
    mean = rows.mean(0)
    if mirror:
        pairs = mean.reshape(2, 2, -1)
        mean = (0.5 * (pairs + pairs.flip(1))).reshape(-1)
        pairs = (rows - mean).reshape(len(rows), 2, 2, -1)
        kinds = [(pairs[:, :, 0] + sign * pairs[:, :, 1]).flatten(1) / 2**0.5 for sign in (1, -1)]
    else:
        kinds = [rows - mean]
    found = [torch.linalg.eigh(part.T @ part / len(part)) for part in kinds]
    values = torch.cat([part.eigenvalues for part in found])
    wanted = values.sort(descending=True).indices[: layer.channels]
    ridge = _CHANNEL_RIDGE * float(values.sum())
    directions, signs = [], []
    for number, part in enumerate(found):
        start = number * len(part.eigenvalues)
        own = wanted[(wanted >= start) & (wanted < start + len(part.eigenvalues))] - start
        vectors = part.eigenvectors[:, own] / (part.eigenvalues[own] + ridge).sqrt()
        sign = 1.0 - 2.0 * number
        if mirror:
            halves = vectors.reshape(2, 1, -1, len(own)) / 2**0.5
            vectors = torch.cat([halves, sign * halves], 1).reshape(-1, len(own))
        directions.append(vectors)
        signs.append(torch.full((len(own),), sign))
    return mean, torch.cat(directions, 1).contiguous(), torch.cat(signs)


def second(channels: Tensor, layer: Second, signs: Tensor, mirror: bool) -> tuple[Tensor, Tensor]:
    """Learn atoms of patches of channels, (drawing, row, column, channel); as `dictionary`."""
    generator = torch.Generator().manual_seed(layer.seed)
    side, count = layer.side, channels.shape[3]
    cut = channels.unfold(1, side, 1).unfold(2, side, 1).permute(0, 1, 2, 4, 5, 3)
    cut = cut.reshape(-1, side * side * count)
    chosen = torch.randint(0, len(cut), (min(_SECOND_PATCHES, len(cut)),), generator=generator)
    patches = cut[chosen]
    patches = patches / (patches.square().mean(1, keepdim=True) + 0.01).sqrt()

    def turned(rows: Tensor) -> Tensor:
        return (rows.reshape(-1, side, side, count).flip(2) * signs).reshape(len(rows), -1)

    filters, offset = _learnt(patches, layer.atoms, turned if mirror else None, generator)
    return filters.reshape(-1, side, side, count).permute(0, 3, 1, 2).contiguous(), offset


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


def principal_directions(
    features: Tensor, directions: int, ridge: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the mean, and principal directions divided by their deviations.

    By subspace iteration, which takes a fraction of the time of all eigenvectors; the last
    directions are approximate, and as good.
    """
    mean = features.mean(0)
    centred = features - mean
    size = features.shape[1]
    wanted = min(directions, size)
    covariance = centred.T @ centred / len(centred)
    total = float(covariance.diagonal().sum())
    if size <= 1500 or 2 * wanted > size:
        values, vectors = torch.linalg.eigh(covariance)
    else:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(size, min(size, wanted + 100), generator=generator)
        basis = torch.linalg.qr(covariance @ start).Q
        for _ in range(4):
            basis = torch.linalg.qr(covariance @ basis).Q
        values, inner = torch.linalg.eigh(basis.T @ (covariance @ basis))
        vectors = basis @ inner
    values, vectors = values.flip(0)[:wanted].clamp_min(0), vectors.flip(1)[:, :wanted]
    # A ridge keeps directions in which drawings hardly vary from being blown up.
    return mean, (vectors / (values + ridge * total).clamp_min(1e-30).sqrt()).contiguous()


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
