"""Derivatives that a model or a loss takes by itself: followed, and exact record by record."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import noisewise as nw
from noisewise.separation import RefusedError

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS, WIDTH = 6, 5


def slope_of(output, x, **options):
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True, **options)
    return slope


class Sloped(nn.Module):
    """A scalar field: its value and its slope by the input, as forces and penalties need them."""

    def __init__(self, field, times=1, through=lambda x: x):
        super().__init__()
        self.field, self.times, self.through = field, times, through

    def forward(self, x):
        x = self.through(x).detach().requires_grad_()
        found = [self.field(x).flatten(1).sum(1)]
        for _ in range(self.times):
            found.append(slope_of(found[-1], x).flatten(1).sum(1))
        return torch.stack(found, 1)


class Turned(nn.Module):
    """Matrices stored the other way round, scales and shifts by hand, a sum of Einstein's."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(WIDTH, 4) / 2)
        self.b = nn.Parameter(torch.randn(4) / 2)
        self.c = nn.Parameter(torch.randn(4, 3) / 2)

    def forward(self, x):
        h = torch.tanh(x @ self.a + self.b) * self.b.exp()
        return torch.einsum("ni,io->no", h, self.c).square()


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH - 1, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH - 1), nn.Linear(WIDTH - 1, 1)

    def forward(self, x):
        return self.head(self.norm(x + self.attention(x, x, x)[0])).sigmoid()


class Stepped(nn.Module):
    """A cell and a loop: the way to write a recurrent layer that is differentiated twice."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(WIDTH, 4), nn.Linear(4, 1)

    def forward(self, x):
        state = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Perturbed(nn.Module):
    """Adversarial training: the loss where a step along its own slope leads."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 6), nn.GELU(), nn.Linear(6, 2))

    def forward(self, words):
        states = self.embed(words)
        (slope,) = torch.autograd.grad(self.body(states).square().sum(), states)
        return self.body(states + 0.3 * functional.normalize(slope, dim=-1)).mean(1)


def spectral():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 4))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 1))


