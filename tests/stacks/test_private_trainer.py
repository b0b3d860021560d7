"""A Hugging Face trainer whose steps are private: what it keeps, what it shows, what it spends."""

import json

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import transformers
from making_trainers import (
    DECODER,
    LENGTH,
    SPECIAL,
    arguments,
    classifier,
    language_model,
    padding,
    plan,
    same,
    texts,
    trainer,
    weights,
)

from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.gradients import BatchMaxScaled, bounded_sum
from noisewise.huggingface import PrivateTrainer
from noisewise.privacy import Ledger, Statement
from noisewise.privacy.statement import round_up, single_up
from noisewise.training import StepError, make_private

CALM = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def test_it_trains_and_states_what_it_spent(tmp_path):
    ours = trainer(tmp_path, eval_dataset=texts(seed=2), args=dict(save_strategy="epoch"))
    before = weights(ours.model)
    done = ours.train()
    assert done.global_step == 6
    assert not same(before, weights(ours.model))

    statement = ours.statement()
    assert statement.steps == 6
    assert statement.sample_rate == pytest.approx(12 / 60)
    assert "promised by the caller" not in statement.sampler
    written = Statement.from_json((tmp_path / "statement.json").read_text("utf-8"))
    assert written == statement
    in_checkpoint = (tmp_path / "checkpoint-5" / "statement.json").read_text("utf-8")
    assert Statement.from_json(in_checkpoint).steps == 5
    with Ledger.open(tmp_path / "_training.ledger") as ledger:
        assert sum(event.count for event, _ in ledger.entries) == 6


def test_what_is_logged_is_never_below_the_truth_and_ends_on_the_statement(tmp_path):
    ours = trainer(tmp_path, args=dict(logging_steps=1))
    ours.train()
    history = ours.state.log_history
    for line in history:
        truth = ours.resolved.epsilon_after(line["step"])
        assert line["epsilon"] >= truth
        assert float(f"{line['epsilon']:.4g}") >= truth  # as a trainer prints it
        assert float(torch.tensor(line["epsilon"])) >= line["epsilon"]  # as TensorBoard keeps it
    assert history[-1]["epsilon"] == single_up(float(round_up(ours.statement().epsilon)))


def test_nothing_that_was_computed_from_private_records_is_logged(tmp_path):
    ours = trainer(tmp_path, args=dict(save_strategy="steps", save_steps=6))
    done = ours.train()
    assert done.training_loss != done.training_loss
    logged = {key for line in ours.state.log_history for key in line} | set(done.metrics)
    assert not logged & {"loss", "train_loss", "grad_norm", "total_flos"}
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text("utf-8"))
    assert state["total_flos"] == 0  # would tell how many records were drawn


def test_its_steps_are_those_of_a_run_by_hand(tmp_path):
    """The same seed, the same batches, the same noise: the same weights as without a trainer."""
    args = dict(lr_scheduler_type="constant", optim="sgd", weight_decay=0.0, learning_rate=0.5)
    ours = trainer(tmp_path, model=classifier(**CALM), args=args)
    ours.train()

    model = classifier(**CALM)

    def losses(output, labels):
        return torch.nn.functional.cross_entropy(output.logits, labels, reduction="none")

    def collate(items):
        batch = padding([*items, {"input_ids": [3] * LENGTH, "labels": 0}])
        return {name: value[:-1] for name, value in batch.items()}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    run = make_private(model, optimizer, losses, texts(), plan(), collate=collate, chunk=4)
    for batch in run.loader:
        labels = batch.pop("labels")
        run.step(batch, labels)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], value, atol=1e-5, rtol=1e-4)
    assert ours.statement().history == run.statement().history


def test_a_record_is_the_same_whoever_else_is_drawn(tmp_path):
    """The user's collator fills up to the longest of the batch; here that must not matter."""
    ours = trainer(tmp_path)
    items = texts()
    short, long = min(items, key=_length), max(items, key=_length)
    assert _length(short) < _length(long)
    alone = ours._reading.collate([short])
    beside = ours._reading.collate([short, long])
    for name, value in alone.items():
        assert torch.equal(value[0], beside[name][0])


def _length(item):
    return len(item["input_ids"])


def _calm_language_model():
    torch.manual_seed(0)
    calm = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**DECODER, **SPECIAL, **calm))


