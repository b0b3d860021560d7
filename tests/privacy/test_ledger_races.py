"""To look, to decide and to write is one act: no interleaving spends more than the budget."""

import os
import random
import signal
import sys
import threading
import time

import pytest

from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import Gaussian, Ledger, Pure


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.ledger"


@pytest.fixture(autouse=True)
def eager_switching():
    """Threads take turns a thousand times as often, so that a race is met and not hoped for."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(count, action):
    """Let threads begin at once; return what each returned or raised."""
    results, barrier = [None] * count, threading.Barrier(count)

    def run(number):
        barrier.wait()
        try:
            results[number] = action(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


def in_processes(count, action):
    """Let forked children act; return their exit codes, which are what the actions return."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            code = 255
            try:
                code = action(number)
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def accepted_by(ledger, attempts, event):
    accepted = 0
    for _ in range(attempts):
        try:
            ledger.charge(event)
            accepted += 1
        except BudgetExceededError:
            pass
    return accepted


def refused(results):
    return sum(isinstance(result, BudgetExceededError) for result in results)


def test_fifty_threads_do_not_exceed_the_budget_of_one_object(path):
    with Ledger.create(path, epsilon=1.0) as ledger:
        results = in_threads(50, lambda _: ledger.charge(Pure(0.5)))
        assert results.count(None) == 2
        assert refused(results) == 48
    with Ledger.open(path) as ledger:  # and the file is whole
        assert ledger.history == (Pure(0.5, 2),)


def test_threads_with_an_object_each_do_not_exceed_the_budget(path, monkeypatch):
    Ledger.create(path, epsilon=1.0).close()
    check = Ledger._check_budget

    def slow(self, book, charges):
        check(self, book, charges)
        time.sleep(0.002)  # between decision and line, so that without a lock others come between

    monkeypatch.setattr(Ledger, "_check_budget", slow)

    def charge(_):
        with Ledger.open(path) as ledger:
            return accepted_by(ledger, 10, Pure(0.1))

    assert sum(in_threads(12, charge)) == 10
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(0.1, 10),)


def test_charges_of_different_kinds_see_each_other(path):
    """What another object spent on another kind of release is not left in an old allowance."""
    with Ledger.create(path, epsilon=1.0) as one, Ledger.open(path) as other:
        one.charge(Pure(0.1))
        other.charge(Pure(0.85))
        with pytest.raises(BudgetExceededError):
            one.charge(Pure(0.1))
        assert one.spent() == pytest.approx(0.95)
        with pytest.raises(BudgetExceededError):
            other.charge([Pure(0.04), Gaussian(3.0)])
        assert one.history == other.history == (Pure(0.1), Pure(0.85))


def test_processes_of_several_threads_do_not_exceed_the_budget(path):
    shared = Ledger.create(path, epsilon=1.0)

    def work(number):
        # Some use the object that they inherited, some open their own.
        ledger = shared if number % 2 else Ledger.open(path)
        return sum(in_threads(4, lambda _: accepted_by(ledger, 10, Pure(1 / 32))))

    codes = in_processes(5, work)
    assert sum(codes) == 32
    assert shared.history == (Pure(1 / 32, 32),)


def test_a_fork_in_the_middle_of_charges_hangs_nobody_and_loses_nothing(path):
    ledger, stop, charged = Ledger.create(path), threading.Event(), [0] * 4

    def charge(number):
        if number < 4:
            while not stop.is_set():
                ledger.charge(Pure(0.001))
                charged[number] += 1
            return 0
        try:
            return in_processes(12, lambda _: accepted_by(ledger, 3, Pure(0.001)))
        finally:
            stop.set()

    *_, codes = in_threads(5, charge)
    assert codes == [3] * 12
    assert sum(event.count for event in ledger.history) == sum(charged) + 36
    Ledger.open(path).close()


