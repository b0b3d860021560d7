"""What training shows depends on its noisy sums and on what is public, and on nothing else.

A run is made twice. The first time the answers of the one place in which exact sums of gradients
and noise meet (:class:`noisewise.release.tensors.TensorNoise`, and `release.noise.add` for numbers)
are kept; the second time all records are others, bad ones among them, and that place gives the same
answers. Then weights, optimizer, history, statement, attributes, what was printed, logged and
warned, the exception if there is one, and files must be equal to the bit. Entry points are found by
their names, gradient rules in their registry: a new one without a case fails.
"""

import logging
import math
import re
import warnings

import numpy as np
import pytest
import torch
from making_runs import plan
from torch import nn
from torch.utils.data import TensorDataset

import noisewise as nw
from common.observing import assert_same
from noisewise import estimators, training
from noisewise.estimators import fits
from noisewise.gradients import GRADIENT_RULES, rule_named
from noisewise.gradients.registry import rule_words
from noisewise.nn import BoundedInput, SpectralLinear
from noisewise.release import noise as noising
from noisewise.release.tensors import TensorNoise

RECORDS, FEATURES = 120, 5
#: No number of the library or of a plan; looked for in everything that is shown.
MARK, LABEL = 123456.789, 987123
MARKED = re.compile("12345[67]|987123")


def records(kind):
    """Ordinary records, or others, all of them; `bad` has every kind of record that broke a run."""
    generator = torch.Generator().manual_seed(int(kind != "ordinary"))
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    y = torch.randint(2, (RECORDS,), generator=generator)
    if kind == "marked":
        x[7], y[7] = MARK, 1
        x[::9] *= 3
    elif kind == "bad":
        for place, value in enumerate((math.nan, math.inf, -math.inf, 1e38, -3e38, 1e-42, MARK)):
            x[3 * place] = value
        x[50, 2], x[51, 0] = math.nan, math.inf
        y[60], y[61] = LABEL, -LABEL
    return x, y


class Fixed:
    """Keeps noisy answers, or gives them again whatever the exact sums are."""

    def __init__(self, patch):
        self.answers, self.replaying, self.different, self.place = [], False, 0, 0
        applied = TensorNoise.applied
        patch.setattr(
            TensorNoise, "applied", lambda noise, *given: self.answer(applied(noise, *given))
        )
        patch.setattr(noising, "add", lambda exact, drawn: self.answer(exact + drawn))

    def replay(self):
        self.replaying, self.place = True, 0

    def answer(self, found):
        if not self.replaying:
            self.answers.append(found)
            return self.copied(found)
        kept = self.answers[self.place]
        self.place += 1
        if isinstance(kept, dict):
            assert {n: (t.shape, t.dtype) for n, t in kept.items()} == {
                n: (t.shape, t.dtype) for n, t in found.items()
            }, "the shape or type of a sum depends on records"
            self.different += any(not torch.equal(kept[n], found[n]) for n in kept)
        else:
            self.different += int(np.any(np.asarray(kept != found)))
        return self.copied(kept)

    @staticmethod
    def copied(value):
        if isinstance(value, dict):
            return {name: tensor.clone() for name, tensor in value.items()}
        return value.copy() if isinstance(value, np.ndarray) else value


# ---------------------------------------------------------------------------- what can be seen


