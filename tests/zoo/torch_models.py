"""Models of plain torch: recurrent ones, transformers, images, tables, graphs, noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from zoo.registry import (
    CLASSES,
    LENGTH,
    VOCABULARY,
    Case,
    classes,
    cross_entropy,
    entry,
    images,
    padding,
    tokens,
)

WIDTH = 16


def steps(records: int) -> torch.Tensor:
    """A sequence of vectors per record."""
    return torch.randn(records, 7, WIDTH)


# ------------------------------------------------------------------ recurrent
class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], first: bool = True, **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(WIDTH, 12, batch_first=first, **options)
        self.head = nn.Linear(12 * (2 if options.get("bidirectional") else 1), CLASSES)
        self.dropout, self.first = nn.Dropout(0.1), first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.recurrent(x if self.first else x.transpose(0, 1))[0]
        return self.head(self.dropout(states[:, -1] if self.first else states[-1]))


@entry("LSTM", core=True, why="fused gates, one weight used at every time")
def lstm(records: int) -> Case:
    return Recurrent(nn.LSTM), nn.CrossEntropyLoss(), steps(records), classes(records)


@entry("LSTM of two layers, both ways, time first", why="dropout between layers, batch axis 1")
def lstm_deep(records: int) -> Case:
    model = Recurrent(nn.LSTM, first=False, num_layers=2, bidirectional=True, dropout=0.2)
    return model, nn.CrossEntropyLoss(), steps(records), classes(records)


@entry("GRU", why="another cell")
def gru(records: int) -> Case:
    model = Recurrent(nn.GRU, num_layers=2, dropout=0.2)
    return model, nn.CrossEntropyLoss(), steps(records), classes(records)


class LearntStart(nn.Module):
    """A first state that learns, expanded over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(WIDTH, 12, batch_first=True)
        self.start = nn.Parameter(torch.randn(1, 1, 12))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = self.start.expand(-1, x.shape[0], -1).contiguous()
        return self.head(self.recurrent(x, start)[0].mean(1))


@entry("GRU with a learnt first state", why="a parameter expanded along batch axis 1")
def gru_start(records: int) -> Case:
    return LearntStart(), cross_entropy, steps(records), classes(records)


class Packed(nn.Module):
    """Padded sequences, packed by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.recurrent = nn.LSTM(WIDTH, 12, batch_first=True)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(12, CLASSES)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.embed(words)), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.head(self.recurrent(packed)[1][0][-1])


@entry("packed LSTM", refusal="packed sequence", why="rows sorted by private lengths")
def packed(records: int) -> Case:
    mask = padding(records)
    x = (tokens(records) * mask, mask.sum(1))
    return Packed(), cross_entropy, x, classes(records)


class Cells(nn.Module):
    """A loop over time in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(WIDTH, 12), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 12), x.new_zeros(x.shape[0], 12)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return self.head(state[0])


@entry("LSTM cells in a loop", why="a weight used once per step of a Python loop")
def cells(records: int) -> Case:
    return Cells(), cross_entropy, steps(records), classes(records)


