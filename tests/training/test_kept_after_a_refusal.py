"""What a refused run has kept of records is never released with the model."""

import pytest
import torch
from torch import nn

import noisewise as nw

ROWS = 40


class Keeping(nn.Module):
    """Keeps its inputs in a list from some call on, as people do to look at them."""

    def __init__(self, begin=0):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.log, self.calls, self.begin = [], 0, begin

    def forward(self, x):
        self.calls += 1
        if self.begin is not None and self.calls > self.begin:
            self.log.append(x.detach())
        return self.layer(x)


def started(model):
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 4), torch.randint(3, (ROWS,))
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), noise_multiplier=2.0, steps=6, batch_size=10, delta=1e-3
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return nw.make_private(model, optimizer, nn.CrossEntropyLoss(), (x, y), plan)


def train(run):
    for x, y in run.loader:
        run.step(x, y)


def refuse(model):
    """Take one step, and come back without a traceback that holds records."""
    with pytest.raises(nw.UnsupportedModelError, match="keeps values of records"):
        train(started(model))
    assert model.log


def test_a_second_try_with_the_same_model_is_refused_before_it_is_charged():
    model = Keeping()
    refuse(model)
    model.begin = None
    with pytest.raises(nw.UnsupportedModelError, match=r"attribute log .* earlier run"):
        started(model)
    with pytest.raises(nw.UnsupportedModelError, match="attribute log"):
        nw.bounded_sum(
            model, nn.CrossEntropyLoss(), torch.zeros(2, 4), torch.zeros(2).long(), nw.Clipped(1.0)
        )


def test_a_model_that_let_go_of_it_trains():
    model = Keeping()
    refuse(model)
    model.begin, model.log = None, []
    run = started(model)
    train(run)
    assert run.statement().epsilon > 0


def test_another_model_trains():
    model = Keeping()
    refuse(model)
    other = started(Keeping(begin=None))
    train(other)
    assert other.statement().epsilon > 0


def test_a_recurrent_layer_that_torch_func_has_used_is_looked_through():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 3, batch_first=True)

        def forward(self, x):
            return self.layer(x[:, None])[0][:, 0]

    kept, model = Keeping(), Recurrent()
    refuse(kept)

    def total(parameters):
        return torch.func.functional_call(model, parameters, (torch.zeros(2, 4),)).sum()

    torch.func.grad(total)({name: p.detach() for name, p in model.named_parameters()})
    assert any(map(torch._C._functorch.is_functorch_wrapped_tensor, model.layer._flat_weights))
    train(started(model))  # the wrappers that torch.func left behind keep no record

    wrapped = []
    for rows in kept.log:
        torch.func.vmap(lambda row: wrapped.append(row) or row)(rows)
    model.seen = wrapped
    with pytest.raises(nw.UnsupportedModelError, match="attribute seen"):
        started(model)


def test_what_another_run_kept_is_not_stated_with_this_model():
    model, kept = Keeping(begin=None), Keeping()
    run = started(model)
    train(run)
    refuse(kept)
    assert run.statement().epsilon > 0
    model.log.extend(kept.log)
    for ask in (run.statement, run.epsilon):
        with pytest.raises(nw.UnsupportedModelError, match="attribute log"):
            ask()
