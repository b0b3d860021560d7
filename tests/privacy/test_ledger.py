"""Nothing that was released is ever missing from the ledger."""

import copy
import os
import pickle
import random
import signal
import stat
import time

import pytest

from noisewise.errors import (
    BudgetExceededError,
    ChargeConflictError,
    LedgerError,
    LedgerRolledBackError,
)
from noisewise.privacy import (
    Charge,
    Gaussian,
    Laplace,
    Ledger,
    LedgerHead,
    PoissonGaussian,
    Pure,
    max_steps,
    verify,
)
from noisewise.privacy.ledger_book import seal
from noisewise.privacy.ledger_file import Act


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


def test_a_closed_ledger_charges_no_more_but_can_be_read(path):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge(Pure(1.0))
    assert ledger.history == (Pure(1.0),)


def _die_while_writing(path, torn, charges):
    """Charge in a child that dies when `torn` of what it writes has arrived."""
    child = os.fork()
    if child == 0:
        true = os.write

        def write(descriptor, data):
            if not data.startswith(b"["):  # the witness is written as ever
                true(descriptor, torn(data))
                os.kill(os.getpid(), signal.SIGKILL)
            return true(descriptor, data)

        try:
            with Ledger.open(path) as ledger:
                os.write = write
                ledger.charge(charges, key="torn")
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


TORN = {
    "nothing": lambda data: b"",
    "a byte": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "all but a byte of the seal": lambda data: data[:-2],
    "zeros": lambda data: bytes(len(data)),
    "zeros and the end": lambda data: bytes(len(data) - 9) + data[-9:],
    "a page in the middle": lambda data: data[:40] + bytes(40) + data[80:],
}


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN.keys())
@pytest.mark.parametrize("is_open", [False, True])
def test_a_line_that_a_crash_tore_is_repaired(path, torn, is_open):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
        _die_while_writing(path, torn, Pure(2.0))
        with ledger if is_open else Ledger.open(path) as after:
            assert after.history == (Pure(1.0),)
            assert after.find("torn") is None
            after.charge(Pure(3.0))
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(1.0), Pure(3.0))


def test_a_crash_between_a_line_and_its_newline_leaves_a_charge(path):
    Ledger.create(path).close()
    _die_while_writing(path, lambda data: data[:-1], Pure(2.0))
    with Ledger.open(path) as ledger:
        assert ledger.find("torn").event == Pure(2.0)


