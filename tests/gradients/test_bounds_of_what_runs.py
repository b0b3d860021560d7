"""Bounds are propagated through a graph; what runs is a program. They may never come apart."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_all_modules

import noisewise as nw
from noisewise.errors import NoisewiseError
from noisewise.gradients import GradientEngine, InputScaled, Propagated
from noisewise.nn import SpectralConv2d, SpectralLinear

TIMES = 20.0
ESTIMATORS = [Propagated(input_norm=1.0), InputScaled(input_norm=1.0)]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bend, self.last = SpectralLinear(4, 6), nn.ReLU(), SpectralLinear(6, 3)
        self.factor, self.again = 1.0, False
        self.scale = torch.ones(1)

    def forward(self, x):
        h = self.first(x)
        if self.again:
            h = h + TIMES * self.first(x)
        return self.last(self.bend(h)) * self.factor * self.scale


class Reads(Network):
    """Does something else while it is read."""

    def forward(self, x):
        h = super().forward(x)
        return h if isinstance(x, torch.fx.Proxy) else TIMES * h


class ReadsSlopes(Network):
    """The same values, and other slopes."""

    def forward(self, x):
        h = super().forward(x)
        return h if isinstance(x, torch.fx.Proxy) else TIMES * h - (TIMES - 1) * h.detach()


class Steep(nn.ReLU):
    def forward(self, x):
        return TIMES * x


class SteepLoss(nn.CrossEntropyLoss):
    def forward(self, output, target):
        return TIMES * super().forward(output, target)


def larger(*given):
    return TIMES * given[-1]


def branch(model, loss):
    model.again = True


def number(model, loss):
    model.factor = TIMES


def tensor_in_place(model, loss):
    model.scale.mul_(TIMES)


def tensor(model, loss):
    model.scale = torch.full((1,), TIMES)


def hook_of_a_layer(model, loss):
    model.bend.register_forward_hook(larger)


def hook_before_a_layer(model, loss):
    model.last.register_forward_pre_hook(lambda module, given: (TIMES * given[0],))


def hook_of_the_model(model, loss):
    model.register_forward_hook(larger)


def hook_of_all(model, loss):
    of_all_modules.register_module_forward_hook(larger)


def hook_backward(model, loss):
    model.bend.register_full_backward_hook(lambda module, into, out: (TIMES * into[0],))


def hook_behind_the_model(model, loss):
    model.register_full_backward_pre_hook(lambda module, out: (TIMES * out[0],))


def forward_of_a_layer(model, loss):
    model.bend.forward = lambda x: TIMES * x


def another_layer(model, loss):
    model.bend = Steep()


def another_type(model, loss):
    model.bend.__class__ = Steep


def another_loss(model, loss):
    loss.__class__ = SteepLoss


def forward_of_the_loss(model, loss):
    loss.forward = lambda output, target: (
        TIMES * nn.functional.cross_entropy(output, target, reduction="none")
    )


CHANGES = [
    branch, number, tensor_in_place, tensor, hook_of_a_layer, hook_before_a_layer,
    hook_of_the_model, hook_of_all, hook_backward, hook_behind_the_model, forward_of_a_layer,
    another_layer, another_type, another_loss, forward_of_the_loss,
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_hooks_of_all():
    yield
    of_all_modules._global_forward_hooks.clear()


def batch():
    torch.manual_seed(0)
    return 5 * torch.randn(8, 4), torch.arange(8) % 3


def moved(engine, x, y):
    """By how many sensitivities the last record moves a sum, at most."""
    whole, less = engine.sum(x, y), engine.sum(x[:-1], y[:-1])
    return max(
        sum(float((g.gradients[n] - h.gradients[n]).square().sum()) for n in g.names) ** 0.5
        / g.sensitivity
        for g, h in zip(whole.groups, less.groups, strict=True)
    )


@pytest.mark.parametrize("number_of", range(len(CHANGES)), ids=lambda i: CHANGES[i].__name__)
@pytest.mark.filterwarnings("ignore")
def test_a_program_that_changes_after_its_bounds_is_refused(number_of):
    """Bounds of the first batch were exceeded up to 24 times."""
    change, estimator = CHANGES[number_of], ESTIMATORS[number_of % 2]
    x, y = batch()
    model, loss = Network(), nn.CrossEntropyLoss()
    engine = GradientEngine(model, loss, estimator, chunk=8)
    assert moved(engine, x, y) <= 1
    change(model, loss)
    with pytest.raises(NoisewiseError):
        engine.sum(x, y)
    with pytest.raises(NoisewiseError):  # nor is it taken for known now
        engine.sum(x, y)


@pytest.mark.parametrize(("kind", "estimator"), zip((Reads, ReadsSlopes), ESTIMATORS, strict=True))
@pytest.mark.filterwarnings("ignore")
def test_a_program_that_does_something_else_when_it_is_read_is_refused(kind, estimator):
    x, y = batch()
    with pytest.raises(NoisewiseError, match="something else when it trains"):
        GradientEngine(kind(), nn.CrossEntropyLoss(), estimator, chunk=8).sum(x, y)


@pytest.mark.parametrize("change", [number, hook_of_the_model])
@pytest.mark.filterwarnings("ignore")
def test_a_loop_by_hand_is_held_to_its_bounds_too(change):
    x, y = batch()
    model, loss = Network(), nn.CrossEntropyLoss()
    engine = GradientEngine(model, loss, ESTIMATORS[0], chunk=8)

    def step():
        engine.losses(engine.forward(x), y).backward()
        return engine.collect()

    step()
    change(model, loss)
    with pytest.raises(NoisewiseError):
        step()


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = SpectralConv2d(3, 4, 3, padding=1), SpectralLinear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x).flatten(2).sum(2) / 8)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda found: type(found).__name__)
def test_records_of_another_shape_are_refused(estimator):
    """The bound of a bias grows with the image: it was exceeded 10 times."""
    engine = GradientEngine(Pooled(), nn.CrossEntropyLoss(), estimator)
    y = torch.arange(4) % 3
    engine.sum(torch.randn(4, 3, 8, 8), y)
    with pytest.raises(NoisewiseError, match="records of another shape"):
        engine.sum(torch.randn(4, 3, 32, 32), y)


def test_settings_of_layers_and_modes_may_change():
    """Rules read settings at every batch; a mode that nothing depends on is no change."""
    x, y = batch()
    model = Network()
    model.bend = nn.LeakyReLU(0.1)
    engine = GradientEngine(model, nn.CrossEntropyLoss(), ESTIMATORS[0], chunk=8)
    before = engine.sum(x, y).sensitivities["first.weight"]
    model.bend.negative_slope = TIMES
    assert engine.sum(x, y).sensitivities["first.weight"] > 2 * before
    assert moved(engine, x, y) <= 1
    model.eval()
    assert moved(engine, x, y) <= 1


def test_a_private_run_refuses_it_before_its_step_counts_for_anything():
    x, y = batch()
    model = Network()
    plan = nw.Plan(
        gradients=ESTIMATORS[0], noise_multiplier=1.0, epochs=4, batch_size=4, delta=1e-3
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = nw.make_private(model, optimizer, nn.CrossEntropyLoss(), (x, y), plan)
    batches = iter(run.loader)
    run.step(*next(batches))
    model.factor = TIMES
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(NoisewiseError, match="bounds were propagated"):
        run.step(*next(batches))
    assert all(torch.equal(p, held) for p, held in zip(model.parameters(), before, strict=True))
