"""Lists that were written by hand, each against what torch itself says or does.

Rules and the list of harmless operands have checks of their own (``test_rules.py``,
``test_raising.py``). Here rules are tried on torch's own list of operations, so that every one is
compared with brute force; and facts, draws, fillings and placings are compared with what they are
said to be.
"""

import collections
import sys
import types
import unittest
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.separation.alike import _PLACING
from noisewise.separation.leaks import Leaks, tensors_only
from noisewise.separation.registry import (
    _STEADY,
    ESCAPES,
    RULES,
    UNWRITTEN,
    operation_of,
    words,
)
from noisewise.separation.rules.creation import created, drawn, overwritten
from noisewise.separation.sameness import _DRAWS, _FILLS
from noisewise.separation.watch import Watch
from separation.programs import INNOCENT
from separation.test_raising import Collecting, try_out
from separation.test_rules import Prober, collected
from separation.test_steady import CALLS


def overloads(name):
    packet = getattr(torch.ops.aten, name, None)
    return [] if packet is None else [getattr(packet, o) for o in packet.overloads()]


def operations():
    """All of torch's own, by their names."""
    return {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("aten::")}  # fmt: skip


# -- rules -----------------------------------------------------------------------------------------

#: Of no operand but a shape, or of what follows the values of nothing.
WITHOUT_OPERANDS = (created, overwritten, drawn)
#: On other devices, or in other versions of torch; and those whose draws change with values.
ELSEWHERE = words(
    "pointwise _adaptive_avg_pool1d masked_softmax _dropout_mask _fused_dropout",
    "_batch_norm_no_update _batch_norm_with_update batch_norm_backward mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward _addmm_activation _fused_rms_norm_backward",
)
DRAWN = words(
    "binomial poisson _standard_gamma _sample_dirichlet multinomial normal bernoulli",
    "native_dropout rrelu_with_noise fractional_max_pool2d",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def is_taken_apart(name):
    """Whether torch makes it of other operations before anybody sees it."""
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")
        for function in overloads(name)
        if not function._overloadname.endswith("out")
    )


def image(channels=2, size=4, axes=2):
    return torch.randn(2, channels, *(size,) * axes, requires_grad=True)


def learnt(*shape):
    return torch.randn(*shape, requires_grad=True)


def moved(*shape):
    return learnt(*shape).sigmoid()