DAMAGED = {
    "newline": lambda data, whole: data[:-1],
    "cut": lambda data, whole: data[:-20],
    "nearly all": lambda data, whole: data[: whole + 1],
    "zero": lambda data, whole: data[: whole + 80] + b"\0" + data[whole + 81 :],
    "zeros": lambda data, whole: data[:whole] + bytes(len(data) - whole - 1) + b"\n",
    "line": lambda data, whole: data[:whole],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_charge_that_was_made_is_not_forgotten_when_its_line_is_damaged(path, damage):
    with Ledger.create(path, epsilon=1.0) as ledger:
        ledger.charge(Pure(0.4))
        whole = path.stat().st_size
        ledger.charge(Pure(0.6))
    data = path.read_bytes()
    path.write_bytes(damage(data, whole))
    if damage is not DAMAGED["newline"]:
        with pytest.raises(LedgerError, match="put the newest"):
            Ledger.open(path)
        assert path.read_bytes() == damage(data, whole)  # nothing is thrown away
        path.write_bytes(data)
    with Ledger.open(path) as ledger:
        assert ledger.spent() == pytest.approx(1.0)
        with pytest.raises(BudgetExceededError):
            ledger.charge(Pure(0.6))
    assert path.read_bytes() == data


@pytest.mark.parametrize("damage", [name for name in DAMAGED if name != "line"])
def test_damage_is_not_taken_for_a_crash_though_nothing_remembers_the_ledger(path, damage):
    with Ledger.create(path) as ledger:
        whole = path.stat().st_size
        ledger.charge(Pure(0.6))
    _seen(path).unlink()
    path.write_bytes(DAMAGED[damage](path.read_bytes(), whole))
    if damage == "newline":
        assert Ledger.open(path).spent() == pytest.approx(0.6)
    else:
        with pytest.raises(LedgerError, match="by hand"):
            Ledger.open(path)


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
    before, deadline = file.stat().st_size, time.monotonic() + 120
    while file.stat().st_size == before:
        assert time.monotonic() < deadline, "the child charges nothing"
        time.sleep(0.0005)


def test_eighty_kills_lose_no_charge(path, tmp_path):
    """kill -9 at random moments: what was released is always in the ledger."""
    released = tmp_path / "released"
    released.touch()
    Ledger.create(path).close()
    delays = random.Random(0)
    charged_before = killed_while_charging = 0
    for _ in range(80):
        child = os.fork()
        if child == 0:
            try:
                _charge_for_ever(path, released)
            finally:
                os._exit(1)
        if delays.random() < 0.7:  # most kills while it charges, the others while it starts
            _wait_for_growth(released)
            killed_while_charging += 1
        time.sleep(delays.uniform(0.0, 0.004))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        with Ledger.open(path) as ledger:
            charged = sum(event.count for event in ledger.history)
        assert charged >= released.stat().st_size
        assert charged >= charged_before
        charged_before = charged
    assert released.stat().st_size >= killed_while_charging > 40


# ------------------------------------------------------------- heads: an older copy is noticed


def test_a_ledger_that_only_grew_contains_every_head_that_it_had(path):
    with Ledger.create(path) as ledger:
        heads = [ledger.head()]
        for _ in range(3):
            ledger.charge(Pure(1.0))
            heads.append(ledger.head())
    assert [head.entries for head in heads] == [0, 1, 2, 3]
    with Ledger.open(path) as ledger:
        for head in heads:
            ledger.require(LedgerHead(head.entries, head.digest))


def _seen(path):
    return path.with_name(path.name + ".seen")


def _older_copy(path):
    _seen(path).unlink()
    path.write_bytes(_older_copy.data)


def _older_copy_continued_alike(path):
    _older_copy(path)
    with Ledger.open(path) as ledger:
        ledger.charge(Pure(1.0), note="second")


def _another_alike(path):
    _seen(path).unlink()
    path.unlink()
    with Ledger.create(path) as ledger:
        for note in ("first", "second", "third"):
            ledger.charge(Pure(1.0), note=note)


@pytest.mark.parametrize("change", [_older_copy, _older_copy_continued_alike, _another_alike])
def test_a_head_is_missed_in_a_ledger_that_was_rolled_back_even_if_the_same_was_charged(
    path, change
):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0), note="first")
        _older_copy.data = path.read_bytes()
        ledger.charge(Pure(1.0), note="second")
        head = ledger.head()
    change(path)
    with Ledger.open(path) as ledger, pytest.raises(LedgerRolledBackError, match="put the"):
        ledger.require(head)


@pytest.mark.parametrize("change", [_older_copy, _older_copy_continued_alike, _another_alike])
@pytest.mark.parametrize("renamed", [False, True])
def test_an_open_ledger_notices_by_itself_that_it_was_rolled_back(path, change, renamed):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0), note="first")
        _older_copy.data = path.read_bytes()
        ledger.charge(Pure(1.0), note="second")
        if renamed:
            path.rename(path.with_name("newest"))
            path.touch()
        change(path)
        for use in (ledger.head, ledger.spent, lambda: ledger.charge(Pure(1.0))):
            with pytest.raises(LedgerRolledBackError):
                use()


@pytest.mark.parametrize("charges", [0, 1, 3])
def test_a_ledger_that_was_deleted_is_not_created_again(path, charges):
    with Ledger.create(path, epsilon=10.0) as ledger:
        for _ in range(charges):
            ledger.charge(Pure(1.0))
    path.unlink()
    with pytest.raises(LedgerRolledBackError, match=r"Put it back.*data\.ledger\.seen"):
        Ledger.create(path)
    with pytest.raises(LedgerError, match="put it back"):
        Ledger.open(path)
    _seen(path).unlink()
    Ledger.create(path).close()


