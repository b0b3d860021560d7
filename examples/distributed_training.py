"""Several processes that take one private step together.

Run: ``torchrun --nproc-per-node 2 examples/distributed_training.py``. Every worker is given the
whole dataset and draws from its own part of it. Worker 0 adds the noise once and prints the
statement.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from noisewise.gradients import Factored
from noisewise.training import Plan, fit


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" on graphics cards
    torch.manual_seed(0)
    x = torch.randn(5000, 10)
    y = (x[:, :3].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    plan = Plan(gradients=Factored(1.0), epsilon=2.0, epochs=4, batch_size=500)
    fitted = fit(
        model,
        (x, y),
        plan,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02),
        metrics=False,
        progress=False,
    )
    if dist.get_rank() == 0:
        print(fitted.statement())
    total = torch.cat([p.detach().flatten() for p in model.parameters()]).sum()
    print(f"worker {dist.get_rank()}: sum of all weights {total:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