class Shared(nn.Module):
    """One layer that is used three times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.layer(torch.tanh(self.layer(x)))) + self.layer(x).square()


def frozen_first():
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)
    return model


def smooth(*layers):
    return nn.Sequential(*layers)


def rows():
    return torch.randn(RECORDS, WIDTH)


def images():
    return torch.randn(RECORDS, 2, 6, 6)


def steps():
    return torch.randn(RECORDS, 4, WIDTH)


FIELDS = {
    "dense, once": (lambda: smooth(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 1)), rows, 1),
    "dense, three times": (
        lambda: smooth(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 1)), rows, 3,
    ),
    "turned": (Turned, rows, 1),
    "shared": (Shared, rows, 1),
    "computed weight": (spectral, rows, 1),
    "frozen weight, learnt bias": (frozen_first, rows, 1),
    "bilinear": (
        lambda: Twice(nn.Bilinear(WIDTH, WIDTH, 3)), rows, 1,
    ),
    "prelu": (
        lambda: smooth(nn.Linear(WIDTH, 4), nn.PReLU(4), nn.Linear(4, 1), nn.Tanh()), rows, 1,
    ),
    "convolution with group norm": (
        lambda: smooth(nn.Conv2d(2, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.Softplus(),
                       nn.Conv2d(4, 3, 2, groups=1), nn.Sigmoid()),
        images, 1,
    ),
    "grouped, dilated, a rest": (
        lambda: smooth(nn.Conv2d(2, 4, 2, 3, groups=2), nn.Tanh(), nn.Conv2d(4, 2, 1, dilation=2),
                       nn.Softplus()),
        images, 2,
    ),
    "transposed convolution": (
        lambda: smooth(nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), nn.Tanh(), nn.Conv2d(3, 1, 3),
                       nn.Sigmoid()),
        images, 2,
    ),
    "layer norm": (
        lambda: smooth(nn.Linear(WIDTH, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 1)), rows, 2,
    ),
    "rms norm over positions": (
        lambda: smooth(nn.Linear(WIDTH, 6), nn.RMSNorm(6), nn.Tanh(), nn.Linear(6, 1)), steps, 1,
    ),
    "batch norm, frozen": (
        lambda: smooth(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3).eval(), nn.Softplus()), images, 1,
    ),
    "attention": (Attending, lambda: torch.randn(RECORDS, 3, WIDTH - 1), 1),
    "cells": (Stepped, steps, 1),
}  # fmt: skip


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.tanh(self.layer(x, x.square()))


def loss(output, target):
    return (output - target).square().sum(1)


def case(name):
    torch.manual_seed(0)
    build, batch, times = FIELDS[name]
    model = Sloped(build(), times).double()
    return model, batch().double(), torch.randn(RECORDS, times + 1).double()


def alone(model, x, y, clip, per):
    """Every record by itself, clipped, added."""
    learnt = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in learnt.items()}
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        found = torch.autograd.grad(value, list(learnt.values()), allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g
                 for g, p in zip(found, learnt.values(), strict=True)]  # fmt: skip
        norm = torch.stack([g.norm() for g in found]).norm()
        for name, gradient in zip(learnt, found, strict=True):
            size = norm if per == "model" else gradient.norm()
            total[name] += gradient * (clip / size).clamp(max=1) if size > 0 else gradient
    return total


def assert_exact(model, x, y, chunk, per):
    expected = alone(model, x, y, 0.5, per)
    found = nw.bounded_sum(model, loss, x, y, nw.Clipped(0.5, per=per), chunk=chunk).gradients
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value, atol=1e-4), name


@pytest.mark.parametrize("per", ["model", "parameter"])
@pytest.mark.parametrize("name", FIELDS)
def test_slopes_are_proven_and_summed_as_they_are_record_by_record(name, per):
    model, x, y = case(name)
    proof = nw.prove_apart(model, loss, x, y)
    assert proof.proven, str(proof)
    assert_exact(model, x, y, RECORDS, per)
    assert_exact(model, x, y, 2, per)


def test_adversarial_training_takes_a_step_along_its_own_slope():
    torch.manual_seed(0)
    model, words = Perturbed().double(), torch.randint(9, (RECORDS, 3))
    y = torch.randn(RECORDS, 2).double()
    assert nw.prove_apart(model, loss, words, y).proven
    assert_exact(model, words, y, RECORDS, "model")
    assert_exact(model, words, y, 2, "model")


def directional(model, x):
    output, slope = torch.autograd.functional.jvp(
        model.field, x, torch.ones_like(x), create_graph=True
    )
    return output + slope


def by_rows(model, x):
    def total(z):
        return model.field(z).sum(0)

    found = torch.autograd.functional.jacobian(total, x, create_graph=True)
    return model.field(x) + found.sum(2).t()


def of_second_order(model, x):
    def total(z):
        return model.field(z).square().sum()

    ones = torch.ones_like(x)
    return (
        model.field(x) + torch.autograd.functional.hvp(total, x, ones, create_graph=True)[1][:, :2]
    )


@pytest.mark.parametrize("use", [directional, by_rows, of_second_order])
def test_torchs_own_helpers_are_followed(use):
    torch.manual_seed(0)
    model, x = Uses(use).double(), torch.randn(RECORDS, WIDTH).double()
    y = torch.randn(RECORDS, 2).double()
    assert nw.prove_apart(model, loss, x, y).proven
    assert_exact(model, x, y, 2, "model")


# -- slopes that mix, and what cannot be followed --------------------------------------------------


class Uses(nn.Module):
    """Two layers, and a use of slopes."""

    def __init__(self, use, first=None):
        super().__init__()
        self.first = nn.Linear(WIDTH, 6) if first is None else first
        self.last, self.use = nn.Linear(6, 2), use

    def field(self, x):
        return self.last(torch.tanh(self.first(x)))

    def forward(self, x):
        return self.use(self, x.detach().requires_grad_())


def of_a_norm_of_all(model, x):
    output = model.field(x)
    return output + slope_of(output.norm(), x)[:, :2]


def of_a_mean_squared(model, x):
    output = model.field(x)
    return output + slope_of(output.mean(0).square(), x)[:, :2]


def of_a_scale_for_all(model, x):
    """The penalty of invariant risk minimisation: one scale stands for the batch."""
    scale = torch.ones(1, dtype=x.dtype, requires_grad=True)
    output = model.field(x)
    return output + slope_of((output * scale).square(), scale)


def with_a_shared_weighting(model, x):
    output = model.field(x)
    (slope,) = torch.autograd.grad(output, x, output.detach().flip(0), create_graph=True)
    return output + slope[:, :2]


def by_a_parameter(model, x):
    output = model.field(x)
    return output * slope_of(output, model.last.bias).sum()


def by_a_parameter_named(model, x):
    output = model.field(x)
    (slope,) = torch.autograd.grad(outputs=output.sum(), inputs=[model.first.weight])
    return output * slope.sum()


def by_a_computed_weight(model, x):
    weight = model.first.weight * 2
    output = model.last(torch.tanh(functional.linear(x, weight)))
    return output * slope_of(output, weight).sum()


def backward_within(model, x):
    output = model.field(x)
    output.sum().backward(retain_graph=True)
    return output + x.grad[:, :2]


def of_a_hook(model, x):
    output = model.field(x)
    output.register_hook(lambda g: g + g.flip(0))
    return output + slope_of(output, x)[:, :2]


class Backwards(torch.autograd.Function):
    """Innocent the first time, and mixes where its way back is differentiated."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return Second.apply(g)