# ------------------------------------------------------------------ transformers
class Encoder(nn.Module):
    def __init__(self, first: bool, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=first, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.first = nn.Linear(WIDTH, CLASSES), first

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        if self.first:
            return self.head(self.encoder(x, src_key_padding_mask=padded).mean(1))
        states = self.encoder(x.transpose(0, 1), src_key_padding_mask=padded)
        return self.head(states.mean(0))


def masked_steps(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    return steps(records), padding(records, 7) == 0


@entry("nn.TransformerEncoder", why="default dropout 0.1, padding mask")
def encoder(records: int) -> Case:
    return Encoder(True), cross_entropy, masked_steps(records), classes(records)


@entry("nn.TransformerEncoder, sequence first", core=True, why="batch on axis 1")
def encoder_sequence_first(records: int) -> Case:
    return Encoder(False), cross_entropy, masked_steps(records), classes(records)


@entry("nn.TransformerEncoder, norm first", why="pre-norm, GELU")
def encoder_norm_first(records: int) -> Case:
    model = Encoder(True, norm_first=True, activation="gelu")
    return model, cross_entropy, masked_steps(records), classes(records)


class WholeTransformer(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 1, 1, 32, batch_first=first)
        self.head, self.first = nn.Linear(WIDTH, VOCABULARY), first
        mask = nn.Transformer.generate_square_subsequent_mask(7)
        self.register_buffer("causal", mask)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        a, b = self.source(source), self.target(target)
        if not self.first:
            a, b = a.transpose(0, 1), b.transpose(0, 1)
        states = self.transformer(a, b, tgt_mask=self.causal)
        return self.head(states if self.first else states.transpose(0, 1))


def token_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.transpose(1, 2), target, reduction="none").mean(1)


@entry("nn.Transformer", why="encoder, decoder, cross attention")
def transformer(records: int) -> Case:
    x = tokens(records), tokens(records, 7)
    return WholeTransformer(True), token_loss, x, tokens(records, 7)


@entry("nn.Transformer, sequence first", why="the module's own default layout")
def transformer_sequence_first(records: int) -> Case:
    x = tokens(records), tokens(records, 7)
    return WholeTransformer(False), token_loss, x, tokens(records, 7)


class DropPath(nn.Module):
    """Drop a record's whole branch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.keep = 1 - rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.dim() - 1)
        return x * x.new_empty(shape).bernoulli_(self.keep) / self.keep


class Residuals(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), DropPath(0.3))
            for _ in range(blocks)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@entry("drop path", why="one coin per record and branch")
def drop_path(records: int) -> Case:
    return Residuals(), cross_entropy, torch.randn(records, WIDTH), classes(records)


# ------------------------------------------------------------------ batch merged with other axes
class Merged(nn.Module):
    """Linear maps over (B*T, d) or (T*B, d), as older code writes them."""

    def __init__(self, time_first: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 20), nn.Linear(20, CLASSES)
        self.norm, self.dropout = nn.LayerNorm(20), nn.Dropout(0.1)
        self.time_first = time_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        records, length, width = x.shape
        if self.time_first:
            x = x.transpose(0, 1)
        states = self.dropout(self.norm(self.a(x.reshape(-1, width)).relu()))
        logits = self.b(states)
        if self.time_first:
            return logits.view(length, records, -1).mean(0)
        return logits.view(records, length, -1).mean(1)


@entry("linear maps over (B*T, d)", core=True, why="records merged with time, records outside")
def merged(records: int) -> Case:
    return Merged(False), cross_entropy, steps(records), classes(records)


@entry("linear maps over (T*B, d)", why="records merged with time, records inside")
def merged_inside(records: int) -> Case:
    return Merged(True), cross_entropy, steps(records), classes(records)


class Video(nn.Module):
    """A network for images over all frames of all records."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Dropout2d(0.1),
            nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.time, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        records, length = x.shape[:2]
        seen = self.frames(x.flatten(0, 1)).view(records, length, -1)
        return self.head(self.time(seen)[0][:, -1])


@entry("video CNN over (B*T) frames", why="convolutions and group norm on merged frames")
def video(records: int) -> Case:
    return Video(), cross_entropy, torch.randn(records, 4, 3, 10, 10), classes(records)


# ------------------------------------------------------------------ images
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs),
                nn.SiLU(inplace=True), nn.Dropout2d(0.1),
            )  # fmt: skip

        self.down, self.deep, self.last = block(3, 8), block(8, 16), block(16, 8)
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.down(x)
        up = self.up(self.deep(functional.max_pool2d(seen, 2)))
        return self.head(self.last(torch.cat([seen, up], 1)))


def pixel_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, target, reduction="none").flatten(1).mean(1)


@entry("U-Net", why="transposed convolution, skips, channel dropout, in-place SiLU")
def unet(records: int) -> Case:
    return UNet(), pixel_loss, images(records, 16), torch.randint(0, 2, (records, 16, 16))


