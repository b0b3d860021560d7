"""Every gradient rule of the registry: complete, equal to a reference, and true to its promise."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

import noisewise as nw
from noisewise.cli.train import train
from noisewise.gradients import GRADIENT_RULES, Estimator, GradientEngine, rule_named
from noisewise.gradients.registry import register, rule_words
from noisewise.training.plan_values import from_plain, to_plain

ROOT = Path(__file__).parents[2]
NAMES = sorted(GRADIENT_RULES)
WORDS = sorted(rule_words())


def examples(name: str) -> list[Any]:
    """The presets of a rule; one that is only for study has none and must be asked for."""
    about = GRADIENT_RULES[name]
    if not about.kind.sound:
        return [about.kind(study=True)]
    return [rule_named(word) for word in about.presets]


EXAMPLES = [pytest.param(e, id=repr(e)) for name in NAMES for e in examples(name)]
SOUND = [pytest.param(rule_named(word), id=word) for word in WORDS]

# ------------------------------------------------------------------------------ completeness


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_is_complete(name: str) -> None:
    about = GRADIENT_RULES[name]
    assert about.kind.__name__ == name
    assert getattr(nw, name) is about.kind
    assert all(isinstance(example, Estimator) for example in examples(name))
    assert all((about.measured, about.factor, about.sensitivity, about.needs))
    assert bool(about.presets) == about.kind.sound, "what has no epsilon has no word"
    assert about.kind.sound or about.kind.reason


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_of_a_rule_exists(name: str) -> None:
    page, _, anchor = GRADIENT_RULES[name].proof.partition("#")
    text = (ROOT / page).read_text("utf-8")
    assert re.search(rf"^#+ .+ {{#{anchor}}}$", text, re.MULTILINE)


def test_exported_rules_are_registered() -> None:
    exported = {name for name in nw.__all__ if hasattr(getattr(nw, name), "measures")}
    assert exported == set(GRADIENT_RULES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_rule_survives_the_json_of_a_plan(example: Any) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(example)))) == example


def table_of_rules() -> list[str]:
    """The table of docs/gradients.md, from the registry."""
    rows = [
        "| rule | what is measured of a record | factor | sensitivity | needs | words |",
        "|---|---|---|---|---|---|",
    ]
    for name, about in GRADIENT_RULES.items():
        call = f"`{name}({', '.join(field.name for field in fields(about.kind))})`"
        told = (call, about.measured, about.factor, about.sensitivity, about.needs)
        rows.append(f"| {' | '.join(told)} | {', '.join(f'`{word}`' for word in about.presets)} |")
    return rows


def test_the_documented_table_is_the_registry() -> None:
    page = (ROOT / "docs" / "gradients.md").read_text("utf-8")
    assert "\n".join(table_of_rules()) in page, "\n".join(["paste this:", *table_of_rules()])


def test_the_command_offers_the_words_of_the_registry() -> None:
    # Its help is written out, so that it can be shown without importing torch.
    (option,) = get_type_hints(train, include_extras=True)["gradients"].__metadata__
    offered = option.help.partition(":")[2]
    assert set(re.findall(r"[a-z-]{4,}", offered)) == {"auto", *rule_words()}


@pytest.mark.parametrize("word", ["auto", *WORDS])
def test_every_word_trains_a_classifier_with_a_statement(word: str) -> None:
    x = torch.randn(120, 3, generator=torch.manual_seed(0)).numpy()
    model = nw.estimators.PrivateClassifier(
        epsilon=5.0, gradients=word, steps=2, random_state=0, hidden_layer_sizes=()
    )
    model.fit(x, (x.sum(1) > 0).astype(int))
    chosen = type(rule_named("clipped" if word == "auto" else word)).__name__
    assert chosen in model.statement_.mechanism
    assert model.statement_.epsilon <= 5.0


def test_names_and_words_are_taken_once() -> None:
    told = dict(measured="a", factor="b", sensitivity="c", needs="d", proof="e")
    with pytest.raises(ValueError, match="there is a gradient rule called"):
        register(**told)(nw.Clipped)
    with pytest.raises(ValueError, match="'factored'"):
        register(presets={"factored": {}}, **told)(type("Other", (), {}))
    with pytest.raises(ValueError, match="gradients must be one of"):
        rule_named("soft")


# ------------------------------------------------------------------------------ reference

LOSS = nn.CrossEntropyLoss(reduction="sum")


def model_and_records() -> tuple[nn.Module, Tensor, Tensor]:
    """Dense layers, whose bounds are propagated, and records inside the bound on inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nw.nn.BoundedInput((5,), 9.0), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)
    )
    x = torch.randn(6, 5) * torch.logspace(-1, 0.4, 6)[:, None]
    assert float(x.norm(dim=1).max()) < 9
    return model, x, torch.randint(4, (6,))


