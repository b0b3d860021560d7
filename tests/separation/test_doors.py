"""Values of records that leave by a side door: each way out is refused.

Every program below multiplies or shifts all records by something that it learnt of one of them,
without an operation that mixes them in sight.
"""

import _thread
import ctypes
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import noisewise as nw

RECORDS, WIDTH = 6, 6


class Hidden(nn.Module):
    """A small model with a function of the hidden values inside."""

    def __init__(self, inside):
        super().__init__()
        self.first, self.last, self.inside = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), inside

    def forward(self, x):
        return self.last(self.inside(torch.tanh(self.first(x))))


def batch():
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, WIDTH, generator=drawn)
    return x, torch.randint(3, (RECORDS,), generator=drawn)


def cross_entropy(output, target):
    return functional.cross_entropy(output, target, reduction="none")


def proof_of(inside):
    torch.manual_seed(1)
    return nw.prove_apart(Hidden(inside), cross_entropy, *batch())


# ------------------------------------------------------------------ exceptions
def raised(action):
    """A program that branches on whether an operation on records fails."""

    def inside(h):
        try:
            action(h.detach())
        except (RuntimeError, IndexError, ValueError):
            return -h
        return h

    return inside


FAILING = {
    "cholesky": lambda h: torch.linalg.cholesky(torch.diag_embed(h - 3)),
    "inverse": lambda h: torch.linalg.inv(torch.diag_embed((h > 3).float())),
    "embedding": lambda h: functional.embedding(h.abs().long() + 9, torch.zeros(6, 2)),
    "gather": lambda h: h.gather(1, h.abs().long() + 99),
    "index": lambda h: torch.zeros(6)[h[:, 0].abs().long() + 99],
    "nll": lambda h: functional.nll_loss(h, h[:, 0].abs().long() + 99, reduction="none"),
    "multinomial": lambda h: torch.multinomial(h - 9, 1),
    "bernoulli": lambda h: torch.bernoulli(h.abs() + 9),
    "normal": lambda h: torch.normal(h, h - 9),
    "scatter": lambda h: torch.zeros(6, 2).scatter(1, h.abs().long() + 99, 1.0),
    "binary cross entropy": lambda h: functional.binary_cross_entropy(h + 9, h, reduction="none"),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_exception_that_records_raise_is_a_way_out(name):
    proof = proof_of(raised(FAILING[name]))
    assert not proof.proven
    assert any("raises" in finding.operation for finding in proof.escapes), str(proof)


# ------------------------------------------------------------------ doors
def visited(h):
    seen = []
    h.detach().clone().apply_(lambda value: (seen.append(value), value)[1])
    return h * sum(seen)


def mapped(h):
    seen = []
    h.detach().clone().map_(h.detach(), lambda a, b: (seen.append(a), a)[1])
    return h * sum(seen)


def exported(h):
    memory = torch.zeros(h.shape)
    shared = memory.numpy()
    memory.copy_(h.detach())
    value = float(shared.mean())
    memory.zero_()
    return h * value


def pointed(h):
    memory = torch.zeros(h.shape)
    address = memory.data_ptr()
    memory.copy_(h.detach())
    return h * sum((ctypes.c_float * memory.numel()).from_address(address))


ARRAY = np.zeros((RECORDS, WIDTH), dtype=np.float32)
ONE, OTHER = torch.from_numpy(ARRAY), torch.from_numpy(ARRAY)


def doubled(h):
    ONE.copy_(h.detach())
    result = h + OTHER.mean(0)
    ONE.zero_()
    return result


def packed(h):
    return h * float(np.from_dlpack(Capsule(h.detach())).mean())


class Capsule:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **_):
        return torch._C._to_dlpack(self.tensor)

    def __dlpack_device__(self):
        return 1, 0


def threaded(h):
    hidden, found, lock = h.detach(), [], _thread.allocate_lock()
    lock.acquire()

    def work():
        found.append(hidden.mean().item())
        lock.release()

    _thread.start_new_thread(work, ())
    lock.acquire()
    return h * found[0]


def pooled(h):
    hidden = h.detach()
    with ThreadPool(1) as pool:
        return h * pool.apply(lambda: hidden.mean().item())


def reseeded(h):
    state = torch.get_rng_state()
    torch.set_rng_state(torch.where(h.detach().mean() > 0, state, state * 0))
    return h * torch.rand(())


def own_generator(h):
    generator = torch.Generator()
    state = generator.get_state()
    generator.set_state(torch.where(h.detach().mean() > 0, state, state + 0))
    return h * torch.rand((), generator=generator)


def stale(h):
    del_me = (h.detach().mean(0) * 5).expand(64, WIDTH).contiguous()
    del del_me
    return h + torch.empty(64, WIDTH)[10]