class Block(nn.Module):
    """A residual block with in-place operations, as torchvision's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.b = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.n, self.m = nn.GroupNorm(4, width), nn.GroupNorm(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.m(self.b(functional.relu(self.n(self.a(x)), inplace=True)))
        out += x
        return functional.relu(out, inplace=True)


@entry("ResNet with group norm", why="in-place additions and ReLU")
def resnet(records: int) -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.MaxPool2d(2), Block(16), Block(16), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip
    return model, nn.CrossEntropyLoss(), images(records), classes(records)


@entry("frozen BatchNorm in evaluation mode", core=True, why="an affine map with kept statistics")
def frozen_batch_norm(records: int) -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(32, CLASSES),
    ).train()  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.eval().requires_grad_(False)
    return model, cross_entropy, images(records, 10), classes(records)


@entry(
    "BatchNorm in evaluation mode that learns its scale", why="statistics frozen, affine trained"
)
def affine_batch_norm(records: int) -> Case:
    model, loss, x, y = frozen_batch_norm(records)
    return model.requires_grad_(True), loss, x, y


# ------------------------------------------------------------------ tables
class Dlrm(nn.Module):
    """Bags of categories by flat indices and offsets; products of all pairs."""

    def __init__(self, bags: int = 3, most: int = 4) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(bags))
        self.dense = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.most = most

    def forward(
        self, dense: torch.Tensor, categories: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        records = dense.shape[0]
        offsets = torch.arange(0, records * self.most, self.most)
        found = [
            bag(categories[:, k].reshape(-1), offsets, per_sample_weights=weights[:, k].reshape(-1))
            for k, bag in enumerate(self.bags)
        ]
        vectors = torch.stack([self.dense(dense), *found], 1)
        products = vectors @ vectors.transpose(1, 2)
        i, j = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([vectors[:, 0], products[:, i, j]], 1)).squeeze(1)


@entry("DLRM", core=True, why="EmbeddingBag with offsets and a public most per record")
def dlrm(records: int) -> Case:
    kept = (torch.rand(records, 3, 4) < 0.7).float()
    x = torch.randn(records, 6), torch.randint(0, 50, (records, 3, 4)), kept
    return Dlrm(), nn.BCEWithLogitsLoss(), x, torch.randint(0, 2, (records,)).float()


class FeatureTokens(nn.Module):
    """FT-Transformer: a token per column, an encoder, a class token."""

    def __init__(self, numbers: int = 4, categories: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, WIDTH) / 4)
        self.bias = nn.Parameter(torch.randn(numbers + categories, WIDTH) / 4)
        self.embed = nn.Embedding(10 * categories, WIDTH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) / 4)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 32, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.register_buffer("offsets", 10 * torch.arange(categories))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        columns = torch.cat(
            [numbers[..., None] * self.weight, self.embed(categories + self.offsets)], 1
        )
        token = self.token.expand(numbers.shape[0], -1, -1)
        states = self.encoder(torch.cat([token, columns + self.bias], 1))
        return self.head(states[:, 0]).squeeze(1)


@entry("FT-Transformer", why="bare parameters per column, class token")
def feature_tokens(records: int) -> Case:
    x = torch.randn(records, 4), torch.randint(0, 10, (records, 3))
    return FeatureTokens(), nn.MSELoss(), x, torch.randn(records)


class Tagger(nn.Module):
    """A BiLSTM whose tags are scored by a conditional random field; its output is the loss."""

    def __init__(self, tags: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, 8, batch_first=True, bidirectional=True)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(16, tags)
        self.moves = nn.Parameter(torch.randn(tags, tags) / 2)
        self.first = nn.Parameter(torch.randn(tags) / 2)

    def forward(self, words: torch.Tensor, mask: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.dropout(self.recurrent(self.embed(words))[0]))
        return self.partition(scores, mask) - self.path(scores, mask, tags)

    def path(self, scores: torch.Tensor, mask: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        emitted = scores.gather(2, tags[..., None]).squeeze(2)
        moved = self.moves[tags[:, :-1], tags[:, 1:]]
        return self.first[tags[:, 0]] + (emitted * mask).sum(1) + (moved * mask[:, 1:]).sum(1)

    def partition(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        alpha = self.first + scores[:, 0]
        for time in range(1, scores.shape[1]):
            ahead = torch.logsumexp(alpha[:, :, None] + self.moves, 1) + scores[:, time]
            alpha = torch.where(mask[:, time, None] > 0, ahead, alpha)
        return torch.logsumexp(alpha, 1)


@entry("CRF", why="tags inside the model, a recursion over a transition matrix")
def crf(records: int) -> Case:
    x = tokens(records), padding(records).float(), torch.randint(0, 4, (records, LENGTH))
    return Tagger(), lambda output, target: output * target, x, torch.ones(records)


# ------------------------------------------------------------------ graphs
class MergedGraph(nn.Module):
    """Nodes of all records in one list, edges that are the same for all: a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        records, nodes, _ = x.shape
        ring = torch.arange(nodes)
        edges = torch.stack([ring, (ring + 1) % nodes])
        edges = torch.cat([edges + k * nodes for k in range(records)], 1)
        state = x.flatten(0, 1)
        for layer in (self.a, self.b):
            sent = layer(state)
            state = sent.index_add(0, edges[1], sent[edges[0]]).relu()
        belongs = torch.arange(records).repeat_interleave(nodes)
        summed = state.new_zeros(records, 12).index_add(0, belongs, self.dropout(state))
        return self.head(summed / nodes)


@entry("graph network, nodes merged, public edges", why="index_add over merged nodes")
def graph(records: int) -> Case:
    return MergedGraph(), cross_entropy, torch.randn(records, 6, 8), classes(records)


