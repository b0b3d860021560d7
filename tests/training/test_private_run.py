"""A private step is: bounded sum, charge, noise once, constant divisor, the user's optimizer."""

import copy
import math

import pytest
import torch
from making_runs import plan, same, small_model, start, table, weights
from torch import nn

import noisewise.nn as lipschitz
from noisewise.errors import BudgetExceededError, LedgerError, RelationError, UnsoundError
from noisewise.gradients import BatchMaxScaled, Clipped, Factored, Schedule, bounded_sum
from noisewise.privacy import Ledger, Randomness, verify
from noisewise.training import StepError, deviations, make_private
from noisewise.training.streams import Streams

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "heavy ball": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


def noisy_gradients(model, batch, the_plan, rate_step):
    """The reference: the public bounded sum, plus the noise of that step, over the divisor."""
    bounded = bounded_sum(model, nn.CrossEntropyLoss(), *batch, the_plan.gradients)
    s = deviations(
        [group.sensitivity for group in bounded.groups],
        [group.size for group in bounded.groups],
        the_plan.noise_multiplier,
        the_plan.noise,
    )
    names = [(name, k) for k, group in enumerate(bounded.groups) for name in group.names]
    noise = rate_step.normal_for([bounded.gradients[n] for n, _ in names], [s[k] for _, k in names])
    return {
        name: (bounded.gradients[name] + z) / the_plan.batch_size
        for (name, _), z in zip(names, noise, strict=True)
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_sees_noisy_gradients_and_nothing_else(name):
    follow(name, plan(steps=4))


@pytest.mark.parametrize("noise", ["optimal", "per-layer", "global"])
def test_every_group_gets_its_own_noise(noise):
    follow("sgd", plan(steps=3, gradients=Clipped((0.1, 2.0), per="layer"), noise=noise))


def follow(name, the_plan):
    """Train with a run and with the reference, and compare the weights."""
    model, reference = small_model(), small_model()
    twin = OPTIMIZERS[name](reference.parameters())
    run = start(model, OPTIMIZERS[name](model.parameters()), the_plan=the_plan)
    for step, batch in enumerate(run.loader):
        gradients = noisy_gradients(reference, batch, the_plan, Streams(3).noise(step))
        for key, parameter in reference.named_parameters():
            parameter.grad = gradients[key]
        twin.step()
        run.step(*batch)
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero", ["none", "zeros", "never"])
@pytest.mark.parametrize("gradients", [Clipped(1.0), Clipped(0.5, per="layer"), Factored(1.0)])
def test_a_loop_of_ones_own_takes_the_same_steps(zero, gradients):
    first, second = small_model(), small_model()
    the_plan = plan(gradients=gradients)
    run = start(first, OPTIMIZERS["adam"](first.parameters()), the_plan=the_plan)
    for x, y in run.loader:
        run.step(x, y)
    own = start(second, OPTIMIZERS["adam"](second.parameters()), the_plan=the_plan)
    for x, y in own.loader:
        if zero != "never":
            own.optimizer.zero_grad(set_to_none=zero == "none")
        loss = own.loss(own.model(x), y)
        assert loss.item() == pytest.approx(nn.CrossEntropyLoss()(second(x), y).item(), rel=1e-5)
        (3.0 * loss).backward()  # a factor changes nothing: every record counts exactly once
        own.optimizer.step()
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert own.statement() == run.statement()


def test_schedulers_and_parameter_groups_work_as_ever():
    model = small_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters()}], lr=0.5
    )
    run = start(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=5, gamma=0.1)
    for x, y in run.loader:
        run.step(x, y)
        scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.005])


def test_two_runs_in_one_program_do_not_disturb_each_other():
    alone = start(small_model(seed=1), the_plan=plan(seed=9))
    for x, y in alone.loader:
        alone.step(x, y)
    first, second = small_model(seed=1), small_model(seed=2)
    one = start(first, the_plan=plan(seed=9))
    two = start(second, the_plan=plan(noise_multiplier=3.0), name="other")
    for (a, b), (c, d) in zip(one.loader, two.loader, strict=True):
        loss = two.loss(two.model(c), d)
        one.step(a, b)
        loss.backward()
        two.optimizer.step()
    assert same(weights(first), weights(alone.plain_model))
    assert two.statement().noise_multiplier == 3.0
    with pytest.raises(StepError, match="belongs to another private run"):
        start(first, one.optimizer)


