"""Hugging Face models: small sizes, everything else as their configurations have it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.nn import functional

from zoo.registry import (
    CLASSES,
    LENGTH,
    VOCABULARY,
    Case,
    causal,
    classes,
    entry,
    flattened,
    images,
    in_place,
    next_tokens,
    of_logits,
    padding,
    text,
    tokens,
)

HF = ("transformers",)
ENCODER = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=VOCABULARY,
    max_position_embeddings=64,
    num_labels=CLASSES,
)
DECODER = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=VOCABULARY,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    num_labels=CLASSES,
)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def hugging_face() -> Any:
    """The package, quiet and offline."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def segments(records: int) -> torch.Tensor:
    """Token types of sentence pairs."""
    return (torch.arange(LENGTH) >= LENGTH // 2).long().repeat(records, 1)


def classifier(name: str, records: int, **more: Any) -> Case:
    """<name>ForSequenceClassification on padded text."""
    hf = hugging_face()
    config = getattr(hf, f"{name}Config")(**{**ENCODER, **more})
    model = getattr(hf, f"{name}ForSequenceClassification")(config).train()
    return model, of_logits, text(records), classes(records)


def language_model(name: str, records: int, **more: Any) -> Case:
    """<name>ForCausalLM on padded text."""
    hf = hugging_face()
    config = getattr(hf, f"{name}Config")(**{**DECODER, **more})
    batch = text(records)
    return getattr(hf, f"{name}ForCausalLM")(config).train(), causal, batch, next_tokens(batch)


# ------------------------------------------------------------------ encoders of text
@entry("BERT", needs=HF, core=True, why="dropout 0.1, SDPA, padding and token types")
def bert(records: int) -> Case:
    model, loss, x, y = classifier("Bert", records)
    return model, loss, {**x, "token_type_ids": segments(records)}, y


@entry("BERT without a mask", needs=HF, why="another path through the attention")
def bert_unmasked(records: int) -> Case:
    model, loss, x, y = classifier("Bert", records)
    return model, loss, {"input_ids": x["input_ids"]}, y


@entry("BERT eager attention", needs=HF, why="softmax and dropout by hand")
def bert_eager(records: int) -> Case:
    model, loss, x, y = classifier("Bert", records, attn_implementation="eager")
    return model, loss, x, y


@entry("BERT masked language model", needs=HF, why="tied head, labels over (B*T, vocabulary)")
def bert_mlm(records: int) -> Case:
    hf = hugging_face()
    batch = text(records)
    return hf.BertForMaskedLM(hf.BertConfig(**ENCODER)).train(), in_place, batch, next_tokens(batch)


@entry("BERT token classification", needs=HF, why="one label a token")
def bert_tokens(records: int) -> Case:
    hf = hugging_face()
    batch = text(records)
    labels = torch.randint(0, CLASSES, (records, LENGTH)).masked_fill(
        batch["attention_mask"] == 0, -100
    )
    return hf.BertForTokenClassification(hf.BertConfig(**ENCODER)).train(), in_place, batch, labels


@entry("BERT question answering", needs=HF, why="a pair of targets, two outputs")
def bert_spans(records: int) -> Case:
    hf = hugging_face()
    model = hf.BertForQuestionAnswering(hf.BertConfig(**{**ENCODER, "num_labels": 2})).train()

    def both(output: Any, target: dict[str, torch.Tensor]) -> torch.Tensor:
        start = functional.cross_entropy(output.start_logits, target["start"], reduction="none")
        end = functional.cross_entropy(output.end_logits, target["end"], reduction="none")
        return (start + end) / 2

    spans = {"start": torch.randint(0, 5, (records,)), "end": torch.randint(5, 9, (records,))}
    return model, both, text(records), spans


@entry("BERT with gradient checkpointing", needs=HF, why="dropout is drawn again in the backward")
def bert_checkpointed(records: int) -> Case:
    model, loss, x, y = classifier("Bert", records)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, loss, x, y


@entry("RoBERTa", needs=HF, why="positions are counted from the padding, by cumsum")
def roberta(records: int) -> Case:
    model, loss, x, y = classifier("Roberta", records, **SPECIAL)
    return model, loss, x, y


@entry("DistilBERT", needs=HF, why="dropout within and before the head")
def distilbert(records: int) -> Case:
    hf = hugging_face()
    config = hf.DistilBertConfig(
        dim=32, hidden_dim=64, n_layers=2, n_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=64, num_labels=CLASSES,
    )  # fmt: skip
    model = hf.DistilBertForSequenceClassification(config).train()
    return model, of_logits, text(records), classes(records)


@entry("ELECTRA", needs=HF, why="embedding of another width")
def electra(records: int) -> Case:
    model, loss, x, y = classifier("Electra", records, embedding_size=16)
    return model, loss, {**x, "token_type_ids": segments(records)}, y


@entry("ALBERT", needs=HF, why="one layer used twice")
def albert(records: int) -> Case:
    return classifier("Albert", records, embedding_size=16, **SPECIAL)


@entry("DeBERTa-v2", needs=HF, why="relative positions, scripted helpers")
def deberta(records: int) -> Case:
    return classifier(
        "DebertaV2", records, relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True,
    )  # fmt: skip


@entry("ModernBERT", needs=HF, why="local attention, rotary positions")
def modernbert(records: int) -> Case:
    return classifier(
        "ModernBert", records, cls_token_id=1, sep_token_id=2, attn_implementation="sdpa", **SPECIAL
    )


# ------------------------------------------------------------------ decoders of text
@entry("GPT-2", needs=HF, core=True, why="dropout 0.1, Conv1D, tied head, causal mask")
def gpt2(records: int) -> Case:
    hf = hugging_face()
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    batch = text(records)
    return hf.GPT2LMHeadModel(config).train(), causal, batch, next_tokens(batch)


@entry("GPT-2 classification", needs=HF, why="reads the last token that is not padding")
def gpt2_classifier(records: int) -> Case:
    hf = hugging_face()
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, num_labels=CLASSES,
        pad_token_id=0,
    )  # fmt: skip
    model = hf.GPT2ForSequenceClassification(config).train()
    return model, of_logits, text(records), classes(records)


