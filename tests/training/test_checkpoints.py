"""A run that dies at any moment resumes to the same statement, and seeded to the same weights."""

import json
import multiprocessing
import os
import random
import signal

import pytest
import torch
from making_runs import plan, same, small_model, start, table, weights
from safetensors import safe_open
from torch import nn

from noisewise.errors import LedgerError
from noisewise.privacy import Ledger, Randomness
from noisewise.release.steps import LedgerSteps
from noisewise.training import CheckpointError, checkpoints, fit

STEPS = 24


class Noisy(nn.Sequential):
    """A model with dropout, so that torch's own generator matters too."""


def model_of(seed=0):
    torch.manual_seed(seed)
    return Noisy(nn.Linear(5, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 2))


def train(folder, seed, kill=None):
    """The program of a user, which knows nothing of crashes but resume=True."""
    if kill is not None:
        kill()
    model = model_of()
    result = fit(
        model,
        table(),
        # A fixed multiplier and the quick accountant: nearly all the time would go to accounting.
        plan(seed=seed, steps=STEPS, accountant="rdp"),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
        scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
        averaging="ema",
        checkpoint=folder / "run.safetensors",
        checkpoint_every=3,
        resume=True,
        progress=False,
        metrics=False,
    )
    (folder / "statement.json").write_text(result.statement().to_json())
    state = {"last": weights(model), "average": weights(result.model)}
    torch.save(state, folder / "weights.pt")


def in_a_process(*arguments, after=None):
    """Run `train` in a process; kill it after some seconds; tell how it ended."""
    process = multiprocessing.get_context("fork").Process(target=train, args=arguments)
    process.start()
    process.join(after)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def results(folder):
    return json.loads((folder / "statement.json").read_text()), torch.load(folder / "weights.pt")


def charges(folder):
    with Ledger.open(folder / "run.safetensors.ledger") as ledger:
        return sum(event.count for event in ledger.history), ledger.entries


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, 3)  # here, so that forked processes find everything imported
    return results(folder)


def suicide(owner, name, nth, before):
    """Make the nth call of a method the last thing that the process does."""

    def arrange():
        original, calls = getattr(owner, name), []

        def doomed(*args, **kwargs):
            calls.append(None)
            if before and len(calls) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if len(calls) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, doomed)

    return arrange


MOMENTS = {
    "before the first charge": (LedgerSteps, "charge", 1, True),
    "after a charge, before its noise": (LedgerSteps, "charge", 8, False),
    "after the noise was drawn": (Randomness, "normal_for", 11, False),
    "in the middle of the optimizer": (torch.optim.Adam, "step", 14, False),
    "before the checkpoint is renamed": (os, "replace", 4, True),
    "after the checkpoint is renamed": (os, "replace", 6, False),
    "while a checkpoint is synced": (os, "fsync", 20, True),
    "at the last step": (LedgerSteps, "charge", STEPS, False),
}


#: Most moments are the same to a secret run; these two are tried with every change.
SECRET = ("after a charge, before its noise", "after the checkpoint is renamed")
CASES = [
    *((moment, 3) for moment in MOMENTS),
    *((moment, None) for moment in SECRET),
    *(
        pytest.param(moment, None, marks=pytest.mark.slow)
        for moment in MOMENTS
        if moment not in SECRET
    ),
]


@pytest.mark.parametrize(("moment", "seed"), CASES)
def test_a_run_killed_at_the_worst_moment_resumes(tmp_path, undisturbed, moment, seed):
    assert in_a_process(tmp_path, seed, suicide(*MOMENTS[moment])) == -signal.SIGKILL
    if (tmp_path / "run.safetensors.ledger").exists():
        before, entries = charges(tmp_path)
    else:
        before, entries = 0, ()
    assert in_a_process(tmp_path, seed) == 0
    total, later = charges(tmp_path)
    assert later[: len(entries)] == entries
    assert total == STEPS >= before
    check(tmp_path, undisturbed, seed)


