"""Programs written without knowledge of the rules: who mixes is refused, who does not is proven.

A part of them runs with every test run, all with the slow tests, where values also show that the
programs are what they are said to be.
"""

import pytest
import torch

import noisewise as nw
from separation.brute_force import how_it_mixes, is_apart, keeps_sums_apart
from separation.program import RECORDS
from separation.programs import INNOCENT, MIXING

proves = pytest.mark.skipif(not hasattr(nw, "prove_apart"), reason="this version proves nothing")
quiet = pytest.mark.filterwarnings("ignore")


def each(table, every):
    """One of so many at once, and all of them among the slow tests."""
    names = list(table)
    quick = [pytest.param(name, id=name) for name in names[::every]]
    slow = pytest.mark.slow
    return quick + [pytest.param(name, id=f"all: {name}", marks=slow) for name in names]


def proof_of(program):
    model, loss, x, y = program.case()
    return nw.prove_apart(model, loss, x, y)


SURE = {name: program for name, program in INNOCENT.items() if not program.hard}
HARD = {name: program for name, program in INNOCENT.items() if program.hard}
ARMED = {name: program for name, program in MIXING.items() if not program.disarmed}
DISARMED = {name: program for name, program in MIXING.items() if program.disarmed}
SHOWN = {name: program for name, program in MIXING.items() if program.by_values}


@proves
@quiet
@pytest.mark.parametrize("name", each(ARMED, 4))
def test_a_program_that_mixes_records_is_refused(name):
    proof = proof_of(MIXING[name])
    assert not proof.proven, MIXING[name].what
    assert str(proof).strip()


@proves
@quiet
@pytest.mark.parametrize("name", list(DISARMED))
def test_what_the_engine_disarms_is_refused_or_keeps_records_apart_in_its_sums(name):
    if not proof_of(DISARMED[name]).proven:
        return

    def bounded(model, loss, x, y):
        return nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0), chunk=RECORDS)

    assert keeps_sums_apart(DISARMED[name], bounded)


@proves
@quiet
@pytest.mark.parametrize("name", ["counter of steps", "average of weights"])
def test_state_does_not_tell_how_many_chunks_a_batch_had(name):
    """Whether a batch needs one chunk or two depends on how many records were drawn."""
    left = []
    for count in (RECORDS, RECORDS // 2):
        model, loss, x, y = INNOCENT[name].case()
        try:
            nw.bounded_sum(model, loss, x[:count], y[:count], nw.Clipped(1.0), chunk=RECORDS // 2)
        except nw.NoisewiseError:
            return
        left.append({key: value.clone() for key, value in model.named_buffers()})
    assert all(torch.equal(left[0][key], left[1][key]) for key in left[0])


@proves
@quiet
@pytest.mark.parametrize("name", each(SURE, 4))
def test_a_program_that_keeps_records_apart_is_proven(name):
    proof = proof_of(SURE[name])
    assert proof.proven, str(proof)


@proves
@quiet
@pytest.mark.parametrize("name", each(HARD, 3))
def test_what_is_hard_to_see_is_proven_or_refused_in_words(name):
    proof = proof_of(HARD[name])
    assert proof.proven or "programs_" in str(proof)


@pytest.mark.parametrize("name", each(SHOWN, 12))
def test_values_show_that_it_mixes(name):
    assert how_it_mixes(SHOWN[name]) != ""


@quiet
@pytest.mark.parametrize("name", each(INNOCENT, 16))
def test_values_show_that_it_keeps_records_apart(name):
    is_apart(INNOCENT[name])


def test_there_are_enough_of_them():
    assert len(MIXING) >= 60
    assert len(SURE) >= 40
    assert all(
        isinstance(program.case()[0], torch.nn.Module) for program in list(SURE.values())[:3]
    )
