"""Lightning: an ordinary module, trained privately by a callback.

Run: ``python examples/lightning_training.py``.
"""

from __future__ import annotations

import tempfile

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from noisewise.gradients import Clipped
from noisewise.lightning import PrivateTraining
from noisewise.training import Plan


class Module(lightning.LightningModule):
    """Nothing in it knows of privacy."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        output: Tensor = self.network(x)
        return output

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Train without privacy; the callback takes its place."""
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return any optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(3000, 10)
    loader = DataLoader(TensorDataset(x, (x[:, :3].sum(1) > 0).long()), batch_size=300)
    plan = Plan(gradients=Clipped(1.0), epsilon=3.0, epochs=4, batch_size=300)
    private = PrivateTraining(plan, nn.CrossEntropyLoss())
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            callbacks=[private],
            default_root_dir=folder,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), loader)
    print(private.statement())


if __name__ == "__main__":
    main()