def test_the_noise_has_the_planned_variance_and_the_divisor_is_the_expected_size():
    # An empty batch releases pure noise. 400 steps of 50 parameters against the normal law:
    # the sum of squares is chi-square with 20,000 degrees; 5 deviations have probability 6e-7.
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = start(model, optimizer, the_plan=plan(steps=400, noise_multiplier=2.0, seed=None))
    x, y = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    total, count = 0.0, 0
    for _ in range(400):
        run.step(x, y)
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        total += float((flat.double() ** 2).sum())
        count += flat.numel()
    expected = (2.0 * 1.001 / 40) ** 2
    assert total / count == pytest.approx(expected, rel=5 * math.sqrt(2 / count))


def test_empty_batches_are_steps_like_any_other_in_both_loops():
    the_plan = plan(batch_size=1e-9, sample_rate=None)
    first, second = small_model(), small_model()
    run, own = start(first, the_plan=the_plan), start(second, the_plan=the_plan)
    for x, y in run.loader:
        assert len(y) == 0
        run.step(x, y)
    for x, y in own.loader:
        own.loss(own.model(x), y).backward()
        own.optimizer.step()
    assert run.steps_taken == own.steps_taken == 12
    assert same(weights(first), weights(second))
    assert not same(weights(first), weights(small_model()))


def test_a_model_that_cannot_take_an_empty_batch_is_no_obstacle():
    class Picky(nn.Linear):
        def forward(self, x):
            if not len(x):
                raise ValueError("nothing there")
            return super().forward(x)

    run = start(Picky(5, 2), the_plan=plan(batch_size=1e-9))
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()
    run.optimizer.step()
    run.step(x, y)
    assert run.steps_taken == 2


# ------------------------------------------------------------------ wrong orders


@pytest.fixture
def run():
    with start() as made:
        yield made


def unspent(run, before):
    return run.steps_taken == 0 and same(before, weights(run.plain_model))


def test_backward_twice_is_refused(run):
    before, (x, y) = weights(run.plain_model), next(iter(run.loader))
    loss = run.loss(run.model(x), y)
    loss.backward(retain_graph=True)
    with pytest.raises(StepError, match="twice on one batch"):
        loss.backward()
    with pytest.raises(StepError, match="twice"):
        run.optimizer.step()
    assert unspent(run, before)
    run.loss(run.model(x), y).backward()
    run.optimizer.step()
    assert run.steps_taken == 1


def test_a_second_step_on_one_batch_is_refused(run):
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()
    run.optimizer.step()
    after = weights(run.plain_model)
    with pytest.raises(StepError, match="stepped on already"):
        run.optimizer.step()
    assert run.steps_taken == 1
    assert same(after, weights(run.plain_model))


def test_a_step_without_backward_is_refused(run):
    before, (x, y) = weights(run.plain_model), next(iter(run.loader))
    with pytest.raises(StepError, match="there is no batch"):
        run.optimizer.step()
    output = run.model(x)
    with pytest.raises(StepError, match=r"no run\.loss"):
        run.optimizer.step()
    run.loss(output, y)
    with pytest.raises(StepError, match="was not called"):
        run.optimizer.step()
    assert unspent(run, before)


def test_two_forwards_two_losses_and_mixed_loops_are_refused(run):
    before, (x, y) = weights(run.plain_model), next(iter(run.loader))
    output = run.model(x)
    with pytest.raises(StepError, match="called twice in training mode"):
        run.model(x)
    with pytest.raises(StepError, match="while a batch"):
        run.step(x, y)
    run.loss(output, y)
    with pytest.raises(StepError, match="twice on one batch"):
        run.loss(output, y)
    assert unspent(run, before)
    run.discard()
    run.step(x, y)
    assert run.steps_taken == 1


