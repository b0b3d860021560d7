"""Where training takes `units`, all records of a unit count as one.

A unit of many large records, alone in its dataset, may move the update no further than one record
does, whatever their number and order; it takes part in every step in which a batch has as many
units as there are; and the noise does not know how many records it has.
"""

from __future__ import annotations

import numpy as np
import torch

from noisewise.debugging.bench import LOUD, SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.trainer import Data

__all__ = ["takes_units", "whole_units"]

_ROWS, _UNITS, _SEEDS = 12, 3, 12


def takes_units(bench: Bench) -> bool:
    """Whether the training knows of units at all."""
    return "units" in bench.box.accepted | bench.box.wishes


def whole_units(bench: Bench) -> TestResult:
    """A unit of many records weighs as much as one of one, is drawn whole, and is hidden."""
    title = "all records of a unit are bounded, drawn and hidden as one"
    clip = bench.usable_clip
    lr = bench.rate(clip)
    scale = 12.0 if bench.records.x.is_floating_point() else 1.0
    large = bench.records.draw(1, seed=77, scale=scale)

    def update(rows: int, units: int, seed: int, sigma: float = 0.0) -> np.ndarray:
        """All units hold copies of one large record, one unit's among the others'."""
        number = rows * units
        data: Data = (large[0].repeat_interleave(number, 0), large[1].repeat_interleave(number, 0))
        options = {"units": torch.arange(number) % units}
        return bench.update(
            data, clip=clip, lr=lr, batch_size=units, seed=seed, sigma=sigma, options=options
        )

    def size(rows: int, units: int, seed: int = 600) -> float:
        return float(np.linalg.norm(update(rows, units, seed)))

    seeds = range(600, 600 + _SEEDS)
    alone = [size(_ROWS, 1, seed) for seed in seeds]
    together = [size(_ROWS, _UNITS, seed) for seed in seeds]
    one = max(size(1, 1), size(1, _UNITS))
    findings = []
    most = max(*alone, *together)
    summary = f"a unit of {_ROWS} equal records moves the update by {most / one:.3g} records' worth"
    if most > 1.05 * one:
        findings.append(
            Finding(
                "unit-contributes-by-rows",
                "whole-units",
                "clipping",
                f"{summary}: records of a unit are clipped one by one, or in parts (micro-batches, "
                "workers), and added up. What is protected is a record, not a unit.",
                {"records_worth": most / one},
            )
        )
    elif max(*alone, *together) - min(*alone, *together) > 0.05 * one:
        findings.append(
            Finding(
                "units-not-drawn-whole",
                "whole-units",
                "sampling",
                "with as many units in a batch as there are, a unit of several records is not "
                "always there with its full weight: records are drawn, or counted, one by one. A "
                "unit then takes part more often than batch_size / units, which is what is "
                "accounted for.",
                {"least": min(*alone, *together) / one},
            )
        )
    if "noise_multiplier" in bench.box.accepted:
        spread = {
            rows: np.std(
                [update(rows, _UNITS, seed, LOUD * SIGMA) - update(rows, _UNITS, seed)
                 for seed in seeds], axis=0,
            )
            for rows in (1, _ROWS)
        }  # fmt: skip
        ratio = float(np.linalg.norm(spread[_ROWS]) / max(np.linalg.norm(spread[1]), 1e-300))
        if not 0.7 < ratio < 1.4:
            findings.append(
                Finding(
                    "noise-counts-rows",
                    "whole-units",
                    "noise",
                    f"with {_ROWS} records in each unit instead of one the noise is {ratio:.3g} "
                    "times as large: it is divided by the number of records. Divide sum and noise "
                    "by the expected number of units.",
                    {"ratio": ratio},
                )
            )
    status = "failed" if findings else "passed"
    return TestResult("whole-units", title, status, summary, (), tuple(findings))
