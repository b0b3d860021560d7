"""Mistakes that show only between two datasets, in some batches, or in the noise as a whole."""

from __future__ import annotations

import pytest
import torch
from changed import judged

from noisewise.debugging import check
from noisewise.debugging.mutants import Training, cases


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def unclipped(records, clip, micro_batch_size):
    return {n: r.sum(0) for n, r in records.items()}


def unclipped_with_noise(add_up, at):
    return unclipped if at.sigma > 0 else add_up


def less_noise_for_one_class(noise, at):
    labels = at.data[1][at.batch]
    factor = 0.7 if len(labels) > 1 and len(set(labels.tolist())) == 1 else 1.0
    return {n: z * factor for n, z in noise.items()}


def clip_by_size(clip, at):
    return clip * (len(at.batch) / at.batch_size) ** 0.5 if len(at.batch) else clip


def large_batches_unclipped(add_up, at):
    return unclipped if len(at.batch) > at.batch_size else add_up


def less_noise_for_small_batches(noise, at):
    return {n: z * (0.6 if len(at.batch) < at.batch_size / 2 else 1.0) for n, z in noise.items()}


@pytest.mark.parametrize(
    ("stage", "change", "test", "finding"),
    [
        ("bounded", unclipped_with_noise, "neighbours", "noise-follows-data"),
        slow("noise", less_noise_for_one_class, "neighbours", "noise-follows-data"),
        ("clip", clip_by_size, "sampling", "weight-depends-on-company"),
        slow("bounded", large_batches_unclipped, "sampling", "weight-depends-on-company"),
        ("noise", less_noise_for_small_batches, "noise", "noise-depends-on-batch"),
    ],
)
def test_what_depends_on_data_or_batch_is_found(stage, change, test, finding):
    assert finding in judged(stage, change, "separation", test).bugs


def one_class_unclipped(add_up, at):
    def bounded(records, clip, micro_batch_size):
        labels = at.data[1][at.batch]
        own = {n: r[labels == 3] for n, r in records.items()}
        rest = {n: r[labels != 3] for n, r in records.items()}
        return {
            n: unclipped(own, clip, 0)[n] + part
            for n, part in add_up(rest, clip, micro_batch_size).items()
        }

    return bounded


def factor_with_a_floor(add_up, at):
    def bounded(records, clip, micro_batch_size):
        norms = torch.stack([r.flatten(1).norm(dim=1) for r in records.values()]).norm(dim=0)
        factor = (clip / norms).clamp(1e-3, 1.0).nan_to_num(0.0)
        return {
            n: (factor.reshape(-1, *[1] * (r.ndim - 1)) * r.nan_to_num(0.0, 0.0, 0.0)).sum(0)
            for n, r in records.items()
        }

    return bounded


@pytest.mark.parametrize("change", [one_class_unclipped, slow(factor_with_a_floor)])
def test_records_of_every_class_and_far_beyond_the_norm_are_measured(change):
    assert judged("bounded", change, "contribution").verdict == "bug"


def seeded(bits):
    def change(noise, at):
        generator = torch.Generator().manual_seed((at.seed % bits) * 1000 + at.step)
        return {
            n: at.sigma * at.clip * torch.randn(z.shape, generator=generator)
            for n, z in noise.items()
        }

    return change


@pytest.mark.parametrize("states", [slow(256), 65_536])
def test_a_seed_that_is_cut_off_gives_two_runs_one_noise(states):
    findings = judged("noise", seeded(states), "noise", "freshness")
    assert "noise-same-for-every-seed" in findings.bugs


def sigma_cut_off(noise, at):
    return {n: z * min(1.0, 5 / max(at.sigma, 1e-9)) for n, z in noise.items()}


