"""The cipher: AES-256 in counter mode as an endless stream of random bytes.

The stream is the encryption of zeros (NIST SP 800-38A, section 6.5), so its bytes
are indistinguishable from uniform ones to anybody without the key. Every key is
used for at most ``BLOCKS_PER_KEY`` blocks and then replaced, so no counter value is
ever used twice under one key, and the distance from uniform (the birthday bound of
a permutation, n^2 / 2^129) stays below 2^-72 for each key.

A process that forks shares its memory with its child. The child never continues
the parent's stream: a secret stream takes a new key from the operating system, a
seeded one derives a key from the parent's and from how many forks the parent had made.
"""

from __future__ import annotations

import hmac
import os
import threading
import weakref

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from noisewise.errors import NoisewiseError

__all__ = [
    "BLOCK",
    "BLOCKS_PER_KEY",
    "SLACK",
    "Keystream",
    "RandomnessError",
    "counter_mode",
    "derive",
]

BLOCK = 16
BLOCKS_PER_KEY = 2**28
# `update_into` may ask for a buffer that is one block longer than what it writes.
SLACK = BLOCK
_CHUNK = 1 << 18
_ZEROS = memoryview(bytes(_CHUNK))


class RandomnessError(NoisewiseError, RuntimeError):
    """A use of a random generator that could repeat or reveal its numbers."""


class _Forks:
    """Counts the forks of this process, and parts every stream of a child from its parent's."""

    def __init__(self) -> None:
        self.count = 0
        self.streams: weakref.WeakSet[Keystream] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        self.count += 1

    def _in_child(self) -> None:
        index, self.count = self.count, 0
        for stream in list(self.streams):
            stream.leave_parent(index)


def derive(key: bytes, label: str, *numbers: int) -> bytes:
    """Return the key of an independent stream: HMAC-SHA256 of a label under `key`."""
    message = "/".join([label, *(str(number) for number in numbers)])
    return hmac.digest(key, message.encode(), "sha256")


def counter_mode(key: bytes, counter: int) -> CipherContext:
    """Return AES-256 in counter mode (NIST SP 800-38A), starting at a counter block."""
    mode = modes.CTR(counter.to_bytes(BLOCK, "big"))
    return Cipher(algorithms.AES256(key), mode).encryptor()


class Keystream:
    """A stream of cipher bytes under keys that are replaced in time.

    Whoever uses it from several threads holds its `lock`.

    Parameters
    ----------
    root : bytes or None
        The key from which the keys of a reproducible stream are derived. ``None``
        takes every key from the operating system.
    epoch, block : int
        The position: how many keys were used up, and how many 16-byte blocks of the
        current one.
    """

    def __init__(self, root: bytes | None, epoch: int = 0, block: int = 0) -> None:
        self._root = root
        self._epoch = epoch
        self._block = block
        self._cipher: CipherContext | None = None
        self._pid = os.getpid()
        self._process = object()
        self.lock = threading.RLock()
        _FORKS.streams.add(self)

    @property
    def root(self) -> bytes | None:
        """The key of a reproducible stream; ``None`` for a secret one."""
        return self._root

    @property
    def position(self) -> tuple[int, int]:
        """How many keys were used up, and how many blocks of the current one."""
        return self._epoch, self._block

    @property
    def process(self) -> object:
        """Stands for the process whose numbers these are: another one after every fork."""
        if os.getpid() != self._pid:
            self._leave_unseen_parent()
        return self._process

    def fill(self, buffer: NDArray[np.uint8], size: int) -> None:
        """Write `size` bytes, rounded up to whole blocks, to the front of `buffer`.

        The buffer must be ``SLACK`` bytes longer than the rounded size.
        """
        if os.getpid() != self._pid:
            self._leave_unseen_parent()
        start, stop = 0, -(-size // BLOCK) * BLOCK
        target = buffer.data
        while start < stop:
            if self._block == BLOCKS_PER_KEY:
                self._epoch, self._block, self._cipher = self._epoch + 1, 0, None
            if self._cipher is None:
                self._cipher = self._open()
            left = (BLOCKS_PER_KEY - self._block) * BLOCK
            take = min(stop - start, left, _CHUNK)
            # Counted before it is written, and opened anew at the count after an
            # exception: an interrupt wastes numbers instead of repeating them.
            self._block += take // BLOCK
            try:
                self._cipher.update_into(_ZEROS[:take], target[start : start + take + SLACK])
            except BaseException:
                self._cipher = None
                raise
            start += take

    def begin(self, root: bytes) -> None:
        """Go on with another reproducible stream, from its beginning."""
        self._root, self._epoch, self._block, self._cipher = root, 0, 0, None

    def leave_parent(self, index: int) -> None:
        """Part from the stream of the parent process, of whose forks this is the `index`-th."""
        if self._root is not None:
            self._root = derive(self._root, "fork", index, self._epoch, self._block)
        self._epoch, self._block, self._cipher = 0, 0, None
        self._pid, self._process = os.getpid(), object()
        # Another thread of the parent may have held the old lock; it does not exist here.
        self.lock = threading.RLock()

    def _leave_unseen_parent(self) -> None:
        if self._root is not None:
            raise RandomnessError(
                "a seeded generator was carried into another process by a fork that Python did "
                "not see, so its numbers would repeat those of the parent. Create the generator "
                "in the process that uses it, with a seed of its own."
            )
        self.leave_parent(0)

    def _open(self) -> CipherContext:
        if self._root is None:
            key, counter = os.urandom(32), 0
            self._block = 0
        else:
            key, counter = derive(self._root, "key", self._epoch), self._block
        return counter_mode(key, counter)


_FORKS = _Forks()
