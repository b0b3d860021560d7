"""Every refusal names what, a line of the user's, the reason, and what to do about it."""

import ast
import functools
import inspect
import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients import GradientEngine
from noisewise.separation.refusal import RefusedError
from separation import test_fifth_round
from separation.program import RECORDS, cross_entropy
from separation.programs import MIXING

pytestmark = pytest.mark.filterwarnings("ignore")
SOURCES = Path(nw.__file__).parent
ARMED = [name for name, program in MIXING.items() if not program.disarmed]


def refusal(model, loss, x, y, chunk=RECORDS):
    with pytest.raises(RefusedError) as found:
        nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0), chunk=chunk)
    return found.value


def assert_complete(error, file=""):
    assert re.search(r":\d+$", error.where), error.where
    assert "noisewise/" not in error.where.replace("tests/", "")
    assert file in error.where
    assert error.where in str(error)
    assert len(error.what.split()) > 5
    assert len(error.repair.split()) > 2
    assert str(error).endswith(error.repair)


def test_a_program_is_refused_by_one_kind_of_error_alone():
    """It takes what, where and repair, so no refusal lacks one of them."""
    for folder in ("gradients", "separation"):
        for file in (SOURCES / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                raised = node.exc if isinstance(node, ast.Raise) else None
                name = getattr(getattr(raised, "func", raised), "id", "")
                assert name != "UnsupportedModelError", f"{file}:{node.lineno}"
                if name in ("RefusedError", "NotApartError") and isinstance(raised, ast.Call):
                    starred = any(isinstance(part, ast.Starred) for part in raised.args)
                    assert starred or len(raised.args) >= 2, f"{file}:{node.lineno}"


@pytest.mark.parametrize(
    "name",
    [*ARMED[::6], *(pytest.param(n, id=f"all: {n}", marks=pytest.mark.slow) for n in ARMED)],
)
def test_a_program_that_mixes_records_is_refused_with_line_and_repair(name):
    assert_complete(refusal(*MIXING[name].case()), "tests/separation/")


@pytest.mark.slow
@pytest.mark.parametrize("name", test_fifth_round.PROGRAMS)
@pytest.mark.parametrize("counter", [test_fifth_round.hidden, test_fifth_round.visible])
def test_programs_that_do_not_do_the_same_are_refused_with_line_and_repair(
    name, counter, monkeypatch
):
    monkeypatch.setattr(test_fifth_round, "counter", counter)
    torch.manual_seed(0)
    model, loss = test_fifth_round.PROGRAMS[name]()
    x, y = torch.randn(13, 4), torch.randint(9, (13,))
    try:
        nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0), chunk=4)
    except RefusedError as error:
        assert_complete(error, "tests/separation/")


class Model(nn.Module):
    """A layer, and what a program does with its output."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(4, 3), then
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.then(self, self.layer(x))


def written_in_place(model, h):
    with torch.no_grad():
        model.scale.mul_(-1)  # here
    return h * model.scale


def exchanged(model, h):
    first = h + 0
    model.scale.data = -model.scale.data  # here
    return first * model.scale


SHARED = torch.ones(3).numpy()


def shared_with_numpy(model, h):
    SHARED[0] *= -1  # here
    last = 1.0
    return h * model.scale * last


def numbers():  # here
    yield from itertools.count()


NUMBERS = numbers()


def yields(model, h):
    return h * float(next(NUMBERS))


@functools.lru_cache(None)
def seen(number):
    return number


def every_second_time(model, h):
    if seen(seen.cache_info().currsize) % 2:
        return -h  # here
    return h


def keeps(model, h):
    model.kept = h.exp()  # here
    return h


def leaves_a_gradient(model, h):
    model.layer.bias.grad = torch.zeros(3)  # here
    return h


@pytest.mark.parametrize(
    "then",
    [written_in_place, exchanged, shared_with_numpy, yields, every_second_time, keeps,
     leaves_a_gradient],
)  # fmt: skip
def test_the_very_line_is_named(then):
    torch.manual_seed(0)
    model = Model(then)
    if then is shared_with_numpy:
        model.scale = nn.Parameter(torch.from_numpy(SHARED), requires_grad=False)
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    error = refusal(model, nn.CrossEntropyLoss(), x, y, 8)
    lines, first = inspect.getsourcelines(numbers if then is yields else then)
    expected = next(first + i for i, line in enumerate(lines) if "# here" in line)
    assert error.where == f"{__file__}:{expected}"
    assert_complete(error)


def test_looking_for_a_line_leaves_weights_state_and_chance_as_they_are():
    torch.manual_seed(0)
    model = Model(every_second_time)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=8)
    engine.whole = x, y
    chance = torch.get_rng_state()
    assert engine.line_that_varies().startswith(__file__)
    assert torch.equal(chance, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_module_is_refused_with_the_line_that_hands_it_over():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    error = refusal(model, nn.CrossEntropyLoss(), torch.randn(8, 4), torch.randint(3, (8,)))
    assert_complete(error, __file__)


class Threshold:
    """A count that nobody can put back, and that acts from some call on."""

    def __init__(self):
        self.from_call = 10**9

        @functools.lru_cache(None)
        def known(number):
            return number

        self.known = known

    def __call__(self, model, h):
        number = self.known(self.known.cache_info().currsize)
        return h.neg() if number >= self.from_call else h


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_count_that_cannot_be_set_back_is_refused_when_it_acts_within_a_batch(by_hand):
    torch.manual_seed(0)
    count = Threshold()
    model = Model(count)
    engine = GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=8)
    x, y = torch.randn(40, 4), torch.randint(3, (40,))

    def step():
        if not by_hand:
            return engine.sum(x, y)
        engine.losses(engine.forward(x), y).backward()
        return engine.collect()

    for _ in range(2):
        step()
    before = count.known.cache_info().currsize
    step()
    calls = count.known.cache_info().currsize - before
    count.from_call = before + 2 * calls - 2  # towards the end of the next batch
    with pytest.raises(RefusedError, match="does not do the same"):
        step()
