"""What a curve across parties shows depends on the noisy sums that the aggregator returned.

Each curve is made twice, with all parties' records changed and the aggregator's answer fixed; then
everything that can be seen is equal to the bit. Curves and aggregators are found by their names.
"""

import inspect

import numpy as np
import pytest

from common.observing import assert_same, attempt
from noisewise import federated
from noisewise.federated import (
    FunctionSharing,
    LocalAggregator,
    MaskedAggregator,
    Sums,
)

SIZES = (40, 30, 50)


def parties(seed):
    """Labels and scores of three hospitals."""
    rng = np.random.default_rng(seed)
    found = []
    for size in SIZES:
        score = rng.beta(2, 3, size) if seed % 2 else rng.choice([0.0, 0.25, 1.0], size)
        found.append((np.asarray(rng.random(size) < score, int), score))
    return found


def values(data):
    return [score for _, score in data]


CURVES = {
    "ecdf": lambda data, ask: federated.ecdf(values(data), ask, bounds=(0, 1), bins=16, **COMMON),
    "quantiles": lambda data, ask: federated.quantiles(
        values(data), [0.1, 0.5], ask, bounds=(0, 1), bins=16, **COMMON
    ),
    "roc": lambda data, ask: federated.roc(data, ask, bins=16, **COMMON),
    "histogram": lambda data, ask: federated.histogram(
        values(data), ask, bins=8, range=(0.0, 1.0), **COMMON
    ),
    "hosmer_lemeshow": lambda data, ask: federated.hosmer_lemeshow(
        data, ask, bins=16, draws=50, **COMMON
    ),
}
COMMON = {"epsilon": 1.0, "relation": "replace-one", "seed": 5}
AGGREGATORS = {
    "LocalAggregator": LocalAggregator,
    "MaskedAggregator": MaskedAggregator,
    "FunctionSharing": FunctionSharing,
}
#: Sends the same vectors as the masks through Flower, which is not installed everywhere.
ELSEWHERE = {"FlowerAggregator"}


def test_every_curve_and_every_aggregator_has_a_case():
    public = {name: getattr(federated, name) for name in federated.__all__}
    functions = {name for name, value in public.items() if inspect.isfunction(value)}
    assert functions == {*CURVES, "question_from_dict", "without_noise"}
    asked = {
        name
        for name, value in public.items()
        if inspect.isclass(value) and callable(getattr(value, "ask", None)) and name != "Aggregator"
    }
    assert asked == {*AGGREGATORS} | ELSEWHERE


class Fixed:
    """Keeps what an aggregator answered, or answers it again."""

    def __init__(self, kind, patch):
        self.answers, self.replaying, self.place, self.different = [], False, 0, 0
        ask = kind.ask

        def asked(aggregator, question, records, rng):
            found = ask(aggregator, question, records, rng)
            assert isinstance(found, Sums)
            if not self.replaying:
                self.answers.append(found)
                return found
            kept = self.answers[self.place]
            self.place += 1
            self.different += repr(kept) != repr(found)
            return kept

        patch.setattr(kind, "ask", asked)

    def replay(self):
        self.replaying, self.place = True, 0


@pytest.mark.parametrize("aggregator", sorted(AGGREGATORS))
@pytest.mark.parametrize("name", sorted(CURVES))
def test_with_the_answer_fixed_all_records_of_all_parties_may_change(name, aggregator, monkeypatch):
    kind = AGGREGATORS[aggregator]
    fixed = Fixed(kind, monkeypatch)
    first = attempt(lambda: CURVES[name](parties(0), kind()))
    assert fixed.answers, first
    for seed in (1, 2, 3):
        fixed.replay()
        again = attempt(lambda s=seed: CURVES[name](parties(s), kind()))
        assert_same(first, again, f"{name}, {aggregator}")
    assert fixed.different, "other records gave the same sums: the test shows nothing"


def test_a_leak_of_one_record_is_noticed(monkeypatch):
    """The check can fail: a curve that remembers the largest record."""
    fixed = Fixed(LocalAggregator, monkeypatch)

    def leaky(data):
        curve = CURVES["ecdf"](data, LocalAggregator())
        object.__setattr__(curve, "smoothing", f"up to {max(map(np.max, values(data)))!r}")
        return curve

    first = attempt(lambda: leaky(parties(0)))
    fixed.replay()
    with pytest.raises(AssertionError):
        assert_same(first, attempt(lambda: leaky(parties(1))), "leaky")
