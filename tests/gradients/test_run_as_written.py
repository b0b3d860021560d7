"""What stands in for a part of a program does what that part does, or the part runs itself."""

from collections import namedtuple
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import noisewise as nw
from noisewise.gradients.batches import leading
from noisewise.gradients.interception import FallbackWarning

RECORDS = 6


class Scaled(nn.LSTM):
    """Computes something else than the layer it is made of."""

    def forward(self, x):
        states, last = super().forward(3 * x)
        return 2 * states, last


class Named(nn.GRU):
    """Only starts otherwise."""

    def __init__(self, *sizes):
        super().__init__(*sizes, batch_first=True)

    def reset_parameters(self):
        for weight in self.parameters():
            nn.init.normal_(weight, 0.0, 0.1)

    def extra_repr(self):
        return "named"


class Sequence(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.layer(x)[0].mean(1))


def sums_agree(model, loss, x, y):
    """Nothing is clipped, so the bounded sum is the gradient of the sum of all losses."""
    bounded = nw.bounded_sum(model, loss, x, y, nw.Clipped(1e6)).groups[0].gradients
    model.zero_grad()
    loss(model(x), y).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(bounded[name], parameter.grad, rtol=1e-4, atol=1e-6)


def batch(*shape):
    torch.manual_seed(1)
    return torch.randn(RECORDS, *shape), torch.randint(3, (RECORDS,))


def test_a_recurrent_layer_with_a_forward_of_its_own_runs_it():
    torch.manual_seed(0)
    model = Sequence(Scaled(4, 5, batch_first=True))
    with pytest.warns(FallbackWarning, match="layer"):
        sums_agree(model, nn.CrossEntropyLoss(reduction="none"), *batch(3, 4))


def test_a_recurrent_layer_that_only_starts_otherwise_is_taken_apart(recwarn):
    torch.manual_seed(0)
    sums_agree(Sequence(Named(4, 5)), nn.CrossEntropyLoss(reduction="none"), *batch(3, 4))
    assert not [one for one in recwarn if issubclass(one.category, FallbackWarning)]


def hooked():
    loss = nn.CrossEntropyLoss(reduction="sum")
    loss.register_forward_pre_hook(lambda module, inputs: (3 * inputs[0], inputs[1]))
    return loss


def test_a_hook_of_the_loss_is_run():
    torch.manual_seed(0)
    sums_agree(nn.Linear(4, 3), hooked(), *batch(4))


def test_a_loss_with_a_hook_has_no_propagated_bound():
    torch.manual_seed(0)
    with pytest.raises(nw.UnsupportedModelError, match="hook"):
        nw.bounded_sum(nn.Linear(4, 3), hooked(), *batch(4), nw.Propagated())


class Centred:
    """A batch that centres its rows once, when it is put together."""

    def __init__(self, rows, centred=False):
        self.rows, self.centred = rows, centred


def centre(children, centred):
    rows = children[0]
    if isinstance(rows, torch.Tensor) and not centred:
        rows = rows - 10 * rows.mean(0)
    return Centred(rows, True)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Mixed(namedtuple("Mixed", ["left", "right"])):
    def __new__(cls, left, right):
        return super().__new__(cls, left, left.mean(0) + right)


class Read(nn.Module):
    """Reads the first tensor, wherever it is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *inputs, **named):
        first = [*inputs, *named.values()][0]
        rows = first.rows if isinstance(first, Centred) else pytree.tree_leaves(first)[0]
        return functional.relu(self.layer(rows))


@pytest.fixture
def centring():
    pytree.register_pytree_node(Centred, lambda b: ([b.rows], b.centred), centre)
    yield
    pytree._deregister_pytree_node(Centred)


def test_a_container_with_code_of_its_own_is_refused(centring):
    x, y = batch(4)
    loss = nn.CrossEntropyLoss(reduction="none")
    for given, target in ((Centred(x), y), ({"x": [Centred(x)]}, y), (x, (y, Centred(x)))):
        with pytest.raises(nw.UnsupportedModelError, match="code of its own"):
            nw.bounded_sum(Read(), loss, given, target, nw.Clipped(1.0))
    assert not nw.prove_apart(Read(), loss, x, y).mixed
    with pytest.raises(nw.UnsupportedModelError, match="code of its own"):
        nw.prove_apart(Read(), loss, Centred(x), y)


def test_a_named_tuple_with_a_constructor_of_its_own_is_refused():
    x, _ = batch(4)
    with pytest.raises(nw.UnsupportedModelError, match="Mixed, which is taken apart"):
        leading(Mixed(x, x))


def test_an_augmentation_that_returns_such_a_container_is_refused(centring):
    x, y = batch(4)
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=2, batch_size=4, delta=1e-3
    )
    model = Read()
    run = nw.make_private(
        model, torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss(), (x, y), plan,
        augmentation=Centred,
    )  # fmt: skip
    inputs, targets = next(iter(run.loader))
    with pytest.raises(nw.UnsupportedModelError, match="code of its own"):
        run.step(inputs, targets)


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "named", "nested", "torch"])
def test_plain_containers_are_taken(kind):
    x, y = batch(4)
    given = {
        "tuple": (x, x), "list": [x, x], "dict": {"one": x, "none": None}, "named": Pair(x, x),
        "nested": {"one": [Pair(x, (x,))]}, "torch": x.unsqueeze(1).max(1, keepdim=False),
    }[kind]  # fmt: skip
    assert nw.bounded_sum(Read(), nn.CrossEntropyLoss(), given, y, nw.Clipped(1.0)).groups
