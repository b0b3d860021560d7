"""Batches in which no record can be told from the others' company.

A collator pads a batch to its longest record, so what a record looks like depends on who else was
drawn. Here every record is collated alone and brought to one length that is public. Rows that hold
several documents are noticed, since then the unit that is protected is not the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.errors import UnsoundError
from noisewise.huggingface.losses import IGNORED

__all__ = ["CollatedAlone", "require_unpacked"]

Collator = Callable[[list[Any]], Mapping[str, Any]]

#: What packing leaves in a row beside its tokens.
_PACKED = (
    "position_ids",
    "seq_lengths",
    "seq_idx",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "segment_ids",
)


class CollatedAlone:
    """A collator that calls the user's with one record at a time.

    Parameters
    ----------
    collator : callable
        From a list of items to a mapping of tensors.
    length : int or None
        To which everything that counts tokens is filled up or cut; None: all records have equal
        shapes.
    filling : int
        The token that fills up.
    add_mask : bool
        Whether to add an attention mask where there is none, so that the model can tell.
    decoder_inputs : callable, optional
        From labels to what a decoder is given, if the model would compute it from its labels.
    """

    def __init__(
        self,
        collator: Collator,
        length: int | None,
        filling: int = 0,
        *,
        add_mask: bool = False,
        decoder_inputs: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._collator = collator
        self._length = length
        self._add_mask = add_mask
        self._decoder_inputs = decoder_inputs
        self._fillings = {
            "input_ids": filling,
            "decoder_input_ids": filling,
            "attention_mask": 0,
            "decoder_attention_mask": 0,
            "token_type_ids": 0,
            "special_tokens_mask": 1,
            "position_ids": 0,
            "labels": IGNORED,
        }

    def __call__(self, items: list[Any]) -> dict[str, Tensor]:
        """Return a batch of records that were collated one by one."""
        records = [self.alone(item) for item in items]
        shapes = [{name: value.shape for name, value in record.items()} for record in records]
        if any(shape != shapes[0] for shape in shapes):
            raise UnsoundError(
                "the records of a batch have different columns or shapes, and no public length is "
                "known to which they could be brought: filling them up to the longest of the batch "
                "would tell each record of the others. Give PrivateTrainer(max_length=...), or "
                "bring all records to one shape in the dataset."
            )
        return {name: torch.cat([record[name] for record in records]) for name in records[0]}

    def alone(self, item: Any) -> dict[str, Tensor]:
        """Return a batch of one record."""
        record = dict(self._collator([item]))
        if strange := [name for name, value in record.items() if not isinstance(value, Tensor)]:
            raise TypeError(
                f"the collator returned {', '.join(strange)} as something else than a tensor; "
                "leave such columns out of the dataset, or return tensors with one row per record"
            )
        if merged := [n for n, value in record.items() if not value.dim() or len(value) != 1]:
            raise UnsoundError(
                f"the collator was given one record and returned other than one row of "
                f"{', '.join(merged)}: it packs or splits records, so rows are not records. Give a "
                "collator that returns one row per record."
            )
        tokens = record.get("input_ids")
        if tokens is not None and "attention_mask" not in record and self._add_mask:
            record["attention_mask"] = torch.ones_like(tokens)
        brought = {name: self._brought(name, value) for name, value in record.items()}
        labels = brought.get("labels")
        if self._decoder_inputs and labels is not None and "decoder_input_ids" not in brought:
            brought["decoder_input_ids"] = self._decoder_inputs(labels)
        return brought

    def _brought(self, name: str, value: Tensor) -> Tensor:
        """The value at the public length, if it counts tokens."""
        if self._length is None or name not in self._fillings or value.dim() != 2:
            return value
        if value.is_floating_point():  # several labels per record, not one per token
            return value
        missing = self._length - value.shape[1]
        if missing <= 0:
            return value[:, : self._length]
        return functional.pad(value, (0, missing), value=self._fillings[name])


def require_unpacked(
    records: Iterable[Mapping[str, Tensor]], ends: Iterable[int], unit: str, default_unit: str
) -> None:
    """Refuse rows that seem to hold several documents, unless the plan says what a row is.

    Parameters
    ----------
    records : iterable of mappings
        Records as the collator returns them alone, before they are filled up.
    ends : iterable of int
        Tokens that begin or end a document.
    unit, default_unit : str
        What the plan protects, and what it would say by default.
    """
    if unit != default_unit:
        return
    markers = torch.tensor(sorted(set(ends)))
    lengths: set[int] = set()
    count = 0
    for record in records:
        reason = None
        if found := [name for name in _PACKED if name in record]:
            reason = f"the column {found[0]}, as packed rows have"
        elif _ends_inside(record["input_ids"][0], markers):
            reason = "rows in which a document ends or begins in the middle"
        if reason:
            _refuse(reason)
        lengths.add(int(record["input_ids"].shape[1]))
        count += 1
    if count > 7 and len(lengths) == 1 and next(iter(lengths)) > 1 and not _filled(record):
        _refuse("rows of exactly the same length, as texts that were cut into blocks have")


def _ends_inside(tokens: Tensor, markers: Tensor) -> bool:
    """Whether an end is followed by other tokens, or a beginning comes after others."""
    if len(tokens) < 3 or not len(markers):
        return False
    marked = torch.isin(tokens, markers)
    text = (~marked).nonzero().flatten()
    return bool(len(text)) and bool(marked[int(text[0]) : int(text[-1])].any())


def _filled(record: Mapping[str, Tensor]) -> bool:
    """Whether rows were filled up in the dataset already, so that equal lengths say nothing."""
    return "attention_mask" in record and bool((record["attention_mask"] == 0).any())


def _refuse(reason: str) -> None:
    raise UnsoundError(
        f"the training data has {reason}. Then one row is not one document: who gave one document "
        "may be in several rows, and one row may hold several people's. Give one document a row, "
        "or say in the plan what a row is and what is protected, for example "
        "Plan(unit='one row of 1,024 tokens') or Plan(unit='one conversation'); the statement then "
        "promises that and no more."
    )
