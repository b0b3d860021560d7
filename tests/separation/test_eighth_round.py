"""An eighth round: programs written by somebody who had read the page, and what it left open.

Of 215 mixing programs fourteen moved a sum by more than its bound or kept records, of four kinds:
an autograd function that is applied by a name of its own (which was not noticed, so that its
backward pass could exchange gradients later on), threads that run already, calls of scripts that
were bound before, and a generator that is set at a later step or after the last draw. One, a thread
that looks into a plain container again and again, still does. Four ended in an error of torch's
instead of a refusal. Innocent programs were refused more often: of 362 losses, layers and
distributions of torch 41 were, most for want of a rule; eleven still are.
"""

import asyncio
import collections
import contextlib
import copy
import pickle
import queue
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import noisewise as nw
from noisewise.gradients.engine import GradientEngine
from separation.test_sixth_round import CLASSES, HIDDEN, Model, each, flat, move, records

pytestmark = pytest.mark.filterwarnings("ignore")


def some(table, every):
    """One of so many at once, and the others among the slow tests."""
    names = list(table)
    return [
        name if place % every == 0 else pytest.param(name, marks=pytest.mark.slow)
        for place, name in enumerate(names)
    ]


# -- what a model does between two layers ----------------------------------------------------------


def with_neighbours(model, h):
    count = len(h)
    places = torch.stack([torch.arange(count), (torch.arange(count) + 1) % count])
    return h + torch.sparse.mm(torch.sparse_coo_tensor(places, torch.ones(count)), h)


def steps_over_records(model, h):
    state, rows = torch.zeros(HIDDEN), []
    for row in h:
        state = torch.tanh(row + state)
        rows.append(state)
    return torch.stack(rows)


