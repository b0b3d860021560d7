"""Records that aim at a broken bound, and models in which they hit.

Estimators, clipping rules and groupings come from the library's registries, so that a new one is
attacked by itself; test_adversarial.py fails if a contraction has no model here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings

import torch
from model_examples import Odd, Recurrent, TiedLanguageModel, flat
from torch import nn

import noisewise as nw
from noisewise.gradients import GRADIENT_RULES, FallbackWarning, GradientEngine
from noisewise.gradients.combinations import PerLayer
from noisewise.gradients.estimators import Lipschitz
from noisewise.gradients.grouping import GROUPINGS
from noisewise.gradients.rules import RULES
from noisewise.gradients.units import WITHIN


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


class Turned(nn.Module):
    """A weight stored with its inputs first, and a bare scale."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.ones(5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head((torch.matmul(x, self.weight) * self.scale).mean(1))


class TiedTable(nn.Module):
    """A table so large that no record gets one of its own, as the head, too."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(40, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = torch.tanh(self.layer(self.table(x) + self.table(x.flip(1))))
        return nn.functional.linear(h, self.table.weight)


class NormedAndBare(nn.Module):
    """A computed weight whose own parts are bounded apart from each other."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Parameter(torch.randn(5, 2)), nn.Parameter(torch.randn(2, 6))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(nn.functional.linear(x, self.low @ self.high).mean(1))


def convolved(layer, channels):
    """A convolution, its pixels in a line, their mean and a head."""
    return Mean(nn.Sequential(layer, nn.Flatten(2)), channels, 2)


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
    "grouped and dilated": (
        lambda: convolved(nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2), 6), (4, 7, 6), None
    ),
    "channel by channel": (
        lambda: convolved(nn.Conv2d(3, 6, 3, padding=1, groups=3), 6), (3, 6, 6), None
    ),
    "many pixels": (lambda: convolved(nn.Conv2d(8, 8, 3, padding=1), 8), (8, 9, 9), None),
    "lines": (lambda: convolved(nn.Conv1d(3, 4, 3, 2), 4), (3, 11), None),
    "volumes": (lambda: convolved(nn.Conv3d(2, 4, 2), 4), (2, 3, 4, 3), None),
    "transposed in groups": (
        lambda: convolved(nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, 2), 4), (4, 3, 3), None
    ),
    "embedding": (lambda: Mean(nn.Embedding(5, 6), 6), (6,), 5),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(5, 6), nn.Linear(6, 3)), (6,), 5),
    "recurrent": (lambda: Recurrent(nn.GRU), (4, 4), None),
    "long memory": (lambda: Recurrent(nn.LSTM), (3, 4), None),
    "layer norm": (
        lambda: Mean(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), 6), (4, 6), None
    ),
    "turned": (Turned, (3, 6), None),
    "factors of a weight": (NormedAndBare, (3, 6), None),
    "attention": (Attended, (4, 8), None),
    "reused": (Reused, (2, 6), None),
    "tied": (lambda: nn.Sequential(TiedLanguageModel(), nn.Flatten()), (4,), 7),
    "tied table": (lambda: nn.Sequential(TiedTable(), nn.Flatten()), (4,), 40),
    "derived": (Normed, (2, 6), None),
    "fallback": (lambda: flat(Odd()), (4,), None),
    "group norm": (
        lambda: Mean(nn.Sequential(nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 6)), 6, 2), (2, 7), None
    ),
    # The gradient of the bias before it is nothing but rounding.
    "instance norm": (
        lambda: convolved(nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)), 4),
        (2, 6, 6), None
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


def rules(propagates):
    """Every sound estimator of the registry, of one kind or the other."""
    for about in GRADIENT_RULES.values():
        if about.kind.sound and issubclass(about.kind, Lipschitz) == propagates:
            yield about


def measuring():
    """Every estimator that measures, with every clipping rule and grouping that it takes."""
    for about in rules(propagates=False):
        known = {field.name for field in dataclasses.fields(about.kind)}
        options = {"per": GROUPINGS, "rule": tuple(RULES), "clip": (0.7,)}
        taken = {name: values for name, values in options.items() if name in known}
        for chosen in itertools.product(*taken.values()):
            yield about.kind(**dict(zip(taken, chosen, strict=True)))


