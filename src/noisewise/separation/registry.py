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


#: Arguments whose values may make a kernel raise: indices lie within their axis, whole numbers are
#: not divided by zero, chances lie between 0 and 1, matrices can be factored.
_RAISED_BY = {
    "index": "gather scatter scatter_add scatter_reduce index_add index_copy index_fill index_put "
    "index_reduce index_select take put",
    "indices": "index _unsafe_index index_put _unsafe_index_put _index_put_impl_ embedding "
    "_embedding_bag _embedding_bag_forward_only embedding_dense_backward max_unpool2d max_unpool3d",
    "offsets": "_embedding_bag _embedding_bag_forward_only",
    "target": "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward "
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
    "binary_cross_entropy",
    "targets": "_ctc_loss",
    "input_lengths": "_ctc_loss",
    "target_lengths": "_ctc_loss",
    "other": "div divide true_divide floor_divide remainder fmod",
    "p": "bernoulli",
    "std": "normal",
    "info": "_linalg_check_errors",
    "count": "binomial",
    "prob": "binomial",
    "self": "bernoulli multinomial poisson _standard_gamma _sample_dirichlet bincount histc "
    "binary_cross_entropy",
    "A": "linalg_eig _linalg_eigh _linalg_svd linalg_lu linalg_qr",
}
RAISED_BY: dict[str, set[str]] = {}
for _argument, _names in _RAISED_BY.items():
    for _name in words(_names):
        RAISED_BY.setdefault(_name, set()).add(_argument)


class Operation:
    """What an operation's schema says, and its rule."""

    def __init__(self, function: Any) -> None:
        name: str = function.overloadpacket.__name__
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
        #: Arguments whose values may make it raise.
        self.raised_by = RAISED_BY.get(base, set())
        if base == "bernoulli" and name != base:
            self.raised_by = {"p"}  # in place: what was there is not read


_OPERATIONS: dict[Any, Operation] = {}


def operation_of(function: Any) -> Operation:
    """Return what is known of an ATen function."""
    found = _OPERATIONS.get(function)
    if found is None:
        found = _OPERATIONS[function] = Operation(function)
    return found
