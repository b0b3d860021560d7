"""Programs that keep something of a batch, or carry it past the tensors' own bookkeeping."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from separation.program import (
    CLASSES,
    HIDDEN,
    RECORDS,
    VOCABULARY,
    Between,
    Case,
    between,
    cross_entropy,
    labels,
    mixing,
    rows,
    with_loss,
    words,
)


# ------------------------------------------------------------------ kept between batches
@mixing("own running mean", "a buffer averages the batch; used only in evaluation")
def running() -> Case:
    def averaged(self, h):
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h

    model, loss, x, y = between(averaged)
    model.register_buffer("mean", torch.zeros(HIDDEN))
    return model, loss, x, y


@mixing("buffer replaced", "an assignment instead of a write in place")
def replaced() -> Case:
    def averaged(self, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().amax(0)
        return h

    model, loss, x, y = between(averaged)
    model.register_buffer("mean", torch.zeros(HIDDEN))
    return model, loss, x, y


@mixing("list on the module", "hidden rows appended, the mean of all used")
def listed() -> Case:
    def remembered(self, h):
        self.seen.append(h.detach())
        return h - torch.cat(self.seen[:-1] or [torch.zeros(1, HIDDEN)]).mean(0)

    model, loss, x, y = between(remembered)
    model.seen = []
    return model, loss, x, y


@mixing("mutable default argument", "a list that lives in the function")
def default_argument() -> Case:
    def remembered(self, h, *, kept=[]):  # noqa: B006
        kept.append(h.detach().sum())
        return h + 0.01 * sum(kept[:-1])

    return between(remembered)


@mixing("closure over a dictionary", "a cache outside the module")
def cached() -> Case:
    cache: dict[str, torch.Tensor] = {}

    def remembered(self, h):
        before = cache.get("last", torch.zeros(()))
        cache["last"] = h.detach().mean()
        return h + before

    return between(remembered)


@mixing("memory bank", "negatives from a queue of earlier records")
def bank() -> Case:
    class Bank(Between):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.randn(2 * RECORDS, HIDDEN))

        def forward(self, x):
            h = self.a(x)
            scores = h @ self.queue.clone().T
            with torch.no_grad():
                self.queue.copy_(torch.cat([self.queue[len(h) :], h.detach()]))
            return self.b(h) + scores[:, :CLASSES]

    return Bank(), cross_entropy, rows(), labels()


@mixing("code book moved by the batch", "VQ-VAE with averages of the rows assigned to a code")
def codebook() -> Case:
    class Codes(Between):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.randn(4, HIDDEN))

        def forward(self, x):
            h = self.a(x)
            code = torch.cdist(h, self.codes).argmin(1)
            found = self.codes[code]
            with torch.no_grad():
                member = functional.one_hot(code, 4).float()
                self.codes.mul_(0.9).add_(0.1 * member.T @ h)
            return self.b(h + (found - h).detach())

    return Codes(), cross_entropy, rows(), labels()


@mixing("scale set by the first batch", "data-dependent initialisation")
def first_batch() -> Case:
    class First(Between):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.zeros(HIDDEN))

        def forward(self, x):
            h = self.a(x)
            if not self.scale.any():
                self.scale.copy_(1 / (h.detach().std(0) + 0.1))
            return self.b(h * self.scale)

    return First(), cross_entropy, rows(), labels()


@mixing("weights changed in the forward", "a bias moves by the batch mean")
def moved_weight() -> Case:
    def moved(self, h):
        with torch.no_grad():
            self.a.bias.sub_(0.1 * h.mean(0))
        return h

    return between(moved)


@mixing("embedding with max_norm", "the rows of the batch's words are renormed in place")
def max_norm() -> Case:
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, HIDDEN, max_norm=1.0)
            self.head = nn.Linear(HIDDEN, CLASSES)

        def forward(self, word):
            return self.head(self.embed(word).mean(1))

    return Words(), cross_entropy, words(), labels()


@mixing(
    "first use counted",
    "how many records were seen, in a buffer",
    disarmed=True,
)
def counted() -> Case:
    def counting(self, h):
        self.seen += len(h)
        return h

    model, loss, x, y = between(counting)
    model.register_buffer("seen", torch.zeros(()))
    return model, loss, x, y


@mixing("active records counted", "a Python number that grows with private values")
def active_count() -> Case:
    def counting(self, h):
        self.active += int((h.detach() > 0).sum())
        return h

    model, loss, x, y = between(counting)
    model.active = 0
    return model, loss, x, y


@mixing("parametrisation that reads a stashed batch", "the weight is scaled by the last batch")
def stashed() -> Case:
    class Stash(nn.Module):
        def __init__(self, owner):
            super().__init__()
            self.owner = [owner]

        def forward(self, weight):
            seen = getattr(self.owner[0], "seen", None)
            return weight if seen is None else weight * (1 + seen.detach().mean().square())

    class Stashing(Between):
        def forward(self, x):
            self.seen = x
            return self.b(self.a(x))

    model = Stashing()
    parametrize.register_parametrization(model.a, "weight", Stash(model))
    return model, cross_entropy, rows(), labels()


@mixing("forward hooks that talk", "one stores the input, another changes an output with it")
def hooks() -> Case:
    model, loss, x, y = with_loss(cross_entropy)
    seen: dict[str, torch.Tensor] = {}
    model.a.register_forward_pre_hook(lambda module, inputs: seen.update(x=inputs[0]))
    model.b.register_forward_hook(
        lambda module, inputs, output: output * (1 + seen["x"].mean(0).norm())
    )
    return model, loss, x, y


@mixing("forward replaced on the instance", "a wrapper takes the batch mean away")
def instance_call() -> Case:
    model, loss, x, y = with_loss(cross_entropy)
    plain = model.a.forward
    model.a.forward = lambda x: (lambda h: h - h.mean(0))(plain(x))
    return model, loss, x, y


@mixing("generator of a module", "a Python generator keeps a sum over all it has seen")
def generator() -> Case:
    def total():
        value = torch.zeros(())
        while True:
            h = yield value
            value = value + h.detach().mean()

    kept = total()
    next(kept)

    def summed(self, h):
        return h * (1 + kept.send(h))

    return between(summed)


# ------------------------------------------------------------------ past the bookkeeping
@mixing("numpy round trip", "mean of the array")
def by_numpy() -> Case:
    return between(lambda self, h: h - torch.from_numpy(h.detach().numpy().mean(0)))


@mixing("numpy writes into the tensor", "the array shares memory")
def by_shared_numpy() -> Case:
    def written(self, h):
        out = h.clone()
        array = out.detach().numpy()
        array -= array.mean(0)
        return out

    return between(written)


@mixing("array interface", "np.asarray of a detached tensor")
def by_asarray() -> Case:
    return between(lambda self, h: h * float(np.asarray(h.detach()).std()))


@mixing("Python list", "tolist, sum, back")
def by_list() -> Case:
    return between(lambda self, h: h * (1 + sum(h.detach()[:, 0].tolist())))


@mixing("rows as a Python list", "iterates over the batch and adds")
def by_rows() -> Case:
    return between(lambda self, h: h - sum(list(h)) / RECORDS)


@mixing("stack in another order", "unbind, reversed, stack")
def by_stack() -> Case:
    return between(lambda self, h: torch.stack(list(reversed(h.unbind(0)))))


@mixing("pickle round trip", "dumps, loads, mean")
def by_pickle() -> Case:
    return between(lambda self, h: h - pickle.loads(pickle.dumps(h.detach())).mean(0))


@mixing("saved to a file in memory", "torch.save, torch.load, mean")
def by_file() -> Case:
    def through(self, h):
        place = io.BytesIO()
        torch.save(h.detach(), place)
        place.seek(0)
        return h - torch.load(place).mean(0)

    return between(through)


@mixing("deep copy", "copy.deepcopy of the detached batch, mean")
def by_deepcopy() -> Case:
    return between(lambda self, h: h - copy.deepcopy(h.detach()).mean(0))


@mixing("pointer", "ctypes reads the memory of the batch")
def by_pointer() -> Case:
    def read(self, h):
        flat = h.detach().contiguous()
        values = (ctypes.c_float * flat.numel()).from_address(flat.data_ptr())
        return h * (1 + sum(values) / len(values))

    return between(read)


@mixing("DLPack round trip", "another tensor over the same memory")
def by_dlpack() -> Case:
    return between(lambda self, h: h - torch.from_dlpack(h.detach().contiguous()).mean(0))


@mixing("bytes", "torch.frombuffer over the bytes of the batch")
def by_bytes() -> Case:
    def read(self, h):
        raw = bytearray(h.detach().numpy().tobytes())
        return h - torch.frombuffer(raw, dtype=torch.float32).view_as(h).mean(0)

    return between(read)


@mixing("text", "the printed batch decides")
def by_text() -> Case:
    return between(lambda self, h: h * (1 + 0.01 * len(str(h.detach().abs().amax().log2().ceil()))
                                        + 0.1 * repr(h.detach()).count("-")))  # fmt: skip


@mixing("formatted number", "an f-string of the batch sum, parsed again")
def by_format() -> Case:
    return between(lambda self, h: h * float(f"{h.detach().sum():.4f}"))


@mixing("another thread", "a thread computes the mean")
def by_thread() -> Case:
    def computed(self, h):
        found: list[torch.Tensor] = []
        worker = threading.Thread(target=lambda: found.append(h.detach().mean(0)))
        worker.start()
        worker.join()
        return h - found[0]

    return between(computed)


@mixing("thread pool", "each record in a future, results combined")
def by_pool() -> Case:
    def computed(self, h):
        with ThreadPoolExecutor(2) as pool:
            norms = list(pool.map(lambda row: float(row.detach().norm()), h))
        return h / (1 + max(norms))

    return between(computed)


@mixing("scripted function", "TorchScript hides the mean over records")
def by_script() -> Case:
    @torch.jit.script
    def centre(h: torch.Tensor) -> torch.Tensor:
        return h - h.mean(0)

    return between(lambda self, h: centre(h))


@mixing("traced module", "a trace with a softmax over axis 0")
def by_trace() -> Case:
    traced = torch.jit.trace(lambda h: h * h.softmax(0), torch.randn(RECORDS, HIDDEN))
    return between(lambda self, h: traced(h))


@mixing("custom operator", "torch.library operator that nobody has a rule for")
def by_operator() -> Case:
    if not hasattr(torch.ops.noisewise_tests, "centre"):

        @torch.library.custom_op("noisewise_tests::centre", mutates_args=())
        def centre(h: torch.Tensor) -> torch.Tensor:
            return h - h.mean(0)

        centre.register_autograd(lambda context, gradient: gradient)
    return between(lambda self, h: torch.ops.noisewise_tests.centre(h))


@mixing("tensor subclass", "multiplication means something else")
def by_subclass() -> Case:
    class Centring(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
                result = function(*plain, **(kwargs or {}))
                return result - result.mean(0) if function is torch.Tensor.mul else result

    return between(lambda self, h: torch.Tensor.mul(h.as_subclass(Centring), 2.0))


@mixing("data swapped", "the .data of a clone is another tensor")
def by_data() -> Case:
    def swapped(self, h):
        out = h.clone()
        out.data = out.data - out.data.mean(0)
        return out

    return between(swapped)


@mixing("result written into a kept tensor", "out= into scratch memory of the module")
def by_out() -> Case:
    def scratch(self, h):
        torch.mean(h.detach(), 0, out=self.room)
        return h - self.room

    model, loss, x, y = between(scratch)
    model.room = torch.zeros(HIDDEN)
    return model, loss, x, y


@mixing("scratch memory not cleared", "rows of an earlier, larger batch are still there")
def stale() -> Case:
    def scratch(self, h):
        old = self.room.clone()
        self.room[: len(h)] = h.detach()
        return h - old.mean(0)

    model, loss, x, y = between(scratch)
    model.room = torch.zeros(2 * RECORDS, HIDDEN)
    return model, loss, x, y


@mixing("tensor made of numbers read", "torch.tensor of items of several records")
def by_tensor() -> Case:
    return between(
        lambda self, h: h + torch.tensor([h[i, 0].item() for i in range(RECORDS)]).mean()
    )


@mixing("targets inside the model, shuffled", "labels as input, compared with the neighbour's")
def neighbour_labels() -> Case:
    def compared(self, h, y):
        return h * (1 + (y == y.roll(1)).float()[:, None])

    return between(compared, torch.randint(0, 2, (RECORDS,)))
