"""``certify``: what can be proven about a model and a loss, as a table.

The certificate states, for each layer and every record whose input norm obeys the bound,
how large its output, its cotangent and its gradients can be. It is computed from weights,
shapes and constants, never from data.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.arithmetic import hypotenuse
from noisewise.bounds.graph import Graph, trace
from noisewise.bounds.improvements import Improvements
from noisewise.bounds.layer import LayerBounds, NormMemory, Signal
from noisewise.bounds.losses import loss_rule_for, per_record
from noisewise.bounds.propagation import Propagation, propagate
from noisewise.privacy import round_up

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

__all__ = ["Certificate", "bounds_its_input", "certify"]


def certify(
    model: nn.Module,
    input_shape: Sequence[int],
    input_norm: float | None = None,
    loss: Any = None,
    *,
    loss_clip: float | None = None,
    improvements: Improvements | None = None,
    input_dtype: torch.dtype | None = None,
) -> Certificate:
    """Bound every layer's output, cotangent and per-record gradient.

    Parameters
    ----------
    model : Module
        Takes a batch with records along the first axis.
    input_shape : sequence of int
        Shape of one record, without the batch axis.
    input_norm : float, optional
        Bound on the Euclidean norm of a record, which the caller promises. By default
        1.0, unless the model bounds its input by itself (a leading ``BoundedInput`` or an
        embedding); then that bound is used and needs no promise.
    loss : loss module or function
        A torch loss, one of ``noisewise.nn.losses``, or any loss that is registered. It is
        read per record, whatever its reduction.
    loss_clip : float, optional
        Limit to which each record's loss gradient will be clipped.
    improvements : Improvements, optional
        Which of the smaller bounds to use; all by default.
    input_dtype : torch.dtype, optional
        Type of the input, where it cannot be guessed.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> layer = nn.Linear(4, 3, bias=False)
    >>> certificate = certify(layer, (4,), input_norm=2.0, loss=nn.L1Loss(reduction="sum"))
    >>> round(certificate.sensitivities()["weight"], 6)  # 2 * sqrt(3)
    3.464102
    """
    if loss is None:
        raise TypeError(
            "certify needs the loss, because it starts every gradient: for example "
            "loss=noisewise.nn.losses.CrossEntropy()"
        )
    shape = tuple(checks.integer("input_shape", size, minimum=1) for size in input_shape)
    if loss_clip is not None:
        loss_clip = checks.positive("loss_clip", loss_clip)
    ruled = loss_rule_for(loss)
    graph = trace(model, shape, input_dtype)
    enforced = bounds_its_input(graph)
    if input_norm is None:
        norm = math.inf if enforced else 1.0
    else:
        norm = checks.positive("input_norm", input_norm)
    use = Improvements() if improvements is None else improvements
    found = propagate(graph, norm, ruled, improvements=use, loss_clip=loss_clip)
    return Certificate(
        layers=found.layers,
        gradients=found.gradients,
        input_norm=norm,
        enforced=enforced,
        loss=type(ruled[1]).__name__,
        loss_lipschitz=found.loss_lipschitz,
        output_norm=found.output_norm,
        improvements=use,
        subject=_Subject(model, loss, loss_clip, graph, found),
    )


def bounds_its_input(graph: Graph) -> bool:
    """Whether every layer that reads the input has a bounded output for any input."""
    unknown = Signal(graph.input_shape, math.inf)
    readers = [node for node in graph.nodes[1:] if 0 in node.inputs]
    for node in readers:
        call = node.call((unknown,) * len(node.inputs), NormMemory())
        node.rule.check(call)
        if not math.isfinite(node.rule.output_norm(call)):
            return False
    return bool(readers)


@dataclass(frozen=True)
class _Subject:
    """What was certified, kept for questions about it."""

    model: nn.Module
    loss: Any
    loss_clip: float | None
    graph: Graph
    found: Propagation


@dataclass(frozen=True)
class Certificate:
    """Proven bounds of a model and a loss, for every record.

    Attributes
    ----------
    layers : tuple of LayerBounds
        One entry per use of a layer, from input to output.
    gradients : dict of str to float
        Bound on one record's gradient, per parameter, summed over its uses.
    input_norm : float
        Norm bound of a record that was assumed; ``inf`` if nothing was.
    enforced : bool
        Whether the model bounds its input by itself, so that `input_norm` is no promise.
    """

    layers: tuple[LayerBounds, ...]
    gradients: dict[str, float]
    input_norm: float
    enforced: bool
    loss: str
    loss_lipschitz: float
    output_norm: float
    improvements: Improvements
    subject: _Subject = field(repr=False, compare=False)

    @property
    def total(self) -> float:
        """Bound on one record's gradient of all parameters together."""
        return hypotenuse(*self.gradients.values())

    def sensitivities(self) -> dict[str, float]:
        """Return, per parameter, how far adding or removing a record moves the gradient sum.

        In exact arithmetic; who sums in floating point adds a slack for rounding. A
        replaced record moves the sum by up to twice as much.
        """
        return dict(self.gradients)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per layer and parameter, and a last one for everything together."""
        rows: list[dict[str, Any]] = []
        for layer in self.layers:
            common = {
                "layer": layer.path,
                "type": layer.kind,
                "rule": layer.rule,
                "output_norm": layer.output_norm,
                "lipschitz": layer.lipschitz,
                "cotangent": layer.cotangent,
            }
            if not layer.gradients:
                rows.append({**common, "parameter": "", "gradient": None})
            for name, value in layer.gradients.items():
                rows.append({**common, "parameter": name, "gradient": value})
        rows.append(
            {
                "layer": "total",
                "type": "",
                "rule": "",
                "output_norm": self.output_norm,
                "lipschitz": None,
                "cotangent": self.loss_lipschitz,
                "parameter": "all",
                "gradient": self.total,
            }
        )
        return rows

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a table of pandas."""
        import pandas as pd

        frame: pd.DataFrame = pd.DataFrame(self.rows())
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "relation": "add-remove",
            "input_norm": self.input_norm if math.isfinite(self.input_norm) else None,
            "input_norm_enforced": self.enforced,
            "loss": self.loss,
            "loss_lipschitz": self.loss_lipschitz,
            "output_norm": self.output_norm,
            "layers": self.rows()[:-1],
            "sensitivities": self.sensitivities(),
            "total": self.total,
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield self._table(with_rules=options.max_width >= 100)

    def _table(self, with_rules: bool) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            title=f"Bounds for one record, loss {self.loss}",
            caption=self._caption(),
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        words = ("layer", "type", "rule", "parameter") if with_rules else ("layer", "type", "param")
        for heading in words:
            table.add_column(heading, overflow="fold")
        for heading in ("output", "Lipschitz", "cotangent", "gradient"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows():
            rule = (row["rule"].removesuffix("Rule"),) if with_rules else ()
            table.add_row(
                row["layer"],
                row["type"],
                *rule,
                row["parameter"].rpartition(".")[2],
                *(
                    _number(row[key])
                    for key in ("output_norm", "lipschitz", "cotangent", "gradient")
                ),
                style="bold" if row["layer"] == "total" else None,
            )
        return table

    def __str__(self) -> str:
        from rich.console import Console

        buffer = io.StringIO()
        Console(file=buffer, width=110, force_terminal=False).print(self)
        return buffer.getvalue().rstrip()

    def _caption(self) -> str:
        source = "enforced by the model" if self.enforced else "promised by the caller"
        norm = "" if math.isinf(self.input_norm) else f"record norm <= {self.input_norm:g}, "
        return f"{norm}input bound {source}; relation add-remove; no data was read"

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the gradient bound of every parameter as a bar."""
        import matplotlib.pyplot as plt

        if axes is None:
            _, axes = plt.subplots(
                figsize=(7, 1.2 + 0.32 * len(self.gradients)), layout="constrained"
            )
        names = list(self.gradients)[::-1]
        values = [self.gradients[name] for name in names]
        bars = axes.barh(names, values, color="#4477aa")
        axes.bar_label(bars, labels=[_number(value) for value in values], padding=3, fontsize=8)
        positive = [value for value in values if value > 0]
        if positive and max(positive) / min(positive) > 100:
            axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_xlabel("bound on one record's gradient norm (add-remove sensitivity)")
        axes.set_title(f"Certified gradient bounds, loss {self.loss}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def tightness(self, x: Tensor, y: Tensor) -> pd.DataFrame:
        """Compare the bounds with the gradients of a sample. Reads data: not private.

        Parameters
        ----------
        x, y : Tensor
            A batch of records and targets. Use public or synthetic data; the figures depend
            on them and are covered by no epsilon.

        Returns
        -------
        DataFrame
            Per parameter the bound, the largest and the median norm of a record's gradient,
            and their ratios to the bound (1 means that nothing is wasted).
        """
        import pandas as pd

        norms = _gradient_norms(self.subject, x, y)
        rows = []
        for name, bound in self.gradients.items():
            values = norms[name]
            largest, median = float(values.max()), float(values.median())
            rows.append(
                {
                    "parameter": name,
                    "bound": bound,
                    "largest": largest,
                    "median": median,
                    "largest_ratio": largest / bound if bound else math.nan,
                    "median_ratio": median / bound if bound else math.nan,
                }
            )
        frame: pd.DataFrame = pd.DataFrame(rows)
        frame.attrs["note"] = "computed from data that was given; not private"
        return frame


def _gradient_norms(subject: _Subject, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Per-record gradient norms, one record at a time: slow, and right for every layer."""
    learnt = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    losses = per_record(subject.loss)
    collected: dict[str, list[Tensor]] = {name: [] for name in learnt}
    for record, target in zip(x, y, strict=True):
        output = subject.model(record[None])
        (cotangent,) = torch.autograd.grad(losses(output, target[None]).sum(), output)
        if subject.loss_clip is not None:
            norm = torch.linalg.vector_norm(cotangent).clamp_min(1e-30)
            cotangent = cotangent * (subject.loss_clip / norm).clamp_max(1.0)
        output = subject.model(record[None])
        gradients = torch.autograd.grad(
            output, list(learnt.values()), cotangent, allow_unused=True, materialize_grads=True
        )
        for name, gradient in zip(learnt, gradients, strict=True):
            collected[name].append(torch.linalg.vector_norm(gradient))
    return {name: torch.stack(values) for name, values in collected.items()}


def _number(value: float | None) -> str:
    return "" if value is None else round_up(value)
