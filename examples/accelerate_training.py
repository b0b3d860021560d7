"""Hugging Face Accelerate: ``accelerate launch examples/accelerate_training.py``.

Accelerate chooses the device and starts the processes; noisewise draws the batches, adds the
workers' sums and the noise. So the model, the optimizer and the data are *not* prepared by
Accelerate, which would shuffle batches and average gradients that are not bounded.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from noisewise.gradients import Clipped
from noisewise.training import Plan, make_private


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    x = torch.randn(3000, 10)
    y = (x[:, :3].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)).to(accelerator.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    plan = Plan(gradients=Clipped(1.0), epsilon=3.0, epochs=4, batch_size=300)
    run = make_private(
        model, optimizer, nn.CrossEntropyLoss(), (x, y), plan, device=accelerator.device
    )
    for inputs, targets in run.loader:
        optimizer.zero_grad()
        accelerator.backward(run.loss(run.model(inputs), targets))
        optimizer.step()
    accelerator.print(run.statement())


if __name__ == "__main__":
    main()
