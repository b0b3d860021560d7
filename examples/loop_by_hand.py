"""Your own loop, made private: three lines change. Run: ``python examples/loop_by_hand.py``."""

from __future__ import annotations

import torch
from torch import nn

from noisewise.gradients import Clipped
from noisewise.training import Plan, make_private


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(5000, 10)
    y = (x[:, :3].sum(1) > 0).long()

    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = nn.CrossEntropyLoss()

    plan = Plan(gradients=Clipped(1.0, per="layer"), epsilon=2.0, epochs=8, batch_size=500)
    run = make_private(model, optimizer, loss, (x, y), plan)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, run.steps)
    for inputs, targets in run.loader:
        run.optimizer.zero_grad()
        run.loss(run.model(inputs), targets).backward()
        run.optimizer.step()
        scheduler.step()

    print(run.statement())
    fresh = torch.randn(2000, 10)  # made up, hence public: its accuracy may be shown
    right = model(fresh).argmax(1) == (fresh[:, :3].sum(1) > 0).long()
    print(f"accuracy on public records: {right.float().mean():.3f}")


if __name__ == "__main__":
    main()
