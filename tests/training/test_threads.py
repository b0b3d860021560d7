"""Threads that share a run: one at a time takes a step, and another one touches nothing."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from making_runs import plan, same, small_model, start, table, weights
from torch.distributions import Distribution

from noisewise.privacy import Ledger
from noisewise.separation import general_ways, libraries
from noisewise.training import StepError


class Gate:
    """A loss in whose middle a thread can be held."""

    def __init__(self):
        self.inside, self.go_on, self.closed = threading.Event(), threading.Event(), False

    def __call__(self, output, target):
        if self.closed and threading.current_thread() is not threading.main_thread():
            self.inside.set()
            assert self.go_on.wait(60)
        return torch.nn.functional.cross_entropy(output, target, reduction="none")


def by_hand(run, x, y):
    run.loss(run.model(x), y).backward()
    run.optimizer.step()


def in_one_call(run, x, y):
    run.step(x, y)


WAYS = [in_one_call, by_hand]


def held(run, gate, way, x, y):
    """A thread that is in the middle of a step."""
    gate.closed = True
    failed = []

    def work():
        try:
            way(run, x, y)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert gate.inside.wait(60)
    return thread, failed


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_a_step_in_the_middle_of_another_threads_step_is_refused_and_changes_nothing(
    tmp_path, first, second
):
    x, y = table(40)
    alone, gate = small_model(), Gate()
    run = start(
        alone, data=False, the_plan=plan(seed=3, records=400), loss=gate, ledger=tmp_path / "a"
    )
    first(run, x, y)
    first(run, x[:20], y[:20])
    run.close()

    model, gate = small_model(), Gate()
    run = start(
        model, data=False, the_plan=plan(seed=3, records=400), loss=gate, ledger=tmp_path / "b"
    )
    first(run, x, y)
    thread, failed = held(run, gate, first, x[:20], y[:20])
    for refused in (lambda: second(run, x, y), run.discard, run.optimizer.step):
        with pytest.raises(StepError, match="another thread"):
            refused()
    gate.closed = False
    gate.go_on.set()
    thread.join()
    assert not failed
    # What the other thread was doing came out as if nobody had interfered.
    for one, other in zip(alone.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    second(run, x, y)  # its turn now
    assert run.steps_taken == 3
    with Ledger.open(tmp_path / "b") as ledger:
        assert len(ledger.charges) == 3
    run.close()


def test_a_thread_that_ended_in_the_middle_has_lost_its_turn():
    x, y = table(20)
    run = start(small_model(), data=False, the_plan=plan(records=400))
    thread = threading.Thread(target=run.model, args=(x,))
    thread.start()
    thread.join()
    run.discard()
    run.step(x, y)
    assert run.steps_taken == 1
    run.close()


@pytest.mark.parametrize("way", WAYS)
def test_every_step_of_many_threads_is_charged_and_noised_once(way):
    x, y = table(80)
    model, norms = small_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    # Noise of deviation 1e6 / 40: a gradient without it is below 1.
    run = start(model, optimizer, False, plan(noise_multiplier=1e6, records=400))
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(sum(float(p.grad.norm()) for p in model.parameters()))
    )
    taken, wrong, interval = [], [], sys.getswitchinterval()
    all_there = threading.Barrier(4)  # a thread that starts in the middle of a step is noticed

    def work(number):
        part = slice(20 * number, 20 * number + 20)
        all_there.wait(60)
        for _ in range(8):
            try:
                way(run, x[part], y[part])
                taken.append(number)
            except Exception as error:
                if "another thread" not in str(error):
                    wrong.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert run.steps_taken == len(taken) == len(norms) > 0
    assert min(norms) > 100
    assert len(set(norms)) == len(norms)
    run.close()


def test_runs_in_several_threads_leave_each_other_what_they_rely_on(monkeypatch):
    # Both let libraries take their general way; the one that ends first must not undo that.
    # Whatever batch another test left open has its own say until it is collected.
    monkeypatch.setattr(libraries, "_REPLACED", {})
    monkeypatch.setattr(Distribution, "_validate_args", True)
    one, other = general_ways(small_model()), general_ways(small_model())
    before = Distribution._validate_args
    with one:
        other.__enter__()
    assert not Distribution._validate_args
    other.__exit__(None, None, None)
    assert Distribution._validate_args is before


def test_runs_side_by_side_are_what_each_is_alone():
    def trained(number, model):
        x, y = table(60, seed=number)
        run = start(model, data=(x, y), the_plan=plan(seed=number), name=f"run {number}")
        for batch in run.loader:
            (in_one_call if number % 2 else by_hand)(run, *batch)
        run.close()
        return weights(model), run.statement().epsilon

    # Made here, since a seed that is set in the middle of another thread's step is noticed.
    alone, models = ([small_model(seed=number) for number in range(3)] for _ in range(2))
    alone = [trained(number, model) for number, model in enumerate(alone)]
    ready = threading.Barrier(3)

    def work(number):
        ready.wait(60)
        return trained(number, models[number])

    with ThreadPoolExecutor(3) as pool:
        beside = list(pool.map(work, range(3)))
    for (one, epsilon), (other, same_epsilon) in zip(alone, beside, strict=True):
        assert same(one, other)
        assert epsilon == same_epsilon