def divided_by_pieces(noise, at):
    return {n: z / max(1, -(-len(at.batch) // 32)) for n, z in noise.items()}


@pytest.mark.parametrize("change", [sigma_cut_off, slow(divided_by_pieces)])
def test_noise_is_read_at_large_sigma_and_for_large_batches(change):
    assert judged("noise", change, "separation", "noise").verdict == "bug"


def without_mean(noise, at):
    return {n: z - z.mean() for n, z in noise.items()}


def smoothed_over_rows(noise, at):
    return {n: (z + z.roll(1, 0)) / 2**0.5 if z.ndim > 1 else z for n, z in noise.items()}


def not_along_the_weights(noise, at):
    found = {}
    for n, z in noise.items():
        unit = at.weights[n] / at.weights[n].norm()
        found[n] = z - (z * unit).sum() * unit
    return found


def one_coordinate_left_out(noise, at):
    for z in noise.values():
        z.view(-1)[0] = 0.0
    return noise


def cut_off_at_four(noise, at):
    limit = 4 * at.sigma * at.clip
    return {n: z.clamp(-limit, limit) for n, z in noise.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (smoothed_over_rows, "noise-correlated"),
        (not_along_the_weights, "noise-correlated"),
        (one_coordinate_left_out, "noise-uneven"),
        (cut_off_at_four, "noise-not-gaussian"),
    ],
)
def test_noise_that_is_gaussian_number_by_number_only_is_found(change, finding):
    findings = judged("noise", change, "separation", "noise", effort="default")
    assert finding in findings.bugs


def rounded(update, at):
    return {n: u.bfloat16().float() for n, u in update.items()}


def on_levels(update, at):
    found = {}
    for n, u in update.items():
        level = u.abs().max() / 127
        found[n] = (u / level).round() * level if float(level) > 0 else u
    return found


@pytest.mark.parametrize("change", [slow(rounded), on_levels])
def test_a_noisy_gradient_that_is_rounded_afterwards_is_not_accused(change):
    findings = judged("update", change, "separation", "contribution", "noise", "freshness")
    assert findings.verdict == "not judged"
    assert any("rounded to few digits" in reason for reason in findings.unanswered.values())


def test_a_sum_that_is_rounded_before_its_noise_still_is():
    known = cases()["MLP"]
    findings = check(
        Training(known.model, known.loss, bug="half-precision"),
        known.model,
        known.loss,
        example=known.example,
        effort="quick",
        tests=("preflight", "noise"),
    )
    assert findings.bugs == ["noise-in-half-precision"]


def half_of_the_batch(batch, at):
    if at.batch_size >= at.total:
        return batch
    return batch[torch.rand(len(batch), generator=at.draw) < 0.5]


@pytest.mark.slow
def test_a_lower_rate_than_promised_costs_no_privacy():
    findings = judged("batch", half_of_the_batch, "separation", "sampling", effort="default")
    assert findings.bugs == []


def overflow_skips_the_step(update, at):
    overflows = any(bool(r.half().isinf().any()) for r in at.records.values())
    return {n: torch.zeros_like(u) for n, u in update.items()} if overflows else update


def test_a_step_that_is_skipped_for_one_long_gradient_is_found_by_a_finite_one():
    findings = judged("update", overflow_skips_the_step, "separation")
    assert findings.bugs == ["records-interact"]


def room_for_a_quarter_more(batch, at):
    return batch[: at.batch_size + -(-at.batch_size // 4)]


@pytest.mark.slow
def test_batches_that_are_cut_off_well_above_the_expected_size_are_found():
    findings = judged("batch", room_for_a_quarter_more, "separation", "sampling", effort="default")
    assert findings.bugs == ["batch-size-capped"]


def shuffled_where_many(batch, at):
    if at.total <= 100:
        return batch
    if "order" not in at.memory:
        at.memory["order"] = torch.randperm(at.total, generator=at.draw)
    return at.memory["order"].roll(-at.step * at.batch_size)[: at.batch_size]


def standardised_where_many(data, at):
    x, y = data
    return ((x - x.mean(0)) / x.std(0), y) if len(x) > 300 else data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "change", "finding"),
    [
        ("batch", shuffled_where_many, "batch-size-fixed"),
        ("data", standardised_where_many, "large-dataset-differs"),
    ],
)
def test_another_way_for_a_large_dataset_is_found(stage, change, finding):
    findings = judged(stage, change, "separation", "sampling", effort="default")
    assert finding in findings.bugs


def silent_every_seventh(noise, at):
    return {n: z * (at.step % 7 != 6) for n, z in noise.items()}


def silent_for_a_while(noise, at):
    return {n: z * (not 30 <= at.step < 34) for n, z in noise.items()}


def unclipped_every_thirtieth(add_up, at):
    return unclipped if at.step % 30 == 29 else add_up


def last_tensor_forgotten(noise, at):
    last = list(noise)[-1]
    return {n: z * (n != last or at.step < 20) for n, z in noise.items()}


def uniform_later(noise, at):
    if at.step < 10:
        return noise
    size = 3**0.5 * at.sigma * at.clip
    return {n: size * (2 * torch.rand(z.shape, generator=at.chance) - 1) for n, z in noise.items()}


def all_records_later(batch, at):
    return torch.arange(at.total) if at.step >= 30 else batch


def batches_come_again(batch, at):
    return at.memory.setdefault("kept", {}).setdefault(at.step % 16, batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "change", "finding"),
    [
        ("noise", silent_every_seventh, "noise-stops"),
        ("noise", silent_for_a_while, "noise-stops"),
        ("bounded", unclipped_every_thirtieth, "clipping-stops"),
        ("noise", last_tensor_forgotten, "noise-decays"),
        ("noise", uniform_later, "noise-not-gaussian"),
        ("batch", all_records_later, "batches-disjoint"),
        ("batch", batches_come_again, "batches-repeat"),
    ],
)
def test_every_step_and_every_tensor_of_late_ones_is_looked_at(stage, change, finding):
    findings = judged(stage, change, "separation", "noise", "late-steps", effort="default")
    assert finding in findings.bugs


def with_patience(ended, at):
    loss = at.loss()
    if loss < at.memory.get("best", float("inf")) - 1e-4:
        at.memory.update(best=loss, waited=0)
    else:
        at.memory["waited"] = at.memory.get("waited", 0) + 1
    return ended or at.memory.get("waited", 0) >= 20


@pytest.mark.slow
def test_a_decision_after_twenty_steps_is_provoked():
    findings = judged("after", with_patience, "decisions", effort="default")
    assert findings.bugs == ["training-stops-on-data"]
