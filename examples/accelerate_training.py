"""Hugging Face Accelerate: ``accelerate launch examples/accelerate_training.py``.

Accelerate prepares model, optimizer, loader and schedule as in any program. noisewise draws the
batches from the loader's dataset, bounds every record and adds the noise.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from noisewise.accelerate import make_private
from noisewise.gradients import Clipped
from noisewise.training import Plan


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    x = torch.randn(3000, 10)
    y = (x[:, :3].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    loader = DataLoader(TensorDataset(x, y), batch_size=300, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    plan = Plan(gradients=Clipped(1.0), epsilon=3.0, epochs=4, batch_size=300)
    run = make_private(accelerator, model, optimizer, nn.CrossEntropyLoss(), loader, plan)
    for inputs, targets in run.loader:
        optimizer.zero_grad()
        accelerator.backward(run.loss(run.model(inputs), targets))
        optimizer.step()
        schedule.step()
    accelerator.print(run.statement())


if __name__ == "__main__":
    main()
