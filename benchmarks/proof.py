"""A proof that records stay apart, beside one plain forward and backward pass.

``python -m benchmarks.proof [--tasks bert,gpt2,resnet,mlp] [--repeats 5] [--threads 1,0]``. Pass
and proof in turns, on the same model and batch; what counts is the ratio, once for a
training. Memory is measured in processes of their own, as the largest resident size beyond what
model, batch and one pass before had taken; Linux only. 0 threads are as many as torch takes.
What it costs later steps to be bound to it, ``python -m benchmarks.binding`` shows.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import noisewise as nw
from benchmarks import interleaved, table
from benchmarks._private_steps import mlp
from benchmarks.gradient_memory import _size

#: (model in training mode, loss, x, y)
Case = tuple[nn.Module, Callable[[Any, Any], torch.Tensor], Any, torch.Tensor]


# ------------------------------------------------------------------ tasks
def classified(output: Any, target: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return functional.cross_entropy(logits, target, reduction="none")


def continued(output: Any, target: torch.Tensor) -> torch.Tensor:
    logits = output.logits[:, :-1].transpose(1, 2)
    return functional.cross_entropy(logits, target[:, 1:], reduction="none").mean(1)


def hugging_face() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def bert(width: int, heads: int, records: int) -> Case:
    hf = hugging_face()
    config = hf.BertConfig(
        hidden_size=width, num_hidden_layers=12, num_attention_heads=heads,
        intermediate_size=4 * width, num_labels=3,
    )  # fmt: skip
    mask = torch.ones(records, 64, dtype=torch.long)
    mask[::3, 45:] = 0
    x = {"input_ids": torch.randint(5, 30000, (records, 64)), "attention_mask": mask}
    model = hf.BertForSequenceClassification(config).train()
    return model, classified, x, torch.randint(3, (records,))


def gpt2() -> Case:
    hf = hugging_face()
    config = hf.GPT2Config(n_embd=256, n_layer=12, n_head=4, vocab_size=10000, n_positions=128)
    words = torch.randint(10000, (16, 64))
    return hf.GPT2LMHeadModel(config).train(), continued, {"input_ids": words}, words.clone()


class Block(nn.Module):
    """A basic block of ResNet-18, with group normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(16, outputs),
            nn.ReLU(inplace=True), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(16, outputs),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Body and shortcut."""
        return functional.relu(self.body(x) + self.short(x), inplace=True)


def resnet() -> Case:
    widths = [64, 64, 128, 256, 512]
    blocks = [
        Block(inputs if first else outputs, outputs, 2 if first and outputs > 64 else 1)
        for inputs, outputs in itertools.pairwise(widths)
        for first in (True, False)
    ]
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), nn.GroupNorm(16, 64), nn.ReLU(inplace=True), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    return model, classified, torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def dense() -> Case:
    return mlp(), classified, torch.randn(256, 3, 32, 32), torch.randint(10, (256,))


@dataclass(frozen=True)
class Task:
    """What is proven, and how it is called."""

    name: str
    build: Callable[[], Case]


TASKS = {
    "bert": Task("BERT, 12 layers of 256, 16 x 64", lambda: bert(256, 4, 16)),
    "bert-base": Task("BERT base, 12 layers of 768, 8 x 64", lambda: bert(768, 12, 8)),
    "gpt2": Task("GPT-2, 12 layers of 256, 16 x 64", gpt2),
    "resnet": Task("ResNet-18, group norm, 16 images of 32 x 32", resnet),
    "mlp": Task("MLP, 3 layers, 256 images of 32 x 32", dense),
}
PASS, PROOF = "pass", "proof"


def runs(task: Task) -> dict[str, Callable[[], object]]:
    """One plain pass, and one proof, of the same model and batch."""
    torch.manual_seed(0)
    model, loss, x, y = task.build()

    def once() -> None:
        model.zero_grad(set_to_none=True)
        output = model(**x) if isinstance(x, dict) else model(x)
        loss(output, y).sum().backward()

    def prove() -> None:
        model.zero_grad(set_to_none=True)
        proof = nw.prove_apart(model, loss, x, y)
        assert proof.proven, str(proof)

    return {PASS: once, PROOF: prove}


# ------------------------------------------------------------------ memory
def memory_needed(key: str, what: str) -> int:
    """Bytes that one pass or proof needs beyond model, batch and what a pass leaves behind."""
    both = runs(TASKS[key])
    both[PASS]()  # kernels and gradients: held in any case
    File("/proc/self/clear_refs").write_text("5")
    before = _size("VmRSS")
    both[what]()
    return _size("VmHWM") - before


def memory_apart(key: str, what: str) -> int:
    """The same in a process of its own that gives freed memory back at once."""
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.proof", "--memory-of", f"{key}:{what}"]
    answer = subprocess.run(
        command, env={**os.environ, **settings}, check=True, capture_output=True, text=True
    )
    return int(answer.stdout.split()[-1])


# ------------------------------------------------------------------ tables
def show(keys: list[str], threads: int, repeats: int, memory: bool) -> None:
    rows = []
    for key in keys:
        seconds = interleaved(runs(TASKS[key]), repeats)
        cells = [
            TASKS[key].name,
            f"{1e3 * seconds[PASS]:.0f} ms",
            f"{1e3 * seconds[PROOF]:.0f} ms",
            f"{seconds[PROOF] / seconds[PASS]:.1f}",
        ]
        if memory:
            needed = {what: memory_apart(key, what) for what in (PASS, PROOF)}
            cells += [f"{needed[what] / 2**20:.0f} MiB" for what in (PASS, PROOF)]
            cells += [f"{needed[PROOF] / max(needed[PASS], 1):.1f}"]
        else:
            cells += ["", "", ""]
        rows.append(tuple(cells))
    title = f"A proof beside one forward and backward pass, {threads} thread(s)"
    header = ("", "a pass", "a proof", "ratio", "pass holds", "proof holds", "ratio")
    table(title, header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", default="1,0")
    parser.add_argument("--memory-of", default="", help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    if arguments.memory_of:
        torch.set_num_threads(1)
        print(memory_needed(*arguments.memory_of.split(":")))
        return
    default = torch.get_num_threads()
    for position, count in enumerate(arguments.threads.split(",")):
        torch.set_num_threads(int(count) or default)
        memory = position == 0
        show(arguments.tasks.split(","), torch.get_num_threads(), arguments.repeats, memory)
    torch.set_num_threads(default)


if __name__ == "__main__":
    main()