DIRECT = [
    lambda: functional.adaptive_max_pool1d(image(axes=1), 2),
    lambda: functional.avg_pool1d(image(axes=1), 2),
    lambda: functional.max_pool1d(image(axes=1), 2),
    lambda: torch.ops.aten.max_pool1d_with_indices(image(axes=1), [2])[0],
    *(lambda n=n: functional.pad(image(axes=n, size=3), (1, 1) * n, "reflect") for n in (1, 2, 3)),
    *(
        lambda n=n: functional.pad(image(axes=n, size=3), (1, 1) * n, "replicate")
        for n in (1, 2, 3)
    ),
    *(lambda n=n: functional.interpolate(image(axes=n), scale_factor=2) for n in (1, 2, 3)),
    lambda: functional.interpolate(image(), size=3, mode="nearest-exact"),
    lambda: functional.interpolate(image(), size=3, mode="bicubic", antialias=True),
    lambda: functional.interpolate(image(), size=3, mode="bilinear", antialias=True),
    lambda: functional.unfold(image(), 2),
    lambda: functional.fold(learnt(2, 8, 4), (3, 3), 2),
    lambda: functional.grid_sample(
        image(), functional.affine_grid(learnt(2, 2, 3), (2, 2, 4, 4), align_corners=False)
    ),
    lambda: torch.linalg.lu_solve(*torch.linalg.lu_factor(learnt(2, 3, 3)), learnt(2, 3, 1)),
    lambda: torch.cholesky_solve(learnt(2, 3, 1), torch.eye(3).expand(2, 3, 3)),
    lambda: torch.cholesky_inverse(torch.eye(3).expand(2, 3, 3) + 0.1 * moved(2, 3, 3).tril()),
    *(lambda kind=kind, how=how: getattr(functional, kind)(moved(4, 3), torch.eye(4, 3),
                                                           reduction=how)
      for how in ("none", "mean", "sum")
      for kind in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                   "soft_margin_loss")),
    *(lambda how=how, shape=shape, weight=weight: functional.nll_loss(
        learnt(4, 3, *shape), torch.randint(3, (4, *shape)), weight, ignore_index=1, reduction=how)
      for how in ("none", "mean", "sum") for shape in ((), (2, 2))
      for weight in (None, torch.tensor([1.0, 2.0, 3.0]))),
    lambda: torch.outer(learnt(3), learnt(4)),
    lambda: torch.ger(learnt(3), learnt(4)),
    lambda: torch.argsort(learnt(3, 4)),
    lambda: torch.searchsorted(torch.arange(4.0).expand(3, 4).contiguous(), moved(3, 2)),
    lambda: torch.slice_scatter(learnt(4, 3), learnt(2, 3), 0, 1, 3),
    lambda: torch.trace(learnt(3, 3)),
    lambda: learnt(3, 4).amax(1) + learnt(3, 4).max(1).values + learnt(3, 4).median(1).values,
    lambda: functional.glu(learnt(3, 4), 1) + functional.glu(learnt(6, 2), 0).reshape(3, 2),
    lambda: torch.fake_quantize_per_channel_affine(
        learnt(2, 3, 4), moved(3).detach(), torch.zeros(3, dtype=torch.int32), 1, -9, 9
    ),
    lambda: torch.fake_quantize_per_tensor_affine(learnt(3, 4), 0.1, 0, -9, 9),
    lambda: torch.ops.aten._standard_gamma_grad(moved(3, 4).detach(), moved(3, 4).detach()),
    lambda: torch._dirichlet_grad(*(moved(3, 4).detach() + n for n in (0, 0.1, 2))),
    lambda: functional.rrelu(learnt(3, 4)),
    lambda: functional.embedding_bag(
        torch.tensor([0, 1, 1, 2]), learnt(3, 2), torch.tensor([0, 2])
    ),
    lambda: torch.ops.aten._embedding_bag_forward_only(
        learnt(3, 2).detach(), torch.tensor([0, 1, 1, 2]), torch.tensor([0, 2])
    )[0],
    lambda: torch.ops.aten._embedding_bag_dense_backward(
        learnt(2, 2).detach(), torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 1]),
        torch.tensor([2, 2]), torch.tensor([0, 0]), 3, False, 0, None,
    ),
    lambda: torch.ops.aten._unsafe_index(learnt(3, 4), [torch.tensor([0, 2])]),
    lambda: torch.ops.aten._unsafe_index_put(learnt(3, 4), [torch.tensor([0, 2])], learnt(2, 4)),
    lambda: torch.ops.aten._weight_norm_interface(learnt(3, 4), learnt(3, 1), 0)[0],
    lambda: torch.ops.aten._euclidean_dist(learnt(3, 2), learnt(4, 2)),
    lambda: torch.ops.aten._fused_rms_norm(learnt(3, 4), [4], learnt(4), 1e-5)[0],
    lambda: torch.ops.aten._native_batch_norm_legit(
        image(), learnt(2), learnt(2), True, 0.1, 1e-5
    )[0],
    lambda: torch.ops.aten._native_batch_norm_legit_no_training(
        image(), learnt(2), learnt(2), torch.zeros(2), torch.ones(2), 0.1, 1e-5
    )[0],
    lambda: torch.ops.aten._reshape_copy(learnt(3, 4), [4, 3]),
    lambda: functional.ctc_loss(
        learnt(5, 2, 3).log_softmax(2), torch.tensor([[1, 2], [2, 1]]), (5, 5), (2, 2)
    ),
    lambda: functional.scaled_dot_product_attention(*(learnt(2, 2, 3, 4) for _ in range(3))),
    lambda: functional.multilabel_margin_loss(
        learnt(3, 4), torch.tensor([[0, 1, -1, 0]] * 3), reduction="none"
    ),
    lambda: torch.linalg.solve(learnt(4, 3, 3), learnt(4, 3)),
    lambda: torch.linalg.solve_triangular(learnt(2, 3, 3), learnt(2, 3, 4), upper=True),
    lambda: torch.linalg.solve_triangular(
        learnt(2, 3, 3), learnt(2, 4, 3), upper=False, left=False
    ),
    lambda: nn.LSTM(3, 2, batch_first=True)(learnt(2, 3, 3))[0],
]  # fmt: skip


