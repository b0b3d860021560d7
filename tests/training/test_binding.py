"""What is stepped is what was made private: later changes are refused before they cost anything."""

import pytest
import torch
from making_runs import plan, same, small_model, start, table, weights
from torch import nn

from noisewise.errors import UnsupportedModelError
from noisewise.gradients import Clipped, Factored, InputScaled
from noisewise.nn import BoundedInput, SpectralLinear
from noisewise.training import StepError


def replace_the_head(run):
    run.plain_model[2] = nn.Linear(6, 2)


def replace_the_head_and_step_it_too(run):
    run.plain_model[2] = nn.Linear(6, 2)
    run.optimizer.add_param_group({"params": run.plain_model[2].parameters()})


def append_a_layer(run):
    run.plain_model.append(nn.Linear(2, 2))


def remove_a_layer(run):
    del run.plain_model[2]


def replace_a_parameter(run):
    run.plain_model[2].weight = nn.Parameter(torch.zeros(2, 6))


def register_a_parameter(run):
    run.plain_model[2].register_parameter("scale", nn.Parameter(torch.ones(2)))


def register_a_frozen_parameter(run):
    run.plain_model[2].register_parameter("scale", nn.Parameter(torch.ones(2), requires_grad=False))


def freeze(run):
    run.plain_model[0].weight.requires_grad_(False)


def another_shape(run):
    run.plain_model[2].weight.data = torch.zeros(3, 6)
    run.plain_model[2].bias.data = torch.zeros(3)


def another_type(run):
    run.plain_model.double()


def add_a_group(run):
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


def swap_in_the_optimizer(run):
    run.optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(6, 5))


def drop_from_the_optimizer(run):
    del run.optimizer.param_groups[0]["params"][0]


def replace_the_optimizer(run):
    run.optimizer = torch.optim.SGD(run.plain_model.parameters(), lr=0.1)


CHANGES = [
    replace_the_head,
    replace_the_head_and_step_it_too,
    append_a_layer,
    remove_a_layer,
    replace_a_parameter,
    register_a_parameter,
    register_a_frozen_parameter,
    freeze,
    another_shape,
    another_type,
    add_a_group,
    swap_in_the_optimizer,
    drop_from_the_optimizer,
    replace_the_optimizer,
]


def loop_of_ones_own(run, x, y):
    run.loss(run.model(x), y).backward()
    run.optimizer.step()


def one_call(run, x, y):
    run.step(x, y)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("loop", [loop_of_ones_own, one_call])
def test_a_change_after_make_private_is_refused_before_anything_happens(change, loop):
    run = start()
    x, y = table(40)
    loop(run, x, y)
    change(run)
    held = [(p, p.detach().clone()) for p in run.plain_model.parameters()]
    with pytest.raises(StepError, match="after make_private"):
        loop(run, x, y)
    assert run.steps_taken == 1
    assert all(torch.equal(parameter, before) for parameter, before in held)


@pytest.mark.parametrize(
    "change", [replace_the_head_and_step_it_too, add_a_group, swap_in_the_optimizer, freeze]
)
def test_a_change_between_backward_and_step_is_refused(change):
    run = start()
    x, y = table(40)
    run.loss(run.model(x), y).backward()
    change(run)
    before = weights(run.plain_model)
    with pytest.raises(StepError, match="after make_private"):
        run.optimizer.step()
    assert run.steps_taken == 0
    assert same(before, weights(run.plain_model))


def test_unfreezing_is_refused():
    model = small_model()
    model[0].requires_grad_(False)
    run = start(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run.step(*table(40))
    model[0].requires_grad_(True)
    with pytest.raises(StepError, match="unfrozen"):
        run.step(*table(40))
    assert run.steps_taken == 1


def test_moving_and_loading_weights_is_no_change():
    run = start()
    run.plain_model.load_state_dict(small_model(seed=1).state_dict())
    run.plain_model.to("cpu")
    run.plain_model.eval()
    run.plain_model.train()
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    run.optimizer.param_groups[0]["lr"] = 0.5
    run.step(*table(40))
    assert run.steps_taken == 1


# ------------------------------------------------------------------ parameters outside the model


class Scaled(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, y):
        return nn.functional.cross_entropy(output * self.scale, y, reduction="none")


class Hidden(nn.Module):
    """A model that keeps a layer where torch does not see it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.rest = [nn.Linear(6, 2)]

    def forward(self, x):
        return self.rest[0](self.first(x).relu())


def test_a_layer_before_the_model_gets_no_raw_gradient():
    layer = nn.Linear(5, 5)
    for loop in (loop_of_ones_own, one_call):
        run = start()
        x, y = table(40)
        with pytest.raises(StepError, match="detach"):
            loop(run, layer(x), y)
        assert layer.weight.grad is None
        assert run.steps_taken == 0
        loop(run, layer(x).detach(), y)


@pytest.mark.parametrize("gradients", [Clipped(1.0), Factored(1.0), InputScaled()])
def test_a_layer_between_model_and_loss_gets_no_raw_gradient(gradients):
    layer = nn.Linear(2, 2)
    model = nn.Sequential(BoundedInput((5,), 3.0), SpectralLinear(5, 2))
    run = start(model, the_plan=plan(gradients=gradients))
    x, y = table(40)
    with pytest.raises(UnsupportedModelError, match=r"not the output of run\.model"):
        run.loss(layer(run.model(x)), y).backward()
    assert layer.weight.grad is None
    assert run.steps_taken == 0
    run.discard()
    run.loss(run.model(x)[:, :2], y).backward()
    run.optimizer.step()
    assert run.steps_taken == 1


@pytest.mark.parametrize("gradients", [Clipped(1.0), Factored(1.0), InputScaled()])
def test_a_loss_with_parameters_of_its_own_is_refused_wherever_they_are(gradients):
    layer = nn.Linear(2, 2)
    scaled = Scaled()
    losses = (
        scaled,
        lambda output, y: nn.functional.cross_entropy(layer(output), y, reduction="none"),
    )
    for loss in losses:
        for loop in (loop_of_ones_own, one_call):
            model = nn.Sequential(BoundedInput((5,), 3.0), SpectralLinear(5, 2))
            run = start(model, the_plan=plan(gradients=gradients), loss=loss)
            # An estimator that needs to know the loss may refuse it for that.
            with pytest.raises((StepError, ValueError)):
                loop(run, *table(40))
            assert run.steps_taken == 0
    assert scaled.scale.grad is None
    assert layer.weight.grad is None


def test_a_frozen_loss_is_an_ordinary_one():
    loss = Scaled().requires_grad_(False)
    run = start(loss=loss)
    run.step(*table(40))
    assert run.steps_taken == 1


def test_a_layer_that_torch_does_not_see_gets_no_raw_gradient():
    for loop in (loop_of_ones_own, one_call):
        model = Hidden()
        run = start(model)
        with pytest.raises(UnsupportedModelError, match="plain list"):
            loop(run, *table(40))
        assert model.rest[0].weight.grad is None
        assert run.steps_taken == 0


def test_a_target_computed_by_a_network_that_learns_is_refused():
    teacher = nn.Linear(5, 2)
    run = start(loss=lambda output, y: ((output - y) ** 2).sum(1))
    x, _ = table(40)
    with pytest.raises(StepError, match="parameters outside"):
        run.step(x, teacher(x))
    run.step(x, teacher(x).detach())
    assert teacher.weight.grad is None
