"""Training loops that carry something of a batch around the engine: refused, nothing charged."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import noisewise as nw

WIDTH = 4


def cross_entropy(output, target):
    return functional.cross_entropy(output, target, reduction="none")


class Shifted(nn.Module):
    """Subtracts something that is kept beside the parameters."""

    def __init__(self, buffer=False):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)
        if buffer:
            self.register_buffer("mean", torch.zeros(WIDTH))
        else:
            self.mean = torch.zeros(WIDTH)

    def forward(self, x, flag=False):
        output = self.layer(x - self.mean)
        return -output if flag else output


def begin(model=None, loss=cross_entropy, **options):
    model = nn.Linear(WIDTH, 3) if model is None else model
    drawn = torch.Generator().manual_seed(0)
    data = torch.randn(60, WIDTH, generator=drawn), torch.randint(3, (60,), generator=drawn)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=8, batch_size=20, seed=1)
    return nw.make_private(model, optimizer, loss, data, plan, **options)


def attribute(run, x, y):
    run.plain_model.mean = x.mean(0)
    run.step(x, y)


def in_place(run, x, y):
    run.plain_model.mean.copy_(x.mean(0))
    run.step(x, y)


def behind_torch(run, x, y):
    run.plain_model.mean.data.copy_(x.mean(0))
    run.step(x, y)


def behind_torch_by_numpy(run, x, y):
    run.plain_model.mean.numpy()[:] = x.mean(0).numpy()
    run.step(x, y)


def whole_batch(run, x, y):
    run.plain_model.mean = x[0]
    run.step(x, y)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "action", [attribute, in_place, behind_torch, behind_torch_by_numpy, whole_batch]
)
def test_statistics_of_a_batch_on_the_model_are_refused(action, late):
    run = begin(Shifted())
    batches = iter(run.loader)
    if late:
        for x, y in run.loader.take(3):
            run.step(x, y)
    x, y = next(batches)
    with pytest.raises(nw.UnsupportedModelError, match=r"unknown origin|cannot be told|training data from outside"):
        action(run, x, y)
    assert run.steps_taken == (3 if late else 0)


@pytest.mark.parametrize("action", [in_place, behind_torch, behind_torch_by_numpy])
@pytest.mark.parametrize("late", [False, True])
def test_statistics_of_a_batch_in_a_buffer_are_refused(late, action):
    run = begin(Shifted(buffer=True))
    if late:
        for x, y in run.loader.take(3):
            run.step(x, y)
    x, y = next(iter(run.loader))
    with pytest.raises(nw.UnsupportedModelError, match='the buffer "mean"'):
        action(run, x, y)
    assert run.steps_taken == (3 if late else 0)


class Banked(nn.Module):
    """Adds the first row of a large table."""

    def __init__(self, buffer):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)
        bank = torch.zeros(600, 600)  # above a million bytes
        if buffer:
            self.register_buffer("bank", bank)
        else:
            self.bank = bank

    def forward(self, x):
        return self.layer(x + self.bank[:1, :WIDTH])


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("by_numpy", [False, True])
@pytest.mark.parametrize("first", [0, 3])
def test_a_large_table_is_compared_entry_by_entry_too(buffer, by_numpy, first):
    """torch does not count writes through ``.data`` or numpy, whatever the size."""
    run = begin(Banked(buffer))
    for x, y in run.loader.take(first):
        run.step(x, y)
    x, y = next(iter(run.loader))
    row = run.plain_model.bank.data[0, :WIDTH]
    if by_numpy:
        row.numpy()[:] = x.mean(0).numpy()
    else:
        row.copy_(x.mean(0))
    with pytest.raises(nw.UnsupportedModelError, match=r"unknown origin|outside the model"):
        run.step(x, y)
    assert run.steps_taken == first


def test_a_large_table_that_stays_is_public():
    run = begin(Banked(False))
    for x, y in run.loader:
        run.step(x, y)
    assert run.statement().epsilon > 0


def test_memory_beyond_what_can_be_remembered_is_unknown(monkeypatch):
    monkeypatch.setattr("noisewise.separation.before._ROOM", 1000)
    run = begin(Banked(False))
    x, y = next(iter(run.loader))
    with pytest.raises(nw.UnsupportedModelError, match="unknown origin"):
        run.step(x, y)


def test_a_buffer_that_is_written_with_what_it_holds_is_no_change():
    run = begin(Shifted(buffer=True))
    for x, y in run.loader:
        run.plain_model.load_state_dict(run.plain_model.state_dict())
        run.step(x, y)
    assert run.steps_taken == 8


class Counting(nn.Module):
    """Counts its forward passes in a buffer, which is public."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.passes += 1
        return self.layer(x)