def test_a_child_of_a_killed_process_does_not_keep_its_lock(path):
    """Killed inside an act, with a child that was forked inside it: others go on at once."""
    Ledger.create(path).close()
    reader, writer = os.pipe()
    doomed = os.fork()
    if doomed == 0:
        from noisewise.files.locks import locked

        with locked(path):
            grandchild = os.fork()
            if grandchild == 0:
                time.sleep(60)
                os._exit(0)
            os.write(writer, grandchild.to_bytes(4, "little"))
            time.sleep(60)
    grandchild = int.from_bytes(os.read(reader, 4), "little")
    os.close(reader)
    os.close(writer)
    try:
        os.kill(doomed, signal.SIGKILL)
        os.waitpid(doomed, 0)
        begin = time.monotonic()
        Ledger.open(path).charge(Pure(1.0))
        assert time.monotonic() - begin < 30  # the child would have kept it for 60
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_readers_always_see_a_whole_ledger_that_only_grows(path):
    done = threading.Event()
    Ledger.create(path, epsilon=100.0).close()

    def use(number):
        with Ledger.open(path) as ledger:
            if number == 0:
                for _ in range(100):
                    ledger.charge(Pure(0.125))
                done.set()
                return
            seen = ledger.head()
            while not done.is_set():
                spent, entries = ledger.spent(), len(ledger.entries)
                assert entries >= spent / 0.125 >= seen.entries
                ledger.require(seen)
                seen = ledger.head()

    assert in_threads(4, use) == [None] * 4


def test_one_of_many_threads_pays_for_a_key(path):
    ledger = Ledger.create(path)
    results = in_threads(
        20, lambda _: ledger.charge_once(Pure(0.5), key="release a", digest="00ff")
    )
    assert results.count(True) == 1
    assert results.count(False) == 19
    assert ledger.history == (Pure(0.5),)


def test_one_of_many_creates_the_ledger(path):
    def create(_):
        Ledger.create(path, epsilon=1.0).charge(Pure(0.5))
        return True

    results = in_threads(12, create)
    assert results.count(True) == 1
    assert sum(isinstance(result, LedgerError) for result in results) == 11
    assert Ledger.open(path).history == (Pure(0.5),)


def test_other_names_of_the_file_have_the_same_lock(path, monkeypatch):
    Ledger.create(path, epsilon=1.0).close()
    symbolic, hard = path.with_name("symbolic"), path.with_name("hard")
    symbolic.symlink_to(path)
    hard.hardlink_to(path)
    monkeypatch.chdir(path.parent)
    names = [path, symbolic, hard, path.name, f"../{path.parent.name}/{path.name}"]
    ledgers = [Ledger.open(name) for name in names]
    monkeypatch.chdir("/")  # a relative name keeps leading to the same file
    results = in_threads(30, lambda number: ledgers[number % 5].charge(Pure(0.25)))
    assert results.count(None) == 4
    assert refused(results) == 26


def test_an_act_that_cannot_begin_is_given_up_with_a_word(path, monkeypatch):
    from noisewise.files import locks

    ledger = Ledger.create(path)
    monkeypatch.setattr(locks, "PATIENCE", 0.05)
    with locks.locked(path), pytest.raises(LedgerError, match="nothing was charged"):
        ledger.charge(Pure(1.0))
    ledger.charge(Pure(1.0))
    assert len(ledger.entries) == 1


def _charge_for_ever(path, released):
    with Ledger.open(path) as ledger, released.open("ab", buffering=0) as output:
        while True:
            try:
                ledger.charge(Pure(0.001))
            except BudgetExceededError:
                os._exit(0)
            output.write(b".")


def test_kills_among_several_writers_lose_no_charge_and_exceed_no_budget(path, tmp_path):
    released = tmp_path / "released"
    released.touch()
    Ledger.create(path, epsilon=1.0).close()
    delays, children = random.Random(0), []
    for _ in range(40):
        while len(children) < 3:
            child = os.fork()
            if child == 0:
                try:
                    _charge_for_ever(path, released)
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(delays.uniform(0.0, 0.01))
        victim = children.pop(delays.randrange(3))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        with Ledger.open(path) as ledger:
            seen = released.stat().st_size  # before the ledger is read: writers go on
            assert sum(event.count for event in ledger.history) >= seen
            assert ledger.spent() <= 1.0
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert released.stat().st_size > 40
