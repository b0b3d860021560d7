"""Lightning: manual optimisation, with noisewise's loader and step.

Run: ``python examples/lightning_training.py``. Lightning keeps the trainer, the logger and the
callbacks; noisewise draws the batches and takes the private step.
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn

from noisewise.gradients import Clipped
from noisewise.training import Plan, PrivateLoader, make_private


class PrivateModule(lightning.LightningModule):
    """A LightningModule whose training step is private."""

    def __init__(self, data: tuple[Tensor, Tensor], plan: Plan) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.Adam(self.network.parameters(), lr=0.02)
        self.run = make_private(self.network, optimizer, nn.CrossEntropyLoss(), data, plan)

    def configure_optimizers(self) -> None:
        """The run holds the optimizer, so that no step can be taken without noise."""

    def train_dataloader(self) -> PrivateLoader:
        """Poisson batches for all steps of the plan."""
        assert self.run.loader is not None
        return self.run.loader

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Take one private step."""
        self.run.step(*batch)

    def on_train_end(self) -> None:
        """Tell what was promised."""
        print(self.run.statement())


def main() -> PrivateModule:
    torch.manual_seed(0)
    x = torch.randn(3000, 10)
    y = (x[:, :3].sum(1) > 0).long()
    plan = Plan(gradients=Clipped(1.0), epsilon=3.0, epochs=4, batch_size=300)
    module = PrivateModule((x, y), plan)
    trainer = lightning.Trainer(
        max_epochs=1,  # the loader holds the steps of all epochs
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)
    return module


if __name__ == "__main__":
    main()
