"""What the bug finder says of Opacus, and how each finding was confirmed without it.

``python -m benchmarks debug_opacus``; needs ``pip install opacus`` (not a dependency of ours).
Each way in which Opacus can compute private gradients is wrapped as a training function and
checked at default effort; then the findings are reproduced in a few lines each, by what the
library itself says or does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import table
from noisewise.debugging import TESTS, check

EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 3]))
TENSORS = 4
ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 1e8,
    "min_clipbound": 1e-8,
    "unclipped_num_std": 5.0,
}
MODES: dict[str, dict[str, Any]] = {
    "hooks": {},
    "functorch": {"grad_sample_mode": "functorch"},
    "ExpandedWeights": {"grad_sample_mode": "ew"},
    "ghost": {"grad_sample_mode": "ghost"},
    "per-layer at C/sqrt(K)": {"clipping": "per_layer"},
    "adaptive": ADAPTIVE,
    "adaptive, without freshness": ADAPTIVE,
    "no Poisson sampling": {"poisson_sampling": False},
}


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def private(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    options: Mapping[str, Any],
    *,
    clip: float,
    noise_multiplier: float,
    batch_size: int,
    lr: float,
    seed: int,
) -> tuple[Any, ...]:
    """Return what make_private returns: module, optimizer, perhaps a criterion, loader."""
    from opacus import PrivacyEngine

    given = dict(options)
    norm: Any = clip
    if given.get("clipping") == "per_layer":
        norm = [clip / math.sqrt(TENSORS)] * TENSORS
    draws = torch.Generator().manual_seed(seed + 1_000_003)
    loader = DataLoader(TensorDataset(*data), batch_size=batch_size, generator=draws)
    made = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=noise_multiplier,
        max_grad_norm=norm,
        noise_generator=torch.Generator().manual_seed(seed),
        **given,
    )
    return tuple(made)


def training(options: Mapping[str, Any]) -> Callable[..., dict[str, Tensor]]:
    """Wrap one mode of Opacus as a training function."""

    def train(
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: tuple[Tensor, Tensor],
        init: dict[str, Tensor],
        steps: int,
        lr: float,
    ) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        model = build()
        model.load_state_dict(init)
        model.train()
        module, optimizer, *criterion, loader = private(
            model,
            data,
            options,
            clip=clip,
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
        )
        loss_fn = criterion[0] if criterion else nn.CrossEntropyLoss()
        taken = 0
        while taken < steps:
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(module(x), y).backward()
                optimizer.step()
                taken += 1
                if taken == steps:
                    break
        return {k.removeprefix("_module."): v.detach() for k, v in module.state_dict().items()}

    return train


def findings_of(name: str) -> tuple[str, ...]:
    """Check one mode; return the row of the table."""
    tests = [test for test in TESTS if not ("without freshness" in name and test == "freshness")]
    train = training(MODES[name])
    findings = check(train, build, cross_entropy, example=EXAMPLE, tests=tests)
    return name, ", ".join(findings.bugs) or "none", ", ".join(findings.skipped)


# --- confirmations: none of them uses the bug finder


def divisor() -> str:
    """The divisor that Opacus computes from the size of the dataset."""
    sizes = []
    for count in (16, 17):
        data = (torch.randn(count, 8), torch.zeros(count, dtype=torch.long))
        _, optimizer, *_ = private(
            build(), data, {}, clip=1.0, noise_multiplier=1.0, batch_size=8, lr=0.1, seed=0
        )
        sizes.append(optimizer.expected_batch_size)
    return f"optimizer.expected_batch_size at batch size 8: {sizes[0]} with 16 records, {sizes[1]} \
with 17"


def not_finite(options: Mapping[str, Any]) -> str:
    """One record with a NaN among four, one step without noise."""
    x, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    x[0, 0] = math.nan
    arguments = {"clip": 1.0, "noise_multiplier": 0.0, "batch_size": 4, "seed": 0}
    start = {k: v.clone() for k, v in build().state_dict().items()}
    after = training(options)(data=(x, y), init=start, steps=1, lr=0.1, **arguments)
    bad = sum(int((~torch.isfinite(v)).sum()) for v in after.values())
    return f"{bad} of {sum(v.numel() for v in after.values())} weights are NaN after one step"


def empty_batch(options: Mapping[str, Any]) -> str:
    """A step on a batch of no records, as Poisson sampling draws it."""
    data = (torch.randn(16, 8), torch.zeros(16, dtype=torch.long))
    module, optimizer, *criterion, _ = private(
        build(), data, options, clip=1.0, noise_multiplier=1.0, batch_size=2, lr=0.1, seed=0
    )
    loss_fn = criterion[0] if criterion else nn.CrossEntropyLoss()
    try:
        loss_fn(module(data[0][:0]), data[1][:0]).backward()
        optimizer.step()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "accepted"


def clip_moves() -> str:
    """The clipping norm of adaptive clipping over three steps."""
    data = (torch.randn(16, 8), torch.zeros(16, dtype=torch.long))
    module, optimizer, *_, _ = private(
        build(), data, ADAPTIVE, clip=0.1, noise_multiplier=1.0, batch_size=16, lr=0.1, seed=0
    )
    norms = []
    for _ in range(3):
        norms.append(float(optimizer.max_grad_norm))
        optimizer.zero_grad()
        cross_entropy(module(data[0]), data[1]).backward()
        optimizer.step()
    return "optimizer.max_grad_norm over three steps: " + ", ".join(f"{n:.4g}" for n in norms)


def order_of_batches() -> str:
    """Which records the first batch has without Poisson sampling, for two seeds."""
    first = []
    for seed in (0, 1):
        data = (torch.arange(12.0)[:, None].expand(12, 8), torch.zeros(12, dtype=torch.long))
        *_, loader = private(
            build(),
            data,
            MODES["no Poisson sampling"],
            clip=1.0,
            noise_multiplier=1.0,
            batch_size=4,
            lr=0.1,
            seed=seed,
        )
        first.append([int(v) for v in next(iter(loader))[0][:, 0]])
    return f"first batch of a loader that does not shuffle: {first[0]} and {first[1]}"


def main() -> None:
    """Check every mode, then confirm; OPACUS_MODES names some of them, with ; between."""
    if importlib.util.find_spec("opacus") is None:
        print("  opacus is not installed: pip install opacus")
        return
    import opacus

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    chosen = (
        os.environ.get("OPACUS_MODES", "").split(";") if "OPACUS_MODES" in os.environ else MODES
    )
    rows = []
    for name in chosen:
        with contextlib.redirect_stdout(io.StringIO()):
            rows.append(findings_of(name))
        print("  " + " | ".join(rows[-1]), flush=True)
    title = f"Opacus {opacus.__version__}, torch {torch.__version__}"
    table(title, ("mode", "findings", "tests that could not run"), rows)
    torch.manual_seed(0)
    confirmed = [
        ("divisor-depends-on-dataset-size", "hooks", divisor()),
        ("non-finite-record", "hooks", not_finite({})),
        ("non-finite-record", "ghost", not_finite(MODES["ghost"])),
        *(
            ("empty-batch-fails", name, empty_batch(MODES[name]))
            for name in ("hooks", "ExpandedWeights", "ghost", "adaptive")
        ),
        ("noise-and-signal-disagree-over-steps", "adaptive", clip_moves()),
        ("batch-size-fixed", "no Poisson sampling", order_of_batches()),
    ]
    table("Confirmed without the bug finder", ("finding", "mode", "how"), confirmed)


if __name__ == "__main__":
    main()
