"""Operations of torch whose kernels somebody else has replaced (`torch.library`).

What such a kernel does happens below every mode, so torch's own rules do not speak for it.
"""

from __future__ import annotations

import torch

from noisewise.separation.origin import is_torchs

__all__ = ["replaced"]

#: Every kernel that was registered in Python: operation and key of dispatch.
_REGISTERED: set[str] = getattr(torch.library, "_impls", set())
_SEEN: list[tuple[int, frozenset[str]]] = [(-1, frozenset())]


def replaced() -> frozenset[str]:
    """Names of those operations, as ``tanh`` or ``tanh.out``."""
    count, found = _SEEN[0]
    if count != len(_REGISTERED):
        kernels = [tuple(kernel.split("/")) for kernel in list(_REGISTERED)]
        found = frozenset(
            name for space, name, key in kernels if space == "aten" and _is_foreign(name, key)
        )
        _SEEN[0] = len(_REGISTERED), found
    return found


def _is_foreign(name: str, key: str) -> bool:
    """Whether a kernel that computes something was registered outside of torch."""
    if key == "Meta":
        return False
    for line in torch._C._dispatch_dump(f"aten::{name}").splitlines():
        kernel, _, origin = line.partition(": registered at ")
        if kernel.strip() == key:
            return not (is_torchs(origin) or "/pytorch/" in origin)
    return False
