"""Models of the zoo take private steps in Hugging Face's trainer."""

import functools

import pytest
import torch

pytest.importorskip("transformers")

from making_trainers import plan, same, trainer, weights

import zoo.huggingface_models
import zoo.peft_models  # noqa: F401
from zoo.registry import ZOO

RECORDS = 24
ENTRIES = {
    name: entry
    for name, entry in ZOO.items()
    if "transformers" in entry.needs and not entry.refusal
}


def _stacked(items):
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def _items(x, y):
    """Columns of a dataset: inputs and labels, however the zoo holds them."""
    labels = {f"label_{k}": v for k, v in y.items()} if isinstance(y, dict) else {"labels": y}
    columns, names = {**x, **labels}, list(labels)
    return [{name: value[i] for name, value in columns.items()} for i in range(RECORDS)], names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENTRIES)
def test_three_private_steps(tmp_path, name):
    entry = ENTRIES[name]
    if missing := entry.missing():
        pytest.skip(f"{missing[0]} is not installed")
    model, loss, x, y = entry.case(RECORDS)
    if not isinstance(x, dict):
        pytest.skip("a trainer calls models by name")
    items, names = _items(x, y)

    @functools.wraps(loss)
    def of_labels(output, labels):
        if len(names) == 1:
            return loss(output, labels)
        return loss(output, {key.removeprefix("label_"): value for key, value in labels.items()})

    before = weights(model)
    ours = trainer(
        tmp_path,
        model=model,
        data=items,
        data_collator=_stacked,
        the_plan=plan(steps=3, batch_size=6, unit="one row"),
        loss=of_labels,
        max_length=next((v.shape[1] for k, v in x.items() if k == "input_ids"), None),
        args=dict(label_names=names, remove_unused_columns=False, learning_rate=1e-3),
    )
    ours.train()
    assert ours.statement().steps == 3
    after = weights(model)
    assert not same(before, after)
    assert all(bool(torch.isfinite(v).all()) for v in after.values() if v.is_floating_point())
