"""Every kind of event, found from the registry: complete, and none costs less than it says.

What an event promises (losses, divergences, closed forms, pure epsilon) is held against the losses
that `noisewise.privacy.independent` derives a second time. The same check must find an event that
promises a tenth too little, in each of its promises alone.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

import noisewise
from noisewise.privacy import (
    Gaussian,
    Laplace,
    Ledger,
    PoissonGaussian,
    Pure,
    Statement,
    ZeroConcentrated,
    epsilon_of,
    verify,
)
from noisewise.privacy.accountants import ACCOUNTANTS, tightest
from noisewise.privacy.events import EVENTS, Event, as_history, event_from_dict, register
from noisewise.privacy.independent import CONCENTRATED, LOSSES, estimate_epsilon
from noisewise.privacy.relation import ADD_REMOVE, REPLACE_ONE

ROOT = Path(__file__).parents[2]
KINDS = sorted(EVENTS)
RELATIONS = (ADD_REMOVE, REPLACE_ONE)
DELTAS = (1e-9, 1e-5, 1e-2)
#: An accountant may lie below the independent estimate by its error only ...
BELOW = 1e-4
#: ... and above it by rounding up on a grid, or by what the conversion of divergences loses.
ABOVE = {"pld": (1.03, 2e-3), "rdp": (1.6, 0.3)}
EXAMPLES = [example for kind in KINDS for example in EVENTS[kind].examples()]
PAIRS = [
    pytest.param(e, r, id=f"{e}-{r}") for e in EXAMPLES for r in RELATIONS if r.name in e.relations
]


def estimated(event: Event, delta: float, relation: Any) -> float:
    """The independent estimate of the release that the promises speak of, without variation."""
    kept = {field.name: 0.0 for field in fields(event) if field.name == "variation"}
    return estimate_epsilon(replace(event, **kept), delta=delta, relation=relation)


def faults(event: Event, honest: Event, relation: Any) -> Iterator[str]:
    """Where the promises of `event` are not those of the releases of `honest`."""
    history = (event,)
    for delta in DELTAS:
        truth = estimated(honest, delta, relation)
        for name, accountant in ACCOUNTANTS.items():
            if accountant.refusal(history, delta):
                continue
            found = accountant.epsilon(history, delta, relation)
            factor, extra = ABOVE[name]
            if not truth * (1 - BELOW) - BELOW <= found <= truth * factor + extra:
                yield f"{name} at delta {delta:g} gives {found:.6g}, and it is {truth:.6g}"
        precision = event.gaussian_precision()
        if precision is not None:
            found = get_epsilon_gaussian(1 / math.sqrt(precision), delta)
            if abs(found - truth) > BELOW * (1 + truth):
                yield f"in closed form {found:.6g} at delta {delta:g}, and it is {truth:.6g}"
    pure, largest = event.pure_epsilon(), largest_loss(honest, relation)
    if pure < largest * (1 - 1e-9) or (math.isfinite(pure) and pure > largest * (1 + 1e-3)):
        yield f"pure epsilon {pure:.6g}, but a loss can be {largest:.6g}"


def largest_loss(event: Event, relation: Any) -> float:
    """Of all releases; infinite where only divergences are known, and for noise without an end."""
    if type(event) in CONCENTRATED:
        return math.inf
    seen = [
        (values, mass)
        for way in (0, 1)
        for values, mass in LOSSES[type(event)](event, way, relation)
    ]
    ends = [float(np.abs(values[mass > 0]).max()) for values, mass in seen]
    # A largest loss is one that has a probability of its own, not the end of a tail.
    heavy = [float(mass[np.argmax(np.abs(values))]) for values, mass in seen]
    return event.count * max(ends) if min(heavy) > 1e-3 else math.inf


# ---------------------------------------------------------------------------- completeness


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_complete(kind: str) -> None:
    event = EVENTS[kind]
    assert event.kind == kind
    assert event.examples()
    assert all(type(example) is event for example in event.examples())
    assert any(example.count > 1 for example in event.examples())
    assert event.words
    assert ("noise_multiplier" in {f.name for f in fields(event)}) == bool(event.scale)
    assert (event.losses is Event.losses) == bool(event.no_losses)
    assert (event.largest_loss is Event.largest_loss) == bool(event.no_losses)
    assert (event.divergences is Event.divergences) == bool(event.no_divergences)
    # A kind that no accountant reads has no epsilon at all.
    assert not (event.no_losses and event.no_divergences)
    assert (event in LOSSES) != (event in CONCENTRATED), "derive its losses in independent.py"


def test_the_independent_accountant_knows_no_other_kinds() -> None:
    assert {*LOSSES, *CONCENTRATED} == set(EVENTS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_proof_of_a_kind_exists(kind: str) -> None:
    page, _, anchor = EVENTS[kind].proof.partition("#")
    text = (ROOT / page).read_text("utf-8")
    assert re.search(rf"^#+ .+ {{#{anchor}}}$", text, re.MULTILINE)


def table_of_events() -> list[str]:
    """The table of docs/accounting.md, from the registry."""
    rows = ["| event | what it is | noise multiplier is noise over ... |", "|---|---|---|"]
    for event in EVENTS.values():
        names = ", ".join(field.name for field in fields(event))
        rows.append(f"| `{event.__name__}({names})` | {event.words} | {event.scale} |")
    return rows


def test_the_documented_table_is_the_registry() -> None:
    page = (ROOT / "docs" / "accounting.md").read_text("utf-8")
    assert "\n".join(table_of_events()) in page, "\n".join(["paste this:", *table_of_events()])


def test_documented_accountants_are_the_registry() -> None:
    page = (ROOT / "docs" / "accounting.md").read_text("utf-8")
    heads = re.findall(r"^\| \| (.+) \|$", page, re.MULTILINE)
    named = [re.findall(r'`"(\w+)"`', head) for head in heads]
    assert list(ACCOUNTANTS) in named


# ---------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("event", EXAMPLES, ids=str)
def test_an_event_survives_json_a_ledger_and_a_statement(event: Event, tmp_path: Path) -> None:
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    accountant = tightest((event,))
    about = {"accountant": accountant, "unit": "one patient"}
    with Ledger.create(tmp_path / "ledger", delta=1e-5, **about) as ledger:
        ledger.charge(event)
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.history == (event,)
    statement = Statement.derive(event, delta=1e-5, mechanism="a test", **about)
    assert Statement.from_json(statement.to_json()) == statement
    assert verify(statement).ok


#: Lines as they stand in ledgers and statements of version 0.1.
WRITTEN = {
    '{"kind": "gaussian", "noise_multiplier": 2.5, "count": 3, "variation": 1e-12}': Gaussian(
        2.5, 3, 1e-12
    ),
    '{"kind": "laplace", "noise_multiplier": 2.0, "count": 1}': Laplace(2.0),
    '{"kind": "poisson-gaussian", "noise_multiplier": 1.1, "sample_rate": 0.02, "count": 500}': (
        PoissonGaussian(1.1, 0.02, 500)
    ),
    '{"kind": "pure", "epsilon": 0.05, "count": 40}': Pure(0.05, 40),
    '{"kind": "zero-concentrated", "rho": 0.01, "count": 5}': ZeroConcentrated(0.01, 5),
}


@pytest.mark.parametrize("line", WRITTEN)
def test_what_was_written_by_the_first_version_is_read_and_written_as_it_was(line: str) -> None:
    assert event_from_dict(json.loads(line)) == WRITTEN[line]
    assert json.dumps(WRITTEN[line].to_dict()) == line


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_says_what_it_knows_of_itself(kind: str) -> None:
    for event in EVENTS[kind].examples():
        assert event.covers(event)
        assert event.with_room().covers(event)
        assert event.worse(event).covers(event)
        rates = event.secret_rates
        assert all(0 < rate < 1 for rate in rates)
        premises = Statement.derive(
            event, delta=1e-5, mechanism="a test", accountant=tightest((event,)), unit="one patient"
        ).premises
        assert any("which records were drawn" in said for said in premises) == bool(rates)


@pytest.mark.parametrize("event", EXAMPLES, ids=str)
def test_a_relation_without_a_worst_pair_is_refused(event: Event) -> None:
    assert "add-remove" in event.relations
    for relation in RELATIONS:
        if relation.name not in event.relations:
            for take in (epsilon_of, estimate_epsilon):
                with pytest.raises(ValueError, match=relation.name):
                    take(event, delta=1e-5, relation=relation)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="neither of"):
        Pure(1.0).worse(Laplace(1.0))


# ---------------------------------------------------------------------------- promises


@pytest.mark.parametrize(("event", "relation"), PAIRS)
def test_an_event_costs_what_it_says(event: Event, relation: Any) -> None:
    assert list(faults(event, event, relation)) == []


@pytest.mark.parametrize(("event", "relation"), PAIRS)
def test_an_event_covers_only_what_costs_no_more(event: Event, relation: Any) -> None:
    room = event.with_room()
    name = tightest((event,))
    for delta in DELTAS:
        dear, cheap = (
            epsilon_of(each, delta=delta, relation=relation, accountant=name)
            for each in (room, event)
        )
        assert dear >= cheap * (1 - 1e-9)
    assert not greedy(event).covers(event)


def greedy(event: Event) -> Event:
    """The same releases with parameters that cost a tenth less."""
    factors = {"noise_multiplier": 1.1, "epsilon": 1 / 1.1, "rho": 1 / 1.21}
    if hasattr(event, "trials"):
        # Five times a tenth: the theorem on divergences is that much looser than the profile.
        for _ in range(5):
            trials = tuple(tuple(map(greedy, each)) for each in event.trials)
            event = replace(event, trials=trials)
        return event
    names = {field.name for field in fields(event)} & set(factors)
    assert names, f"say here which parameter of {event.kind} makes it cheaper"
    return replace(event, **{name: getattr(event, name) * factors[name] for name in names})


PROMISES = ("losses", "divergences", "joined", "gaussian_precision", "pure_epsilon")


def promises_of(event: Event) -> list[str]:
    """Those that this event makes, beyond what the base says of every event."""
    made = [name for name in PROMISES if getattr(type(event), name) is not getattr(Event, name)]
    return [name for name in made if name != "pure_epsilon" or math.isfinite(event.pure_epsilon())]


BROKEN = [
    pytest.param(event, promise, id=f"{event}-{promise}")
    for event in EXAMPLES
    for promise in promises_of(event)
]


@pytest.mark.parametrize(("event", "promise"), BROKEN)
def test_an_event_that_promises_a_tenth_too_little_is_found_out(
    event: Event, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(event)

    def broken(self: Event, *arguments: Any) -> Any:
        return getattr(kind, promise)(greedy(rebuilt(self)), *arguments)

    def rebuilt(liar: Event) -> Event:
        return kind(**{field.name: getattr(liar, field.name) for field in fields(liar)})

    def joined(self: Event) -> Event:
        found = kind.joined(rebuilt(self))
        return type(self)(**{field.name: getattr(found, field.name) for field in fields(found)})

    liar_kind = type("Liar", (kind,), {"joined": joined, promise: broken, "kind": "liar"})
    liar = liar_kind(**{field.name: getattr(event, field.name) for field in fields(event)})
    with pytest.raises(TypeError, match="not the registered event"):
        as_history(liar)
    monkeypatch.setitem(EVENTS, "liar", liar_kind)
    assert as_history(liar) == (liar,)
    for relation in RELATIONS:
        if relation.name in event.relations:
            assert list(faults(liar, event, relation))


def test_a_subclass_does_not_pass_for_its_kind() -> None:
    class Cheap(Pure):
        def pure_epsilon(self) -> float:
            return 0.0

    for take in (epsilon_of, estimate_epsilon):
        with pytest.raises(TypeError, match="Cheap is not the registered event of kind 'pure'"):
            take(Cheap(1.0), delta=1e-5)
    with pytest.raises(ValueError, match="there is an event of kind 'pure'"):
        register(Cheap)


# ---------------------------------------------------------------------------- nobody else switches

#: Where an event may be asked for its class: its own folder, the reader of old statements, and the
#: kernel's budget in parts, which takes pure epsilons only.
ASKING = ("privacy/events/", "privacy/first_version.py", "release/", "mechanisms/additive.py")


def questions(source: str) -> list[str]:
    """Calls of isinstance that name a kind of event."""
    names = {kind.__name__ for kind in EVENTS.values()}
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node.args[1]))
    ]


def test_nobody_asks_an_event_for_its_class() -> None:
    package = Path(noisewise.__file__).parent
    found = {
        str(path.relative_to(package)): asked
        for path in package.rglob("*.py")
        if not path.relative_to(package).as_posix().startswith(ASKING)
        and (asked := questions(path.read_text("utf-8")))
    }
    assert found == {}, "let the event answer by a method of its own"


def test_such_a_question_would_be_seen() -> None:
    assert questions("x = isinstance(event, (Gaussian, Pure)) and isinstance(y, int)") == [
        "isinstance(event, (Gaussian, Pure))"
    ]