@entry("GPT-2 with gradient checkpointing", needs=HF, why="checkpointed blocks, tied head")
def gpt2_checkpointed(records: int) -> Case:
    model, loss, x, y = gpt2(records)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, loss, x, y


@entry("GPT-2 flattened loss", needs=HF, why="labels and logits over (B*T)")
def gpt2_flattened(records: int) -> Case:
    model, _, x, y = gpt2(records)
    return model, flattened, x, y


@entry("Llama", needs=HF, why="rotary positions, grouped heads")
def llama(records: int) -> Case:
    return language_model("Llama", records)


@entry("Llama without a mask", needs=HF, why="the mask is never made")
def llama_unmasked(records: int) -> Case:
    model, loss, x, y = language_model("Llama", records)
    return model, loss, {"input_ids": x["input_ids"]}, y


@entry("Mistral", needs=HF, why="sliding window")
def mistral(records: int) -> Case:
    return language_model("Mistral", records, sliding_window=4)


@entry("Qwen2", needs=HF, why="biases in the projections")
def qwen2(records: int) -> Case:
    return language_model("Qwen2", records)


@entry("Qwen3", needs=HF, why="norms of queries and keys")
def qwen3(records: int) -> Case:
    return language_model("Qwen3", records, head_dim=8)


@entry("Gemma", needs=HF, why="scaled embedding, tied head")
def gemma(records: int) -> Case:
    return language_model("Gemma", records, head_dim=8)


@entry("Gemma 2", needs=HF, why="soft caps, alternating windows")
def gemma2(records: int) -> Case:
    return language_model("Gemma2", records, head_dim=8, sliding_window=4)


@entry("Mamba", needs=HF, why="a scan over time")
def mamba(records: int) -> Case:
    hf = hugging_face()
    config = hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, **SPECIAL
    )
    batch = text(records)
    return hf.MambaForCausalLM(config).train(), causal, batch, next_tokens(batch)


@entry("Mamba in evaluation mode", needs=HF, why="a cache, an object that every layer writes into")
def mamba_cached(records: int) -> Case:
    model, loss, x, y = mamba(records)
    return model.eval(), loss, x, y


@entry("GPT-2 in evaluation mode", needs=HF, why="a cache of keys and values, no dropout")
def gpt2_cached(records: int) -> Case:
    model, loss, x, y = gpt2(records)
    return model.eval(), loss, x, y


@entry(
    "Mixtral",
    needs=HF,
    refusal="merged with other axes.*batched_mm",
    why="tokens are routed to experts, all records' together",
)
def mixtral(records: int) -> Case:
    return language_model("Mixtral", records, num_local_experts=4)


@entry(
    "Mixtral, a product for every token", needs=HF, why="routing where tokens stay where they are"
)
def mixtral_in_place(records: int) -> Case:
    model, loss, x, y = language_model("Mixtral", records, num_local_experts=4)
    model.set_experts_implementation("batched_mm")
    return model, loss, x, y


# ------------------------------------------------------------------ sequence to sequence
def seq2seq(model: torch.nn.Module, records: int) -> Case:
    batch = text(records)
    labels = next_tokens({"input_ids": tokens(records, 7), "attention_mask": padding(records, 7)})
    begun = torch.cat([torch.ones(records, 1, dtype=torch.long), labels[:, :-1].clamp_min(0)], 1)
    return model.train(), in_place, {**batch, "decoder_input_ids": begun}, labels


