"""Later runs are bound to the watched one: a program that changes on the way is watched again.

Each program keeps records apart while it is watched. Then a switch is turned, and it mixes them in
a way that leaves as little trace as possible: the same functions, shapes and whole numbers.
"""

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import handle_torch_function
from torch.utils.checkpoint import checkpoint

import noisewise as nw
from noisewise.gradients import GradientEngine, WatchedWarning
from noisewise.gradients.operations.dense import tapped_linear
from noisewise.separation import noticing_backward_code
from separation.test_doors import RECORDS, WIDTH, Hidden, batch, cross_entropy


class Switched(Hidden):
    """`inside` gets the model, whose switch it may read."""

    def __init__(self, inside=None):
        super().__init__(None)
        self.on, self.amount, self.program = 0, 0.0, inside

    def forward(self, x):
        return self.last(self.program(self, torch.tanh(self.first(x))))


def sums(engine, x, y):
    return torch.cat([g.flatten() for g in engine.sum(x, y).gradients.values()])


def refused_or_apart(make, turn):
    """Whether the switched program is refused, or no record moves the sum by more than allowed."""
    x, y = batch()

    def total(x, y):
        torch.manual_seed(1)
        model, loss = make()
        engine = GradientEngine(model, loss, nw.Clipped(1.0), chunk=RECORDS)
        engine.sum(*batch())
        turn(model, loss)
        return sums(engine, x, y)

    try:
        whole = total(x, y)
        moves = [
            float((whole - total(x[keep], y[keep])).norm())
            for left in range(RECORDS)
            for keep in [[i for i in range(RECORDS) if i != left]]
        ]
    except nw.NoisewiseError:
        return True
    return max(moves) <= 1.001


class Output(Switched):
    def forward(self, x):
        output = self.last(torch.tanh(self.first(x)))
        plain, mixed = output * 1.0, output - output.mean(0) * 5
        return mixed if self.on else plain


class Box:
    """An object beside the output, as caches of transformers are."""


class Boxed(Switched):
    """What the loss returns comes out of an object, by no torch function."""

    def forward(self, x):
        output, box = self.last(torch.tanh(self.first(x))), Box()
        losses = output.square().sum(1)
        plain, mixed = losses * 1.0, losses * losses.detach().mean().sub(1.0).mul(50)
        box.losses = mixed if self.on else plain
        return output, box


class Loss:
    def __init__(self):
        self.on = 0

    def __call__(self, output, target):
        losses = cross_entropy(output, target)
        plain, mixed = losses * 1.0, losses * losses.detach().mean().sub(1.0).mul(50).sign()
        return mixed if self.on else plain


class Hooked(Switched):
    def forward(self, x):
        h = torch.tanh(self.first(x))

        def hook(gradient):
            plain, mixed = gradient * 1.0, gradient.mean(0, keepdim=True).expand_as(gradient) * 20
            return torch.add(plain, mixed if self.on else plain)

        h.register_hook(hook)
        return self.last(h)


class Silent(Switched):
    """Hooks that exchange gradients without calling torch."""

    def forward(self, x):
        h, kept = torch.tanh(self.first(x)), []
        shifted = h.roll(1, 0) * 0.0 + h
        shifted.register_hook(lambda gradient: kept.append(gradient.roll(1, 0)))
        h.register_hook(lambda gradient: kept[0] if self.on else gradient)
        return self.last(shifted)


class Returned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, model):
        ctx.model = model
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        plain, mixed = gradient * 1.0, gradient.mean(0, keepdim=True).expand_as(gradient) * 20
        return (mixed if ctx.model[0].on else plain), None


class Disguised(torch.autograd.Function):
    @staticmethod
    @functools.wraps(tapped_linear)
    def forward(ctx, h, model):
        return Returned.forward(ctx, h, model)

    @staticmethod
    @functools.wraps(tapped_linear)
    def backward(ctx, gradient):
        return Returned.backward(ctx, gradient)


class Unpacked(Switched):
    def forward(self, x):
        h = torch.tanh(self.first(x))
        mixed, kept = h.detach().mean(0, keepdim=True).expand_as(h) * 9, []

        def unpack(index):
            return mixed if self.on and kept[index].shape == mixed.shape else kept[index]

        def pack(value):
            kept.append(value)
            return len(kept) - 1

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            product = h * (h.detach() + 1)
        return self.last(product)


