"""No number is ever used for two purposes; a seeded step draws the same wherever it resumes."""

import itertools

import torch
from making_runs import plan, small_model, start

from noisewise.training.streams import Streams


def words(generator):
    return generator.bytes(32)


def test_seeds_names_steps_and_purposes_all_separate_streams():
    drawn = [
        words(getattr(Streams(seed, name), purpose)(step))
        for seed, name, purpose, step in itertools.product(
            (0, 1, 10), ("training", "training/noise", "1"), ("noise", "batch"), (0, 1, 10)
        )
    ]
    assert len(set(drawn)) == len(drawn)


def test_a_seeded_step_draws_the_same_again_and_workers_share_noise_but_not_batches():
    assert words(Streams(3).noise(5)) == words(Streams(3).noise(5))
    assert words(Streams(3, worker=1).noise(5)) == words(Streams(3).noise(5))
    assert words(Streams(3, worker=1).batch(5)) != words(Streams(3).batch(5))


def test_secret_streams_never_repeat():
    secret = Streams(None)
    assert len({words(secret.noise(0)) for _ in range(5)}) == 5
    assert words(Streams(None).noise(0)) != words(Streams(None).noise(0))


def test_no_two_steps_of_a_run_have_the_same_noise():
    for seed in (3, None):
        model = small_model()
        run = start(
            model, torch.optim.SGD(model.parameters(), lr=0.0), the_plan=plan(steps=6, seed=seed)
        )
        seen = set()
        for _ in range(6):
            run.step(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
            seen.add(float(model[0].weight.grad[0, 0]))
        assert len(seen) == 6
