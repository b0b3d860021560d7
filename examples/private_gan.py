"""A generator of pictures of clothes that learnt from private ones through a private discriminator.

Run: ``python examples/private_gan.py`` (a few minutes on one core; ``--steps 5`` to look at it).

Only the discriminator sees pictures, and its steps are private. The generator learns from the
discriminator alone, so it and everything that it draws are covered by the same statement.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.datasets import load_images
from noisewise.gradients import Clipped
from noisewise.training import Plan, PrivateRun, make_private

NOISE = 32


def generator() -> nn.Module:
    """From noise to pictures of 28 x 28."""
    return nn.Sequential(
        nn.Linear(NOISE, 32 * 7 * 7),
        nn.ReLU(),
        nn.Unflatten(1, (32, 7, 7)),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
        nn.Tanh(),
    )


class Discriminator(nn.Module):
    """Tells real pictures from the generator's. A record brings one of each.

    The generator in here is a frozen copy: a step of the discriminator changes only what judges.
    """

    def __init__(self, drawing: nn.Module) -> None:
        super().__init__()
        self.judge = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 1),
        )
        self.drawing = copy.deepcopy(drawing).requires_grad_(False)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Judge pictures, and as many made-up ones."""
        made_up = self.drawing(torch.randn(len(pictures), NOISE))
        return self.judge(pictures), self.judge(made_up)

    def follow(self, drawing: nn.Module) -> None:
        """Take over the weights of the generator."""
        with torch.no_grad():
            for mine, new in zip(self.drawing.parameters(), drawing.parameters(), strict=True):
                mine.copy_(new)


def discriminator_losses(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """One loss per record: its own picture is real, the one beside it is not."""
    real, made_up = output
    return (functional.softplus(-real) + functional.softplus(made_up))[:, 0]


def pictures() -> Tensor:
    """Fashion-MNIST, from -1 to 1; the range is public."""
    x = torch.from_numpy(load_images("fashion_mnist").x_train)
    return x.reshape(-1, 1, 28, 28).float() / 127.5 - 1


def train(x: Tensor, plan: Plan) -> tuple[nn.Module, PrivateRun]:
    """Train both; the generator takes one step after each of the discriminator's."""
    torch.manual_seed(0)
    drawing = generator()
    discriminator = Discriminator(drawing)
    optimizer = torch.optim.Adam(discriminator.judge.parameters(), lr=5e-4, betas=(0.5, 0.9))
    of_drawing = torch.optim.Adam(drawing.parameters(), lr=5e-4, betas=(0.5, 0.9))
    labels = torch.ones(len(x))
    run = make_private(discriminator, optimizer, discriminator_losses, (x, labels), plan)
    assert run.loader is not None
    for real, target in run.loader:
        run.step(real, target)
        # From here on no picture is involved. Gradients of the generator alone are asked for, so
        # that none is left at the discriminator.
        judged = discriminator.judge(drawing(torch.randn(64, NOISE)))
        loss = functional.softplus(-judged).mean()
        found = torch.autograd.grad(loss, list(drawing.parameters()))
        for parameter, gradient in zip(drawing.parameters(), found, strict=True):
            parameter.grad = gradient
        of_drawing.step()
        discriminator.follow(drawing)
    return drawing, run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    x = pictures()
    plan = Plan(gradients=Clipped(1.0), epsilon=8.0, steps=steps, batch_size=256, delta=1e-5)
    drawing, run = train(x, plan)
    print(run.statement())
    with torch.no_grad():
        drawn = drawing(torch.randn(64, NOISE))
    print(f"64 pictures drawn, mean brightness {float(drawn.mean()):.3f}")


if __name__ == "__main__":
    main()
