"""An exception in training shows nothing of a record, and keeps every text that shows nothing."""

import traceback

import pytest
import torch
from making_runs import plan, small_model, start, table
from torch import nn

from noisewise.training import StepError, fit
from noisewise.training.evaluation import evaluate
from noisewise.training.records import records_of

SECRET = 7431


def everything(error):
    """All that a log could show of an exception, its causes and contexts included."""
    texts, seen = [], error
    while seen is not None:
        texts += [str(seen), repr(seen), "".join(traceback.format_exception(seen))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


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


@pytest.mark.parametrize("loop", [by_hand, one_call])
def test_a_label_out_of_range_is_not_shown(loop):
    run = start()
    with pytest.raises((StepError, ValueError), match="withheld") as caught:
        loop(run, *secret_label())
    assert str(SECRET) not in everything(caught.value)
    assert run.steps_taken == 0
    run.discard()
    loop(run, *table(40))
    assert run.steps_taken == 1


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
    with pytest.raises((StepError, ValueError), match="ValueError") as caught:
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
    with pytest.raises((StepError, ValueError)) as caught:
        fit(
            small_model(),
            (x, y),
            plan(sampling="full", batch_size=None),
            loss=nn.CrossEntropyLoss(),
            progress=False,
        )
    assert str(SECRET) not in everything(caught.value)


def test_a_token_out_of_range_is_not_shown():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    run = start(model)
    x = torch.randint(0, 10, (40, 3))
    x[5, 1] = SECRET
    with pytest.raises((StepError, IndexError, ValueError)) as caught:
        run.step(x, table(40)[1])
    assert str(SECRET) not in everything(caught.value)
    assert run.steps_taken == 0