@pytest.mark.parametrize("touch", ["set", "scale a stale one", "another backward", "clip"])
def test_touching_gradients_in_between_is_refused(run, touch):
    batches = iter(run.loader)
    run.step(*next(batches))
    before, (x, y) = weights(run.plain_model), next(batches)
    parameter = next(run.plain_model.parameters())
    if touch == "scale a stale one":
        parameter.grad.mul_(2.0)
        with pytest.raises(StepError, match=r"0\.weight"):
            run.model(x)
        return
    run.loss(run.model(x), y).backward()
    if touch == "set":
        parameter.grad = torch.ones_like(parameter)
    elif touch == "another backward":
        parameter.square().sum().backward()
    else:
        parameter.grad = torch.randn_like(parameter)
        nn.utils.clip_grad_norm_([parameter], 0.1)
    with pytest.raises(StepError, match="not private"):
        run.optimizer.step()
    assert run.steps_taken == 1
    assert same(before, weights(run.plain_model))


def test_closures_are_refused(run):
    with pytest.raises(StepError, match="closure"):
        run.optimizer.step(lambda: torch.zeros(()))


def test_evaluation_opens_no_batch(run):
    x, y = next(iter(run.loader))
    with torch.no_grad():
        output = run.model(x)
        expected = nn.CrossEntropyLoss()(output, y)
        assert torch.equal(run.loss(output, y), expected)
    run.model.eval()
    run.model(x)
    run.model.train()
    run.step(x, y)
    assert run.steps_taken == 1
    assert same(run.model.state_dict(), weights(run.plain_model))


def test_raw_gradients_left_by_others_never_reach_the_optimizer():
    model = small_model()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = start(model, optimizer)
    frozen = model[0].bias.clone()
    model[0].bias.grad = torch.ones_like(model[0].bias)
    run.step(*next(iter(run.loader)))
    assert torch.equal(model[0].bias, frozen)


def test_foreign_and_forgotten_parameters():
    model = small_model()
    with pytest.raises(UnsoundError, match="not parameters of the model"):
        start(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))
    for kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
        with pytest.raises(ValueError, match="Adam or torch"):
            start(model, kind(model.parameters()))
    with pytest.warns(UserWarning, match="noise is spent"):
        start(model, torch.optim.SGD(model[0].parameters(), lr=1.0))


# ------------------------------------------------------------------ budgets and statements


def test_the_statement_is_that_of_the_steps_taken_and_verifies():
    run = start(the_plan=plan(noise_multiplier=None, epsilon=2.0, steps=15))
    assert run.epsilon() == 0.0
    costs = []
    for x, y in run.loader:
        run.step(x, y)
        costs.append(run.epsilon())
    assert costs == sorted(costs)
    statement = run.statement()
    assert statement.epsilon == costs[-1] <= 2.0
    assert statement.steps == 15
    assert verify(statement).ok
    assert "NOT secret" in statement.randomness
    assert start(the_plan=plan(seed=None)).statement().randomness.startswith("AES-256")


def test_training_stops_before_the_step_that_would_exceed(tmp_path):
    for ledger in (None, tmp_path / "run.ledger"):
        model = small_model()
        run = start(
            model, the_plan=plan(noise_multiplier=None, epsilon=1.0, steps=5), ledger=ledger
        )
        x, y = table()
        held = []

        def ten_steps(run=run, model=model, x=x, y=y, held=held):
            for _ in range(10):
                run.step(x[:40], y[:40])
                held.append(weights(model))

        with pytest.raises(BudgetExceededError, match="exceed"):
            ten_steps()
        assert 5 <= run.steps_taken < 10
        assert run.epsilon() <= 1.0
        assert run.resolved.epsilon_after(run.steps_taken + 1) > 1.0
        assert same(held[-1], weights(model))
        run.close()


def test_the_plans_target_holds_in_a_ledger_that_would_allow_more(tmp_path):
    target = plan(noise_multiplier=None, epsilon=1.0, steps=5)
    with Ledger.create(tmp_path / "rich.ledger", epsilon=100.0, delta=1e-5) as ledger:
        run = start(the_plan=target, ledger=ledger)
        x, y = table()

        def ten_steps():
            for _ in range(10):
                run.step(x[:40], y[:40])

        with pytest.raises(BudgetExceededError, match="plan's epsilon 1"):
            ten_steps()
        assert run.epsilon() <= 1.0


def test_a_copy_of_the_model_is_a_plain_model():
    run = start()
    copied = copy.deepcopy(run.model)
    assert isinstance(copied, nn.Sequential)
    assert same(weights(copied), weights(run.plain_model))


