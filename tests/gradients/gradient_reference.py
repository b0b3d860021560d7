"""Per-record gradients, one record at a time: a few lines, never optimised."""

import copy

import torch
from torch.func import functional_call, grad
from torch.utils import _pytree as pytree


def one_record(x, y, i, views):
    batch = pytree.tree_map(lambda t: t[i] if views > 1 else t[i : i + 1], x)
    target = pytree.tree_map(lambda t: t[i : i + 1].repeat_interleave(views, 0), y)
    args, kwargs = ((), batch) if isinstance(batch, dict) else (batch, {})
    return (args if isinstance(args, tuple) else (args,)), kwargs, target


def record_gradients(model, loss, x, y, views=1):
    """Gradient of every record's loss (mean over its views), stacked by parameter name."""
    learnt = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    records = pytree.tree_leaves(x)[0].shape[0]
    rows = []
    for i in range(records):
        args, kwargs, target = one_record(x, y, i, views)

        def one(parameters, args=args, kwargs=kwargs, target=target):
            return loss(functional_call(model, parameters, args, kwargs), target).sum() / views

        rows.append(grad(one)(learnt))
    return {n: torch.stack([row[n] for row in rows]) for n in learnt}


def backward_gradients(model, loss, x, y, views=1):
    """The same by ``backward``, for models that torch.func cannot differentiate."""
    rows = []
    for i in range(pytree.tree_leaves(x)[0].shape[0]):
        args, kwargs, target = one_record(x, y, i, views)
        fresh = copy.deepcopy(model)
        (loss(fresh(*args, **kwargs), target).sum() / views).backward()
        learnt = {n: p for n, p in fresh.named_parameters() if p.requires_grad}
        rows.append(
            {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in learnt.items()}
        )
    return {n: torch.stack([row[n] for row in rows]) for n in rows[0]}


def bounded_reference(gradients, groups, scale):
    """Sum over records of scale(norm of the group) times gradient."""
    sums = {}
    for names in groups:
        norm = sum(
            gradients[n].reshape(len(gradients[n]), -1).square().sum(1) for n in names
        ).sqrt()
        factor = scale(norm)
        for n in names:
            sums[n] = torch.einsum("b,b...->...", factor, gradients[n])
    return sums
