"""What enters a sensitivity has a section on a proof page, and says where."""

import re
from pathlib import Path

import pytest

import noisewise
from noisewise import gradients

ROOT = Path(noisewise.__file__).parent
PAGES = Path(__file__).resolve().parents[2] / "docs" / "proofs"
#: Modules of these folders that hold tools and no bound of their own.
TOOLS = {"__init__", "refusals", "vectors", "windows", "selection", "profile", "resolution"}
TOOLS |= {"tree_estimate", "registry"}  # read-out is post-processing


@pytest.mark.parametrize(
    "path", sorted((ROOT / "bounds" / "rules").glob("*.py")), ids=lambda p: p.stem
)
def test_every_module_of_layer_rules_names_its_proof(path):
    if path.stem in TOOLS:
        return
    assert re.search(r"docs/proofs/layers\.md#[\w-]+", path.read_text("utf-8"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "ecdf" / "mechanisms").glob("*.py")), ids=lambda p: p.stem
)
def test_every_counting_strategy_names_its_proof(path):
    if path.stem in TOOLS | {"convolution"}:  # products of integers, exact
        return
    assert re.search(r"docs/proofs/curves\.md#[\w-]+", path.read_text("utf-8"))


def test_every_estimator_has_a_section():
    page = (PAGES / "sums.md").read_text("utf-8")
    titles = set(re.findall(r"^## (\w+) \{#", page, re.MULTILINE))
    sound = {
        name
        for name in gradients.__all__
        if isinstance(getattr(gradients, name), type)
        and getattr(getattr(gradients, name), "measures", None) is not None
        and getattr(getattr(gradients, name), "sound", True)
    }
    assert {"Clipped", "Factored", "Propagated", "InputScaled"} <= sound
    assert sound - {"Lipschitz", "Estimator", "Schedule"} <= titles
    assert "BatchMaxScaled" not in titles
