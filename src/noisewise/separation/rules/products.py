"""Matrix products, and functions of matrices in the last two axes."""

from __future__ import annotations

import torch

from noisewise.separation.call import Call, Planes, over
from noisewise.separation.registry import rule

__all__ = ["matrices", "product"]


@rule("mm bmm addmm baddbmm mv addmv dot vdot _addmm_activation")
def product(call: Call) -> list[Planes]:
    """Rows of the first with columns of the second; addmm and its kin add a third."""
    *added, first, second = call.tensors
    left = over(call.planes(first), -1)
    right = over(call.planes(second), -2 if second.dim() > 1 else -1)
    if second.dim() == 1:
        left, right = left.squeeze(-1), right.reshape(2, *(1,) * (first.dim() - 1))
    shape = call.results[0].shape
    both = torch.maximum(left, right).expand(2, *shape)
    return [torch.maximum(both, call.joined(added, shape))]


@rule("addr ger")
def outer(call: Call) -> list[Planes]:
    """An outer product, perhaps added to a matrix."""
    *added, first, second = call.tensors
    shape = call.results[0].shape
    both = torch.maximum(call.planes(first).unsqueeze(2), call.planes(second).unsqueeze(1))
    return [torch.maximum(both, call.joined(added, shape))]


@rule(
    "linalg_qr linalg_inv_ex linalg_cholesky_ex _linalg_eigh _linalg_svd linalg_eig _linalg_det",
    "_linalg_slogdet linalg_matrix_exp linalg_lu_factor_ex _linalg_solve_ex linalg_ldl_factor_ex",
    "_linalg_check_errors triangular_solve cholesky_solve",
    "cholesky_inverse linalg_lu linalg_pinv linalg_householder_product",
    "linalg_lu_solve lu_unpack linalg_ldl_solve geqrf ormqr linalg_lstsq",
)
def matrices(call: Call) -> list[Planes]:
    """Each matrix by itself; leading axes keep them apart."""
    widest = max(call.tensors, key=lambda t: t.dim())
    rank = widest.dim()
    leading = rank - 2
    total: torch.Tensor | None = None
    for tensor in call.tensors:
        planes = call.planes(tensor)
        if tensor.dim() == rank:
            planes = over(planes, -1, -2)
        elif (
            any(tensor is call[name] for name in ("pivots", "LU_pivots", "tau"))
            and tensor.shape[:-1] == widest.shape[:-2]
        ) or (tensor is call["B"] and tensor.shape == call["A"].shape[:-1]):
            planes = over(planes, -1).unsqueeze(-1)  # a vector for every matrix
        else:
            planes = planes.reshape(2, -1).amax(1).reshape(2, *(1,) * rank)
        total = planes if total is None else torch.maximum(total, planes)
    assert total is not None
    return [_fitted(total, result, leading) for result in call.results]


@rule("linalg_solve_triangular")
def triangles(call: Call) -> list[Planes]:
    """Each column (or row) of the right-hand sides by itself, with its whole matrix."""
    sides = over(call.planes(call["B"]), -2 if call["left"] else -1)
    matrix = over(call.planes(call["self"]), -1, -2)
    return [torch.maximum(sides, matrix).expand(2, *call.results[0].shape)]


def _fitted(total: torch.Tensor, result: torch.Tensor, leading: int) -> torch.Tensor:
    if result.dim() < leading or any(
        s not in (1, r)
        for s, r in zip(total.shape[1 : leading + 1], result.shape[:leading], strict=True)
    ):
        return total.reshape(2, -1).amax(1).reshape(2, *(1,) * result.dim())
    return total.reshape(2, *total.shape[1 : leading + 1], *(1,) * (result.dim() - leading))


@rule("_cdist_forward _euclidean_dist")
def distances(call: Call) -> list[Planes]:
    """Rows of the first with rows of the second."""
    first, second = call["x1"], call["x2"]
    left, right = over(call.planes(first), -1), over(call.planes(second), -1)
    return [torch.maximum(left, right.transpose(-1, -2)).expand(2, *call.results[0].shape)]


@rule("_cdist_backward")
def distances_backward(call: Call) -> list[Planes]:
    """Into each row of the first, over all rows of the second."""
    second = over(call.planes(call["x2"]), -1, -2)
    rows = [over(call.planes(call[name]), -1) for name in ("grad", "x1", "cdist")]
    total = torch.maximum(torch.maximum(rows[0], rows[1]), torch.maximum(rows[2], second))
    return [total.expand(2, *call.results[0].shape)]


@rule("_trilinear")
def trilinear(call: Call) -> list[Planes]:
    """A product of three tensors along shared axes, summed over some of them."""
    total: torch.Tensor | None = None
    for number in ("1", "2", "3"):
        planes = call.planes(call["i" + number])
        for axis in sorted(call["expand" + number]):
            planes = planes.unsqueeze(axis + 1)
        total = planes if total is None else torch.maximum(total, planes)
    assert total is not None
    return [total.amax([axis + 1 for axis in call["sumdim"]])]