@pytest.mark.parametrize("kind", ["classes", "next tokens"])
def test_a_long_record_moves_the_sum_by_no_more_than_the_sensitivity(tmp_path, kind):
    """Filling up to the longest, or a mean over all tokens, would change everybody's share."""
    items = texts(9, labelled=kind == "classes")
    items[4]["input_ids"] = list(range(3, 3 + LENGTH))
    model = classifier(**CALM) if kind == "classes" else _calm_language_model()
    ours = trainer(tmp_path, model=model, data=items, the_plan=plan(batch_size=3))
    ours._into_training_mode()

    def total(records):
        x, y = ours._reading.split(ours._reading.collate(records))
        return bounded_sum(model, ours._reading.loss, x, y, ours.plan.gradients, chunk=4)

    whole, less = total(items), total(items[:4] + items[5:])
    for first, second in zip(whole.groups, less.groups, strict=True):
        moved = [(g - second.gradients[n]).double() for n, g in first.gradients.items()]
        norm = float(torch.sqrt(sum((part**2).sum() for part in moved)))
        assert 0.5 < norm <= first.sensitivity


def test_virtual_batches_are_one_logical_batch(tmp_path):
    """Accumulation cuts a batch into pieces; steps, noise and charges are those of the plan."""
    args = dict(lr_scheduler_type="constant", optim="sgd", learning_rate=0.5)
    model = classifier(**CALM)
    start = weights(model)
    results = []
    for folder, pieces in (
        ("small", dict(per_device_train_batch_size=3, gradient_accumulation_steps=4)),
        ("large", dict(per_device_train_batch_size=12)),
    ):
        model.load_state_dict(start)
        ours = trainer(tmp_path / folder, model=model, args={**args, **pieces})
        ours.train()
        assert ours.statement().steps == 6
        results.append(weights(model))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, atol=1e-5, rtol=1e-4)
    assert not same(start, results[0])


