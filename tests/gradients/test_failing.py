"""Records on which the user's program raises count nothing, and every step is taken."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import noisewise as nw
from noisewise.gradients.engine import _InPlace


def own_loss(output, target):
    return functional.cross_entropy(output, target, reduction="none")


class Table(nn.Module):
    """A frozen table, which raises for an index that it does not have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(5, 4))
        self.layer = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.layer(functional.embedding(tokens, self.table))


class Raising(torch.autograd.Function):
    """Its backward pass looks an entry up that only some records have."""

    @staticmethod
    def forward(ctx, h, index):
        ctx.save_for_backward(index)
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g * torch.ones(len(g), 3).gather(1, index.unsqueeze(1)), None


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return Raising.apply(self.layer(x[:, :4]), x[:, 4].long())


class Roots(nn.Module):
    """Takes positive definite matrices, and so no zeros either."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(torch.linalg.cholesky(x.reshape(-1, 2, 2)).flatten(1))


def inputs_of(kind, records=33):
    torch.manual_seed(0)
    x, y = 3 * torch.randn(records, 4), torch.randint(3, (records,))
    if kind == "model that takes no zeros":
        square = x.reshape(-1, 2, 2)
        x = (square @ square.mT + 0.1 * torch.eye(2)).flatten(1)
        x[[7, 20]] *= -1
        return Roots(), x, y
    if kind == "loss":
        return nn.Linear(4, 3), x, y.index_fill(0, torch.tensor([7, 20]), 9)
    if kind == "model":
        tokens = torch.randint(5, (records,)).index_fill(0, torch.tensor([7, 20]), 5)
        return Table(), tokens, y
    column = torch.zeros(records, 1)
    column[[7, 20]] = 3.0
    return Late(), torch.cat([x, column], 1), y


def _gradients(engine, by_hand, x, y):
    if not by_hand:
        return engine.sum(x, y)
    engine.losses(engine.forward(x), y).backward()
    found = engine.collect()
    for parameter in engine.model.parameters():
        parameter.grad = None
    return found


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kind", ["loss", "model", "backward", "model that takes no zeros"])
@pytest.mark.parametrize("gradients", [nw.Clipped(1.0), nw.Factored(1.0)])
@pytest.mark.filterwarnings("ignore:every step of this model is watched")
def test_a_record_that_fails_counts_nothing_and_the_others_as_ever(kind, gradients, by_hand):
    model, x, y = inputs_of(kind)
    loss = own_loss if kind == "loss" else nn.CrossEntropyLoss()
    engine = _InPlace(model, loss, gradients, chunk=4)
    good = [i for i in range(33) if i not in (7, 20)]
    whole = _gradients(engine, by_hand, x, y)
    rest = _gradients(engine, by_hand, x[good], y[good])
    assert int(whole.nonfinite) == 2
    assert int(rest.nonfinite) == 0
    for name, value in whole.gradients.items():
        torch.testing.assert_close(value, rest.gradients[name], rtol=1e-5, atol=1e-6)
    again = _gradients(engine, by_hand, x, y)  # bound to the path this time
    for name, value in again.gradients.items():
        torch.testing.assert_close(value, rest.gradients[name], rtol=1e-5, atol=1e-6)
    engine.detach()


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kind", ["loss", "model"])
def test_a_batch_of_nothing_else_is_a_step_too(kind, by_hand):
    model, x, y = inputs_of(kind)
    loss = own_loss if kind == "loss" else nn.CrossEntropyLoss()
    engine = _InPlace(model, loss, nw.Clipped(1.0), chunk=4)
    found = _gradients(engine, by_hand, x[[7, 20, 7]], y[[7, 20, 7]])
    assert int(found.nonfinite) == 3
    assert all(not bool(value.any()) for value in found.gradients.values())
    engine.detach()


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_piece_of_nothing_else_is_one_too_if_the_program_takes_no_zeros(by_hand):
    """The last piece holds one record, which fails: one of another piece stands in for it."""
    model, x, y = inputs_of("model that takes no zeros", 32)
    good = [i for i in range(32) if i not in (7, 20)][:28]
    engine = _InPlace(model, nn.CrossEntropyLoss(), nw.Clipped(1.0), chunk=4)
    rest = _gradients(engine, by_hand, x[good], y[good])
    whole = _gradients(engine, by_hand, x[[*good, 7]], y[[*good, 7]])
    assert int(whole.nonfinite) == 1
    for name, value in whole.gradients.items():
        torch.testing.assert_close(value, rest.gradients[name], rtol=1e-5, atol=1e-6)
    engine.detach()


def test_a_record_that_fails_is_not_shown_where_records_are_only_vouched_for():
    class Curious(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            self.seen = 0 * float(x[0, 0])
            return self.layer(x)

    x, y = torch.randn(40, 4), torch.randint(3, (40,)).index_fill(0, torch.tensor([5]), 7351)
    model = Curious()
    settings = {"noise_multiplier": 1.0, "steps": 3, "sampling": "full"}
    plan = nw.Plan(gradients=nw.Clipped(1.0), assume_apart=True, **settings)
    run = nw.make_private(model, torch.optim.SGD(model.parameters(), 0.1), own_loss, (x, y), plan)
    for batch in run.loader:
        run.step(*batch)
    assert run.steps_taken == 3


def test_an_augmentation_that_fails_on_a_record_ends_no_run_with_propagated_bounds():
    table = torch.randn(5, 4)

    def augmentation(x):
        return x + functional.embedding(x[:, 0].long(), table)

    model = nn.Sequential(nw.nn.BoundedInput((4,), 1.0), nw.nn.SpectralLinear(4, 3))
    nw.nn.project(model)
    x, y = torch.rand(40, 4), torch.randint(3, (40,))
    x[3, 0] = 9.0
    plan = nw.Plan(gradients=nw.Propagated(), noise_multiplier=1.0, steps=2, sampling="full")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = nw.make_private(
        model, optimizer, nn.CrossEntropyLoss(), (x, y), plan, augmentation=augmentation
    )
    for batch in run.loader:
        run.step(*batch)
    assert run.steps_taken == 2


@pytest.mark.parametrize("kind", ["loss", "model that takes no zeros"])
def test_rows_that_fail_leave_the_rest_of_their_unit(kind):
    model, x, y = inputs_of(kind)
    units = torch.arange(33) // 3
    good = [i for i in range(33) if i not in (7, 20)]
    loss = own_loss if kind == "loss" else nn.CrossEntropyLoss()
    engine = nw.gradients.GradientEngine(model, loss, nw.Clipped(1.0), within="sum")
    whole = engine.sum(x, y, units)
    rest = engine.sum(x[good], y[good], units[good])
    for name, value in whole.gradients.items():
        torch.testing.assert_close(value, rest.gradients[name], rtol=1e-5, atol=1e-6)
    engine.detach()


@pytest.mark.parametrize("by_hand", [False, True])
def test_training_takes_every_step_and_says_nothing(by_hand, recwarn):
    model, x, y = inputs_of("loss", 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=3, batch_size=30)
    run = nw.make_private(model, optimizer, own_loss, (x, y), plan)
    for inputs, targets in run.loader:
        if by_hand:
            run.optimizer.zero_grad()
            run.loss(run.model(inputs), targets).backward()
            run.optimizer.step()
        else:
            run.step(inputs, targets)
    assert run.steps_taken == 3
    assert not [w for w in recwarn if "fail" in str(w.message)]


def test_a_mistake_in_the_program_is_shown():
    def wrong(output, target):
        return functional.cross_entropy(output[:, :1], target + 7, reduction="none")

    model, x, y = inputs_of("loss")
    engine = _InPlace(model, wrong, nw.Clipped(1.0), chunk=4)
    with pytest.raises(IndexError, match="out of bounds"):
        engine.sum(x, y)
    engine.detach()