def shifted(index):
    return lambda model, h: h + 3 * h.detach()[index(model, len(h))]


INDICES = {
    "a float added to a constant": lambda m, n: ((torch.arange(n) + m.amount) % n).long(),
    "floats in a list": lambda m, n: torch.tensor([float((i + m.on) % n) for i in range(n)]).long(),
    "an array": lambda m, n: torch.tensor(np.roll(np.arange(n), m.on)),
    "an array as an index": lambda m, n: np.roll(np.arange(n), m.on),
    "a range": lambda m, n: torch.tensor(range(m.on, n + m.on)) % n,
    "an old constructor": lambda m, n: torch.LongTensor([(i + m.on) % n for i in range(n)]),
    "a list": lambda m, n: [(i + m.on) % n for i in range(n)],
    "flags that were numbers": lambda m, n: [1] * n if m.on else [True] * n,
    "floats of equal hash": lambda m, n: torch.tensor([-1.0 - m.amount] * n).long(),
    "numbers of numpy's of equal hash": lambda m, n: torch.arange(n) + np.int64(-1 - m.on),
    "where between floats": lambda m, n: (
        (torch.arange(n) + torch.where(torch.arange(n) >= 0, 0.0 + m.amount, 9.0)).long() % n
    ),
    "a float that is assigned": lambda m, n: assigned(torch.arange(n), m.amount),
}


def assigned(indices, amount):
    indices[0] = amount
    return indices


FORWARD = {name: shifted(index) for name, index in INDICES.items()}
FORWARD["a number of numpy's"] = lambda m, h: h + 3 * h.detach().roll(np.int64(m.on), 0)
FORWARD["an axis of numpy's"] = lambda m, h: (
    h + h.detach().sum(dim=np.int64(1 - m.on), keepdim=True).reshape(-1, 1)
)
FORWARD["an autograd function"] = lambda m, h: Returned.apply(h, [m])
FORWARD["an autograd function that says it wraps ours"] = lambda m, h: Disguised.apply(h, [m])


def turned(model, loss):
    model.on, model.amount = 1, 1.0
    if isinstance(loss, Loss):
        loss.on = 1


@pytest.mark.parametrize("name", FORWARD)
def test_what_becomes_an_index_is_part_of_the_path(name):
    assert refused_or_apart(lambda: (Switched(FORWARD[name]), cross_entropy), turned)


@pytest.mark.parametrize("kind", [Output, Hooked, Silent, Unpacked])
def test_which_tensor_goes_on_is_part_of_the_path(kind):
    assert refused_or_apart(lambda: (kind(), cross_entropy), turned)


def test_which_value_a_loss_returns_is_part_of_the_path():
    assert refused_or_apart(lambda: (Switched(lambda m, h: h), Loss()), turned)


def test_which_tensor_an_object_holds_is_part_of_the_path():
    assert refused_or_apart(lambda: (Boxed(), lambda output, target: output[1].losses), turned)


def test_an_object_beside_the_output_is_bound():
    class Cache(Switched):
        def forward(self, x):
            return self.last(torch.tanh(self.first(x))), Box()

    engine = GradientEngine(
        Cache(), lambda output, target: cross_entropy(output[0], target), nw.Clipped(1.0), chunk=8
    )
    engine.sum(*batch())
    assert [len(wiring.paths) for wiring in engine._wirings.values()] == [1]


class Handed(Switched):
    """A function of one's own that torch calls, below the mode that notes the path."""

    def forward(self, x):
        h = torch.tanh(self.first(x))

        def distance(a, b):
            return (a - (b.flip(0) * 20 if self.on else b)).square().sum(1)

        gaps = nn.functional.triplet_margin_with_distance_loss(
            h, h.detach(), -h, distance_function=distance, reduction="none"
        )
        return self.last(h + gaps.unsqueeze(1))


def test_what_a_function_does_that_is_handed_to_torch_is_watched():
    assert refused_or_apart(lambda: (Handed(), cross_entropy), turned)


