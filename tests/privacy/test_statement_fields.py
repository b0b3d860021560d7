"""Every field of every kind of statement: emptied, deleted, doubled, of other types, at odds.

Nothing here lists fields. They are read off statements of all kinds of releases, and each of them,
at any depth, is changed in every way that `changes` knows, by a forger who computes the digest.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from noisewise.errors import StatementError
from noisewise.privacy import (
    ADD_REMOVE,
    REPLACE_ONE,
    PoissonGaussian,
    PoissonRows,
    Pure,
    Statement,
    verify,
)
from noisewise.privacy.accounting import epsilon_of
from noisewise.privacy.events import EVENTS
from noisewise.privacy.statement import digest

#: What no reader can hold against the other fields: any words may stand there.
FREE = {"mechanism", "randomness", "assumptions", "versions"}
#: Stands for a field that is gone.
GONE = object()


def made() -> Iterator[Statement]:
    """One statement for every kind of release, of several, of nothing, and both relations."""
    texts = {"delta": 1e-5, "mechanism": "a mechanism", "assumptions": ["ranges are public"]}
    for number, kind in enumerate(sorted(EVENTS)):
        event = EVENTS[kind].examples()[0]
        rows = any(getattr(part, "rows", None) for part in event.parts)
        unit = "one patient" if rows else "one record"
        accountant = "rdp" if kind == "zero-concentrated" else "pld"
        relation = ADD_REMOVE if event.secret_rates or number % 2 else REPLACE_ONE
        yield Statement.derive(event, unit=unit, accountant=accountant, relation=relation, **texts)
    yield Statement.derive([Pure(0.1, 3), Pure(0.2)], **texts)
    yield Statement.derive([], **texts)
    yield Statement.derive(PoissonRows(2.0, 0.01, 3, 10), unit="one patient", **texts)
    yield Statement.derive(PoissonGaussian(2.0, 0.01, 10), accountant="rdp", **texts)


STATEMENTS = {}


def statements() -> dict[str, Statement]:
    if not STATEMENTS:
        STATEMENTS.update({f"{n}": statement for n, statement in enumerate(made())})
    return STATEMENTS


def places(value, above=()):
    """Every field and every part of one, by the way that leads to it."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*above, key)
            yield from places(value[key], (*above, key))


def at(value, way):
    for key in way:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return GONE
    return value


def changed(fields, way, new):
    """The same fields with another value, or none, in one place."""
    fields = json.loads(json.dumps(fields))
    inside = at(fields, way[:-1])
    if new is GONE:
        del inside[way[-1]]
    else:
        inside[way[-1]] = new
    return fields


def plainly_wrong(value):
    """Emptied, and of another type: whatever the field means, this is refused."""
    yield from ("", " ", "\u200b", [], {}, None, [value], {"value": value}, [[]], {"": ""})
    yield from (
        10**400,
        -1,
        float(2**60) if isinstance(value, str) else "x" * isinstance(value, float),
    )
    if isinstance(value, (bool, int, float)):
        yield from (str(value), repr([value]), True, False)
    if isinstance(value, (str, list, dict)):
        yield from (0, 1, 1.5, True, False)
    if isinstance(value, list):
        yield from (dict(enumerate(map(str, value))), json.dumps(value))
    if isinstance(value, dict):
        yield from (list(value), json.dumps(value), {**value, "more": 1})


