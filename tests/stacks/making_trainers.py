"""Small models, data and trainers that the tests of Hugging Face's stack share."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers

from noisewise.gradients import Clipped
from noisewise.huggingface import PrivateTrainer
from noisewise.training import Plan

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCABULARY, CLASSES, LENGTH = 61, 3, 10
ENCODER = dict(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    vocab_size=VOCABULARY,
    max_position_embeddings=32,
)
DECODER = dict(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def classifier(seed=0, **more):
    torch.manual_seed(seed)
    config = transformers.BertConfig(**{**ENCODER, "num_labels": CLASSES, **more})
    return transformers.BertForSequenceClassification(config)


def language_model(seed=0):
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**DECODER, **SPECIAL))


def texts(records=60, seed=1, labelled=True):
    """Records of different lengths, as a tokenizer gives them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, size=()):
        return torch.randint(low, high, size, generator=generator)

    items = []
    for _ in range(records):
        item = {"input_ids": draw(3, VOCABULARY, (int(draw(3, LENGTH)),)).tolist()}
        items.append({**item, "labels": int(draw(0, CLASSES))} if labelled else item)
    return items


def padding(items):
    """A collator as everybody writes it: up to the longest of the batch."""
    longest = max(len(item["input_ids"]) for item in items)

    def filled(name, value):
        return torch.tensor([i[name] + [value] * (longest - len(i[name])) for i in items])

    batch = {"input_ids": filled("input_ids", 0)}
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    if "labels" not in items[0]:
        batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)
    elif isinstance(items[0]["labels"], list):
        batch["labels"] = filled("labels", -100)
    else:
        batch["labels"] = torch.tensor([item["labels"] for item in items])
    return batch


def plan(**changes):
    values = dict(
        gradients=Clipped(1.0), noise_multiplier=1.0, steps=6, batch_size=12, delta=1e-5, seed=3
    )
    values.update(changes)
    return Plan(**{name: value for name, value in values.items() if value is not None})


def arguments(folder, **changes):
    values = dict(
        output_dir=str(folder),
        report_to=[],
        disable_tqdm=True,
        logging_steps=2,
        save_strategy="no",
        learning_rate=1e-2,
        per_device_train_batch_size=4,
        use_cpu=True,
    )
    return transformers.TrainingArguments(**{**values, **changes})


def trainer(folder, model=None, data=None, the_plan=None, kind=PrivateTrainer, **options):
    changes = options.pop("args", {})
    return kind(
        classifier() if model is None else model,
        arguments(folder, **changes),
        texts() if data is None else data,
        plan=plan() if the_plan is None else the_plan,
        data_collator=options.pop("data_collator", padding),
        max_length=options.pop("max_length", LENGTH),
        **options,
    )


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )
