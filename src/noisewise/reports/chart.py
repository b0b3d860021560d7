"""A line chart as SVG: large, in the colours of the page, with its values for the page's script."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Chart", "Thresholds"]

Numbers = Sequence[float] | npt.NDArray[Any]
Style = Literal["solid", "dashed", "dotted"]
_LEFT, _TOP, _WIDTH, _HEIGHT = 92.0, 16.0, 560.0, 430.0
_MOST = 400  # points of a line; more cannot be seen


@dataclass(frozen=True)
class Thresholds:
    """What a slider reads: released rates at each threshold, and released class sizes."""

    thresholds: Numbers
    found: Numbers
    accused: Numbers
    positives: float
    negatives: float


@dataclass
class Chart:
    """Lines over one axis.

    Parameters
    ----------
    x_label, y_label : str
    alt : str
        What the picture shows, for those who do not see it.
    x_range, y_range : tuple of float, optional
        Ends of the axes; those of the lines by default.

    Examples
    --------
    >>> chart = Chart("step", "epsilon", "epsilon grows with the steps")
    >>> "<svg" in chart.line("epsilon", [0, 1, 2], [0.0, 0.5, 0.7]).figure("Epsilon")
    True
    """

    x_label: str
    y_label: str
    alt: str
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    lines: list[tuple[str, list[float], list[float], Style]] = field(default_factory=list)
    bands: list[tuple[list[float], list[float], list[float]]] = field(default_factory=list)
    slider: Thresholds | None = None

    def line(self, name: str, x: Numbers, y: Numbers, style: Style = "solid") -> Chart:
        """Add a line; the first one is followed by pointer and keys."""
        xs, ys = _thinned(x, y)
        self.lines.append((name, xs, ys, style))
        return self

    def band(self, x: Numbers, low: Numbers, high: Numbers) -> Chart:
        """Add a region between two lines."""
        xs, below, above = _thinned(x, low, high)
        self.bands.append((xs, below, above))
        return self

    def with_slider(self, thresholds: Thresholds) -> Chart:
        """Add a slider over thresholds, whose point moves along rates in [0, 1]."""
        self.slider = thresholds
        return self

    def figure(self, caption: str) -> str:
        """Return the chart with its caption, its values and what speaks of them."""
        x, y = self._ranges()
        data: dict[str, Any] = {
            "x_label": self.x_label,
            "lines": [{"name": name, "x": xs, "y": ys} for name, xs, ys, _ in self.lines],
            "place": {
                "left": _LEFT,
                "top": _TOP,
                "width": _WIDTH,
                "height": _HEIGHT,
                "x": x,
                "y": y,
            },
        }
        slider = ""
        if self.slider is not None:
            chosen = self.slider
            grid, found, accused = _thinned(chosen.thresholds, chosen.found, chosen.accused)
            data["slider"] = {
                "thresholds": grid,
                "found": found,
                "accused": accused,
                "positives": _plain(chosen.positives),
                "negatives": _plain(chosen.negatives),
            }
            middle = int(np.argmax(np.subtract(found, accused)))
            slider = (
                '<div class="slider"><label>Threshold: from which score on does the model say yes?'
                f'<input type="range" min="0" max="{len(grid) - 1}" value="{middle}"></label>'
                '<output aria-live="polite"></output></div>'
            )
        text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
        return (
            f'<figure class="interactive">{self._svg(x, y)}'
            '<output aria-live="polite" class="hint">Values: point at the curve, or press arrow '
            "keys on it.</output>"
            f"{slider}<figcaption>{html.escape(caption)}</figcaption>"
            f'<script type="application/json" class="data">{text}</script></figure>'
        )

    def _ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        def ends(given: tuple[float, float] | None, values: list[float]) -> tuple[float, float]:
            low, high = given or (min(values), max(values))
            return (low, high) if high > low else (low - 0.5, low + 0.5)

        xs = [value for _, x, _, _ in self.lines for value in x]
        ys = [value for _, _, y, _ in self.lines for value in y]
        return ends(self.x_range, xs), ends(self.y_range, ys)

    def _svg(self, x: tuple[float, float], y: tuple[float, float]) -> str:
        def across(value: float) -> float:
            return _LEFT + (value - x[0]) / (x[1] - x[0]) * _WIDTH

        def down(value: float) -> float:
            inside = min(max(value, y[0]), y[1])
            return _TOP + _HEIGHT - (inside - y[0]) / (y[1] - y[0]) * _HEIGHT

        def path(points: list[tuple[float, float]]) -> str:
            return " ".join(f"{across(a):.1f},{down(b):.1f}" for a, b in points)

        bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
        parts = []
        for tick in _ticks(*y):
            parts.append(f'<path class="grid" d="M{_LEFT} {down(tick):.1f}H{right}"/>')
            place = f'x="{_LEFT - 10}" y="{down(tick) + 7:.1f}" text-anchor="end"'
            parts.append(f"<text {place}>{tick:g}</text>")
        for tick in _ticks(*x):
            place = f'x="{across(tick):.1f}" y="{bottom + 30}" text-anchor="middle"'
            parts.append(f"<text {place}>{tick:g}</text>")
        for xs, low, high in self.bands:
            around = list(zip(xs, low, strict=True)) + list(zip(xs, high, strict=True))[::-1]
            parts.append(f'<polygon class="b0" points="{path(around)}"/>')
        for row, (name, xs, ys, style) in enumerate(self.lines):
            points = path(list(zip(xs, ys, strict=True)))
            colour = f"c{3 if style == 'dotted' else row % 3}"  # dotted: only for comparison
            parts.append(f'<polyline class="curve {colour} {style}" points="{points}"/>')
            if len(self.lines) > 1:
                height = bottom + 106 + 30 * row
                parts.append(
                    f'<path class="curve {colour} {style}" d="M{_LEFT} {height - 7}h50"/>'
                    f'<text x="{_LEFT + 62}" y="{height}">{html.escape(name)}</text>'
                )
        parts.append(f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
        middle = f'x="{_LEFT + _WIDTH / 2}" y="{bottom + 64}" text-anchor="middle"'
        parts.append(f"<text {middle}>{html.escape(self.x_label)}</text>")
        turned = f'transform="translate(24 {_TOP + _HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
        parts.append(f"<text {turned}>{html.escape(self.y_label)}</text>")
        parts.append(
            f'<line class="cross" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{bottom}" '
            'style="display:none"/><circle class="mark" r="10" cx="0" cy="0" style="display:none"/>'
        )
        tall = bottom + 80 + (30 * len(self.lines) + 16 if len(self.lines) > 1 else 0)
        return (
            f'<svg class="chart" viewBox="0 0 {right + 20} {tall}" role="img" tabindex="0" '
            f'aria-label="{html.escape(self.alt)}">{"".join(parts)}</svg>'
        )


def _plain(value: Any) -> float:
    number = float(value)
    return number if math.isfinite(number) else 0.0


def _thinned(*columns: Numbers) -> list[list[float]]:
    """Columns as plain numbers, at most so many that one could see them."""
    arrays = [np.asarray(column, dtype=np.float64).ravel() for column in columns]
    keep = np.isfinite(arrays).all(axis=0)
    arrays = [array[keep] for array in arrays]
    if arrays[0].size == 0:
        arrays = [np.zeros(2) for _ in arrays]
    rows = np.unique(np.linspace(0, arrays[0].size - 1, _MOST).round().astype(int))
    return [[float(f"{value:.6g}") for value in array[rows]] for array in arrays]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, four to eight of them."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{step * number:.10g}") for number in range(first, last + 1)]
