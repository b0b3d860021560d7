"""Records that aim at a broken bound, and models in which they hit."""

from __future__ import annotations

import itertools
import math
import warnings

import torch
from model_examples import Odd, Recurrent, TiedLanguageModel, flat
from torch import nn

import noisewise as nw
from noisewise.gradients import FallbackWarning, GradientEngine

RULES = ("clip", "automatic", "global", "normalise")


class Mean(nn.Module):
    """A layer at several positions, their mean, and a head: positions can cancel."""

    def __init__(self, layer, width, axis=1):
        super().__init__()
        self.layer, self.head, self.axis = layer, nn.Linear(width, 3), axis

    def forward(self, x):
        return self.head(self.layer(x).mean(self.axis))


class Attended(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0].mean(1))


class Reused(nn.Module):
    """One layer used twice, so that its two uses can cancel."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(x[:, 0]) + self.layer(x[:, 1]))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


#: name -> (model, shape of a record, size of the vocabulary or None)
MODELS = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (6,), None),
    "wide sequence": (lambda: Mean(nn.Linear(64, 64), 64), (2, 64), None),
    "wide sequence by itself": (lambda: Mean(nn.Linear(104, 104, bias=False), 104), (8, 104), None),
    "sequence without bias": (lambda: Mean(nn.Linear(32, 32, bias=False), 32), (2, 32), None),
    "longer sequence": (lambda: Mean(nn.Linear(24, 24), 24), (8, 24), None),
    "narrow sequence": (lambda: Mean(nn.Linear(4, 4), 4), (20, 4), None),
    "pointwise": (lambda: Mean(nn.Conv1d(32, 32, 1, bias=False), 32, 2), (32, 2), None),
    "convolution": (
        lambda: Mean(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(2)), 4, 2), (2, 6, 6), None
    ),
    "transposed": (
        lambda: Mean(nn.Sequential(nn.ConvTranspose1d(3, 4, 2), nn.LayerNorm(5)), 4, 2),
        (3, 4), None
    ),
    "embedding": (lambda: Mean(nn.Embedding(5, 6), 6), (6,), 5),
    "recurrent": (lambda: Recurrent(nn.GRU), (4, 4), None),
    "attention": (Attended, (4, 8), None),
    "reused": (Reused, (2, 6), None),
    "tied": (lambda: nn.Sequential(TiedLanguageModel(), nn.Flatten()), (4,), 7),
    "derived": (Normed, (2, 6), None),
    "fallback": (lambda: flat(Odd()), (4,), None),
    "group norm": (
        lambda: Mean(nn.Sequential(nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 6)), 6, 2), (2, 7), None
    ),
}  # fmt: skip

#: Models that torch runs in bfloat16, and whose bounds do not depend on their own arithmetic.
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def bounded_model():
    layers = nw.nn
    model = nn.Sequential(
        layers.BoundedInput((2, 6, 6), 1.0), layers.SpectralConv2d(2, 4, 3, padding=1), nn.ReLU(),
        layers.ScaledAvgPool2d(2), nn.Flatten(), layers.SpectralLinear(36, 3),
    )  # fmt: skip
    nw.nn.project(model)
    return model


def measuring():
    """Every clipping rule with every grouping, and Factored."""
    for per, rule in itertools.product(("model", "layer", "parameter"), RULES):
        yield nw.Clipped(0.7, per=per, rule=rule)
    yield nw.Factored(0.7)


def propagating():
    for clip in (None, 0.05):
        yield nw.Propagated(loss_clip=clip)
        yield nw.InputScaled(loss_clip=clip)


def scales(dtype, generator):
    """From denormal to the largest number, with the thresholds in between."""
    largest = math.log10(torch.finfo(dtype).max)
    fixed = [-largest - 6, -largest, -largest / 2, -30, -25, -22, -19, -12, -6]
    fixed += [0, 2, 4, 8, 10, 12, 14, 18, 19, 25]
    drawn = (torch.rand(1, generator=generator) * 2 - 1) * largest
    return [10.0**s for s in (*fixed, largest / 2, largest - 0.01, float(drawn)) if s < largest]


def shapes(shape, dtype, generator, other):
    """Records of size about one, of every form that has broken something."""

    def draw():
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def cancelling(record, axis):
        half = record.shape[axis] // 2
        if half:
            record.narrow(axis, half, half).copy_(-record.narrow(axis, 0, half))
        return record

    yield draw()
    for axis in range(len(shape)):
        yield cancelling(draw(), axis)
    nearly = cancelling(draw(), 0)
    yield nearly * (1 + 1e-6 * draw())
    yield draw().sign()
    yield torch.ones(shape, dtype=torch.float64) * 1.37
    spike = torch.zeros(shape, dtype=torch.float64)
    spike.view(-1)[0] = 1.0
    yield spike
    yield torch.pow(10.0, 12 * draw().clamp(-1.5, 1.5)) * draw().sign()  # all sizes in one record
    yield other.double()


def records(shape, vocabulary, dtype, generator, other):
    """Yield adversarial records of one model."""
    if vocabulary is not None:
        for _ in range(40):
            few = torch.randint(1, vocabulary + 1, (1,), generator=generator)
            yield torch.randint(int(few), shape, generator=generator)
        return
    for form in shapes(shape, dtype, generator, other):
        for scale in scales(dtype, generator):
            yield (form * scale).to(dtype)
    for bad in (math.nan, math.inf, -math.inf):
        record = torch.randn(shape, generator=generator).to(dtype)
        record.view(-1)[int(torch.randint(record.numel(), (1,), generator=generator))] = bad
        yield record
        yield torch.full(shape, bad, dtype=dtype)


def loss_of(weight):
    """Half the squared distance to a pattern, times a weight: cotangents of every size."""

    def loss(output, target):
        pattern = torch.linspace(-1, 1, output[0].numel(), dtype=output.dtype)
        return weight * (output.flatten(1) - pattern - target.unsqueeze(1)).square().sum(1)

    return loss


def distance(whole, without):
    """Largest distance of a group over its sensitivity, in float64; groups are bounded apart."""
    worst = 0.0
    for a, b in zip(whole.groups, without.groups, strict=True):
        parts = [(a.gradients[n].double() - b.gradients[n].double()).flatten() for n in a.names]
        ratio = float(torch.cat(parts).norm()) / a.sensitivity
        worst = ratio if not ratio <= worst else worst
    return worst


def ratios(model, shape, vocabulary, dtype, estimator, seed, *, weight=1.0, most=None, others=2):
    """For each adversarial record: by how much it moves the sum, over the sensitivity.

    All records share the same neighbours, whose sum is computed once: a pair costs one sum.
    """
    generator = torch.Generator().manual_seed(seed)
    if vocabulary is None:
        base = torch.randn((others, *shape), generator=generator).to(dtype)
    else:
        base = torch.randint(vocabulary, (others, *shape), generator=generator)
    loss = nn.CrossEntropyLoss() if weight is None else loss_of(weight)
    y = torch.randn(others + 1, generator=generator).to(dtype)
    if weight is None:
        y = torch.randint(3, (others + 1,), generator=generator)
    engine = GradientEngine(model, loss, estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        without = engine.sum(base, y[1:])
    aimed = list(records(shape, vocabulary, dtype, generator, base[0]))
    if most is not None:
        order = torch.randperm(len(aimed), generator=generator)[:most]
        aimed = [aimed[i] for i in order.tolist()]
    engine.attach()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing may be said about a record
            for record in aimed:
                whole = engine.sum(torch.cat([record.unsqueeze(0), base]), y)
                yield distance(whole, without)
    finally:
        engine.detach()
