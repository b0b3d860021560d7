"""Nothing that was released is ever missing from the ledger."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import Gaussian, Laplace, Ledger, PoissonGaussian, Pure, max_steps, verify


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.ledger"


def test_charges_are_read_back_in_order_and_rebuild_the_statement(path):
    with Ledger.create(path, delta=1e-6, unit="one patient") as ledger:
        ledger.charge(PoissonGaussian(1.0, 0.01, 10), note="epoch 1")
        ledger.charge(Laplace(5.0), note="mean age")
        ledger.charge(PoissonGaussian(1.0, 0.01, 10))
        before = ledger.statement(mechanism="m")
    with Ledger.open(path) as ledger:
        assert ledger.history == (PoissonGaussian(1.0, 0.01, 20), Laplace(5.0))
        assert [note for _, note in ledger.entries] == ["epoch 1", "mean age", ""]
        assert ledger.statement(mechanism="m") == before
        assert ledger.unit == "one patient"
        assert verify(before).ok


def test_a_charge_beyond_the_budget_is_refused_and_not_recorded(path):
    with Ledger.create(path, epsilon=1.0) as ledger:
        ledger.charge(Pure(0.4))
        ledger.charge(Pure(0.5))
        with pytest.raises(BudgetExceededError, match="0 more of this kind fit"):
            ledger.charge(Pure(0.4))
        ledger.charge(Pure(0.1))
        assert ledger.spent() == pytest.approx(1.0)
    with Ledger.open(path) as ledger:
        assert ledger.spent() == pytest.approx(1.0)


def test_training_stops_exactly_where_the_accountant_says(path):
    step = PoissonGaussian(1.0, 0.05)
    with Ledger.create(path, epsilon=2.0, delta=1e-5) as ledger:
        most = max_steps(noise_multiplier=1.0, sample_rate=0.05, epsilon=2.0, delta=1e-5)
        for _ in range(most):
            ledger.charge(step)
        assert ledger.spent() <= 2.0
        with pytest.raises(BudgetExceededError):
            ledger.charge(step)


def test_an_existing_ledger_is_never_overwritten(path):
    Ledger.create(path).close()
    with pytest.raises(LedgerError, match=r"Ledger\.open"):
        Ledger.create(path)
    with pytest.raises(LedgerError, match=r"Ledger\.create"):
        Ledger.open(path.with_name("other"))
    with pytest.raises(LedgerError, match="no folder"):
        Ledger.create(path.parent / "nowhere" / "x.ledger")


def test_two_processes_cannot_charge_at_once(path):
    code = (
        "import sys\nfrom noisewise.errors import LedgerError\n"
        "from noisewise.privacy import Ledger\n"
        "try:\n    Ledger.open(sys.argv[1])\nexcept LedgerError as error:\n    print(error)\n"
    )
    with Ledger.create(path) as ledger:
        result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert "another process is charging" in result.stdout, result.stderr
        ledger.charge(Pure(1.0))
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert result.stdout == ""
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge(Pure(1.0))


def test_the_same_process_cannot_open_a_ledger_twice(path):
    with Ledger.create(path), pytest.raises(LedgerError, match="another process"):
        Ledger.open(path)


def test_a_forked_child_cannot_charge(path):
    with Ledger.create(path) as ledger:
        child = os.fork()
        if child == 0:
            try:
                ledger.charge(Pure(1.0))
            except LedgerError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ledger.charge(Pure(1.0))


@pytest.mark.parametrize("cut", [1, 10, 60, 100])
def test_a_torn_last_line_is_repaired(path, cut):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
        whole = path.stat().st_size
        ledger.charge(Pure(2.0))
    data = path.read_bytes()
    path.write_bytes(data[: max(whole, len(data) - cut)])
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(1.0),)
        ledger.charge(Pure(3.0))
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(1.0), Pure(3.0))


def test_a_last_line_of_unwritten_zeros_is_repaired(path):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
    with path.open("ab") as file:
        file.write(b"\0" * 100 + b"\n")
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(1.0),)


def test_a_changed_or_missing_line_is_an_error_not_a_repair(path):
    with Ledger.create(path) as ledger:
        for _ in range(3):
            ledger.charge(Gaussian(1.0))
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (
        [lines[0], lines[2], lines[3]],
        [lines[0], lines[1].replace(b"1.0", b"9.0"), *lines[2:]],
        [*lines[:3], lines[3].replace(b"1.0", b"9.0")],
        lines[1:],
        [b"hello\n"],
    ):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(LedgerError):
            Ledger.open(path)
    path.write_bytes(b"".join(lines))
    Ledger.open(path).close()  # and a failed open leaves the lock free


def test_a_full_disk_charges_nothing(path, monkeypatch):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
        size = path.stat().st_size

        def fail(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("noisewise.privacy.ledger.os.fsync", fail)
        with pytest.raises(LedgerError, match="do not release"):
            ledger.charge(Pure(2.0))
        monkeypatch.undo()
        assert ledger.history == (Pure(1.0),)
    assert path.stat().st_size == size
    with Ledger.open(path) as ledger:
        ledger.charge(Pure(2.0))
        assert ledger.spent() == pytest.approx(3.0)


def _charge_for_ever(path, released):
    """A child: charge, then release (one byte for each charge), until killed."""
    with Ledger.open(path) as ledger, released.open("ab", buffering=0) as output:
        while True:
            ledger.charge(Pure(0.001))
            output.write(b".")


def _wait_for_growth(file):
    before, deadline = file.stat().st_size, time.monotonic() + 5
    while file.stat().st_size == before and time.monotonic() < deadline:
        time.sleep(0.0005)


def test_two_hundred_kills_lose_no_charge(path, tmp_path):
    """kill -9 at random moments: what was released is always in the ledger."""
    released = tmp_path / "released"
    released.touch()
    Ledger.create(path).close()
    delays = random.Random(0)
    charged_before = 0
    for _ in range(220):
        child = os.fork()
        if child == 0:
            try:
                _charge_for_ever(path, released)
            finally:
                os._exit(1)
        if delays.random() < 0.7:  # most kills while it charges, the others while it starts
            _wait_for_growth(released)
        time.sleep(delays.uniform(0.0, 0.004))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        with Ledger.open(path) as ledger:
            charged = sum(event.count for event in ledger.history)
        assert charged >= released.stat().st_size
        assert charged >= charged_before
        charged_before = charged
    assert released.stat().st_size > 200