def everything_of_torch(every, monkeypatch, prober):
    # torch's list needs a library of its own tests, of which nothing is used here.
    stand_in = types.SimpleNamespace(TestCase=unittest.TestCase)
    monkeypatch.setitem(sys.modules, "expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db[::every]:
        for kind in (torch.float32, torch.int64):
            if kind in info.dtypes:
                try_out(info, kind, prober)


def tried_directly(prober):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in DIRECT:
            with Collecting(prober):
                found = call()
                if found.requires_grad:
                    found.sum().backward()


def test_no_rule_says_too_little_in_calls_that_are_seldom_made():
    prober = Prober(limit=6, layouts=6)
    tried_directly(prober)
    assert prober.wrong == set()
    assert len(prober.tried) >= 50


@pytest.mark.slow
def test_every_rule_is_compared_with_brute_force(monkeypatch):
    prober = Prober(limit=6, layouts=4)
    everything_of_torch(1, monkeypatch, prober)
    tried_directly(prober)
    collected(prober, monkeypatch, INNOCENT)
    tried = {name.rstrip("_") for name in prober.tried} | set(prober.tried)
    reading = {name for name, rule in RULES.items() if rule not in WITHOUT_OPERANDS}
    left = {
        name
        for name in reading - tried - ELSEWHERE - DRAWN
        if not is_taken_apart(name)
        and ("scaled_dot_product" not in name or name.endswith("_for_cpu"))
    }
    assert prober.wrong == set()
    assert left <= {"_cummax_helper", "_cummin_helper", "_index_put_impl_"}  # parts of others


@pytest.mark.parametrize("name", ["poisson", "binomial", "_standard_gamma", "_sample_dirichlet"])
def test_what_is_drawn_first_does_not_depend_on_what_comes_after(name):
    """Draws shift one another, but nobody's parameters reach what was drawn before."""
    calls = {
        "poisson": lambda p: torch.poisson(9 * p),
        "binomial": lambda p: torch.binomial(torch.full_like(p, 20), p),
        "_standard_gamma": torch._standard_gamma,
        "_sample_dirichlet": torch._sample_dirichlet,
    }
    first = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    for row in range(6):
        other = first.clone()
        other[row] = 0.99 - other[row]
        drawn_rows = []
        for given in (first, other):
            torch.manual_seed(1)
            drawn_rows.append(calls[name](given))
        assert torch.equal(drawn_rows[0][:row], drawn_rows[1][:row])


# -- draws -----------------------------------------------------------------------------------------

#: On other devices; what they draw is counted by shapes.
OF_DEVICES = ("_fused_dropout", "_dropout_mask", "_scaled_dot_product")


def test_every_draw_that_is_said_to_be_steady_is_tried():
    """Torch says which operations draw; one without operands cannot depend on any."""
    found = collections.Counter()
    for name in operations():
        for function in overloads(name):
            operation = operation_of(function)
            reads = any("Tensor" in str(a.type) for a in function._schema.arguments if not a.is_out)
            if operation.random and reads and not operation.shifts and operation.rule is not None:
                found[name] += 1
    assert found
    assert {name for name in found if not name.startswith(OF_DEVICES)} <= set(CALLS)


def test_lists_name_operations_of_torch():
    known = operations()
    for names in (_STEADY, _FILLS, _DRAWS, UNWRITTEN, _PLACING, ESCAPES):
        missing = {name for name in names if name not in known and name.rstrip("_") not in known}
        assert missing <= {
            "_dropout_mask", "item", "is_nonzero", "nonzero_numpy", "allclose",
            "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
        }  # fmt: skip


@pytest.mark.parametrize("name", sorted(_FILLS))
def test_what_fills_fills_with_one_number(name):
    given = {
        "full": lambda: torch.full((2, 3), 7.0),
        "full_like": lambda: torch.full_like(torch.rand(2, 3), 7.0),
        "new_full": lambda: torch.rand(2).new_full((2, 3), 7.0),
        "scalar_tensor": lambda: torch.scalar_tensor(3),
        "fill_": lambda: torch.rand(2, 3).fill_(7.0),
        "fill": lambda: torch.fill(torch.rand(2, 3), 7.0),
        "zero_": lambda: torch.rand(2, 3).zero_(),
        "_efficientzerotensor": lambda: torch._efficientzerotensor((2, 3)).clone(),
    }
    plain = {"like": lambda: getattr(torch, name)(torch.rand(2, 3)),
             "new": lambda: getattr(torch.rand(2), name)((2, 3))}  # fmt: skip
    kind = "like" if name.endswith("_like") else "new" if name.startswith("new_") else ""
    call = given.get(name) or plain.get(kind) or (lambda: getattr(torch, name)(2, 3))
    assert len(call().unique()) == 1


def test_what_places_by_an_index_is_known():
    """Whatever has an index and something that is put there, by torch's own schema."""
    found = set()
    for name in operations():
        for function in overloads(name):
            kinds = {a.name: str(a.type) for a in function._schema.arguments if not a.is_out}
            placed = {"src", "source", "values", "value"} & set(kinds)
            by_index = any("Tensor" in kinds.get(n, "") for n in ("index", "indices", "mask"))
            if placed and by_index and operation_of(function).rule is not None:
                found.add(name)
    assert found
    # Results of the first two are called values, and the last are placed entry by entry.
    assert found - _PLACING <= {
        "_cummax_helper", "_cummin_helper", "masked_fill", "masked_fill_",
    }  # fmt: skip


# -- facts -----------------------------------------------------------------------------------------

PROPERTIES = [
    name
    for name in dir(torch.Tensor)
    if isinstance(getattr(torch.Tensor, name, None), type(torch.Tensor.shape))
]


def twins():
    """Tensors that are alike but for their values."""
    drawn = torch.Generator().manual_seed(0)
    for shape in ((3, 4), (5,), ()):
        one = torch.randn(shape, generator=drawn)
        yield one, -2 * one - 1
        yield one.to_sparse() if shape else one, (one + 1).to_sparse() if shape else one


@pytest.mark.parametrize("name", PROPERTIES)
def test_no_property_of_a_tensor_says_anything_of_its_values(name):
    """All of them count as facts unless they are tensors."""
    if name in ("data_ptr", "_cdata", "grad_fn", "_backward_hooks"):
        return
    for one, other in twins():
        said = []
        for tensor in (one, other):
            try:
                said.append(getattr(tensor, name))
            except (RuntimeError, AttributeError, NotImplementedError) as error:
                said.append(type(error))
        if not any(isinstance(value, torch.Tensor) for value in said):
            assert said[0] == said[1] or isinstance(said[0], torch.UntypedStorage)


#: What a fact is asked with, beside the tensor.
ARGUMENTS = {
    "is_set_to": (torch.ones(2),), "is_same_size": (torch.ones(3, 4),), "result_type": (2.0,),
    "can_cast": None, "promote_types": None, "has_torch_function": None, "register_hook": None,
    "register_post_accumulate_grad_hook": None, "__get__": None, "__set__": None,
    "__delattr__": None, "retain_grad": None, "grad": None, "__iter__": None, "__hash__": None,
    "is_storage": None, "has_names": None, "nested_size": None,
    "_has_same_storage_numel": (torch.ones(3, 4),),
}  # fmt: skip
#: These end in an operation that reads the value, which is seen.
VALUES = {
    "item", "allclose", "equal", "is_nonzero", "__contains__", "__bool__", "__int__", "__float__",
    "__index__", "__complex__",
}  # fmt: skip
ASIDE = {"backward", "__setitem__"}


@pytest.mark.parametrize("name", sorted(Leaks.FACTS - VALUES - ASIDE))
def test_a_fact_is_the_same_for_all_values(name):
    more = ARGUMENTS.get(name, ())
    if more is None:
        return
    for one, other in twins():
        said = []
        for tensor in (one, other):
            call, given = getattr(tensor, name, None), more
            if call is None:
                call, given = getattr(torch, name, None), (tensor, *more)
            call = getattr(torch.ops.aten, name) if call is None else call
            try:
                said.append(call(*given))
            except (RuntimeError, TypeError, IndexError, AttributeError, BufferError) as error:
                said.append(type(error))
        assert said[0] == said[1]


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_value_that_leaves_by_an_operation_is_seen(name):
    watch = Watch([])
    record = torch.ones(1, dtype=torch.int64 if name == "__index__" else torch.float32)
    watch.mark(record, torch.zeros(1, dtype=torch.int64))
    other = {"allclose": (record,), "equal": (record,), "__contains__": (1.0,)}.get(name, ())
    with watch, Leaks(watch):
        getattr(record, name)(*other)
    assert watch.escapes


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.escaping = []

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not tensors_only(result) and pytree.tree_leaves(args):
            self.escaping.append(func.overloadpacket.__name__)
        return result


@pytest.mark.slow
def test_an_operation_that_returns_a_number_escapes_or_says_a_fact(monkeypatch):
    stand_in = types.SimpleNamespace(TestCase=unittest.TestCase)
    monkeypatch.setitem(sys.modules, "expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db:
            if torch.float32 not in info.dtypes:
                continue
            try:
                samples = list(info.sample_inputs("cpu", torch.float32))[:2]
            except Exception:
                continue
            for sample in samples:
                counting = Counting()
                try:
                    with counting:
                        info.op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue
                for name in counting.escaping:
                    shown = [operation_of(o).escapes for o in overloads(name)]
                    assert any(shown) or name in Leaks.FACTS or name not in RULES
