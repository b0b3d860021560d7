"""The reference itself: it replays draws rightly, and notices what is not one record's own."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from zoo.models import ZOO
from zoo.reference import AGREEMENT, alone, reference, replaying, whole


def table(records=5):
    torch.manual_seed(0)
    return torch.randn(records, 16), torch.randint(0, 3, (records,))


def losses(output, target):
    return functional.cross_entropy(output, target, reduction="none")


class With(nn.Module):
    """Linear, a function of the caller's, linear."""

    def __init__(self, between):
        super().__init__()
        self.a, self.b, self.between = nn.Linear(16, 8), nn.Linear(8, 3), between

    def forward(self, x):
        return self.b(self.between(self.a(x)))


def test_without_randomness_it_equals_a_vectorised_gradient():
    x, y = table()
    model = With(torch.tanh)
    learnt = {n: p.detach() for n, p in model.named_parameters()}

    def one(parameters, record, label):
        return losses(functional_call(model, parameters, record[None]), label[None])[0]

    expected = vmap(grad(one), (None, 0, 0))(learnt, x, y)
    found = reference(model, losses, x, y).gradients
    assert all(torch.allclose(found[n].float(), expected[n], atol=1e-6) for n in expected)


@pytest.mark.parametrize(
    "between",
    [
        lambda h: functional.dropout(h, 0.5),
        lambda h: h * torch.rand_like(h),
        lambda h: h * torch.bernoulli(torch.full((len(h), 1), 0.5)),
        lambda h: h + torch.randn(h.shape[1], len(h)).T,
        lambda h: functional.dropout(h.T.reshape(-1), 0.5).view(h.shape[1], len(h)).T,
        lambda h: functional.dropout(h.reshape(-1), 0.5).view_as(h),
        lambda h: h * torch.rand(()),
        functional.gumbel_softmax,
        lambda h: functional.rrelu(h, training=True),
    ],
)
def test_a_record_alone_gets_the_draws_it_had_in_the_batch(between):
    x, y = table()
    found = reference(With(between), losses, x, y)  # checks losses and sums of gradients
    assert len(found.draws.draws) == 1


def test_other_draws_give_another_gradient():
    x, y = table()
    model = With(lambda h: functional.dropout(h, 0.5))
    draws, _, _ = whole(model, losses, x, y)
    _, own = alone(model, losses, x, y, draws, 1)
    draws.draws[0].value = draws.draws[0].value.flip(0)
    _, other = alone(model, losses, x, y, draws, 1)
    assert not torch.equal(own["b.weight"], other["b.weight"])


@pytest.mark.parametrize(
    "between",
    [
        lambda h: h - h.mean(0),
        lambda h: h + h.detach().roll(1, 0),
        lambda h: h * torch.rand(len(h), len(h))[:, :1],
    ],
)
def test_mixing_is_noticed(between):
    x, y = table()
    with pytest.raises(AssertionError, match=r"records mix|no axis holds the records"):
        reference(With(between), losses, x, y)


def test_mixing_in_the_backward_pass_is_noticed():
    class Mixed(torch.autograd.Function):
        @staticmethod
        def forward(context, h):
            return h.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient - gradient.mean(0)

    x, y = table()
    with pytest.raises(AssertionError, match="do not add up"):
        reference(With(Mixed.apply), losses, x, y)


def test_fewer_and_padded_records_get_their_draws():
    x, y = table()
    model = With(lambda h: functional.dropout(h, 0.5))
    found = reference(model, losses, x, y)
    with replaying(model, found.draws, [3, 1]):
        pair = losses(model(x[[3, 1]]), y[[3, 1]])
        padded = losses(model(x[[3, 1, 0, 0, 0]]), y[[3, 1, 0, 0, 0]])
    expected = found.losses[[3, 1]]
    assert torch.allclose(pair, expected, rtol=AGREEMENT)
    assert torch.allclose(padded[:2], expected, rtol=AGREEMENT)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_records_in_several_passes_get_their_draws(size):
    x, y = table()
    model = With(lambda h: functional.dropout(h, 0.5))
    found = reference(model, losses, x, y)
    with replaying(model, found.draws, list(range(5))):
        for _ in range(2):
            parts = [losses(model(a), b) for a, b in zip(x.split(size), y.split(size), strict=True)]
            assert torch.allclose(torch.cat(parts), found.losses, rtol=AGREEMENT)


def test_the_zoo_has_its_core_and_says_what_each_model_is_for():
    assert sum(e.core for e in ZOO.values()) == 10
    assert all(e.why for e in ZOO.values())
