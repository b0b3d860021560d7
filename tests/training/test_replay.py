"""A step that was charged is repeated for free only if it releases the same bits again.

Every test watches what a run releases under which noise. The claim is always the same: no noise,
and no drawn batch, ever stands in two different releases, and the ledger holds a charge for each.
"""

import contextlib
import shutil
import warnings
from collections import defaultdict

import pytest
import torch
from making_runs import plan, same, small_model, start, table, weights
from torch import nn
from torch.utils.data import TensorDataset

from noisewise.errors import LedgerError, LedgerRolledBackError
from noisewise.privacy import Ledger, PoissonGaussian
from noisewise.release import digest_of
from noisewise.release.steps import LedgerSteps, Step
from noisewise.training import Callback, checkpoints, fit

STEPS = 12


@pytest.fixture
def released(monkeypatch):
    """For every number of a noise, the different means that were released with it."""
    found = defaultdict(set)
    original = Step.pay

    def watched(self, mean=None):
        paid = original(self, mean)
        if paid and mean is not None:
            found[self.number].add(digest_of(mean))
        return paid

    monkeypatch.setattr(Step, "pay", watched)
    return found


def begin(folder, data=None, model=None, seed=3, **options):
    model = small_model() if model is None else model
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    return start(
        model,
        optimizer,
        the_plan=plan(seed=seed, steps=STEPS, accountant="rdp"),
        data=data,
        ledger=folder / "ledger",
        **options,
    )


def die(folder, saved=4, last=8, **options):
    """A run that was saved after some steps, and died after some more."""
    with begin(folder, **options) as run:
        for x, y in run.loader.take(saved):
            run.step(x, y)
        run.save(folder / "checkpoint")
        for x, y in run.loader.take(last - saved):
            run.step(x, y)
    return run


def finish(run):
    for x, y in run.loader:
        run.step(x, y)
    run.close()
    return run


def charges(folder):
    with Ledger.open(folder / "ledger") as ledger:
        return [charge.digest for charge in ledger.charges]


def check(folder, released, charged=STEPS):
    """Nothing was released twice in different ways, and everything was paid."""
    assert all(len(means) == 1 for means in released.values())
    digests = charges(folder)
    assert len(digests) == charged
    assert {digest for means in released.values() for digest in means} <= set(digests)