def test_an_older_copy_is_refused_by_whoever_opens_it(path):
    with Ledger.create(path, epsilon=1.0) as ledger:
        older = path.read_bytes()
        ledger.charge(Pure(1.0))
        newest = path.read_bytes()
    path.write_bytes(older)
    for _ in range(2):
        with pytest.raises(LedgerRolledBackError, match=r"data\.ledger\.seen"):
            Ledger.open(path)
    path.write_bytes(newest)
    with Ledger.open(path) as ledger, pytest.raises(BudgetExceededError):
        ledger.charge(Pure(1.0))


def test_a_ledger_that_went_on_elsewhere_is_taken_back(path, tmp_path):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
    (tmp_path / "elsewhere").write_bytes(path.read_bytes())
    with Ledger.open(tmp_path / "elsewhere") as ledger:
        ledger.charge(Pure(2.0))
    path.write_bytes((tmp_path / "elsewhere").read_bytes())
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(1.0), Pure(2.0))


@pytest.mark.parametrize("left", [b"", b"[1, ", bytes(128), b"{}", b"[[]]", b"[1]"])
def test_what_a_crash_leaves_of_the_file_that_remembers_stops_nobody(path, left):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0))
    _seen(path).write_bytes(left)
    with Ledger.open(path) as ledger:
        ledger.charge(Pure(1.0))
    assert stat.S_IMODE(_seen(path).stat().st_mode) == 0o600


def test_a_ledger_that_was_deleted_is_not_begun_again_by_a_charge(path):
    ledger = Ledger.create(path)
    path.unlink()
    with pytest.raises(LedgerError, match="put it back"):
        ledger.charge(Pure(1.0))
    assert not path.exists()


def test_a_head_that_no_ledger_can_have_is_refused(path):
    ledger = Ledger.create(path)
    for head in (LedgerHead(-1, ledger.head().digest), LedgerHead(0, ""), LedgerHead(1, "")):
        with pytest.raises(LedgerRolledBackError):
            ledger.require(head)


# ------------------------------------------------------------------- keys: paying once


def test_the_same_release_is_paid_once_and_anything_else_under_its_key_is_refused(path):
    with Ledger.create(path) as ledger:
        assert ledger.charge_once(Pure(1.0), key="run 1", digest="aa", note="n")
    with Ledger.open(path) as ledger:
        assert not ledger.charge_once(Pure(1.0), key="run 1", digest="aa")
        for event, digest in ((Pure(1.0), "bb"), (Pure(2.0), "aa"), (Pure(1.0, 2), "aa")):
            with pytest.raises(ChargeConflictError, match="another key"):
                ledger.charge_once(event, key="run 1", digest=digest)
        with pytest.raises(ChargeConflictError):
            ledger.charge(Pure(1.0), key="run 1", digest="aa")
        assert ledger.find("run 1") == Charge(Pure(1.0), "n", "run 1", "aa")
        assert ledger.find("n") is None
        assert ledger.history == (Pure(1.0),)


def test_several_events_are_charged_together_or_not_at_all(path):
    with Ledger.create(path, epsilon=1.0) as ledger:
        ledger.charge([Pure(0.25), Laplace(4.0)], note="report", key="report")
        assert ledger.find("report").event == Laplace(4.0)
        with pytest.raises(BudgetExceededError, match="nothing was charged"):
            ledger.charge([Pure(0.25), Laplace(3.0)])
        with pytest.raises(ValueError, match="at least one"):
            ledger.charge([])
        assert ledger.history == (Pure(0.25), Laplace(4.0))


def test_a_report_that_was_cut_off_has_no_key_and_is_paid_again(path):
    """Its first line may be whole: that is too much, never too little."""
    with Ledger.create(path) as ledger:
        ledger.charge([Pure(1.0), Laplace(1.0)], key="report")
    _seen(path).unlink()
    path.unlink()
    Ledger.create(path).close()
    _die_while_writing(path, lambda data: data[:-5], [Pure(1.0), Laplace(1.0)])
    with Ledger.open(path) as ledger:
        assert ledger.find("torn") is None
        assert ledger.history == (Pure(1.0),)