def overlapping(h):
    memory = torch.zeros(len(h) + WIDTH - 1)
    memory.as_strided((len(h), WIDTH), (1, 1)).add_(h.detach())
    return h + memory[: len(h)].unsqueeze(1)


class Meddling(torch.Tensor):
    """A tensor whose operations are its own."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [getattr(a, "plain", a) for a in args]
        result = func(*plain, **(kwargs or {}))
        return result - result.mean(0) if func is torch.ops.aten.mul.Tensor else result


def meddled(h):
    values = torch.Tensor._make_subclass(Meddling, h.detach())
    values.plain = h.detach()
    return h + torch.mul(values, torch.ones(()))


KEPT = []


@torch.library.custom_op("noisewise_tests::peek", mutates_args=())
def peek(index: int) -> torch.Tensor:
    return KEPT[index].mean(0)


@torch.library.custom_op("noisewise_tests::odd", mutates_args=(), tags=(torch.Tag.pointwise,))
def odd(values: torch.Tensor) -> torch.Tensor:
    return values - values.mean(0)


def peeked(h):
    KEPT.append(h.detach())
    found = torch.ops.noisewise_tests.peek(0)
    KEPT.clear()
    return h + found


def counted(h):
    lengths = h.detach()[:, 0].abs().mul(9).long()
    ones = torch.ones(len(h), 30, dtype=torch.long)
    scores = torch.zeros(60, len(h), 5).log_softmax(-1)
    kept = torch._ctc_loss(scores, ones, torch.full((len(h),), 60), lengths)[1]
    return h * kept.shape[-1]


def forged(h):
    """What the backward pass of CTC is given instead of what its forward pass kept."""
    scores = h.repeat(1, 2).reshape(len(h), 4, 3).log_softmax(2).transpose(0, 1).detach()
    others = h.detach().mean(1).roll(1, 0).reshape(-1, 1, 1).expand(-1, 4, 3).contiguous()
    targets, one = torch.ones(len(h), 1, dtype=torch.long), torch.ones(len(h))
    given = torch.ops.aten._ctc_loss_backward(
        one, scores, targets, [4] * len(h), [1] * len(h), torch.zeros(len(h)), others, 0, False
    )
    return h * given.nan_to_num().clamp(-5, 5).sum((0, 2)).unsqueeze(1)


def half_written(h):
    """What its forward pass kept: memory that nobody has written is in it."""
    scores = h.repeat(1, 2).reshape(len(h), 4, 3).log_softmax(2).transpose(0, 1)
    lengths = torch.full((len(h),), 4), torch.ones(len(h), dtype=torch.long)
    targets = torch.ones(len(h), 2, dtype=torch.long)
    found = nn.functional.ctc_loss(scores, targets, *lengths, reduction="none")
    kept = found.grad_fn._saved_result1
    return h * kept.nan_to_num(0.0, 0.0, 0.0).sum((1, 2)).unsqueeze(1)


DOORS = {
    "a forged argument of the backward pass": forged,
    "memory that was kept for the backward pass": half_written,
    "apply_": visited,
    "map_": mapped,
    "memory shown to numpy before it is written": exported,
    "an address taken before it is written": pointed,
    "two tensors over one array": doubled,
    "dlpack": packed,
    "a raw thread": threaded,
    "a pool of threads": pooled,
    "the state of the generator": reseeded,
    "a generator of one's own": own_generator,
    "memory that nobody has written": stale,
    "entries that share memory": overlapping,
    "a tensor with operations of its own": meddled,
    "a kernel that reads a global": peeked,
    "a kernel that calls itself pointwise": lambda h: h + torch.ops.noisewise_tests.odd(h.detach()),
    "allclose": lambda h: h if torch.allclose(h, h * 0) else -h,
    "size of a histogram": lambda h: h * len(torch.bincount(h.detach()[:, 0].abs().long())),
    "size of what CTC keeps": counted,
    "text": lambda h: h * len(torch._tensor_str._str(h.detach().mean())),
    "resize_": lambda h: h + h.detach().clone().resize_(h.shape).mean(0),
    "linspace between records": lambda h: h * torch.linspace(h.detach().mean(), h[0, 0], WIDTH),
    "logspace": lambda h: h * torch.logspace(h.detach().mean(), h[0, 0], WIDTH),
    "largest number of a draw": lambda h: (
        h * torch.randint_like(h, (h.detach().mean() > 0).long() * 9 + 1)
    ),
    "renorm along the features": lambda h: h.renorm(2, 1, 0.01),
    "a seed in the model": lambda h: (torch.manual_seed(0), h * torch.rand(h.shape))[1],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DOORS)
def test_a_side_door_is_refused(name):
    proof = proof_of(DOORS[name])
    assert not proof.proven


INNOCENT = {
    "nothing": lambda h: h,
    "a table from numpy": lambda h: h + torch.tensor(np.arange(WIDTH, dtype=np.float32)),
    "renorm along the records": lambda h: h.renorm(2, 0, 0.01),
    "linspace between constants": lambda h: h * torch.linspace(0.0, 1.0, WIDTH),
    "empty, then filled": lambda h: torch.empty_like(h).copy_(h),
    "one-hot vectors": lambda h: h + functional.one_hot(h.detach().argmax(1), WIDTH),
    "a distribution": lambda h: h * torch.distributions.Normal(h, 1.0).log_prob(h.detach()),
    "floor division": lambda h: h + h.detach() // 0.5,
    "cross product": lambda h: h + torch.linalg.cross(h[:, :3], h[:, 3:]).repeat(1, 2),
    "overlapping windows, read": lambda h: h + h.detach().unfold(1, 2, 1).sum(2).mean(1)[:, None],
}


@pytest.mark.parametrize("name", INNOCENT)
def test_what_looks_like_a_door_and_is_none_is_proven(name):
    proof = proof_of(INNOCENT[name])
    assert proof.proven, str(proof)


def test_one_hot_vectors_are_those_of_torch():
    labels = torch.tensor([0, 2, 1, 2, 0, 1])

    def loss(output, target):
        ours = functional.one_hot(target, 3)
        return ((output - ours) ** 2).sum(1)

    model = nn.Linear(WIDTH, 3)
    x, _ = batch()
    found = nw.bounded_sum(model, loss, x, labels, nw.Clipped(1e6)).gradients["bias"]
    expected = 2 * (model(x) - functional.one_hot(labels, 3)).sum(0)
    assert torch.allclose(found.float(), expected, atol=1e-4)


# ------------------------------------------------------------------ new memory, old rules
def ranked(h):
    found = torch.zeros((), dtype=torch.long)
    torch.linalg.matrix_rank(h.detach(), out=found)
    return h * found


MADE = {
    "torch.tensor of a list": lambda h: h + torch.tensor([h.detach().mean()]) * 3,
    "as_tensor": lambda h: h + torch.as_tensor([h.detach().mean()]) * 3,
    "asarray": lambda h: h + torch.asarray([h.detach().mean()]) * 3,
    "new_tensor": lambda h: h + h.new_tensor([h.detach().mean()]) * 3,
    "an old constructor": lambda h: h + torch.FloatTensor([h.detach().mean()]) * 3,
    "solving with one right-hand side for all": lambda h: (
        h + torch.linalg.solve(torch.eye(RECORDS).expand(RECORDS, -1, -1) * 2.0, h.detach())[0]
    ),
    "triangular solving": lambda h: (
        h
        + torch.linalg.solve_triangular(
            torch.eye(RECORDS).expand(RECORDS, -1, -1) * 2.0, h.detach(), upper=True
        )[0]
    ),
    "splitting at an index of records": lambda h: (
        h * len(torch.tensor_split(h.detach(), (h.detach()[:, 0] > 0).sum().reshape(1))[0])
    ),
    "writing into another place of the memory": lambda h: (
        h
        + torch.as_strided_scatter(
            h.detach() * 1.0, h.detach()[:-1] * 1.0, (len(h) - 1, WIDTH), (WIDTH, 1), WIDTH
        )
    ),
    "a rank into given memory": ranked,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE)
def test_memory_that_no_operation_filled_is_not_public(name):
    assert not proof_of(MADE[name]).proven


def test_constants_of_python_are_public():
    proof = proof_of(lambda h: h * torch.tensor([0.5] * WIDTH) + torch.as_tensor(2.0))
    assert proof.proven, str(proof)


def test_slopes_that_torch_writes_to_a_copy_keep_what_they_held():
    class Slopes(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(WIDTH, 3)

        def forward(self, x):
            slopes = x.flip(0).t().contiguous().t()
            torch._C._nn.rrelu_with_noise(x, slopes, 0.1, 0.3, True)
            return self.last(x + slopes)

    with pytest.raises(nw.UnsupportedModelError):
        nw.bounded_sum(Slopes(), cross_entropy, *batch(), nw.Clipped(1.0), chunk=RECORDS)


def test_a_seed_given_to_the_generator_itself_is_noticed():
    def seeded(output, target):
        torch.default_generator.manual_seed(12345)
        return cross_entropy(output, target) * torch.rand(len(target))

    model = nn.Linear(WIDTH, 3)
    with pytest.raises(nw.UnsupportedModelError, match="seed"):
        nw.bounded_sum(model, seeded, *batch(), nw.Clipped(1.0), chunk=RECORDS)