@pytest.mark.parametrize("seed", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_run_killed_again_and_again_resumes(tmp_path, undisturbed, seed):
    rng = random.Random(1)
    kills = 0
    while in_a_process(tmp_path, seed, after=rng.uniform(0.0, 0.1 + 0.05 * kills)) != 0:
        kills += 1
        assert kills < 100
    assert kills  # how many there were depends on the machine
    assert charges(tmp_path)[0] == STEPS
    check(tmp_path, undisturbed, seed)


def check(folder, undisturbed, seed):
    statement, held = results(folder)
    expected, reference = undisturbed
    if seed is None:
        for name in ("epsilon", "history", "assumptions", "sampler"):
            assert statement[name] == expected[name]
    else:
        assert statement == expected
        assert same(held["last"], reference["last"])
        assert same(held["average"], reference["average"])


# ------------------------------------------------------------------ checkpoints by hand


def halfway(folder, seed=3, steps=5, more=0, **options):
    """A run that was saved after some steps and died a few steps later."""
    run = start(
        the_plan=plan(seed=seed, steps=12), ledger=folder / "ledger", averaging="ema", **options
    )
    for index, (x, y) in enumerate(run.loader):
        if index == steps:
            run.save(folder / "checkpoint")
        if index == steps + more:
            break
        run.step(x, y)
    run.close()
    return run


def test_a_secret_run_never_repeats_a_step_that_was_charged(tmp_path):
    halfway(tmp_path, seed=None, steps=5, more=3)
    run = start(
        the_plan=plan(seed=None, steps=12),
        ledger=tmp_path / "ledger",
        averaging="ema",
        resume=tmp_path / "checkpoint",
    )
    assert run.steps_taken == 8
    assert run.next_step == 8
    assert len(run.loader) == 4
    run.close()


def test_a_seeded_run_repeats_charged_steps_exactly_and_for_free(tmp_path):
    died = halfway(tmp_path, steps=5, more=3)
    at_death = weights(died.plain_model)
    run = start(
        the_plan=plan(seed=3, steps=12),
        ledger=tmp_path / "ledger",
        averaging="ema",
        resume=tmp_path / "checkpoint",
    )
    assert run.next_step == 5
    for _, (x, y) in zip(range(3), run.loader, strict=False):
        run.step(x, y)
    assert run.steps_taken == 8
    assert same(at_death, weights(run.plain_model))
    run.close()


def test_noise_that_was_charged_never_meets_a_batch_of_the_callers(tmp_path):
    halfway(tmp_path, steps=5, more=3)
    run = start(
        the_plan=plan(seed=3, steps=12),
        ledger=tmp_path / "ledger",
        averaging="ema",
        resume=tmp_path / "checkpoint",
    )
    run.step(*table())
    assert run.steps_taken == 9
    assert run.next_step == 9
    run.close()


def test_noise_that_was_charged_never_meets_other_records(tmp_path):
    halfway(tmp_path, steps=5, more=3, records=400)
    run = start(
        the_plan=plan(seed=3, steps=12),
        data=table(399),
        records=400,
        ledger=tmp_path / "ledger",
        averaging="ema",
        resume=tmp_path / "checkpoint",
    )
    assert run.next_step == run.steps_taken == 8
    run.close()


def test_a_ledger_with_missing_charges_is_refused(tmp_path):
    halfway(tmp_path)
    with pytest.raises(LedgerError, match="charges are missing"):
        start(
            the_plan=plan(seed=3, steps=12),
            ledger=tmp_path / "new",
            averaging="ema",
            resume=tmp_path / "checkpoint",
        )


def test_another_plan_name_or_averaging_is_refused(tmp_path):
    halfway(tmp_path)

    def resume(the_plan, **options):
        start(
            the_plan=the_plan, ledger=tmp_path / "ledger", resume=tmp_path / "checkpoint", **options
        )

    with pytest.raises(CheckpointError, match="another plan"):
        resume(plan(seed=3, steps=13), averaging="ema")
    with pytest.raises(CheckpointError, match="belongs to a run"):
        resume(plan(seed=3, steps=12), averaging="ema", name="other")
    with pytest.raises(CheckpointError, match="averaging"):
        resume(plan(seed=3, steps=12))


@pytest.mark.parametrize("seed", [3, None])
def test_records_that_change_the_public_constants_are_refused_before_a_step(tmp_path, seed):
    # The plan is the same, but the sample rate follows from the number of records: the steps were
    # taken and charged, and then no statement could be made of both rates.
    halfway(tmp_path, seed=seed)
    with pytest.raises(CheckpointError, match="number of records"):
        start(
            the_plan=plan(seed=seed, steps=12),
            data=table(300),
            ledger=tmp_path / "ledger",
            averaging="ema",
            resume=tmp_path / "checkpoint",
        )
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert sum(charge.event.count for charge in ledger.charges) == 5


def test_without_a_durable_ledger_there_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="durable ledger"):
        start().save(tmp_path / "checkpoint")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoints.read(tmp_path / "nothing")
    (tmp_path / "noise").write_bytes(b"\x80\x04pickle")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        checkpoints.read(tmp_path / "noise")


def test_a_checkpoint_is_plain_safetensors_and_holds_no_secret(tmp_path):
    halfway(tmp_path, seed=None)
    with safe_open(tmp_path / "checkpoint", framework="pt") as file:
        stored = file.get_tensor(".model.0.weight")
        header = file.metadata()
    assert torch.equal(stored, checkpoints.read(tmp_path / "checkpoint")["model"]["0.weight"])
    assert "key" not in header["content"]
    assert json.loads(header["content"])


def test_nested_values_survive(tmp_path):
    content = {
        "tuple": (1, 2.5, "x", None, True),
        "list": [[1], {"a": torch.arange(3)}],
        "numbers as keys": {0: torch.ones(2, dtype=torch.float64), 7: ()},
    }
    checkpoints.write(tmp_path / "file", content)
    again = checkpoints.read(tmp_path / "file")
    assert again["tuple"] == content["tuple"]
    assert torch.equal(again["list"][1]["a"], torch.arange(3))
    assert torch.equal(again["numbers as keys"][0], torch.ones(2, dtype=torch.float64))
    assert again["numbers as keys"][7] == ()
    with pytest.raises(TypeError, match="without pickle"):
        checkpoints.write(tmp_path / "file", {"x": object()})
    assert checkpoints.read(tmp_path / "file")["tuple"] == content["tuple"]


def test_shared_weights_are_saved_and_restored(tmp_path):
    def tied():
        model = small_model()
        model.add_module("3", nn.Linear(2, 2))
        model.add_module("4", model[3])
        return model

    run = start(tied(), ledger=tmp_path / "ledger")
    run.step(*next(iter(run.loader)))
    run.save(tmp_path / "checkpoint")
    run.close()
    again = start(tied(), ledger=tmp_path / "ledger", resume=tmp_path / "checkpoint")
    assert same(weights(run.plain_model), weights(again.plain_model))
    assert again.plain_model[3] is again.plain_model[4]
    again.close()
