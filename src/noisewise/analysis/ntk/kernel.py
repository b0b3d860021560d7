"""The neural tangent kernel of some records, layer by layer, in bounded memory.

With J_r the Jacobian of the outputs f by the parameters of layer r, H_r = J_r J_r' and H =
sum_r H_r (Bu, Wang, Dai and Long 2021, sections 2 and 4.2, there for one output a record; with
m outputs the kernel has n m rows, records outermost). The Jacobians of a block of records come
from torch.func; only two blocks exist at a time, and blocks are computed again instead of
stored. Products are summed in float64, so each H_r is positive semi-definite up to about 1e-16
of its size even if the model computes in float32: it is the exact Gram matrix of slightly
rounded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.analysis.inputs import FloatArray
from noisewise.gradients import layer_of, record_losses

__all__ = ["Kernels", "kernels"]

#: Columns of a Jacobian that are held in float64 at a time.
COLUMNS = 1 << 14
Rows = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Kernels:
    """H_r of every layer. Made by :func:`kernels`.

    Parameters
    ----------
    blocks : dict
        Layer name to its kernel, (records * outputs) square.
    outputs : int
        Outputs of one record.
    """

    blocks: dict[str, FloatArray]
    outputs: int

    @cached_property
    def total(self) -> FloatArray:
        """H, the kernel of the whole model."""
        return np.asarray(sum(self.blocks.values()))

    @property
    def records(self) -> int:
        """Number of records."""
        return len(next(iter(self.blocks.values()))) // self.outputs

    def gradient_norms(self, slopes: Any) -> dict[str, FloatArray]:
        """Return each record's gradient norm in each layer, given the slopes of its loss.

        The gradient of record i is J_i' s_i with s_i the derivative of its loss by its
        outputs, so its squared norm in layer r is s_i' H_r[i, i] s_i.
        """
        n, m = self.records, self.outputs
        s = np.asarray(slopes, np.float64).reshape(n, m)
        norms = {}
        for name, block in self.blocks.items():
            own = block.reshape(n, m, n, m)[np.arange(n), :, np.arange(n), :]
            squares = np.einsum("nk,nkl,nl->n", s, own, s)
            norms[name] = np.sqrt(np.maximum(squares, 0.0))
        return norms


def kernels(
    model: nn.Module,
    x: Tensor,
    *,
    target: Tensor | None = None,
    loss: Any = None,
    output: int | None = None,
    memory: int = 1 << 29,
) -> Kernels:
    """Compute the tangent kernel of a batch for every layer.

    Parameters
    ----------
    model : nn.Module
        Records must not influence each other (no batch norm), and nothing may be random
        (no active dropout): call ``model.eval()`` first.
    x : Tensor
        Inputs, records first.
    target, loss : optional
        Given both, the kernel of the per-record losses is computed instead, with entries
        <grad l_i, grad l_j>: one row a record, however many outputs the model has.
    output : int, optional
        Look at this output only, for models with several.
    memory : int
        Bytes that blocks of Jacobians may take; the kernels themselves (8 (n m)^2 bytes a
        layer) come on top.

    Examples
    --------
    >>> model = nn.Linear(3, 1, bias=False)
    >>> x = torch.randn(5, 3)
    >>> bool(np.allclose(kernels(model, x).total, (x @ x.T).numpy(), atol=1e-5))
    True
    """
    memory = checks.integer("memory", memory, minimum=1)
    if (target is None) != (loss is None):
        raise ValueError("give target and loss together, or neither")
    if loss is not None and output is not None:
        raise ValueError("output=... chooses an output of the model; the losses have only one")
    if x.shape[0] == 0:
        raise ValueError("x holds no records, so there is no kernel")
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no trainable parameters, so its kernel is empty")
    jacobian, width = _jacobian(model, parameters, x, target, loss, output)
    total = sum(p.numel() * p.element_size() for p in parameters.values())
    # Two blocks, and the copy that torch.func makes of the one in work.
    size = max(1, int(memory // (3 * total * width)))
    n = x.shape[0]
    spans = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    blocks = {layer_of(name): np.empty((n * width, n * width)) for name in parameters}
    for number, span in enumerate(spans):
        rows = jacobian(span)
        _place(blocks, span, span, width, rows, rows)
        for other in spans[number + 1 :]:
            _place(blocks, span, other, width, rows, jacobian(other))
    return Kernels(blocks, width)


def _jacobian(
    model: nn.Module,
    parameters: dict[str, Tensor],
    x: Tensor,
    target: Tensor | None,
    loss: Any,
    output: int | None,
) -> tuple[Callable[[slice], Rows], int]:
    """Return span -> Jacobian rows of its records by parameter, and the rows of one record."""
    buffers = {name: b.detach() for name, b in model.named_buffers()}
    losses = None if loss is None else record_losses(loss)

    def outputs(values: Rows, record: Tensor, label: Tensor | None) -> Tensor:
        found = torch.func.functional_call(model, (values, buffers), (record.unsqueeze(0),))
        if losses is not None:
            assert label is not None
            return losses(found, label.unsqueeze(0)).reshape(1)
        flat = torch.as_tensor(found).reshape(-1)
        return flat if output is None else flat[output].reshape(1)

    with torch.no_grad():
        first = outputs(parameters, x[0], None if target is None else target[0])
    width = first.numel()
    derivative = torch.func.vmap(
        torch.func.jacrev(outputs), in_dims=(None, 0, None if target is None else 0)
    )

    def rows(span: slice) -> Rows:
        label = None if target is None else target[span]
        found = derivative(parameters, x[span], label)
        count = span.stop - span.start
        return {name: value.reshape(count * width, -1) for name, value in found.items()}

    return rows, width


def _place(
    blocks: dict[str, FloatArray], left: slice, right: slice, width: int, a: Rows, b: Rows
) -> None:
    """Fill rows `left` and columns `right` of every kernel, and the mirrored part."""
    rows = slice(left.start * width, left.stop * width)
    columns = slice(right.start * width, right.stop * width)
    for layer, products in _by_layer(a, b):
        blocks[layer][rows, columns] = products
        # The same numbers on both sides: a Gram matrix is exactly symmetric.
        blocks[layer][columns, rows] = products.T if left != right else (products + products.T) / 2
        if left == right:
            blocks[layer][rows, columns] = blocks[layer][columns, rows]


def _by_layer(a: Rows, b: Rows) -> Iterator[tuple[str, FloatArray]]:
    sums: dict[str, Tensor] = {}
    for name, left in a.items():
        right, layer = b[name], layer_of(name)
        for start in range(0, left.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            product = left[:, part].double() @ right[:, part].double().T
            sums[layer] = sums[layer] + product if layer in sums else product
    for layer, value in sums.items():
        yield layer, value.cpu().numpy()
