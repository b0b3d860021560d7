"""Which rule speaks for which ATen operation.

A rule takes a `Call` and returns the shadow of every result. It may look at shapes, at numbers
that are not tensors, and at the values of constant tensors, never at a record's value. What it
says must cover every dependence; saying too much is allowed (it makes the proof weaker, not
false), saying too little is not: ``tests/separation/test_rules.py`` compares every rule with what
changes when one record's values change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noisewise.separation.call import Call, Planes

__all__ = [
    "ESCAPES",
    "RULES",
    "TRUSTED",
    "UNWRITTEN",
    "Operation",
    "Rule",
    "operation_of",
    "rule",
    "words",
]

Rule = Callable[[Call], list[Planes]]
RULES: dict[str, Rule] = {}


def words(*lines: str) -> frozenset[str]:
    """Names, given as strings with blanks."""
    return frozenset(" ".join(lines).split())


#: Python learns a value, or the size of a result depends on it.
ESCAPES = words(
    "_local_scalar_dense equal is_nonzero item nonzero nonzero_numpy nonzero_static masked_select",
    "_unique _unique2 unique_dim unique_consecutive _pack_padded_sequence _assert_async",
    "_functional_assert_async allclose",
)
#: Operations whose result is memory that nobody has written yet.
UNWRITTEN = words(
    "empty empty_like new_empty empty_strided new_empty_strided empty_permuted resize_"
)
#: torch's own; those of its distributed parts move parameters.
TRUSTED = frozenset(("aten", "prims", "prim", "profiler", "c10d", "_c10d_functional", "fsdp"))


#: These take as many numbers from the generator whatever their operands hold. Others may take one
#: for every negative entry (rrelu), or as many as it needs (poisson).
_STEADY = words(
    "rand randn randint rand_like randn_like randint_like randperm bernoulli bernoulli_ normal",
    "normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ multinomial",
    "native_dropout _fused_dropout _dropout_mask _scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of these operations; names may be given as one string with blanks."""

    def remember(function: Rule) -> Rule:
        for name in words(*names):
            if name in RULES:
                raise ValueError(f"the operation {name} has a rule already")
            RULES[name] = function
        return function

    return remember


#: Of these torch says so, too, but their rules know better: an index selects by numbers or by a
#: mask, and what varies of the other is handed to nobody (`Leaks` looks at direct calls).
_RULED = frozenset(("index", "_ctc_loss"))
_SIZED = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


#: Operations of which only some arguments may make a kernel raise: indices lie within their axis,
#: whole numbers are not divided by zero, chances lie between 0 and 1.
_RAISED_BY = {
    "index": "gather scatter scatter_add scatter_reduce index_add index_copy index_fill index_put "
    "index_reduce index_select take",
    "indices": "index _unsafe_index index_put _unsafe_index_put _index_put_impl_ embedding "
    "_embedding_bag _embedding_bag_forward_only embedding_dense_backward max_unpool2d",
    "offsets": "_embedding_bag _embedding_bag_forward_only",
    "target": "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward "
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
    "binary_cross_entropy",
    "targets": "_ctc_loss",
    "input_lengths": "_ctc_loss",
    "target_lengths": "_ctc_loss",
    "other": "div true_divide floor_divide remainder fmod",
    "self": "binary_cross_entropy bernoulli",
    "p": "bernoulli",
    "std": "normal",
}
RAISED_BY: dict[str, set[str]] = {}
for _argument, _names in _RAISED_BY.items():
    for _name in words(_names):
        RAISED_BY.setdefault(_name, set()).add(_argument)
#: Rules of these files are of operations that take all values, unless they draw by values.
_CALM_FILES = words("attention convolution creation elementwise moving normalisation reduction")
#: And so are these of the other files. What is in none of the three lists may raise by whatever it
#: is given: ``tests/separation/test_raising.py`` tries values on all of them.
_CALM = words(
    "mm bmm addmm baddbmm addmv addr mv dot vdot ger _addmm_activation _trilinear _cdist_forward",
    "_cdist_backward _euclidean_dist _linalg_det _linalg_slogdet trace bucketize searchsorted",
    "_weight_norm_interface _weight_norm_interface_backward mse_loss mse_loss_backward huber_loss",
    "huber_loss_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss",
    "soft_margin_loss_backward binary_cross_entropy_with_logits binary_cross_entropy_backward",
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d_with_indices",
    "max_pool2d_with_indices max_pool3d_with_indices affine_grid_generator col2im im2col",
    "grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d",
    "native_dropout _fused_dropout rrelu_with_noise rrelu_with_noise_backward",
)
_CALM_BEGINNINGS = ("_adaptive_avg", "avg_pool", "reflection_pad", "replication_pad", "upsample_",
                    "_upsample_")  # fmt: skip


def _takes_all_values(name: str, rule: Rule | None, random: bool) -> bool:
    """Whether no value of an operand makes a kernel raise."""
    file = getattr(rule, "__module__", "").rpartition(".")[2]
    if random and file != "creation":
        return name in _CALM
    return file in _CALM_FILES or name in _CALM or name.startswith(_CALM_BEGINNINGS)


class Operation:
    """What an operation's schema says, and its rule."""

    def __init__(self, function: Any) -> None:
        name: str = function.overloadpacket.__name__
        overload = function._overloadname
        self.full_name = name if overload == "default" else f"{name}.{overload}"
        arguments = function._schema.arguments
        self.names = [a.name for a in arguments]
        self.defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        self.written = [
            a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write
        ]
        #: Written without being read: ``out=``.
        self.outs = frozenset(a.name for a in arguments if a.name in self.written and a.kwarg_only)
        #: Only shape and strides change, the memory stays.
        self.reshapes = torch.Tag.inplace_view in function.tags and name not in ("set_", "resize_")
        self.random = torch.Tag.nondeterministic_seeded in function.tags
        #: What is drawn after it may depend on its operands.
        self.shifts = self.random and name not in _STEADY
        base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        aten = function.namespace == "aten"
        plain = getattr(torch.ops.aten, base, None) if aten else None
        twins = [getattr(plain, o) for o in plain.overloads()] if plain is not None else []
        tagged = aten and any(torch.Tag.pointwise in f.tags for f in (function, *twins))
        #: Another library's kernel: what it reads besides its operands nobody can see.
        self.foreign = function.namespace not in TRUSTED
        self.escapes = name in ESCAPES or (
            name not in _RULED and not _SIZED.isdisjoint(function.tags)
        )
        #: New memory that holds whatever was there before.
        self.unwritten = aten and name in UNWRITTEN
        known = (RULES.get(name) or RULES.get(base)) if aten else None
        self.rule: Rule | None = known or (RULES["pointwise"] if tagged else None)
        self.pointwise = self.rule is RULES["pointwise"]
        #: Arguments whose values may make it raise; None if that may be any of them.
        self.raised_by: set[str] | None = RAISED_BY.get(base)
        if base == "bernoulli" and name != base:
            self.raised_by = {"p"}  # in place: what was there is not read
        refused = self.rule is None or self.escapes  # on records, in any case
        if self.raised_by is None and (refused or _takes_all_values(base, self.rule, self.random)):
            self.raised_by = set()


_OPERATIONS: dict[Any, Operation] = {}


def operation_of(function: Any) -> Operation:
    """Return what is known of an ATen function."""
    found = _OPERATIONS.get(function)
    if found is None:
        found = _OPERATIONS[function] = Operation(function)
    return found
