"""Several processes take the steps of one: one Poisson batch, noise, ledger and statement."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dividing_records import CASES
from dividing_units import WRONG, full, owners, trained
from making_runs import plan, same, small_model, start, table, weights

from noisewise.privacy import Ledger
from noisewise.training import Distributed, StepError

PROGRAM = Path(__file__).with_name("distributed_program.py")
STEPS = 12

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


def torchrun(scenario, folder, workers=2, restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={workers}", f"--max-restarts={restarts}"]
    return subprocess.run(
        [*command, str(PROGRAM), scenario, str(folder)], capture_output=True, text=True, timeout=300
    )


def results(scenario, folder, workers=2):
    return [
        torch.load(folder / f"{scenario}-{worker}.pt", weights_only=False)
        for worker in range(workers)
    ]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def team(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("team")
    done = torchrun("all", folder, request.param)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, results("all", folder, request.param)


def alone(the_plan, data=None):
    model = small_model()
    run = start(model, torch.optim.Adam(model.parameters(), lr=0.05), the_plan=the_plan, data=data)
    for x, y in run.loader:
        run.step(x, y)
    return model, run.statement()


def close(first, second):
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=2e-4)


FULL = dict(sampling="full", batch_size=None, steps=STEPS)


def test_workers_end_with_the_same_weights_which_are_those_of_one_process(team):
    folder, (first, *others) = team
    for other in others:
        assert same(first["replicated"]["weights"], other["replicated"]["weights"])
        assert first["replicated"]["statement"] == other["replicated"]["statement"]
    model, statement = alone(plan(**FULL))
    close(first["replicated"]["weights"], weights(model))
    assert json.loads(first["replicated"]["statement"])["epsilon"] == statement.epsilon
    with Ledger.open(folder / "replicated.ledger") as ledger:
        assert sum(event.count for event in ledger.history) == STEPS


def test_a_loop_by_hand_is_the_same_and_a_worker_may_have_few_records(team):
    _, (first, *others) = team
    model, _ = alone(plan(**FULL), data=table(3))
    assert all(same(first["by_hand"]["weights"], other["by_hand"]["weights"]) for other in others)
    close(first["by_hand"]["weights"], weights(model))


def test_sharded_weights_train_alike_resume_and_stay_sharded(team):
    _, (first, *others) = team
    model, _ = alone(plan(**FULL))
    rows = 6 // (1 + len(others))
    for found in (result["sharded"] for result in (first, *others)):
        close(found["weights"], weights(model))
        assert found["local"]["0.weight"] == (rows, 5)
        assert found["moments"] == rows
        assert found["in parts after a loop"]
        assert same(first["sharded"]["weights"], found["weights"])


def test_parallel_layers_train_like_one_process_resume_and_stay_in_parts(team):
    # Seeded noise: noise once for every part, or a record's norm of its parts alone, would give
    # other weights.
    _, (first, *others) = team
    model, _ = alone(plan(**FULL))
    part = 6 // (1 + len(others))
    for found in (result["parallel"] for result in (first, *others)):
        close(found["weights"], weights(model))
        assert same(first["parallel"]["weights"], found["weights"])
        assert found["in parts"]
        assert found["local"] == {"0.weight": (part, 5), "2.weight": (2, part)}
        assert found["moments"] == found["gradients"] == (part, 5)
        before, after = found["hooks"]
        assert before == after
        torch.testing.assert_close(*found["forward"])


@pytest.mark.slow
def test_four_processes_hold_uneven_parts_and_train_like_one(tmp_path):
    done = torchrun("parallel", tmp_path, 4)
    assert done.returncode == 0, done.stderr[-4000:]
    model, _ = alone(plan(**FULL))
    for found in (result["parallel"] for result in results("parallel", tmp_path, 4)):
        close(found["weights"], weights(model))
        assert found["in parts"]


def test_the_noise_does_not_depend_on_the_number_of_workers(team):
    # 300 gradients of 50 entries: chi-square with 15,000 degrees, 5 deviations have probability
    # 6e-7. Noise once per worker would double the variance.
    _, (first, *others) = team
    expected = (2.0 * 1.001) ** 2
    count = first["noise"]["count"]
    assert first["noise"]["squares"] / count == pytest.approx(
        expected, rel=5 * math.sqrt(2 / count)
    )
    assert all(torch.equal(first["noise"]["last"], other["noise"]["last"]) for other in others)


def test_the_union_of_the_workers_batches_is_a_poisson_batch(team):
    # 60 steps x 1,000 records at rate 0.05: 3,000 expected, deviation 53; 5.2 of them.
    _, found = team
    for key in ("drawn", "shard drawn"):
        steps = zip(*(result["sampling"][key] for result in found), strict=True)
        total = 0
        for parts in steps:
            together = [index for part in parts for index in part]
            assert len(set(together)) == len(together)
            total += len(together)
        assert abs(total - 3000) < 280
        assert found[0]["sampling"][key] != found[1]["sampling"][key]
    assert all(result["sampling"]["shard rate"] == 0.05 for result in found)
    assert {i % len(found) for batch in found[0]["sampling"]["drawn"] for i in batch} == {0}


def test_all_workers_stop_at_the_budget(team):
    folder, (first, *others) = team
    assert first["budget"]["taken"] == first["budget"]["charged"] >= 3
    for other in others:
        assert first["budget"]["taken"] == other["budget"]["taken"]
        assert same(first["budget"]["weights"], other["budget"]["weights"])
    with Ledger.open(folder / "budget.ledger") as ledger:
        assert sum(event.count for event in ledger.history) == first["budget"]["taken"]
        assert ledger.spent() <= 1.0


@pytest.mark.parametrize("worker", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_killing_a_worker_loses_no_charge(tmp_path, team, worker):
    workers = len(team[1])
    (tmp_path / "victim").write_text(f"{worker} 7")
    assert torchrun("mortal", tmp_path, workers).returncode != 0
    with Ledger.open(tmp_path / "run.safetensors.ledger") as ledger:
        charged = sum(event.count for event in ledger.history)
    assert 7 <= charged < STEPS
    (tmp_path / "victim").unlink()
    done = torchrun("mortal", tmp_path, workers)
    assert done.returncode == 0, done.stderr[-4000:]
    with Ledger.open(tmp_path / "run.safetensors.ledger") as ledger:
        assert sum(event.count for event in ledger.history) == STEPS
    for one, other in zip(team[1], results("mortal", tmp_path, workers), strict=True):
        assert one["undisturbed"]["statement"] == other["mortal"]["statement"]
        assert same(one["undisturbed"]["weights"], other["mortal"]["weights"])


def test_a_diverted_run_repeats_no_noise_in_another_release_and_pays_for_each(team):
    folder, (first, *others) = team
    released = first["diverted"]["released"]
    assert len({step for step, _ in released}) == len(set(released))
    with Ledger.open(folder / "diverted.ledger") as ledger:
        digests = [charge.digest for charge in ledger.charges]
    assert len(digests) == STEPS
    assert {digest for _, digest in released} <= set(digests)
    assert len(released) == STEPS + 1  # one step of those behind the checkpoint is the same
    for other in others:
        assert same(first["diverted"]["weights"], other["diverted"]["weights"])
        assert other["diverted"]["next"] == STEPS


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    done = torchrun("division", folder, 4)
    assert done.returncode == 0, done.stderr[-4000:]
    return results("division", folder, 4)


def check_division(found):
    first = found[0]["division"]
    for name, (expected, _) in CASES.items():
        for worker, result in enumerate(found):
            said = result["division"][name]
            assert said["refused"] == bool(expected), (name, worker, said)
            assert not expected or expected in said["message"], (name, worker, said)
            assert "Alice" not in said["message"]
            assert not said["charged"]
    assert all(result["division"].keys() == first.keys() for result in found)


def test_every_division_of_records_is_judged_alike_by_all_workers(team):
    check_division(team[1])


@pytest.mark.slow
def test_every_division_of_records_is_judged_alike_by_four_workers(four):
    check_division(four)


@pytest.mark.slow
def test_the_statement_says_how_records_were_divided(four):
    for result in (worker["division"] for worker in four):
        assert not any("divided" in line or "identifiers" in line for line in said(result, "equal"))
        assert any("no two of them held equal rows" in line for line in said(result, "parts"))
        assert any("identifiers" in line for line in said(result, "augmented, identified"))
        assert any("drawn by two of the 4" in line for line in said(result, "no data"))


def said(result, name):
    return result[name]["assumptions"]


# -------------------------------------------------------------------------------------- units


def test_units_are_divided_among_workers_and_train_like_one_process(team):
    _, (first, *others) = team
    names, (x, y) = owners(), table(240)
    alone = trained(full(), names, (x, y))
    for way in ("whole", "parts"):
        found = first["units"][way]
        assert all(same(found["weights"], other["units"][way]["weights"]) for other in others)
        close(found["weights"], alone["weights"])
        assert json.loads(found["statement"])["epsilon"] == pytest.approx(
            json.loads(alone["statement"])["epsilon"]
        )
        assert "Alice" not in found["statement"]
    assert (
        "no two of them held rows with the same identifier" in first["units"]["parts"]["statement"]
    )


def test_every_unit_is_one_workers_to_draw_with_all_its_rows(team):
    _, found = team
    names, (x, _) = owners(), table(240)
    whose = dict(zip(x[:, 0].tolist(), names, strict=True))
    sizes = {name: names.count(name) for name in names}
    for way in ("drawn whole", "drawn parts", "drawn rows"):
        seen = [
            {whose[row] for step in worker["units"][way]["drawn"] for row in step}
            for worker in found
        ]
        assert all(not one & other for i, one in enumerate(seen) for other in seen[:i])
        # Each of 60 units, in none of 40 steps with probability 0.7^40.
        if way != "drawn rows":
            assert set().union(*seen) == set(names)
    for way in ("drawn whole", "drawn parts"):
        for worker in found:
            for step in worker["units"][way]["drawn"]:
                drawn = [whose[row] for row in step]
                assert all(drawn.count(name) == sizes[name] for name in drawn)
    rows = [
        {row for step in worker["units"]["drawn rows"]["drawn"] for row in step} for worker in found
    ]
    kept = [whose[row] for worker in rows for row in worker]
    assert max(kept.count(name) for name in kept) <= 2


def test_units_that_are_not_one_workers_are_refused_by_all_before_anything_is_charged(team):
    for worker in team[1]:
        for name, (expected, _) in WRONG.items():
            said, charged = worker["units"]["refused"][name]
            assert said is not None, name
            assert expected in said, (name, said)
            assert "Alice" not in said
            assert not charged


def test_a_team_needs_a_process_group():
    with pytest.raises(StepError, match="init_process_group"):
        Distributed()
