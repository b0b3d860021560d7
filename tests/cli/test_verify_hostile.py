"""Whatever file it is given, verify answers: it holds, is wrong or rejected; never a traceback."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.errors import StatementError, UnsoundError
from noisewise.privacy import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Statement,
    ZeroConcentrated,
    verify,
)
from noisewise.privacy.statement import digest
from noisewise.privacy.verification import read_statement

DEEP = 100_000


def make(*history, **options):
    fields = {"delta": 1e-5, "mechanism": "m", "assumptions": ["ranges are public"], **options}
    return Statement.derive(history or PoissonGaussian(1.0, 0.01, 1000), **fields)


@pytest.fixture(scope="module")
def good():
    return make().to_json()


def run(path, *options):
    result = CliRunner().invoke(app, ["verify", str(path), *map(str, options)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def rejected(path, *options):
    result = run(path, *options)
    assert result.exit_code == 1
    assert "REJECTED" in result.output
    machine = json.loads(run(path, *options, "--json").output)
    assert machine["ok"] is False
    assert machine["problems"]
    return " ".join(result.output.split())


def sealed(fields):
    """The work of a forger: any fields, with the digest that belongs to them."""
    content = {name: value for name, value in fields.items() if name != "digest"}
    return json.dumps({**content, "digest": digest(content)})


# ------------------------------------------------------------------------------ files


def test_what_is_no_ordinary_file_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "long").write_bytes(b" " * ((1 << 22) + 1))
    for name in (".", "fifo", "loop", "dangling", "long", "none", "none/none", "n" * 300):
        rejected(tmp_path / name)
    for device in ("/dev/zero", "/dev/null", "/dev/tty"):
        if Path(device).exists():
            rejected(device)


def test_a_file_that_may_not_be_read_is_rejected(tmp_path, good, monkeypatch):
    path = tmp_path / "statement.json"
    path.write_text(good)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("noisewise.files.foreign.os.open", refuse)
    assert "Permission denied" in rejected(path)


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"\0", b"\xff\xfe\x00", bytes(range(256)), b"\x89PNG\r\n\x1a\n", b"PK\3\4",
        "\ufeff{}".encode(), b"null", b"true", b"3", b'"text"', b"[]", b"{}", b"[[[", b"{" * 999,
        b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b"NaN", b"[NaN]", b"-Infinity",
        b"9" * 100_000, b"1e999999", b'{"format": "noisewise-privacy-statement"}',
        b'{"format": ["noisewise-privacy-statement"], "version": {}}', b'{"[/red]": "[bold]"}',
        b'{"format": "noisewise-privacy-statement", "version": true}',
        b'{"format": "noisewise-privacy-statement", "version": 1, "[/]": 1, "\\u001b[2J": 2}',
        b'{"name": "package", "version": "1.0.0", "dependencies": {}}', b'{"\\ud800": "\\udfff"}',
    ],
)  # fmt: skip
def test_what_is_no_statement_is_rejected(tmp_path, data):
    path = tmp_path / "statement.json"
    path.write_bytes(data)
    assert "\x1b[2J" not in rejected(path)


def test_every_part_of_a_statement_is_rejected(good):
    for end in range(len(good) - 1):
        with pytest.raises(StatementError):
            Statement.from_json(good[:end])


def test_a_byte_order_mark_is_named(tmp_path, good):
    path = tmp_path / "statement.json"
    path.write_text("\ufeff" + good)
    assert "BOM" in rejected(path)


# ----------------------------------------------------------------------------- fields


def test_a_field_that_occurs_twice_is_refused(good):
    for name in json.loads(good):
        text = good.replace("{", f'{{"{name}": 0, ', 1)
        with pytest.raises(StatementError, match="occurs twice"):
            Statement.from_json(text)
    inner = good.replace('"kind":', '"count": 1, "kind":')
    with pytest.raises(StatementError, match="occurs twice"):
        Statement.from_json(inner)


EMPTY = [
    (name, value)
    for name in ("assumptions", "versions", "unit", "mechanism", "sampler", "randomness")
    for value in (
        [], {}, "", "  \n", None, [""], ["", "x"], 0,
        # What looks empty: blanks of all kinds, joiners, marks, fillers, a lone full stop.
        "\u200b", "\u2060\u200d", "\u00a0\u3000", "\ufeff", "\u3164", "\u2800", "\u115f\u034f",
        "\ufe0f", "\u202e", "\x1b[2J", "\x00", "\u2028", ".", ["."], ["\u200b"],
    )
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), EMPTY)
@pytest.mark.parametrize("version", [1, 2])
def test_an_emptied_field_is_refused_though_the_digest_is_right(good, name, value, version):
    fields = json.loads(good) | {name: value, "version": version}
    with pytest.raises(StatementError):
        Statement.from_json(sealed(fields))


@pytest.mark.parametrize(
    "change",
    [
        {"relation": "replace-one"},  # the premises say what was protected
        {"relation": "replace"},
        {"unit": "one patient"},
        {"assumptions": ["trust me", "trust me", "trust me"]},
        {"assumptions": "PREMISES CUT"},
        {"assumptions": ["NOT SOUND: ranges were read from the data"]},
        {"noise_multiplier": 2.0},
        {"noise_multiplier": None},
        {"sample_rate": 0.02},
        {"steps": 10},
        {"steps": 1000.0},
        {"steps": True},
        {"steps": [[[]]]},
        {"epsilon": True},
        {"epsilon": "1"},
        {"epsilon": -1},
        {"epsilon": 10**400},
        {"epsilon": None},
        {"delta": 1.0},
        {"delta": -1e-5},
        {"delta": "1e-5"},
        {"sampler": "none: every record takes part in every release"},
        {"sampler": "Poisson: each record independently, with probability 0.001"},
        {"accountant": "none"},
        {"accountant": ["pld"]},
        {"history": []},
        {"history": [None]},
        {"history": [{"kind": ["pure"]}]},
        {"history": [{"kind": "pure"}]},
        {"history": [{"kind": "pure", "epsilon": 1.0, "count": 1, "more": 1}]},
        {"history": "TWO ALIKE"},
        {"history": "COUNT OF TRUE"},
        {"version": 3},
        {"version": "2"},
        {"version": 2.0},
        {"format": "other"},
        {"versions": {"noisewise": 1}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_a_contradicting_field_is_refused_though_the_digest_is_right(good, change):
    fields = json.loads(good)
    event = fields["history"][0]
    special = {
        "PREMISES CUT": fields["assumptions"][-1:],
        "TWO ALIKE": [{**event, "count": 400}, {**event, "count": 600}],
        "COUNT OF TRUE": [{**event, "count": True}],
    }
    change = {
        name: special.get(value, value) if isinstance(value, str) else value
        for name, value in change.items()
    }
    with pytest.raises(StatementError):
        Statement.from_json(sealed(fields | change))


def test_what_derive_writes_is_read_and_what_could_not_be_read_is_not_written():
    for history in ((), (Pure(1.0), Laplace(2.0)), (PoissonGaussian(1.0, 0.1), Gaussian(3.0))):
        statement = Statement.derive(history, delta=1e-6, mechanism="m")
        assert Statement.from_json(statement.to_json()) == statement
        assert statement.premises[0] in str(statement)
        assert statement.premises[0] in statement.card()
    both = Statement.compose([make(), make(Laplace(2.0)), make(PoissonGaussian(1.0, 0.02))])
    assert Statement.from_json(both.to_json()) == both
    for wrong in ({"unit": ""}, {"mechanism": " "}, {"assumptions": [""]}, {"randomness": ""},
                  {"sampler": "with probability 0.5"}):  # fmt: skip
        with pytest.raises(ValueError, match="say"):
            make(**wrong)


@pytest.mark.parametrize("assumptions", [["."], ["\u200b"], ["ok"], ["trust me", "really"], []])
def test_premises_cannot_be_switched_off_by_an_older_version(good, assumptions):
    fields = json.loads(good) | {"version": 1, "assumptions": assumptions}
    for unit in (fields["unit"], "all records of a thousand patients"):
        with pytest.raises(StatementError, match=r"version must be 2.*derive it again"):
            Statement.from_json(sealed(fields | {"unit": unit}))


@pytest.mark.parametrize(
    "said",
    [
        "NOT SOUND: x", " NOT SOUND: x", "\u00a0NOT SOUND", "not  sound: x", "Not-Sound",
        "(NOT SOUND)", "NOTSOUND", "\uff2e\uff2f\uff34 SOUND: x", "\u200bNOT SOUND: x",
        "N\u200bOT SOUND: x",
    ],
)  # fmt: skip
def test_what_says_that_it_is_not_sound_is_refused_however_it_is_spelt(good, said):
    fields = json.loads(good)
    for change in (
        {"assumptions": [*fields["assumptions"], said]}, {"mechanism": said}, {"randomness": said},
    ):  # fmt: skip
        with pytest.raises(StatementError):
            Statement.from_json(sealed(fields | change))
    for options in ({"assumptions": [said]}, {"mechanism": said}):
        with pytest.raises((UnsoundError, ValueError)):
            make(**options)


SAMPLERS = [
    "shuffled batches without replacement",
    "every record takes part in every step",
    "Poisson, each record with a probability of 0.5",
    "Poisson: each record independently, With probability 0.5",
    "with probability 0.01",
    "Poisson: each record independently, with probability 1e-2",
    "Poisson: each record independently, with probability 0.01, really",
    "Poisson: each record independently, with probability 0.01; shuffled",
    "Poisson: each record independently, with probability 0.01; With Probability 0.9",
    "Poisson: each record independently, with probability 0.01; "
    "none: every record takes part in every release",
    "promised by the caller, who drew the batches: shuffled",
    "promised by the caller, who drew the batches: promised by the caller, who drew the batches: "
    "Poisson: each record independently, with probability 0.01",
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_that_does_not_follow_from_the_history_is_refused(good, sampler):
    with pytest.raises(StatementError, match="sampler"):
        Statement.from_json(sealed(json.loads(good) | {"sampler": sampler}))
    with pytest.raises(ValueError, match="sampler"):
        make(sampler=sampler)


def test_the_samplers_that_the_library_writes_are_read():
    caller = "promised by the caller, who drew the batches: "
    poisson = "Poisson: each record independently, with probability 0.01"
    everybody = "none: accounted as if every record took part in every step"
    both = (PoissonGaussian(1.0, 0.01, 3), PoissonGaussian(1.0, 1.0, 2))
    for history, sampler in (
        (both[:1], poisson), (both[:1], caller + poisson), (both[1:], everybody),
        (both, f"{caller}{poisson}; {everybody}"), ((), everybody), ((), poisson),
    ):  # fmt: skip
        made = Statement.derive(history, delta=1e-6, mechanism="m", sampler=sampler)
        assert Statement.from_json(made.to_json()) == made


@pytest.mark.parametrize("event", [Pure(1e-9, 3), Pure(9e-9), Pure(1e-5), Pure(5e-324)], ids=str)
@pytest.mark.parametrize("factor", [0.0, 0.9, 0.99, 0.999])
def test_an_epsilon_that_is_too_small_is_found_however_small_it_is(event, factor):
    honest = Statement.derive(event, delta=0.0, mechanism="m")
    assert verify(honest).ok
    stated = honest.epsilon * factor
    if stated < honest.epsilon:
        assert not verify(Statement(**{**vars(honest), "epsilon": stated})).ok


# --------------------------------------------------------------------- fuzzed by machine

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
names = st.sampled_from(list(make().to_dict()))


@settings(max_examples=100, deadline=None)
@given(names, plain, st.booleans())
def test_any_value_in_any_field_is_read_or_refused(name, value, seal):
    fields = json.loads(make_once()) | {name: value}
    with contextlib.suppress(ValueError):  # NaN or surrogates cannot be sealed
        text = sealed(fields) if seal else json.dumps(fields)
        with contextlib.suppress(StatementError):
            Statement.from_json(text)


def make_once(cache=[]):  # noqa: B006
    return cache[0] if cache else cache.append(make().to_json()) or cache[0]


def test_any_damaged_byte_is_read_or_refused(good, tmp_path):
    rng, path = random.Random(0), tmp_path / "statement.json"
    for _ in range(300):
        data = bytearray(good.encode())
        for _ in range(rng.randint(1, 3)):
            where = rng.randrange(len(data))
            action = rng.randrange(3)
            if action == 0:
                data[where] = rng.randrange(256)
            elif action == 1:
                del data[where : where + rng.randint(1, 30)]
            else:
                data[where:where] = rng.choice([b'"', b"{", b"[", b",", b"\\", b"1e99", b"\xff"])
        path.write_bytes(data)
        with contextlib.suppress(StatementError):
            assert read_statement(path) == Statement.from_json(good)


EXTREME = [
    PoissonGaussian(1e-300, 0.5), PoissonGaussian(1e300, 0.5), PoissonGaussian(0.001, 0.5, 10**9),
    Gaussian(5e-324), Gaussian(1e308), Gaussian(1.0, 10**300), Gaussian(1.0, 1, 0.99),
    Laplace(5e-324), Laplace(1e308, 10**300), Pure(1e308, 5), Pure(5e-324), ZeroConcentrated(1e308),
    ZeroConcentrated(5e-324),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("event", EXTREME, ids=str)
@pytest.mark.parametrize("stated", [5e-324, 1.7e308])
def test_extreme_numbers_are_wrong_or_rejected_and_never_a_surprise(event, stated):
    statement = make(Pure(1.0), delta=1e-9)
    accountant = "rdp" if isinstance(event, ZeroConcentrated) else "pld"
    forged = Statement(
        **{**vars(statement), "history": (event,), "epsilon": stated, "accountant": accountant}
    )
    with contextlib.suppress(StatementError):
        outcome = verify(forged)
        assert not outcome.ok or outcome.stated >= outcome.recomputed * (1 - 1e-4) - 1e-7


# ------------------------------------------------------------------------ time, signature


def test_a_statement_made_to_take_for_ever_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["noisewise.cli.verify"], "SECONDS", 4.0)
    statement = make(Pure(1.0))
    many = tuple(PoissonGaussian(0.3 + step * 1e-4, 0.5, 999) for step in range(2000))
    sampler = "Poisson: each record independently, with probability 0.5"
    forged = Statement(**{**vars(statement), "history": many, "sampler": sampler})
    path = tmp_path / "statement.json"
    path.write_text(forged.to_json())
    result = run(path)
    assert result.exit_code == 1
    assert "4 seconds" in result.output
    assert "not verified" in " ".join(result.output.split())


def test_files_in_the_working_folder_are_not_imported(tmp_path, good, monkeypatch):
    (tmp_path / "original.json").write_text(good)
    (tmp_path / "statement.json").symlink_to("original.json")
    for name in ("json", "numpy", "noisewise", "scipy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert run("statement.json").exit_code == 0


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_who_signed_is_shown_and_a_foreign_signature_rejected(tmp_path, good):
    path, key, allowed = tmp_path / "statement.json", tmp_path / "key", tmp_path / "allowed"
    path.write_text(good)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sign = ["ssh-keygen", "-Y", "sign", "-n", "file", "-f", key, path]
    subprocess.run(sign, check=True, capture_output=True)
    allowed.write_text(f"anna@hospital.example {key.with_suffix('.pub').read_text()}")
    options = ("--signature", f"{path}.sig", "--signer", allowed)
    result = run(path, *options)
    assert result.exit_code == 0
    assert "SIGNED by anna@hospital.example" in " ".join(result.output.split())
    machine = json.loads(run(path, *options, "--json").output)
    assert machine["signed_by"]["principals"] == "anna@hospital.example"
    path.write_text(good + "\n")  # the same statement, other bytes
    assert "does not belong" in rejected(path, *options)
    path.write_text(good)
    allowed.write_text("")
    assert "not on your list" in rejected(path, *options)
    rejected(path, "--signature", path, "--signer", allowed)
    rejected(path, "--signature", tmp_path, "--signer", tmp_path / "none")
    assert run(path, "--signature", f"{path}.sig").exit_code == 2
    assert run(path, "--signer", allowed).exit_code == 2
