"""Figures 2 to 8 of Anonymous (2023) at its own scale, one command each, and T1 to T4 as printed.

``python -m benchmarks.private_bugs 2`` (or 3 ... 8, or ``tests``) draws one figure for a ResNet-20
on the shapes of CIFAR-10 and for a BERT-like transformer on token sequences, with synthetic records
as the paper allows, prints its numbers and writes ``docs/images/private_bugs_figure2.png``; ``all``
writes the page ``docs/debugging-private-bugs.md`` too. Options:
``--transformer small|large`` (4 layers of width 256, 11 million parameters; or 12 of width 768,
110 million, BERT-base itself, which takes about ten minutes a figure on two cores).

The ResNet has group norms, since batch norm has no gradient of one record.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import table
from noisewise.debugging.synthesis import Records

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PAGE = IMAGES.parent / "debugging-private-bugs.md"
SIZES = {"small": (256, 4, 4, 30_522), "large": (768, 12, 12, 30_522)}


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.one, self.two = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inputs, width, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        out = self.two(self.second(torch.relu(self.one(self.first(x)))))
        return torch.relu(out + (self.short(x) if self.short is not None else x))


def resnet20() -> nn.Module:
    """He et al. (2016), for images of 32 x 32: 0.27 million parameters."""
    blocks = [
        Block(16 if i < 4 else 32 if i < 7 else 64, width, 2 if i in (4, 7) else 1)
        if i not in (4, 7)
        else Block(width // 2, width, 2)
        for i, width in ((k, 16 if k < 4 else 32 if k < 7 else 64) for k in range(1, 10))
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), *blocks, *head)


class Bert(nn.Module):
    """Token and position embeddings, torch's transformer encoder, a head on the first token."""

    def __init__(self, width: int, layers: int, heads: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        places = self.places(torch.arange(tokens.shape[1]))
        out: Tensor = self.head(self.encoder(self.words(tokens) + places)[:, 0])
        return out


@dataclass(frozen=True)
class Setting:
    """A model with records of its shape."""

    name: str
    build: Callable[[], nn.Module]
    x: Tensor
    classes: int

    def records(self, model: nn.Module) -> Records:
        """Return synthetic records with soft labels, whose gradient can be made zero."""
        soft = torch.full((2, self.classes), 1 / self.classes)
        return Records.like(model, cross_entropy, (self.x, soft))


def settings(transformer: str) -> list[Setting]:
    width, layers, heads, words = SIZES[transformer]
    tokens = torch.randint(words, (2, 32), generator=torch.Generator().manual_seed(0))
    return [
        Setting("ResNet-20, CIFAR-10", resnet20, torch.zeros(2, 3, 32, 32), 10),
        Setting(
            f"transformer {layers} x {width}, SST-2",
            lambda: Bert(width, layers, heads, words),
            tokens,
            2,
        ),
    ]


class Lab:
    """One model, and DP-SGD or DP-Adam on it with the faults that the paper looks for."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.setting, self.model = setting, setting.build().eval()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.start = [p.detach().clone() for p in self.parameters]
        self.records = setting.records(self.model)
        state = {n: v.detach() for n, v in self.model.state_dict().items()}
        # Records without gradient beside one with a large one, as in section 3.1.
        made = self.records.zero_gradient_batch(state, 16)
        assert made is not None
        self.batch = made[1]
        self.norm = self.records.gradient_norms(state, (self.batch[0][:1], self.batch[1][:1]))[0]

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of the mean loss."""
        return list(torch.autograd.grad(cross_entropy(self.model(x), y), self.parameters))

    def train(
        self,
        size: int,
        clip: float,
        *,
        clipping: str,
        noise: str = "none",
        sigma: float = 0.0,
        optimizer: str = "sgd",
        steps: int = 1,
        lr: float = 0.0,
        seed: int = 0,
    ) -> tuple[float, Tensor]:
        """Return the change of the loss of the first record, and where the weights ended."""
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p, w in zip(self.parameters, self.start, strict=True):
                p.copy_(w)
        made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        optim = made(self.parameters, lr=lr)
        x, y = self.batch
        before = self.loss()
        for _ in range(steps):
            total = [torch.zeros_like(p) for p in self.parameters]
            for i in range(size):
                g = self.gradient(x[i : i + 1], y[i : i + 1])
                factor = self.factor(g, clip) if clipping == "record" else 1.0
                for t, part in zip(total, g, strict=True):
                    t.add_(part, alpha=factor / size)
            if clipping == "batch":
                factor = self.factor(total, clip)
                total = [t * factor for t in total]
            deviation = {"calibrated": sigma * clip, "uncalibrated": sigma, "none": 0.0}[noise]
            for p, t in zip(self.parameters, total, strict=True):
                p.grad = t + deviation / size * torch.randn(p.shape, generator=source)
            optim.step()
        moved = torch.cat(
            [(p.detach() - w).flatten() for p, w in zip(self.parameters, self.start, strict=True)]
        )
        return self.loss() - before, moved

    def factor(self, g: list[Tensor], clip: float) -> float:
        """Return what makes a gradient no longer than C."""
        return min(1.0, clip / max(float(torch.stack([t.norm() for t in g]).norm()), 1e-12))

    def loss(self) -> float:
        """Return the loss of the record with the large gradient."""
        with torch.no_grad():
            return float(cross_entropy(self.model(self.batch[0][:1]), self.batch[1][:1]))

    def rate(self, optimizer: str) -> float:
        """Return a learning rate at which one step changes the loss a little."""
        return 1e-4 if optimizer == "adam" else 1e-2 / self.norm


Curve = tuple[np.ndarray, np.ndarray]


def against_clip(lab: Lab, optimizer: str) -> dict[str, Curve]:
    """Figures 2 and 5: one record, one step, no noise."""
    unit = 1e-8 if optimizer == "adam" else lab.norm
    grid = unit * np.logspace(-3, 1, 8)
    lr = lab.rate(optimizer)
    return {
        label: (
            grid,
            np.asarray(
                [lab.train(1, float(c), clipping=kind, optimizer=optimizer, lr=lr)[0] for c in grid]
            ),
        )
        for label, kind in (("per-example clipping", "record"), ("no clipping", "none"))
    }


def against_batch(lab: Lab, optimizer: str) -> dict[str, Curve]:
    """Figures 3 and 6: one record with a gradient among B - 1 without."""
    sizes = np.asarray([1, 2, 4, 8, 16])
    clip = 0.05e-8 if optimizer == "adam" else 0.1 * lab.norm / 16
    lr = 1e-2 if optimizer == "adam" else 1e-2 / clip
    return {
        label: (
            sizes,
            np.asarray(
                [
                    abs(lab.train(int(b), clip, clipping=kind, optimizer=optimizer, lr=lr)[0])
                    for b in sizes
                ]
            ),
        )
        for label, kind in (("per-example clipping", "record"), ("mini-batch clipping", "batch"))
    }


def against_noise(lab: Lab, optimizer: str, clipping: str) -> dict[str, Curve]:
    """Figures 4, 7 and 8: distances between seeds, C so large that nothing is clipped."""
    star = 2 * lab.norm
    grid = np.linspace(star, 10 * star, 6)
    lr = 1e-6 if optimizer == "adam" else 1e-3 / lab.norm
    curves = {}
    for label in ("calibrated", "uncalibrated", "none"):
        distances = []
        for clip in grid:
            ends = [
                lab.train(
                    1,
                    float(clip),
                    clipping=clipping,
                    noise=label,
                    sigma=1e-4 if optimizer == "adam" else 1e-2,
                    optimizer=optimizer,
                    steps=3,
                    lr=lr,
                    seed=seed,
                )[1]
                for seed in range(2)
            ]
            distances.append(float((ends[0] - ends[1]).norm()))
        curves[label] = (grid, np.asarray(distances))
    return curves


def printed_p_value(curve: Curve) -> float:
    """The paper's test: p-value of a regression slope of zero; a flat line has none."""
    if float(np.ptp(curve[1])) <= 1e-9 * max(float(np.max(np.abs(curve[1]))), 1e-300):
        return 1.0
    return float(stats.linregress(*curve).pvalue)


def sharper(curve: Curve, kind: str) -> str:
    """Ours: spread over C, exponent in B, or growth of distances."""
    x, y = curve
    size = max(float(np.max(np.abs(y))), 1e-300)
    if kind == "clip":
        return f"varies by {np.ptp(y) / size:.1%}"
    if kind == "batch":
        return f"B^{np.polyfit(np.log(x), np.log(np.maximum(y, 1e-6 * size)), 1)[0]:.2f}"
    return f"grows {y[-1] / y[0]:.2f}x" if y[0] > 0 else "all zero"


FIGURES: dict[int, list[tuple[str, str, Callable[[Lab], dict[str, Curve]]]]] = {
    2: [("clip", "SGD", lambda lab: against_clip(lab, "sgd"))],
    3: [("batch", "SGD", lambda lab: against_batch(lab, "sgd"))],
    4: [
        ("noise", "per-example", lambda lab: against_noise(lab, "sgd", "record")),
        ("noise", "mini-batch", lambda lab: against_noise(lab, "sgd", "batch")),
    ],
    5: [("clip", "Adam", lambda lab: against_clip(lab, "adam"))],
    6: [("batch", "Adam", lambda lab: against_batch(lab, "adam"))],
    7: [("noise", "no clipping", lambda lab: against_noise(lab, "sgd", "none"))],
    8: [
        ("noise", "Adam, per-example", lambda lab: against_noise(lab, "adam", "record")),
        ("noise", "Adam, no clipping", lambda lab: against_noise(lab, "adam", "none")),
    ],
}
AXES = {
    "clip": ("clipping norm C", "change of loss"),
    "batch": ("batch size B", "|change of loss|"),
    "noise": ("clipping norm C", "distance between seeds"),
}


def figure(number: int, labs: list[Lab]) -> list[tuple[str, ...]]:
    """Draw one figure of the paper; return its numbers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(lab, *panel) for lab in labs for panel in FIGURES[number]]
    drawn = Figure(figsize=(4.4 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(drawn)
    rows = []
    for axis, (lab, kind, what, run) in zip(
        drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        began, least = time.perf_counter(), float("inf")
        for (label, curve), style in zip(run(lab).items(), ("o-", "s--", "^:"), strict=False):
            p_value = printed_p_value(curve)
            axis.plot(*curve, style, label=f"{label} (p = {p_value:.1e})")
            least = min([least, *(float(y) for y in curve[1] if y > 0)])
            rows.append((lab.setting.name, what, label, f"{p_value:.1e}", sharper(curve, kind)))
        if kind == "clip":
            axis.set_xscale("log")
        if kind == "batch":
            axis.set(xscale="log", yscale="log")
        if kind == "noise":
            # Distances that do not follow C are smaller by decades, and those without noise zero.
            axis.set_xscale("log")
            axis.set_yscale("symlog", linthresh=least, linscale=0.5)
        axis.set(title=f"{lab.setting.name}\n{what}", xlabel=AXES[kind][0], ylabel=AXES[kind][1])
        axis.legend(fontsize=7)
        print(f"  {lab.setting.name}, {what}: {time.perf_counter() - began:.0f} s", flush=True)
    place = IMAGES / f"private_bugs_figure{number}.png"
    drawn.savefig(place, dpi=100)
    print(f"  {place}")
    return rows


def law(lab: Lab) -> tuple[str, ...]:
    """T4: the noise of one step of SGD over lr C sigma / B against N(0, 1)."""
    clip, sigma, lr = 0.3 * lab.norm, 1.7, 1e-2 / lab.norm
    arguments: dict[str, Any] = {"clipping": "record", "lr": lr}
    silent = lab.train(1, clip, **arguments)[1]
    noisy = lab.train(1, clip, noise="calibrated", sigma=sigma, **arguments)[1]
    values = ((noisy - silent) / (lr * clip * sigma)).double().numpy()[:200_000]
    test = stats.kstest(values, "norm")
    return (
        lab.setting.name,
        "T4, SGD",
        "calibrated",
        f"{test.pvalue:.1e}",
        f"deviation {values.std():.4f}",
    )


TITLES = {
    2: "one record, the change of its loss against C (T1)",
    3: "one record with a gradient among B - 1 without (T2)",
    4: "distances between seeds against C, nothing is clipped (T3)",
    5: "figure 2 under Adam",
    6: "figure 3 under Adam",
    7: "figure 4 without clipping",
    8: "figures 4 and 7 under Adam",
}


def write_page(labs: list[Lab], header: tuple[str, ...]) -> None:
    """Draw all figures and write the page of the documentation."""
    sizes = [sum(p.numel() for p in lab.parameters) / 1e6 for lab in labs]
    names = " and ".join(
        f"{lab.setting.name} ({size:.2f} million parameters)"
        for lab, size in zip(labs, sizes, strict=True)
    )
    lines = [
        "# Figures 2 to 8 of Anonymous (2023) at its own scale",
        "",
        "Written by `python -m benchmarks.private_bugs all`; `python -m benchmarks.private_bugs 2` "
        "(to 8) "
        f"draws one of them, `tests` runs T1 to T4. {names}, synthetic records of these shapes. "
        "*As printed* is the p-value of the paper's regression; *ours* is the sharper reading: the "
        "spread of the change of loss over C, the exponent in B, the growth of distances over a "
        "tenfold C. Correct code must vary with C, fall like 1/B, and have distances that grow "
        "tenfold with calibrated noise.",
        "",
    ]
    for number, title in TITLES.items():
        rows = figure(number, labs)
        lines += [f"## Figure {number}: {title}", ""]
        lines += [f"![Figure {number}](images/private_bugs_figure{number}.png)", ""]
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    lines += ["## T4: the law of the noise", ""]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(law(lab)) + " |" for lab in labs] + [""]
    PAGE.write_text("\n".join(lines), encoding="utf-8")
    print(f"  {PAGE}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.private_bugs")
    parser.add_argument("what", nargs="?", default="tests", help="2 to 8, tests, or all")
    parser.add_argument("--transformer", choices=SIZES, default="small")
    given = parser.parse_args(arguments if arguments is not None else [])
    labs = [Lab(setting) for setting in settings(given.transformer)]
    for lab in labs:
        count = sum(p.numel() for p in lab.parameters)
        print(f"  {lab.setting.name}: {count / 1e6:.2f} million parameters")
    header = ("model", "training", "curve", "p-value as printed", "ours")
    if given.what == "all":
        write_page(labs, header)
        return
    if given.what == "tests":
        rows = [row for number in (2, 3, 4) for row in figure(number, labs)]
        rows += [law(lab) for lab in labs]
        table("T1 (figure 2), T2 (3), T3 (4) and T4 of Anonymous (2023)", header, rows)
        return
    table(f"Figure {given.what} of Anonymous (2023)", header, figure(int(given.what), labs))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