def test_whole_numbers_of_equal_hash_are_different_numbers():
    def rolled(model, h):
        return h + 3 * h.detach().roll((2**61 - 1) * model.on, 0)

    assert hash(2**61 - 1) == hash(0)
    assert refused_or_apart(lambda: (Switched(rolled), cross_entropy), turned)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Hooked, "hook"), (Unpacked, "saved_tensors_hooks"), (None, "Returned")]
)
def test_what_is_watched_at_every_step_is_said_with_its_reason(kind, reason):
    model = Switched(FORWARD["an autograd function"]) if kind is None else kind()
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=RECORDS)
    with pytest.warns(WatchedWarning, match=reason):
        engine.sum(*batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        engine.sum(*batch())


class Cached(Switched):
    """Keeps hidden values by mere assignment, and reads them in the next piece."""

    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(RECORDS, WIDTH)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        result = self.last(h + self.kept.mean(0) * 20)
        if self.on:
            self.kept = h.detach()
        return result


def test_a_tensor_that_an_earlier_piece_left_is_not_public():
    model = Cached()
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=RECORDS)
    engine.sum(*batch())
    model.on = 1
    x, y = batch()
    with pytest.raises(nw.UnsupportedModelError, match=r"unknown origin|keeps values"):
        engine.sum(torch.cat([x, x]), torch.cat([y, y]))


def test_a_cache_of_public_values_may_be_read_later():
    class Positions(Switched):
        table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(WIDTH) / WIDTH
            return self.last(torch.tanh(self.first(x + self.table)))

    model = Positions()
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=RECORDS)
    first = sums(engine, *batch())
    assert torch.equal(first, sums(engine, *batch()))
    wiring = next(iter(engine._wirings.values()))
    assert len(wiring.paths) == 2  # with and without the cache
    assert torch.equal(first, sums(engine, *batch()))
    assert len(wiring.paths) == 2


class Layouts(nn.Module):
    """Records outside or inside of the positions, from step to step."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.inside = nn.Linear(4, 4), nn.Linear(4, 3), False

    def forward(self, x):
        records, positions, width = x.shape
        if self.inside:
            rows = x.transpose(0, 1).reshape(-1, width)
            h = self.first(rows).reshape(positions, records, width).transpose(0, 1)
        else:
            h = self.first(x.reshape(-1, width)).reshape(records, positions, width)
        return self.last(torch.tanh(h)).mean(1)


def test_each_path_has_layouts_of_its_own():
    drawn = torch.Generator().manual_seed(3)
    x, y = torch.randn(6, 6, 4, generator=drawn), torch.randint(3, (6,), generator=drawn)
    x[0] *= 100
    model = Layouts()
    engine = GradientEngine(model, cross_entropy, nw.Clipped(0.01), chunk=6)
    expected = sums(engine, x, y)
    for inside in (True, False, True, False, False, True):
        model.inside = inside
        assert torch.allclose(sums(engine, x, y), expected, atol=1e-6)


class Exchanged(nn.Module):
    """Two layers of one shape that meet their records in different layouts."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.on = False

    def forward(self, x):
        first, second = (self.other, self.one) if self.on else (self.one, self.other)
        records, positions, width = x.shape
        h = torch.tanh(first(x.reshape(-1, width))).reshape(records, positions, width)
        rows = second(h.transpose(0, 1).reshape(-1, width))
        return self.head(rows.reshape(positions, records, width).mean(0))


def test_which_parameter_is_used_is_part_of_the_path():
    drawn = torch.Generator().manual_seed(3)
    x, y = torch.randn(6, 6, 4, generator=drawn), torch.randint(3, (6,), generator=drawn)
    x[0] *= 100
    model = Exchanged()
    engine = GradientEngine(model, cross_entropy, nw.Clipped(0.01), chunk=6)
    engine.sum(x, y)
    model.on = True
    fresh = GradientEngine(model, cross_entropy, nw.Clipped(0.01), chunk=6)
    assert torch.allclose(sums(engine, x, y), sums(fresh, x, y), atol=1e-6)


