"""A LightningModule is trained privately by a callback; everything else is Lightning's own."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning
from lightning.pytorch.loggers import CSVLogger

import noisewise.lightning as private
from noisewise.errors import LedgerError, UnsoundError, UnsupportedModelError
from noisewise.gradients import Clipped
from noisewise.privacy import Ledger, Statement
from noisewise.privacy.statement import round_up, single_up
from noisewise.training import Plan, make_private
from noisewise.training.meter import EpsilonMeter


class Module(lightning.LightningModule):
    """As a user writes it: nothing in it knows of privacy."""

    def __init__(self, optimizers=1, plateau=False):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
        self.number, self.plateau = optimizers, plateau
        self.rates, self.called = [], 0

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, index):
        self.called += 1
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        if self.number != 1:
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.number)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        if self.plateau:
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_batch_end(self, *given):
        self.rates.append(self.lr_schedulers().get_last_lr()[0])


def loader(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 5, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=20, **options)


def plan(**changes):
    values = dict(
        gradients=Clipped(1.0), noise_multiplier=1.0, steps=14, batch_size=20, delta=1e-5, seed=3
    )
    return Plan(**{**values, **changes})


def trainer(folder, *callbacks, **options):
    values = dict(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        callbacks=list(callbacks),
    )
    return lightning.Trainer(**{**values, **options})


def callback(**options):
    return private.PrivateTraining(
        options.pop("the_plan", plan()), nn.CrossEntropyLoss(), **options
    )


def charged(folder):
    with Ledger.open(folder / "_training.ledger") as ledger:
        return sum(event.count for event, _ in ledger.entries)


def test_an_ordinary_module_is_trained_as_by_hand(tmp_path):
    ours, module = callback(), Module()
    watched = trainer(tmp_path, ours)
    watched.fit(module, loader(shuffle=True), loader(seed=1))
    assert module.called == 0
    assert watched.global_step == 14
    assert watched.current_epoch == 2  # 10 steps an epoch
    assert "val_loss" in watched.callback_metrics
    assert ours.statement().steps == charged(tmp_path) == 14
    assert "promised by the caller" not in ours.statement().sampler
    shown = float(watched.callback_metrics["epsilon"])
    assert shown == single_up(float(round_up(ours.statement().epsilon)))
    written = Statement.from_json((tmp_path / "statement.json").read_text("utf-8"))
    assert written == ours.statement()
    assert module.rates[:5] == pytest.approx([0.05, 0.025, 0.025, 0.0125, 0.0125])
    assert "training_step" not in vars(module)

    other = Module()
    (optimizer,), (schedule,) = other.configure_optimizers()
    run = make_private(other.network, optimizer, nn.CrossEntropyLoss(), loader(), plan())
    for x, y in run.loader:
        run.step(x, y)
        schedule["scheduler"].step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value)


@pytest.mark.parametrize("seed", [3, None])
def test_a_checkpoint_goes_on_with_its_ledger(tmp_path, seed):
    whole = Module()
    trainer(tmp_path / "whole", callback(the_plan=plan(seed=seed))).fit(whole, loader())

    class Failing(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 8:
                raise KeyError("the machine fails")

    folder = tmp_path / "cut"
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder, every_n_train_steps=6, filename="last", save_top_k=-1
    )
    failing = trainer(
        folder, callback(the_plan=plan(seed=seed)), saving, Failing(), enable_checkpointing=True
    )
    with pytest.raises(KeyError):
        failing.fit(Module(), loader())
    assert charged(folder) == 8
    ours, module = callback(the_plan=plan(seed=seed)), Module()
    trainer(folder, ours).fit(module, loader(), ckpt_path=folder / "last.ckpt")
    assert charged(folder) == 14
    assert ours.statement().steps == 14
    equal = all(torch.equal(v, module.state_dict()[k]) for k, v in whole.state_dict().items())
    assert equal is (seed is not None)
    with pytest.raises(LedgerError, match="already holds"):
        trainer(folder, callback(the_plan=plan(seed=seed))).fit(Module(), loader())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(accumulate_grad_batches=2), "accumulate_grad_batches"),
        (dict(gradient_clip_val=1.0), "gradient_clip_val"),
        (dict(limit_train_batches=3), "limit_train_batches"),
        (dict(overfit_batches=1), "overfit_batches"),
    ],
)
def test_what_breaks_the_promise_is_refused_before_a_charge(tmp_path, options, word):
    with pytest.raises(UnsoundError, match=word):
        trainer(tmp_path, callback(), **options).fit(Module(), loader())
    assert not list(tmp_path.glob("*.ledger"))


def test_choices_need_public_records(tmp_path):
    class Patient(lightning.pytorch.callbacks.EarlyStopping):
        """Of another name."""

    stopping = lightning.pytorch.callbacks.EarlyStopping("val_loss")
    for chooses, name in ((stopping, "EarlyStopping"), (Patient("val_loss"), "Patient")):
        with pytest.raises(UnsoundError, match=name):
            trainer(tmp_path, callback(), chooses).fit(Module(), loader(), loader(seed=1))
    with pytest.raises(UnsupportedModelError, match="ReduceLROnPlateau"):
        trainer(tmp_path, callback()).fit(Module(plateau=True), loader(), loader(seed=1))
    ours = callback(public_validation=True)
    trainer(tmp_path, ours, stopping).fit(Module(), loader(), loader(seed=1))
    assert ours.statement().steps == 14


def test_validation_on_training_records_is_noted_and_chooses_nothing(tmp_path):
    train = loader()
    part = DataLoader(torch.utils.data.Subset(train.dataset, range(20)), batch_size=20)
    stopping = lightning.pytorch.callbacks.EarlyStopping("val_loss")
    with pytest.raises(UnsoundError, match="which are training records"):
        trainer(tmp_path, callback(public_validation=True), stopping).fit(Module(), train, part)
    assert charged(tmp_path) == 0
    ours = callback()
    with pytest.warns(UserWarning, match="not covered by the statement"):
        trainer(tmp_path, ours).fit(Module(), train, part)
    assert any("shown during training" in text for text in ours.statement().assumptions)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "noisewise.lightning")
    with pytest.raises(ImportError, match=r"noisewise\[lightning\]"):
        importlib.import_module("noisewise.lightning")


def test_other_samplers_and_several_optimizers_are_refused(tmp_path):
    weighted = loader(sampler=WeightedRandomSampler([1.0] * 200, 200))
    with pytest.raises(UnsoundError, match="WeightedRandomSampler"):
        trainer(tmp_path, callback()).fit(Module(), weighted)
    with pytest.raises(UnsupportedModelError, match="2 optimizers"):
        trainer(tmp_path, callback()).fit(Module(optimizers=2), loader())
    assert not list(tmp_path.glob("*.ledger"))


class Shown(lightning.Callback):
    """What Lightning shows after every step, and stops training after one of them."""

    def __init__(self, ours, last=None):
        self.ours, self.last, self.seen = ours, last, []

    def on_train_batch_end(self, trainer, *given):
        places = (
            trainer.callback_metrics, trainer.progress_bar_metrics, trainer.logged_metrics,
        )  # fmt: skip
        run = self.ours.run
        self.seen += [(run.steps_taken, float(shown["epsilon"])) for shown in places]
        trainer.should_stop = run.steps_taken == self.last


def test_what_is_shown_is_never_below_the_truth_though_lightning_keeps_single_precision(
    tmp_path, monkeypatch
):
    ours = callback()
    watched = Shown(ours)
    # 0.7 in single precision is less than 0.7.
    monkeypatch.setattr(EpsilonMeter, "after", lambda self, charged, **how: 0.7)
    trainer(tmp_path, ours, watched, log_every_n_steps=1).fit(Module(), loader())
    assert len(watched.seen) == 3 * 14
    assert all(0.7 <= shown < 0.7 * (1 + 1e-6) for _, shown in watched.seen)


def test_training_that_ends_early_ends_on_the_epsilon_of_the_statement(tmp_path):
    ours = callback(the_plan=plan(steps=60))
    watched = Shown(ours, last=31)
    logged = CSVLogger(str(tmp_path))
    used = trainer(tmp_path, ours, watched, logger=logged, log_every_n_steps=1, min_epochs=0)
    used.fit(Module(), loader())
    assert all(shown >= ours.run.resolved.epsilon_after(step) for step, shown in watched.seen)
    assert ours.statement().steps == 31
    stated = single_up(float(round_up(ours.statement().epsilon)))
    assert watched.seen[-1][1] > stated
    for metrics in (used.callback_metrics, used.progress_bar_metrics, used.logged_metrics):
        assert float(metrics["epsilon"]) == stated
    rows = Path(logged.log_dir, "metrics.csv").read_text("utf-8").split()
    header, last = rows[0].split(","), rows[-1].split(",")
    assert float(last[header.index("epsilon")]) == stated
