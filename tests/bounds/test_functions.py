"""Functions and methods that a forward may call: each is measured against its bounds."""

# ruff: noqa: E501 (a table is easier to read with one example per line)

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as tf

from noisewise.bounds import Improvements, propagate, trace
from noisewise.bounds.functions import functions
from noisewise.bounds.rules import arithmetic as ruled
from noisewise.errors import UnsupportedModelError

Forward = Callable[[Tensor], Tensor]
IMAGE, LINE, VECTOR = (2, 4, 4), (2, 6), (6,)


class Called(nn.Module):
    """A model that is nothing but one function."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def calls(target: object) -> list[tuple[tuple[int, ...], Forward]]:
    """How each function is called in the test: (record shape, forward)."""
    plain: list[object] = [
        tf.relu, tf.relu_, torch.relu, torch.relu_, tf.relu6, tf.elu, tf.celu, tf.selu,
        tf.leaky_relu, tf.tanh, torch.tanh, tf.sigmoid, torch.sigmoid, tf.softplus, tf.gelu, tf.silu,
        tf.mish, tf.hardswish, tf.hardtanh, tf.hardsigmoid, tf.softsign, tf.logsigmoid,
        tf.tanhshrink, tf.softshrink, torch.abs, operator.abs, torch.neg, operator.neg, tf.dropout,
    ]  # fmt: skip
    if target in plain:
        return [(VECTOR, lambda x: target(x * 1.0))]
    if isinstance(target, str) and target in METHODS:
        return METHODS[target]
    return FUNCTIONS.get(target, [])


def method(name: str, *args: object, shape: tuple[int, ...] = VECTOR):
    return [(shape, lambda x: getattr(x * 1.0, name)(*args))]


METHODS: dict[str, list[tuple[tuple[int, ...], Forward]]] = {
    name: method(name)
    for name in ("relu", "relu_", "tanh", "sigmoid", "abs", "neg", "contiguous", "clone", "detach", "double", "float")
} | {
    "softmax": method("softmax", 1), "log_softmax": method("log_softmax", -1),
    "flatten": method("flatten", 1, shape=LINE), "permute": method("permute", 0, 2, 1, shape=LINE),
    "transpose": method("transpose", 1, 2, shape=LINE), "movedim": method("movedim", 1, 2, shape=LINE),
    "unsqueeze": method("unsqueeze", 1), "squeeze": method("squeeze", 1, shape=(1, 3)),
    "unflatten": method("unflatten", 1, (2, 3)), "view_as": [(LINE, lambda x: x.view_as(x))],
    "view": [(LINE, lambda x: x.view(x.size(0), -1))],
    "reshape": [(LINE, lambda x: x.reshape(x.shape[0], 3, 4))],
    "expand": [((1, 3), lambda x: x.expand(-1, 4, 3))], "repeat": [(VECTOR, lambda x: x.repeat(1, 2))],
    "add": [(VECTOR, lambda x: x.add(x))], "add_": [(VECTOR, lambda x: (x * 2).add_(x))],
    "sub": [(VECTOR, lambda x: x.sub(-x))], "sub_": [(VECTOR, lambda x: (x * 2).sub_(-x))],
    "mul": [(VECTOR, lambda x: x.mul(-3.0))], "mul_": [(VECTOR, lambda x: (x * 2).mul_(0.5))],
    "div": [(VECTOR, lambda x: x.div(-3.0))], "div_": [(VECTOR, lambda x: (x * 2).div_(0.3))],
    "chunk": [(LINE, lambda x: x.chunk(2, 1)[0])], "split": [(LINE, lambda x: x.split(2, 2)[1])],
    "tensor_split": [(LINE, lambda x: x.tensor_split(2, 1)[1])],
    "mean": [(LINE, lambda x: x.mean(2)), (IMAGE, lambda x: x.mean((2, 3), keepdim=True))],
    "sum": [(LINE, lambda x: x.sum(dim=-1))],
    "amax": [(LINE, lambda x: x.amax(2))], "amin": [(LINE, lambda x: x.amin((1, 2)))],
    "clamp": [(VECTOR, lambda x: x.clamp(-0.2, 0.1))], "clamp_": [(VECTOR, lambda x: (x * 1.0).clamp_(min=0.05))],
}  # fmt: skip
FUNCTIONS: dict[object, list[tuple[tuple[int, ...], Forward]]] = {
    tf.max_pool1d: [(LINE, lambda x: tf.max_pool1d(x, 3, 1))],
    tf.max_pool2d: [
        (IMAGE, lambda x: tf.max_pool2d(x, 3, stride=2, padding=1)),
        (IMAGE, lambda x: tf.max_pool2d(x, 3, 2, 0, 1, True)),
    ],
    tf.max_pool3d: [((1, 3, 3, 3), lambda x: tf.max_pool3d(x, 2, 1))],
    torch.max_pool1d: [(LINE, lambda x: torch.max_pool1d(x, 3, 1))],
    torch.max_pool2d: [(IMAGE, lambda x: torch.max_pool2d(x, 2, 1))],
    torch.max_pool3d: [((1, 3, 3, 3), lambda x: torch.max_pool3d(x, 2, 1))],
    tf.avg_pool1d: [(LINE, lambda x: tf.avg_pool1d(x, 2, 1))],
    tf.avg_pool2d: [(IMAGE, lambda x: tf.avg_pool2d(x, 3, 2, 1))],
    tf.avg_pool3d: [((1, 3, 3, 3), lambda x: tf.avg_pool3d(x, 2))],
    tf.adaptive_avg_pool1d: [(LINE, lambda x: tf.adaptive_avg_pool1d(x, 4))],
    tf.adaptive_avg_pool2d: [(IMAGE, lambda x: tf.adaptive_avg_pool2d(x, (1, 3)))],
    tf.adaptive_avg_pool3d: [((1, 3, 3, 3), lambda x: tf.adaptive_avg_pool3d(x, 2))],
    tf.adaptive_max_pool1d: [(LINE, lambda x: tf.adaptive_max_pool1d(x, 4))],
    tf.adaptive_max_pool2d: [(IMAGE, lambda x: tf.adaptive_max_pool2d(x, 3))],
    tf.adaptive_max_pool3d: [((1, 3, 3, 3), lambda x: tf.adaptive_max_pool3d(x, 2))],
    tf.pixel_shuffle: [((4, 2, 2), lambda x: tf.pixel_shuffle(x, 2))],
    tf.pixel_unshuffle: [(IMAGE, lambda x: tf.pixel_unshuffle(x, 2))],
    tf.softmax: [(VECTOR, lambda x: tf.softmax(x, dim=1))],
    torch.softmax: [(LINE, lambda x: torch.softmax(x, 2))],
    tf.log_softmax: [(VECTOR, lambda x: tf.log_softmax(x, dim=-1))],
    torch.log_softmax: [(VECTOR, lambda x: torch.log_softmax(x, 1))],
    torch.dropout: [(VECTOR, lambda x: torch.dropout(x, 0.4, True))],
    torch.flatten: [(LINE, lambda x: torch.flatten(x, 1))],
    torch.reshape: [(LINE, lambda x: torch.reshape(x, (x.size(0), 12)))],
    torch.permute: [(LINE, lambda x: torch.permute(x, (0, 2, 1)))],
    torch.transpose: [(LINE, lambda x: torch.transpose(x, 1, 2))],
    torch.movedim: [(LINE, lambda x: torch.movedim(x, 1, 2))],
    torch.squeeze: [((1, 3), lambda x: torch.squeeze(x, 1))],
    torch.unsqueeze: [(VECTOR, lambda x: torch.unsqueeze(x, 2))],
    torch.unflatten: [(VECTOR, lambda x: torch.unflatten(x, 1, (2, 3)))],
    operator.add: [
        (VECTOR, lambda x: x + torch.tanh(x)),
        (VECTOR, lambda x: x + 0.3),
        (VECTOR, lambda x: 0.3 + x),
        (LINE, lambda x: x + x.mean(2, keepdim=True)),
    ],
    operator.iadd: [(VECTOR, lambda x: operator.iadd(x * 1.0, x))],
    operator.isub: [(VECTOR, lambda x: operator.isub(x * 1.0, -x))],
    operator.imul: [(VECTOR, lambda x: operator.imul(x * 1.0, 3.0))],
    torch.add: [(VECTOR, lambda x: torch.add(x, x))],
    operator.sub: [(VECTOR, lambda x: x - torch.tanh(-x)), (VECTOR, lambda x: 1.0 - x)],
    torch.sub: [(VECTOR, lambda x: torch.sub(x, -x))],
    operator.mul: [
        (VECTOR, lambda x: x * x),
        (VECTOR, lambda x: -2.0 * x),
        (IMAGE, lambda x: x * x.mean((2, 3), keepdim=True)),
    ],
    torch.mul: [(VECTOR, lambda x: torch.mul(x, 3.0))],
    operator.truediv: [(VECTOR, lambda x: x / 3)],
    torch.div: [(VECTOR, lambda x: torch.div(x, 0.3))],
    torch.true_divide: [(VECTOR, lambda x: torch.true_divide(x, 0.3))],
    torch.cat: [(VECTOR, lambda x: torch.cat([x, -x], dim=1))],
    torch.concat: [(VECTOR, lambda x: torch.concat([x, x], 1))],
    torch.concatenate: [(VECTOR, lambda x: torch.concatenate([x, x], 1))],
    torch.stack: [(VECTOR, lambda x: torch.stack([x, x], dim=1))],
    torch.chunk: [(LINE, lambda x: torch.chunk(x, 2, 1)[0] - torch.chunk(x, 2, 1)[1])],
    torch.split: [(LINE, lambda x: torch.split(x, 1, 1)[0])],
    torch.tensor_split: [(LINE, lambda x: torch.tensor_split(x, 2, 1)[0])],
    torch.mean: [(LINE, lambda x: torch.mean(x, 1))],
    torch.sum: [(IMAGE, lambda x: torch.sum(x, dim=(2, 3)))],
    torch.amax: [(LINE, lambda x: torch.amax(x, 1))],
    torch.amin: [(LINE, lambda x: torch.amin(x, 1))],
    torch.maximum: [(VECTOR, lambda x: torch.maximum(x, 2 * x))],
    torch.minimum: [(VECTOR, lambda x: torch.minimum(x, -x))],
    torch.clamp: [(VECTOR, lambda x: torch.clamp(x, 0.1, 0.4))],
    tf.pad: [
        (IMAGE, lambda x: tf.pad(x, (1, 2, 0, 1))),
        (IMAGE, lambda x: tf.pad(x, (1, 1), value=2.0)),
        (IMAGE, lambda x: tf.pad(x, (2, 1, 1, 0), mode="reflect")),
        (LINE, lambda x: tf.pad(x, (2, 3), mode="circular")),
    ],
    tf.interpolate: [(IMAGE, lambda x: tf.interpolate(x, scale_factor=2.0))],
    operator.getitem: [(LINE, lambda x: x[:, 1:, ::2]), (LINE, lambda x: x[..., 0])],
}
TARGETS = list(functions())
LABELS = [t if isinstance(t, str) else f"{t.__module__}.{t.__name__}" for t in TARGETS]


@pytest.mark.parametrize("target", TARGETS, ids=LABELS)
def test_the_bounds_of_a_function_hold(target: object) -> None:
    examples = calls(target)
    assert examples, "add an example for this function"
    for shape, forward in examples:
        model = Called(forward)
        for norm in (0.3, 4.0):
            found = propagate(
                trace(model, shape, torch.float64), norm, 1.0, improvements=Improvements.none()
            )
            torch.manual_seed(0)
            for scale in (1.0, 0.3):
                x = torch.randn(1, *shape, dtype=torch.float64)
                x = (scale * norm * x / x.norm()).requires_grad_()
                output = model(x)
                slack = 1 + (1e-9 if output.dtype == torch.float64 else 1e-6)
                assert float(output.detach().norm()) <= found.output_norm * slack
                if not output.requires_grad:
                    continue
                rows = [
                    torch.autograd.grad(entry, x, retain_graph=True)[0].flatten()
                    for entry in output.flatten()
                ]
                size = float(torch.linalg.matrix_norm(torch.stack(rows).double(), 2))
                assert size <= found.input_cotangent * slack


EYE = torch.eye(6, dtype=torch.float64)
# Forward, and an input of norm one at which output or slope come near their bounds.
TIGHT: list[tuple[str, type, Forward, Tensor, tuple[str, ...]]] = [
    ("sum", ruled.Sum, lambda x: x + x.relu(), EYE[0], ("output", "slope")),
    ("sum of a spread", ruled.Sum, lambda x: x[:, :1] + 1e-9 * x[:, 1:], torch.tensor([1.0, 0, 0, 0, 0, 0]), ("slope",)),
    ("choice", ruled.Choice, lambda x: torch.maximum(x, 1e-9 * x), EYE[0], ("output", "slope")),
    ("gate", ruled.Gate, lambda x: x * x, EYE[0], ("output", "slope")),
    ("concatenation", ruled.Concatenation, lambda x: torch.cat([x, x], 1), EYE[0], ("output",)),
    ("repetition", ruled.Repetition, lambda x: x.repeat(1, 2), EYE[0], ("output", "slope")),
    ("scale", ruled.Scale, lambda x: -3.0 * x, EYE[0], ("output", "slope")),
    ("shift", ruled.Shift, lambda x: x + 2.0, torch.ones(6) / 6**0.5, ("output", "slope")),
    ("total", ruled.Reduction, lambda x: x.sum(1, keepdim=True), torch.ones(6) / 6**0.5, ("output", "slope")),
    ("mean", ruled.Reduction, lambda x: x.mean(1, keepdim=True), torch.ones(6) / 6**0.5, ("output", "slope")),
    ("largest", ruled.Reduction, lambda x: x.amax(1, keepdim=True), EYE[0], ("output", "slope")),
    ("absolute", ruled.EntrywiseIsometry, torch.abs, -EYE[0], ("output", "slope")),
]  # fmt: skip


def test_every_rule_of_arithmetic_has_a_tight_example() -> None:
    assert {entry[1].__name__ for entry in TIGHT} == set(ruled.__all__)


@pytest.mark.parametrize(
    ("rule", "forward", "x", "tight"), [t[1:] for t in TIGHT], ids=[t[0] for t in TIGHT]
)
def test_a_rule_of_arithmetic_that_is_ten_percent_too_small_is_found_out(
    rule: type, forward: Forward, x: Tensor, tight: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Called(forward)
    x = x.double()[None].requires_grad_()
    output = model(x)
    rows = [torch.autograd.grad(e, x, retain_graph=True)[0][0] for e in output.flatten()]
    values = {
        "output": float(output.detach().norm()),
        "slope": float(torch.linalg.matrix_norm(torch.stack(rows), 2)),
    }
    graph = trace(model, (6,), torch.float64)
    found = propagate(graph, 1.0, 1.0, improvements=Improvements.none())
    limits = {"output": found.output_norm, "slope": found.input_cotangent}
    norm, sent = rule.output_norm, rule.cotangent
    monkeypatch.setattr(rule, "output_norm", lambda self, call: 0.9 * norm(self, call))
    monkeypatch.setattr(rule, "cotangent", lambda self, call, i, g: 0.9 * sent(self, call, i, g))
    wrong = propagate(graph, 1.0, 1.0, improvements=Improvements.none())
    shrunk = {"output": wrong.output_norm, "slope": wrong.input_cotangent}
    for name in values:
        assert values[name] <= limits[name] * (1 + 1e-9)
    for name in tight:
        assert values[name] > shrunk[name], (name, values[name] / limits[name])


REFUSED: list[tuple[str, tuple[int, ...], Forward, str]] = [
    ("mean over the batch", VECTOR, lambda x: x - x.mean(0, keepdim=True), "mixes records"),
    ("mean of everything", VECTOR, lambda x: x - x.mean(), "mixes records"),
    ("batch size as a factor", VECTOR, lambda x: x / x.shape[0], "size of the batch"),
    ("batch flattened", LINE, lambda x: x.view(-1, 6), "first axis"),
    ("batch transposed", VECTOR, lambda x: x.t().reshape(-1, 6), "no rule|first axis"),
    ("batch permuted", VECTOR, lambda x: x.permute(1, 0), "first axis"),
    ("record chosen", VECTOR, lambda x: x + x[0], "selects among the records"),
    ("records reversed", VECTOR, lambda x: x.flip(0), "no rule"),
    ("softmax over the batch", VECTOR, lambda x: torch.softmax(x, 0), "over the batch"),
    ("cat along the batch", VECTOR, lambda x: torch.cat([x, x]), "mixes records"),
    ("axes that cross records", VECTOR, lambda x: x + x.unsqueeze(1), "do not correspond"),
    ("division by a record", VECTOR, lambda x: 1 / x, "no bound near zero"),
    ("unknown function", VECTOR, torch.exp, "no rule"),
    ("overwriting what is read again", VECTOR, lambda x: torch.relu_(x) + x, "overwrites"),
    ("overwriting through a view", LINE, lambda x: x.flatten(1).mul_(9.0).sum(1) + x.sum((1, 2)), "overwrites"),
    ("overwriting by position", VECTOR, lambda x: tf.relu(x, True) + x, "overwrites"),
    ("overwriting by name", VECTOR, lambda x: tf.elu(x, inplace=True) + x, "overwrites"),
    ("overwriting by dropout", VECTOR, lambda x: tf.dropout(x, 0.5, True, True) + x, "overwrites"),
    ("half precision", VECTOR, lambda x: x.bfloat16(), "no rule"),
    ("matrix product of records", VECTOR, lambda x: x @ x.permute(1, 0), "no rule|first axis"),
    ("sort of the batch", VECTOR, lambda x: x.sort(0)[0], "no rule"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "forward", "why"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_could_mix_records_is_refused(
    shape: tuple[int, ...], forward: Forward, why: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        propagate(trace(Called(forward), shape), 1.0, 1.0)