def bits(value):
    """A value in a form that is equal only if all bits are; None for what has no own value."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, (np.ndarray, np.generic)):
        return str(np.asarray(value).dtype), np.asarray(value).tobytes()
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value if isinstance(value, (str, bytes, int, bool)) else None


def parts(value):
    """Every public attribute with a value of its own."""
    found = {}
    for name in dir(value):
        if not name.startswith("_") and not callable(getattr(type(value), name, None)):
            found[name] = bits(getattr(value, name))
    return found


def seen_of(run, model):
    statement = run.statement()
    return {
        "weights": bits(model.state_dict()),
        "statement": statement.to_json(),
        "card": statement.card(),
        "said": [str(statement), repr(statement), repr(run), str(run)]
        if "0x" not in repr(run)
        else [str(statement), repr(statement)],
        "attributes": parts(run),
        "epsilon": run.epsilon().hex() if hasattr(run, "epsilon") else None,
    }


# -------------------------------------------------------------------------------- entry points


def model_for(gradients):
    torch.manual_seed(0)
    if GRADIENT_RULES.get(type(gradients).__name__, None) and "Lipschitz" in (
        GRADIENT_RULES[type(gradients).__name__].needs
    ):
        layers = [BoundedInput((FEATURES,), 1.0), SpectralLinear(FEATURES, 6), nn.ReLU()]
        return nn.Sequential(*layers, SpectralLinear(6, 2))
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 2))


def prepared(gradients, data, **options):
    model = model_for(gradients)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    planned = plan(gradients=gradients, steps=3, batch_size=40)
    run = training.make_private(model, optimizer, nn.CrossEntropyLoss(), data, planned, **options)
    return run, model, optimizer


def by_step(gradients, kind, folder):
    run, model, optimizer = prepared(gradients, records(kind), ledger=folder / "ledger")
    for batch in run.loader:
        run.step(*batch)
    run.save(folder / "kept.pt")
    kept = torch.load(folder / "kept.pt", weights_only=False)
    return seen_of(run, model), bits(optimizer.state_dict()), bits(kept)


def by_hand(gradients, kind, folder):
    run, model, _ = prepared(gradients, TensorDataset(*records(kind)), ledger=folder / "ledger")
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.loss(run.model(x), y).backward()
        run.optimizer.step()
    return seen_of(run, model)


def by_fit(gradients, kind, folder):
    heard = []

    class Listener(training.Callback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                return lambda *given, **named: heard.append((name, len(given), sorted(named)))
            return super().__getattribute__(name)

    fitted = training.fit(
        model_for(gradients),
        records(kind),
        plan(gradients=gradients, steps=3, batch_size=40),
        loss=nn.CrossEntropyLoss(),
        metrics=False,
        progress=False,
        callbacks=[Listener()],
        checkpoint=folder / "kept.pt",
    )
    history = [{k: v for k, v in epoch.items() if "second" not in k} for epoch in fitted.history]
    assert heard
    return seen_of(fitted.run, fitted.model), heard, bits(history), fitted.stopped


def by_units(gradients, kind, folder):
    units = [number // 3 for number in range(RECORDS)]
    run, model, _ = prepared(gradients, records(kind), units=units)
    for batch in run.loader:
        run.step(*batch)
    return seen_of(run, model)


def by_views(gradients, kind, folder):
    def turned(x):
        return torch.where(torch.rand(len(x), 1) < 0.5, x, -x)

    run, model, _ = prepared(gradients, records(kind), views=2, augmentation=turned)
    for batch in run.loader:
        run.step(*batch)
    return seen_of(run, model)


ENTRIES = {
    "make_private": [by_step, by_hand, by_units, by_views],
    "fit": [by_fit],
}


def by_selection(kind):
    def build(rate):
        torch.manual_seed(0)
        model = nn.Linear(FEATURES, 2)
        return model, torch.optim.SGD(model.parameters(), rate)

    chosen = training.select(
        build,
        records(kind),
        training.Plan(epsilon=4.0, delta=1e-5, steps=2, sample_rate=0.3, seed=3),
        settings=[0.1, 1.0],
        loss=nn.CrossEntropyLoss(),
        trials=2,
    )
    return bits(chosen.model.state_dict()), chosen.setting, chosen.statement().to_json()


def by_table(kind_of_estimator):
    def run(kind):
        fits._fits = 0  # their number is public, and told
        x, y = (part.numpy() for part in records(kind))
        options = {} if kind_of_estimator is estimators.PrivateRegressor else {"classes": [0, 1]}
        model = kind_of_estimator(
            epsilon=2.0, steps=2, random_state=0, hidden_layer_sizes=(), preflight=False, **options
        )
        if not options:
            model.set_params(target_range=(0.0, 1.0))
        model.fit(x, y)
        found = {n: bits(v) for n, v in vars(model).items() if n.endswith("_")}
        return found, model.statement_.to_json(), repr(model), bits(model.predict(np.eye(5)))

    return run


#: Entry points that choose their gradients themselves, or have their own cases of them.
OTHERS = {
    "select": by_selection,
    "PrivateClassifier": by_table(estimators.PrivateClassifier),
    "PrivateRegressor": by_table(estimators.PrivateRegressor),
}
#: Public names that train nothing: results, settings, errors, parts of a run.
NO_TRAINING = {
    "Averaging", "Callback", "Candidate", "CheckpointError", "Distributed", "EarlyStopping", "Ema",
    "Fitted", "Plan", "Polyak", "PrivateLoader", "PrivateRun", "ProgressBar", "ResolvedPlan",
    "Selected", "SeveralOptimizers", "Solo", "StepError", "Streamed", "Team", "TensorBoard",
    "TrialNumber", "default_delta", "deviations",
    "Tuning", "load_estimator", "save_estimator",
}  # fmt: skip

GRADIENTS = [
    *(rule_named(word) for word in sorted(rule_words())),
    nw.Clipped(1.0, per="parameter", rule="normalise"),
    nw.PerLayer({"0": nw.Factored(0.5), "": nw.Clipped(1.0, rule="global")}),
    nw.Schedule([(0.0, nw.Clipped(1.0)), (0.5, nw.Clipped(1.0, rule="automatic"))]),
]


def test_every_public_name_that_trains_has_a_case():
    assert {*training.__all__, *estimators.__all__} == {*ENTRIES, *OTHERS} | NO_TRAINING
    tried = {type(gradients).__name__ for gradients in GRADIENTS}
    sound = {name for name, about in GRADIENT_RULES.items() if about.kind.sound}
    assert tried == sound | {"PerLayer", "Schedule"}


# --------------------------------------------------------------------------------- the comparison


def attempted(action, caplog, capfd):
    """What an action returns or raises, warns, logs and prints."""
    caplog.clear()
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            seen = action()
        except AssertionError:
            raise
        except Exception as error:
            seen = ("raised", type(error).__name__, str(error))
    warned = [(item.category.__name__, str(item.message)) for item in caught]
    return seen, warned, [r.getMessage() for r in caplog.records], list(capfd.readouterr())


def compared(action, kinds, monkeypatch, caplog, capfd, tmp_path):
    fixed, seen = Fixed(monkeypatch), {}
    for kind in ("ordinary", *kinds):
        folder = tmp_path / kind
        folder.mkdir()
        torch.manual_seed(0)
        seen[kind] = attempted(lambda k=kind, f=folder: action(k, f), caplog, capfd)
        fixed.replay()
        assert not MARKED.search(str(seen[kind])), kind
    assert fixed.answers, seen
    assert fixed.different, "other records gave the same sums: the test shows nothing"
    for kind in kinds:
        assert_same(seen["ordinary"], seen[kind], kind)


CASES = [
    pytest.param(entry, gradients, id=f"{entry.__name__}-{type(gradients).__name__}-{number}")
    for entries in ENTRIES.values()
    for entry in entries
    for number, gradients in enumerate(GRADIENTS)
    # Every way for one rule, every rule for one way.
    if entry is by_step or isinstance(gradients, (nw.InputScaled, nw.Factored))
]


@pytest.mark.parametrize(("entry", "gradients"), CASES)
def test_with_the_noisy_sums_fixed_all_records_may_change(
    entry, gradients, monkeypatch, caplog, capfd, tmp_path
):
    def action(kind, folder):
        return entry(gradients, kind, folder)

    compared(action, ("marked", "bad"), monkeypatch, caplog, capfd, tmp_path)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_same_for_those_that_choose_by_themselves(name, monkeypatch, caplog, capfd, tmp_path):
    compared(lambda kind, _: OTHERS[name](kind), ("marked",), monkeypatch, caplog, capfd, tmp_path)


@pytest.mark.parametrize("name", ["PrivateClassifier", "PrivateRegressor"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_table_that_is_refused_shows_nothing_of_the_record(name, bad, monkeypatch):
    """Whole tables are looked at before anything is spent: SECURITY.md, out of scope."""
    said = []
    for place in (0, 57):
        x, y = records("marked")
        x[place, place % 5] = bad
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "records", lambda kind, x=x, y=y: (x, y))
            with pytest.raises(ValueError, match="public") as caught:
                OTHERS[name]("marked")
        said.append(f"{type(caught.value).__name__}: {caught.value}")
        assert not MARKED.search(said[-1])
    assert said[0] == said[1]


def test_a_leak_of_one_record_is_noticed(monkeypatch, caplog, capfd, tmp_path):
    """The check can fail: a run that remembers the largest number that it saw."""
    summed = nw.gradients.GradientEngine.sum

    def talkative(self, x, y, *rest):
        if bool((x > 100).any()):
            warnings.warn("large numbers", stacklevel=2)
        return summed(self, x, y, *rest)

    monkeypatch.setattr(nw.gradients.GradientEngine, "sum", talkative)
    with pytest.raises(AssertionError):
        compared(
            lambda kind, folder: by_step(nw.Clipped(1.0), kind, folder),
            ("marked",), monkeypatch, caplog, capfd, tmp_path,
        )  # fmt: skip
