"""``prove_apart``: whether a model and a loss keep the records of a batch apart."""

from __future__ import annotations

from typing import Any

from torch import nn

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.batches import count_records
from noisewise.gradients.engine import GradientEngine
from noisewise.gradients.estimators import Clipped
from noisewise.gradients.models import undisturbed
from noisewise.separation import Finding, Proof, RefusedError

__all__ = ["prove_apart"]


def prove_apart(model: nn.Module, loss: Any, x: Any, y: Any) -> Proof:
    """Prove, from the data flow, that records of a batch do not influence each other.

    Forward, loss and backward run once, on the batch that is given, with a shadow beside every
    tensor that says on which record each of its entries may depend. No value of a record
    influences the answer, so what is shown for this batch holds for every batch of its shape.
    The model is left as it was.

    Parameters
    ----------
    model : Module
    loss : loss module or callable
        As of `bounded_sum`.
    x, y : tensors, tuples or dicts of tensors
        A batch of at least two records, real or made up.

    Returns
    -------
    Proof
        ``proof.proven``; if not, ``proof.mixed``, ``proof.unknown``, ``proof.escapes`` and
        ``proof.state`` name operation, file and line. ``print(proof)`` says it in words.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
    >>> prove_apart(model, nn.CrossEntropyLoss(), x, y).proven
    True
    >>> centred = lambda output, target: (output - output.detach().mean(0)).square().sum(1)
    >>> prove_apart(model, centred, x, y).mixed[0].operation
    'mean'
    """
    records = count_records(x, y)
    if records < 2:
        raise ValueError("a proof needs a batch of at least two records")
    with undisturbed(model):
        try:
            engine = GradientEngine(model, loss, Clipped(1.0), chunk=records, assume_apart=True)
            engine.looking = True
            engine.sum(x, y)
        except UnsupportedModelError as refusal:
            kind = f"{type(model).__name__}"
            if not isinstance(refusal, RefusedError):
                return Proof(mixed=(Finding(kind, "the model", f"is refused: {refusal}"),))
            what = f"is refused: {refusal.what}"
            return Proof(mixed=(Finding(kind, refusal.where, what),), advice=refusal.repair)
    assert engine.proof is not None
    return engine.proof