def test_the_ledger_is_charged_before_the_noise_is_drawn(tmp_path, monkeypatch):
    run = start(the_plan=plan(seed=None), ledger=tmp_path / "run.ledger")
    seen = []

    def watched(self, tensors, stds):
        with open(tmp_path / "run.ledger") as file:
            seen.append(len(file.readlines()) - 1)
        return original(self, tensors, stds)

    original = Randomness.normal_for
    monkeypatch.setattr(Randomness, "normal_for", watched)
    for x, y in run.loader:
        run.step(x, y)
    assert seen == list(range(1, 13))
    run.close()


def test_a_step_that_fails_after_its_charge_stays_charged_and_its_noise_is_not_used_again(
    tmp_path, monkeypatch
):
    run = start(ledger=tmp_path / "run.ledger")
    batches = iter(run.loader)
    used = []
    original = Streams.noise
    monkeypatch.setattr(Streams, "noise", lambda self, k: used.append(k) or original(self, k))
    monkeypatch.setattr(run._watch, "write", lambda gradients: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.step(*next(batches))
    monkeypatch.undo()
    monkeypatch.setattr(Streams, "noise", lambda self, k: used.append(k) or original(self, k))
    run.step(*next(batches))
    assert run.steps_taken == 2
    assert used == [0, 1]
    run.close()


def test_several_runs_share_one_ledger_and_its_budget(tmp_path):
    the_plan = plan(noise_multiplier=2.0, steps=6)
    with Ledger.create(tmp_path / "all.ledger", epsilon=5.0, delta=1e-5) as ledger:
        for name in ("first", "second"):
            with start(the_plan=the_plan, ledger=ledger, name=name) as run:
                for x, y in run.loader:
                    run.step(x, y)
                assert run.statement().steps == 6
        assert sum(event.count for event in ledger.history) == 12
        with (
            start(the_plan=the_plan, ledger=ledger, name="first") as again,
            pytest.raises(LedgerError, match="another name"),
        ):
            again.step(*table())
    with (
        Ledger.create(tmp_path / "b.ledger", relation="replace-one") as other,
        pytest.raises(RelationError),
    ):
        start(the_plan=the_plan, ledger=other)


def test_the_statement_says_who_drew_the_batches_and_whether_any_were_left_out():
    run = start()
    for x, y in run.loader:
        run.step(x, y)
    assert "promise" not in str(run.statement())
    x, y = table()
    run.step(x[:10], y[:10])
    assert "promised by the caller" in run.statement().sampler

    filtering = start()
    x, y = next(iter(filtering.loader))
    filtering.step(x[1:], y[1:])
    assert "promised by the caller" in filtering.statement().sampler

    skipping = start()
    for index, (x, y) in enumerate(skipping.loader):
        if index % 2:
            skipping.step(x, y)
    assert any("left out batches" in line for line in skipping.statement().assumptions)

    full = start(the_plan=plan(sampling="full", batch_size=None))
    full.step(*table())
    assert "every record took part" in full.statement().sampler


def test_the_statement_says_when_the_size_was_read_from_the_data():
    def sentences(run):
        return " ".join(run.statement().assumptions)

    assert "400, was read from the data" in sentences(start())
    assert "400, is treated as public" in sentences(start(records=400))
    assert "400, is treated as public" in sentences(start(the_plan=plan(records=400)))
    neither = plan(batch_size=40, sample_rate=0.1)
    assert "number of records" not in sentences(start(the_plan=neither))
    assert "1e-05" not in sentences(start())
    assert "Delta was not given; it is 1/(10 n) rounded down to 0.0001" in sentences(
        start(the_plan=plan(delta=None))
    )


def test_batches_of_the_callers_own_need_no_data():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = make_private(
        model, optimizer, nn.CrossEntropyLoss(), None, plan(sample_rate=0.1, batch_size=40)
    )
    with pytest.raises(StepError, match="made without data"):
        _ = run.loader
    run.step(*table())
    assert run.statement().sample_rate == 0.1


def test_unsound_estimators_train_but_state_nothing():
    model = nn.Sequential(lipschitz.BoundedInput((5,), 1.0), lipschitz.SpectralLinear(5, 2))
    run = start(model, the_plan=plan(gradients=BatchMaxScaled(study=True)))
    before = weights(model)
    for x, y in run.loader:
        run.step(x, y)
    assert not same(before, weights(model))
    with pytest.raises(UnsoundError, match="BatchMaxScaled"):
        run.statement()
    with pytest.raises(UnsoundError):
        run.epsilon()


def test_preprocessing_speaks_in_the_statement():
    class FromData:
        assumptions = ("Ranges are public.",)

        def __init__(self, sound):
            self.sound = sound

        def require_sound(self):
            if not self.sound:
                raise UnsoundError("ranges were read from the records")

    assert "Ranges are public." in start(preprocessing=FromData(True)).statement().assumptions
    with pytest.raises(UnsoundError, match="read from the records"):
        start(preprocessing=FromData(False)).statement()


# ------------------------------------------------------------------ options


def test_constrained_layers_are_within_their_limits_before_and_after_every_step():
    model = nn.Sequential(
        lipschitz.BoundedInput((5,), 1.0),
        lipschitz.SpectralLinear(5, 4),
        nn.ReLU(),
        nn.Linear(4, 2),
    )
    with torch.no_grad():
        model[1].weight.mul_(100.0)
    run = start(model, torch.optim.SGD(model.parameters(), lr=50.0))

    def norm():
        return float(torch.linalg.matrix_norm(model[1].weight.detach().double(), 2))

    assert norm() <= 1.0
    for x, y in run.loader:
        run.step(x, y)
        assert norm() <= 1.0


def test_noise_meets_the_effective_weight_and_is_pulled_back_to_the_stored_one():
    model = nn.Sequential(lipschitz.StandardisedLinear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    run = start(model, torch.optim.SGD(model.parameters(), lr=0.0))
    reference = bounded_sum(
        model,
        nn.CrossEntropyLoss(),
        *(empty := (torch.zeros(0, 5), torch.zeros(0).long())),
        run.plan.gradients,
    )
    (group,) = reference.groups
    tensors = [group.gradients[name] for name in group.names]
    noise = Streams(3).noise(0).normal_for(tensors, [1.001] * len(tensors))
    expected = dict(zip(group.names, noise, strict=True))
    run.step(*empty)
    pulled = model[0].pull_back(expected["0.weight"] / 40)
    torch.testing.assert_close(model[0].weight.grad, pulled)
    torch.testing.assert_close(model[2].weight.grad, expected["2.weight"] / 40)


def test_chunks_change_nothing_but_rounding():
    first, second = small_model(), small_model()
    for model, chunk in ((first, None), (second, 7)):
        run = start(model, chunk=chunk)
        for x, y in run.loader:
            run.step(x, y)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 16])
