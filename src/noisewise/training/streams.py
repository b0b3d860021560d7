"""Where a run's noise and batches come from, step by step.

A secret run has one generator keyed from the operating system; nothing of it is ever stored.
A seeded run derives an independent generator for every (purpose, step, worker): what step k
draws depends on nothing but the seed, the run's name and k. So a resumed run repeats exactly
what it would have drawn, and no number is ever used for two different steps.
"""

from __future__ import annotations

from noisewise.privacy import Randomness

__all__ = ["Streams"]


class Streams:
    """Generators of one run.

    Parameters
    ----------
    seed : int or None
        None: secret.
    name : str
        Of the run: two runs of one program with the same seed differ by it.
    worker : int
        Of a distributed run: workers draw their batches independently.
    """

    def __init__(self, seed: int | None, name: str = "training", worker: int = 0) -> None:
        self._seed = seed
        self._name = name
        self._worker = worker
        self._secret = Randomness.secure() if seed is None else None

    @property
    def is_secret(self) -> bool:
        """Whether the numbers cannot be known by anybody."""
        return self._seed is None

    @property
    def description(self) -> str:
        """For the statement."""
        if self._secret is not None:
            return self._secret.description
        assert self._seed is not None
        return Randomness.seeded(self._seed).description

    def noise(self, step: int) -> Randomness:
        """Generator of the noise of a step; the same on every worker, used by one."""
        return self._secret or self._derived("noise", step, 0)

    def batch(self, step: int) -> Randomness:
        """Generator of the batch of a step, this worker's own."""
        return self._secret or self._derived("batch", step, self._worker)

    def _derived(self, purpose: str, step: int, worker: int) -> Randomness:
        label = f"noisewise/training/1/{self._seed}/{len(self._name)}:{self._name}"
        return Randomness.seeded(f"{label}/{purpose}/{step}/{worker}".encode())