def test_pieces_have_memory_of_their_own():
    class Strided(Switched):
        def forward(self, x):
            return self.last(torch.tanh(self.first(x.as_strided(x.shape, (x.shape[1], 1), 0))))

    model = Strided()
    x, y = torch.randn(24, WIDTH), torch.randint(3, (24,))
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=6)
    whole = sums(engine, x, y)
    parts = sum(sums(engine, x[s : s + 6], y[s : s + 6]) for s in range(0, 24, 6))
    assert torch.allclose(whole, parts, atol=1e-5)


@pytest.mark.parametrize("records", [RECORDS, 2 * RECORDS])
def test_a_program_that_writes_into_its_input_leaves_the_batch_alone(records):
    class Doubling(Switched):
        def forward(self, x):
            return self.last(torch.tanh(self.first(x.mul_(2.0))))

    x, y = torch.randn(records, WIDTH), torch.randint(3, (records,))
    before, engine = x.clone(), GradientEngine(Doubling(), cross_entropy, nw.Clipped(1.0), chunk=12)
    assert torch.equal(sums(engine, x, y), sums(engine, x, y))
    assert torch.equal(x, before)


def test_backward_code_is_noticed_also_after_somebody_took_the_notice_away():
    told, hooks = [], torch.autograd.graph.saved_tensors_hooks
    value = torch.ones(2, requires_grad=True)

    def apply():
        Returned.apply(value, None)
        with hooks(lambda kept: kept, lambda kept: kept):
            pass

    def followed():
        with noticing_backward_code(lambda kind, unseen: told.append(kind)):
            apply()

    followed()
    del BackwardCFunction.__init__
    hooks.__enter__ = lambda self: None
    followed()
    apply()  # nobody is told
    assert told == [Returned, hooks] * 2


def test_a_float_that_changes_needs_no_second_proof():
    model = Switched(lambda m, h: h * (1.0 + m.amount))
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=RECORDS)
    engine.sum(*batch())
    model.amount = 0.5
    engine.sum(*batch())
    assert [len(wiring.paths) for wiring in engine._wirings.values()] == [1]


class Recomputed(nn.Module):
    """A block that ends in a layer of the library's own, recomputed in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, 3)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.reentrant = reentrant

    def forward(self, x):
        h = self.first(x)
        if self.reentrant is None:
            return self.last(self.block(h))
        return self.last(checkpoint(self.block, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_blocks_have_the_same_sums(reentrant):
    model = Recomputed(None)
    x, y = batch()
    expected = nw.bounded_sum(model, cross_entropy, x, y, nw.Clipped(0.1)).gradients
    model.reentrant = reentrant
    engine = GradientEngine(model, cross_entropy, nw.Clipped(0.1), chunk=RECORDS)
    for _ in range(3):
        found = engine.sum(x, y).gradients
        for name, value in expected.items():
            assert torch.allclose(found[name], value, atol=1e-6), name


def test_a_recurrent_layer_that_turns_its_axes_is_watched_again():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.LSTM(WIDTH, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(self.layer(x)[0][:, -1])

    model = Turned()
    x, y = torch.randn(RECORDS, RECORDS, WIDTH), torch.randint(3, (RECORDS,))
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=RECORDS)
    engine.sum(x, y)
    model.layer.batch_first = False
    with pytest.raises(nw.UnsupportedModelError):
        engine.sum(x, y)


SWITCH = {"on": 0}


def overriding(values):
    """Called as torch's functions are: what it does is below the mode that notes the path."""
    rows = values.detach()
    return values + 3 * (rows.flip(0) if SWITCH["on"] else rows)


class Overriding(Switched):
    def forward(self, x):
        SWITCH["on"] = self.on
        h = torch.tanh(self.first(x))
        return self.last(handle_torch_function(overriding, (h,), h))


def test_what_is_called_as_if_it_were_torchs_is_watched():
    assert refused_or_apart(lambda: (Overriding(), cross_entropy), turned)


class Posing(int):
    """A number that poses as zero in arithmetic."""

    def __mul__(self, other):
        return 0

    __rmul__ = __mul__

    def __ge__(self, other):
        return True


def test_a_number_that_poses_as_another_is_watched():
    def rolled(model, h):
        return h + 3 * h.detach().roll(Posing(model.on), 0)

    assert refused_or_apart(lambda: (Switched(rolled), cross_entropy), turned)
