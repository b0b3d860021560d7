"""Small models, data and plans that the tests of training share."""

import torch
from torch import nn

from noisewise.gradients import Clipped
from noisewise.training import Plan, make_private

RECORDS = 400


def table(records=RECORDS, features=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, features, generator=generator)
    return x, (x.sum(1) > 0).long()


def small_model(features=5, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, 2))


def plan(**changes):
    values = dict(
        gradients=Clipped(1.0), noise_multiplier=1.0, steps=12, batch_size=40, delta=1e-5, seed=3
    )
    values.update(changes)
    return Plan(**{name: value for name, value in values.items() if value is not None})


def start(model=None, optimizer=None, data=None, the_plan=None, loss=None, **options):
    model = small_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    return make_private(
        model,
        optimizer,
        nn.CrossEntropyLoss() if loss is None else loss,
        table() if data is None else (None if data is False else data),
        plan() if the_plan is None else the_plan,
        **options,
    )


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return set(first) == set(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )
