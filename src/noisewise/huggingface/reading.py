"""How a trainer's data, model and loss are read, record by record."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from noisewise.errors import UnsupportedModelError
from noisewise.huggingface.collating import CollatedAlone, require_unpacked
from noisewise.huggingface.losses import (
    next_token_losses,
    own_loss,
    recognised_loss,
    takes_smoothing,
    targets_of,
)
from noisewise.training import Plan

__all__ = ["Reading"]

_NO_LIMIT = 1_000_000  # a tokenizer without a limit says 10^30


class Reading:
    """Data, collator and loss of a trainer as a private run takes them.

    Parameters
    ----------
    trainer : Trainer
        With its data, collator and model in place.
    loss : callable or None
        The user's loss of each record.
    max_length : int or None
        The user's public length of texts.

    Attributes
    ----------
    dataset, collate, loss
        For `make_private`.
    alone : bool
        Whether records must be processed one by one, since only the model knows its loss.
    """

    def __init__(self, trainer: Any, loss: Any, max_length: int | None) -> None:
        self._trainer = trainer
        self._config: Any = getattr(trainer.model, "config", None)
        self.dataset, collator = self._columns()
        bare = CollatedAlone(collator, None)
        first = bare.alone(self.dataset[0])
        length = self._length(max_length) if "input_ids" in first else None
        self.collate = CollatedAlone(
            collator,
            length,
            self._filling(),
            add_mask=length is not None and "attention_mask" in self._arguments(),
            decoder_inputs=self._decoder_inputs(),
        )
        example = self.collate.alone(self.dataset[0])
        names = [*trainer.label_names] or ["labels"]  # a plain model has no say in it
        self._labels = tuple(name for name in names if name in example)
        if not self._labels:
            raise ValueError(
                f"none of the labels {', '.join(names)} is among the columns "
                f"{', '.join(example)} of a record. Name them in TrainingArguments(label_names=), "
                "or give a collator that adds them, for example "
                "DataCollatorForLanguageModeling(tokenizer, mlm=False)."
            )
        self.loss, self.alone = self._losses(loss, example)
        if self._predicts_next_tokens(loss):
            records = (bare.alone(self.dataset[index]) for index in range(len(self.dataset)))
            default = str(Plan.__dataclass_fields__["unit"].default)
            require_unpacked(records, self._ends(), trainer.plan.unit, default)

    def split(self, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
        """Return what the model is given, and the targets of the loss."""
        targets = targets_of(batch, self._labels)
        if self.alone:
            return dict(batch), targets
        return {key: item for key, item in batch.items() if key not in self._labels}, targets

    def _columns(self) -> tuple[Any, Any]:
        """The dataset and the collator, without columns that the model does not take."""
        trainer = self._trainer
        dataset = trainer.train_dataset
        if hasattr(dataset, "remove_columns"):
            return trainer._remove_unused_columns(dataset, "training"), trainer.data_collator
        collator = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")
        return dataset, collator

    def _losses(self, loss: Any, example: dict[str, Tensor]) -> tuple[Any, bool]:
        trainer = self._trainer
        smoothing = float(trainer.args.label_smoothing_factor)
        self._found = None
        if loss is not None:
            return loss, False
        device = trainer.args.device
        on_device = {name: value.to(device) for name, value in example.items()}
        found = recognised_loss(trainer.model, on_device, self._labels, self._vocabulary())
        self._found = found
        if found is not None and (not smoothing or takes_smoothing(found)):
            return (partial(found, smoothing=smoothing) if smoothing else found), False
        if smoothing:
            raise UnsupportedModelError(
                "label_smoothing_factor is known for losses of classes and tokens only. Leave it "
                "out, or give PrivateTrainer(loss=...), one loss per record."
            )
        warnings.warn(
            f"the loss of {type(trainer.model).__name__} is none of the usual ones, so records are "
            "processed one by one. PrivateTrainer(loss=...), a function of output and labels that "
            "returns one loss per record, is faster.",
            stacklevel=4,
        )
        return own_loss, True

    def _predicts_next_tokens(self, loss: Any) -> bool:
        if self._found is next_token_losses:
            return True
        kind = getattr(self._base(), "loss_type", None)
        return (loss is not None or self.alone) and kind == "ForCausalLM"

    # ---------------------------------------------------------------- what is public of a model

    def _base(self) -> Any:
        """The model itself, within adapters."""
        model = self._trainer.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _text(self) -> Any:
        config = self._config
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    def _tokenizer(self) -> Any:
        trainer = self._trainer
        return trainer.processing_class or getattr(trainer.data_collator, "tokenizer", None)

    def _vocabulary(self) -> int:
        return int(getattr(self._text(), "vocab_size", None) or 2)

    def _filling(self) -> int:
        for owner in (self._tokenizer(), self._text()):
            value = getattr(owner, "pad_token_id", None)
            if isinstance(value, int) and value >= 0:
                return value
        return 0

    def _ends(self) -> Iterator[int]:
        for owner in (self._tokenizer(), self._text()):
            for name in ("bos_token_id", "eos_token_id"):
                value = getattr(owner, name, None)
                yield from ([value] if isinstance(value, int) else value or [])

    def _arguments(self) -> Mapping[str, Any]:
        return inspect.signature(self._base().forward).parameters

    def _decoder_inputs(self) -> Any:
        if not getattr(self._config, "is_encoder_decoder", False):
            return None
        return getattr(self._base(), "prepare_decoder_input_ids_from_labels", None)

    def _length(self, given: int | None) -> int:
        """To which length texts are brought: public, whatever the records are."""
        collator = self._trainer.data_collator
        if given is None and getattr(collator, "padding", None) == "max_length":
            given = getattr(collator, "max_length", None)
        if given is not None:
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise ValueError(f"max_length must be a whole number of tokens, got {given!r}")
            return given
        limits = [
            getattr(self._tokenizer(), "model_max_length", None),
            getattr(self._text(), "max_position_embeddings", None),
        ]
        known = [int(limit) for limit in limits if limit and limit < _NO_LIMIT]
        if not known:
            raise ValueError(
                "texts are brought to one public length, and neither the tokenizer nor the model "
                "has a limit: give PrivateTrainer(max_length=128), for example."
            )
        warnings.warn(
            f"all texts are filled up to {min(known)} tokens, the limit of the tokenizer or the "
            "model: filling up to the longest of a batch would tell each record of the others. "
            "PrivateTrainer(max_length=...) makes that shorter, and training faster.",
            stacklevel=4,
        )
        return min(known)
