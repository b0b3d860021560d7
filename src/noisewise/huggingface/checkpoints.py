"""Checkpoint folders of a Hugging Face trainer, and the statement in its model card."""

from __future__ import annotations

import json
import re
from pathlib import Path

from noisewise.privacy import Statement
from noisewise.training import CheckpointError

__all__ = ["CHECKPOINT", "last_checkpoint", "write_card"]

#: Weights, optimizer, schedule, position and generators of the run, within a checkpoint's folder.
CHECKPOINT = "noisewise.safetensors"
_BEGINNING, _END = "<!-- privacy statement -->", "<!-- end of the privacy statement -->"


def last_checkpoint(folder: str) -> str:
    """Return the last checkpoint that is whole: a crash may have cut the last one short."""
    found = sorted(
        (int(match[1]), path)
        for path in Path(folder).glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and _is_whole(path)
    )
    if not found:
        raise CheckpointError(
            f"there is no whole checkpoint in {folder!r}. If steps were charged there already, "
            "what they learnt is lost, but their charge stays: train again under another name= "
            "with the same ledger."
        )
    return str(found[-1][1])


def write_card(folder: str, statement: Statement) -> None:
    """Put the statement into the model card, in place of an earlier one."""
    path = Path(folder, "README.md")
    text = path.read_text("utf-8") if path.exists() else ""
    text = re.sub(f"\n*{_BEGINNING}.*?{_END}\n", "", text, flags=re.DOTALL)
    path.write_text(f"{text.rstrip()}\n\n{_BEGINNING}\n{statement.card()}\n{_END}\n", "utf-8")


def _is_whole(path: Path) -> bool:
    """Whether the trainer's state, which is written last, is there and can be read."""
    try:
        json.loads((path / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return (path / CHECKPOINT).exists()
