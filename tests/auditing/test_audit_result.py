"""Scores in, verdicts out: files, printing, JSON, pictures and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from noisewise.auditing import NoiseModel, Scores, ViolatedClaimError, audit
from noisewise.cli.audit import audit as command
from noisewise.errors import NoisewiseError
from noisewise.privacy import PoissonGaussian, Statement

app = typer.Typer()
app.command()(command)
runner = CliRunner()


@pytest.fixture
def scores() -> Scores:
    rng = np.random.default_rng(0)
    return Scores(rng.normal(1, 1, 2000), rng.normal(0, 1, 2000), coins=True)


@pytest.mark.parametrize(
    ("inside", "message"),
    [([], "non-empty"), ([[1.0]], "non-empty"), ([np.nan, 1.0], "1 NaN"), ([np.inf], "infinite")],
)
def test_scores_that_cannot_be_judged_are_refused(inside: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scores(inside, [0.0])


def test_scores_are_copied_and_cannot_be_changed() -> None:
    mine = np.ones(3)
    scores = Scores(mine, [0.0])
    mine[0] = 7.0
    assert scores.inside[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        scores.inside[0] = 2.0


def test_a_claim_below_the_bound_is_refuted_and_one_above_is_not(scores: Scores) -> None:
    result = audit(scores, claimed=2.0, delta=1e-5, noise=NoiseModel())
    assert result.passed is False
    assert result.epsilon_lower_bound > 2
    with pytest.raises(ViolatedClaimError, match="but 2 is claimed") as caught:
        result.raise_if_violated()
    assert isinstance(caught.value, NoisewiseError)
    result = audit(scores, claimed=4.4, delta=1e-5, noise=NoiseModel())
    assert result.passed is True
    result.raise_if_violated()
    assert audit(scores, claimed=None, delta=1e-5).passed is None


def test_a_credible_bound_never_decides(scores: Scores) -> None:
    result = audit(scores, claimed=0.1, delta=1e-5, method="joint-beta")
    assert result.epsilon_lower_bound > 0.1
    assert result.passed is None
    result.raise_if_violated()
    assert "a credible bound decides nothing, and lies above it" in str(result)


def test_an_estimate_never_decides(scores: Scores) -> None:
    result = audit(scores, claimed=0.1, delta=1e-5, method="normal-estimate", noise=NoiseModel())
    assert result.epsilon_lower_bound > 0.1
    assert result.passed is None
    result.raise_if_violated()


def test_printing_says_what_the_number_rests_on(scores: Scores) -> None:
    text = str(audit(scores, claimed=2.0, delta=1e-5, noise=NoiseModel()))
    for part in (
        "REFUTED", "95 % confidence", "add-remove", "could certify", "adversary",
        "adds Gaussian noise", "no guarantee", "2000 scores in, 2000 out", "simultaneous",
    ):  # fmt: skip
        assert part in text
    passed = str(audit(scores, claimed=9.0, delta=1e-5))
    assert "does not confirm" in passed


def test_a_printed_bound_is_never_above_the_bound(scores: Scores) -> None:
    result = audit(scores, claimed=9.0, delta=1e-5, noise=NoiseModel())
    printed = float(str(result).splitlines()[0].split(">= ")[1].split()[0])
    assert result.epsilon_lower_bound - 0.001 < printed <= result.epsilon_lower_bound


@pytest.mark.parametrize(
    "method",
    ["gaussian", "clopper-pearson", "joint-beta", "one-run", "one-run-tradeoff", "normal-estimate"],
)
def test_every_method_can_be_written_as_json(scores: Scores, method: str) -> None:
    result = audit(scores, claimed=3.0, delta=1e-5, method=method, noise=NoiseModel())
    fields = json.loads(result.to_json())
    assert fields["method"] == method
    assert fields["epsilon_lower_bound"] == result.epsilon_lower_bound
    assert fields["relation"] == "add-remove"
    assert fields["passed"] == result.passed
    assert fields["scores_inside"] == 2000


@pytest.mark.parametrize("method", ["gaussian", "one-run"])
def test_a_picture_is_drawn(scores: Scores, tmp_path: Path, method: str) -> None:
    result = audit(scores, claimed=3.0, delta=1e-5, method=method, noise=NoiseModel())
    path = result.plot(tmp_path / "new" / "audit.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# --- the command


def test_scores_are_read_from_both_kinds_of_files(scores: Scores, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", inside=scores.inside, outside=scores.outside)
    rows = [f"{s!r},1" for s in scores.inside.tolist()]
    rows += [f"{s!r},0" for s in scores.outside.tolist()]
    (tmp_path / "s.csv").write_text("\n".join(["score,inside", *rows]))
    for name in ("s.npz", "s.csv"):
        read = Scores.read(tmp_path / name)
        assert np.array_equal(read.inside, scores.inside)
        assert np.array_equal(read.outside, scores.outside)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "must have columns"),
        ("a.csv", "score,inside\n1.0,maybe\n", "line 2: 'inside' must be 1 or 0"),
        ("a.csv", "score,inside\n1.0,1\nhigh,0\n", "line 3: 'score' must be a number"),
        ("a.txt", "1", "from .csv or .npz"),
    ],
)
def test_bad_files_are_refused_with_their_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        Scores.read(tmp_path / name)
    with pytest.raises(ValueError, match="no file"):
        Scores.read(tmp_path / "missing.csv")


def test_the_command_exits_with_one_for_a_refuted_claim(scores: Scores, tmp_path: Path) -> None:
    path, picture = tmp_path / "s.npz", tmp_path / "p.png"
    np.savez(path, inside=scores.inside, outside=scores.outside)
    base = [str(path), "--delta", "1e-5", "--gaussian"]
    bad = runner.invoke(app, [*base, "--epsilon", "2", "--plot", str(picture)])
    assert bad.exit_code == 1, bad.output
    assert "REFUTED" in bad.output
    assert picture.exists()
    good = runner.invoke(app, [*base, "--epsilon", "4.4", "--json"])
    assert good.exit_code == 0, good.output
    fields = json.loads(good.stdout)
    assert fields["passed"] is True
    assert fields["claimed_epsilon"] == 4.4
    without = runner.invoke(app, base)
    assert without.exit_code == 0
    assert "nothing to decide" in without.output


def test_the_command_takes_a_statement(scores: Scores, tmp_path: Path) -> None:
    path, place = tmp_path / "s.npz", tmp_path / "claim.json"
    np.savez(path, inside=scores.inside, outside=scores.outside)
    for noise, code in ((1.0, 0), (2.0, 1)):
        event = PoissonGaussian(noise, 1.0, 1)
        place.write_text(Statement.derive(event, delta=1e-5, mechanism="m").to_json())
        found = runner.invoke(app, [str(path), "--statement", str(place)])
        assert found.exit_code == code, found.output
    both = runner.invoke(app, [str(path), "--statement", str(place), "--epsilon", "1"])
    assert "not both" in str(both.exception)


MODULE = """
import torch
from neighbour import NOISE_IS_FORGOTTEN

