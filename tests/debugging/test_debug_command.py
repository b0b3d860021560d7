"""Scripts as training functions, the command line, the report and the pytest fixture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import typer
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from noisewise.cli.debug import debug
from noisewise.debugging import TrainingFailedError, check
from noisewise.debugging.command import CommandTraining, load_object, read_state
from noisewise.debugging.mutants import Training

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
    got = CommandTraining(FULL)(**arguments)
    assert set(got) == set(expected)
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name])


def test_missing_and_unknown_placeholders_are_explained():
    with pytest.raises(ValueError, match=r"lacks \{init\}"):
        CommandTraining("run {clip} {batch_size} {data} {out}")
    with pytest.raises(ValueError, match=r"unknown placeholder \{sigma\}"):
        CommandTraining("run {sigma}")
    part = CommandTraining("run {clip} {batch_size} {data} {init} {out}")
    assert "T3 and T4" in part.absent["noise_multiplier"]
    assert part.accepts == {"clip", "batch_size", "data", "init"}


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


def test_the_broken_example_fails_with_code_one_and_the_repaired_one_passes(tmp_path):
    page = tmp_path / "x.html"
    broken = CliRunner().invoke(
        command_line(), [*files("broken.py:train"), "--json", "--report", str(page)]
    )
    assert broken.exit_code == 1, broken.output
    facts = json.loads(broken.output)
    assert {"clipped-per-batch", "noise-ignores-clip"} <= set(facts["bugs"])
    text = page.read_text()
    assert "data:image/png;base64" in text
    assert "http" not in text
    repaired = CliRunner().invoke(command_line(), files("repaired.py:train"))
    assert repaired.exit_code == 0, repaired.output
    assert "No bug found" in repaired.output


def test_the_command_wants_one_way_to_train():
    result = CliRunner().invoke(command_line(), ["--model", "model.py:build"])
    assert isinstance(result.exception, ValueError)
    assert "either --command or --train" in str(result.exception)


def test_a_report_names_the_bug_and_escapes_it(tmp_path):
    train = Training(small, cross_entropy, bug="clip-after-mean")
    example = (torch.zeros(2, 8), torch.tensor([0, 2]))
    findings = check(train, small, cross_entropy, example=example, effort="quick")
    text = findings.report(tmp_path / "r.html").read_text()
    assert "clipped-per-batch" in text
    assert "<script" not in text
    findings.table()


def test_the_fixture_fails_a_test_of_leaking_code(pytester):
    pytester.makeconftest('pytest_plugins = ["noisewise.pytest_plugin"]')
    pytester.makepyfile(
        """
        import torch
        from torch import nn
        from torch.nn.functional import cross_entropy
        from noisewise.debugging.mutants import Training

        def build():
            return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

        EXAMPLE = (torch.zeros(2, 8), torch.tensor([0, 2]))

        def test_good(assert_private):
            assert_private(Training(build, cross_entropy), build, cross_entropy, example=EXAMPLE)

        def test_bad(assert_private):
            train = Training(build, cross_entropy, bug="no-noise")
            assert_private(train, build, cross_entropy, example=EXAMPLE)
        """
    )
    result = pytester.runpytest_inprocess("--privacy-effort=quick", "--privacy-report=pages")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*no noise is added*"])
    assert len(list((pytester.path / "pages").glob("*.html"))) == 2


@pytest.mark.slow
def test_a_whole_check_through_a_script():
    findings = check(
        CommandTraining(FULL),
        small,
        cross_entropy,
        example=(torch.zeros(2, 8), torch.tensor([0, 2])),
        effort="quick",
    )
    assert {"clipped-per-batch", "noise-ignores-clip"} <= set(findings.bugs)


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