class PaddedGraph(nn.Module):
    """Edges of every record padded to a public most, gathered within the record."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        for layer in (self.a, self.b):
            sent = layer(x)
            width = sent.shape[-1]
            source = edges[:, 0, :, None].expand(-1, -1, width)
            goal = edges[:, 1, :, None].expand(-1, -1, width)
            message = sent.gather(1, source) * kept[..., None]
            x = sent.scatter_add(1, goal, message).relu()
        return self.head(x.mean(1))


@entry("graph network, private edges within a record", why="gather and scatter along nodes")
def padded_graph(records: int) -> Case:
    kept = (torch.rand(records, 9) < 0.7).float()
    x = torch.randn(records, 6, 8), torch.randint(0, 6, (records, 2, 9)), kept
    return PaddedGraph(), cross_entropy, x, classes(records)


class OffsetGraph(PaddedGraph):
    """The same edges shifted into one list of nodes, as graph libraries batch them."""

    def forward(self, x: torch.Tensor, edges: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        records, nodes, _ = x.shape
        shift = nodes * torch.arange(records)[:, None]
        source, goal = (edges[:, 0] + shift).reshape(-1), (edges[:, 1] + shift).reshape(-1)
        state = x.flatten(0, 1)
        for layer in (self.a, self.b):
            sent = layer(state)
            message = sent[source] * kept.reshape(-1, 1)
            state = sent.index_add(0, goal, message).relu()
        return self.head(state.view(records, nodes, -1).mean(1))


@entry(
    "graph network, private edges shifted by offsets",
    refusal="index at .*torch_models.py:[0-9]+ mixes records",
    why="private indices into the list of all nodes: only their range keeps records apart",
)
def offset_graph(records: int) -> Case:
    _, loss, x, y = padded_graph(records)
    return OffsetGraph(), loss, x, y


# ------------------------------------------------------------------ noise, several outputs
class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, WIDTH))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return {"mean": mean, "log_variance": log_variance, "seen": self.decoder(code)}


def evidence(output: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    mean, log_variance = output["mean"], output["log_variance"]
    error = functional.mse_loss(output["seen"], target, reduction="none").sum(1)
    return error - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)


@entry("VAE", core=True, why="noise of the reparametrisation, a dictionary of outputs")
def vae(records: int) -> Case:
    x = torch.randn(records, WIDTH)
    return Vae(), evidence, x, x.clone()


class Gumbel(nn.Module):
    """A discrete code by Gumbel noise, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.code(functional.gumbel_softmax(self.encoder(x), hard=True))


@entry("Gumbel softmax", why="exponential noise, scatter by arg max, straight through")
def gumbel(records: int) -> Case:
    return Gumbel(), cross_entropy, torch.randn(records, WIDTH), classes(records)


# ------------------------------------------------------------------ checkpointing, parametrisation
class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.GELU())
        self.more = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.head, self.reentrant = nn.Linear(WIDTH, CLASSES), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reentrant:
            x = x.requires_grad_()
        state = checkpoint(self.block, x, use_reentrant=self.reentrant)
        state = checkpoint_sequential(self.more, 2, state, use_reentrant=self.reentrant)
        return self.head(state)


@entry("gradient checkpointing", why="blocks run again in the backward, with the same draws")
def checkpointed(records: int) -> Case:
    return Checkpointed(False), cross_entropy, torch.randn(records, WIDTH), classes(records)


class Parametrised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = parametrizations.spectral_norm(nn.Linear(WIDTH, 8))
        self.b = parametrizations.weight_norm(nn.Linear(8, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


@entry("spectral and weight norm", why="weights made from parameters, a buffer written by them")
def parametrised(records: int) -> Case:
    return Parametrised(), cross_entropy, torch.randn(records, WIDTH), classes(records)


class Scaled(nn.Module):
    """A logit scale without dimensions, through exp, as CLIP has it."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.scale = nn.Linear(WIDTH, 8), nn.Parameter(torch.tensor(0.5))
        self.classes = nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = functional.normalize(self.features(x), dim=1)
        return self.scale.exp() * seen @ functional.normalize(self.classes, dim=1).T


@entry("logit scale without dimensions", why="one number for all records, through exp")
def scaled(records: int) -> Case:
    return Scaled(), cross_entropy, torch.randn(records, WIDTH), classes(records)


class Straight(torch.autograd.Function):
    """Sign forward, identity backward."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Straight.apply(self.a(x)))


@entry("custom autograd function, straight through", why="the user's own backward")
def straight(records: int) -> Case:
    return Binary(), cross_entropy, torch.randn(records, WIDTH), classes(records)


@entry("MLP with dropout", why="the smallest")
def mlp(records: int) -> Case:
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES))
    return model, nn.CrossEntropyLoss(), torch.randn(records, WIDTH), classes(records)


class Dense(nn.Module):
    """Self-normalising: alpha dropout, which shifts as well as scales."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 24), nn.Linear(24, CLASSES)
        self.dropout = nn.AlphaDropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.dropout(functional.selu(self.a(x))))


@entry("SELU with alpha dropout", why="another dropout")
def selu(records: int) -> Case:
    return Dense(), cross_entropy, torch.randn(records, WIDTH), classes(records)


@entry("RReLU", why="a random slope per entry")
def rrelu(records: int) -> Case:
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.RReLU(), nn.Linear(24, CLASSES))
    return model, cross_entropy, torch.randn(records, WIDTH), classes(records)