def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
    x, y = data
    g = x * (clip / x.norm(dim=1, keepdim=True)).clamp(max=1)
    noise = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(seed))
    scale = 0.1 if NOISE_IS_FORGOTTEN else 1.0
    total = g.sum(0) + scale * noise_multiplier * clip * noise
    return {"w": init["w"] - lr * total / batch_size}

def audit_inputs():
    x = torch.eye(3)
    return dict(init={"w": torch.zeros(3)}, data=(x, torch.zeros(3)), clip=1.0,
                canary=(9 * torch.ones(1, 3), torch.zeros(1)), noise_multiplier=1.0, repeats=400)
"""


@pytest.mark.parametrize(("forgotten", "code"), [(False, 0), (True, 1)])
def test_the_command_attacks_a_training_function(
    tmp_path: Path, forgotten: bool, code: int
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "neighbour.py").write_text(f"NOISE_IS_FORGOTTEN = {forgotten}")
    import sys

    sys.modules.pop("neighbour", None)
    target = f"{tmp_path / 'mine.py'}:train"
    found = runner.invoke(app, [target, "--epsilon", "4.4", "--delta", "1e-5", "--gaussian"])
    assert found.exit_code == code, found.output
    sys.modules.pop("neighbour", None)


def test_the_command_explains_what_a_module_lacks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def train(): pass")
    claim = ["--epsilon", "1", "--delta", "1e-5"]
    for target, message in (
        (f"{tmp_path / 'mine.py'}:train", "audit_inputs"),
        (f"{tmp_path / 'mine.py'}:learn", "function learn"),
        (f"{tmp_path / 'absent.py'}:train", "no module"),
    ):
        found = runner.invoke(app, [target, *claim])
        assert message in str(found.exception)
    found = runner.invoke(app, [str(tmp_path / "s.csv"), "--epsilon", "1"])
    assert "give the claim" in str(found.exception)
    found = runner.invoke(app, ["s.csv", *claim, "--steps", "3"])
    assert "add --gaussian" in str(found.exception)
