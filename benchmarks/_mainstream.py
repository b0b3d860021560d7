"""Models that people train, in sizes that a laptop steps through: none is downloaded.

Each gives a model in training mode, a loss with one value per record, and how its batches look.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._private_steps import cnn, lipschitz_mlp, mlp

LENGTH, VOCABULARY, CLASSES = 64, 1000, 10


@dataclass(frozen=True)
class Model:
    """A model and its usual batches.

    Attributes
    ----------
    build : callable
        Makes the module.
    loss : callable
        From output and target to one loss per record.
    batch : callable
        From a number of records to input and target.
    sizes : tuple of int
        Batches at which it is measured.
    lipschitz : bool
        Bounds are propagated rather than measured.
    """

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    batch: Callable[[int], tuple[Any, Any]]
    sizes: tuple[int, ...]
    lipschitz: bool = False


def _cross_entropy(output: Any, target: Tensor) -> Tensor:
    logits = output if isinstance(output, Tensor) else output.logits
    return functional.cross_entropy(logits, target, reduction="none")


def _every_token(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.transpose(1, 2), target, reduction="none").mean(1)


def _next_token(output: Any, target: Tensor) -> Tensor:
    return _every_token(output.logits[:, :-1], target[:, 1:])


def _sequence(output: Any, target: Tensor) -> Tensor:
    return _every_token(output.logits, target)


def _labels(records: int) -> Tensor:
    return torch.randint(CLASSES, (records,))


def _images(size: int) -> Callable[[int], tuple[Any, Any]]:
    return lambda records: (torch.randn(records, 3, size, size), _labels(records))


def _features(width: int, classes: int = CLASSES) -> Callable[[int], tuple[Any, Any]]:
    return lambda records: (torch.randn(records, width), torch.randint(classes, (records,)))


def _tokens(records: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(3, vocabulary, (records, LENGTH))


def _text(records: int) -> tuple[Any, Any]:
    mask = torch.ones(records, LENGTH, dtype=torch.long)
    return {"input_ids": _tokens(records), "attention_mask": mask}, _labels(records)


def _documents(vocabulary: int = VOCABULARY) -> Callable[[int], tuple[Any, Any]]:
    def batch(records: int) -> tuple[Any, Any]:
        tokens = _tokens(records, vocabulary)
        return {"input_ids": tokens}, tokens

    return batch


def _pairs(records: int) -> tuple[Any, Any]:
    target = _tokens(records)
    return {"input_ids": _tokens(records), "decoder_input_ids": target}, target


# -- models ----------------------------------------------------------------------------------


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


_ENCODER = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, outputs) for _ in range(2))
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(h)) + self.short(x))


def _resnet() -> nn.Module:
    """The ResNet-18 of CIFAR at a quarter of its width, with group norm."""
    widths, blocks = (16, 32, 64, 128), []
    inputs = 16
    for number, width in enumerate(widths):
        for place in range(2):
            blocks.append(_Residual(inputs, width, 2 if number and not place else 1))
            inputs = width
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))
    return nn.Sequential(*stem, *blocks, *head)


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 128)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(input_ids))[0][:, -1])


def _gpt2(vocabulary: int = VOCABULARY, width: int = 256, layers: int = 4) -> nn.Module:
    hf = _transformers()
    config = hf.GPT2Config(
        n_embd=width,
        n_layer=layers,
        n_head=4,
        vocab_size=vocabulary,
        n_positions=LENGTH,
        use_cache=False,
    )
    return hf.GPT2LMHeadModel(config)


def _bert() -> nn.Module:
    hf = _transformers()
    config = hf.BertConfig(**_ENCODER, vocab_size=VOCABULARY, num_labels=CLASSES)
    return hf.BertForSequenceClassification(config)


def _vit() -> nn.Module:
    hf = _transformers()
    config = hf.ViTConfig(**_ENCODER, image_size=32, patch_size=4, num_labels=CLASSES)
    return hf.ViTForImageClassification(config)


def _convnext() -> nn.Module:
    hf = _transformers()
    config = hf.ConvNextConfig(
        hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], num_labels=CLASSES, image_size=64
    )
    return hf.ConvNextForImageClassification(config)


def _swin() -> nn.Module:
    hf = _transformers()
    config = hf.SwinConfig(
        embed_dim=48,
        depths=[2, 2],
        num_heads=[3, 6],
        window_size=4,
        image_size=32,
        patch_size=2,
        num_labels=CLASSES,
    )
    return hf.SwinForImageClassification(config)


def _t5() -> nn.Module:
    hf = _transformers()
    config = hf.T5Config(
        d_model=256,
        d_ff=1024,
        d_kv=64,
        num_layers=3,
        num_heads=4,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return hf.T5ForConditionalGeneration(config)


def _lora() -> nn.Module:
    hf = _transformers()
    import peft

    config = hf.LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    wanted = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    return peft.get_peft_model(hf.LlamaForCausalLM(config), wanted)


def _mamba() -> nn.Module:
    hf = _transformers()
    config = hf.MambaConfig(
        hidden_size=64, num_hidden_layers=2, vocab_size=VOCABULARY, use_cache=False
    )
    return hf.MambaForCausalLM(config)


def _image_classifier() -> tuple[Callable[[Any, Any], Tensor], Callable[[int], tuple[Any, Any]]]:
    return _cross_entropy, _images(32)


MODELS = {
    "linear": Model(
        "tiny linear model", lambda: nn.Linear(20, 2), _cross_entropy, _features(20, 2), (32, 256)
    ),
    "mlp": Model("MLP 855k", mlp, *_image_classifier(), (64, 1024)),
    "cnn": Model("CNN 357k", cnn, *_image_classifier(), (64, 256)),
    "resnet": Model("ResNet-18, group norm", _resnet, *_image_classifier(), (64, 256)),
    "lstm": Model("LSTM", _LSTM, _cross_entropy, _text, (16, 64)),
    "gpt2": Model("GPT-2-like", _gpt2, _next_token, _documents(), (8, 32)),
    "bert": Model("BERT-like", _bert, _cross_entropy, _text, (8, 32)),
    "vit": Model("ViT", _vit, *_image_classifier(), (8, 32)),
    "convnext": Model("ConvNeXt", _convnext, _cross_entropy, _images(64), (8, 32)),
    "swin": Model("Swin", _swin, *_image_classifier(), (8, 32)),
    "t5": Model("T5-like", _t5, _sequence, _pairs, (8, 32)),
    "lora": Model("Llama with LoRA", _lora, _next_token, _documents(), (8, 32)),
    "mamba": Model("Mamba", _mamba, _next_token, _documents(), (8,)),
    "head": Model(
        "head of 50,000 classes",
        lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 50_000)),
        _cross_entropy,
        _features(64, 50_000),
        (64, 256),
    ),
    "tied": Model(
        "GPT-2-like, 50,000 tied tokens",
        lambda: _gpt2(50_000, 128, 2),
        _next_token,
        _documents(50_000),
        (4,),
    ),
    "lipschitz": Model(
        "Lipschitz MLP", lipschitz_mlp, *_image_classifier(), (64, 1024), lipschitz=True
    ),
}
