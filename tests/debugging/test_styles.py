"""Training as people write it: no right style is accused, and no wrong one is called private.

Seeds are fixed. A check accuses correct code by chance with probability below 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from styles import EXAMPLE, STYLES, build
from torch.nn.functional import cross_entropy

from noisewise.debugging import TESTS, check
from noisewise.debugging.knowledge import Knowledge, Memory
from noisewise.debugging.statistics import LEVEL, correlation


def verdict_of(name, *, wrong, tests=TESTS):
    function, declared = STYLES[name]
    options = {k: v for k, v in declared.items() if k != "judged"}

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        settings = {"clip": clip, "noise_multiplier": noise_multiplier, "batch_size": batch_size}
        settings |= {"seed": seed, "data": data, "init": init, "steps": steps, "lr": lr}
        return function(wrong, **settings)

    return check(
        train, build, cross_entropy, example=EXAMPLE, effort="quick", tests=tests, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
def test_a_right_style_is_not_accused(name):
    findings = verdict_of(name, wrong=False)
    judged = STYLES[name][1].get("judged", True)
    assert findings.verdict == ("private so far" if judged else "not judged"), str(findings)


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
def test_a_wrong_style_is_not_called_private(name):
    findings = verdict_of(name, wrong=True)
    judged = STYLES[name][1].get("judged", True)
    assert findings.verdict in (("bug",) if judged else ("bug", "not judged")), str(findings)


def test_weights_that_are_not_trained_count_for_no_statistic():
    """Two runs of 52 numbers among 424 were taken for 424 numbers, and for alike."""
    findings = verdict_of(
        "only_the_head_is_trained", wrong=False, tests=("preflight", "noise", "freshness")
    )
    assert findings.bugs == [], str(findings)
    rng = np.random.default_rng(0)
    first, second = np.zeros(2000), np.zeros(2000)
    first[:20], second[:20] = rng.standard_normal((2, 20))
    second[:20] += first[:20]
    assert correlation(first, second)[1] > LEVEL
    assert correlation(first, first + 1e-3 * second)[1] < LEVEL


def test_averages_of_weights_are_told_from_momentum_and_from_plain_steps():
    # Displacements after one, two and three steps of a constant gradient.
    plain, heavy, mean = ([1.0, 2.0, 3.0], [1.0, 2.9, 5.61], [1.0, 1.5, 2.0])
    known = {
        name: Knowledge(growth=np.asarray(g))
        for name, g in zip("phm", (plain, heavy, mean), strict=True)
    }
    assert known["p"].steady
    assert known["p"].memory == Memory()
    assert known["h"].steady
    assert abs(known["h"].memory.kept - 0.9) < 0.01
    assert not known["m"].steady
    assert known["m"].memory == Memory()


def test_styles_differ_from_their_mistakes():
    """A mistake that changes nothing would be no test."""
    torch.manual_seed(0)
    init = build().state_dict()
    data = (torch.randn(24, 8), torch.randint(4, (24,)))
    settings = {"clip": 0.3, "noise_multiplier": 1.2, "batch_size": 8, "seed": 3, "data": data}
    for name, (function, _) in STYLES.items():
        right, wrong = (
            function(wrong, **settings, init=init, steps=12, lr=0.5) for wrong in (False, True)
        )
        assert any(not torch.equal(right[n], wrong[n]) for n in right), name