def test_a_resumed_model_may_have_other_buffers(tmp_path):
    run = begin(Counting(), ledger=tmp_path / "ledger")
    for x, y in run.loader.take(3):
        run.step(x, y)
    run.save(tmp_path / "checkpoint")
    run.close()
    model = Counting()
    again = begin(model, ledger=tmp_path / "ledger", resume=tmp_path / "checkpoint")
    for x, y in again.loader:
        again.step(x, y)
    assert again.steps_taken == 8
    assert float(model.passes) == 8


def test_a_buffer_that_the_model_moves_is_not_the_loops_to_write():
    model = Counting()
    run = begin(model)
    for x, y in run.loader.take(2):
        run.step(x, y)
    x, y = next(iter(run.loader))
    model.passes.copy_(x.mean())
    with pytest.raises(nw.UnsupportedModelError, match='the buffer "passes"'):
        run.step(x, y)
    assert run.steps_taken == 2


def test_a_table_that_is_made_at_the_first_pass_is_public():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.table = nn.Linear(WIDTH, 3), None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(WIDTH) / WIDTH
            return self.layer(x + self.table)

    run = begin(Positions())
    for x, y in run.loader:
        run.step(x, y)
    assert run.steps_taken == 8


WEIGHTS = {}


def weighted(output, target):
    return functional.cross_entropy(output, target, weight=WEIGHTS["now"], reduction="none")


def test_weights_of_a_loss_that_come_from_a_batch_are_refused():
    WEIGHTS["now"] = torch.ones(3)
    run = begin(loss=weighted)
    x, y = next(iter(run.loader))
    run.step(x, y)
    x, y = next(iter(run.loader))
    WEIGHTS["now"] = 1.0 / (1.0 + torch.bincount(y, minlength=3))
    with pytest.raises(nw.UnsupportedModelError, match="unknown origin"):
        run.step(x, y)
    assert run.steps_taken == 1


# ------------------------------------------------------------------ the batch itself
def through_data(x, y):
    x.data.copy_(x - x.mean(0))


def through_numpy(x, y):
    array = x.numpy()
    array -= array.mean(0)


def exchanged(x, y):
    x.data = x - x.mean(0)


def targets(x, y):
    y.data.copy_(y.roll(1))


def ordinary(x, y):
    x.sub_(x.mean(0))


CHANGES = [through_data, through_numpy, exchanged, targets, ordinary]


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_that_was_changed_in_any_way_is_refused(change):
    run = begin()
    x, y = next(iter(run.loader))
    change(x, y)
    with pytest.raises(nw.NoisewiseError, match="not the batch"):
        run.step(x, y)
    assert run.steps_taken == 0


def test_targets_that_are_changed_after_the_forward_pass_are_refused():
    run = begin()
    x, y = next(iter(run.loader))
    output = run.model(x)
    y.data.copy_(y.roll(1))
    with pytest.raises(nw.NoisewiseError, match="not the batch"):
        run.loss(output, y)


def test_records_that_are_not_numbers_are_still_recognised():
    run = begin()
    x, y = next(iter(run.loader))
    run.discard()
    model = nn.Linear(WIDTH, 3)
    data = torch.full((60, WIDTH), float("nan")), torch.zeros(60, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=2, batch_size=20)
    other = nw.make_private(model, optimizer, cross_entropy, data, plan)
    for x, y in other.loader:
        other.step(x, y)
    assert other.steps_taken == 2


@pytest.mark.parametrize("flag", [True, 1.0, "word", np.float64(2.0)])
def test_what_is_not_a_tensor_has_no_place_in_a_batch(flag):
    run = begin(Shifted(buffer=True))
    x, y = next(iter(run.loader))
    with pytest.raises(TypeError, match="holds tensors"):
        run.step({"x": x, "flag": flag}, y)
    assert run.steps_taken == 0


@pytest.mark.parametrize("extra", [0.5, np.float64(0.5), np.ones(3)])
def test_numbers_beside_the_output_are_refused(extra):
    run = begin(loss=lambda output, target: cross_entropy(output[0], target))
    x, y = next(iter(run.loader))
    output = run.model(x)
    with pytest.raises(nw.UnsupportedModelError, match="beside the output"):
        run.loss((output, extra), y)


def test_records_on_which_the_augmentation_fails_count_nothing_and_are_not_shown(recwarn, capfd):
    table = torch.zeros(10)

    def augmentation(x):
        return x + table[(x[:, :1].abs() * 4711).long()]

    run = begin(augmentation=augmentation)
    x, y = next(iter(run.loader))
    run.step(x, y)
    assert run.steps_taken == 1
    said = [str(warning.message) for warning in recwarn] + list(capfd.readouterr())
    assert not any("out of bounds" in text for text in said)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise IndexError("index 4711 is out of bounds")


def test_an_error_in_the_backward_pass_shows_no_value():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 3)

        def forward(self, x):
            return Failing.apply(self.layer(x))

    run = begin(Model())
    x, y = next(iter(run.loader))
    with pytest.raises(ValueError, match="withheld") as found:
        run.step(x, y)
    assert "4711" not in str(found.value)
    assert found.value.__context__ is None
    assert run.steps_taken == 0
