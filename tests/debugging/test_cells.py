"""Settings, steps and laws that no other test looks at, each with a mistake that only they show.

A step releases (sum of bounded contributions + noise) / divisor: for every C, sigma, batch size and
number of records, at every step, for every seed. Seeds are fixed; a check accuses correct code by
chance with probability below 1e-4.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from changed import judged

from noisewise.debugging.sampling_laws import Case, related


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def times(noise, factor):
    return {n: z * factor for n, z in noise.items()}


def limited_where_c_is_large(noise, at):
    return times(noise, min(at.clip, 1.0) / at.clip)


def sigma_with_one_digit(noise, at):
    return times(noise, math.floor(at.sigma * 10) / 10 / at.sigma if at.sigma else 0.0)


def of_small_weights_less(noise, at):
    length = float(torch.stack([w.norm() for w in at.weights.values()]).norm())
    return times(noise, min(1.0, length / 2))


def of_a_random_size(noise, at):
    return times(noise, 1 + 0.1 * float(torch.randn((), generator=at.chance)))


def leaning(noise, at):
    gamma = torch.distributions.Gamma(400.0, 1.0)
    return {n: (gamma.sample(z.shape) - 400) / 20 * at.sigma * at.clip for n, z in noise.items()}


def of_fewer_sources(noise, at):
    size = sum(z.numel() for z in noise.values())
    fixed = torch.Generator().manual_seed(1)
    mixture = torch.randn(size, 3 * size // 4, generator=fixed) / (3 * size // 4) ** 0.5
    mixed = mixture @ torch.randn(3 * size // 4, generator=at.chance) * at.sigma * at.clip
    parts = mixed.split([z.numel() for z in noise.values()])
    return {n: part.reshape(z.shape) for part, (n, z) in zip(parts, noise.items(), strict=True)}


def less_for_half_of_a_tensor(noise, at):
    changed = {}
    for name, z in noise.items():
        flat = z.flatten().clone()
        flat[: len(flat) // 2] *= 0.85
        changed[name] = flat.reshape(z.shape)
    return changed


def less_where_nobody_is(noise, at):
    return times(noise, 0.3 if len(at.batch) == 0 else 1.0)


def late_tensors_alike(noise, at):
    if at.step < 5:
        return noise
    shared = torch.randn(10_000, generator=at.chance) * at.sigma * at.clip
    return {n: shared[: z.numel()].reshape(z.shape) for n, z in noise.items()}


def late_seeds_alike(noise, at):
    if at.step < 5:
        return noise
    fixed = torch.Generator().manual_seed(at.step)
    return {n: torch.randn(z.shape, generator=fixed) * at.sigma * at.clip for n, z in noise.items()}


def a_little_of_the_last(noise, at):
    before = at.memory.get("noise", noise)
    at.memory["noise"] = {n: 0.15 * before[n] + 0.99 * noise[n] for n in noise}
    return at.memory["noise"]


def drawn_in_pairs(batch, at):
    if at.batch_size >= at.total:
        return batch
    drawn = torch.rand((at.total + 1) // 2, generator=at.draw) < at.batch_size / at.total
    return drawn.repeat_interleave(2)[: at.total].nonzero()[:, 0]


def never_with_its_twin(batch, at):
    first = torch.rand((at.total + 1) // 2, generator=at.draw)
    both = torch.cat([first, 1 - first])[: at.total]
    return (both < at.batch_size / at.total).nonzero()[:, 0]


def even_sizes(batch, at):
    return batch[: len(batch) // 2 * 2] if at.batch_size < at.total else batch


def as_if_there_were_enough(total, at):
    factor = at.batch_size / at.total if at.total < at.batch_size else 1.0
    return times(total, factor)


def not_where_all_are_broken(update, at):
    norms = torch.stack([r.flatten(1).norm(dim=1) for r in at.records.values()]).norm(dim=0)
    return None if len(at.batch) and not bool(norms.isfinite().any()) else update


def late_loss_with_little_noise(result, at):
    little = 1e-3 * float(torch.randn((), generator=at.chance))
    return {**result, "loss": torch.tensor(at.loss() + little)} if at.steps > 3 else result


def late_large_records_count_more(add_up, at):
    def bounded(records, clip, micro_batch_size):
        norms = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
        factor = (clip / norms).clamp(max=1.0)
        factor = torch.where(norms > 30 * clip, 3 * factor, factor)
        return {n: torch.tensordot(factor, r, 1) for n, r in records.items()}

    return bounded if at.step > 4 else add_up


@pytest.mark.parametrize(
    ("stage", "change", "test", "finding", "effort"),
    [
        ("noise", limited_where_c_is_large, "noise", "noise-too-small", "quick"),
        ("noise", sigma_with_one_digit, "noise", "noise-too-small", "quick"),
        ("noise", of_small_weights_less, "noise", "noise-too-small", "quick"),
        ("noise", of_a_random_size, "noise", "noise-not-gaussian", "default"),
        ("noise", leaning, "noise", "noise-not-gaussian", "default"),
        ("noise", of_fewer_sources, "noise", "noise-not-gaussian", "default"),
        ("noise", less_for_half_of_a_tensor, "noise", "noise-too-small", "default"),
        ("noise", less_where_nobody_is, "sampling", "empty-batch-without-noise", "quick"),
        slow("noise", late_tensors_alike, "late-steps", "noise-repeats-across-tensors", "quick"),
        slow("noise", late_seeds_alike, "late-steps", "noise-same-for-every-seed", "quick"),
        slow("noise", a_little_of_the_last, "late-steps", "noise-repeats-every-step", "default"),
        ("batch", drawn_in_pairs, "sampling", "membership-related", "default"),
        ("batch", never_with_its_twin, "sampling", "membership-related", "default"),
        ("batch", even_sizes, "sampling", "batch-sizes-rounded", "default"),
        ("total", as_if_there_were_enough, "sampling", "noise-depends-on-dataset-size", "quick"),
        ("update", not_where_all_are_broken, "broken-records", "non-finite-record", "quick"),
        (
            "result",
            late_loss_with_little_noise,
            "contribution",
            "released-beside-weights",
            "quick",
        ),
        slow("bounded", late_large_records_count_more, "late-steps", "clipping-stops", "quick"),
    ],
)
def test_a_mistake_of_one_setting_is_named(stage, change, test, finding, effort):
    findings = judged(stage, change, "separation", "noise", test, effort=effort)
    assert finding in findings.bugs, str(findings)


def test_smoothed_noisy_gradients_are_no_bug():
    """DP-LSSGD (Wang et al., 2019): noise and contributions are smoothed together, at no cost."""

    def smoothed(update, at):
        return {n: 0.5 * u + 0.25 * (u.roll(1, -1) + u.roll(-1, -1)) for n, u in update.items()}

    findings = judged("update", smoothed, "noise", "freshness", "late-steps")
    assert findings.verdict == "not judged", str(findings)


@pytest.mark.parametrize("seed", range(40))
def test_independent_coins_are_related_to_nothing(seed):
    generator = np.random.default_rng(seed)
    case = Case()
    tables = {step: (generator.random((6, 14)) < 3 / 14).astype(float) for step in range(1, 12)}
    related(case, tables, "sampling")
    assert not case.findings
    assert case.p_values[0] > 1e-5


def test_coins_that_come_back_with_the_next_seed_are_found():
    generator = np.random.default_rng(0)
    coins = {number: generator.random(14) < 3 / 14 for number in range(20)}
    tables = {
        step: np.stack([coins[seed + step] for seed in range(6)]).astype(float)
        for step in range(1, 12)
    }
    case = Case()
    related(case, tables, "sampling")
    assert [finding.name for finding in case.findings] == ["membership-related"]
    assert case.findings[0].evidence["records"] == 0
