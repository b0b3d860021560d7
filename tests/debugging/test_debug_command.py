"""Scripts as training functions, the command line, the report and the pytest fixture."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from noisewise.cli.debug import _options, debug
from noisewise.debugging import TrainingFailedError, check
from noisewise.debugging.command import CommandTraining, load_object, read_state
from noisewise.debugging.guessing import guess_example
from noisewise.debugging.mutants import Training
from noisewise.debugging.preloaded import can_be_preloaded, shared

pytest_plugins = ["pytester"]
FOLDER = Path(__file__).parents[2] / "examples" / "debug_a_script"
FULL = (
    f"{sys.executable} {FOLDER / 'broken.py'} --clip {{clip}} --sigma {{noise_multiplier}} "
    "--bs {batch_size} --seed {seed} --data {data} --init {init} --steps {steps} --lr {lr} "
    "--out {out}"
)


def small():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def command_line():
    app = typer.Typer()
    app.command()(debug)
    return app


def files(function):
    place = str(FOLDER / "model.py")
    return [
        "--train",
        f"{FOLDER}/{function}",
        "--model",
        f"{place}:build",
        "--example",
        f"{place}:example",
        "--effort",
        "quick",
    ]


def test_a_script_gives_the_same_weights_as_its_function(tmp_path):
    run = load_object(f"{FOLDER / 'broken.py'}:train", "--train")
    init = {name: value.detach() for name, value in small().state_dict().items()}
    arguments = {
        "clip": 0.3,
        "noise_multiplier": 0.7,
        "batch_size": 4,
        "seed": 5,
        "steps": 2,
        "lr": 0.1,
        "data": (torch.randn(4, 8), torch.tensor([0, 1, 2, 0])),
        "init": init,
    }
    expected = run(**arguments)
    for fresh in (True, False):
        command = CommandTraining(FULL, fresh=fresh)
        assert (command.preloaded is None) == fresh
        got = command(**arguments)
        assert set(got) == set(expected)
        for name, value in got.items():
            torch.testing.assert_close(value, expected[name])


UNSEEDED = """
import random, sys, time
import numpy as np
import torch

if sys.argv[1] == "fail":
    raise OSError("the disk is gone")
if sys.argv[1] == "exit":
    sys.exit("no such dataset")
if sys.argv[1] == "sleep":
    time.sleep(60)
noise = [random.random(), np.random.rand(), float(torch.rand(()))]
torch.save({"a": torch.tensor(noise), "b": torch.tensor(len(sys.modules["__main__"].__name__))},
           sys.argv[2])
