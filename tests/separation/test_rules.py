"""Every rule against brute force: what changes with a record, the rule must have said.

Operations are collected from programs that use many of them. For each, entries of the operands
are dealt to records at random, in any layout, the values of one record change, and whatever
changes in a result must be marked as that record's.
"""

import collections
import random
import warnings

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import noisewise as nw
from noisewise.separation import watch as watching
from noisewise.separation.call import Call, UnfollowedError
from noisewise.separation.registry import RULES, operation_of
from noisewise.separation.rules.creation import created
from noisewise.separation.shadow import PLANE, TOP, Shadow
from separation.programs import INNOCENT


def dealt(tensor, draw):
    """Planes in which entries, rows or columns belong to records 1 to 3, or to nobody."""
    shape = [size if draw.random() < 0.5 else 1 for size in tensor.shape]
    if draw.random() < 0.3:
        shape = list(tensor.shape)
    owners = torch.tensor([draw.randrange(4) for _ in range(torch.Size(shape).numel())])
    owners = owners.reshape(shape).expand(tensor.shape)
    return torch.stack([owners, torch.where(owners > 0, TOP - owners, 0)]).to(PLANE)


def moved(value, own):
    """The value with other numbers where `own` says so, within what indices allow."""
    if value.is_floating_point() or value.is_complex():
        return torch.where(own, value * 1.7 + 0.3, value)
    if value.dtype == torch.bool:
        return torch.where(own, ~value, value)
    return torch.where(own, torch.where(value > 0, value - 1, value), value)


class Prober:
    """Compares a rule with brute force whenever an operation is met in a new shape."""

    def __init__(self, seed=0, limit=4, layouts=3):
        self.draw, self.limit, self.layouts = random.Random(seed), limit, layouts
        self.seen, self.tried, self.wrong = collections.Counter(), collections.Counter(), set()

    def probe(self, func, args, kwargs):
        operation, name = operation_of(func), func.overloadpacket.__name__
        if operation.rule in (None, created) or operation.written or operation.random:
            return
        flat, structure = pytree.tree_flatten((args, kwargs))
        places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
        key = (name, tuple(tuple(flat[i].shape) for i in places))
        size = sum(flat[i].numel() for i in places)
        if not places or key in self.seen or self.seen[name] >= self.limit or size > 4000:
            return
        self.seen[name] += 1
        self.seen[key] += 1
        for _ in range(self.layouts):
            self._once(operation, func, name, flat, structure, places)

    def _once(self, operation, func, name, flat, structure, places):
        shadow, planes = Shadow(), {}
        values = {i: flat[i].detach().clone() for i in places}
        for i, value in values.items():
            if value.is_floating_point() or value.is_complex() or self.draw.random() < 0.5:
                planes[i] = dealt(value, self.draw)
                shadow.write(value, planes[i])
            else:
                shadow.write(value, None, const=True)
        if not any(bool(p.any()) for p in planes.values()):
            return

        def run(changed):
            entries = [changed.get(i, v) for i, v in enumerate(flat)]
            a, k = pytree.tree_unflatten(entries, structure)
            found = [t for t in pytree.tree_leaves(func(*a, **k)) if isinstance(t, torch.Tensor)]
            return (a, k), found

        try:
            (a, k), results = run(values)
        except (RuntimeError, IndexError):
            return
        call = Call(func, operation.names, operation.defaults, a, k, shadow)
        memory = {v.untyped_storage()._cdata for v in values.values()}
        call.results = [t for t in results if t.untyped_storage()._cdata not in memory]
        try:
            said = operation.rule(call)
        except (UnfollowedError, RuntimeError, IndexError, TypeError):
            return  # refused by name: never unsound
        if any(id(t) not in call.read and shadow.read(t) is not None for t in call.tensors):
            return
        for record in (1, 2, 3):
            other = {i: moved(v, planes[i][0] == record) if i in planes else v
                     for i, v in values.items()}  # fmt: skip
            try:
                _, after = run(other)
            except (RuntimeError, IndexError):
                continue
            self.tried[name] += 1
            # What CTC keeps for its backward pass has memory in it that nobody has written. Reading
            # it is refused, and so is calling the operation itself (test_doors.py).
            count = 1 if name == "_ctc_loss" else len(results)
            for result, new, mark in zip(results[:count], after, said, strict=False):
                self._compare(name, record, result, new, mark)

    def _compare(self, name, record, result, new, mark):
        if result.shape != new.shape:
            self.wrong.add(name)
            return
        mark = torch.zeros(2, *result.shape, dtype=PLANE) if mark is None else mark
        mark = mark.expand(2, *result.shape)
        different = result != new
        if result.is_floating_point() or result.is_complex():
            both = torch.isnan(result) & torch.isnan(new)
            close = (result - new).abs() <= 1e-5 * (1e-3 + result.abs())
            different = different & ~both & ~close
        allowed = (mark[0] >= record) & (TOP - mark[1] <= record)
        if bool((different & ~allowed).any()):
            self.wrong.add(name)


