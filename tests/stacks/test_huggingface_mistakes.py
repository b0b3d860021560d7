"""Mistakes of whoever fine-tunes with Hugging Face, and the message that each gets."""

import pytest
import torch

from noisewise import Clipped, Plan, Propagated

transformers = pytest.importorskip("transformers")
huggingface = pytest.importorskip("noisewise.huggingface", exc_type=ImportError)

SENTENCES = [
    {"input_ids": [1 + (3 * i + j) % 40 for j in range(6)], "labels": i % 2} for i in range(32)
]
UNLABELLED = [{"input_ids": one["input_ids"]} for one in SENTENCES]


class Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(SENTENCES)


def model(frozen=False):
    torch.manual_seed(0)
    settings = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8,
    )  # fmt: skip
    made = transformers.BertForSequenceClassification(settings)
    return made.requires_grad_(not frozen)


def plan(**changes):
    settings = {"gradients": Clipped(1.0), "epsilon": 3.0, "steps": 1, "batch_size": 8}
    return Plan(**{**settings, **changes})


def trainer(folder, data=SENTENCES, *, net=None, plan=plan(), **arguments):  # noqa: B008
    given = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **arguments
    )
    return huggingface.PrivateTrainer(
        net or model(), given, data, plan=plan, max_length=6,
        data_collator=transformers.default_data_collator,
    )  # fmt: skip


def twice(folder):
    trainer(folder).train()
    trainer(folder).train()


MISTAKES = {
    "no dataset": (lambda at: trainer(at, None), "needs train_dataset"),
    "a stream": (lambda at: trainer(at, Streamed()), "__len__ and __getitem__"),
    "no labels": (lambda at: trainer(at, UNLABELLED).train(), "label_names="),
    "half precision": (lambda at: trainer(at, fp16=True), "Use bf16=True"),
    "clipping of the batch": (lambda at: trainer(at, max_grad_norm=0.5), "bounds no record"),
    "other sizes than the plan's": (
        lambda at: trainer(at, gradient_accumulation_steps=4), "the plan expects batches of 8"),
    "a compiled model": (lambda at: trainer(at, torch_compile=True), "Leave it out"),
    "a batch larger than the data": (
        lambda at: trainer(at, plan=plan(batch_size=99)), "cannot exceed the 32 records"),
    "statement before training": (lambda at: trainer(at).statement(), "call trainer.train()"),
    "everything frozen": (
        lambda at: trainer(at, net=model(frozen=True)).train(), "no parameter that learns"),
    "bounds through a transformer": (
        lambda at: trainer(at, plan=plan(gradients=Propagated())).train(), "Use noisewise.Clipped"),
    "a second run into the same folder": (twice, "resume_from_checkpoint=True"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MISTAKES)
def test_whoever_fine_tunes_is_told(case, tmp_path):
    action, said = MISTAKES[case]
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        action(tmp_path)
    assert said in str(error.value)


def test_there_are_ten():
    assert len(MISTAKES) >= 10
