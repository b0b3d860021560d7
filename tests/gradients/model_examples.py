# ruff: noqa: E501 (one example a line)
"""Models that use parameters in every way the engine must handle, with a batch each."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Scaled dot-product attention as users write it."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out, self.heads = nn.Linear(width, width), heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d)).mean(1)


class MultiHead(nn.Module):
    def __init__(self, cross=False, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **{"batch_first": True, **options})
        self.cross = cross

    def forward(self, x):
        key = x.flip(1) * 2 if self.cross else x
        output, _ = self.attention(x, key, key if not self.cross else key + 1)
        return output.mean(1)


class Transformer(nn.Module):
    """Tokens, learnt positions, an encoder, a class token: the usual."""

    def __init__(self, vocabulary=11, width=8, length=6, need=None):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(length + 1, width)
        self.start = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        h = torch.cat([self.start.expand(x.shape[0], -1, -1), self.tokens(x)], 1)
        h = h + self.positions(torch.arange(h.shape[1]))
        return self.head(self.encoder(h)[:, 0])


class VisionLike(nn.Module):
    """A bare table of positions, sliced; a layer scale; a repeated token."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(2, 8, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.table = nn.Parameter(torch.randn(1, 9, 8))
        self.gamma = nn.Parameter(torch.rand(8) + 0.5)
        self.shift = nn.Parameter(torch.randn(8))
        self.block, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.cut(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.repeat(h.shape[0], 1, 1), h], 1)
        h = h + self.table[:, : h.shape[1]]
        h = h + self.gamma * torch.tanh(self.block(h)) - self.shift
        return self.head(h[:, 0])


class TiedLanguageModel(nn.Module):
    """The output layer is the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.mix = nn.Embedding(7, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        h = self.norm(torch.tanh(self.mix(self.tokens(x))))
        return functional.linear(h, self.tokens.weight).transpose(1, 2)


class Reused(nn.Module):
    def __init__(self, inner, times=3):
        super().__init__()
        self.inner, self.times = inner, times

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(self.inner(x))
        return x.flatten(1)


class LowRank(nn.Module):
    """An adapter beside a frozen layer, and one merged into its weight."""

    def __init__(self, merged):
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(5, 2))
        self.merged = merged

    def forward(self, x):
        if self.merged:
            return functional.linear(x, self.base.weight + self.b @ self.a, self.base.bias)
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(4, 5, batch_first=True, **options)
        self.head = nn.Linear(5 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.inner = nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.last, self.reentrant = nn.Linear(6, 3), reentrant

    def forward(self, x):
        h = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        return self.last(h)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(6, 3)

    def forward(self, left, right):
        return self.head(torch.tanh(self.left(left) * self.right(right)))


class Odd(nn.Module):
    """Uses its parameter in a way that no handler knows."""

    def __init__(self):
        super().__init__()
        self.tensor = nn.Parameter(torch.randn(3, 4, 4))
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.einsum("bi,kij,bj->bk", x, self.tensor, x))


class OddInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.odd, self.bilinear = nn.Linear(4, 4), Odd(), nn.Bilinear(3, 3, 3)

    def forward(self, x):
        h = self.odd(torch.tanh(self.first(x)))
        return self.bilinear(h, h)


class Normed(nn.Module):
    """A weight that is normalised before use."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.rand(4, 1))

    def forward(self, x):
        return functional.linear(x, functional.normalize(self.weight, dim=1) * self.scale)


class UnusedPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


def image(*shape):
    return lambda n: torch.randn(n, *shape)


def tokens(length, vocabulary):
    return lambda n: torch.randint(vocabulary, (n, length))


def flat(*layers):
    return nn.Sequential(*layers, nn.Flatten())


