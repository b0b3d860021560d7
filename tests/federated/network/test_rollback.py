"""Whatever of a server's state is restored, deleted or mixed: no second noise under one charge."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.harness import Federation
from federated.network.one_process import OneProcess
from noisewise.federated.network import ClientSettings, NetworkError, RemoteAggregator
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.seen import SeenMarks
from noisewise.privacy.ledger import Ledger

PARTS = {
    "database": ("contributions.sqlite", "contributions.sqlite-wal", "contributions.sqlite-shm"),
    "ledger": ("budget.ledger", "budget.ledger.seen"),
    "witness": ("witness.json",),
}


@pytest.fixture
def made(tmp_path):
    found = OneProcess(tmp_path, epsilon=1000.0, route="vectors", servers=("alpha", "beta"))
    yield found
    found.close()


def save(made, name):
    """Copy the state of alpha, which must be closed."""
    shutil.copytree(made.state_folder("alpha"), made.folder / f"saved-{name}")


def restore(made, parts):
    """Put parts of earlier states in place: from a part's name to a saved state, or None."""
    for part, saved in parts.items():
        for file in PARTS[part]:
            (made.state_folder("alpha") / file).unlink(missing_ok=True)
            source = made.folder / f"saved-{saved}" / file
            if saved is not None and source.exists():
                shutil.copy(source, made.state_folder("alpha") / file)


def history(made):
    """Three moments: before any release, after one, after two."""
    made.close()
    save(made, 0)
    made.open()
    answers = {"first": made.ask("alpha")}
    made.close()
    save(made, 1)
    made.open()
    answers["second"] = made.ask("alpha", "second")
    latest = made.states["alpha"].marks.latest
    made.close()
    save(made, 2)
    return answers, latest


def test_a_database_restored_thrice_beside_its_ledger_gives_no_second_noise(made):
    made.close()
    save(made, "before")
    made.open()
    answer = made.ask("alpha")
    for _ in range(3):
        made.close()
        restore(made, {"database": "before"})
        with pytest.raises(ConfigurationError, match="older than"):
            made.open()
    # Nor if the witness is taken along: the ledger knows what was released.
    restore(made, {"database": "before", "witness": "before"})
    with pytest.raises(ConfigurationError, match="does not hold what was released"):
        made.open()
    assert answer


def test_every_mixture_of_moments_is_refused_or_gives_the_same_bits(made):
    answers, latest = history(made)
    opened = set()
    for moments in itertools.product((0, 1, 2, None), repeat=3):
        restore(made, dict(zip(PARTS, moments, strict=True)))
        try:
            made.open("alpha")
        except ConfigurationError:
            continue
        opened.add(moments)
        if moments[:2] == (2, 2):
            assert {name: made.ask("alpha", name) for name in answers} == answers
        else:
            # An older moment of everything: nothing here can tell, but whoever was here can.
            with pytest.raises(RefusedError, match=r"restored from a backup|deleted or replaced"):
                made.states["alpha"].marks.compare(latest)
        made.close()
    # As (database, ledger, witness). What opens is the latest state, an older moment of all three,
    # or nothing at all; a witness that is older than the database does no harm. The last one is an
    # empty ledger from before the first release, and is as good as none.
    assert opened == {
        (2, 2, 2), (2, 2, 1), (2, 2, 0),
        (1, 1, 1), (1, 1, 0), (0, 0, 0),
        (None, None, None), (None, 0, None),
    }  # fmt: skip


def test_a_mark_from_the_future_stops_a_server_for_good_and_a_forged_one_does_not(made):
    made.close()
    save(made, "before")
    made.open()
    early = made.states["alpha"].marks.latest
    made.ask("alpha")
    seen = made.states["alpha"].marks.latest
    made.close()
    restore(made, dict.fromkeys(PARTS, "before"))
    made.open()
    marks = made.states["alpha"].marks
    number, digest, seal = seen.split(".")
    for forged in (f"{int(number) + 5}.{digest}.{seal}", f"{number}.{'0' * 64}.{seal}", "", "1",
                   "x.y.z", f"{number}.{digest}.{'0' * 64}", "9" * 5000 + ".a.b"):  # fmt: skip
        with pytest.raises(RefusedError) as caught:
            marks.compare(forged)
        assert caught.value.code == "other-state"
    marks.compare(marks.latest)
    with pytest.raises(RefusedError, match="restored from a backup"):
        marks.compare(seen)
    with pytest.raises(RefusedError, match="restored from a backup"):
        marks.compare(marks.latest)
    with pytest.raises(RefusedError, match="restored from a backup"):
        made.ask("alpha")
    made.close()
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        made.open()
    assert early != seen


def test_an_older_state_that_went_on_by_itself_is_noticed_too(made):
    made.close()
    save(made, "before")
    made.open()
    made.ask("alpha")
    seen = made.states["alpha"].marks.latest
    made.close()
    restore(made, dict.fromkeys(PARTS, "before"))
    made.open()
    for name in ("other", "another", "third"):  # as many marks as before, and more
        made.ask("alpha", name)
    with pytest.raises(RefusedError, match="restored from a backup"):
        made.states["alpha"].marks.compare(seen)


