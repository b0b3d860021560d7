"""The page on certified accuracy shows the stored runs, and they are consistent."""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def experiment():
    path = Path(__file__).parents[2] / "experiments" / "robustness.py"
    spec = importlib.util.spec_from_file_location("robustness_experiment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_the_stored_runs_say(experiment):
    page = experiment.PAGE.read_text()
    shown = page.split(experiment.BEGIN)[1].split(experiment.END)[0].strip()
    assert shown == experiment.markdown(experiment.done())
    assert len(shown.splitlines()) > 2


def test_no_attack_left_less_than_was_certified(experiment):
    for run in experiment.done():
        assert run["stated"] <= run["epsilon"]
        for sure, left in zip(run["certified"], run["attacked"], strict=True):
            assert sure <= left
        assert run["certified"] == sorted(run["certified"], reverse=True)


def test_attacks_of_a_linear_model_find_the_exact_radius(experiment):
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 2)
    x, y = torch.randn(400, 20), torch.randint(0, 2, (400,))
    gap = model.weight[0] - model.weight[1]
    score = (model(x)[:, 0] - model(x)[:, 1]) * torch.where(y == 0, 1.0, -1.0)
    away = (score / gap.norm()).detach()
    for radius in (0.1, 0.5):
        left = experiment.attacked(model, x, y, radius)
        assert left >= float((away > radius).double().mean()) - 1e-9
        assert left <= float((away > 0.98 * radius).double().mean()) + 1e-9
