"""What a training loop may do wrong; everything else is in :mod:`noisewise.errors`."""

from __future__ import annotations

from noisewise.errors import NoisewiseError

__all__ = ["CheckpointError", "StepError"]


class StepError(NoisewiseError, RuntimeError):
    """Forward, backward and step in an order that is not one private step. Nothing was spent."""


class CheckpointError(NoisewiseError, RuntimeError):
    """A checkpoint that is missing, damaged or of another run."""