"""


def test_forks_of_an_interpreter_behave_like_new_ones(tmp_path):
    script = tmp_path / "unseeded.py"
    script.write_text(UNSEEDED)
    server = shared(sys.executable, str(script))
    states = []
    for run in range(2):
        out = str(tmp_path / f"{run}.pt")
        assert server.run([str(script), "draw", out], 60) == (0, "")
        states.append(torch.load(out, weights_only=True)["a"])
    first, second = states
    seeded = [str(tmp_path / f"seeded{run}.pt") for run in range(2)]
    for out in seeded:
        assert server.run([str(script), "draw", out], 60, seed=5)[0] == 0
    alike = [torch.load(out, weights_only=True)["a"] for out in seeded]
    assert torch.equal(*alike)
    # Python and numpy seed themselves from the system, torch has a constant seed of its own.
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert first[2] == second[2]
    code, log = server.run([str(script), "fail"], 60)
    assert code == 1
    assert log.endswith("OSError: the disk is gone\n")
    assert server.run([str(script), "exit"], 60) == (1, "no such dataset\n")
    assert server.run([str(script), "sleep"], 0.2)[0] is None
    assert server.run([str(script), "draw", str(tmp_path / "x.pt")], 60)[0] == 0


def test_only_plain_scripts_are_forked_by_the_interpreter_that_they_name(tmp_path):
    assert can_be_preloaded([sys.executable, "train.py", "--clip", "1"])
    assert not can_be_preloaded([sys.executable, "-m", "train"])
    assert not can_be_preloaded(["no-such-python", "train.py"])
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert can_be_preloaded([str(other), "train.py"])
    assert not can_be_preloaded(["bash", "train.py"])
    command = CommandTraining("python train.py {clip} {batch_size} {data} {init} {out}")
    assert command.words[0] == sys.executable


def test_records_are_read_off_the_model(tmp_path):
    place = tmp_path / "models.py"
    place.write_text("x = 1\n")
    conv = nn.Sequential(nn.Conv2d(3, 4, 5), nn.Flatten(), nn.Linear(4 * 28 * 28, 7))
    texts = nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(48, 4))
    shapes = [((8,), small()), ((3, 32, 32), conv), ((8,), texts)]
    for shape, model in shapes:
        (x, y), seen = guess_example(f"{place}:build", lambda m=model: m, "cross-entropy")
        assert x.shape[1:] == shape
        assert y.dtype == torch.long
        assert cross_entropy(model(x), y).isfinite()
        assert "read off the model" in seen
    (x, y), _ = guess_example(f"{place}:build", small, "mse")
    assert y.shape == small()(x).shape
    for model, loss in ((nn.Identity(), "mse"), (small(), "mine.py:loss")):
        with pytest.raises(ValueError, match="--example"):
            guess_example(f"{place}:build", lambda m=model: m, loss)
    place.write_text("import torch\ndef example():\n    return torch.ones(2, 9), torch.ones(2)\n")
    (x, _), seen = guess_example(f"{place}:build", small, "mse")
    assert x.shape == (2, 9)
    assert "example()" in seen


def test_arguments_to_be_varied_are_placeholders_of_their_own():
    command = "run {clip} {batch_size} {data} {init} {out} {pieces}"
    with pytest.raises(ValueError, match="unknown placeholder"):
        CommandTraining(command)
    # A seed is always taken: a script without one is seeded from outside.
    assert CommandTraining(command, usual={"pieces": 2}).accepts == {
        "clip",
        "batch_size",
        "data",
        "init",
        "seed",
    }
    with pytest.raises(ValueError, match=r"no \{workers\}"):
        CommandTraining(command, usual={"pieces": 2, "workers": 1})
    assert _options("pieces=2,8") == ("pieces", (2, 8))
    with pytest.raises(ValueError, match="must look like"):
        _options("pieces")


def test_missing_and_unknown_placeholders_are_explained():
    with pytest.raises(ValueError, match=r"lacks \{init\}"):
        CommandTraining("run {clip} {batch_size} {data} {out}")
    with pytest.raises(ValueError, match=r"unknown placeholder \{sigma\}"):
        CommandTraining("run {sigma}")
    part = CommandTraining("run {clip} {batch_size} {data} {init} {out}")
    assert "tests of the noise" in part.absent["noise_multiplier"]
    assert part.accepts == {"clip", "batch_size", "data", "init", "seed"}


def test_a_failing_script_is_reported_with_its_last_words():
    train = CommandTraining(
        f"{sys.executable} -c 'raise SystemExit(\"boom\")' {{clip}} {{batch_size}} {{data}} "
        "{init} {out}"
    )
    with pytest.raises(TrainingFailedError, match="boom"):
        train(clip=1.0, batch_size=1, data=(torch.zeros(1), torch.zeros(1)), init={})


def test_weights_travel_as_npz_and_pt(tmp_path):
    import numpy as np

    np.savez(tmp_path / "w.npz", a=np.ones(3))
    assert torch.equal(read_state(tmp_path / "w.npz")["a"], torch.ones(3, dtype=torch.float64))
    torch.save({"state_dict": {"_module.a": torch.ones(2)}}, tmp_path / "w.pt")
    assert list(read_state(tmp_path / "w.pt")) == ["a"]
    torch.save(small(), tmp_path / "model.pt")
    with pytest.raises(Exception, match=r"(?i)weights"):
        read_state(tmp_path / "model.pt")


def test_the_broken_example_fails_with_code_one(tmp_path):
    page = tmp_path / "x.html"
    broken = CliRunner().invoke(
        command_line(), [*files("broken.py:train"), "--json", "--report", str(page)]
    )
    assert broken.exit_code == 1, broken.output
    facts = json.loads(broken.output)
    assert {"clipped-per-batch", "noise-ignores-clip"} <= set(facts["bugs"])
    text = page.read_text()
    assert "data:image/svg+xml;base64" in text
    assert "http:" not in text
    assert "https:" not in text


@pytest.mark.slow
def test_the_repaired_example_passes():
    repaired = CliRunner().invoke(command_line(), files("repaired.py:train"))
    assert repaired.exit_code == 0, repaired.output
    assert "Private so far" in repaired.output


def test_the_command_wants_one_way_to_train():
    result = CliRunner().invoke(command_line(), ["--model", "model.py:build"])
    assert isinstance(result.exception, ValueError)
    assert "either --command or --train" in str(result.exception)


def test_a_report_names_the_bug_and_escapes_it(tmp_path):
    train = Training(small, cross_entropy, bug="clip-after-mean")
    example = (torch.zeros(2, 8), torch.tensor([0, 2]))
    tests = (
        "preflight",
        "separation",
        "loss-and-clip",
        "loss-and-batch",
        "distance-and-clip",
        "law-of-noise",
    )
    findings = check(train, small, cross_entropy, example=example, effort="quick", tests=tests)
    text = findings.report(tmp_path / "r.html").read_text()
    assert "clipped-per-batch" in text
    assert "<script" not in text
    findings.table()


def test_the_fixture_fails_a_test_of_leaking_code(pytester):
    pytester.makeconftest('pytest_plugins = ["noisewise.pytest_plugin"]')
    source = """
        import torch
        from torch import nn
        from torch.nn.functional import cross_entropy
        from noisewise.debugging.mutants import Training

        def build():
            return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

        EXAMPLE = (torch.zeros(2, 8), torch.tensor([0, 2]))

        def test_good(assert_private):
            train = Training(build, cross_entropy)
            tests = ("preflight", "noise", "contribution", "separation")
            assert_private(train, build, cross_entropy, example=EXAMPLE, tests=tests)

        def test_bad(assert_private):
            train = Training(build, cross_entropy, bug="no-noise")
            tests = ("preflight", "noise")
            assert_private(train, build, cross_entropy, example=EXAMPLE, tests=tests)

        def test_open(assert_private):
            def once(*, clip, noise_multiplier, batch_size, seed, data, init, lr):
                given = dict(clip=clip, noise_multiplier=noise_multiplier, data=data, init=init)
                inner = Training(build, cross_entropy)
                return inner(batch_size=batch_size, seed=seed, lr=lr, steps=1, **given)

            tests = ("preflight", "contribution", "decisions")
            assert_private(
                once, build, cross_entropy, example=EXAMPLE, tests=tests, allow_not_judged=True
            )
            assert_private(once, build, cross_entropy, example=EXAMPLE, tests=tests)
        """
    pytester.makepyfile(textwrap.dedent(source))
    result = pytester.runpytest_inprocess("--privacy-effort=quick", "--privacy-report=pages")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*no noise is added*"])
    assert len(list((pytester.path / "pages").glob("*.html"))) == 3


@pytest.mark.slow
def test_a_whole_check_through_a_script():
    """The command of the documentation, as it stands there, with no word about records."""
    arguments = ["--model", f"{FOLDER / 'model.py'}:build", "--command", FULL, "--json"]
    result = CliRunner().invoke(command_line(), [*arguments, "--effort", "quick"])
    assert result.exit_code == 1, result.output
    assert {"clipped-per-batch", "noise-ignores-clip"} <= set(json.loads(result.output)["bugs"])


def test_noise_that_cannot_be_switched_off_is_no_reason_to_accuse():
    full = Training(small, cross_entropy)

    def train(*, clip, batch_size, data, init, seed, steps, lr):
        given = {"clip": clip, "batch_size": batch_size, "data": data, "init": init}
        return full(noise_multiplier=1.3, seed=seed, steps=steps, lr=lr, **given)

    example = (torch.zeros(2, 8), torch.tensor([0, 2]))
    findings = check(train, small, cross_entropy, example=example, effort="quick")
    assert findings.verdict == "not judged"
    assert findings.bugs == []
    assert "cannot be switched off" in findings.skipped["separation"]
    assert "cannot be switched off" in findings.skipped["loss-and-batch"]
    assert findings.ran == ["preflight"]


NUMPY = (
    f"{sys.executable} {Path(__file__).parent / 'numpy_training.py'} --clip {{clip}} "
    "--sigma {noise_multiplier} --bs {batch_size} --seed {seed} --data {data} --init {init} "
    "--steps {steps} --lr {lr} --out {out}"
)


def test_a_script_without_torch_speaks_safetensors_and_npz():
    model = nn.Linear(40, 3)
    init = {name: value.detach() for name, value in model.state_dict().items()}
    data = (torch.randn(6, 40), torch.tensor([0, 1, 2, 0, 1, 2]))
    arguments = {"clip": 0.3, "noise_multiplier": 0.5, "batch_size": 6, "seed": 1, "steps": 1}
    results = [
        CommandTraining(NUMPY, form)(data=data, init=init, lr=0.1, **arguments)
        for form in ("npz", "safetensors")
    ]
    assert torch.equal(results[0]["weight"], results[1]["weight"])
    assert not torch.equal(results[0]["weight"], init["weight"])


@pytest.mark.slow
@pytest.mark.parametrize(("form", "bug"), [("safetensors", ""), ("npz", "noise-without-clip")])
def test_a_whole_check_of_a_script_without_torch(form, bug, tmp_path):
    """From the command line to the exit code, over some three hundred runs of the script."""
    place = tmp_path / "linear.py"
    place.write_text("import torch\n\ndef build():\n    return torch.nn.Linear(40, 3)\n")
    arguments = ["--model", f"{place}:build", "--input-shape", "40", "--classes", "3"]
    command = NUMPY + (f" --bug {bug}" if bug else "")
    result = CliRunner().invoke(
        command_line(), [*arguments, "--command", command, "--form", form, "--json"]
    )
    facts = json.loads(result.output)
    assert facts["bugs"] == (["noise-ignores-clip"] if bug else [])
    assert result.exit_code == (1 if bug else 0)