def gradients_of(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """One record at a time, by torch.func."""
    learnt = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], i: int) -> Tensor:
        return LOSS(functional_call(model, parameters, (x[i : i + 1],)), y[i : i + 1])

    return [grad(loss)(learnt, i) for i in range(len(y))]


def input_norms(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of each layer's input with a one for the bias: the Jacobian in its parameters."""
    hidden = torch.tanh(model[1](x))
    return {"1": (x.square().sum(1) + 1).sqrt(), "3": (hidden.square().sum(1) + 1).sqrt()}


def clipped(norms: Tensor, inputs: Tensor, rule: Any) -> Tensor:
    if rule.rule == "automatic":
        return rule.clip / (norms + rule.gamma)
    return (rule.clip / norms).clamp_max(1.0)


#: The factor of each record, given the norms of its gradients and of its layer inputs.
REFERENCES: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "Clipped": clipped,
    "Factored": lambda norms, inputs, rule: (rule.clip / norms).clamp_max(1.0),
    "Propagated": lambda norms, inputs, rule: torch.ones_like(norms),
    "InputScaled": lambda norms, inputs, rule: 1 / inputs,
    "BatchMaxScaled": lambda norms, inputs, rule: torch.ones_like(inputs) / inputs.max(),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_rule_sums_what_its_reference_sums(example: Any) -> None:
    model, x, y = model_and_records()
    found = GradientEngine(model, LOSS, example).sum(x, y)
    rows, inputs = gradients_of(model, x, y), input_norms(model, x)
    for group in found.groups:
        norms = torch.stack([math_norm([row[n] for n in group.names]) for row in rows])
        layer = inputs[group.names[0].split(".")[0]]
        factors = REFERENCES[type(example).__name__](norms, layer, example)
        for name in group.names:
            stacked = torch.stack([row[name] for row in rows])
            wanted = torch.einsum("b,b...->...", factors, stacked)
            torch.testing.assert_close(found.gradients[name], wanted, rtol=2e-5, atol=1e-6)


def math_norm(parts: list[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()


# ------------------------------------------------------------------------------ promises


def excesses(rule: Any, scale: Callable[[Tensor, float], Tensor]) -> Iterator[float]:
    """How far a factor lets a record go beyond the promise, as the rule measures it."""
    measured = torch.cat(
        [torch.logspace(-12, 12, 241, dtype=torch.float64), torch.linspace(0.9, 1.1, 41).double()]
    )
    for limit in (1e-3, 1.0, 50.0) if rule.measures in ("norm", "bound") else (1.0,):
        factors = scale(measured.clone(), limit)
        assert factors.shape == measured.shape
        promise = {
            "norm": factors * measured / limit,
            "bound": factors * measured / limit,
            "input": factors * measured,
            "nothing": factors,
        }
        yield float(promise[rule.measures].max())


@pytest.mark.parametrize("rule", SOUND)
def test_a_rule_keeps_its_promise_by_itself(rule: Any) -> None:
    assert max(excesses(rule, rule.scale)) <= 1 + 1e-12


@pytest.mark.parametrize("rule", SOUND)
def test_a_rule_that_promises_a_tenth_too_much_is_found_out(rule: Any) -> None:
    assert max(excesses(rule, lambda measure, limit: 1.1 * rule.scale(measure, limit))) > 1.05


@pytest.mark.parametrize("rule", SOUND)
def test_one_record_moves_a_sum_by_its_sensitivity_and_no_further(rule: Any) -> None:
    """One weight, and a record as long as the bound allows.

    More than nine tenths are reached, so a sensitivity a tenth too small would be violated.
    """
    model = nn.Sequential(nw.nn.BoundedInput((1,), 1.0), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
    x, y = torch.ones(2, 1), torch.full((2, 1), -50.0)
    engine = GradientEngine(model, nn.L1Loss(reduction="sum"), rule)
    both, one = engine.sum(x, y), engine.sum(x[:1], y[:1])
    moved = float((both.gradients["1.weight"] - one.gradients["1.weight"]).norm())
    (group,) = both.groups
    assert 0.9 < moved / group.sensitivity <= 1
    assert math.isclose(moved, 1.0, rel_tol=0.02)