def combined(model):
    """Groups by blocks, and different estimators for different layers, of one model."""
    names = [name for name, _ in model.named_parameters()]
    first = names[0].rpartition(".")[0] or names[0]
    rest = sorted({name.rpartition(".")[0] or name for name in names} - {first})
    blocks = {"first": [first], "rest": rest}
    yield nw.Clipped({"first": 0.3, "rest": 2.0}, per=blocks, rule="normalise")
    plain = list(measuring())
    for one, other in zip(plain, plain[1:] + plain[:1], strict=True):
        yield PerLayer({first: one, "": other})


def propagating():
    """Every estimator that propagates bounds, plain and with each of its settings."""
    for about in rules(propagates=True):
        yield about.kind()
        for settings in ({"loss_clip": 0.05}, {"knee": 0.5}, {"input_norm": 0.4}):
            yield about.kind(**settings)
        for measured in rules(propagates=False):
            yield PerLayer({"1": measured.kind(clip=0.1), "": about.kind(loss_clip=0.3)})
    kinds = [about.kind for about in rules(propagates=True)]
    yield PerLayer({"1": kinds[0](), "": kinds[-1]()})


#: How the record that is left out comes: by itself, in pieces of a batch, as views, as a unit.
#: Pieces are small only because batches here are.
WAYS = {
    "a record": {"chunk": 4},
    "in pieces of one": {"chunk": 1},
    "in pieces of two": {"chunk": 2},
    "views": {"views": 2, "chunk": 4},
    **{f"a unit, {within} of its rows": {"within": within, "chunk": 8} for within in WITHIN},
}


def takes(way, estimator):
    """Whether an estimator is not refused in this way: test_units.py shows why it would be."""
    unit = WAYS[way].get("within")
    propagates = any(isinstance(r, Lipschitz) for r in getattr(estimator, "rules", {}).values())
    if unit is None:
        return True
    return not propagates and not (unit == "sum" and isinstance(estimator, Lipschitz))


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


def partners(record, number):
    """What comes with a record as its views or rows: itself, its opposite, nothing, half of it."""
    if not record.is_floating_point():
        return (record, record.flip(0), torch.zeros_like(record))[number % 3]
    return (record, -record, torch.zeros_like(record), record / 2)[number % 4]


def ratios(
    model, shape, vocabulary, dtype, estimator, seed, *, weight=1.0, most=None, others=2,
    way="a record",
):  # fmt: skip
    """For each adversarial record: by how much it moves the sum, over the sensitivity.

    All records share the same neighbours, whose sum is computed once: a pair costs one sum.
    """
    generator = torch.Generator().manual_seed(seed)
    options = WAYS[way]
    each = options.get("views", 1)
    rows = 3 if "within" in options else 1
    if vocabulary is None:
        base = torch.randn((others, *shape), generator=generator).to(dtype)
    else:
        base = torch.randint(vocabulary, (others, *shape), generator=generator)
    loss = nn.CrossEntropyLoss() if weight is None else loss_of(weight)
    y = torch.randn(others + rows, generator=generator).to(dtype)
    if weight is None:
        y = torch.randint(3, (others + rows,), generator=generator)
    engine = GradientEngine(model, loss, estimator, **options)
    aimed = list(records(shape, vocabulary, dtype, generator, base[0]))
    if each > 1:
        base = torch.stack([base, base.roll(1, 0)], 1)
    units = torch.tensor([0] * rows + list(range(1, others + 1))) if rows > 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        without = engine.sum(base, y[rows:], None if units is None else units[rows:])
    if most is not None:
        order = torch.randperm(len(aimed), generator=generator)[:most]
        aimed = [aimed[i] for i in order.tolist()]
    engine.attach()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing may be said about a record
            for number, record in enumerate(aimed):
                several = [record, *(partners(record, number + k) for k in range(rows - 1))]
                if each > 1:
                    several = [torch.stack([record, partners(record, number)])]
                whole = engine.sum(torch.cat([torch.stack(several), base]), y, units)
                yield distance(whole, without)
    finally:
        engine.detach()