def test_evaluation_predictions_schedules_and_callbacks_are_as_ever(tmp_path):
    seen = []

    class Watching(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            seen.append((state.global_step, more["lr_scheduler"].get_last_lr()[0]))

    ours = trainer(
        tmp_path,
        eval_dataset=texts(seed=2),
        compute_metrics=lambda both: {"best": both.predictions.argmax(1).mean()},
        callbacks=[Watching()],
        args=dict(eval_strategy="steps", eval_steps=3, warmup_steps=2, lr_scheduler_type="linear"),
    )
    ours.train()
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [rate for _, rate in seen] == pytest.approx([0.005, 0.01, 0.0075, 0.005, 0.0025, 0.0])
    evaluated = [line for line in ours.state.log_history if "eval_best" in line]
    assert [line["step"] for line in evaluated] == [3, 6]
    assert ours.predict(texts(seed=2)).predictions.shape == (60, 3)
    assert not any("shown during training" in text for text in ours.statement().assumptions)


def test_results_on_training_records_are_noted_in_the_statement(tmp_path):
    data = texts()
    ours = trainer(tmp_path, data=data, eval_dataset=data[:10])
    ours.train()
    with pytest.warns(UserWarning, match="not covered by the statement"):
        ours.evaluate()
    assert any("shown during training" in text for text in ours.statement().assumptions)


def test_the_statement_stands_in_the_model_card_once(tmp_path):
    ours = trainer(tmp_path)
    ours.train()
    ours.create_model_card()
    ours.create_model_card()
    card = (tmp_path / "README.md").read_text("utf-8")
    assert card.count("<!-- privacy statement -->") == 1
    assert f"epsilon = {round_up(ours.statement().epsilon)}" in card


def test_an_interrupted_trainer_goes_on(tmp_path):
    class Interrupting(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            if state.global_step == 4:
                raise KeyboardInterrupt

    callback = Interrupting()
    args = dict(save_strategy="steps", save_steps=2)
    ours = trainer(tmp_path, callbacks=[callback], args=args)
    with pytest.raises(KeyboardInterrupt):
        ours.train()
    ours.remove_callback(callback)
    done = ours.train(resume_from_checkpoint=True)
    assert done.global_step == 6
    assert ours.statement().steps == 6


def test_training_twice_spends_nothing(tmp_path):
    from noisewise.errors import LedgerError

    ours = trainer(tmp_path)
    ours.train()
    with pytest.raises(LedgerError, match="already holds 6 steps"):
        ours.train()
    with Ledger.open(tmp_path / "_training.ledger") as ledger:
        assert sum(event.count for event, _ in ledger.entries) == 6


def test_bounds_that_are_propagated_need_a_loop_of_ones_own(tmp_path):
    """A trainer calls models by name, and bounds are propagated from one input tensor."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    data = [{"input": torch.randn(5), "labels": torch.tensor(i % 3)} for i in range(60)]
    ours = trainer(
        tmp_path,
        model=model,
        data=data,
        data_collator=_stacked,
        the_plan=plan(gradients=BatchMaxScaled(study=True)),
        loss=torch.nn.CrossEntropyLoss(),
        args=dict(remove_unused_columns=False),
    )
    with pytest.raises(UnsupportedModelError, match="one input tensor"):
        ours.train()
    assert not (tmp_path / "statement.json").exists()
    with Ledger.open(tmp_path / "_training.ledger") as ledger:
        assert not ledger.entries


# ---------------------------------------------------------------- the loss of each record


def _made(name, **more):
    from making_trainers import DECODER, ENCODER, SPECIAL

    torch.manual_seed(0)
    sizes = DECODER if name.startswith("GPT2") else ENCODER
    family = name.split("For")[0].replace("LMHeadModel", "").replace("DoubleHeads", "")
    config = getattr(transformers, f"{family}Config")(**{**sizes, **SPECIAL, **more})
    return getattr(transformers, name)(config)


def _tokens(records, length=LENGTH):
    return torch.randint(3, 61, (records, length))


CASES = {
    "classes": (lambda: _made("BertForSequenceClassification", num_labels=3), "class"),
    "regression": (lambda: _made("BertForSequenceClassification", num_labels=1), "real"),
    "several labels": (lambda: _made("BertForSequenceClassification", num_labels=4), "several"),
    "tokens": (lambda: _made("BertForTokenClassification", num_labels=3), "tags"),
    "masked": (lambda: _made("BertForMaskedLM"), "words"),
    "causal": (lambda: _made("GPT2LMHeadModel"), "words"),
    "last token": (lambda: _made("GPT2ForSequenceClassification", num_labels=3), "class"),
    "spans": (lambda: _made("BertForQuestionAnswering"), "spans"),
}


def _labels(kind, records):
    hidden = torch.rand(records, LENGTH) < torch.linspace(0.1, 0.8, records)[:, None]
    return {
        "class": lambda: {"labels": torch.randint(0, 3, (records,))},
        "real": lambda: {"labels": torch.randn(records)},
        "several": lambda: {"labels": torch.randint(0, 2, (records, 4)).float()},
        "tags": lambda: {
            "labels": torch.randint(0, 3, (records, LENGTH)).masked_fill(hidden, -100)
        },
        "words": lambda: {"labels": _tokens(records).masked_fill(hidden, -100)},
        "spans": lambda: {
            "start_positions": torch.randint(0, 5, (records,)),
            "end_positions": torch.randint(5, LENGTH, (records,)),
        },
    }[kind]()


@pytest.mark.parametrize("name", CASES)
def test_each_record_has_the_loss_that_the_model_gives_it_alone(tmp_path, name):
    """Tokens are labelled unevenly, so the mean over all tokens of a batch is something else."""
    build, kind = CASES[name]
    records = 5
    batch = {"input_ids": _tokens(records), **_labels(kind, records)}
    items = [{key: value[i] for key, value in batch.items()} for i in range(records)] * 4
    ours = trainer(
        tmp_path,
        model=build(),
        data=items,
        data_collator=_stacked,
        the_plan=plan(unit="one document"),
    )
    assert not ours._reading.alone
    model = ours.model.eval()
    x, y = ours._reading.split(ours._reading.collate(items[:records]))
    with torch.no_grad():
        found = ours._reading.loss(model(**x), y)
        alone = [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss for i in range(records)]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)


def test_sequence_to_sequence(tmp_path):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    items = [{"input_ids": _tokens(1)[0], "labels": _tokens(1, 6)[0]} for _ in range(30)]
    ours = trainer(
        tmp_path,
        model=transformers.T5ForConditionalGeneration(config),
        data=items,
        data_collator=_stacked,
        the_plan=plan(steps=2),
    )
    x, y = ours._reading.split(ours._reading.collate(items[:4]))
    model = ours.model.eval()
    with torch.no_grad():
        found = ours._reading.loss(model(**x), y)
        alone = [
            model(input_ids=i["input_ids"][None], labels=i["labels"][None]).loss for i in items[:4]
        ]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)
    ours.train()
    assert ours.statement().steps == 2


def test_an_unusual_loss_is_taken_record_by_record(tmp_path):
    class Odd(transformers.BertForSequenceClassification):
        def forward(self, input_ids=None, attention_mask=None, labels=None):
            output = super().forward(input_ids, attention_mask)
            loss = None
            if labels is not None:
                logits = output.logits
                loss = (logits.gather(1, labels[:, None]) - 1).abs().pow(1.5).mean()
            return transformers.modeling_outputs.SequenceClassifierOutput(loss, output.logits)

    torch.manual_seed(0)
    model = Odd(classifier(**CALM).config)
    with pytest.warns(UserWarning, match="one by one"):
        ours = trainer(tmp_path, model=model, the_plan=plan(steps=2))
    assert ours._reading.alone
    x, y = ours._reading.split(ours._reading.collate(texts()[:6]))
    by_one = bounded_sum(model, ours._reading.loss, x, y, ours.plan.gradients, chunk=1)

    def losses(output, labels):
        return (output.logits.gather(1, labels[:, None]) - 1).abs().pow(1.5)[:, 0]

    inputs = {key: value for key, value in x.items() if key != "labels"}
    together = bounded_sum(model, losses, inputs, y, ours.plan.gradients)
    for first, second in zip(by_one.groups, together.groups, strict=True):
        for name, value in first.gradients.items():
            torch.testing.assert_close(value, second.gradients[name], rtol=1e-3, atol=1e-4)
    ours.train()
    assert ours.statement().steps == 2


def test_smoothed_labels_are_those_of_the_trainer(tmp_path):
    ours = trainer(tmp_path, args=dict(label_smoothing_factor=0.2))
    x, y = ours._reading.split(ours._reading.collate(texts()[:3]))
    model = ours.model.eval()
    with torch.no_grad():
        found = ours._reading.loss(model(**x), y)
        for i in range(3):
            one = {name: value[i : i + 1] for name, value in x.items()}
            own = ours.label_smoother(model(**one), y[i : i + 1, None])
            torch.testing.assert_close(found[i], own)


# ---------------------------------------------------------------- other models and arguments


class _Net(torch.nn.Module):
    """A model of nobody's: frozen features with batch norm, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
        )
        self.features.requires_grad_(False)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, pixels, labels=None):
        logits = self.head(self.features(pixels).mean((2, 3)))
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def _images(records=60):
    generator = torch.Generator().manual_seed(0)
    return [
        {"pixels": torch.randn(1, 6, 6, generator=generator), "labels": torch.tensor(i % 3)}
        for i in range(records)
    ]


