"""Short forms that the entries of the registry share."""

from __future__ import annotations

from noisewise.datasets.registry import Checksum, RemoteFile, Source

__all__ = ["CC_BY", "GITHUB", "UCI", "archive", "california", "idx", "plain"]

UCI = "https://archive.ics.uci.edu/static/public"
GITHUB = "https://raw.githubusercontent.com"
CC_BY = "CC BY 4.0"
_CALIFORNIA = (
    "https://ndownloader.figshare.com/files/5976036",
    f"{GITHUB}/lapets/course-data-science/8b7f62812de4e3bd86bbc7879f65691e1775d1c9/cal_housing.data",
)
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def archive(layout: str, url: str, *members: str, checksums: tuple[Checksum, ...] = ()) -> Source:
    """One archive; checksums, if any, are of its members in their order."""
    names = [member.rsplit(">", 1)[-1] for member in members]
    pairs = tuple(zip(names, checksums, strict=False))
    return Source(layout, (RemoteFile(url, members, pairs),))


def plain(layout: str, url: str) -> Source:
    """One file that is taken as it is."""
    return Source(layout, (RemoteFile(url),))


def idx(base: str) -> Source:
    """Name the four files of MNIST and of its look-alikes."""
    return Source("idx-images", tuple(RemoteFile(f"{base}/{name}.gz") for name in _IDX))


def california(layout: str) -> tuple[Source, ...]:
    """Name the archive that scikit-learn downloads, then a plain copy of its one data file."""
    return archive(layout, _CALIFORNIA[0], "cal_housing.data"), plain(layout, _CALIFORNIA[1])
