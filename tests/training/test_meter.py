"""What is shown as epsilon while training is never below the truth, and at the end the statement's.

The marks at which epsilon is accounted lie ahead of the step at which they are shown, so the
claims hold however rarely anybody reads; they are tried at every step of plans of many lengths.
"""

import pickle
import re
import sys
import types

import numpy as np
import pytest
import torch
from making_runs import plan, small_model, start, table
from torch import nn

import noisewise.training.meter as meter_module
from noisewise.gradients import BatchMaxScaled
from noisewise.privacy import PoissonGaussian
from noisewise.privacy.statement import round_up
from noisewise.training import Callback, ProgressBar, TensorBoard, fit
from noisewise.training.meter import EpsilonMeter


def fitted(the_plan, **options):
    values = dict(
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        progress=False,
        metrics=False,
    )
    return fit(small_model(), table(), the_plan, **{**values, **options})


@pytest.fixture
def accountings(monkeypatch):
    """How often epsilon was accounted."""
    calls = []
    original = meter_module.epsilon_of

    def counting(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(meter_module, "epsilon_of", counting)
    return calls


@pytest.mark.parametrize("steps", [1, 2, 23, 24, 25, 100, 1000])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_what_is_shown_is_never_below_the_truth_and_equal_at_the_end(steps, accountant):
    resolved = plan(steps=steps, accountant=accountant).resolve(400)
    shown = EpsilonMeter(resolved)
    looked = range(steps + 1) if accountant == "rdp" else (0, 1, steps // 3, steps - 1, steps)
    for taken in looked:
        assert shown.after(taken) >= resolved.epsilon_after(taken)
    assert shown.after(steps) == resolved.epsilon_after(steps)
    assert shown.after(steps + 3) >= resolved.epsilon_after(steps + 3)


def test_reading_at_every_step_accounts_a_few_dozen_times(accountings):
    resolved = plan(steps=5000, accountant="rdp").resolve(400)
    shown = EpsilonMeter(resolved)
    for taken in range(5001):
        shown.after(taken)
    assert len(accountings) <= 25


def test_what_was_charged_before_the_meter_counts():
    resolved = plan(steps=50, accountant="rdp").resolve(400)
    before = (PoissonGaussian(0.7, 0.3, 4), PoissonGaussian(1.0, 0.1, 6))
    shown = EpsilonMeter(resolved, before)
    assert shown.after(10, exactly=True) > resolved.epsilon_after(10)
    assert shown.after(30) >= shown.after(30, exactly=True) > resolved.epsilon_after(30)


class Shown(ProgressBar):
    """The bar, and every text that was on it with the truth at that moment."""

    def __init__(self):
        super().__init__()
        self.texts = []
        update = self._bar.update

        def remembering(task, **fields):
            self.texts.append(fields["numbers"])
            return update(task, **fields)

        self._bar.update = remembering
        self.truths = []

    def on_step(self, run, metrics):
        super().on_step(run, metrics)
        self.truths.append((self.texts[-1], run.epsilon()))


def number(text):
    return float(re.search(r"epsilon ([0-9.e+-]+)", text)[1])


@pytest.mark.parametrize("steps", [20, 60])
def test_the_bar_is_never_below_the_truth_and_ends_on_the_statement(steps):
    bar = Shown()
    result = fitted(plan(steps=steps, accountant="rdp"), callbacks=[bar])
    assert len(bar.truths) == steps
    for text, truth in bar.truths:
        assert number(text) >= truth
    assert bar.texts[-1] == f"epsilon {round_up(result.statement().epsilon)}"


class Stop(Callback):
    """Ends training in its own way after some steps."""

    def __init__(self, step, error=None):
        self.step, self.error = step, error

    def on_step(self, run, metrics):
        if self.error is not None and run.next_step == self.step:
            raise self.error

    def on_epoch(self, run, record):
        return run.next_step >= self.step


def test_the_bar_ends_on_the_truth_however_training_ends():
    bar = Shown()
    result = fitted(plan(steps=200, accountant="rdp"), callbacks=[Stop(30), bar])
    assert result.stopped == "callback"
    assert number(bar.texts[-1]) == float(round_up(result.statement().epsilon))
    bar = Shown()
    with pytest.raises(KeyboardInterrupt):
        fitted(
            plan(steps=200, accountant="rdp"), callbacks=[Stop(17, error=KeyboardInterrupt()), bar]
        )
    resolved = plan(steps=200, accountant="rdp").resolve(400)
    assert number(bar.texts[-1]) == float(round_up(resolved.epsilon_after(17)))


def test_an_estimator_without_proof_shows_none():
    bar = Shown()
    run = start(the_plan=plan(gradients=BatchMaxScaled(study=True), steps=3))
    bar.on_start(run)
    ProgressBar.on_step(bar, run, {})
    bar.on_end(run)
    assert bar.texts == ["epsilon none", "epsilon none"]


def test_the_history_is_never_below_the_truth_and_ends_on_the_statement(accountings):
    result = fitted(plan(steps=600, accountant="rdp"))
    assert not accountings  # nobody has looked yet
    records = result.history
    assert len(records) == 60
    assert len(accountings) <= 26
    resolved = result.run.resolved
    for record in records:
        assert record["epsilon"] >= resolved.epsilon_after(record["step"])
    assert records[-1]["epsilon"] == result.statement().epsilon
    assert result.history == records
    assert len(accountings) <= 26


def test_the_history_of_a_training_that_stopped_early_ends_on_the_statement():
    result = fitted(plan(steps=600, accountant="rdp"), callbacks=[Stop(20)])
    assert result.history[-1]["epsilon"] == result.statement().epsilon
    assert pickle.loads(pickle.dumps(result.epochs)).read() == result.history


def test_callbacks_are_told_an_epsilon_that_is_not_below_the_truth():
    told = []

    class Listener(Callback):
        def on_epoch(self, run, record):
            told.append((record["epsilon"], run.epsilon()))

    fitted(plan(steps=300, accountant="rdp"), callbacks=[Listener()])
    assert len(told) == 30
    assert all(shown >= truth for shown, truth in told)


def test_curves_are_never_below_the_truth_even_in_float32_and_end_on_the_statement(
    tmp_path, monkeypatch
):
    points = []

    class Writer:
        """Stores numbers as TensorBoard does."""

        def __init__(self, folder):
            pass

        def add_scalar(self, name, value, step):
            if name == "epsilon":
                points.append((step, float(np.float32(value))))

        def flush(self):
            pass

        close = flush

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    callbacks = [Stop(70), TensorBoard(tmp_path)]
    result = fitted(plan(steps=300, accountant="rdp"), callbacks=callbacks)
    resolved = result.run.resolved
    assert len(points) == 8
    for step, value in points:
        assert value >= resolved.epsilon_after(step)
    assert points[-1][1] == pytest.approx(result.statement().epsilon, rel=1e-6)