class Second(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g):
        return g * 1.0

    @staticmethod
    def backward(ctx, g):
        return g.flip(0)


def mixed_the_second_time(model, x):
    output = Backwards.apply(model.field(x)).square()
    return output + slope_of(output, x)[:, :2]


def recomputed(model, x):
    output = checkpoint(model.field, x, use_reentrant=False)
    return output + slope_of(output, x)[:, :2]


def several_at_once(model, x):
    output = model.field(x)
    weights = torch.eye(2)[:, None].expand(-1, len(x), -1)
    return output + slope_in(output, x, weights, is_grads_batched=True).sum(0)[:, :2]


def slope_in(output, x, weights, **options):
    (slope,) = torch.autograd.grad(output, x, weights, create_graph=True, **options)
    return slope


def vectorised(model, x):
    field = lambda z: model.field(z).sum(0)  # noqa: E731
    found = torch.autograd.functional.jacobian(field, x, create_graph=True, vectorize=True)
    return model.field(x) + found[0][:, :2]


def dual_numbers(model, x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        return forward_ad.unpack_dual(model.field(dual)).tangent


def within_torch_func(model, x):
    return torch.func.grad(lambda z: model.field(z).sum())(x.detach())[:, :2]


MIXED = [
    of_a_norm_of_all, of_a_mean_squared, of_a_scale_for_all, with_a_shared_weighting,
    by_a_parameter, by_a_parameter_named, by_a_computed_weight, backward_within, of_a_hook,
    mixed_the_second_time, recomputed, several_at_once, vectorised, dual_numbers,
    within_torch_func,
]  # fmt: skip


@pytest.mark.parametrize("chunk", [RECORDS, 2])
@pytest.mark.parametrize("use", MIXED)
def test_slopes_that_mix_or_cannot_be_followed_are_refused_with_line_and_repair(use, chunk):
    torch.manual_seed(0)
    model, x, y = Uses(use), torch.randn(RECORDS, WIDTH), torch.randn(RECORDS, 2)
    with pytest.raises(RefusedError) as found:
        nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0), chunk=chunk)
    assert __file__ in found.value.where
    assert len(found.value.repair.split()) > 3