def fitted_inside(model, h):
    weight = torch.zeros(HIDDEN, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = ((h.detach() * weight).sum(1) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return h * (1 + weight.detach())


def caught(model, h):
    try:
        torch.linalg.cholesky(h.detach().T @ h.detach() - torch.eye(HIDDEN))
        return h
    except RuntimeError:
        return -h


def another_recomputation(model, h):
    calls = []

    def run(a):
        calls.append(0)
        return a * a.flip(0) if len(calls) > 1 else a * a

    return checkpoint(run, h, use_reentrant=False)


def cluster_means(model, h):
    cluster = h.detach().argmax(1)
    index = cluster.unsqueeze(1).expand_as(h)
    means = torch.zeros(HIDDEN, HIDDEN).scatter_reduce(0, index, h, "mean", include_self=False)
    return h + means[cluster]


def of_other_memory(model, h):
    rows = h.detach()
    others = torch.empty(0).set_(rows.untyped_storage(), HIDDEN, (len(h) - 1, HIDDEN), (HIDDEN, 1))
    return h + torch.cat([others, others[:1]])


def on_a_node(model, h):
    h = h * 2
    if h.grad_fn is not None:
        h.grad_fn.register_hook(lambda into, out: (into[0] - into[0].mean(0), *into[1:]))
    return h


def on_several(model, h):
    first, second = h * 1, h * 2
    if h.requires_grad:
        torch.autograd.graph.register_multi_grad_hook(
            (first, second), lambda found: found[0].copy_(found[1].flip(0))
        )
    return first + second


class Flipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(0)


flipped = Flipped.apply


@torch.jit.script
def centred(h: torch.Tensor) -> torch.Tensor:
    return h - h.mean(0)


def rows_of(h):
    return h.view(len(h), 2, 4)


def shared_quantisation(model, h):
    step = (h.detach().max() - h.detach().min()) / 255
    return h + ((h.detach() / step).round() * step - h.detach())


MIXING = {
    "softmax over records": lambda m, h: rows_of(h).softmax(0).reshape(len(h), HIDDEN),
    "attention over records": lambda m, h: (
        functional.scaled_dot_product_attention(*[rows_of(h).transpose(0, 1)] * 3)
        .transpose(0, 1)
        .reshape(len(h), HIDDEN)
    ),
    "neighbours in a graph": with_neighbours,
    "a graph by rows": lambda m, h: h + torch.eye(len(h)).roll(1, 0).to_sparse_csr() @ h,
    "steps over records": steps_over_records,
    "complex mean": lambda m, h: torch.view_as_real(
        torch.view_as_complex(h.view(-1, 4, 2))
        * torch.view_as_complex(h.view(-1, 4, 2)).mean(0)
    ).reshape(len(h), HIDDEN),
    "shared quantisation": shared_quantisation,
    "quantised": lambda m, h: (
        h + torch.quantize_per_tensor_dynamic(h.detach(), torch.quint8, False).dequantize()
    ),
    "masked mean": lambda m, h: h - torch.masked.mean(h, 0, mask=h.detach() > 0),
    "masked tensor": lambda m, h: (
        h - torch.masked.masked_tensor(h.detach(), h.detach() > 0).mean(0).get_data()
    ),
    "pickled": lambda m, h: h + pickle.loads(pickle.dumps(h.detach().mean(0))),
    "formatted": lambda m, h: h * float(f"{h.detach().mean():.3f}"),
    "other memory": of_other_memory,
    "cluster means": cluster_means,
    "histogram": lambda m, h: (
        h * torch.histogram(h.detach().flatten(), torch.linspace(-1, 1, 5)).hist[0]
    ),
    "number of a kind": lambda m, h: h * torch.bincount(h.detach().argmax(1), minlength=HIDDEN),
    "projection": lambda m, h: (
        h @ (v := torch.linalg.svd(h.detach(), full_matrices=False)[2][:1]).T @ v
    ),
    "convolution over records": lambda m, h: functional.conv1d(
        h.T.unsqueeze(0), torch.ones(HIDDEN, 1, 3), padding=1, groups=HIDDEN
    )[0].T,
    "resized over records": lambda m, h: (
        h - functional.interpolate(h.T.unsqueeze(0), size=2, mode="linear")[0].mean(1)
    ),
    "trapezoid": lambda m, h: h + torch.trapezoid(h, dim=0),
    "differences": lambda m, h: h.diff(dim=0, prepend=h[:1]),
    "largest so far": lambda m, h: h + h.cummax(0).values,
    "batch statistics": lambda m, h: functional.batch_norm(h, None, None, training=True),
    "rows drawn": lambda m, h: h[torch.randint(len(h), (len(h),))],
    "rows drawn by scores": lambda m, h: h[h.detach().abs().sum(1).multinomial(len(h), True)],
    "gradient of a mean": lambda m, h: (
        h + torch.func.grad(lambda t: t.mean(0).square().sum())(h.detach())
    ),
    "mapped, all rows": lambda m, h: torch.vmap(lambda row: row - h.mean(0))(h),
    "Jacobian of a mean": lambda m, h: (
        h + torch.func.jacrev(lambda t: t.square().mean(0))(h.detach()).sum((0, 1))
    ),
    "fitted inside": fitted_inside,
    "an error that is caught": caught,
    "another recomputation": another_recomputation,
    "a hook on a node": on_a_node,
    "a hook on several": on_several,
    "an autograd function by another name": lambda m, h: flipped(h),
    "a script": lambda m, h: centred(h),
    "members": lambda m, h: h if 0.5 in h.detach() else -h,
    "a text": lambda m, h: h * len(repr(h.detach())),
    "numpy's function": lambda m, h: h + np.add(h.detach(), 1).mean(0),
    "the largest row": lambda m, h: h + max(h.detach().unbind(0), key=lambda row: row.sum()),
    "a branch by torch": lambda m, h: torch.cond(
        h.detach().mean() > 0, lambda a: a + 0, lambda a: -a, (h,)
    ),
    "nested": lambda m, h: (
        h - torch.nested.nested_tensor([h[:1], h[1:]]).to_padded_tensor(0.0).mean((0, 1))
    ),
    "nested by offsets": lambda m, h: (
        h - torch.nested.nested_tensor([h.detach()[:2], h.detach()[2:]], layout=torch.jagged)
        .values()
        .mean(0)
    ),
}  # fmt: skip


def hypernetwork():
    return Model(
        lambda m, h: functional.linear(h, m.hyper(h.mean(0)).view(HIDDEN, HIDDEN)),
        hyper=nn.Linear(HIDDEN, HIDDEN**2),
    )


class Scaled(nn.Module):
    seen = None

    def forward(self, weight):
        return weight if self.seen is None else weight * (1 + self.seen[0])


def parametrised_by_records():
    model, scaled = Model(), Scaled()
    parametrize.register_parametrization(model.last, "weight", scaled)

    def then(_, h):
        scaled.seen = (h.detach().mean(),)
        return h

    model.then = then
    return model


def hooked(register, hook):
    model = Model()
    getattr(model.last, register)(hook)
    return model


def average(output, target):
    losses = each(output, target)
    return losses + 0.5 * losses.mean()


class Banked(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = collections.deque(maxlen=3)

    def forward(self, output, target):
        losses = each(output, target)
        if self.bank:
            losses = losses * torch.stack(tuple(self.bank)).mean()
        self.bank.append(losses.detach().mean())
        return losses


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, output, target):
        losses = each(output, target)
        self.scale.lerp_(losses.detach().mean(), 0.1)
        return losses / self.scale


def sinkhorn(output, target):
    plan = output.detach().softmax(1)
    for _ in range(3):
        plan = plan / plan.sum(0, keepdim=True)
        plan = plan / plan.sum(1, keepdim=True)
    return -(plan * output.log_softmax(1)).sum(1)


def decorrelated(output, target):
    unit = (output - output.mean(0)) / output.std(0)
    return each(output, target) + (unit.T @ unit / len(target)).square().sum()


def hard_half(output, target):
    losses = each(output, target)
    return losses * (losses > losses.detach().kthvalue(len(losses) // 2).values)


def balance(model_output, target):
    output, aside = model_output
    return each(output, target) + aside


class Routed(Model):
    def forward(self, x):
        h = torch.tanh(self.first(x))
        gate = h[:, :2].softmax(1)
        used = functional.one_hot(gate.argmax(1), 2).float().mean(0)
        return self.last(h), (gate.mean(0) * used).sum()


def recurrent():
    return Model(lambda m, h: m.gru(rows_of(h))[0].reshape(len(h), HIDDEN), gru=nn.GRU(4, 4))


def attending():
    return Model(
        lambda m, h: m.heads(*[rows_of(h)] * 3)[0].reshape(len(h), HIDDEN),
        heads=nn.MultiheadAttention(4, 2),
    )


PROGRAMS = {
    "sequence first, by mistake": lambda: (recurrent(), each),
    "heads, sequence first": lambda: (attending(), each),
    "a hypernetwork": lambda: (hypernetwork(), each),
    "parametrised by records": lambda: (parametrised_by_records(), each),
    "a hook on gradients": lambda: (
        hooked("register_full_backward_hook", lambda m, i, o: (i[0] - i[0].mean(0),)),
        each,
    ),
    "a hook before gradients": lambda: (
        hooked("register_full_backward_pre_hook", lambda m, o: (o[0].sort(0).values,)),
        each,
    ),
    "a hook before": lambda: (
        hooked("register_forward_pre_hook", lambda m, given: (given[0] - given[0].mean(0),)),
        each,
    ),
    "a part of the mean": lambda: (Model(), average),
    "a bank of losses": lambda: (Model(), Banked()),
    "an average of losses": lambda: (Model(), Averaged()),
    "optimal transport": lambda: (Model(), sinkhorn),
    "decorrelated": lambda: (Model(), decorrelated),
    "the harder half": lambda: (Model(), hard_half),
    "balanced experts": lambda: (Routed(), balance),
    "prior of classes": lambda: (
        Model(),
        lambda o, t: each(o + (torch.bincount(t, minlength=CLASSES) / len(t) + 0.1).log(), t),
    ),
    "pairs": lambda: (
        Model(),
        lambda o, t: functional.softplus(o[:, :1] - o[:, 0]).masked_fill(t[:, None] == t, 0).sum(1),
    ),
    "variances": lambda: (
        Model(),
        lambda o, t: each(o, t) + functional.relu(1 - o.var(0).sqrt()).sum(),
    ),
    "kernel distances": lambda: (Model(), lambda o, t: (-torch.cdist(o, o.detach())).exp().mean(1)),
    "shared heat": lambda: (Model(), lambda o, t: each(o / o.detach().std(), t)),
    "gradients across": lambda: (
        Model(),
        lambda o, t: each(o, t) + torch.func.grad(lambda z: z.mean(0).square().sum())(o).sum(1),
    ),
}


@pytest.mark.parametrize("name", [*some(MIXING, 9), *some(PROGRAMS, 9)])
def test_programs_that_mix_records_are_refused(name):
    model, loss = PROGRAMS[name]() if name in PROGRAMS else (Model(MIXING[name]), each)
    with pytest.raises(nw.NoisewiseError):
        nw.bounded_sum(model, loss, *records("plain"), nw.Clipped(1.0), chunk=4)


# -- later on --------------------------------------------------------------------------------------


class Exchanged(torch.autograd.Function):
    on = False

    @staticmethod
    def forward(ctx, first, second):
        return first.view_as(first), second.view_as(second)

    @staticmethod
    def backward(ctx, first, second):
        return (second, first) if Exchanged.on else (first, second)


class Remembered(torch.autograd.Function):
    on, last = False, []

    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, gradient):
        if Remembered.on:
            Remembered.last.append(gradient)
            return Remembered.last[0]
        return gradient


NAMES = [
    lambda kind: kind.apply,
    lambda kind: super(torch.autograd.Function, kind).apply,
    lambda kind: type(kind.__name__, (kind,), {"__module__": "noisewise.gradients"}).apply,
]


@pytest.mark.parametrize("named", NAMES)
@pytest.mark.parametrize("kind", [Exchanged, pytest.param(Remembered, marks=pytest.mark.slow)])
def test_an_autograd_function_is_noticed_by_whatever_name_it_is_applied(kind, named):
    """Its backward pass may do something else later on, without calling torch."""
    run = named(kind)

    def then(model, h):
        if kind is Remembered:
            return run(h)
        first, second = run(h[:, :4], h[:, 4:].t())
        return torch.cat([first, 2 * second.t()], 1)

    x, y = records("plain")
    engine = GradientEngine(Model(then), each, nw.Clipped(1.0), chunk=4)
    try:
        engine.sum(x, y)
        engine.sum(x, y)
        kind.on = True
        with pytest.raises(nw.NoisewiseError):
            engine.sum(x, y)
    finally:
        kind.on = False
        Remembered.last.clear()


class Threads:
    """A thread that runs already and what it is handed records by."""

    @staticmethod
    def average(job):
        rows, out = job
        with torch.no_grad():
            out.data.copy_(rows.mean(0))

    @staticmethod
    @contextlib.contextmanager
    def simple_queue():
        given, done = queue.SimpleQueue(), queue.SimpleQueue()

        def work():
            while (job := given.get()) is not None:
                Threads.average(job)
                del job
                done.put(None)

        threading.Thread(target=work, daemon=True).start()
        yield lambda *job: (given.put(job), done.get())
        given.put(None)

    @staticmethod
    @contextlib.contextmanager
    def loop_of_events():
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        async def work(*job):
            Threads.average(job)

        yield lambda *job: asyncio.run_coroutine_threadsafe(work(*job), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", [Threads.simple_queue, Threads.loop_of_events])
def test_a_program_that_can_hand_records_to_a_running_thread_is_refused(kind, late):
    with kind() as hand:

        def then(model, h):
            out, rows = torch.zeros(HIDDEN), h.detach()
            if not late:
                hand(rows, out)
            return h + out

        with pytest.raises(nw.NoisewiseError, match="can hand records to a thread"):
            nw.bounded_sum(Model(then), each, *records("plain"), nw.Clipped(1.0), chunk=4)


@torch.jit.script
def average_into(rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(rows.mean(0))


bound_before = average_into.__call__


def test_the_call_of_a_script_that_was_bound_before_is_watched():
    def then(model, h):
        out = torch.zeros(HIDDEN)
        rows, into = h.data, out.data
        if model.on:
            bound_before(rows, into)
        return h + out

    model, (x, y) = Model(then, on=False), records("plain")
    engine = GradientEngine(model, each, nw.Clipped(1.0), chunk=4)
    engine.sum(x, y)
    model.on = True
    with pytest.raises(nw.NoisewiseError):
        engine.sum(x, y)


def state_of(seed, draws):
    generator = torch.Generator().manual_seed(seed)
    torch.rand(draws, generator=generator)
    return generator.get_state()


STATE = state_of(3, 7)


def set_before(model, h):
    h = functional.dropout(h, 0.5)
    if model.on:
        torch.default_generator.set_state(STATE)
    return functional.dropout(h, 0.5)


def set_first(model, h):
    if model.on:
        torch.default_generator.set_state(STATE)
    return functional.dropout(h, 0.5)


def set_after(model, h):
    h = functional.dropout(h, 0.5)
    if model.on:
        torch.default_generator.set_state(STATE)
    return h


def set_in_a_hook(model, h):
    def hook(gradient):
        if model.on:
            torch.default_generator.set_state(STATE)
        return gradient * torch.rand_like(gradient)

    if h.requires_grad:
        h.register_hook(hook)
    return h


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("then", [set_before, set_first, set_after, set_in_a_hook])
def test_records_have_slots_of_their_own_once_the_generator_is_set(then, late):
    """What is drawn then is the same for whoever has a place in a batch."""
    model, (x, y) = Model(then, on=not late), records("plain")
    engine = GradientEngine(model, each, nw.Clipped(1.0), chunk=4)
    if late:
        for _ in range(2):
            torch.manual_seed(3)
            engine.sum(x, y)
        assert not engine.own_places
        model.on = True
    torch.manual_seed(3)
    engine.sum(x, y)
    assert engine.own_places


@pytest.mark.parametrize("kind", ["twins", pytest.param("huge", marks=pytest.mark.slow)])
@pytest.mark.parametrize("then", [set_before, set_first, set_after])
def test_one_record_moves_a_sum_by_its_bound_where_the_generator_is_set(then, kind):
    assert move(lambda: (Model(then, on=True), each), kind) <= 1.001


def test_who_only_draws_stays_bound():
    """Also where torch itself sets the generator, to recompute."""

    def then(model, h):
        h = model.gru(rows_of(functional.dropout(h, 0.3)))[0].reshape(len(h), HIDDEN)
        return checkpoint(
            lambda a: functional.dropout(model.more(a), 0.5), h, use_reentrant=False
        ) * torch.rand_like(h)

    model = Model(
        then,
        gru=nn.GRU(4, 4, num_layers=2, dropout=0.2, batch_first=True),
        more=nn.Linear(HIDDEN, HIDDEN),
    )
    engine, (x, y) = GradientEngine(model, each, nw.Clipped(1.0), chunk=4), records("plain")
    engine.sum(x, y)
    watched, original = [], engine._watched
    engine._watched = lambda *given: watched.append(0) or original(*given)
    for _ in range(3):
        engine.sum(x, y)
    assert not watched
    assert not engine.own_places


# -- innocent --------------------------------------------------------------------------------------


def positive(output):
    return functional.softplus(output) + 0.1


def squares(output):
    return torch.diag_embed(positive(output))


def by_likelihood(distribution):
    def loss(output, target):
        made = distribution(output)
        drawn = made.rsample() if made.has_rsample else made.sample()
        return -made.log_prob(drawn.detach()).reshape(len(output), -1).sum(1)

    return loss


MADE = torch.distributions
LIKELIHOODS = {
    "Normal": lambda o: MADE.Normal(o, positive(o)),
    "Laplace": lambda o: MADE.Laplace(o, positive(o)),
    "Cauchy": lambda o: MADE.Cauchy(o, positive(o)),
    "Student": lambda o: MADE.StudentT(positive(o), o, positive(o)),
    "Gamma": lambda o: MADE.Gamma(positive(o), positive(o)),
    "Beta": lambda o: MADE.Beta(positive(o), positive(o)),
    "Dirichlet": lambda o: MADE.Dirichlet(positive(o)),
    "Exponential": lambda o: MADE.Exponential(positive(o)),
    "Poisson": lambda o: MADE.Poisson(positive(o)),
    "Binomial": lambda o: MADE.Binomial(7, logits=o),
    "Geometric": lambda o: MADE.Geometric(logits=o),
    "Multinomial": lambda o: MADE.Multinomial(5, logits=o),
    "normal with covariances": lambda o: MADE.MultivariateNormal(o, scale_tril=squares(o)),
}
LOSSES = {
    "Gaussian": lambda o, t: functional.gaussian_nll_loss(
        o[:, 0], t.float(), positive(o[:, 1]), reduction="none"
    ),
    "Gaussian, one variance": lambda o, t: functional.gaussian_nll_loss(
        o, functional.one_hot(t, CLASSES).float(), positive(o[:, 1]), full=True, reduction="none"
    ).sum(1),
    "margins of several labels": lambda o, t: functional.multilabel_margin_loss(
        o, torch.stack([t, -torch.ones_like(t), -torch.ones_like(t)], 1), reduction="none"
    ),
    "a system for every record": lambda o, t: torch.linalg.solve(squares(o), o).sum(1),
    "divergence of covariances": lambda o, t: MADE.kl_divergence(
        MADE.MultivariateNormal(o, scale_tril=squares(o)),
        MADE.MultivariateNormal(torch.zeros(CLASSES), torch.eye(CLASSES)),
    ),
    **{name: by_likelihood(made) for name, made in LIKELIHOODS.items()},
}
LAYERS = {
    "hardswish": lambda m, h: functional.hardswish(h),
    "mish": lambda m, h: functional.mish(h),
    "softshrink": lambda m, h: functional.softshrink(h, 0.1),
    "hardshrink": lambda m, h: functional.hardshrink(h, 0.1),
    "rrelu that does not draw": lambda m, h: functional.rrelu(h),
    "gated": lambda m, h: functional.glu(torch.cat([h, h.flip(1)], 1)),
    "rounded": lambda m, h: torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -128, 127),
    "rounded by channel": lambda m, h: torch.fake_quantize_per_channel_affine(
        h, torch.full((HIDDEN,), 0.1), torch.zeros(HIDDEN, dtype=torch.int32), 1, -128, 127
    ),
    "split": lambda m, h: torch.cat(torch.tensor_split(h, 3, 1), 1),
    "mapped": lambda m, h: torch.vmap(lambda row: row * row.softmax(0))(h),
    "its own gradient": lambda m, h: h + torch.func.grad(lambda t: t.square().sum())(h.detach()),
    "an own name": lambda m, h: straight(h),
    "own attention": lambda m, h: functional.scaled_dot_product_attention(
        *[rows_of(h)] * 3, dropout_p=0.1
    ).reshape(len(h), HIDDEN),
    "rotated": lambda m, h: torch.view_as_real(
        torch.view_as_complex(h.view(len(h), 4, 2)) * torch.polar(torch.ones(4), torch.arange(4.0))
    ).reshape(len(h), HIDDEN),
    "rows one by one": lambda m, h: torch.stack([torch.sin(row) for row in h.unbind(0)]),
    "own quantile": lambda m, h: h - h.detach().quantile(0.5, 1, keepdim=True),
    "own order": lambda m, h: h.gather(1, h.detach().argsort(1)),
    "prototypes": lambda m, h: -torch.cdist(h, torch.eye(HIDDEN)),
    "spectrum": lambda m, h: h + torch.fft.fft(h, dim=1).abs(),
}


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


straight = Straight.apply


@pytest.mark.parametrize("name", [*some(LOSSES, 6), *some(LAYERS, 5)])
def test_innocent_programs_are_accepted(name):
    model, loss = (Model(), LOSSES[name]) if name in LOSSES else (Model(LAYERS[name]), each)
    torch.manual_seed(0)
    result = nw.bounded_sum(model, loss, *records("plain"), nw.Clipped(1.0), chunk=4)
    assert flat(result).norm() > 0


def by_dual_numbers(along):
    """What torch makes of them within a run no function returns, so every step is watched."""
    return Model(lambda m, h: h + torch.func.jvp(torch.sin, (h.detach(),), (along(h.detach()),))[1])


def test_a_derivative_by_dual_numbers_is_the_one_written_out():
    found = []
    for model in (by_dual_numbers(torch.ones_like), Model(lambda m, h: h + h.detach().cos())):
        torch.manual_seed(0)
        again = Model(model.then)
        found.append(flat(nw.bounded_sum(again, each, *records("plain"), nw.Clipped(1.0), chunk=4)))
    torch.testing.assert_close(*found)


def test_dual_numbers_along_other_records_are_refused():
    with pytest.raises(nw.UnsupportedModelError, match="mixes records"):
        move(lambda: (by_dual_numbers(lambda h: h.mean(0).expand_as(h)), each), "plain")


class Likelihood(nn.Module):
    """With variances of which some may be negative."""

    def __init__(self, least):
        super().__init__()
        self.inner, self.least = nn.GaussianNLLLoss(reduction="none"), least

    def forward(self, output, target):
        return self.inner(output[:, 0], target.float(), output[:, 1] - self.least)


def test_a_gaussian_likelihood_is_the_one_of_torch_and_a_bad_variance_counts_nothing():
    torch.manual_seed(0)
    model, (x, y) = Model(), records("plain")
    variances = model(x)[:, 1].detach()
    loss = Likelihood(float(variances.sort().values[2:4].mean()))
    good = variances > loss.least
    found = nw.bounded_sum(model, loss, x, y, nw.Clipped(1e9), chunk=4)
    loss(model(x[good]), y[good]).sum().backward()
    expected = torch.cat([p.grad.double().flatten() for p in model.parameters()])
    torch.testing.assert_close(flat(found), expected, rtol=1e-4, atol=1e-6)


def test_innocent_copies_of_a_model_may_teach():
    model = Model()
    model.teacher = copy.deepcopy(model.first).requires_grad_(False)
    model.then = lambda m, h: h + 0.1 * torch.tanh(m.teacher(h[:, :4]))
    assert flat(nw.bounded_sum(model, each, *records("plain"), nw.Clipped(1.0), chunk=4)).norm() > 0
