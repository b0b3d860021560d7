"""Which operands may make an operation raise, against brute force: values that kernels dislike.

Whether a record counts must not depend on others, so an operation that may raise because of a
mixture of records is refused (docs/proofs/separation.md). Operations are those that torch's own
list of samples meets, forward and backward.
"""

import collections
import sys
import types
import unittest
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.separation.registry import RAISED_BY, RULES, operation_of
from separation.programs import INNOCENT
from separation.test_rules import collected

NUMBERS = (0.0, -1.0, 2.0, 1e30, float("nan"), float("inf"), float("-inf"))
WHOLE = (0, -1, 1, 7, 10**6, -(10**6))
#: Kernels that do not look at their indices, or pivots, and would read and write anywhere.
UNCHECKED = ("_unsafe", "max_unpool", "fractional_max_pool", "lu_unpack", "ormqr", "householder",
             "ldl", "lu_solve", "geqrf", "_ctc_loss", "multilabel_margin")  # fmt: skip


class Prober:
    """Tries values on every operand of every operation that it meets."""

    def __init__(self, forms=4):
        self.forms, self.seen, self.tried = forms, collections.Counter(), collections.Counter()
        #: (operation, argument) that raised.
        self.raised = collections.Counter()
        self.wrong = set()

    def probe(self, func, args, kwargs):
        operation, name = operation_of(func), func.overloadpacket.__name__
        if operation.rule is None or operation.escapes or any(u in name for u in UNCHECKED):
            return
        flat, structure = pytree.tree_flatten((args, kwargs))
        places = [
            i
            for i, value in enumerate(flat)
            if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel()
        ]
        form = (func, tuple((flat[i].shape, flat[i].dtype) for i in places))
        size = sum(flat[i].numel() for i in places)
        if form in self.seen or self.seen[func] >= self.forms or size > 4000:
            return
        self.seen[form] += 1
        self.seen[func] += 1

        def raises(changed):
            values = [
                changed[i] if i in changed else v.clone() if isinstance(v, torch.Tensor) else v
                for i, v in enumerate(flat)
            ]
            a, k = pytree.tree_unflatten(values, structure)
            try:
                func(*a, **k)
            except Exception:
                return True
            return False

        if raises({}):
            return
        a, k = pytree.tree_unflatten(list(range(len(flat))), structure)
        owners = {i: n for n, v in [*zip(operation.names, a, strict=False), *k.items()]
                  for i in pytree.tree_leaves(v)}  # fmt: skip
        for i in places:
            if not flat[i].is_floating_point() and "_backward" in name:
                continue  # indices, which the forward pass has checked
            for value in self._disliked(flat[i]):
                self.tried[name] += 1
                if raises({i: value}):
                    self.raised[name, owners[i]] += 1
                    said = operation.raised_by
                    real = value.is_floating_point() or value.is_complex()
                    if said is not None and (owners[i] not in said or ("other" in said and real)):
                        self.wrong.add((name, owners[i]))

    def _disliked(self, value):
        numbers = NUMBERS if value.is_floating_point() or value.is_complex() else WHOLE
        for number in (False, True) if value.dtype == torch.bool else numbers:
            for whole in (True, False):
                changed = value.detach().clone()
                try:
                    if whole:
                        changed.fill_(number)
                    else:
                        changed.view(-1)[0] = number
                except RuntimeError:
                    continue
                yield changed


class Collecting(TorchDispatchMode):
    """Probes what torch computes."""

    def __init__(self, prober):
        super().__init__()
        self.prober = prober

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        copied = pytree.tree_map(
            lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v,
            (args, kwargs or {}),
        )
        result = func(*args, **(kwargs or {}))
        self.prober.probe(func, *copied)
        return result


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_no_operation_raises_by_an_operand_that_is_said_to_be_harmless(every, monkeypatch):
    # torch's list needs a library of its own tests, of which nothing is used here.
    stand_in = types.SimpleNamespace(TestCase=unittest.TestCase)
    monkeypatch.setitem(sys.modules, "expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    prober = Prober()
    for info in op_db[::every]:
        for kind in (torch.float32, torch.int64):
            if kind in info.dtypes:
                try_out(info, kind, prober)
    assert prober.wrong == set()
    assert len(prober.tried) >= (300 if every == 1 else 60)
    assert len({name for name, _ in prober.raised}) >= (25 if every == 1 else 5)


def try_out(info, kind, prober):
    """Run a few samples of an operation, forward and backward."""
    learns = kind.is_floating_point and info.supports_autograd
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            samples = list(info.sample_inputs("cpu", kind, requires_grad=learns))[:4]
        except Exception:
            return
        for sample in samples:
            try:
                with Collecting(prober):
                    found = info.op(sample.input, *sample.args, **sample.kwargs)
                    ends = [
                        t
                        for t in pytree.tree_leaves(found)
                        if isinstance(t, torch.Tensor) and t.requires_grad
                    ]
                    torch.autograd.backward(ends, [torch.ones_like(t) for t in ends])
            except Exception:
                continue


def test_what_no_list_speaks_of_may_raise_by_anything():
    operation = operation_of(torch.ops.aten._linalg_eigh.default)
    assert operation.raised_by is None
    assert operation_of(torch.ops.aten.multinomial.default).raised_by is None
    assert operation_of(torch.ops.aten.add.Tensor).raised_by == set()


def test_lists_name_operations_that_have_rules():
    for name in RAISED_BY:
        packet = getattr(torch.ops.aten, name)
        overloads = [operation_of(getattr(packet, o)) for o in packet.overloads()]
        assert name in RULES or any(o.rule is not None or o.escapes for o in overloads), name


def test_a_harmless_operation_that_raises_would_be_found(monkeypatch):
    monkeypatch.setattr(operation_of(torch.ops.aten.nll_loss_forward.default), "raised_by", set())
    prober = Prober(2)
    collected(prober, monkeypatch, list(INNOCENT)[:4])
    assert ("nll_loss_forward", "target") in prober.wrong