def test_a_recurrent_layer_is_refused_where_its_slope_is_differentiated_again():
    torch.manual_seed(0)

    class Over(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.again = nn.GRU(WIDTH, 6, batch_first=True), True

        def forward(self, x):
            x = x.detach().requires_grad_()
            output = self.layer(x)[0].mean(1)
            (slope,) = torch.autograd.grad(output.sum(), x, create_graph=self.again)
            return slope.mean(1) if self.again else self.layer(x + slope)[0].mean(1)

    model, x, y = Over(), torch.randn(RECORDS, 3, WIDTH), torch.randn(RECORDS, 1)
    with pytest.raises(RefusedError, match="GRUCell"):
        nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0))
    model.again = False
    model.double()
    assert_exact(model, x.double(), y.double(), 2, "model")


def test_a_propagated_bound_does_not_hold_for_slopes():
    torch.manual_seed(0)
    model = nn.Sequential(
        nw.nn.BoundedInput((WIDTH,), 1.0), Uses(of_its_own), nw.nn.SpectralLinear(2, 2)
    )
    model[1].first, model[1].last = nw.nn.SpectralLinear(WIDTH, 6), nw.nn.SpectralLinear(6, 2)
    x, y = torch.randn(RECORDS, WIDTH), torch.randint(2, (RECORDS,))
    with pytest.raises(nw.NoisewiseError):
        nw.bounded_sum(model, nw.nn.losses.CrossEntropy(), x, y, nw.InputScaled())


def of_its_own(model, x):
    output = model.field(x)
    return output + slope_of(output, x)[:, :2]


def test_removing_a_record_moves_sums_of_slopes_by_at_most_their_sensitivity():
    torch.manual_seed(0)
    model, x, y = Uses(of_its_own), torch.randn(RECORDS, WIDTH), torch.randn(RECORDS, 2)
    x[0] *= 100
    for estimator in (nw.Clipped(0.3), nw.Clipped(0.3, per="parameter"), nw.Factored(0.3)):
        whole = nw.bounded_sum(model, loss, x, y, estimator, chunk=4)
        for i in range(RECORDS):
            others = [k for k in range(RECORDS) if k != i]
            part = nw.bounded_sum(model, loss, x[others], y[others], estimator, chunk=4)
            for one, two in zip(whole.groups, part.groups, strict=True):
                moved = [one.gradients[n] - two.gradients[n] for n in one.names]
                assert torch.cat([m.flatten() for m in moved]).norm() <= one.sensitivity


class Steep(nn.Module):
    """Classes, and beside them the square of a record's slope."""

    def __init__(self, precise):
        super().__init__()
        self.precise = precise
        self.net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        x = x.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.precise):
            out = self.net(x).float()
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return torch.cat([out, slope.square().sum(1, keepdim=True)], 1)


@pytest.mark.parametrize("gradients", [nw.Clipped(0.5), nw.Clipped(0.5, per="layer")], ids=str)
@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_whole_unit_with_slopes_moves_no_sum_further_in_any_precision(gradients, precise, rows):
    torch.manual_seed(0)
    model = Steep(precise)

    def loss(out, y):
        entropy = functional.cross_entropy(out[:, :3], y, reduction="none")
        return entropy + 5 * out[:, 3]

    x, y = torch.randn(12, 6), torch.randint(3, (12,))
    x[0] *= 30
    units = None if rows == 1 else [0] * rows + list(range(rows, 12))
    rest = None if units is None else units[rows:]
    full = nw.bounded_sum(model, loss, x, y, gradients, units=units)
    less = nw.bounded_sum(model, loss, x[rows:], y[rows:], gradients, units=rest)
    for one, other in zip(full.groups, less.groups, strict=True):
        moved = [(one.gradients[n] - other.gradients[n]).double() for n in one.gradients]
        length = float(torch.stack([m.norm() for m in moved]).norm())
        assert 0 < length <= one.sensitivity
