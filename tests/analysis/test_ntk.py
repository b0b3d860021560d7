"""Kernels against dense Jacobians, and theorems 1 and 2 of Bu, Wang, Dai and Long (2021)."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from noisewise.analysis.ntk import (
    analyse,
    clipping_factors,
    kernels,
    positivity,
    table_of_kernels,
)

MSE = nn.MSELoss()


def network(seed, outputs=1, activation=nn.Tanh):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, outputs)
    ).double()


def batch(seed, records=6, outputs=1):
    """Drawn after the network's own draws, as the known examples below were found."""
    if seed is not None:
        torch.manual_seed(seed)
    x = torch.randn(records, 3, dtype=torch.double) * 2
    return x, torch.randn(records, outputs, dtype=torch.double) * 4


def dense_jacobian(model, x):
    """Rows: records then outputs; columns: parameters, by autograd, one entry at a time."""
    rows = []
    for record in x:
        for value in model(record[None]).reshape(-1):
            grads = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows).numpy()


def record_gradients(model, loss, x, y):
    rows = []
    for record, target in zip(x, y, strict=True):
        value = loss(model(record[None]), target[None])
        grads = torch.autograd.grad(value, list(model.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows).numpy()


@given(
    st.integers(0, 1000), st.integers(1, 7), st.integers(1, 3), st.sampled_from([1, 4000, 1 << 29])
)
def test_kernels_are_gram_matrices_of_the_jacobian_whatever_the_memory(seed, n, m, memory):
    model = network(seed, m)
    x, _ = batch(seed + 1, n, m)
    found = kernels(model, x, memory=memory)
    j = dense_jacobian(model, x)
    np.testing.assert_allclose(found.total, j @ j.T, rtol=1e-9, atol=1e-12)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in model]
    edges = np.cumsum([0, *sizes])
    for (name, block), index in zip(found.blocks.items(), (0, 2, 4), strict=True):
        part = j[:, edges[index] : edges[index + 1]]
        assert name == str(index)
        np.testing.assert_allclose(block, part @ part.T, rtol=1e-9, atol=1e-12)
    assert (found.records, found.outputs) == (n, m)


@given(st.integers(0, 1000), st.integers(1, 3))
def test_gradient_norms_and_the_kernel_of_losses_follow_from_per_record_gradients(seed, m):
    model = network(seed, m)
    x, y = batch(seed + 1, 5, m)
    g = record_gradients(model, MSE, x, y)
    found = analyse(model, MSE, x, y, rule="none")
    norms = found.kernels.gradient_norms(found.slopes)
    whole = np.sqrt(np.sum([v**2 for v in norms.values()], axis=0))
    np.testing.assert_allclose(whole, np.linalg.norm(g, axis=1), rtol=1e-9)
    contracted = kernels(model, x, target=y, loss=MSE)
    np.testing.assert_allclose(contracted.total, g @ g.T, rtol=1e-9, atol=1e-12)
    one = kernels(model, x, output=m - 1).total
    j = dense_jacobian(model, x)[m - 1 :: m]
    np.testing.assert_allclose(one, j @ j.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("per", ["model", "layer"])
@pytest.mark.parametrize("rule", ["clip", "global", "automatic", "none"])
@pytest.mark.parametrize("contract", [False, True])
def test_the_predicted_loss_change_is_the_limit_of_the_measured_one(per, rule, contract):
    model = network(3, 2)
    x, y = batch(4, 7, 2)
    before = [p.detach().clone() for p in model.parameters()]
    clip = float(np.median(np.linalg.norm(record_gradients(model, MSE, x, y), axis=1)))
    found = analyse(model, MSE, x, y, clip=clip, rule=rule, per=per, contract=contract)
    assert found.clipped_fraction < 1 or rule == "automatic"
    errors = [
        abs(found.loss_change(model, MSE, x, y, step=step).ratio - 1) for step in (1e-3, 1e-4, 1e-5)
    ]
    # The error of a first-order prediction falls with the step.
    assert errors[2] < 1e-3
    assert errors[2] < 0.2 * errors[1] < 0.04 * errors[0] + 1e-6
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)