def test_the_same_program_repeats_for_free_and_without_a_word(tmp_path, released):
    die(tmp_path)
    undisturbed = finish(begin(make(tmp_path / "other")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = finish(begin(tmp_path, resume=tmp_path / "checkpoint"))
    check(tmp_path, released)
    assert same(weights(run.plain_model), weights(undisturbed.plain_model))


def make(folder):
    folder.mkdir()
    return folder


def test_another_learning_rate_pays_and_draws_new_noise(tmp_path, released):
    die(tmp_path)
    run = begin(tmp_path, resume=tmp_path / "checkpoint")
    run.optimizer.param_groups[0]["lr"] = 0.7
    with pytest.warns(UserWarning, match="step 6 was charged before"):
        finish(run)
    # Step 5 begins with the same weights, so its noisy gradient is the one that was released.
    check(tmp_path, released)
    assert run.steps_taken == STEPS
    assert run.statement().steps == STEPS


def other_records():
    x, y = table()
    return x, 1 - y


def one_record_changed():
    x, y = table()
    x = x.clone()
    x[::7] += 1.0
    return x, y


@pytest.mark.parametrize("data", [other_records, one_record_changed])
def test_other_records_pay_and_draw_new_noise_and_new_batches(tmp_path, released, data):
    die(tmp_path)
    run = begin(tmp_path, data=data(), resume=tmp_path / "checkpoint")
    drawn, batches, step = run.loader.sampler, [], run.step
    run.step = lambda x, y: batches.append(len(x)) or step(x, y)
    with pytest.warns(UserWarning, match="cannot be repeated"):
        finish(run)
    check(tmp_path, released)
    # One batch was drawn in vain; those that were stepped on are of steps never taken before.
    assert batches[1:] == [len(drawn.indices(step)) for step in range(8, STEPS)]


def other_weights(run):
    with torch.no_grad():
        run.plain_model[0].weight.mul_(1.5)


def other_noise_of_dropout(run):
    torch.manual_seed(77)


@pytest.mark.parametrize("change", [other_weights, other_noise_of_dropout])
def test_whatever_changes_the_gradient_pays(tmp_path, released, change):
    def model():
        made = small_model()
        made.insert(1, nn.Dropout(0.5))
        return made

    die(tmp_path, model=model())
    run = begin(tmp_path, model=model(), resume=tmp_path / "checkpoint")
    change(run)
    with pytest.warns(UserWarning, match="cannot be repeated"):
        finish(run)
    check(tmp_path, released)


def test_another_optimizer_pays(tmp_path, released):
    die(tmp_path)
    model = small_model()
    nesterov = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    run = begin(tmp_path, model=model, optimizer=nesterov, resume=tmp_path / "checkpoint")
    nesterov.param_groups[0].update(momentum=0.9, nesterov=True)  # the checkpoint has other ones
    with pytest.warns(UserWarning, match="cannot be repeated"):
        finish(run)
    check(tmp_path, released)


def test_a_lost_step_leaves_weights_optimizer_and_average_alone(tmp_path):
    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)

    model = small_model()
    die(tmp_path, model=model, optimizer=adam(model), averaging="ema")
    model = small_model()
    run = begin(
        tmp_path,
        model=model,
        optimizer=adam(model),
        averaging="ema",
        data=other_records(),
        resume=tmp_path / "checkpoint",
    )
    before, moments = weights(model), run.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    averaged = run.averager.count
    with pytest.warns(UserWarning, match="cannot be repeated"):
        run.step(*next(iter(run.loader)))
    assert same(before, weights(model))
    assert torch.equal(moments, run.optimizer.state_dict()["state"][0]["exp_avg"])
    assert run.averager.count == averaged
    assert run.next_step == run.steps_taken == 8
    run.close()


def test_a_loop_of_ones_own_goes_on_behind_the_lost_steps(tmp_path, released):
    die(tmp_path)
    run = begin(tmp_path, data=other_records(), resume=tmp_path / "checkpoint")

    def by_hand(x, y):
        run.loss(run.model(x), y).backward()
        run.optimizer.step()

    run.step = by_hand
    with pytest.warns(UserWarning, match="cannot be repeated"):
        finish(run)
    check(tmp_path, released)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_is_read_ahead_goes_on_behind_the_lost_steps(tmp_path, released, workers):
    def dataset(records):
        return list(zip(*records, strict=True))

    die(tmp_path, data=dataset(table()), workers=workers)
    run = begin(
        tmp_path,
        data=dataset(other_records()),
        workers=workers,
        resume=tmp_path / "checkpoint",
    )
    with pytest.warns(UserWarning, match="cannot be repeated"):
        finish(run)
    check(tmp_path, released)


def test_fit_goes_on_behind_the_lost_steps(tmp_path, released):
    def go(records, steps=None, **options):
        class Stopper(Callback):
            def on_step(self, run, metrics):
                if run.next_step == steps:
                    raise InterruptedError

        with contextlib.suppress(InterruptedError):
            return fit(
                small_model(),
                records,
                plan(steps=STEPS, accountant="rdp"),
                loss=nn.CrossEntropyLoss(),
                checkpoint=tmp_path / "run",
                checkpoint_every=5,
                ledger=tmp_path / "ledger",
                progress=False,
                metrics=False,
                callbacks=[Stopper()],
                **options,
            )

    go(TensorDataset(*table()), steps=8)
    with pytest.warns(UserWarning, match="cannot be repeated"):
        result = go(TensorDataset(*other_records()), resume=True)
    assert result.stopped == "finished"
    check(tmp_path, released)


def test_resuming_twice_one_after_the_other_repeats_or_releases_nothing(tmp_path, released):
    die(tmp_path)
    first = finish(begin(tmp_path, resume=tmp_path / "checkpoint"))
    again = finish(begin(tmp_path, resume=tmp_path / "checkpoint"))
    assert same(weights(first.plain_model), weights(again.plain_model))
    check(tmp_path, released)
    other = begin(tmp_path, data=other_records(), resume=tmp_path / "checkpoint")
    held = weights(other.plain_model)
    with pytest.warns(UserWarning, match="cannot be repeated"):
        finish(other)
    check(tmp_path, released)  # no budget is left, so nothing was released
    assert same(held, weights(other.plain_model))


def test_resuming_twice_side_by_side_is_refused_before_anything_is_charged(tmp_path, released):
    die(tmp_path)
    one = begin(tmp_path, resume=tmp_path / "checkpoint")
    two = begin(tmp_path, data=other_records(), resume=tmp_path / "checkpoint")
    for x, y in one.loader.take(5):
        one.step(x, y)
    assert len(charges(tmp_path)) == 9
    with (
        pytest.warns(UserWarning, match="cannot be repeated"),
        pytest.raises(LedgerError, match="somebody else took step 9"),
    ):
        finish(two)
    check(tmp_path, released, charged=9)
    finish(one)
    two.close()


def test_secret_noise_is_never_repeated(tmp_path):
    die(tmp_path, seed=None)
    run = begin(tmp_path, seed=None, resume=tmp_path / "checkpoint")
    assert run.next_step == 8
    finish(run)
    assert charges(tmp_path) == [None] * STEPS


def test_a_step_without_a_digest_is_never_repeated_whoever_asks(tmp_path):
    """Runs that draw in secret do not ask; the account would not believe them either."""
    with Ledger.create(tmp_path / "ledger", delta=1e-5) as ledger:
        event = PoissonGaussian(1.0, 0.1)
        for digest in (None, "d"):
            name = f"run {digest}"
            first = LedgerSteps(event, Free(), ledger, name, contextlib.ExitStack())
            assert first.charge(0, digest)
            again = LedgerSteps(event, Free(), ledger, name, contextlib.ExitStack())
            again.restore(0, None)
            assert not again.charge(0, None)
            assert again.charge(0, "d") == (digest == "d")
            other = LedgerSteps(
                PoissonGaussian(2.0, 0.1), Free(), ledger, name, contextlib.ExitStack()
            )
            other.restore(0, None)
            assert not other.charge(0, "d")


class Free:
    """An allowance without an end."""

    def require_one_more(self, charged):
        pass


def test_charges_of_an_older_version_have_no_digest_and_are_not_repeated(tmp_path, released):
    die(tmp_path)
    resolved = plan(seed=3, steps=STEPS, accountant="rdp").resolve(400)
    (tmp_path / "ledger").unlink()
    (tmp_path / "ledger.seen").unlink()
    with Ledger.create(tmp_path / "ledger", delta=1e-5, accountant="rdp") as ledger:
        for step in range(8):
            event = PoissonGaussian(resolved.noise_multiplier, resolved.sample_rate)
            ledger.charge(event, note=f"training: step {step + 1}")
    without_head(tmp_path / "checkpoint")
    released.clear()
    with pytest.warns(UserWarning, match="step 5 was charged before"):
        finish(begin(tmp_path, resume=tmp_path / "checkpoint"))
    check(tmp_path, released)


def without_head(path):
    """The checkpoint as version 0.1 wrote it."""
    content = checkpoints.read(path)
    del content["ledger"]
    checkpoints.write(path, content)


# ------------------------------------------------------------------ ledgers that are not the one


def test_a_ledger_older_than_its_checkpoint_is_noticed(tmp_path):
    with begin(tmp_path) as run:
        for x, y in run.loader.take(2):
            run.step(x, y)
        shutil.copy(tmp_path / "ledger", tmp_path / "old")
    (tmp_path / "ledger").unlink()
    (tmp_path / "ledger.seen").unlink()
    die(tmp_path)
    shutil.copy(tmp_path / "old", tmp_path / "ledger")
    (tmp_path / "ledger.seen").unlink()
    with pytest.raises(LedgerError, match="charges are missing"):
        begin(tmp_path, resume=tmp_path / "checkpoint")


def test_an_older_ledger_that_was_continued_is_noticed(tmp_path):
    with begin(tmp_path) as run:
        for x, y in run.loader.take(2):
            run.step(x, y)
        run.save(tmp_path / "early")
        shutil.copy(tmp_path / "ledger", tmp_path / "old")
        for x, y in run.loader.take(4):
            run.step(x, y)
        run.save(tmp_path / "checkpoint")
    shutil.copy(tmp_path / "old", tmp_path / "ledger")
    (tmp_path / "ledger.seen").unlink()
    with begin(tmp_path, resume=tmp_path / "early") as run:
        for x, y in run.loader.take(8):
            run.step(x, y)
    with pytest.raises(LedgerRolledBackError, match="not the ledger that was seen before"):
        begin(tmp_path, resume=tmp_path / "checkpoint")


def test_a_ledger_and_its_checkpoint_copied_back_together_are_noticed(tmp_path):
    with begin(tmp_path) as run:
        for x, y in run.loader.take(4):
            run.step(x, y)
        run.save(tmp_path / "checkpoint")
        shutil.copy(tmp_path / "ledger", tmp_path / "old")
        for x, y in run.loader.take(4):
            run.step(x, y)
    shutil.copy(tmp_path / "old", tmp_path / "ledger")
    for options in ({"resume": tmp_path / "checkpoint"}, {"name": "another"}):
        with pytest.raises(LedgerRolledBackError, match=r"ledger\.seen"):
            begin(tmp_path, **options)


def test_a_reminder_that_a_crash_cut_off_is_no_obstacle(tmp_path):
    die(tmp_path)
    (tmp_path / "ledger.seen").write_text("[8, ")
    finish(begin(tmp_path, resume=tmp_path / "checkpoint"))


def test_a_checkpoint_is_not_resumed_without_its_ledger(tmp_path):
    die(tmp_path)
    with pytest.raises(LedgerError, match="Give ledger="):
        start(the_plan=plan(seed=3, steps=STEPS, accountant="rdp"), resume=tmp_path / "checkpoint")


def test_a_ledger_rolled_back_under_a_running_training_is_noticed(tmp_path):
    run = begin(tmp_path)
    batches = iter(run.loader)
    run.step(*next(batches))
    shutil.copy(tmp_path / "ledger", tmp_path / "old")
    run.step(*next(batches))
    shutil.copy(tmp_path / "old", tmp_path / "ledger")
    before = weights(run.plain_model)
    with pytest.raises(LedgerRolledBackError):
        run.step(*next(batches))
    assert same(before, weights(run.plain_model))


def test_two_runs_under_one_name_in_one_program_are_refused(tmp_path):
    with Ledger.create(tmp_path / "ledger", delta=1e-5, accountant="rdp") as ledger:
        the_plan = plan(seed=3, accountant="rdp")
        one, two = (start(the_plan=the_plan, ledger=ledger) for _ in range(2))
        one.step(*table(40))
        with pytest.raises(LedgerError, match="somebody else took step 1"):
            two.step(*table(30))
        assert len(ledger.charges) == 1


def test_a_digest_tells_every_bit_name_type_and_shape():
    base = {"a": torch.zeros(2, 2), "b": torch.ones(())}
    others = [
        {"a": torch.zeros(2, 2), "c": torch.ones(())},
        {"a": torch.zeros(4), "b": torch.ones(())},
        {"a": torch.zeros(2, 2, dtype=torch.float64), "b": torch.ones(())},
        {"a": -torch.zeros(2, 2), "b": torch.ones(())},
        {"a": torch.zeros(2, 2), "b": torch.nextafter(torch.ones(()), torch.tensor(2.0))},
        {"a": torch.zeros(2, 2).bfloat16(), "b": torch.ones(())},
    ]
    digests = {digest_of(mean) for mean in (base, *others)}
    assert len(digests) == 1 + len(others)
    assert digest_of({name: value.clone() for name, value in base.items()}) == digest_of(base)


def test_a_secret_step_that_was_interrupted_after_its_charge_is_paid_again(tmp_path, monkeypatch):
    run = begin(tmp_path, seed=None)
    batches = iter(run.loader)
    original = type(run.account).charge

    def interrupted(self, step, digest):
        original(self, step, digest)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(run.account), "charge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.step(*next(batches))
    monkeypatch.undo()
    run.step(*next(batches))
    assert run.steps_taken == run.next_step == len(charges(tmp_path)) == 2
    run.close()