def contradicting(value, way, others):
    """Doubled, changed a little, and what another statement says there."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (2 * value, value / 2, value + 1, -value, 0, float(value), 1e-300, 1e300)
    if isinstance(value, str):
        yield from (value + value, value[:-1], value[1:], value.upper(), f"{value}; {value}")
    if isinstance(value, list):
        yield from ([*value, *value], value[::-1], value[:-1], value[1:], [*value, *value[:1]])
    for other in others:
        found = at(other, way)
        if found is not GONE:
            yield found


def sealed(fields):
    content = {name: value for name, value in fields.items() if name != "digest"}
    try:
        return json.dumps({**content, "digest": digest(content)})
    except ValueError:  # no digest can be computed of it
        return json.dumps(fields)


def read(text):
    """What a text is read as; None if it is refused, by an error that says why in a line or two."""
    try:
        return Statement.from_json(text)
    except StatementError as error:
        said = str(error)
        assert 10 < len(said) < 600
        assert "Traceback" not in said
        return None


def same(one, other):
    """Equal to the type of every number."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def derived(statement):
    """The epsilon that its other fields make, without `verify`."""
    return epsilon_of(
        statement.history,
        delta=statement.delta,
        relation=statement.relation,
        accountant=statement.accountant,
    )


def holds(statement):
    try:
        return verify(statement).ok
    except StatementError:
        return False


def shape(way):
    """The same for a field wherever it is: every release has a count."""
    return tuple("#" if isinstance(key, int) else key for key in way)


def cases(whole):
    """Fields of all statements; each kind of field once, unless the whole is wanted."""
    seen = set()
    for name, statement in statements().items():
        fields = statement.to_dict()
        for way in places(fields):
            key = (*shape(way), at(fields, (*way[:2], "kind")) if way[0] == "history" else "")
            if whole or key not in seen:
                seen.add(key)
                yield name, fields, way


#: A guarantee may be another one that is as true; nothing else may be changed at all.
NUMBERS = {"epsilon", "delta", "accountant", "history"}
QUICK_OR_WHOLE = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("whole", QUICK_OR_WHOLE)
def test_a_field_that_is_gone_or_empty_or_of_another_type_is_refused(whole):
    for name, fields, way in cases(whole):
        value = at(fields, way)
        for new in (GONE, *plainly_wrong(value)):
            if new is not GONE and same(new, value):
                continue
            forged = changed(fields, way, new)
            assert read(json.dumps(forged)) is None, (name, way, new)
            if way[0] == "digest":
                continue
            found = read(sealed(forged))
            if found is None:
                continue
            # An item that is left out of a list that may have more or fewer of them.
            assert new is GONE, (name, way, new)
            assert shape(way) in {("assumptions", "#"), ("history", "#", "trials", "#")}
            assert found.premises == statements()[name].premises
            assert abs(derived(found) - found.epsilon) <= 1e-4 * found.epsilon


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("whole", QUICK_OR_WHOLE)
def test_a_field_that_contradicts_others_is_refused_or_found_wrong(whole):
    for name, fields, way in cases(whole):
        honest, value = statements()[name], at(fields, way)
        others = [other.to_dict() for key, other in statements().items() if key != name]
        for new in contradicting(value, way, others):
            if way[0] == "digest" or new == value:
                continue
            forged = changed(fields, way, new)
            assert read(json.dumps(forged)) is None, (way, new)  # without the right digest
            found = read(sealed(forged))
            if found is None:
                continue
            if way[0] in FREE:
                assert replace(found, **{way[0]: getattr(honest, way[0])}) == honest, (way, new)
                assert found.premises == honest.premises
            elif holds(found):
                assert way[0] in NUMBERS, (name, way, new)
                assert derived(found) <= found.epsilon * (1 + 1e-4) + 1e-8, (name, way, new)


@pytest.mark.parametrize("whole", QUICK_OR_WHOLE)
def test_a_field_that_is_said_twice_is_refused(whole):
    for _, fields, way in cases(whole):
        text = json.dumps(fields)
        if isinstance(way[-1], str):
            value = at(fields, way)
            member = f"{json.dumps(way[-1])}: {json.dumps(value)}"
            assert member in text
            for twice in (f"{member}, {member}", f"{json.dumps(way[-1])}: 0, {member}"):
                assert read(text.replace(member, twice)) is None, way


def test_every_kind_of_release_is_among_them():
    found = {event.kind for statement in statements().values() for event in statement.history}
    assert found >= set(EVENTS)
    assert all(verify(statement).ok for statement in statements().values())
