"""The bounded sum of every estimator equals the slow reference, for every way to use a layer."""

import warnings

import pytest
import torch
from gradient_reference import backward_gradients, bounded_reference, record_gradients
from model_examples import EXAMPLES, squared

import noisewise as nw
from noisewise.gradients import FallbackWarning

RULES = {
    "clip": lambda c: lambda n: (c / n.clamp_min(1e-12)).clamp_max(1.0),
    "automatic": lambda c: lambda n: c / (n + 0.01),
    "global": lambda c: lambda n: (n <= c).to(n.dtype),
    "normalise": lambda c: lambda n: c / n.clamp_min(1e-12),
}
GROUPINGS = ["model", "layer", "parameter"]


def prepared(name, records=5, seed=0):
    torch.manual_seed(seed)
    build, batch, _ = EXAMPLES[name]
    return build(), batch(records), torch.randn(records)


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return function(*args, **kwargs)


def reference(name, *args, **kwargs):
    slow = backward_gradients if "checkpoint" in name else record_gradients
    return slow(*args, **kwargs)


def assert_close(result, expected, clip):
    """To 1e-5 of the sum, or of what one record may add where a sum is zero but for rounding."""
    assert set(result) == set(expected)
    for name, value in expected.items():
        error = torch.linalg.vector_norm(result[name] - value)
        assert error <= 1e-5 * max(float(torch.linalg.vector_norm(value)), clip), name


def in_turn(name, per):
    """Two of the rules: the plain one, and for every example and grouping another one."""
    place = sorted(EXAMPLES).index(name) + GROUPINGS.index(per)
    return {"clip", sorted(RULES)[place % len(RULES)]}


@pytest.mark.parametrize("every_rule", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("per", GROUPINGS)
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_clipped_equals_the_reference(name, per, every_rule):
    model, x, y = prepared(name)
    gradients = reference(name, model, squared, x, y)
    typical = float(torch.cat([g.flatten(1).norm(dim=1) for g in gradients.values()]).median())
    shortest = min(float(g.flatten(1).norm(dim=1).min()) for g in gradients.values())
    for rule, scale in RULES.items():
        if not every_rule and rule not in in_turn(name, per):
            continue
        if rule == "normalise" and shortest < 1e-5 * typical:
            continue  # a gradient that is zero but for rounding has no direction to compare
        clip = max(1.037 * typical, 0.1)  # off the norms themselves, for `global`
        estimator = nw.Clipped(clip, per=per, rule=rule)
        result = quietly(nw.bounded_sum, model, squared, x, y, estimator)
        expected = bounded_reference(gradients, [g.names for g in result.groups], scale(clip))
        assert_close(result.gradients, expected, clip)
        assert all(g.sensitivity == pytest.approx(clip * 1.001) for g in result.groups)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_chunks_and_virtual_batches_give_the_same_sum(name):
    model, x, y = prepared(name)
    estimator = nw.Clipped(0.5, per="layer")
    whole = quietly(nw.bounded_sum, model, squared, x, y, estimator)
    pieces = quietly(nw.bounded_sum, model, squared, x, y, estimator, chunk=2)
    assert_close(pieces.gradients, whole.gradients, 0.5)
    assert pieces.records == whole.records == 5


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_factored_never_counts_a_record_for_more_than_clipping_would(name):
    model, x, y = prepared(name)
    gradients = reference(name, model, squared, x, y)
    result = quietly(nw.bounded_sum, model, squared, x, y, nw.Factored(0.3))
    for group in result.groups:
        norm = sum(gradients[n].flatten(1).square().sum(1) for n in group.names).sqrt()
        measured = result.norms.get(group.name)
        if measured is None:  # a parameter that forward never used
            assert float(norm.max()) == 0
            continue
        assert bool((measured >= norm * (1 - 1e-5) - 1e-6).all())
        factor = (0.3 / measured.clamp_min(1e-12)).clamp_max(1.0)
        expected = {n: torch.einsum("b,b...->...", factor, gradients[n]) for n in group.names}
        assert_close(group.gradients, expected, 0.3)


@pytest.mark.parametrize(
    "name", ["linear", "cnn", "transformer", "vision-like", "lstm", "reused conv", "group norm",
             "layer norm", "embedding bag mean", "transposed 2d", "unknown use", "merged adapter"]
)  # fmt: skip
@pytest.mark.parametrize("per", ["model", "layer"])
def test_views_of_a_record_are_averaged_before_the_bound(name, per):
    torch.manual_seed(1)
    build, batch, _ = EXAMPLES[name]
    model, records, views = build(), 4, 3
    x = batch(records * views)
    x = x.reshape(records, views, *x.shape[1:])
    y = torch.randn(records)
    gradients = reference(name, model, squared, x, y, views=views)
    result = quietly(nw.bounded_sum, model, squared, x, y, nw.Clipped(0.2, per=per), views=views)
    groups = [g.names for g in result.groups]
    assert_close(result.gradients, bounded_reference(gradients, groups, RULES["clip"](0.2)), 0.2)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_empty_batch_gives_zeros(name):
    model, x, y = prepared(name)
    empty = torch.utils._pytree.tree_map(lambda t: t[:0], x)
    result = quietly(nw.bounded_sum, model, squared, empty, y[:0], nw.Clipped(1.0, per="layer"))
    assert result.records == 0
    assert all(not g.any() for g in result.gradients.values())
    assert set(result.gradients) == {n for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", [n for n, (_, _, odd) in sorted(EXAMPLES.items()) if odd])
def test_an_unknown_use_is_named_with_its_cost(name):
    model, x, y = prepared(name)
    with pytest.warns(FallbackWarning, match="Odd.*einsum.*parameters exists for every record"):
        nw.bounded_sum(model, squared, x, y, nw.Clipped(1.0))


@pytest.mark.parametrize("name", [n for n, (_, _, odd) in sorted(EXAMPLES.items()) if not odd])
def test_known_uses_need_no_fallback_and_leave_the_model_alone(name):
    model, x, y = prepared(name)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    state = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        nw.bounded_sum(model, squared, x, y, nw.Clipped(1.0))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any("forward" in vars(m) for m in model.modules())
