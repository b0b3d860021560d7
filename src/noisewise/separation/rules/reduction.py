"""Reductions, and operations along axes: softmax, cumulative sums, sorting, transforms."""

from __future__ import annotations

from noisewise.separation.call import Call, Planes, all_but, over
from noisewise.separation.registry import rule
from noisewise.separation.shadow import broadcast_shapes

__all__ = ["along"]


@rule(
    "sum mean amax amin max min argmax argmin prod var std var_mean std_mean logsumexp any all",
    "norm linalg_vector_norm _softmax _log_softmax _softmax_backward_data median nanmedian nansum",
    "_log_softmax_backward_data cumsum cumprod logcumsumexp sort argsort topk cummax cummin",
    "kthvalue mode _safe_softmax count_nonzero aminmax _fft_r2c _fft_c2c _fft_c2r",
    "_cummax_helper _cummin_helper masked_softmax linalg_cross",
)
def along(call: Call) -> list[Planes]:
    """All entries along the axes come together; without axes, all entries."""
    shape = broadcast_shapes(*[t.shape for t in call.tensors])
    axes = call["dim"]
    if isinstance(axes, int):
        axes = [axes]
    planes = over(call.joined(call.tensors, shape), *(axes or range(len(shape))))
    return [
        planes if result.dim() == len(shape) else planes.reshape(2, *result.shape)
        for result in call.results
    ]


@rule("renorm")
def renormed(call: Call) -> list[Planes]:
    """Each index of the axis has one norm, over all other axes."""
    planes = call.planes(call["self"])
    return [all_but(planes, call["dim"] % max(planes.dim() - 1, 1)).expand_as(planes)]


@rule("value_selecting_reduction_backward")
def selected(call: Call) -> list[Planes]:
    """The gradient of a maximum goes to where it was found, along the axis."""
    gradient, indices, axis, sizes = (call[n] for n in ("grad", "indices", "dim", "sizes"))
    planes = call.joined([gradient, indices], gradient.shape)
    if not call["keepdim"] and len(sizes):
        planes = planes.unsqueeze(axis % len(sizes) + 1)
    return [planes]


@rule("multinomial _sample_dirichlet")
def multinomial(call: Call) -> list[Planes]:
    """Classes, or shares of classes, drawn row by row."""
    return [over(call.planes(call["self"]), -1)]
