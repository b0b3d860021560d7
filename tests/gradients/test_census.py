"""Modules of a model are listed once, and again whenever one was exchanged."""

from torch import nn

from noisewise.gradients.census import Census


def test_modules_are_those_that_the_model_has_now():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    census = Census(model)

    def require():
        assert census.modules() == list(model.modules())

    require()
    model[1][0] = nn.Tanh()
    require()
    model[1].append(nn.LayerNorm(2))
    require()
    del model[0]
    require()
    model.shared = model[0]  # a module counts once
    require()
    model._modules = dict(model._modules, other=nn.Linear(1, 1))
    require()
    model[0][1] = None
    require()