def test_a_mark_is_taken_away_once_and_whoever_does_not_find_it_pays(path):
    with Ledger.create(path, epsilon=2.0) as ledger:
        pays = {"otherwise": Pure(1.0), "note": "stream"}
        assert not ledger.exchange_mark("s", was=None, becomes="a", **pays)
        assert ledger.exchange_mark("s", was="a", becomes="b", **pays)
        assert not ledger.exchange_mark("s", was="a", becomes="c")  # nothing is written
        assert not ledger.exchange_mark("other", was="b", becomes="c")
        assert ledger.exchange_mark("s", was="b", becomes="d", **pays)
    with Ledger.open(path) as ledger:
        assert ledger.history == (Pure(1.0),)
        assert not ledger.exchange_mark("s", was="b", becomes="e", **pays)
        assert ledger.spent() == pytest.approx(2.0)
        with pytest.raises(BudgetExceededError):
            ledger.exchange_mark("s", was="b", becomes="f", **pays)
        assert ledger.exchange_mark("s", was="e", becomes="g", **pays)
        assert len(ledger.charges) == len(ledger.entries) == 2


def test_a_copy_of_a_ledger_charges_the_same_file(path):
    with Ledger.create(path, epsilon=1.0) as ledger:
        for copied in (copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))):
            copied.charge(Pure(0.5))
        with pytest.raises(BudgetExceededError):
            ledger.charge(Pure(0.5))


def test_a_pickled_ledger_is_not_opened_on_an_older_copy(path):
    with Ledger.create(path) as ledger:
        before = path.read_bytes()
        ledger.charge(Pure(0.5))
        pickled = pickle.dumps(ledger)
    _seen(path).unlink()
    path.write_bytes(before)
    with pytest.raises(LedgerRolledBackError):
        pickle.loads(pickled)


# ---------------------------------------------------------------------------- files

#: Written by version 0.1.
OLD = """\
4d166da1c0774f60154e6701c42b1c58baedb46ad8195b350f8cf780b7ecc47a {"accountant":"pld",\
"delta":1e-06,"epsilon":2.0,"format":"noisewise-privacy-ledger","relation":"add-remove",\
"unit":"one patient","version":1}
cb6b9d2507a6cfbc6cfa7bcf92856dcf8908844dd82eeb268bd14c2aaf2485f2 {"event":{"count":1,\
"kind":"laplace","noise_multiplier":2.0},"note":"mean age","sequence":1}
1e5ebbcca8dd2f016e777f517b1fffa25993335d07bf111d820caf56b815bac8 {"event":{"count":5,\
"kind":"poisson-gaussian","noise_multiplier":1.0,"sample_rate":0.01},"note":"run: step 1",\
"sequence":2}
"""


