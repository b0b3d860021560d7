"""Fine-tuning of few parameters, by the peft package."""

from __future__ import annotations

from typing import Any

from zoo.huggingface_models import classifier, gpt2, hugging_face
from zoo.registry import Case, entry

PEFT = ("transformers", "peft")


def tuned(case: Case, config: Any) -> Case:
    """The model wrapped by peft."""
    import peft

    model, loss, x, y = case
    return peft.get_peft_model(model, config).train(), loss, x, y


@entry("LoRA on BERT", needs=PEFT, why="adapters with dropout, the base frozen")
def lora(records: int) -> Case:
    import peft

    config = peft.LoraConfig(
        r=4, lora_dropout=0.1, target_modules=["query", "value"], task_type="SEQ_CLS"
    )
    return tuned(classifier("Bert", records), config)


@entry("LoRA on GPT-2", needs=PEFT, why="adapters of Conv1D")
def lora_gpt2(records: int) -> Case:
    import peft

    config = peft.LoraConfig(
        r=4, lora_dropout=0.1, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    return tuned(gpt2(records), config)


@entry("DoRA on BERT", needs=PEFT, why="the norm of a merged weight")
def dora(records: int) -> Case:
    import peft

    config = peft.LoraConfig(
        r=4, use_dora=True, target_modules=["query", "value"], task_type="SEQ_CLS"
    )
    return tuned(classifier("Bert", records), config)


@entry("IA3 on BERT", needs=PEFT, why="learnt factors of activations")
def ia3(records: int) -> Case:
    import peft

    config = peft.IA3Config(
        task_type="SEQ_CLS", target_modules=["key", "value"], feedforward_modules=[]
    )
    return tuned(classifier("Bert", records), config)


@entry("prefix tuning of GPT-2", needs=PEFT, why="learnt keys and values for every record")
def prefix(records: int) -> Case:
    import peft

    hugging_face()
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return tuned(gpt2(records), config)


def _after_the_prompt(virtual: int, loss: Any) -> Any:
    """Drop the prompt's own positions, which have no label."""

    class Shown:
        def __init__(self, output: Any) -> None:
            self.logits = output.logits[:, virtual:]

    return lambda output, target: loss(Shown(output), target)


@entry("prompt tuning of GPT-2", needs=PEFT, why="learnt tokens before every record's")
def prompt(records: int) -> Case:
    import peft

    model, loss, x, y = gpt2(records)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return tuned((model, _after_the_prompt(3, loss), x, y), config)
