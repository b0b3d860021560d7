"""An exception in training shows nothing of a record, and keeps every text that shows nothing."""

import math
import traceback

import pytest
import torch
from making_runs import plan, small_model, start, table
from torch import nn

import noisewise as nw
from noisewise.training import StepError, fit
from noisewise.training.evaluation import evaluate
from noisewise.training.records import records_of

SECRET = 7431
CLIPPED = nw.Clipped(1.0)


def everything(error):
    """All that a log could show of an exception, its causes and contexts included."""
    texts, seen = [], error
    while seen is not None:
        texts += [str(seen), repr(seen), "".join(traceback.format_exception(seen))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


def moved(one, other):
    """How far apart two sums are, in sensitivities."""
    (a,), (b,) = one.groups, other.groups
    squares = [(a.gradients[name] - b.gradients[name]).square().sum() for name in a.names]
    return float(torch.stack(squares).sum().sqrt()) / a.sensitivity


def secret_label():
    x, y = table(40)
    y = y.clone()
    y[11] = SECRET
    return x, y


def by_hand(run, x, y):
    run.loss(run.model(x), y).backward()
    run.optimizer.step()


def one_call(run, x, y):
    run.step(x, y)


def own_loss(output, target):
    """Not one of those whose targets the library knows."""
    return nn.functional.cross_entropy(output, target, reduction="none")


LOSSES = {
    "cross-entropy": (nn.CrossEntropyLoss(), small_model, SECRET),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), small_model, -SECRET),
    "own cross-entropy": (nw.nn.losses.CrossEntropy(), small_model, SECRET),
    "hinge": (nw.nn.losses.MulticlassHinge(), small_model, SECRET),
    "largest hinge": (nw.nn.losses.MulticlassHinge(form="max"), small_model, -1),
    "margin": (nn.MultiMarginLoss(), small_model, SECRET),
    "likelihood": (
        nn.NLLLoss(), lambda: nn.Sequential(small_model(), nn.LogSoftmax(1)), -SECRET,
    ),
    "probability": (
        nn.BCELoss(), lambda: nn.Sequential(nn.Linear(5, 1), nn.Sigmoid(), nn.Flatten(0)), 1.5,
    ),
    "no number": (
        nn.BCELoss(), lambda: nn.Sequential(nn.Linear(5, 1), nn.Sigmoid(), nn.Flatten(0)), math.nan,
    ),
}  # fmt: skip


@pytest.mark.parametrize("loop", [by_hand, one_call])
@pytest.mark.parametrize("name", LOSSES)
def test_a_target_out_of_range_ends_nothing_and_counts_nothing(loop, name):
    loss, model, wrong = LOSSES[name]
    x, y = table(40)
    y = y.float() if isinstance(loss, nn.BCELoss) else y.clone()
    y[11] = wrong
    run = start(model(), loss=loss)
    for _ in range(2):
        loop(run, x, y)
    assert run.steps_taken == 2
    assert all(torch.isfinite(p).all() for p in run.plain_model.parameters())
    torch.manual_seed(0)
    fixed = model()
    with_it = nw.bounded_sum(fixed, loss, x, y, nw.Clipped(1.0))
    rest = torch.arange(40) != 11
    without = nw.bounded_sum(fixed, loss, x[rest], y[rest], nw.Clipped(1.0))
    for key, gradient in with_it.gradients.items():
        torch.testing.assert_close(gradient, without.gradients[key], rtol=1e-4, atol=1e-5)


def test_every_step_of_a_run_is_taken_whichever_records_have_no_valid_target():
    x, y = table(200)
    y = y.clone()
    y[::3] = SECRET
    run = start(data=(x, y))
    for batch in run.loader:
        run.step(*batch)
    assert run.steps_taken == run.resolved.steps


@pytest.mark.parametrize("loop", [by_hand, one_call])
def test_a_label_out_of_range_is_a_step_like_any_other(loop, capfd, recwarn):
    run = start(loss=own_loss)
    loop(run, *secret_label())
    assert run.steps_taken == 1
    loop(run, *table(40))
    assert run.steps_taken == 2
    said = [*capfd.readouterr(), *(str(warning.message) for warning in recwarn)]
    assert str(SECRET) not in "".join(said)


@pytest.mark.parametrize("loop", [by_hand, one_call])
def test_a_model_that_speaks_of_its_input_is_not_heard(loop):
    class Talkative(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            if float(x.max()) > 1000:
                raise ValueError(f"what is this? {int(x.max())}")
            return self.layer(x)

    run = start(Talkative())
    x, y = table(40)
    x = x.clone()
    x[3, 2] = SECRET
    with pytest.raises(nw.UnsupportedModelError, match="read a record's value") as caught:
        loop(run, x, y)
    assert str(SECRET) not in everything(caught.value)
    assert run.steps_taken == 0


@pytest.mark.parametrize("loop", [by_hand, one_call])
def test_texts_that_do_not_depend_on_records_are_shown(loop):
    run = start()
    x, y = table(40)
    loop(run, x, y)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        loop(run, x[:, :3], y)
    run.discard()

    def broken(output, y):
        raise KeyError("my own mistake")

    run = start(loss=broken)
    with pytest.raises(KeyError, match="my own mistake"):
        loop(run, x, y)


def test_metrics_do_not_show_a_label_either():
    x, y = secret_label()
    with pytest.raises((StepError, ValueError), match="withheld") as caught:
        evaluate(small_model(), nn.CrossEntropyLoss(), records_of((x, y)))
    assert str(SECRET) not in everything(caught.value)
    fitted = fit(
        small_model(),
        (x, y),
        plan(sampling="full", batch_size=None),
        loss=nn.CrossEntropyLoss(),
        progress=False,
    )
    assert fitted.run.steps_taken == fitted.run.resolved.steps
    assert math.isnan(fitted.history[-1]["train_loss"])


@pytest.mark.parametrize("token", [SECRET, 10, -1, -SECRET])
def test_a_token_out_of_range_ends_nothing(token):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    run = start(model)
    x = torch.randint(0, 10, (40, 3))
    x[5, 1] = token
    for _ in range(2):
        run.step(x, table(40)[1])
    assert run.steps_taken == 2
    sums = [
        nw.bounded_sum(model, nn.CrossEntropyLoss(), rows, table(40)[1][: len(rows)], CLIPPED)
        for rows in (torch.roll(x, 34, 0), torch.roll(x, 34, 0)[:-1])
    ]
    assert 0 < moved(*sums) <= 1
