"""One loss per record, from models that compute a loss of their own.

A Hugging Face model that is given labels returns the mean over all tokens of a batch, so that one
record's share depends on how many tokens the others have. What is wanted is each record's own loss:
what the model returns for a batch of that record alone. Which of the usual losses that is, the
model is asked: on made-up records, its own loss is compared with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["IGNORED", "RecordLoss", "next_token_losses", "own_loss", "recognised_loss"]

RecordLoss = Callable[[Any, Any], Tensor]

#: The label of a token that does not count, as everywhere in Hugging Face's models.
IGNORED = -100
_TRIALS = 3


def class_losses(output: Any, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of one label per record."""
    return functional.cross_entropy(
        output["logits"].float(), labels.reshape(-1), reduction="none", label_smoothing=smoothing
    )


def token_losses(output: Any, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of one label per token, the mean over the record's labelled tokens."""
    values = functional.cross_entropy(
        output["logits"].float().transpose(1, 2),
        labels,
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    means: Tensor = values.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)
    return means


def next_token_losses(output: Any, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of the next token, the mean over the record's labelled tokens."""
    # Logits beyond the labels belong to prompts that the model put in front of the text.
    logits = output["logits"][:, -labels.shape[1] :]
    return token_losses({"logits": logits[:, :-1]}, labels[:, 1:], smoothing)


def squared_losses(output: Any, labels: Tensor) -> Tensor:
    """Squared error, the mean over a record's outputs."""
    logits = output["logits"].flatten(1)
    errors: Tensor = logits - labels.reshape(logits.shape).to(logits.dtype)
    return errors.square().mean(1)


def several_label_losses(output: Any, labels: Tensor) -> Tensor:
    """Binary cross-entropy of several labels per record."""
    logits = output["logits"]
    values = functional.binary_cross_entropy_with_logits(
        logits, labels.to(logits.dtype), reduction="none"
    )
    return values.flatten(1).mean(1)


def span_losses(output: Any, labels: Mapping[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the first and the last token of an answer; outside: no answer."""
    total = torch.zeros(())
    for side in ("start", "end"):
        logits = output[f"{side}_logits"].float()
        place = labels[f"{side}_positions"].reshape(-1).clamp(0, logits.shape[1])
        total = total + functional.cross_entropy(
            logits, place, ignore_index=logits.shape[1], reduction="none"
        )
    return total / 2


def own_loss(output: Any, labels: Any) -> Tensor:
    """The model's own loss, right where a batch is one record."""
    value: Tensor = output["loss"]
    return value.reshape(1)


_SMOOTHED = (class_losses, token_losses, next_token_losses)
_CANDIDATES: tuple[Callable[..., Tensor], ...] = (
    *_SMOOTHED,
    squared_losses,
    several_label_losses,
    span_losses,
)


def recognised_loss(
    model: nn.Module, example: Mapping[str, Tensor], labels: tuple[str, ...], vocabulary: int
) -> Callable[..., Tensor] | None:
    """Return which of the usual losses the model computes for one record, None if none of them.

    Parameters
    ----------
    model : nn.Module
        Called with arguments by name; in evaluation mode, without gradients.
    example : mapping
        A batch of one record: shapes and types are read, no value.
    labels : tuple of str
        Which of them are labels.
    vocabulary : int
        Token numbers are below.
    """
    training, generator = model.training, torch.Generator().manual_seed(0)
    left = list(_CANDIDATES)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for _ in range(_TRIALS):
                made_up = _made_up(model, example, labels, vocabulary, generator)
                if made_up is None:
                    return None
                output = model(**made_up)
                targets = targets_of(made_up, labels)
                left = [loss for loss in left if _agrees(loss, output, targets)]
    except Exception:  # made-up numbers that the model does not take: nothing of a record is shown
        return None
    finally:
        model.train(training)
        for module, mode in modes:
            module.training = mode
    return left[0] if len(left) == 1 else None


def takes_smoothing(loss: Callable[..., Tensor]) -> bool:
    """Whether labels can be smoothed record by record."""
    return loss in _SMOOTHED


def targets_of(batch: Mapping[str, Tensor], labels: tuple[str, ...]) -> Any:
    """The labels of a batch: a tensor if there is one, else by name."""
    return batch[labels[0]] if len(labels) == 1 else {name: batch[name] for name in labels}


def _agrees(loss: Callable[..., Tensor], output: Any, targets: Any) -> bool:
    try:
        value, own = loss(output, targets), output["loss"]
    except Exception:  # other shapes: another kind of loss
        return False
    return value.shape == (1,) and bool(torch.isclose(value[0], own.float(), rtol=1e-3, atol=1e-5))


def _made_up(
    model: nn.Module,
    example: Mapping[str, Tensor],
    labels: tuple[str, ...],
    vocabulary: int,
    generator: torch.Generator,
) -> dict[str, Tensor] | None:
    """A record like the example in shapes and types, with values of its own."""
    inputs = {
        name: _input(name, value, vocabulary, generator)
        for name, value in example.items()
        if name not in labels
    }
    output = model(**inputs)
    name = "start_logits" if "start_logits" in output else "logits"
    if name not in output:
        return None
    classes = int(output[name].shape[-1])
    for name in labels:
        value = example[name]
        if value.is_floating_point():
            drawn = torch.rand(value.shape, generator=generator).to(value.dtype)
        else:
            drawn = torch.randint(0, max(classes, 1), value.shape, generator=generator)
        inputs[name] = drawn.to(value.device, value.dtype)
    return inputs


def _input(name: str, value: Tensor, vocabulary: int, generator: torch.Generator) -> Tensor:
    if value.is_floating_point():
        drawn = torch.randn(value.shape, generator=generator)
    elif "mask" in name:
        drawn = torch.ones(value.shape)
    elif name.endswith("input_ids"):
        drawn = torch.randint(0, vocabulary, value.shape, generator=generator)
    else:
        drawn = torch.zeros(value.shape)
    return drawn.to(value.device, value.dtype)
