"""One death at one place, for every place and call: then everybody goes on, and all is right."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.children import PLACES
from federated.network.harness import Federation, check_answer

SWEEP = [
    (kind, place, count)
    for kind in ("server", "party", "analyst")
    for place in PLACES[kind]
    for count in range(1, 5 if kind == "server" else 4)
]
FAST = [
    ("server", "after the charge", 1),
    ("server", "after keeping", 1),
    ("server", "before the witness", 3),
    ("server", "before a commit", 2),
    ("party", "after a file", 2),
    ("party", "before the receipt", 1),
    ("analyst", "after an answer", 5),
]


def go(folder, kind, place, count):
    federation = Federation.create(
        folder, np.random.default_rng(count), route="vectors" if count % 2 else "functions",
        patience=60.0, seconds=10.0,
    )  # fmt: skip
    death = {"place": place, "count": count}
    with federation:
        if kind == "server":
            federation.kill("beta")
            federation.start("beta", **death)
        federation.contribute(*federation.trial.parties[1:])
        federation.contribute("north", **(death if kind == "party" else {}))
        federation.contribute("north")
        federation.wait(federation.analyst(**(death if kind == "analyst" else {})))
        first = federation.report("analyst")
        check_answer(federation, first, False, str(death))
        final = federation.collect()
        assert "result" in final, final
        check_answer(federation, final, False, str(death))
        if first is not None and "result" in first:
            assert final == first, "a repeated question must get the same answer"
    for server in federation.trial.servers:
        assert len(federation.charges(server)) == 1, (server, death)


@pytest.mark.parametrize(("kind", "place", "count"), FAST)
def test_after_a_death_the_result_is_right_and_paid_once(tmp_path, kind, place, count):
    go(tmp_path, kind, place, count)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place", "count"), SWEEP)
def test_after_any_death_the_result_is_right_and_paid_once(tmp_path, kind, place, count):
    go(tmp_path, kind, place, count)
