"""What the experiments behind docs/analysis.md rest on: keys, choices, mix-up training, links."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import analysis_training

    monkeypatch.setattr(analysis_training, "CACHE", tmp_path)
    return analysis_training


def keep(training: ModuleType, setup: object, held: float, test: float) -> None:
    """Store a finished run with these accuracies on held-back and on test records."""

    def logits(right: float) -> np.ndarray:
        found = np.zeros((10, 2))
        found[np.arange(10), (np.arange(10) >= round(10 * right)).astype(int)] = 1.0
        return found

    empty = {f.name: np.zeros(()) for f in fields(training.Outcome)}
    labels = np.zeros(10, int)
    np.savez(
        setup.path,
        **{
            **empty,
            "held": logits(held),
            "held_labels": labels,
            "test": logits(test),
            "test_labels": labels,
        },
    )


def test_a_run_is_found_by_all_that_it_depends_on(training: ModuleType) -> None:
    plain = training.Setup("mnist")
    changed = {
        "task": "cifar", "rule": "clip", "per": "layer", "clip": 2.0, "sigma": 2.0, "rate": 1.0,
        "optimizer": "adam", "epochs": 3, "batch": 7, "seed": 1, "options": (("records", 5),),
        "steps": 9, "late": 3.0,
    }  # fmt: skip
    assert set(changed) == {f.name for f in fields(training.Setup)}
    paths = {replace(plain, **{name: value}).path for name, value in changed.items()}
    assert len(paths | {plain.path}) == len(changed) + 1


def test_held_back_records_choose_and_test_records_do_not(training: ModuleType) -> None:
    import analysis_tuning

    first, second = training.Setup("mnist", rate=1.0), training.Setup("mnist", rate=2.0)
    keep(training, first, held=0.6, test=0.9)
    keep(training, second, held=0.7, test=0.2)
    watch = training.Stopwatch(float("inf"))
    assert analysis_tuning.best([first, second], watch) == second
    assert analysis_tuning.best([second, first], watch, by="nll") == second
    assert analysis_tuning.reported(training.obtain(second)).accuracy == pytest.approx(0.2)


def test_mix_up_training_ends_with_the_global_rule_and_its_control_does_not(
    training: ModuleType,
) -> None:
    setup = training.Setup("mnist", rule="mix-up", clip=2.0)
    mixed = training.estimator_of(setup)
    assert [mixed.at(p).rule for p in (0.0, 0.89, 0.9, 1.0)] == ["clip", "clip", "global", "global"]
    assert [mixed.at(p).clip for p in (0.0, 1.0)] == [2.0, 2.0]
    control = training.estimator_of(replace(setup, rule="widened", late=5.0))
    assert [(control.at(p).rule, control.at(p).clip) for p in (0.0, 1.0)] == [
        ("clip", 2.0),
        ("clip", 5.0),
    ]


def test_the_transformer_tells_words_from_padding(training: ModuleType) -> None:
    import analysis_data
    import torch

    assert analysis_data.tokens("Good  film", 64)[2:] == [0] * (analysis_data.LENGTH - 2)
    assert min(analysis_data.tokens("Good film", 64)[:2]) > 0
    torch.manual_seed(0)
    model = analysis_data.Transformer(64, 0.05)
    short = torch.tensor([[3, 5, 0, 0]])
    assert torch.allclose(model(short), model(short[:, :2]), atol=1e-6)
    assert not torch.allclose(model(short), model(torch.tensor([[3, 5, 0, 7]])), atol=1e-6)


def test_every_picture_and_script_that_the_page_names_exists() -> None:
    pages = ("analysis.md", "analysis-found.md")
    page = "".join((ROOT / "docs" / name).read_text() for name in pages)
    pictures = re.findall(r"\]\((images/[^)]+)\)", page)
    scripts = set(re.findall(r"`(analysis_\w+\.py)`", page))
    assert len(pictures) > 10
    assert len(scripts) > 5
    assert [p for p in pictures if not (ROOT / "docs" / p).exists()] == []
    assert [s for s in scripts if not (ROOT / "experiments" / s).exists()] == []
    drawn = {f"images/{p.name}" for p in (ROOT / "docs" / "images").glob("analysis_*.png")}
    assert drawn == set(pictures)
