"""The arithmetic in which weights and records are measured and summed.

Why it matters: docs/proofs/contract.md#numbers.

A certificate counts on the roundings of float32 where it uses that type. A record's norm and
its share of the sum must agree to the slack on every sensitivity, 1e-3. TF32 keeps eleven bits
and bfloat16 eight, so neither may reach a norm or a sum; torch uses TF32 for convolutions on a
GPU unless told otherwise. Bounds that were propagated through a model hold for the model as it
computes, so there the same goes for its own layers.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch

from noisewise.errors import UnsoundError

__all__ = [
    "check_full_precision",
    "full_float32",
    "full_precision",
    "is_full",
    "require_strict_libraries",
]

#: Where torch keeps the precision of float32 kernels, from version 2.9 on.
_SWITCHES = {
    "cpu": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
    "cuda": ("cuda.matmul", "cudnn.conv", "cudnn.rnn"),
}
_FULL = ("ieee", "none")
#: Variables of the environment by which libraries below torch compute float32 in less, which no
#: switch of torch shows; each with the values under which they do not.
_VARIABLES = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "DNNL_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "NVIDIA_TF32_OVERRIDE": ("", "0"),
}


def full_precision(device: str) -> contextlib.AbstractContextManager[None]:
    """Compute float32 in float32 on devices of this type, whatever autocast says."""
    # Asked by every layer of every step, and nearly always in force already.
    return _NOTHING if is_full(device) else _full_precision(device)


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def is_full(device: str) -> bool:
    """Whether float32 is computed in float32 already."""
    return not _autocast(device) and not _reduced(device)


@contextlib.contextmanager
def _full_precision(device: str) -> Iterator[None]:
    with full_float32(device), contextlib.ExitStack() as stack:
        if _autocast(device):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def full_float32(device: str) -> Iterator[None]:
    """Forbid kernels that take float32 and compute in TF32 or bfloat16."""
    with contextlib.ExitStack() as stack:
        for switch, name, full in _reduced(device):
            stack.callback(setattr, switch, name, getattr(switch, name))
            setattr(switch, name, full)
        yield


def require_strict_libraries() -> None:
    """Refuse an environment in which libraries below torch round float32 as they like.

    They read it when they are first used, so nothing that is set later would help.

    Raises
    ------
    UnsoundError
    """
    for name, strict in _VARIABLES.items():
        value = os.environ.get(name, "")
        if value.upper() not in strict:
            raise UnsoundError(
                f"the environment says {name}={value}, by which kernels may compute float32 in "
                "bfloat16 or TF32 without torch knowing. What they round is more than any "
                f"sensitivity allows for. Start the program without {name}."
            )


def check_full_precision(device: str, what: str) -> None:
    """Refuse to run a model under autocast where bounds hold for its exact arithmetic."""
    if _autocast(device):
        raise RuntimeError(
            f"{what} bounds what the model computes, and under autocast it computes something "
            "else: run it outside torch.autocast, or use noisewise.Clipped, which measures "
            "every record as it is"
        )


def _autocast(device: str) -> bool:
    """Whether autocast is on; torch refuses to answer for devices that have none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _reduced(device: str) -> list[tuple[Any, str, Any]]:
    """Return the switches that permit less than float32, each with the value that forbids it."""
    switches = _switches(device)
    if switches is None:
        return _reduced_before_2_9(device)
    return [(s, "fp32_precision", "ieee") for s in switches if s.fp32_precision not in _FULL]


@functools.cache
def _switches(device: str) -> tuple[Any, ...] | None:
    """Return those of a device; None before version 2.9."""
    if _at("mkldnn.matmul") is None:
        return None
    found = (_at(path) for path in _SWITCHES.get(device, ()))
    return tuple(switch for switch in found if switch is not None)


def _reduced_before_2_9(device: str) -> list[tuple[Any, str, Any]]:
    if device == "cuda":
        switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
        return [(s, "allow_tf32", False) for s in switches if s.allow_tf32]
    if torch.get_float32_matmul_precision() != "highest":
        return [(_MatmulPrecision(), "value", "highest")]
    return []


class _MatmulPrecision:
    """The older switch, which is a pair of functions, as an attribute."""

    @property
    def value(self) -> str:
        return torch.get_float32_matmul_precision()

    @value.setter
    def value(self, precision: str) -> None:
        torch.set_float32_matmul_precision(precision)


def _at(path: str) -> Any:
    found: Any = torch.backends
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if hasattr(found, "fp32_precision") else None