@given(st.integers(0, 10_000), st.floats(0.01, 3.0), st.sampled_from(["clip", "automatic"]))
def test_theorem_1_flat_clipping_is_positive_in_eigenvalues(seed, clip, rule):
    model = network(seed)
    found = analyse(model, MSE, *batch(seed + 1), clip=clip, rule=rule)
    assert positivity(found.kernels.total).smallest_eigenvalue > 0  # the theorem's assumption
    assert found.positivity.smallest_eigenvalue > 0
    assert found.positivity.positive_in_eigenvalues
    # A general solver on the same matrix agrees about the eigenvalues.
    general = positivity(found.matrix)
    assert general.smallest_eigenvalue == pytest.approx(
        found.positivity.smallest_eigenvalue, abs=1e-8 * general.scale
    )
    assert general.smallest_quadratic == pytest.approx(
        found.positivity.smallest_quadratic, abs=1e-10 * general.scale
    )


@given(st.integers(0, 10_000))
def test_theorem_2_a_large_norm_leaves_the_kernel_as_it_is(seed):
    model = network(seed)
    x, y = batch(seed + 1)
    free = analyse(model, MSE, x, y, rule="none")
    for rule in ("clip", "global"):
        for per in ("model", "layer"):
            found = analyse(model, MSE, x, y, clip=1e6, rule=rule, per=per, found=free.kernels)
            np.testing.assert_array_equal(found.matrix, free.kernels.total)
            assert found.positivity.symmetric
            assert found.positivity.smallest_quadratic > 0
            assert found.slope < 0
            assert found.clipped_fraction == 0


def known(seed, **options):
    torch.manual_seed(seed)
    model = network(seed)
    x, y = batch(None)
    return model, x, y, analyse(model, MSE, x, y, clip=0.5, **options)


def test_theorem_1_flat_clipping_may_be_negative_in_quadratic_form():
    *_, found = known(245)
    assert found.positivity.smallest_quadratic < -1
    assert found.positivity.positive_in_eigenvalues
    assert not found.positivity.positive_in_quadratic_form
    assert not found.positivity.symmetric


def test_theorem_1_layerwise_clipping_may_have_negative_eigenvalues():
    *_, found = known(245, per="layer")
    assert positivity(found.kernels.total).smallest_eigenvalue > 0.01
    assert found.positivity.smallest_eigenvalue < -1e-4 * found.positivity.scale
    assert not found.positivity.positive_in_eigenvalues
    assert found.positivity.largest_imaginary > 0


def test_layerwise_negative_eigenvalues_in_two_by_two():
    # H_1 = aa', H_2 = bb', a = (1, 2), b = (2, 1), C_1 = diag(1, 0), C_2 = diag(0, 1): the sum
    # H_1 C_1 + H_2 C_2 = [[1, 2], [2, 1]] has eigenvalues 3 and -1 though H is positive.
    a, b = np.array([1.0, 2.0]), np.array([2.0, 1.0])
    mixed = np.outer(a, a) * [1, 0] + np.outer(b, b) * [0, 1]
    assert positivity(np.outer(a, a) + np.outer(b, b)).smallest_eigenvalue == pytest.approx(1)
    assert positivity(mixed).smallest_eigenvalue == pytest.approx(-1)


@pytest.mark.parametrize("per", ["model", "layer"])
def test_theorem_1_the_loss_may_grow_under_clipping_and_falls_without(per):
    model, x, y, found = known(274, per=per)
    change = found.loss_change(model, MSE, x, y, step=1e-5)
    assert change.predicted > 0
    assert change.measured > 0
    free = analyse(model, MSE, x, y, rule="none", found=found.kernels)
    assert free.loss_change(model, MSE, x, y, step=1e-5).measured < 0


def test_global_clipping_that_drops_records_keeps_neither_symmetry_nor_positivity():
    # The paper's guarantee is for norms so large that nothing is dropped. A dropped record
    # leaves a zero column: H C is singular, and for H positive definite not symmetric and
    # negative in quadratic form, because [[H_aa, H_ab/2], [H_ba/2, 0]] is indefinite.
    negative = 0
    for seed in range(20):
        model = network(seed)
        x, y = batch(seed + 100)
        free = analyse(model, MSE, x, y, rule="none")
        norms = free.kernels.gradient_norms(free.slopes)
        whole = np.sqrt(np.sum([v**2 for v in norms.values()], axis=0))
        found = analyse(model, MSE, x, y, clip=float(np.median(whole)), rule="global",
                        found=free.kernels)  # fmt: skip
        assert abs(found.positivity.smallest_eigenvalue) < 1e-9 * found.positivity.scale
        negative += found.positivity.smallest_quadratic < -1e-6 * found.positivity.scale
        assert not found.positivity.symmetric
    assert negative == 20


