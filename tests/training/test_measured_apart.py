"""What a model, a loss or a score keeps of records while it is measured leaves with nobody."""

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.errors import UnsoundError
from noisewise.training import Plan, select
from noisewise.training.evaluation import measure, measure_apart

LOSS = nn.CrossEntropyLoss()
KEPT = []


def data(rows=40):
    torch.manual_seed(0)
    x = torch.randn(rows, 4)
    return x, (x[:, 0] > 0).long()


class Keeps(nn.Module):
    """Keeps its input where it is measured, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.layer, self.way, self.features, self.log = nn.Linear(4, 2), way, None, []
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        if not self.training:
            if self.way == "attribute":
                self.features = x
            elif self.way == "list":
                self.log.append(x.detach() + 0)
            elif self.way == "buffer":
                self.seen.copy_(x[0])
            elif self.way == "number":
                self.log.append(x[0, 0].item())
            elif self.way == "global":
                KEPT.append(x)
            elif self.way == "global result":
                KEPT.append(x * 1)
        return self.layer(x)


def test_the_ways_to_keep_records_do_keep_them():
    x, y = data()
    for way in ("attribute", "list", "buffer", "number"):
        model = Keeps(way)
        measure(model, LOSS, x, y, {})
        assert model.features is not None or model.log or bool(model.seen.any())


@pytest.mark.parametrize("way", ["attribute", "list", "buffer", "number"])
@pytest.mark.filterwarnings("ignore")
def test_a_fitted_model_has_nothing_of_what_it_kept_while_it_was_watched(way):
    x, y = data()
    plan = Plan(epsilon=1.0, delta=1e-5, epochs=2, batch_size=10, seed=0)
    model = Keeps(way)
    fitted = nw.fit(model, (x, y), plan, loss=LOSS, validation=(x, y), progress=False)
    found = fitted.model
    assert found.features is None
    assert found.log == []
    assert not bool(found.seen.any())
    assert "train_loss" in fitted.history[-1]


@pytest.mark.parametrize("way", ["global", "global result"])
def test_what_is_kept_outside_the_model_is_refused(way):
    KEPT.clear()
    x, y = data()
    with pytest.raises(UnsoundError, match="keeps tensors"):
        measure_apart(Keeps(way), LOSS, x, y, {})
    KEPT.clear()
    found = measure_apart(Keeps("none"), LOSS, x, y, {"half": lambda output, y: 0.5})
    assert found["half"] == 0.5
    assert set(found) == {"loss", "accuracy", "half"}


# -- choice among settings --------------------------------------------------------------------

CHOICE = Plan(epsilon=3.0, delta=1e-5, steps=2, sample_rate=0.2, seed=1)


def sgd(model, rate):
    return model, torch.optim.SGD(model.parameters(), lr=rate)


def choose(build, trials=2, **options):
    settings = [0.1, 1.0]
    return select(build, data(), CHOICE, settings=settings, trials=trials, loss=LOSS, **options)


def test_a_chosen_model_keeps_nothing_of_its_score():
    chosen = choose(lambda rate: sgd(Keeps("buffer"), rate))
    assert not bool(chosen.model.seen.any())


class Running:
    """Remembers all records, as a metric with update and compute does."""

    def __init__(self):
        self.right = self.count = 0

    def __call__(self, output, y):
        self.count += 1
        self.right += int((output.argmax(1) == y).all())
        return torch.tensor(self.right / self.count)


def test_a_score_with_a_memory_scores_every_record_by_itself():
    score = Running()
    choose(lambda rate: sgd(nn.Linear(4, 2), rate), score=score)
    assert score.count == 0


def test_a_score_with_a_memory_outside_is_refused():
    calls = []

    def score(output, y):
        calls.append(1)
        return torch.tensor(1.0 / len(calls))

    with pytest.raises(UnsoundError, match="remembers records"):
        choose(lambda rate: sgd(nn.Linear(4, 2), rate), score=score)


def test_trials_that_share_a_model_are_refused():
    one = nn.Linear(4, 2)
    with pytest.raises(UnsoundError, match="inside build"):
        choose(lambda rate: sgd(one, rate))


def test_trials_that_hand_on_weights_are_refused():
    last = []

    def build(rate):
        model = nn.Linear(4, 2)
        if last:
            model.load_state_dict(last[-1].state_dict())
        last.append(model)
        return sgd(model, rate)

    with pytest.raises(UnsoundError, match="other weights"):
        choose(build, trials=12)


def test_a_score_that_fails_on_one_record_counts_nothing():
    def score(output, y):
        if bool(output.abs().max() > 0.9):
            raise RuntimeError(f"secret {output.tolist()}")
        return torch.ones(1)

    def build(rate):
        model = nn.Linear(4, 2)
        nn.init.zeros_(model.bias)
        return sgd(model, rate)

    assert choose(build, score=score).statement().epsilon <= 3.0
