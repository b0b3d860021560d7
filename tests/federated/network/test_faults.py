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
from federated.network.harness import Federation, draw_faults

FAST, SLOW = range(12), range(12, 312)

CLEAR = {"NetworkError", "UnreachableError", "RefusedError"}


def draw_death(rng, kind, chance):
    if rng.random() > chance:
        return {}
    place = rng.choice(sorted(PLACES[kind]))
    return {"place": place, "count": rng.randint(1, 6)}


def is_noise_of(federation, sums, truth):
    """Whether `sums` is the truth with noise: near it, and not it.

    All noise of both servers is zero with probability below 1e-6 (about 26 numbers, each zero
    on one server with probability at most 1/2 at these scales); a discrete Laplace number
    exceeds 40 scales with probability e^-40; sums of unmatched shares are uniform words.
    """
    planned = federation.question().planned
    scale = max(float(block.scale) for block in planned.noise)
    gap = np.abs(np.asarray(sums) - truth)
    return gap.max() < 80 * scale and gap.max() > 0


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


def check_answer(federation, found, noiseless, said):
    """A result is exact and about all parties; anything else is a clear error, or a death."""
    if found is None:
        return
    if "error" in found:
        assert found["type"] in CLEAR, (said, found)
        assert len(found["error"]) > 20, (said, found)
        return
    result = found["result"]
    truth = federation.truth()
    assert result["contributions"] == len(federation.trial.parties), said
    assert result["records"] == sum(len(part) for part in federation.data.values()), said
    if noiseless:
        assert result["sums"] == truth.tolist(), said
        assert "NOT SOUND" in result["statement"], said
        assert "epsilon 1" not in result["statement"], said
    else:
        assert is_noise_of(federation, result["sums"], truth), (said, result["sums"], truth)
        assert result["statement"]["epsilon"] <= 1.0, said


@pytest.mark.parametrize("seed", FAST)
def test_faults_leave_the_exact_result_or_a_clear_error(tmp_path, seed):
    run_schedule(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_many_faults_leave_the_exact_result_or_a_clear_error(tmp_path, seed):
    run_schedule(tmp_path, seed)
