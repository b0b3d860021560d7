"""Whatever dies or is lost: the exact result or a clear error, and nothing is paid twice.

A schedule (by its seed) draws faults of the network, deaths of servers at drawn moments, deaths
of parties and of the analyst at every stage. While it lasts, results may be missing; they may
not be wrong. Afterwards the network behaves, everybody who died starts again, and then the
result must be there and must be exact: no contribution lost, none counted twice.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.children import PLACES
from federated.network.harness import CLEAR, Federation, check_answer, draw_faults

FAST, SLOW = range(12), range(12, 312)


def draw_death(rng, kind, chance):
    if rng.random() > chance:
        return {}
    place = rng.choice(sorted(PLACES[kind]))
    return {"place": place, "count": rng.randint(1, 6)}


def run_schedule(folder, seed):
    rng = random.Random(seed)
    noiseless = seed % 3 != 0
    options = {
        "route": "vectors" if seed % 2 else "functions",
        "noiseless_test": noiseless,
        "curves": ["roc"] if seed % 4 < 2 else ["ecdf"],
    }
    federation = Federation.create(folder, np.random.default_rng(seed), **options)
    with federation:
        said = draw_faults(federation, seed)
        for server in federation.trial.servers:
            death = draw_death(rng, "server", 0.5)
            if death:
                federation.kill(server)
                federation.start(server, **death)
                said += f"; {server} dies {death}"
        deaths = {name: draw_death(rng, "party", 0.5) for name in federation.trial.parties}
        said += f"; {deaths}"
        federation.wait(*(federation.party(name, **deaths[name]) for name in deaths))
        early = draw_death(rng, "analyst", 0.4)
        federation.wait(federation.analyst(**early))
        check_answer(federation, federation.report("analyst"), noiseless, said)

        assert federation.network is not None
        for line in federation.network.lines.values():
            line.clear()
        federation.be_patient()
        for name in federation.trial.parties:
            found = federation.report(name)
            assert found is None or "result" in found or found["type"] in CLEAR, (said, found)
        federation.contribute()
        for name in federation.trial.parties:
            assert "result" in (federation.report(name) or {}), (said, federation.report(name))
        final = federation.collect()
        assert "result" in final, (said, final)
        check_answer(federation, final, noiseless, said)
        again = federation.collect()
        assert again == final, said
        applied = [fault for line in federation.network.lines.values() for fault in line.applied]
    if noiseless:
        assert not any(federation.charges(server) for server in federation.trial.servers)
    else:
        for server in federation.trial.servers:
            notes = federation.charges(server)
            assert len(notes) == len(set(notes)) == 1, (said, server, notes)
    return applied


@pytest.mark.parametrize("seed", FAST)
def test_faults_leave_the_exact_result_or_a_clear_error(tmp_path, seed):
    run_schedule(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_many_faults_leave_the_exact_result_or_a_clear_error(tmp_path, seed):
    run_schedule(tmp_path, seed)