@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_positivity_of_a_symmetric_matrix_is_one_notion(seed, n):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(n, n + 2))
    found = positivity(root @ root.T)
    assert found.symmetric
    assert found.positive_in_quadratic_form
    assert found.positive_in_eigenvalues
    shifted = positivity(root @ root.T - 2 * found.scale * np.eye(n))
    assert not shifted.positive_in_quadratic_form
    assert not shifted.positive_in_eigenvalues


@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_the_smallest_quadratic_value_is_attained_and_never_undercut(seed, n):
    generator = np.random.default_rng(seed)
    a = generator.normal(size=(n, n))
    found = positivity(a)
    units = generator.normal(size=(500, n))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    assert np.einsum("ni,ij,nj->n", units, a, units).min() >= found.smallest_quadratic - 1e-12
    vector = np.linalg.eigh((a + a.T) / 2)[1][:, 0]
    assert vector @ a @ vector == pytest.approx(found.smallest_quadratic, abs=1e-12)
    assert found.smallest_eigenvalue == pytest.approx(np.linalg.eigvals(a).real.min(), abs=1e-8)


def test_the_table_shows_the_pattern_of_table_1():
    model = network(245)
    rows = table_of_kernels(model, MSE, *batch(None), clip=0.5)
    by = {(row["rule"], row["per"]): row for row in rows}
    symmetric = {way for way, row in by.items() if row["symmetric"]}
    # Here global flat clipping drops every record, and the zero matrix is symmetric.
    assert by["global", "model"]["clipped"] == 1
    assert symmetric == {("none", "model"), ("global", "model")}
    assert by["none", "model"]["positive_in_quadratic_form"]
    assert not by["clip", "model"]["positive_in_quadratic_form"]
    assert by["clip", "model"]["positive_in_eigenvalues"]
    assert not by["clip", "layer"]["positive_in_eigenvalues"]


def test_float32_models_give_kernels_that_are_positive_to_float64_rounding():
    model = network(0, activation=nn.ReLU).float()
    x = torch.randn(60, 3)
    found = positivity(kernels(model, x).total)
    assert found.symmetric
    assert found.smallest_eigenvalue > -1e-13 * found.scale


def test_factors_of_zero_and_huge_norms():
    assert clipping_factors([0.0], 1.0).tolist() == [1.0]
    assert clipping_factors([0.0], 1.0, "automatic").tolist() == [100.0]
    assert clipping_factors([np.inf], 1.0).tolist() == [0.0]
    norms = np.geomspace(1e-3, 1e3, 50)
    for rule in ("clip", "global", "automatic"):
        assert (clipping_factors(norms, 0.7, rule) * norms).max() <= 0.7 + 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.0}, "clip must be > 0"),
        ({"rule": "local"}, "rule must be one of"),
        ({"per": "parameter"}, "per must be one of"),
        ({"clip": {"0": 1.0}}, "one number for per='model'"),
        ({"clip": {"0": 1.0}, "per": "layer"}, "must name the layers"),
    ],
)
def test_bad_options_are_refused(options, message):
    model = network(0)
    with pytest.raises(ValueError, match=message):
        analyse(model, MSE, *batch(1), **options)


def test_bad_batches_and_matrices_are_refused():
    model = network(0)
    x, y = batch(1)
    with pytest.raises(ValueError, match="no records"):
        kernels(model, x[:0])
    with pytest.raises(ValueError, match="together, or neither"):
        kernels(model, x, target=y)
    with pytest.raises(ValueError, match="no trainable parameters"):
        kernels(nn.Flatten(), x)
    with pytest.raises(ValueError, match="only one"):
        kernels(model, x, target=y, loss=MSE, output=0)
    with pytest.raises(ValueError, match="square"):
        positivity(np.ones((2, 3)))
    with pytest.raises(ValueError, match="NaN"):
        positivity([[np.nan]])
    with pytest.raises(ValueError, match=">= 0"):
        positivity(np.eye(2), [1.0, -1.0])


@pytest.mark.slow
def test_two_thousand_records_of_a_large_model_fit_into_the_memory_that_was_asked_for():
    import subprocess
    import sys

    # All Jacobians at once would take 2000 x 102,594 x 4 bytes = 821 MB, besides three kernels
    # of 32 MB each and their copies.
    script = """
import resource, torch
from torch import nn
from noisewise.analysis.ntk import kernels
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 64), nn.ReLU(),
                      nn.Linear(64, 10))
x, y = torch.randn(2000, 784), torch.randint(0, 10, (2000,))
kernels(model, x[:2], target=y[:2], loss=nn.CrossEntropyLoss())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = kernels(model, x, target=y, loss=nn.CrossEntropyLoss(), memory=1 << 27)
assert found.total.shape == (2000, 2000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 500