#: name -> (model builder, batch maker, whether the module needs torch.func)
EXAMPLES = {
    "linear": (lambda: nn.Linear(5, 3), image(5), False),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), image(5), False),
    "linear sequence": (lambda: flat(nn.Linear(5, 3)), image(7, 5), False),
    "linear two leading axes": (lambda: flat(nn.Linear(5, 3)), image(2, 3, 5), False),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(inplace=True), nn.Linear(9, 3)), image(5), False),
    "wide sequence": (lambda: flat(nn.Linear(40, 30)), image(2, 40), False),
    "conv1d": (lambda: flat(nn.Conv1d(3, 4, 3, stride=2, padding=1)), image(3, 9), False),
    "conv2d": (lambda: flat(nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))), image(3, 8, 9), False),
    "conv2d groups": (lambda: flat(nn.Conv2d(4, 6, 3, groups=2)), image(4, 6, 6), False),
    "conv2d depthwise": (lambda: flat(nn.Conv2d(4, 4, 3, groups=4, padding=1)), image(4, 5, 5), False),
    "conv2d same even": (lambda: flat(nn.Conv2d(2, 3, 4, padding="same")), image(2, 5, 6), False),
    "conv2d circular": (lambda: flat(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), image(2, 5, 5), False),
    "conv2d reflect": (lambda: flat(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")), image(2, 5, 5), False),
    "conv2d last windows cut": (lambda: flat(nn.Conv2d(2, 3, 3, stride=3)), image(2, 8, 8), False),
    "conv2d one position": (lambda: flat(nn.Conv2d(2, 3, 4)), image(2, 4, 4), False),
    "conv3d": (lambda: flat(nn.Conv3d(2, 3, 2, stride=(1, 2, 1))), image(2, 3, 5, 4), False),
    "transposed 1d": (lambda: flat(nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, output_padding=1)), image(3, 5), False),
    "transposed 2d": (lambda: flat(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, dilation=2)), image(4, 3, 4), False),
    "transposed 3d": (lambda: flat(nn.ConvTranspose3d(2, 3, 2, stride=2)), image(2, 2, 3, 2), False),
    "cnn": (lambda: flat(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 5)), image(2, 8, 8), False),
    "embedding": (lambda: flat(nn.Embedding(5, 4)), tokens(6, 5), False),
    "embedding padding": (lambda: flat(nn.Embedding(5, 4, padding_idx=1)), tokens(6, 5), False),
    "embedding bag mean": (lambda: nn.EmbeddingBag(5, 4), tokens(6, 5), False),
    "embedding bag sum": (lambda: nn.EmbeddingBag(5, 4, mode="sum", padding_idx=0), tokens(6, 5), False),
    "embedding bag max": (lambda: nn.EmbeddingBag(5, 4, mode="max"), tokens(6, 5), False),
    "layer norm": (lambda: flat(nn.Linear(4, 6), nn.LayerNorm(6)), image(3, 4), False),
    "layer norm two axes": (lambda: flat(nn.LayerNorm((3, 4))), image(2, 3, 4), False),
    "rms norm": (lambda: flat(nn.Linear(4, 6), nn.RMSNorm(6)), image(3, 4), False),
    "group norm": (lambda: flat(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6)), image(2, 5, 5), False),
    "instance norm": (lambda: flat(nn.Conv2d(2, 6, 3, bias=False), nn.InstanceNorm2d(6, affine=True)), image(2, 5, 5), False),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.PReLU()), image(4), False),
    "attention by hand": (Attention, image(5, 8), False),
    "multi-head attention": (MultiHead, image(5, 8), False),
    "cross attention": (lambda: MultiHead(cross=True), image(5, 8), False),
    "cross attention, other widths": (lambda: MultiHead(cross=True, kdim=8, vdim=8, bias=False), image(5, 8), False),
    "transformer": (Transformer, tokens(6, 11), False),
    "vision-like": (VisionLike, image(2, 4, 4), False),
    "tied language model": (TiedLanguageModel, tokens(4, 7), False),
    "reused linear": (lambda: Reused(nn.Linear(4, 4)), image(4), False),
    "reused conv": (lambda: Reused(nn.Conv2d(2, 2, 3, padding=1)), image(2, 4, 4), False),
    "adapter": (lambda: LowRank(False), image(6), False),
    "merged adapter": (lambda: LowRank(True), image(6), False),
    "rnn": (lambda: Recurrent(nn.RNN, num_layers=2), image(5, 4), False),
    "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), image(5, 4), False),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2, bias=False), image(5, 4), False),
    "gru both ways": (lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True), image(3, 4), False),
    "checkpoint": (lambda: Checkpointed(False), image(5), False),
    "checkpoint reentrant": (lambda: Checkpointed(True), image(5), False),
    "two inputs": (TwoInputs, lambda n: (torch.randn(n, 4), torch.randn(n, 3)), False),
    "dict batch": (TwoInputs, lambda n: {"right": torch.randn(n, 3), "left": torch.randn(n, 4)}, False),
    "unknown use": (Odd, image(4), True),
    "unknown use inside": (OddInside, image(4), True),
    "normalised weight": (Normed, image(5), False),
    "unused layer": (UnusedPart, image(4), False),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), image(4), False),
}  # fmt: skip


def squared(output, target):
    """A loss per record for any output: half the squared distance to a fixed pattern."""
    pattern = torch.linspace(-1, 1, output[0].numel()).reshape(output.shape[1:])
    difference = (output - pattern - target.view(-1, *[1] * (output.dim() - 1))).flatten(1)
    return difference.square().sum(1) / math.sqrt(difference.shape[1])