def _stacked(items):
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def test_a_frozen_part_with_batch_norm_keeps_its_statistics(tmp_path):
    model = _Net()
    ours = trainer(tmp_path, model=model, data=_images(), data_collator=_stacked)
    before = weights(model)
    ours.train()
    after = weights(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3", "prompt", "prefix"])
def test_peft(tmp_path, kind):
    peft = pytest.importorskip("peft")
    config = {
        "lora": lambda: peft.LoraConfig(
            r=2, lora_dropout=0.1, target_modules=["query", "value"], task_type="SEQ_CLS"
        ),
        "dora": lambda: peft.LoraConfig(
            r=2, use_dora=True, target_modules=["query"], task_type="SEQ_CLS"
        ),
        "ia3": lambda: peft.IA3Config(
            task_type="SEQ_CLS", target_modules=["key", "value"], feedforward_modules=[]
        ),
        "prompt": lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
    }[kind]()
    model = peft.get_peft_model(classifier(), config)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    args = dict(save_strategy="steps", save_steps=2)
    ours = trainer(tmp_path, model=model, the_plan=plan(steps=3), args=args)
    assert not ours._reading.alone
    ours.train()
    assert ours.statement().steps == 3
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    assert (tmp_path / "checkpoint-2" / "adapter_model.safetensors").exists()


def test_an_adapter_is_resumed(tmp_path):
    peft = pytest.importorskip("peft")

    def build():
        config = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
        return peft.get_peft_model(classifier(), config)

    args = dict(save_strategy="steps", save_steps=2)
    whole = trainer(tmp_path / "whole", model=build(), args=args)
    whole.train()

    class Stopping(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            control.should_training_stop = state.global_step == 3

    stopped = trainer(tmp_path / "cut", model=build(), args=args, callbacks=[Stopping()])
    stopped.train()
    assert stopped.statement().steps == 3
    resumed = trainer(tmp_path / "cut", model=build(), args=args)
    resumed.train(resume_from_checkpoint=True)
    assert same(weights(whole.model), weights(resumed.model))
    assert resumed.statement().history == whole.statement().history


@pytest.mark.parametrize(
    "changes",
    [
        dict(gradient_checkpointing=True),
        dict(gradient_checkpointing_kwargs={"use_reentrant": True}, gradient_checkpointing=True),
        dict(bf16=True),
        dict(neftune_noise_alpha=5.0),
        dict(optim="adamw_torch_fused"),
        dict(optim="adafactor"),
        dict(dataloader_num_workers=1),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_ordinary_arguments_work(tmp_path, changes):
    ours = trainer(tmp_path, the_plan=plan(steps=2), args=changes)
    before = weights(ours.model)
    ours.train()
    assert ours.statement().steps == 2
    assert not same(before, weights(ours.model))


def test_causal_language_models_have_one_document_a_record(tmp_path):
    documents = texts(labelled=False)
    ours = trainer(tmp_path, model=language_model(), data=documents, the_plan=plan(steps=2))
    ours.train()
    assert ours.statement().steps == 2


def _packed_rows():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, 61, (20, LENGTH), generator=generator)
    ended = rows.clone()
    ended[:, 4] = 2
    return {
        "cut into blocks": [{"input_ids": row.tolist()} for row in rows],
        "an end inside": [{"input_ids": row.tolist()} for row in ended],
        "positions": [
            {"input_ids": row.tolist(), "position_ids": [0, 1, 2, 0, 1, 2, 3, 4, 0, 1]}
            for row in rows
        ],
    }


def _with_positions(items):
    batch = padding(items)
    if "position_ids" in items[0]:
        batch["position_ids"] = torch.tensor([item["position_ids"] for item in items])
    return batch


@pytest.mark.parametrize("how", _packed_rows())
def test_packed_rows_are_not_taken_for_documents(tmp_path, how):
    data = _packed_rows()[how]
    options = dict(model=language_model(), data=data, data_collator=_with_positions)
    with pytest.raises(UnsoundError, match="one row is not one document"):
        trainer(tmp_path, **options)
    said = plan(unit=f"one row of {LENGTH} tokens", steps=1)
    ours = trainer(tmp_path, the_plan=said, **options)
    if how != "positions":
        ours.train()
        assert ours.statement().unit == f"one row of {LENGTH} tokens"


def test_a_collator_that_packs_is_refused(tmp_path):
    collator = transformers.DataCollatorWithFlattening()
    options = dict(model=language_model(), data=texts(labelled=False), data_collator=collator)
    with pytest.raises(UnsoundError, match="one row is not one document"):
        trainer(tmp_path, **options)


# ---------------------------------------------------------------- what is refused, before a charge


REFUSED = {
    "train_sampling_strategy": dict(train_sampling_strategy="group_by_length"),
    "auto_find_batch_size": dict(auto_find_batch_size=True),
    "max_grad_norm": dict(max_grad_norm=0.5),
    "include_num_input_tokens_seen": dict(include_num_input_tokens_seen="all"),
    "debug": dict(debug="underflow_overflow"),
    "skip_memory_metrics": dict(skip_memory_metrics=False),
    "fp16": dict(fp16=True),
    "torch_compile": dict(torch_compile=True),
    "use_liger_kernel": dict(use_liger_kernel=True),
    "lomo": dict(optim="lomo"),
    "max_steps": dict(max_steps=100),
    "gradient_accumulation_steps": dict(gradient_accumulation_steps=5),
}


@pytest.mark.parametrize("word", REFUSED)
def test_arguments_that_break_the_promise_are_refused(tmp_path, word):
    changes = dict(REFUSED[word])
    args = arguments(tmp_path)
    for name, value in changes.items():  # some are refused by the arguments' own checks elsewhere
        setattr(args, name, value)
    with pytest.raises((UnsoundError, UnsupportedModelError, ValueError), match=word):
        PrivateTrainer(classifier(), args, texts(), plan=plan(), data_collator=padding)
    assert not list(tmp_path.glob("*.ledger"))


CHOOSING = {
    "load_best_model_at_end": dict(
        load_best_model_at_end=True, metric_for_best_model="eval_loss", save_strategy="steps",
        eval_strategy="steps", eval_steps=3, save_steps=3,
    ),
    "save_strategy='best'": dict(
        save_strategy="best", metric_for_best_model="eval_loss", eval_strategy="steps", eval_steps=3
    ),
    "lr_scheduler_type": dict(
        lr_scheduler_type="reduce_lr_on_plateau", metric_for_best_model="eval_loss",
        eval_strategy="steps", eval_steps=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("word", CHOOSING)
def test_choices_need_public_records(tmp_path, word):
    data = texts()
    with pytest.raises(UnsoundError, match=word):
        trainer(tmp_path, data=data, eval_dataset=texts(seed=2), args=CHOOSING[word])
    with pytest.raises(UnsoundError, match="holds records of train_dataset"):
        trainer(tmp_path, data=data, eval_dataset=data, args=CHOOSING[word], public_evaluation=True)
    part = torch.utils.data.Subset(data, range(5))
    with pytest.raises(UnsoundError, match="holds records of train_dataset"):
        trainer(tmp_path, data=data, eval_dataset=part, args=CHOOSING[word], public_evaluation=True)
    ours = trainer(
        tmp_path,
        data=data,
        eval_dataset=texts(seed=2),
        args=CHOOSING[word],
        public_evaluation=True,
    )
    ours.train()
    assert ours.statement().steps == 6


class Patient(transformers.EarlyStoppingCallback):
    """Of another name."""


@pytest.mark.parametrize("stopping", [transformers.EarlyStoppingCallback, Patient])
def test_early_stopping_needs_public_records_whenever_it_is_added(tmp_path, stopping):
    args = dict(metric_for_best_model="eval_loss", eval_strategy="steps", eval_steps=3)
    ours = trainer(tmp_path, eval_dataset=texts(seed=2), args=args)
    ours.add_callback(stopping(1))
    with pytest.raises(UnsoundError, match="EarlyStoppingCallback"):
        ours.train()
    assert not list(tmp_path.glob("*.ledger"))


@pytest.mark.parametrize("name", ["compute_loss", "training_step", "get_train_dataloader"])
def test_a_subclass_cannot_go_around_the_run(tmp_path, name):
    own = type("Own", (PrivateTrainer,), {name: lambda self, *args, **more: None})
    with pytest.raises(UnsoundError, match=f"has a {name} of its own"):
        trainer(tmp_path, kind=own)


def test_other_things_that_are_refused(tmp_path):
    with pytest.raises(UnsoundError, match="compute_loss_func"):
        trainer(tmp_path, compute_loss_func=lambda *a, **k: 0)
    with pytest.raises(ValueError, match="model_init"):
        trainer(tmp_path, model_init=classifier)
    with pytest.raises(UnsoundError, match="order of its own"):
        trainer(tmp_path, data=_Streamed())
    data = [{"input_ids": item["input_ids"][:3]} for item in texts()]
    with pytest.raises(ValueError, match="labels"):
        trainer(tmp_path, data=data, data_collator=transformers.default_data_collator)
    with pytest.raises(UnsoundError, match="hyperparameter_search"):
        trainer(tmp_path).hyperparameter_search()
    with pytest.raises(StepError, match="before training"):
        trainer(tmp_path).statement()
    with pytest.raises(ValueError, match="max_length"):
        trainer(tmp_path, max_length=0)
    assert not list(tmp_path.glob("*.ledger"))


class _Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(texts())

    def __len__(self):
        return 60


def test_a_model_that_mixes_records_is_refused_before_a_charge(tmp_path):
    class Mixing(_Net):
        def forward(self, pixels, labels=None):
            return super().forward(pixels - pixels.mean(0), labels)

    model = Mixing()
    before = weights(model)
    ours = trainer(tmp_path, model=model, data=_images(), data_collator=_stacked)
    with pytest.raises(UnsupportedModelError):
        ours.train()
    assert same(before, weights(model))
    with Ledger.open(tmp_path / "_training.ledger") as ledger:
        assert not ledger.entries


def test_a_batch_that_a_callback_changed_is_refused(tmp_path):
    class Doubling(PrivateTrainer):
        def get_batch_samples(self, *args):
            batches, count = super().get_batch_samples(*args)
            doubled = [{k: torch.cat([v, v]) for k, v in batch.items()} for batch in batches]
            return doubled, count

    ours = trainer(tmp_path, kind=Doubling)
    with pytest.raises(StepError, match="not the batch that"):
        ours.train()
    with Ledger.open(tmp_path / "_training.ledger") as ledger:
        assert not ledger.entries


def test_without_the_package_the_extra_is_named(monkeypatch):
    import sys

    import noisewise.huggingface as package

    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ImportError, match=r"noisewise\[huggingface\]"):
        package.PrivateTrainer  # noqa: B018
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018
