"""Take raw files out of what was downloaded: zip, tar and gzip, also nested.

Nothing is written to disk and no path inside an archive is trusted: members are found
by their last name and read into memory, never beyond a limit, so that a small archive
cannot unpack into a large one.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from typing import Protocol

from noisewise.datasets.registry import RemoteFile
from noisewise.errors import DatasetError

__all__ = ["LIMIT", "unpack"]

# The largest raw file we read is a CIFAR-10 batch or MNIST's images, below 50 MB.
LIMIT = 512 * 1024 * 1024


def unpack(remote: RemoteFile, content: bytes, *, limit: int = LIMIT) -> dict[str, bytes]:
    """Return the raw files of one download by their last names, checksums verified."""
    basename = remote.name or remote.url.split("?")[0].rsplit("/", 1)[-1]
    try:
        if remote.members:
            files = {
                member.rsplit(">", 1)[-1]: _extract(content, member.split(">"), limit)
                for member in remote.members
            }
        elif basename.endswith(".gz"):
            with gzip.open(io.BytesIO(content)) as stream:
                files = {basename.removesuffix(".gz"): _read(stream, basename, limit)}
        else:
            files = {basename: content}
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise DatasetError(f"{remote.url} is not a readable archive: {error}") from error
    for name, checksum in remote.checksums:
        if not checksum.matches(files[name]):
            raise DatasetError(
                f"{name} from {remote.url} does not have the {checksum.algorithm} "
                f"{checksum.digest} of the published file; it was not used"
            )
    return files


def _extract(content: bytes, path: list[str], limit: int) -> bytes:
    for name in path:
        content = _member(content, name, limit)
    return content


def _member(content: bytes, name: str, limit: int) -> bytes:
    """One member of a zip or tar archive, found by its last name."""
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                if entry.filename.rsplit("/", 1)[-1] == name:
                    with archive.open(entry) as stream:
                        return _read(stream, name, limit)
    else:
        with tarfile.open(fileobj=io.BytesIO(content)) as bundle:
            for item in bundle:
                if item.isfile() and item.name.rsplit("/", 1)[-1] == name:
                    extracted = bundle.extractfile(item)
                    if extracted is not None:
                        return _read(extracted, name, limit)
    raise DatasetError(f"the downloaded archive holds no file {name!r}")


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read(stream: _Stream, name: str, limit: int) -> bytes:
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise DatasetError(f"{name} unpacks to more than {limit} bytes; it was not used")
    return content
