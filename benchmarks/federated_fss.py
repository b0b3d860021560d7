"""Function secret sharing: how near to the processor's AES limit, and how many keys a second.

Run with ``python -m benchmarks.federated_fss``. One core; seconds are those that the processor
worked for this thread. The limit is the better of AES instructions on independent blocks (numba)
and OpenSSL's ECB mode; it and each figure are measured in turn, many times, and the best of each
is kept, so that other work on the machine disturbs both alike. "Of the limit" counts the AES
blocks that the algorithm needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from noisewise.federated.fss import generate_comparison, generate_point, kernels, key_bytes

LEVELS = 15
TAG = bytes(8)
REPEATS = 15


def rate(function: Callable[[], object], units: float) -> float:
    start = time.thread_time()
    function()
    return units / max(time.thread_time() - start, 1e-9)


def limits() -> dict[str, Callable[[], float]]:
    """Blocks a second, by method."""
    data = np.zeros(1 << 18, np.uint8)
    out = np.empty(data.size + 15, np.uint8)
    cipher = Cipher(algorithms.AES128(bytes(16)), modes.ECB()).encryptor()

    def openssl() -> float:
        return rate(
            lambda: [cipher.update_into(data.data, out.data) for _ in range(60)],
            60 * data.size / 16,
        )

    found = {"OpenSSL ECB": openssl}
    if kernels.available():
        compiled = kernels.load()
        rows = np.zeros((1 << 10, 2), np.uint64)
        compiled.encrypt_rows(rows, 1)
        found["AES instructions"] = lambda: rate(
            lambda: compiled.encrypt_rows(rows, 1000), 1000 * rows.shape[0]
        )
    return found


def workloads(compiled: bool) -> dict[str, tuple[Callable[[], float], float]]:
    """Units a second and AES blocks for each unit, by name."""
    rng = np.random.default_rng(0)
    size = 20_000 if compiled else 5000
    cells = rng.integers(0, 1 << LEVELS, size)
    few = 100 if compiled else 8
    point = generate_point(cells[:few], LEVELS, TAG, compiled=compiled)[0]
    comparison = generate_comparison(cells[:2000], LEVELS, TAG, compiled=compiled)[0]
    thresholds = np.arange(0, 1 << LEVELS, 1 << 11)
    leaves = 1 << (LEVELS - 1)
    options = {"compiled": compiled}
    return {
        "full domain, 2^15 cells (cells/s)": (
            lambda: rate(lambda: point.sum_over_domain(**options), few * (1 << LEVELS)),
            (2 * (leaves - 1) + leaves) / (1 << LEVELS),
        ),
        "comparison, 16 thresholds (evaluations/s)": (
            lambda: rate(lambda: comparison.sum_at(thresholds, **options), 2000 * thresholds.size),
            2 * LEVELS,
        ),
        "point key pairs/s": (
            lambda: rate(lambda: generate_point(cells, LEVELS, TAG, **options), size),
            4 * (LEVELS - 1) + 2,
        ),
        "comparison key pairs/s": (
            lambda: rate(lambda: generate_comparison(cells, LEVELS, TAG, **options), size),
            6 * LEVELS,
        ),
    }


def main() -> None:
    ceilings = limits()
    best_limit = dict.fromkeys(ceilings, 0.0)
    forms = {"numpy": workloads(False)}
    if kernels.available():
        forms["AES instructions"] = workloads(True)
    else:
        print("no numba or no AES instructions: only the numpy form is measured")
    best = {form: dict.fromkeys(works, 0.0) for form, works in forms.items()}
    for _ in range(REPEATS):
        for name, limit in ceilings.items():
            best_limit[name] = max(best_limit[name], limit())
        for form, works in forms.items():
            for name, (work, _) in works.items():
                best[form][name] = max(best[form][name], work())
    limit = max(best_limit.values())
    for name, value in best_limit.items():
        print(f"AES limit, {name:18} {value / 1e6:8.0f} M blocks/s")
    for form, works in forms.items():
        print(f"\n{form}")
        for name, (_, blocks) in works.items():
            value = best[form][name]
            share = value * blocks / limit
            print(f"  {name:44} {value:15,.0f}   {share:5.0%} of the limit")
    print(
        f"\nkey lengths at {LEVELS} levels: point {key_bytes('point', LEVELS)} bytes, "
        f"comparison {key_bytes('comparison', LEVELS)} bytes"
    )
    if "AES instructions" in forms:
        works = forms["AES instructions"]
        full = next(iter(works))
        reached = best["AES instructions"][full] * works[full][1] / limit
        keys = best["AES instructions"]["point key pairs/s"]
        print(
            f"targets: full domain at least 40% of the limit: {reached:.0%}; "
            f"at least 300,000 key pairs a second: {keys:,.0f}"
        )


if __name__ == "__main__":
    main()