@entry("T5", needs=HF, core=True, why="relative bias, shared embedding, encoder and decoder")
def t5(records: int) -> Case:
    hf = hugging_face()
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return seq2seq(hf.T5ForConditionalGeneration(config), records)


@entry("BART", needs=HF, why="cross attention, learnt positions")
def bart(records: int) -> Case:
    hf = hugging_face()
    config = hf.BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=64, decoder_start_token_id=2, forced_eos_token_id=2, **SPECIAL,
    )  # fmt: skip
    return seq2seq(hf.BartForConditionalGeneration(config), records)


@entry("Whisper", needs=HF, why="convolutions over time, then encoder and decoder")
def whisper(records: int) -> Case:
    hf = hugging_face()
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=20, max_target_positions=32,
        decoder_start_token_id=1, **SPECIAL,
    )  # fmt: skip
    labels = next_tokens({"input_ids": tokens(records, 7), "attention_mask": padding(records, 7)})
    begun = torch.cat([torch.ones(records, 1, dtype=torch.long), labels[:, :-1].clamp_min(0)], 1)
    x = {"input_features": torch.randn(records, 8, 40), "decoder_input_ids": begun}
    return hf.WhisperForConditionalGeneration(config).train(), in_place, x, labels


# ------------------------------------------------------------------ images, sound, both
@entry("ViT", needs=HF, why="class token and table of positions")
def vit(records: int) -> Case:
    hf = hugging_face()
    model = hf.ViTForImageClassification(hf.ViTConfig(**VISION)).train()
    return model, of_logits, {"pixel_values": images(records)}, classes(records)


@entry("Swin", needs=HF, core=True, why="windows merged with the batch, drop path")
def swin(records: int) -> Case:
    hf = hugging_face()
    config = hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
        num_labels=CLASSES,
    )  # fmt: skip
    model = hf.SwinForImageClassification(config).train()
    return model, of_logits, {"pixel_values": images(records)}, classes(records)


@entry("ConvNeXt", needs=HF, why="depthwise convolutions, layer scale, drop path")
def convnext(records: int) -> Case:
    hf = hugging_face()
    config = hf.ConvNextConfig(
        hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 2, 1], image_size=32, num_labels=CLASSES,
        drop_path_rate=0.1,
    )  # fmt: skip
    model = hf.ConvNextForImageClassification(config).train()
    return model, of_logits, {"pixel_values": images(records)}, classes(records)


WAVE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    conv_dim=[16, 16], conv_kernel=[10, 3], conv_stride=[5, 2], num_feat_extract_layers=2,
    num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, num_labels=CLASSES,
    classifier_proj_size=16,
)  # fmt: skip


def wave(records: int, **more: Any) -> Case:
    hf = hugging_face()
    model = hf.Wav2Vec2ForSequenceClassification(hf.Wav2Vec2Config(**{**WAVE, **more})).train()
    return model, of_logits, {"input_values": torch.randn(records, 400)}, classes(records)


@entry(
    "wav2vec2",
    needs=HF,
    host_draws=("transformers.models.wav2vec2.modeling_wav2vec2._compute_mask_indices",),
    refusal="outside the tape|unknown origin",
    why="masks drawn by numpy, layers dropped by the throw of one coin",
)
def wav2vec2(records: int) -> Case:
    return wave(records)


@entry("wav2vec2 without masking and layer drop", needs=HF, why="group norm over time, weight norm")
def wav2vec2_plain(records: int) -> Case:
    return wave(records, mask_time_prob=0.0, layerdrop=0.0)


@entry("CLIP", needs=HF, why="two towers, a loss within the pair of one record")
def clip(records: int) -> Case:
    hf = hugging_face()
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = hf.CLIPConfig(
        text_config={
            **tower, "vocab_size": VOCABULARY, "max_position_embeddings": 32, **SPECIAL
        },
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )  # fmt: skip
    model = hf.CLIPModel(config).train()

    def own_pair(output: Any, target: torch.Tensor) -> torch.Tensor:
        return target - (output.text_embeds * output.image_embeds).sum(1)

    x = {**text(records), "pixel_values": images(records)}
    return model, own_pair, x, torch.ones(records)


@entry("CLIP image tower", needs=HF, why="one tower of two: the other's parameters never learn")
def clip_image(records: int) -> Case:
    hf = hugging_face()
    config = hf.CLIPVisionConfig(**{k: v for k, v in VISION.items() if k != "num_labels"})
    model = hf.CLIPVisionModel(config).train()

    def pooled(output: Any, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.pooler_output, target, reduction="none")

    return model, pooled, {"pixel_values": images(records)}, classes(records)
