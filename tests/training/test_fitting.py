"""fit is make_private with a loop: the same steps, watched, and within budget."""

import sys
import warnings

import pytest
import torch
from making_runs import plan, same, small_model, start, table, weights
from torch import nn

import noisewise.training.fitting as fitting
from noisewise.errors import MissingExtraError, UnsoundError
from noisewise.gradients import BatchMaxScaled
from noisewise.training import Callback, CheckpointError, EarlyStopping, TensorBoard, fit


@pytest.fixture(autouse=True)
def warned_before():
    """Most tests do not care for the warning about metrics."""
    held, fitting._warned = fitting._warned, True
    yield
    fitting._warned = held


def fitted(the_plan=None, model=None, **options):
    model = small_model() if model is None else model
    values = dict(
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        progress=False,
        metrics=False,
    )
    return fit(model, table(), plan() if the_plan is None else the_plan, **{**values, **options})


def test_fit_takes_the_steps_of_a_loop_by_hand():
    by_hand = small_model()
    run = start(by_hand)
    for x, y in run.loader:
        run.step(x, y)
    for options in ({}, {"metrics": True, "progress": True, "validation": table(50, seed=1)}):
        result = fitted(**options)
        assert same(weights(by_hand), weights(result.model))
        assert result.stopped == "finished"
        assert result.statement().history == run.statement().history


def test_a_word_in_place_of_an_optimizer_is_answered_with_one_that_works():
    with pytest.raises(TypeError, match=r"lambda parameters: torch\.optim\.SGD"):
        fitted(optimizer="sgd")


def test_the_history_has_a_record_per_epoch_with_epsilon_and_metrics():
    result = fitted(
        plan(steps=25, noise_multiplier=None, epsilon=3.0),
        validation=table(100, seed=1),
        metrics={"mean": lambda output, y: float(output.mean())},
    )
    assert [record["step"] for record in result.history] == [10, 20, 25]
    assert [record["epoch"] for record in result.history] == [1, 2, 3]
    costs = [record["epsilon"] for record in result.history]
    assert costs == sorted(costs)
    assert costs[-1] == result.statement().epsilon <= 3.0
    x, y = table(100, seed=1)
    with torch.no_grad():
        output = result.model(x)
    last = result.history[-1]
    assert last["validation_loss"] == pytest.approx(float(nn.CrossEntropyLoss()(output, y)))
    assert last["validation_accuracy"] == pytest.approx(
        float((output.argmax(1) == y).float().mean())
    )
    assert last["validation_mean"] == pytest.approx(float(output.mean()), abs=1e-6)
    assert "train_loss" in last
    assert not result.model.training


def test_private_training_learns():
    x, y = table(4000)
    model = small_model()
    fit(
        model,
        (x, y),
        plan(batch_size=400, noise_multiplier=None, epsilon=3.0, steps=60),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.05),
        progress=False,
        metrics=False,
    )
    assert float((model(x).argmax(1) == y).float().mean()) > 0.9


def test_metrics_on_private_records_are_warned_of_once_and_named_in_the_statement():
    fitting._warned = False
    with pytest.warns(UserWarning, match="noisewise evaluate"):
        result = fitted(metrics=True)
    assert any("not covered" in line for line in result.statement().assumptions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(metrics=True)
        fitting._warned = False
        quiet = fitted(validation=table(20, seed=1), validation_public=True)
    assert not any("not covered" in line for line in quiet.statement().assumptions)


def test_early_stopping_needs_public_validation_and_stops():
    with pytest.raises(UnsoundError, match="public=True"):
        EarlyStopping()
    with pytest.raises(UnsoundError, match="private training records"):
        EarlyStopping("train_loss", public=True)
    result = fitted(
        plan(steps=100),
        validation=table(50, seed=1),
        callbacks=[EarlyStopping("validation_worse", patience=2, public=True)],
        metrics={"worse": iter_counter()},
    )
    assert result.stopped == "callback"
    assert [record["epoch"] for record in result.history] == [1, 2, 3]
    assert result.statement().steps == 30
    with pytest.raises(ValueError, match="give validation="):
        fitted(callbacks=[EarlyStopping(public=True)])


def iter_counter():
    count = iter(range(10**6))
    return lambda output, y: float(next(count))


def test_callbacks_are_told_everything_in_order():
    told = []

    class Listener(Callback):
        def on_start(self, run):
            told.append("start")

        def on_step(self, run, metrics):
            told.append(run.next_step)

        def on_epoch(self, run, record):
            told.append(f"epoch {record['epoch']}")

        def on_end(self, run):
            told.append("end")

    fitted(plan(steps=12), callbacks=[Listener()])
    assert told == ["start", *range(1, 11), "epoch 1", 11, 12, "epoch 2", "end"]


def test_tensorboard_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="pip install tensorboard"):
        TensorBoard(tmp_path)


def test_tensorboard_gets_every_number(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    fitted(plan(steps=12), callbacks=[TensorBoard(tmp_path)])
    assert any(path.stat().st_size for path in tmp_path.iterdir())


def test_batches_in_dicts_and_tuples_are_split():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, a, b):
            return self.layer(a + b)

    x, y = table()
    options = dict(loss=nn.CrossEntropyLoss(), progress=False)
    torch.manual_seed(0)
    first = fit(Two(), {"a": x, "b": x, "label": y}, plan(), **options)
    torch.manual_seed(0)
    second = fit(Two(), (x, x, y), plan(), **options)
    assert same(weights(first.model), weights(second.model))
    with pytest.raises(TypeError, match="split="):
        fit(Two(), {"a": x, "b": x, "c": y}, plan(), **options)


def test_schedulers_are_stepped_and_averages_are_returned():
    rates = []

    class Watch(Callback):
        def on_step(self, run, metrics):
            rates.append(run.optimizer.param_groups[0]["lr"])

    result = fitted(
        plan(steps=4),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        callbacks=[Watch()],
        averaging="polyak",
    )
    assert rates == pytest.approx([0.05, 0.025, 0.0125, 0.00625])
    assert not same(weights(result.model), weights(result.run.plain_model))


def test_an_unsound_estimator_fits_without_epsilon():
    import noisewise.nn as lipschitz

    model = nn.Sequential(lipschitz.BoundedInput((5,), 1.0), lipschitz.SpectralLinear(5, 2))
    result = fitted(plan(gradients=BatchMaxScaled(study=True)), model, progress=True)
    assert result.history[-1]["epsilon"] is None
    with pytest.raises(UnsoundError):
        result.statement()


def test_an_existing_checkpoint_is_never_overwritten_by_a_new_training(tmp_path):
    fitted(checkpoint=tmp_path / "run.safetensors")
    with pytest.raises(CheckpointError, match="resume=True"):
        fitted(checkpoint=tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match="needs the checkpoint"):
        fitted(resume=True)
