"""Clipping bias against per-record gradients computed one by one."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import noisewise.nn as nwnn
from noisewise.analysis.clipping_bias import (
    BiasCallback,
    BiasSeries,
    boundary_layers,
    measure,
)
from noisewise.gradients import Clipped, Factored, InputScaled, Propagated, Schedule
from noisewise.training import Plan, fit

CROSS = nn.CrossEntropyLoss()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(seed=0, records=12):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 5, generator=generator) * 2
    return x, torch.randint(0, 3, (records,), generator=generator)


def lipschitz():
    torch.manual_seed(0)
    return nn.Sequential(
        nwnn.BoundedInput((5,), 1.0),
        nwnn.SpectralLinear(5, 8, limit=1.0),
        nwnn.GroupSort(2),
        nwnn.SpectralLinear(8, 3, limit=1.0),
    )


def record_gradients(model, x, y):
    rows = []
    for i in range(len(x)):
        grads = torch.autograd.grad(CROSS(model(x[i : i + 1]), y[i : i + 1]), model.parameters())
        rows.append({n: g for (n, _), g in zip(model.named_parameters(), grads, strict=True)})
    return rows


def flat(gradients, names):
    return torch.cat([gradients[n].reshape(-1) for n in names]).double().numpy()


@settings(max_examples=25)
@given(
    st.integers(0, 1000),
    st.floats(0.05, 5.0),
    st.sampled_from(["clip", "global", "automatic"]),
    st.sampled_from(["model", "layer", "parameter"]),
)
def test_every_number_follows_from_gradients_clipped_one_by_one(seed, clip, rule, per):
    model = network(seed)
    x, y = batch(seed + 1)
    found = measure(model, CROSS, x, y, Clipped(clip, per=per, rule=rule))
    rows = record_gradients(model, x, y)
    names = [name for name, _ in model.named_parameters()]
    grouping = {
        "model": {"model": names},
        "layer": {"0": names[:2], "2": names[2:]},
        "parameter": {name: [name] for name in names},
    }[per]
    true, bounded, clipped = [], [], np.zeros(len(x), bool)
    for group in found.groups:
        g = np.stack([flat(row, grouping[group.name]) for row in rows])
        norm = np.linalg.norm(g, axis=1)
        factor = {
            "clip": np.minimum(1, clip / norm),
            "global": (norm <= clip).astype(float),
            "automatic": clip / (norm + 0.01),
        }[rule]
        mean, cut = g.mean(0), (factor[:, None] * g).mean(0)
        assert group.true_norm == pytest.approx(np.linalg.norm(mean), rel=1e-4)
        assert group.bounded_norm == pytest.approx(np.linalg.norm(cut), rel=1e-4, abs=1e-9)
        assert group.bias_norm == pytest.approx(np.linalg.norm(mean - cut), rel=1e-3, abs=1e-6)
        if cut.any():
            cosine = mean @ cut / np.linalg.norm(mean) / np.linalg.norm(cut)
            assert group.cosine == pytest.approx(cosine, abs=1e-5)
        shortened = factor < 1 - 1e-3
        assert group.clipped_fraction == pytest.approx(shortened.mean())
        clipped |= shortened
        true.append(mean)
        bounded.append(cut)
    error = np.linalg.norm(np.concatenate(true) - np.concatenate(bounded))
    assert found.bias_norm == pytest.approx(error, rel=1e-3, abs=1e-6)
    assert found.clipped_fraction == pytest.approx(clipped.mean())
    assert found.records == len(x)


def test_without_clipping_there_is_no_bias():
    found = measure(network(), CROSS, *batch(), Clipped(1e6))
    assert found.bias_norm < 1e-6
    assert found.clipped_fraction == 0
    assert found.cosine == pytest.approx(1)
    assert found.direction_error < 1e-3


def test_factored_equals_exact_layerwise_clipping_on_dense_layers():
    exact = measure(network(), CROSS, *batch(), Clipped(0.5, per="layer"))
    factored = measure(network(), CROSS, *batch(), Factored(0.5))
    assert factored.bias_norm == pytest.approx(exact.bias_norm, rel=1e-4)
    assert factored.clipped_fraction == exact.clipped_fraction


def test_lipschitz_estimators_clip_at_the_loss_only():
    model, (x, y) = lipschitz(), batch()
    free = measure(model, CROSS, x, y, Propagated())
    assert free.clipped_fraction == 0
    assert free.bias_norm < 1e-6
    slopes = (model(x).softmax(1) - nn.functional.one_hot(y, 3)).norm(dim=1)
    limit = float(slopes.detach().median())
    some = measure(model, CROSS, x, y, Propagated(loss_clip=limit))
    assert some.clipped_fraction == pytest.approx(float((slopes > limit * 1.001).float().mean()))
    assert some.bias_norm > 1e-3
    # By hand: the slope at the logits cut to the limit, then an ordinary backward pass.
    output = model(x)
    slope = (output.softmax(1) - nn.functional.one_hot(y, 3)).detach()
    names = list(model.parameters())
    true = torch.autograd.grad(output, names, slope / len(x), retain_graph=True)
    factor = (limit / slope.norm(dim=1, keepdim=True)).clamp_max(1.0)
    cut = torch.autograd.grad(output, names, slope * factor / len(x))
    g, b = (torch.cat([v.flatten() for v in values]) for values in (true, cut))
    assert some.bias_norm == pytest.approx(float((g - b).norm()), rel=1e-4)
    assert some.cosine == pytest.approx(float(torch.cosine_similarity(g, b, dim=0)), abs=1e-4)
    scaled = measure(model, CROSS, x, y, InputScaled())
    # Dividing by the input norm changes the length, hardly the direction.
    assert scaled.clipped_fraction == 0
    assert scaled.cosine > 0.9
    assert scaled.direction_error < 0.45


def test_signal_to_noise_compares_the_expected_sum_with_the_noise():
    found = measure(
        network(), CROSS, *batch(), Clipped(1.0), noise_multiplier=0.5, batch_size=200.0
    )
    (group,) = found.groups
    parameters = sum(p.numel() for p in network().parameters())
    # Sensitivity 1, with the engine's slack of a thousandth.
    expected = 200 * group.bounded_norm / (0.5 * 1.001 * math.sqrt(parameters))
    assert group.signal_to_noise == pytest.approx(expected)
    assert found.signal_to_noise == pytest.approx(expected)
    assert math.isnan(measure(network(), CROSS, *batch(), Clipped(1.0)).signal_to_noise)


def test_only_the_first_records_are_looked_at():
    x, y = batch(records=40)
    part = measure(network(), CROSS, x, y, Clipped(0.5), chunk=10)
    assert part.records == 10
    assert part.bias_norm == measure(network(), CROSS, x[:10], y[:10], Clipped(0.5)).bias_norm


def test_measuring_leaves_training_untouched():
    model, (x, y) = network(), batch()
    model.insert(1, nn.Dropout(0.5))
    CROSS(model(x), y).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    weights = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    found = measure(model, CROSS, x, y, Clipped(1e6))
    assert torch.equal(torch.get_rng_state(), state)
    for p, g, w in zip(model.parameters(), grads, weights, strict=True):
        assert torch.equal(p.grad, g)
        assert torch.equal(p, w)
    # Both passes drop the same units, or the bias would not vanish.
    assert found.bias_norm < 1e-6


def test_everything_says_that_it_is_not_private(tmp_path):
    series = BiasSeries(every=1)
    found = series.observe(network(), CROSS, *batch(), Clipped(0.5), noise_multiplier=1.0)
    assert found.private is series.private is False
    assert found.to_dict()["private"] is False
    assert "NOT PRIVATE" in str(found)
    stored = json.loads(series.save(tmp_path / "bias.json").read_text())
    assert stored["private"] is False
    assert "NOT PRIVATE" in stored["warning"]
    assert "NOT PRIVATE" in series.to_frame().attrs["warning"]
    assert "NOT PRIVATE" in series.plot(title="a run").get_suptitle()


def test_a_series_measures_at_the_steps_it_was_told_to():
    series = BiasSeries(every=3, chunk=5)
    for _ in range(8):
        series.observe(network(), CROSS, *batch(), Clipped(0.5))
    assert [m.step for m in series.measurements] == [0, 3, 6]
    assert {m.records for m in series.measurements} == {5}
    frame = series.to_frame()
    assert list(frame["group"]) == ["all", "model"] * 3
    empty = BiasSeries(every=1)
    assert empty.observe(network(), CROSS, *batch(records=0), Clipped(0.5)) is None
    with pytest.raises(ValueError, match="nothing was measured"):
        empty.plot()


def test_a_series_keeps_to_its_share_of_the_time(monkeypatch):
    from noisewise.analysis.clipping_bias import series as module

    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    true_measure = module.measure

    def slow(*arguments, **options):
        clock[0] += 0.7
        return true_measure(*arguments, **options)

    monkeypatch.setattr(module, "measure", slow)
    observer = BiasSeries(share=0.1)
    model, (x, y) = network(), batch()
    for _ in range(400):
        observer.observe(model, CROSS, x, y, Clipped(0.5))
        clock[0] += 1.0
    assert len(observer.measurements) == 57  # 0.7 each, within 10 % of 400
    assert observer.overhead <= 0.1
    steps = np.diff([m.step for m in observer.measurements])
    assert steps.min() >= 6


def test_a_schedule_is_measured_with_the_estimator_in_force():
    schedule = Schedule([(0.0, Clipped(0.1)), (0.5, Clipped(0.1, rule="global"))])
    first = measure(network(), CROSS, *batch(), schedule)
    assert first.bias_norm == measure(network(), CROSS, *batch(), Clipped(0.1)).bias_norm


def test_layers_at_their_limit_are_named():
    model = lipschitz()
    assert boundary_layers(model) == ("1", "3")
    with torch.no_grad():
        model[1].weight.mul_(0.5)
    assert boundary_layers(model) == ("3",)
    assert boundary_layers(network()) == ()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="batch is empty"):
        measure(network(), CROSS, *batch(records=0), Clipped(1.0))
    with pytest.raises(ValueError, match="chunk must be"):
        measure(network(), CROSS, *batch(), Clipped(1.0), chunk=0)
    with pytest.raises(ValueError, match="share must lie"):
        BiasSeries(share=0.0)


def fitted(*callbacks, gradients=None, **options):
    x, y = batch(records=200)
    model = network(1)
    plan = Plan(
        gradients=gradients or Clipped(0.3), epsilon=3.0, steps=30, batch_size=40, delta=1e-4,
        seed=5,
    )  # fmt: skip
    found = fit(model, (x, y), plan, loss=CROSS, progress=False, metrics=False,
                callbacks=callbacks, **options)  # fmt: skip
    return model, found


def test_the_callback_changes_nothing_but_what_the_statement_says():
    x, y = batch(records=200)
    watch = BiasCallback(x, y, every=10, chunk=50)
    alone, before = fitted()
    watched, after = fitted(watch)
    for a, b in zip(alone.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [m.step for m in watch.series.measurements] == [0, 10, 20]
    assert before.statement().epsilon == after.statement().epsilon
    added = set(after.statement().assumptions) - set(before.statement().assumptions)
    assert any("metrics" in line.lower() or "metric" in line for line in added), added
    assert watch.series.measurements[0].signal_to_noise > 0


def test_the_callback_follows_a_schedule():
    x, y = batch(records=200)
    watch = BiasCallback(x, y, every=1, chunk=50)
    fitted(watch, gradients=Schedule([(0.0, Clipped(1e-3)), (0.5, Clipped(1e-3, rule="global"))]))
    norms = [m.bounded_norm for m in watch.series.measurements]
    # With so small a norm everybody is clipped in the first half and dropped in the second.
    assert min(norms[:14]) > 0
    assert max(norms[15:]) == 0


def test_a_callback_without_records_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        BiasCallback(torch.zeros(0, 5), torch.zeros(0))
