"""Three hospitals train one model, and nobody sees anybody's gradients.

Run: ``torchrun --nproc-per-node 3 examples/federated_training.py``. Every process is a hospital
with records of its own. In each step it bounds the gradient of every record, adds them up, rounds
the sum to a public grid, adds noise of its own, and masks the result; masks cancel in the sum over
all hospitals (secure aggregation). What the others say in between is public: any of them can play
the server. Each adds the full noise, so epsilon holds even if the two others put all they know
together; then the noise of the whole is three times as large in variance as that of a curator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from noisewise.federated import MaskedAggregator
from noisewise.federated.masking import MaskingClient, MaskingServer, Session
from noisewise.federated.sharing.additive import as_signed
from noisewise.gradients import Clipped, bounded_sum
from noisewise.privacy import Sensitivity, ZeroConcentrated
from noisewise.privacy.randomness import Randomness
from noisewise.release import MemoryAccount, Promise, Query
from noisewise.release.shares import SharedBlock, with_share

STEPS, RATE, DELTA, RHO = 25, 0.5, 1e-6, 0.06  # RHO: zero-concentrated privacy of all steps
GRID = 2.0**-16  # sums of gradients are rounded to it, so that noise and masks are whole numbers


@dataclass(frozen=True)
class StepNoise:
    """Discrete Gaussian noise on one step, in full from every hospital."""

    planned: Sensitivity
    block: SharedBlock
    event: ZeroConcentrated
    description: str = "discrete Gaussian noise on sums of clipped gradients"
    assumptions: tuple[str, ...] = ()

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """What it was planned for."""
        return (self.planned,)

    def draw_share(self, rng: Randomness) -> Any:
        """Draw this hospital's noise."""
        return self.block.draw_share(rng)


def told(message: Any) -> list[Any]:
    """Tell everybody something; return what everybody said."""
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, message)
    return said


class Hospital:
    """One party: its signing key, and those of the others."""

    def __init__(self) -> None:
        self.number, self.key = dist.get_rank() + 1, Ed25519PrivateKey.generate()
        public = told(self.key.public_key().public_bytes_raw())  # in earnest: read from paper
        self.keys = {i: Ed25519PublicKey.from_public_bytes(k) for i, k in enumerate(public, 1)}

    def signed(self, party: int, signature: bytes, data: bytes) -> bool:
        """Whether a hospital signed this."""
        try:
            self.keys[party].verify(signature, data)
        except Exception:
            return False
        return True

    def summed(self, vector: Any, step: int) -> Any:
        """Return the sum of all hospitals' vectors, and show nothing else."""
        parties = len(self.keys)
        session = Session(step.to_bytes(16, "big"), parties, parties, vector.size, parties - 1)
        client = MaskingClient(self.number, session, sign=self.key.sign, roll=self.signed)
        server = MaskingServer(session, self.signed)  # everybody plays it, on what everybody hears
        for advertisement in told(client.advertise()):
            server.take_advertisement(advertisement)
        for sender, sealed in enumerate(told(client.share(server.advertisements())), 1):
            server.take_shares(sender, sealed)
        for masked in told(client.mask(server.inbox(self.number), vector)):
            server.take_vector(masked)
        for confirmation in told(client.confirm(server.arrived())):
            server.take_confirmation(confirmation)
        for revelation in told(client.reveal(server.confirmations())):
            server.take_revelation(revelation)
        return as_signed(server.total())


def main() -> None:
    dist.init_process_group("gloo")
    hospital, parties = Hospital(), dist.get_world_size()
    torch.manual_seed(dist.get_rank())
    x = torch.randn(600, 10)  # this hospital's records
    y = (x[:, :3].sum(1) > 0).long()
    torch.manual_seed(7)  # the same first weights everywhere
    model, loss, clipped = nn.Linear(10, 2), nn.CrossEntropyLoss(), Clipped(1.0)
    size = sum(p.numel() for p in model.parameters())

    def grid_sum(records: Any) -> Any:
        found = bounded_sum(model, loss, *records, clipped).gradients
        flat = torch.cat([found[name].flatten() for name, _ in model.named_parameters()])
        return (flat.double() / GRID).round().long().numpy()

    bound = bounded_sum(model, loss, x[:0], y[:0], clipped).groups[0].sensitivity
    one = Sensitivity(bound / GRID + math.sqrt(size), "l2")  # a rounded number moves by one more
    variance = Fraction(math.ceil(one.value**2 * STEPS / (2 * RHO)))
    noise = StepNoise(
        one,
        SharedBlock("gaussian", variance, size, contributors=parties, honest=1),
        ZeroConcentrated(one.value**2 / (2 * float(variance))),
    )
    account, rng = MemoryAccount(), Randomness.secure()
    query = Query.of(grid_sum, one, "gradients of one step")
    for step in range(STEPS):
        mine = with_share(query, noise, (x, y), rng, account)
        gradient = torch.tensor(hospital.summed(mine, step)).double() * GRID / (600 * parties)
        with torch.no_grad():
            weights = parameters_to_vector(model.parameters())
            vector_to_parameters(weights - RATE * gradient.float(), model.parameters())
    right = torch.tensor(float((model(x).argmax(1) == y).sum()))
    dist.all_reduce(right)  # of made-up records: the share that is printed is not private
    if dist.get_rank() == 0:
        threat = MaskedAggregator(parties, parties - 1, parties=parties).threat
        promise = Promise(
            account.history, DELTA, noise.description, query.relation, rng.description,
            assumptions=threat.sentences,
        )  # fmt: skip
        print(promise.state())
    print(f"hospital {hospital.number}: sum of all weights {weights_sum(model):.6f}")
    print(f"right: {right.item() / 600 / parties:.3f}")
    dist.barrier()  # nobody leaves while others still speak
    dist.destroy_process_group()


def weights_sum(model: nn.Module) -> float:
    return float(parameters_to_vector(model.parameters()).detach().sum())


if __name__ == "__main__":
    main()
