"""A Hugging Face trainer that protects people, of whom each has several texts."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from making_trainers import plan, texts, trainer

from noisewise.gradients import Clipped
from noisewise.huggingface import PrivateTrainer
from noisewise.privacy import Ledger, verify
from noisewise.release import Units

SECRET = "Ada Lovelace"
WHOSE = [f"{SECRET} {number // 3}" for number in range(60)]


@pytest.mark.parametrize("rule", ["units", "rows"])
def test_people_are_drawn_bounded_and_stated(rule, tmp_path, capsys):
    rows = 2 if rule == "rows" else None
    chosen = plan(unit_rule=rule, unit_rows=rows, batch_size=4)
    ours = trainer(tmp_path, the_plan=chosen, units=Units(WHOSE, name="one person"))
    assert ours.resolved.records == 20
    ours.train()
    statement = ours.statement()
    assert statement.unit == "one person"
    assert statement.unit_rows == rows
    assert statement.sample_rate == pytest.approx(4 / 20)
    assert verify(statement).ok
    with Ledger.open(tmp_path / "_training.ledger") as ledger:
        assert ledger.unit == "one person"
    shown = "".join(capsys.readouterr()) + statement.to_json() + repr(ours.run)
    assert SECRET not in shown
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET.encode() in path.read_bytes() for path in written)


def test_a_whole_person_moves_a_step_by_no_more_than_the_bound(tmp_path):
    """Without noise, on all texts: one person with and without, whose three texts are one."""
    chosen = plan(unit_rule="units", batch_size=20, sampling="full", steps=1)
    ours = trainer(tmp_path, the_plan=chosen, units=WHOSE, args=dict(dataloader_num_workers=0))
    sums = []
    ours.is_in_train = True
    ours.create_optimizer()
    engine, data = ours.run._engine, texts()
    codes = torch.arange(60) // 3
    for kept in (list(range(60)), list(range(3, 60))):
        batch = ours._reading.split(ours._reading.collate([data[row] for row in kept]))
        sums.append(engine.sum(*batch, codes[kept]))
    ours.run.close()
    moved = sum(
        float((sums[0].gradients[name] - value).double().norm() ** 2)
        for name, value in sums[1].gradients.items()
    )
    assert 0.3 < moved**0.5 <= 1.0 + 1e-3  # the bound of Clipped(1.0), and not of three of them


def test_a_column_of_a_dataset_says_whose_and_is_not_learnt_from(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(
        [{**item, "person": name} for item, name in zip(texts(), WHOSE, strict=True)]
    )
    chosen = plan(unit_rule="units", batch_size=4, gradients=Clipped(1.0))
    named = trainer(tmp_path / "a", data=table, the_plan=chosen, units="person")
    named.train()
    given = trainer(tmp_path / "b", the_plan=chosen, units=WHOSE)
    given.train()
    for name, value in given.model.state_dict().items():
        assert torch.equal(value, named.model.state_dict()[name])
    with pytest.raises(ValueError, match="no column"):
        trainer(tmp_path / "c", data=table, the_plan=chosen, units="nobody")


def test_missing_and_too_few_identifiers_are_refused_before_training(tmp_path):
    for bad in ([*WHOSE[:-1], None], WHOSE[:-1]):
        with pytest.raises(ValueError, match="identifier") as caught:
            trainer(tmp_path, units=bad)
        assert SECRET not in str(caught.value)
    assert PrivateTrainer.run is None