def test_a_ledger_of_version_0_1_is_read_and_continued(path):
    path.write_text(OLD)
    with Ledger.open(path) as ledger:
        assert ledger.history == (Laplace(2.0), PoissonGaussian(1.0, 0.01, 5))
        assert [note for _, note in ledger.entries] == ["mean age", "run: step 1"]
        assert ledger.charges[0] == Charge(Laplace(2.0), "mean age")
        assert (ledger.budget, ledger.unit) == ((2.0, 1e-6), "one patient")
        head = ledger.head()
        ledger.charge(Pure(0.1), key="new", digest="ff")
        ledger.require(head)
    with Ledger.open(path) as ledger:
        assert ledger.find("new").digest == "ff"


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o640])
def test_a_ledger_belongs_to_its_owner_alone_even_if_it_existed_otherwise(path, mode):
    Ledger.create(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(mode)
    Ledger.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_ledger_is_refused_with_a_word(path, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "hello").write_text("hello\n")
    (tmp_path / "empty").touch()
    (tmp_path / "zeros").write_bytes(b"\0" * 100 + b"\n")
    for name in ("fifo", "loop", "hello", "empty", "zeros", "."):
        with pytest.raises(LedgerError):
            Ledger.open(tmp_path / name)
    assert (tmp_path / "hello").read_text() == "hello\n"


def _make_fifo(place):
    os.mkfifo(place)


def _make_device(place):
    """A private twin of the null device."""
    try:
        os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make devices")


@pytest.mark.parametrize("make", [_make_fifo, _make_device, os.mkdir])
@pytest.mark.parametrize("link", [False, True])
def test_no_ledger_takes_the_place_of_a_device_a_pipe_or_a_folder(path, make, link):
    make(path)
    before = path.stat()
    name = path
    if link:
        name = path.with_name("link")
        name.symlink_to(path)
    for use in (Ledger.create, Ledger.open):
        with pytest.raises(LedgerError, match="not a regular file"):
            use(name)
    after = path.stat()
    assert (after.st_ino, after.st_mode, after.st_rdev) == (
        before.st_ino,
        before.st_mode,
        before.st_rdev,
    )
    assert name.is_symlink() == link


def test_a_pipe_where_the_ledger_is_remembered_is_refused_and_not_waited_for(path):
    Ledger.create(path).close()
    _seen(path).unlink()
    os.mkfifo(_seen(path))
    with pytest.raises(LedgerError, match="not a regular file"):
        Ledger.open(path)


def test_two_charges_under_one_key_are_damage(path):
    with Ledger.create(path) as ledger:
        ledger.charge(Pure(1.0), key="a", digest="1")
        line, _ = seal(Charge(Pure(2.0), "", "a", "2").to_dict(2), ledger.head().digest)
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(LedgerError, match="line 3"):
        Ledger.open(path)


def test_a_ledger_is_created_behind_a_link_and_not_in_its_place(path):
    link = path.with_name("link")
    link.symlink_to(path.name)
    with Ledger.create(link) as ledger:
        ledger.charge(Pure(1.0))
    assert link.is_symlink()
    assert Ledger.open(path).history == (Pure(1.0),)


def test_a_charge_from_a_signal_in_the_middle_of_a_charge_is_refused_at_once(path, monkeypatch):
    ledger, refused = Ledger.create(path), []
    true = Act.append

    def interrupted(act, charges):
        with pytest.raises(LedgerError, match="in the middle") as error:
            ledger.charge(Pure(2.0))
        refused.append(error)
        true(act, charges)

    monkeypatch.setattr(Act, "append", interrupted)
    ledger.charge(Pure(1.0))
    assert refused
    assert ledger.history == (Pure(1.0),)


def test_an_interrupt_after_the_line_is_on_the_disk_leaves_a_charge_that_counts(path, monkeypatch):
    ledger, true = Ledger.create(path), os.fsync

    def interrupted(descriptor):
        true(descriptor)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.charge_once(Pure(1.0), key="a", digest="1")
    monkeypatch.undo()
    assert ledger.history == (Pure(1.0),)
    assert not ledger.charge_once(Pure(1.0), key="a", digest="1")


def test_a_charge_that_is_relied_upon_is_on_the_disk_whoever_wrote_it(path, monkeypatch):
    """Its writer may have been killed after the line was written and before it was durable."""
    ledger, synced, true = Ledger.create(path), [], os.fsync
    ledger.charge_once(Pure(1.0), key="a", digest="1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(true(descriptor)))
    assert not Ledger.open(path).charge_once(Pure(1.0), key="a", digest="1")
    assert synced


@pytest.mark.parametrize("content", ["name,age\nAda,36\n", "{}\n", ""])
def test_a_file_that_is_no_ledger_keeps_its_mode(path, content):
    path.write_text(content)
    path.chmod(0o664)
    with pytest.raises(LedgerError):
        Ledger.open(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert path.read_text() == content


@pytest.mark.parametrize("exists", [True, False])
def test_what_remembers_a_ledger_writes_through_no_link(path, tmp_path, exists):
    Ledger.create(path, epsilon=1.0).close()
    other = tmp_path / "other"
    if exists:
        other.write_text("of somebody else\n" * 20)
    _seen(path).unlink()
    _seen(path).symlink_to(other)
    with pytest.raises(LedgerError, match="link"), Ledger.open(path) as ledger:
        ledger.charge(Pure(0.1))
    assert other.exists() is exists
    assert not exists or other.read_text() == "of somebody else\n" * 20


@pytest.mark.parametrize("unit", ["", " ", "one\npatient", "\u200b", 3, None])
def test_a_ledger_says_what_it_protects(path, unit):
    with pytest.raises(ValueError, match="unit must say"):
        Ledger.create(path, unit=unit)
    assert not path.exists()
