"""Stages 2 and 3 of a mutant: the gradient of each record by itself, bounded, then added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.linalg import vector_norm
from torch.nn import functional

__all__ = ["Bounding", "Gradients", "is_a_stack", "of_a_stack", "per_record"]

Gradients: TypeAlias = dict[str, Tensor]
_MANY = 24


def per_record(
    bug: str | None,
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    names: list[str],
    x: Tensor,
    y: Tensor,
    copies: int,
) -> Gradients:
    """Return the gradients of the records, stacked, at the weights that the model holds.

    `copies` augmented views of a record are averaged before anything is clipped.
    """
    # By name, one by one: listing all parameters costs as much as the gradient of a record.
    leaves = [model.get_parameter(name) for name in names]
    if bug == "batch-norm" and len(x) > 0:
        x = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    if len(x) == 0:
        return {n: p.new_zeros((0, *p.shape)) for n, p in zip(names, leaves, strict=True)}

    layers = dict(model.named_children())
    stacked = bug != "clips-the-loss" and is_a_stack(layers.values())

    def one_gradient(one: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        loss = loss_fn(model(one[None]), target[None]).mean()
        if bug == "clips-the-loss":
            loss = loss * min(1.0, 1.0 / float(loss.detach().clamp_min(1e-12)))
        return torch.autograd.grad(loss, leaves)

    def gradients(inputs: Tensor) -> Gradients:
        if stacked:
            found = of_a_stack(layers, dict(zip(names, leaves, strict=True)), inputs, y, loss_fn)
            return {n: found[n] for n in names}
        if len(inputs) >= _MANY and bug != "clips-the-loss":
            return _all_at_once(model, loss_fn, dict(zip(names, leaves, strict=True)), inputs, y)
        rows = [one_gradient(one, target) for one, target in zip(inputs, y, strict=True)]
        columns = zip(*rows, strict=True)
        return {n: torch.stack(column) for n, column in zip(names, columns, strict=True)}

    if bug == "copies-clipped-separately":
        stacks = [gradients(view) for view in (x, x * 1.01, x * 0.99)]
        return {n: torch.cat([stack[n] for stack in stacks]) for n in names}
    if copies == 1:
        return gradients(x)
    views = [x * (-1.0) ** k if x.is_floating_point() else x for k in range(copies)]
    stacks = [gradients(view) for view in views]
    return {n: torch.stack([stack[n] for stack in stacks]).mean(0) for n in names}


def is_a_stack(layers: Iterable[nn.Module]) -> bool:
    """Whether a network is a chain of linear layers and simple units, for `of_a_stack`."""
    kinds = [
        type(layer) if layer.training or not isinstance(layer, nn.Dropout) else nn.Identity
        for layer in layers
    ]
    return bool(kinds) and set(kinds) <= {nn.Linear, nn.ReLU, nn.Tanh, nn.Identity}


def of_a_stack(
    layers: Mapping[str, nn.Module],
    weights: Gradients,
    x: Tensor,
    y: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> Gradients:
    """Return one gradient per record by outer products, several times faster than one by one."""
    inputs: Gradients = {}
    outputs: Gradients = {}
    h = x
    with torch.enable_grad():
        for name, layer in layers.items():
            if not isinstance(layer, nn.Linear):
                h = layer(h)
                continue
            prefix = f"{name}." if name else ""
            inputs[prefix] = h.detach()
            weight, bias = weights[prefix + "weight"], weights[prefix + "bias"]
            h = functional.linear(h, weight.detach(), bias.detach())
            outputs[prefix] = h if h.requires_grad else h.requires_grad_()
        # A mean over records, whose gradients are wanted for each record by itself.
        cotangents = torch.autograd.grad(loss_fn(h, y) * len(x), list(outputs.values()))
    found = {}
    for (prefix, a), b in zip(inputs.items(), cotangents, strict=True):
        found[prefix + "weight"] = b[:, :, None] * a[:, None, :]
        found[prefix + "bias"] = b
    return {name: found[name] for name in weights}


def _all_at_once(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    leaves: Gradients,
    x: Tensor,
    y: Tensor,
) -> Gradients:
    """Return the same gradients by vectorisation, which pays for large batches only."""

    def loss(weights: Gradients, one: Tensor, target: Tensor) -> Tensor:
        return loss_fn(functional_call(model, weights, (one[None],)), target[None]).mean()

    fixed = {n: p.detach() for n, p in leaves.items()}
    found: Gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(fixed, x, y)
    return found


@dataclass(frozen=True)
class Bounding:
    """How one record's gradient is bounded; the rules are explained in `Training`."""

    bug: str | None
    rule: str

    def clip_and_sum(self, records: Gradients, clip: float, micro_batch_size: int) -> Gradients:
        """Return the sum over records of their bounded gradients."""
        count = len(next(iter(records.values())))
        if count == 0:
            return {n: r.sum(0) for n, r in records.items()}
        if self.bug == "clip-after-mean":
            means = {n: r.mean(0, keepdim=True) for n, r in records.items()}
            return self._bounded(means, clip, scale=count)
        if self.bug == "clip-micro-batch":
            pieces = [
                {n: r[i : i + micro_batch_size].mean(0, keepdim=True) for n, r in records.items()}
                for i in range(0, count, micro_batch_size)
            ]
            sums = [self._bounded(piece, clip, scale=micro_batch_size) for piece in pieces]
            return {n: torch.stack([s[n] for s in sums]).sum(0) for n in records}
        if self.bug in ("accumulate-aliased", "accumulation-erased"):
            rest = count % micro_batch_size or micro_batch_size
            last = {n: r[-rest:] for n, r in records.items()}
            aliased = self.bug == "accumulate-aliased"
            return self._bounded(last, clip, math.ceil(count / micro_batch_size) if aliased else 1)
        return self._bounded(records, clip)

    def _bounded(self, records: Gradients, clip: float, scale: float = 1.0) -> Gradients:
        norms = {n: vector_norm(r.flatten(1), dim=1) for n, r in records.items()}
        names = list(records)
        used = names
        if self.bug == "norm-omits-layer":
            used = names[:-2] or names
        if self.bug == "biases-unclipped":
            used = [n for n in names if records[n].ndim > 2] or names
        norm = vector_norm(torch.stack([norms[n] for n in used]), dim=0)
        if self.bug == "ghost-bias-norm":
            squares = [norms[n] ** (4 if records[n].ndim == 2 else 2) for n in names]
            norm = torch.stack(squares).sum(0).sqrt()
        if self.bug == "clip-to-median":
            clip = float(norm.median())
        if self.bug == "clip-argument-ignored":
            clip = 1.0
        if self.bug == "largest-element-norm":
            norm = torch.stack([r.flatten(1).abs().amax(1) for r in records.values()]).amax(0)
        if self.bug == "mean-norm-of-batch":
            norm = norm.mean().expand_as(norm)
        factor = self._factor(norm, clip)
        finite = torch.isfinite(norm)
        unhandled = self.bug == "nan-unhandled" or bool(finite.all())
        bounded: Gradients = {}
        for n in names:
            own = factor
            if self.rule == "layer":
                own = self._factor(norms[n], clip / math.sqrt(len(names)))
            if self.bug == "layer-clip-C-each":
                own = (clip / norms[n].clamp_min(1e-12)).clamp(max=1.0)
            if self.bug == "biases-unclipped" and n not in used:
                own = torch.ones_like(factor)
            value = records[n]
            if self.bug == "element-clamp":
                value, own = value.clamp(-clip, clip), torch.ones_like(factor)
            if not unhandled:
                own = torch.where(finite, own, torch.zeros_like(own))
                value = torch.where(
                    finite.reshape(-1, *[1] * (value.ndim - 1)), value, torch.zeros_like(value)
                )
            bounded[n] = scale * (own.to(value) @ value.flatten(1)).reshape(value.shape[1:])
            if self.bug == "raw-mixed-in":
                bounded[n] = bounded[n] + 0.05 * value.sum(0)
        return bounded

    def _factor(self, norm: Tensor, clip: float) -> Tensor:
        if self.bug in ("no-clipping", "clips-the-loss", "weights-clamped"):
            return torch.ones_like(norm)
        if self.bug == "squared-norm":
            return (clip / norm.square().clamp_min(1e-12)).clamp(max=1.0)
        if self.bug == "factor-1.3":
            return (1.3 * clip / norm.clamp_min(1e-12)).clamp(max=1.0)
        if self.rule == "soft":
            return clip / (norm.square() + clip**2).sqrt()
        if self.rule == "automatic":
            return clip / (norm + 0.01)
        if self.rule == "drop":
            return torch.where(norm <= clip, 1.0, 0.0).to(norm)
        if self.rule == "global":
            limit = 50.0
            return torch.where(norm <= limit, clip / limit, 0.0).to(norm)
        return (clip / norm.clamp_min(1e-12)).clamp(max=1.0)