def test_a_forgotten_withdrawal_is_noticed_though_nothing_was_released(made):
    copied = made.folder / "hot.sqlite"
    made.stores["alpha"].submit(lambda c: None).result()
    made.close()
    shutil.copy(made.state_folder("alpha") / "contributions.sqlite", copied)
    made.open()
    made.withdraw("alpha", made.members[0])
    made.close()
    restore(made, {"database": None})
    shutil.copy(copied, made.state_folder("alpha") / "contributions.sqlite")
    with pytest.raises(ConfigurationError, match="forgotten withdrawals"):
        made.open()


@pytest.mark.parametrize("part", ["database", "ledger"])
def test_a_state_that_is_replaced_while_the_server_runs_is_noticed_before_a_release(made, part):
    made.close()
    save(made, "before")
    made.open()
    made.ask("alpha")
    restore(made, {part: "before"})
    for name in ("first", "second"):
        with pytest.raises(RefusedError) as caught:
            made.make("alpha", name)
        assert caught.value.code == "rolled-back"
    with pytest.raises(RefusedError):
        made.reserve("alpha", "second")


def test_a_database_that_is_overwritten_in_its_place_gives_the_same_bits_or_nothing(made):
    made.close()
    save(made, "before")
    made.open()
    answer = made.ask("alpha")
    content = (made.folder / "saved-before" / "contributions.sqlite").read_bytes()
    with (made.state_folder("alpha") / "contributions.sqlite").open("r+b") as file:
        file.write(content)
    with contextlib.suppress(NetworkError):
        assert made.make("alpha") == answer
    assert len(made.ledgers["alpha"].charges) == 1
    made.close()
    with contextlib.suppress(ConfigurationError):
        made.open()
        assert made.make("alpha") == answer


def test_a_ledger_that_forgot_somebody_elses_charge_is_noticed_too(made):
    made.ask("alpha")
    made.close()
    save(made, "before")
    with Ledger.open(made.state_folder("alpha") / "budget.ledger") as ledger:
        ledger.charge(ledger.charges[0].event, note="by hand")
    made.open()
    made.close()
    restore(made, {"ledger": "before"})
    with pytest.raises(ConfigurationError, match="the ledger is older than the database"):
        made.open()


def test_the_ledger_of_another_round_is_refused(tmp_path):
    one = OneProcess(tmp_path / "one", epsilon=2.0, route="vectors")
    two = OneProcess(tmp_path / "two", epsilon=4.0, route="vectors")
    one.close()
    two.close()
    target = two.state_folder("alpha") / "budget.ledger"
    shutil.copy(one.state_folder("alpha") / "budget.ledger", target)
    target.with_name("budget.ledger.seen").unlink()
    with pytest.raises(ConfigurationError, match="ledger of another round"):
        two.open()


def test_the_state_of_version_0_1_is_continued_without_drawing_noise_again(made):
    """Charges without key and digest: what is stored is answered, what is not stays paid."""
    answer = made.ask("alpha")
    event = made.ledgers["alpha"].charges[0].event
    made.close()
    folder = made.state_folder("alpha")
    connection = sqlite3.connect(folder / "contributions.sqlite", isolation_level=None)
    connection.executescript(
        "DROP TABLE marks; DROP TABLE reservations; DELETE FROM facts WHERE name = 'mark key';"
        "PRAGMA user_version=0;"
    )
    connection.close()
    (folder / "witness.json").unlink()
    (folder / "budget.ledger").unlink()
    (folder / "budget.ledger.seen").unlink()
    with Ledger.create(
        folder / "budget.ledger", epsilon=1000.0, relation=made.study.relation
    ) as old:
        old.charge(event, note=f"release first {made.measurement().digest}")
        old.charge(event, note="release lost " + "0" * 64)
    made.open()
    assert made.ask("alpha") == answer
    with pytest.raises(RefusedError, match="its answer is lost"):
        made.ask("alpha", "lost")
    assert len(made.ledgers["alpha"].charges) == 2


# ------------------------------------------------------------------- between processes


def test_an_analyst_notices_a_server_whose_whole_folder_was_restored(tmp_path):
    """All of one server's files from before the release: only who saw the release can tell."""
    made = Federation.create(
        tmp_path, np.random.default_rng(0), route="vectors", epsilon=9.0, patience=20.0,
        seconds=10.0,
    )  # fmt: skip
    folder = tmp_path / "alpha-state"
    with made:
        made.contribute()
        made.kill("alpha")
        shutil.copytree(folder, tmp_path / "backup")
        made.start("alpha")
        first = made.collect()
        assert "result" in first
        made.kill("alpha")
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        made.start("alpha")
        found = made.collect()
        assert "restored from a backup" in found["error"]
        # And it tells everybody from then on, also who has not been here before.
        settings = ClientSettings.read(made.trial.config("analyst"))
        SeenMarks.of(settings.state, settings.study).path.unlink()
        found = made.collect()
        assert "restored from a backup" in found["error"]
        made.kill("alpha")
        shutil.rmtree(folder)
    assert not folder.exists()


def test_who_was_here_before_notices_a_server_that_began_anew(tmp_path):
    made = Federation.create(
        tmp_path, np.random.default_rng(0), route="vectors", epsilon=9.0, patience=20.0,
        seconds=10.0,
    )  # fmt: skip
    with made:
        made.contribute()
        assert "result" in made.collect()
        made.kill("alpha")
        shutil.rmtree(tmp_path / "alpha-state")
        made.start("alpha")
        settings = ClientSettings.read(made.trial.config("analyst"))
        with pytest.raises(NetworkError, match="deleted or replaced"):
            RemoteAggregator(settings).ask(made.question(), (), None)