def test_augmented_views_of_a_record_count_as_one(chunk):
    # With as many identical views as you like, training is the same as without.
    first, second = small_model(), small_model()
    plain = start(first)
    for x, y in plain.loader:
        plain.step(x, y)
    views = start(second, views=4, augmentation=lambda x: x.clone(), chunk=chunk)
    for x, y in views.loader:
        views.step(x, y)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not any("augmentation" in line for line in views.statement().assumptions)  # proven
    empty = start(views=4, augmentation=lambda x: x + 1, the_plan=plan(batch_size=1e-9))
    empty.step(*next(iter(empty.loader)))
    assert empty.steps_taken == 1


def test_a_schedule_of_estimators_changes_at_its_fraction_of_the_steps():
    stages = Schedule([(0.0, Clipped(1.0)), (0.5, Clipped(2.0))])
    model = small_model()
    run = start(
        model, torch.optim.SGD(model.parameters(), lr=0.0), the_plan=plan(gradients=stages, steps=8)
    )
    empty = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    lengths = []
    for _ in range(8):
        run.step(*empty)
        lengths.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))
    early, late = lengths[:4], lengths[4:]
    assert max(early) < min(late)
    assert run.statement().noise_multiplier == 1.0


def test_closing_gives_the_optimizer_back():
    model = small_model()
    run = start(model)
    run.close()
    nn.CrossEntropyLoss()(model(table()[0]), table()[1]).backward()
    run.optimizer.step()
