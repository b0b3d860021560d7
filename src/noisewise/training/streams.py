"""Where a run's noise and batches come from, step by step.

A secret run has one generator keyed from the operating system; nothing of it is ever stored.
A seeded run derives an independent generator for every (purpose, step, worker): what step k
draws depends on nothing but the seed, the run's name and k. So a resumed run repeats exactly
what it would have drawn, and no number is ever used for two different steps. A seeded run may be
bound to something that must not be shown, such as a hash of its records: another run of the same
seed and name then draws other numbers, and no description, plan, checkpoint or statement tells.
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
    bound_to : bytes
        Goes into every generator of a seeded run, and nowhere else.
    """

    def __init__(
        self, seed: int | None, name: str = "training", worker: int = 0, bound_to: bytes = b""
    ) -> None:
        self._seed = seed
        self._name = name
        self._worker = worker
        self._bound_to = bytes(bound_to)
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
        described = Randomness.seeded(self._seed).description
        return described.replace("):", " and the records):", 1) if self._bound_to else described

    def noise(self, step: int) -> Randomness:
        """Generator of the noise of a step; the same on every worker, used by one."""
        return self._secret or self._derived("noise", step, 0)

    def batch(self, step: int) -> Randomness:
        """Generator of the batch of a step, this worker's own."""
        return self._secret or self._derived("batch", step, self._worker)

    def choice(self, step: int) -> Randomness:
        """Generator of a choice among the rows of a unit; step -1: of one for all steps."""
        return self._secret or self._derived("rows of units", step, 0)

    def _derived(self, purpose: str, step: int, worker: int) -> Randomness:
        label = f"noisewise/training/1/{self._seed}/{len(self._name)}:{self._name}"
        text = f"{label}/{purpose}/{step}/{worker}".encode()
        return Randomness.seeded(text + b"/" + self._bound_to if self._bound_to else text)
