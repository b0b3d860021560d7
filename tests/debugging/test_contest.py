"""The catalogue of bugs is complete and cited, and the contest can be run by anybody."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import noisewise.debugging.mutants as package
from noisewise.cli import app
from noisewise.cli.mutant_contest import (
    TOOLS,
    Contest,
    Store,
    judge_correct,
    version_of_the_code,
)
from noisewise.cli.opacus_tests import failed_tests
from noisewise.debugging.mutants import (
    CORRECT,
    PROGRAMS,
    ROUNDS,
    Training,
    cases,
    mutants,
)
from noisewise.debugging.mutants.hooks import HOOKS, STAGES, mutation

SOURCE = "".join(path.read_text("utf-8") for path in Path(package.__file__).parent.glob("*.py"))


def test_there_are_a_hundred_known_bugs_nine_frozen_rounds_and_a_hundred_correct_variants():
    numbers = "fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
    frozen = [f"{number} freeze" for number in numbers.split()]
    assert list(ROUNDS[-9:]) == frozen
    assert [len(mutants(label)) for label in frozen] == [40, 40, 20, 10, 40, 40, 40, 40, 40]
    assert len(mutants()) - len(mutants(*frozen)) >= 100
    assert len(CORRECT) >= 100
    assert len({variant.name for variant in CORRECT}) == len(CORRECT)


def test_every_bug_has_a_number_a_name_and_a_source_of_its_own():
    every = mutants()
    assert len({m.bug for m in every}) == len(every)
    assert len({m.number for m in every}) == len(every)
    cited = re.compile(r"(issues?|pull request) \d+|\(\d{4}\)")
    assert [m.bug for m in every if not cited.search(m.source)] == []


def test_every_bug_of_the_catalogue_is_planted_and_every_planted_one_is_in_the_catalogue():
    names = {m.bug for m in mutants()}
    habits = {variant.settings.get("habit") for variant in CORRECT} - {None}
    assert set(HOOKS) == set(HOOKS) & names | habits
    assert not habits & names
    whole = set(PROGRAMS)
    assert whole == whole & names | whole & {variant.name for variant in CORRECT}
    assert {mutant.bug for mutant in mutants("ninth freeze")} <= whole
    rounds = ("ninth freeze", "eleventh freeze", "twelfth freeze")
    assert whole & names <= {mutant.bug for mutant in mutants(*rounds)}
    assert not whole & set(HOOKS)
    inline = {name for name in names - set(HOOKS) - whole if f'"{name}"' not in SOURCE}
    assert inline == set()


def test_a_mistake_at_an_unknown_stage_is_refused():
    assert "noise" in STAGES
    with pytest.raises(ValueError, match="no stage"):
        mutation("new", "nowhere")
    with pytest.raises(ValueError, match="twice"):
        mutation("noise-stops", "noise")(lambda value, at: value)


QUICK = ("second freeze", "third freeze")
#: Whole programs have no other program to be compared with.
PLANTED = [label for label in ROUNDS if label != "ninth freeze"]


@pytest.mark.parametrize(
    "round_", [r if r in QUICK else pytest.param(r, marks=pytest.mark.slow) for r in PLANTED]
)
def test_every_planted_bug_changes_what_training_returns(round_):
    """Two trainings from the same start: a bug that changes nothing would be no bug."""
    case = cases()["MLP"]
    torch.manual_seed(0)
    init = {n: v.clone() for n, v in case.model().state_dict().items()}
    x, y = torch.randn(12, 8), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    x[0] *= 40
    given = {"clip": 0.3, "noise_multiplier": 1.3, "batch_size": 5, "lr": 0.2, "data": (x, y)}

    def ends(bug):
        train = Training(case.model, case.loss, bug=bug)
        return [
            torch.cat([v.flatten() for v in train(init=init, seed=s, steps=t, **given).values()])
            for s, t in ((3, 3), (9, 55))
        ]

    right = ends(None)
    # These need a record, a batch or a configuration that this training does not have.
    special = {
        "large-batches-clipped-in-pairs",
        "nan-unhandled",
        "noise-per-worker",
        "loss-spike-skipped",
        "stops-at-small-gradient",
        "resample-empty",
        "skip-empty-batch",
        "empty-batch-filled",
        "fallback-without-noise",
        "half-precision-norm",
        "labels-in-order-of-appearance",
        "early-stopping",
        "few-seeds",
        "best-checkpoint",
        "loss-scaled-noise",
        "near-duplicates-removed",
        "noise-ends-with-the-budget",
        "norm-underflows-in-half-precision",
        "overflow-replaced-by-large-number",
        "scaler-skips-step",
        "stops-at-full-accuracy",
    }
    alike = {
        m.bug
        for m in mutants(round_)
        if m.bug not in PROGRAMS
        and all(torch.equal(a, b) for a, b in zip(ends(m.bug), right, strict=True))
    }
    assert alike <= special, alike - special


def test_the_contest_runs_from_the_command_line_and_keeps_its_results(tmp_path):
    store, page = tmp_path / "rows.jsonl", tmp_path / "table.md"
    arguments = ["bench", "mutants", "--bug", "no-noise", "--effort", "quick", "--no-others"]
    arguments += ["--store", str(store), "--out", str(page)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "no-noise: no-noise" in done.output
    assert "| known | 1 | 1 | none |" in page.read_text("utf-8")
    kept = dict(json.loads(line) for line in store.read_text("utf-8").splitlines())
    assert kept["check quick: no-noise"]["verdict"] == "bug"
    # What is kept is not computed again, and what is missed is not hidden.
    assert kept["check quick: no-noise"]["code"] == version_of_the_code()
    kept["check quick: no-noise"].update(verdict="private so far", bugs=[])
    store.write_text("".join(json.dumps(pair) + "\n" for pair in kept.items()))
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "MISSED" in again.output


def test_what_opacus_tests_of_its_engine_can_be_asked_of_any_training():
    case = cases()["MLP"]
    failed = {
        bug: failed_tests(case, Training(case.model, case.loss, bug=bug))
        for bug in (None, "no-clipping", "half-sigma", "constant-seed", "shuffle")
    }
    assert failed[None] == []
    assert "flat_clipping" in failed["no-clipping"]
    assert failed["half-sigma"] == ["noise_level"]
    assert failed["constant-seed"] == ["noise_changes_every_time"]
    # Nothing of them looks at the batches.
    assert failed["shuffle"] == []


def test_correct_training_that_is_accused_counts_as_an_alarm():
    store = Store()
    store.known["correct quick 0"] = {"variant": "flat clipping", "verdict": "bug", "bugs": ["x"]}
    contest = Contest("quick", TOOLS[:1])
    contest.correct.append(judge_correct(store, 0, "quick"))
    assert len(contest.alarms) == 1
    assert "1 runs, 1 accused" in contest.markdown()
