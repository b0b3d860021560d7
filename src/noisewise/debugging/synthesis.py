"""Synthetic records: shaped like the user's example, drawn at random, never real.

Also the special records of the paper (section 3.1): points whose gradient is zero, and
one point whose gradient is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noisewise.debugging.trainer import Data, StateDict

__all__ = ["Records"]

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Records:
    """Draws records for a model, and knows the gradients of the user's loss on them."""

    model: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor
    outputs: int
    vocabulary: int

    @classmethod
    def like(cls, model: nn.Module, loss: Loss, example: tuple[Tensor, Tensor]) -> Records:
        """Take shapes and dtypes from an example of one record, or of a batch."""
        if not (
            isinstance(example, (tuple, list))
            and len(example) == 2
            and all(isinstance(part, Tensor) for part in example)
        ):
            raise TypeError(
                f"example must be a pair of tensors (x, y), a batch of which only shapes and kinds "
                f"are read; got {type(example).__name__}"
            )
        x, y = example
        if x.ndim == 0 or y.ndim == 0 or len(x) == 0 or len(x) != len(y):
            raise ValueError(
                "example must be a batch: x of shape (n, ...) and y of shape (n, ...), n >= 1; "
                f"got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        model = model.eval()
        try:
            with torch.no_grad():
                output = model(x[:1])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"the model that model_fn builds cannot take the example, of shape "
                f"{tuple(x.shape)} and {x.dtype}: {error}"
            ) from error
        tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
        vocabulary = min(tables) if tables else int(x.max()) + 1 if not x.is_floating_point() else 0
        return cls(model, loss, x[:1].clone(), y.clone(), int(output.shape[-1]), vocabulary)

    @property
    def hard_labels(self) -> bool:
        """Whether targets are class numbers."""
        return not self.y.is_floating_point()

    @property
    def probabilities(self) -> bool:
        """Whether targets are soft labels: rows of probabilities."""
        if self.hard_labels or self.y.ndim < 2 or self.y.shape[-1] < 2:
            return False
        close = torch.allclose(self.y.sum(-1), torch.ones(()).to(self.y), atol=1e-3)
        return bool((self.y >= 0).all()) and close

    @property
    def binary(self) -> bool:
        """Whether targets are zeros and ones for a binary loss."""
        return (
            not self.hard_labels
            and not self.probabilities
            and set(self.y.flatten().tolist()) <= {0.0, 1.0}
        )

    def draw(self, count: int, seed: int, scale: float = 1.0) -> Data:
        """Draw `count` records; inputs are multiplied by `scale` if they are numbers."""
        generator = torch.Generator().manual_seed(7919 * seed + 13)
        shape = (count, *self.x.shape[1:])
        if self.x.is_floating_point():
            x = torch.randn(shape, generator=generator).to(self.x) * scale
        else:
            x = torch.randint(0, self.vocabulary, shape, generator=generator).to(self.x)
        shape = (count, *self.y.shape[1:])
        if self.hard_labels:
            y = torch.randint(0, max(2, self.outputs), shape, generator=generator).to(self.y)
        elif self.probabilities:
            y = torch.softmax(2 * torch.randn(shape, generator=generator), -1).to(self.y)
        elif self.binary:
            y = torch.randint(0, 2, shape, generator=generator).to(self.y)
        else:
            y = torch.randn(shape, generator=generator).to(self.y)
        return x, y

    def losses(self, state: StateDict, data: Data) -> Tensor:
        """Return the loss of each record, in double precision."""
        state = {k: v.double() if v.is_floating_point() else v for k, v in state.items()}
        x = data[0].double() if data[0].is_floating_point() else data[0]
        y = data[1].double() if data[1].is_floating_point() else data[1]
        with torch.no_grad():
            return torch.stack(
                [self._loss(state, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
            )

    def gradient_norms(self, state: StateDict, data: Data) -> list[float]:
        """Return the norm of the gradient of each record, by autograd, one at a time."""
        norms = []
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        for i in range(len(data[0])):
            leaves = {
                name: value.detach().clone().requires_grad_(name in names)
                for name, value in state.items()
            }
            loss = self._loss(leaves, data[0][i : i + 1], data[1][i : i + 1])
            used = [leaves[name] for name in names]
            gradients = torch.autograd.grad(loss, used, allow_unused=True)
            norms.append(
                float(sum(g.double().square().sum() for g in gradients if g is not None)) ** 0.5
            )
        return norms

    def outputs_of(self, state: StateDict, x: Tensor) -> Tensor:
        """Return what the model says at the given weights."""
        with torch.no_grad():
            output: Tensor = torch.func.functional_call(self.model, state, (x,))
            return output

    def zero_gradient_batch(self, state: StateDict, count: int) -> tuple[StateDict, Data] | None:
        """Return weights and records: the first has a large gradient, the others none.

        Soft targets are set to what the model says (for squared and absolute error, and
        cross-entropy with probabilities). Hard labels need logits so far apart that the
        softmax is exactly one-hot in float32: the last layer is scaled until it is.
        ``None`` when no such batch was found.
        """
        x, y = self.draw(count, seed=97)
        if self.hard_labels:
            return self._saturated(state, x, y)
        output = self.outputs_of(state, x).to(y)
        if output.shape != y.shape:
            return None
        if self.probabilities:
            target = torch.softmax(output, -1)
            target[0] = torch.softmax(-10 * output[0], -1)
        elif self.binary:
            target = torch.sigmoid(output)
            target[0] = torch.sigmoid(-10 * output[0])
        else:
            target = output.clone()
            target[0] = -10 * output[0]
        return self._verified(state, (x, target))

    def _saturated(self, state: StateDict, x: Tensor, y: Tensor) -> tuple[StateDict, Data] | None:
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        last = [name for name in names if state[name].ndim >= 2][-1:]
        for factor in (1e2, 1e3, 1e4, 1e5):
            scaled = {k: v * factor if k in last else v.clone() for k, v in state.items()}
            output = self.outputs_of(scaled, x)
            if output.shape[:-1] != y.shape:
                return None
            labels = output.argmax(-1).to(y)
            labels[0] = output[0].argmin(-1).to(y)
            found = self._verified(scaled, (x, labels))
            if found is not None:
                return found
        return None

    def _verified(self, state: StateDict, data: Data) -> tuple[StateDict, Data] | None:
        norms = self.gradient_norms(state, data)
        large, others = norms[0], max(norms[1:])
        return (state, data) if large > 0 and others < 1e-5 * large else None

    def _loss(self, state: StateDict, x: Tensor, y: Tensor) -> Tensor:
        output = torch.func.functional_call(self.model, state, (x,))
        return self.loss(output, y).mean()