class Small(nn.Module):
    """Operations that the programs do not meet."""

    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, groups=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(2)
        )
        self.up = nn.ConvTranspose2d(4, 2, 2, 2)
        self.head = nn.Linear(18, 3)

    def forward(self, x):
        h = self.up(self.picture(x[:, :16].reshape(len(x), 1, 4, 4)))
        h = nn.functional.interpolate(h, size=(3, 3), mode="bilinear", align_corners=False)
        return self.head(h.flatten(1))


def collected(prober, monkeypatch, names):
    original = watching.Watch._follow

    def follow(self, func, args, kwargs, result):
        original(self, func, args, kwargs, result)
        prober.probe(func, args, kwargs)

    monkeypatch.setattr(watching.Watch, "_follow", follow)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            nw.prove_apart(*INNOCENT[name].case())
        x, y = torch.randn(6, 16), torch.randint(3, (6,))
        nw.prove_apart(Small(), nn.CrossEntropyLoss(), x, y)


def test_no_rule_says_too_little(monkeypatch):
    prober = Prober()
    collected(prober, monkeypatch, list(INNOCENT)[::3])
    assert prober.wrong == set()
    assert len(prober.tried) >= 60
    assert sum(prober.tried.values()) >= 1000


@pytest.mark.slow
def test_no_rule_says_too_little_in_any_program(monkeypatch):
    prober = Prober(seed=1, limit=24, layouts=6)
    collected(prober, monkeypatch, INNOCENT)
    assert prober.wrong == set()
    assert sum(prober.tried.values()) >= 5000


@pytest.mark.parametrize("name", ["sum", "mm", "_log_softmax", "native_layer_norm"])
def test_a_rule_that_claims_too_much_is_found(name, monkeypatch):
    """A rule that forgets its axes is the commonest mistake: results keep one operand's rows."""
    honest = RULES[name]

    def forgetful(call):
        said = honest(call)
        first = call.planes(call.tensors[0])
        narrow = first.flatten(1)[:, :1]
        return [None if p is None else narrow.reshape(2, *(1,) * (p.dim() - 1)) for p in said]

    for overload in getattr(torch.ops.aten, name).overloads():
        found = operation_of(getattr(getattr(torch.ops.aten, name), overload))
        monkeypatch.setattr(found, "rule", forgetful)
    prober = Prober(limit=8)
    collected(prober, monkeypatch, list(INNOCENT)[::3])
    assert name in prober.wrong


def test_every_rule_is_of_an_operation_that_exists_somewhere():
    unknown = [name for name in RULES if not hasattr(torch.ops.aten, name)]
    # The tag's own name, and operations of other versions of torch.
    assert set(unknown) <= {"pointwise", "_dropout_mask", "_adaptive_avg_pool1d", "masked_softmax"}


def test_an_operation_without_a_rule_is_unknown_by_name():
    library = torch.library.Library("noisewise_test_rules", "DEF")
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", lambda x: x.clone(), "CPU")

    def loss(output, target):
        return torch.ops.noisewise_test_rules.odd(output.detach()).sum(1) + output.sum(1)

    x, y = torch.randn(6, 16), torch.randint(3, (6,))
    proof = nw.prove_apart(nn.Linear(16, 3), loss, x, y)
    assert not proof.proven
    assert any("odd" in finding.operation for finding in proof.unknown)
