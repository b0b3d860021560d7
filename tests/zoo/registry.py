"""What a model of the zoo is, and the losses and batches that many of them share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

RECORDS = 5  # prime, and no other size of the zoo: an axis that holds the records is recognised
LENGTH, VOCABULARY, CLASSES = 12, 97, 3

#: (model in training mode, loss, x, y)
Case = tuple[torch.nn.Module, Any, Any, Any]


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes
    ----------
    name : str
        How tests and tables call it.
    build : callable
        From a number of records to model, loss, x and y.
    needs : tuple of str
        Packages beside torch.
    core : bool
        Part of the ten that ``make test`` runs.
    refusal : str
        Where it cannot be proven: a regular expression that the refusal's text must match.
        Empty: it must be proven.
    host_draws : tuple of str
        Functions that draw on the host, outside torch, one row per record.
    why : str
        What it is here for.
    """

    name: str
    build: Callable[[int], Case]
    needs: tuple[str, ...] = ()
    core: bool = False
    refusal: str = ""
    host_draws: tuple[str, ...] = ()
    why: str = ""

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def case(self, records: int = RECORDS, seed: int = 0) -> Case:
        """Build it from a fixed seed, in training mode but for what it froze itself."""
        torch.manual_seed(seed)
        return self.build(records)


ZOO: dict[str, Entry] = {}


def entry(name: str, **options: Any) -> Callable[[Callable[[int], Case]], Callable[[int], Case]]:
    """Add a builder to the zoo."""

    def add(build: Callable[[int], Case]) -> Callable[[int], Case]:
        assert name not in ZOO, name
        ZOO[name] = Entry(name, build, **options)
        return build

    return add


# ------------------------------------------------------------------ batches
def tokens(records: int, length: int = LENGTH) -> torch.Tensor:
    """Token numbers; 0 pads, 1 begins, 2 ends."""
    return torch.randint(3, VOCABULARY, (records, length))


def padding(records: int, length: int = LENGTH) -> torch.Tensor:
    """A mask of ones with a different number of trailing zeros in every record."""
    kept = length - (torch.arange(records) * 3) % (length - 3)
    return (torch.arange(length) < kept[:, None]).long()


def text(records: int, length: int = LENGTH, **more: Any) -> dict[str, Any]:
    """Padded token numbers with their attention mask, as a tokenizer hands them out."""
    mask = padding(records, length)
    return {"input_ids": tokens(records, length) * mask, "attention_mask": mask, **more}


def next_tokens(batch: dict[str, Any]) -> torch.Tensor:
    """Labels of a language model: the tokens, -100 at padding."""
    return batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)


def images(records: int, size: int = 32) -> torch.Tensor:
    """Three channels."""
    return torch.randn(records, 3, size, size)


def classes(records: int, number: int = CLASSES) -> torch.Tensor:
    """One label per record."""
    return torch.randint(0, number, (records,))


# ------------------------------------------------------------------ losses
def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of logits (B, classes)."""
    return functional.cross_entropy(output, target, reduction="none")


def of_logits(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The same of a Hugging Face output."""
    return functional.cross_entropy(output.logits, target, reduction="none")


def _per_token(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean over a record's own tokens, padding left out."""
    losses = functional.cross_entropy(
        logits.transpose(1, 2), target, reduction="none", ignore_index=-100
    )
    return losses.sum(1) / (target != -100).sum(1).clamp_min(1)


def causal(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Every token predicts the next."""
    return _per_token(output.logits[:, :-1], target[:, 1:])


def in_place(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Every token predicts its own label: masked or sequence-to-sequence models."""
    return _per_token(output.logits, target)


def flattened(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The causal loss as most scripts write it, over (B*T, vocabulary)."""
    logits, wanted = output.logits[:, :-1], target[:, 1:]
    losses = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1), reduction="none"
    )
    return losses.view(wanted.shape).sum(1) / (wanted != -100).sum(1).clamp_min(1)
