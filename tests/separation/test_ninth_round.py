"""A ninth round: programs that mix, programs as people write them, and loops by hand.

Of 143 models and losses that mix records, or look as if, written by somebody who had not seen those
of earlier rounds, none moved a sum by more than its sensitivity; but half of them were refused with
the line that met the mixture and not with the one that made it. Of 68 innocent programs ten were
refused: one for want of a rule, the others in words that name a repair, which is tried here, too.
"""

import contextvars
import copy
import itertools
import random
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import noisewise as nw
from noisewise.separation.refusal import RefusedError
from separation.test_eighth_round import some
from separation.test_sixth_round import CLASSES, HIDDEN, WIDTH, Model, each, move, records

pytestmark = pytest.mark.filterwarnings("ignore")

# -- what a model does between two layers ----------------------------------------------------------


def counted(model, h):
    number = torch.bincount(h.argmax(1), minlength=HIDDEN)
    return h / number[h.argmax(1)].unsqueeze(1).clamp(min=1)


def repeated(model, h):
    times = (h[:, 0] > 0).long()
    return torch.repeat_interleave(h, times, 0, output_size=len(h))


def in_python(model, h):
    seen = [0.0]

    def add(value):
        seen[0] += value
        return seen[0]

    return h + h.detach().clone().apply_(add)


def sampled_along_the_batch(model, h):
    image = h.t()[None, :, None, :]
    places = torch.stack([torch.linspace(-1, 0.9, len(h)), torch.zeros(len(h))], 1)
    return functional.grid_sample(image, places[None, None], align_corners=False)[0, :, 0].t()


def from_frames(model, h):
    """Whoever runs the model has the whole batch at hand."""
    frame, total = sys._getframe(), 0.0
    while frame is not None:
        for value in list(frame.f_locals.values()):
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, torch.Tensor) and part.shape[1:] == (WIDTH,):
                    total = total + part.sum() * (len(part) > len(h))
        frame = frame.f_back
    return h * (1 + total)


def groups_of_sign(model, h):
    group = (h[:, 0] > 0).long()
    return h - torch.zeros(2, HIDDEN).index_add(0, group, h)[group]


def halves_exchanged(model, h):
    first, second = torch.tensor_split(h, 2)
    return torch.cat([second, first])


def grid_of_pairs(model, h):
    first, second = torch.meshgrid(h[:, 0], h[:, 1], indexing="ij")
    return h + (first * second).mean(1, keepdim=True)


class Largest(torch.autograd.Function):
    """Innocent forward; the way back is divided by the largest entry of the batch."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h * 2

    @staticmethod
    def backward(ctx, g):
        return g / ctx.saved_tensors[0].abs().max()


class Thresholded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return (h > h.median()).float()

    @staticmethod
    def backward(ctx, g):
        return g


def until_it_stands(model, h):
    state = torch.zeros_like(h)
    for _ in range(20):
        after = torch.tanh(0.3 * state + h)
        if (after - state).norm() < 1e-3:
            break
        state = after
    return state


def until_all_halt(model, h):
    total = torch.zeros(len(h))
    while (total < 1).any():
        total = total + torch.sigmoid(h[:, 0]) + 0.1
        h = torch.tanh(h * 1.1)
    return h


def leaves_early(model, h):
    if torch.softmax(model.last(h), 1).amax(1).min() > 0.9:
        return h
    return h * 2


def layer_made_on_the_way(model, h):
    return nn.BatchNorm1d(HIDDEN)(h)


def steps(model, h):
    return torch.cumprod(torch.sigmoid(h), 0)


BETWEEN = {
    "attention with the batch as a sequence": lambda m, h: (
        functional.scaled_dot_product_attention(h[None], h[None], h[None])[0]
    ),
    "system of all": lambda m, h: torch.linalg.solve(h.T @ h + torch.eye(HIDDEN), h.T).T,
    "covariance": lambda m, h: h @ torch.cov(h.T),
    "mean distance": lambda m, h: h * functional.pdist(h).mean(),
    "taken along the batch": lambda m, h: torch.take_along_dim(h, h.argsort(0), 0),
    "a slice put elsewhere": lambda m, h: torch.slice_scatter(h, h[:-1], 0, 1),
    "a row put elsewhere": lambda m, h: torch.select_scatter(h, h[-1], 0, 0),
    "a diagonal turned": lambda m, h: torch.diagonal_scatter(h, torch.diagonal(h).flip(0)),
    "counted": counted,
    "variance and mean": lambda m, h: (h - torch.var_mean(h, 0)[1]) / torch.var_mean(h, 0)[0],
    "functional batch norm": lambda m, h: functional.batch_norm(h, None, None, training=True),
    "native batch norm": lambda m, h: (
        torch.native_batch_norm(h, None, None, None, None, True, 0.1, 1e-5)[0]
    ),
    "summed to a size": lambda m, h: h - h.sum_to_size(1, HIDDEN),
    "repeated by values": repeated,
    "in Python": in_python,
    "sampled along the batch": sampled_along_the_batch,
    "transposed convolution": lambda m, h: (
        functional.conv_transpose1d(h.t()[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].t()
    ),
    "from frames": from_frames,
    "sparse softmax": lambda m, h: torch.sparse.softmax(h.to_sparse(), 0).to_dense(),
    "compressed rows": lambda m, h: (h @ h.t()).relu().to_sparse_csr() @ h,
    "mean without what is none": lambda m, h: h - h.nanmean(0),
    "range": lambda m, h: h - torch.aminmax(h, dim=0).min,
    "soft maximum": lambda m, h: h - torch.logsumexp(h, 0),
    "largest so far": lambda m, h: torch.cummax(h, 0).values,
    "second smallest": lambda m, h: h - torch.kthvalue(h, 2, 0).values,
    "most frequent": lambda m, h: h - torch.mode(h.round(), 0).values,
    "differences with the last first": lambda m, h: h + torch.diff(h, dim=0, prepend=h[-1:]),
    "slope along the batch": lambda m, h: h + torch.gradient(h, dim=0)[0],
    "second moments": lambda m, h: torch.tensordot(h, torch.tensordot(h, h, ([0], [0])), 1),
    "several products": lambda m, h: torch.linalg.multi_dot([h, h.t(), h]),
    "exponential of a matrix": lambda m, h: torch.matrix_exp(h @ h.t() * 0.01) @ h,
    "power of a matrix": lambda m, h: torch.matrix_power(h @ h.t(), 2) @ h,
    "factors": lambda m, h: h + torch.linalg.lu_factor(h.t() @ h + torch.eye(HIDDEN))[0].sum(),
    "determinant": lambda m, h: h * torch.linalg.det(h.t() @ h + torch.eye(HIDDEN)),
    "own vectors": lambda m, h: h @ torch.linalg.eigh(h.t() @ h)[1],
    "norm of the matrix": lambda m, h: h * torch.linalg.matrix_norm(h),
    "groups of sign": groups_of_sign,
    "put by values": lambda m, h: (
        torch.zeros_like(h).put((h.detach() * 7).long().clamp(0, h.numel() - 1), h)
    ),
    "turned twice": lambda m, h: torch.rot90(h, 2, (0, 1)),
    "halves exchanged": halves_exchanged,
    "in the other order": lambda m, h: torch.stack(list(h.unbind(0))[::-1]),
    "axes moved, not shaped back": lambda m, h: h.movedim(0, 1).reshape(len(h), HIDDEN),
    "heads before the batch": lambda m, h: (
        h.view(len(h), 2, 4).swapaxes(0, 1).reshape(len(h), HIDDEN)
    ),
    "grid of pairs": grid_of_pairs,
    "powers of all": lambda m, h: h + torch.vander(h[:, 0], len(h)).sum(0)[:, None],
    "columns shortened": lambda m, h: torch.renorm(h.t(), 2, 0, 1.0).t(),
    "likeness of pairs": lambda m, h: (
        h * functional.cosine_similarity(h[:, None], h[None], dim=-1).mean()
    ),
    "drawn over the batch": lambda m, h: h * functional.gumbel_softmax(h, dim=0),
    "products so far": steps,
    "a spectrum of all": lambda m, h: h * torch.stft(
        h.flatten(), 8, window=torch.ones(8), return_complex=True
    ).abs().mean(),
    "mean of the chosen": lambda m, h: h - torch.masked_select(h, h > 0).mean(),
    "bits of the neighbour": lambda m, h: (
        h * (h.view(torch.int32) ^ h.view(torch.int32).roll(1, 0)).remainder(3).float()
    ),
    "pooled along the batch": lambda m, h: functional.avg_pool1d(h.t()[None], 3, 1, 1)[0].t(),
    "pooled to one": lambda m, h: h - functional.adaptive_avg_pool1d(h.t()[None], 1)[0].t(),
    "channels that are records": lambda m, h: (
        functional.channel_shuffle(h[None, :, :, None], len(h))[0, :, :, 0].flip(0)
    ),
    "divided on the way back": lambda m, h: Largest.apply(h),
    "a threshold of all": lambda m, h: Thresholded.apply(h),
    "until it stands": until_it_stands,
    "until all halt": until_all_halt,
    "leaves early": leaves_early,
    "a layer made on the way": layer_made_on_the_way,
    "units that are active": lambda m, h: h * (h.abs().mean(0) > 0.3).float(),
}  # fmt: skip

# -- losses ----------------------------------------------------------------------------------------


def pairs_as_classes(output, target):
    unit = functional.normalize(output, dim=1)
    likeness = unit @ unit.t() - 1e9 * torch.eye(len(output))
    return functional.cross_entropy(likeness, torch.arange(len(output)).roll(1), reduction="none")


def centres(output, target):
    found = [output[target == kind].mean(0) for kind in range(CLASSES)]
    return (output - torch.stack(found).detach()[target]).square().sum(1)


def slope_of_the_loss(output, target):
    losses = each(output, target)
    (slope,) = torch.autograd.grad(losses.sum(), output, create_graph=True)
    return losses * slope.norm()


def standardised_reward(output, target):
    reward = target.float()
    reward = (reward - reward.mean()) / (reward.std() + 1e-6)
    return -output.log_softmax(1)[:, 0] * reward


def worst_half(output, target):
    losses = each(output, target)
    return (losses - losses.quantile(0.5)).clamp(min=0)


def information(output, target):
    mean = output.softmax(1).mean(0)
    return each(output, target) - mean.log()[target]


def area(output, target):
    positive = (target == 2).float()
    gap = output[:, :1] - output[None, :, 0]
    return (torch.sigmoid(-gap) * positive[:, None] * (1 - positive[None])).sum(1)


def positives(output, target):
    wanted = functional.one_hot(target, CLASSES).float()
    weight = (len(target) - wanted.sum(0)) / (wanted.sum(0) + 1)
    return functional.binary_cross_entropy_with_logits(
        output, wanted, pos_weight=weight, reduction="none"
    ).sum(1)


def swapped(output, target):
    code = torch.exp(output.detach() / 0.05)
    for _ in range(3):
        code = code / code.sum(0, keepdim=True)
        code = code / code.sum(1, keepdim=True)
    return -(code * output.log_softmax(1)).sum(1)


def with_the_one_before(output, target):
    losses = each(output, target)
    rows = [losses[i] + (output[i] - output[i - 1]).square().sum() for i in range(len(output))]
    return torch.stack(rows)


def kept_by_the_function(output, target):
    mean = getattr(kept_by_the_function, "mean", torch.zeros(CLASSES))
    kept_by_the_function.mean = 0.9 * mean + 0.1 * output.detach().mean(0)
    return each(output - kept_by_the_function.mean, target)


def targets_turned_in_place(output, target):
    target.copy_(target.flip(0))
    return each(output, target)


LOSSES = {
    "total correlation": lambda o, t: each(o, t) + torch.logsumexp(
        -(o[:, None] - o[None].detach()).square().sum(2), 1
    ),
    "pairs as classes": pairs_as_classes,
    "centres": centres,
    "frequency": lambda o, t: each(o, t) / torch.bincount(t, minlength=CLASSES)[t],
    "hardest two": lambda o, t: each(o, t) * (each(o, t) >= each(o, t).topk(2).values[-1]),
    "slope of the loss": slope_of_the_loss,
    "standardised reward": standardised_reward,
    "largest chance": lambda o, t: each(o, t) * (1 - o.softmax(1).max()),
    "one sum for all": lambda o, t: each(o, t).sum().expand(len(o)),
    "one mean for all": lambda o, t: torch.ones(len(o)) * each(o, t).mean(),
    "a scalar mean": lambda o, t: each(o, t).mean(),
    "a mean by weights": lambda o, t: functional.cross_entropy(
        o, t, weight=torch.tensor([1.0, 2.0, 9.0])
    ),
    "labels of the neighbours": lambda o, t: each(o, t) + 0.1 * each(o, t.roll(1)),
    "soft weights": lambda o, t: each(o, t) * torch.softmax(each(o, t).detach(), 0),
    "worst half": worst_half,
    "information": information,
    "variance explained": lambda o, t: (o[:, 0] - t) ** 2 / (t - t.float().mean()).square().sum(),
    "area under the curve": area,
    "kept by the function": kept_by_the_function,
    "to the mean": lambda o, t: functional.kl_div(
        o.log_softmax(1), o.softmax(1).mean(0, keepdim=True).expand_as(o), reduction="none"
    ).sum(1),
    "positives": positives,
    "temperature by loss": lambda o, t: each(o / (1 + each(o, t).mean().detach()), t),
    "swapped prediction": swapped,
    "nearest of the batch": lambda o, t: (
        each(o, t) - (torch.cdist(o, o) + 1e9 * torch.eye(len(o))).amin(1)
    ),
    "with the one before": with_the_one_before,
    "margins by frequency": lambda o, t: functional.multi_margin_loss(
        o, t, reduction="none", weight=torch.bincount(t, minlength=CLASSES).float()
    ),
    "targets turned in place": targets_turned_in_place,
}  # fmt: skip

# -- hooks, layers, what the model keeps -----------------------------------------------------------


def hooked_before():
    model = Model()
    model.last.register_forward_pre_hook(lambda module, given: (given[0] - given[0].mean(0),))
    return model, each


def hooked_behind():
    model = Model()
    model.last.register_full_backward_hook(lambda module, into, out: (into[0].roll(1, 0),))
    return model, each


def hooked_for_all():
    class Hooked(Model):
        def forward(self, x):
            register = nn.modules.module.register_module_forward_hook
            handle = register(lambda module, given, result: result - result.mean(0))
            try:
                return super().forward(x)
            finally:
                handle.remove()

    return Hooked(), each


def called_otherwise():
    class Called(nn.Linear):
        def __call__(self, x):
            found = super().__call__(x)
            return found - found.mean(0)

    model = Model()
    model.last = Called(HIDDEN, CLASSES)
    return model, each


def weight_by_records():
    class Scaled(Model):
        def forward(self, x):
            h = torch.tanh(self.first(x))
            return functional.linear(h, self.last.weight * (1 + x.mean()), self.last.bias)

    return Scaled(), each


def set_by_the_first():
    class Begins(Model):
        def __init__(self):
            super().__init__()
            self.scale, self.begun = nn.Parameter(torch.ones(HIDDEN)), False

        def forward(self, x):
            h = torch.tanh(self.first(x))
            if not self.begun:
                self.scale.data = 1 / (h.detach().std(0) + 0.1)
                self.begun = True
            return self.last(h * self.scale)

    return Begins(), each


def renamed():
    class Filter(nn.BatchNorm1d):
        pass

    model = Model()
    model.first = nn.Sequential(model.first, Filter(HIDDEN))
    return model, each


def woken():
    class Woken(Model):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(HIDDEN).eval()

        def forward(self, x):
            return self.last(self.norm.train()(torch.tanh(self.first(x))))

    return Woken(), each


def ready_to_quantise():
    from torch.ao.quantization import FakeQuantize

    return Model(lambda model, h: model.fake(h), fake=FakeQuantize()), each


def beside_the_output():
    class Beside(Model):
        def forward(self, x):
            found = super().forward(x)
            self.extra = found.square().mean(1).roll(1)
            return found

    model = Beside()
    return model, lambda output, target: each(output, target) + model.extra


def reads_its_input():
    class Reads(Model):
        def forward(self, x):
            self.given = x
            return super().forward(x)

    model = Reads()
    return model, lambda output, target: each(output, target) * (1 + model.given.mean())


def input_in_place():
    class Centred(Model):
        def forward(self, x):
            x.sub_(x.mean(0))
            return super().forward(x)

    return Centred(), each


def output_in_place():
    class Keeps(Model):
        def forward(self, x):
            self.shown = super().forward(x)
            return self.shown

    model = Keeps()

    def loss(output, target):
        with torch.no_grad():
            model.shown.sub_(model.shown.mean(0))
        return each(output, target)

    return model, loss


BUILT = [
    hooked_before, hooked_behind, hooked_for_all, called_otherwise, weight_by_records,
    set_by_the_first, renamed, woken, ready_to_quantise, beside_the_output, reads_its_input,
    input_in_place, output_in_place,
]  # fmt: skip

# -- counts of calls, kept where nobody looks ------------------------------------------------------

VARIABLE = contextvars.ContextVar("calls", default=0)
LOCAL = threading.local()
WEAK = weakref.WeakKeyDictionary()


def sign(number):
    return 1.0 if number % 2 else -1.0


def in_a_variable(model, h):
    VARIABLE.set(VARIABLE.get() + 1)
    return h * sign(VARIABLE.get())


def in_the_thread(model, h):
    LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
    return h * sign(LOCAL.calls)


def in_a_weak_dictionary(model, h):
    WEAK[model] = WEAK.get(model, 0) + 1
    return h * sign(WEAK[model])


def in_the_modules(model, h):
    space = sys.modules.setdefault("nobody", type(sys)("nobody"))
    space.calls = getattr(space, "calls", 0) + 1
    return h * sign(space.calls)


def on_a_parameter(model, h):
    weight = model.first.weight
    weight.calls = getattr(weight, "calls", 0) + 1
    return h * sign(weight.calls)


def in_hooks(model, h):
    count = len(model._forward_hooks)
    model.register_forward_hook(lambda *_: None)
    return h * sign(count)


def in_classes(model, h):
    type("Another", (Model,), {})
    return h * sign(len(Model.__subclasses__()))


COUNTS = [
    in_a_variable, in_the_thread, in_a_weak_dictionary, in_the_modules, on_a_parameter, in_hooks,
    in_classes,
]  # fmt: skip

MIXING = {
    **{f"between: {name}": (lambda f=f: (Model(f), each)) for name, f in BETWEEN.items()},
    **{f"loss: {name}": (lambda f=f: (Model(), f)) for name, f in LOSSES.items()},
    **{f"built: {build.__name__}": build for build in BUILT},
    **{f"count: {f.__name__}": (lambda f=f: (Model(f), each)) for f in COUNTS},
}


@pytest.mark.parametrize("name", some(MIXING, 5))
def test_programs_that_mix_records_are_refused_with_their_own_line(name):
    with pytest.raises(RefusedError) as found:
        move(MIXING[name], "plain")
    # Labels meet their rows in a loss, and that may be the one of another file.
    assert __file__ in found.value.where or "test_sixth_round.py" in found.value.where
    assert len(found.value.repair.split()) > 3


@pytest.mark.parametrize(
    "name",
    ["covariance", "functional batch norm", "counted", "determinant", "units that are active"],
)
def test_the_line_that_mixed_is_named_and_not_the_one_that_gets_the_mixture(name):
    code = BETWEEN[name].__code__
    with pytest.raises(RefusedError, match="mixes records, and linear at") as found:
        move(lambda: (Model(BETWEEN[name]), each), "plain")
    file, _, line = found.value.where.rpartition(":")
    lines = {number for _, _, number in code.co_lines() if number}
    assert file == __file__
    assert int(line) in lines


# -- what looks as if, and moves no sum further than it may ----------------------------------------


def one_by_one():
    """Rows of a weight beside rows of records: each record gets the weight for itself."""

    class Beside(Model):
        def forward(self, x):
            h = torch.tanh(self.first(x))
            return (h @ torch.cat([h, self.last.weight]).t())[:, :CLASSES]

    return Beside(), each


def toggled():
    def then(model, h):
        model.training = not model.training
        return h * sign(model.training)

    return Model(then), each


def moving_parametrisation():
    class Moving(nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return weight * sign(self.calls)

    model = Model()
    parametrize.register_parametrization(model.last, "weight", Moving())
    return model, each


def what_was_before():
    class Remembers(Model):
        def forward(self, x):
            before = self.__dict__.get("before", lambda: None)()
            object.__setattr__(self, "before", weakref.ref(x))
            found = super().forward(x)
            return found if before is None else found * before.mean()

    return Remembers(), each


@pytest.mark.parametrize("kind", ["huge", "cancelling"])
@pytest.mark.parametrize("build", [one_by_one, toggled, moving_parametrisation, what_was_before])
def test_what_the_engine_runs_so_that_nothing_mixes_moves_no_sum_too_far(build, kind):
    assert move(build, kind) <= 1.001


# -- innocent --------------------------------------------------------------------------------------

RECORDS = 6


def alone(model, loss, x, y, clip=1.0):
    """Every record by itself, clipped, added."""
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in learnt.items()}
    for i in range(RECORDS):
        one, target = pytree.tree_map(lambda t, i=i: t[i : i + 1].clone(), (x, y))
        output = model(*one) if isinstance(one, tuple) else model(one)
        found = torch.autograd.grad(
            loss(output, target).sum(), list(learnt.values()), allow_unused=True
        )
        found = [torch.zeros(()) if g is None else g.double() for g in found]
        norm = torch.stack([g.norm() for g in found]).norm()
        for name, gradient in zip(learnt, found, strict=True):
            total[name] += gradient * min(1.0, clip / float(norm.clamp(min=1e-30)))
    return total


class Net(nn.Module):
    """Parts, and a function of them and the inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, *given):
        return self.function(self, *given)


def stacked(*widths):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])


def labels(kinds=3):
    return torch.arange(RECORDS) % kinds


def own(output, target):
    return output


def mixture_of_densities():
    def likelihood(output, target):
        share, mean, width = output.chunk(3, 1)
        normal = torch.distributions.Normal(mean, functional.softplus(width) + 1e-3)
        return -torch.logsumexp(share.log_softmax(1) + normal.log_prob(target[:, None]), 1)

    return stacked(4, 16, 9), likelihood, torch.randn(RECORDS, 4), torch.randn(RECORDS)


def flow():
    def run(net, x):
        moved = 0.0
        for part in net.parts:
            kept, other = x.chunk(2, 1)
            scale, shift = part(kept).chunk(2, 1)
            other = other * torch.tanh(scale).exp() + shift
            x, moved = torch.cat([other, kept], 1), moved + torch.tanh(scale).sum(1)
        return x, moved

    def likelihood(output, target):
        return 0.5 * output[0].square().sum(1) - output[1]

    parts = nn.ModuleList(stacked(2, 8, 4) for _ in range(3))
    return Net(run, parts=parts), likelihood, torch.randn(RECORDS, 4), torch.zeros(RECORDS)


def burgers():
    """A differential equation in the loss: derivatives by the inputs, the second one, too."""

    def run(net, x):
        x = x.detach().requires_grad_()
        u = net.body(x)
        (slope,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        by_x, by_t = slope[:, :1], slope[:, 1:]
        (second,) = torch.autograd.grad(by_x, x, torch.ones_like(u), create_graph=True)
        return by_t + u * by_x - net.viscosity * second[:, :1]

    net = Net(run, body=stacked(2, 16, 1), viscosity=nn.Parameter(torch.tensor(0.1)))
    return net, lambda o, t: o.square()[:, 0], torch.rand(RECORDS, 2), torch.zeros(RECORDS)


def forces():
    """A molecule's energy, and the force on each atom: minus its slope."""

    def run(net, kinds, places):
        places = places.detach().requires_grad_()
        h, count = net.kinds(kinds), kinds.shape[1]
        gap = (places[:, :, None] - places[:, None]).square().sum(-1, keepdim=True) + 1e-3
        both = h[:, :, None].expand(-1, -1, count, -1), h[:, None].expand(-1, count, -1, -1)
        energy = net.pairs(torch.cat([*both, gap.sqrt()], -1)).sum((1, 2, 3))
        (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
        return energy, -slope

    def loss(output, target):
        return (output[0] - target[0]) ** 2 + (output[1] - target[1]).square().sum((1, 2))

    net = Net(run, kinds=nn.Embedding(5, 4), pairs=stacked(9, 8, 1))
    x = torch.randint(5, (RECORDS, 3)), torch.randn(RECORDS, 3, 3)
    return net, loss, x, (torch.randn(RECORDS), torch.randn(RECORDS, 3, 3))


def perturbed_words():
    """Adversarial training on embeddings, by the sum of the losses' slope."""

    def run(net, words, target):
        h = net.words(words)
        plain = net.head(net.body(h).mean(1))
        value = functional.cross_entropy(plain, target, reduction="sum")
        (slope,) = torch.autograd.grad(value, h, retain_graph=True)
        step = 0.1 * slope / (slope.flatten(1).norm(dim=1)[:, None, None] + 1e-8)
        return plain, net.head(net.body(h + step).mean(1))

    def loss(output, target):
        return each(output[0], target) + each(output[1], target)

    net = Net(run, words=nn.Embedding(12, 8), body=stacked(8, 8), head=nn.Linear(8, 3))
    return net, loss, (torch.randint(12, (RECORDS, 5)), labels()), labels()


def inner_step():
    """A step on each record's own support, with its slope, before the loss of its query."""

    def run(net, support, wanted, query):
        weight = net.weight.expand(len(support), 4)
        error = ((support * weight[:, None]).sum(-1) - wanted).square().sum()
        (slope,) = torch.autograd.grad(error, weight, create_graph=True)
        return (query * (weight - 0.1 * slope)).sum(1)

    x = torch.randn(RECORDS, 3, 4), torch.randn(RECORDS, 3), torch.randn(RECORDS, 4)
    net = Net(run, weight=nn.Parameter(torch.randn(4)))
    return net, lambda o, t: (o - t) ** 2, x, torch.randn(RECORDS)


def pooled_set():
    def run(net, x):
        h = net.rows(x).relu()
        return net.head(net.attention(net.seeds.expand(len(x), -1, -1), h, h)[0].flatten(1))

    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    net = Net(run, rows=nn.Linear(3, 8), seeds=nn.Parameter(torch.randn(1, 2, 8)),
              attention=attention, head=nn.Linear(16, 3))  # fmt: skip
    return net, each, torch.randn(RECORDS, 5, 3), labels()


def gated_convolutions():
    def run(net, words):
        h = net.words(words).transpose(1, 2)
        for number, layer in enumerate(net.layers):
            gate, value = layer(functional.pad(h, (2**number, 0))).chunk(2, 1)
            h = h + torch.sigmoid(gate) * torch.tanh(value)
        return h

    layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**n) for n in range(3))
    net = Net(run, words=nn.Embedding(8, 8), layers=layers)
    words = torch.randint(8, (RECORDS, 9))
    return net, lambda o, t: functional.cross_entropy(o, t, reduction="none").mean(1), words, words


def weighted_states():
    def run(net, x, lengths):
        h, _ = net.layer(x)
        outside = torch.arange(x.shape[1])[None] >= lengths[:, None]
        share = net.score(torch.tanh(h))[..., 0].masked_fill(outside, -1e9).softmax(1)
        return net.head((share[..., None] * h).sum(1))

    net = Net(run, layer=nn.LSTM(4, 8, batch_first=True, bidirectional=True),
              score=nn.Linear(16, 1, bias=False), head=nn.Linear(16, 3))  # fmt: skip
    x = torch.randn(RECORDS, 5, 4), torch.randint(1, 6, (RECORDS,))
    return net, each, x, labels()


def preferences():
    def run(net, better, worse):
        def chance(body, words):
            found = body(words[:, :-1]).log_softmax(-1)
            return found.gather(2, words[:, 1:, None])[..., 0].sum(1)

        bodies = (net.body, better, 1), (net.body, worse, -1), (net.kept, better, -1)
        total = sum(by * chance(body, words) for body, words, by in bodies)
        return total + chance(net.kept, worse)

    body = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    net = Net(run, body=body, kept=copy.deepcopy(body).requires_grad_(False))
    words = torch.randint(9, (RECORDS, 5)), torch.randint(9, (RECORDS, 5))
    return net, lambda o, t: -functional.logsigmoid(0.1 * o), words, torch.zeros(RECORDS)


def speech():
    def run(net, x):
        h = net.layer(net.down(x).transpose(1, 2))[0]
        return net.head(h).log_softmax(-1).transpose(0, 1)

    def loss(output, target):
        times, rows = output.shape[:2]
        lengths = torch.full((rows,), times), torch.full((rows,), 3)
        return functional.ctc_loss(output, target, *lengths, reduction="none")

    net = Net(run, down=nn.Conv1d(4, 8, 3, 2, 1), layer=nn.GRU(8, 8, batch_first=True),
              head=nn.Linear(8, 6))  # fmt: skip
    return net, loss, torch.randn(RECORDS, 4, 16), torch.randint(1, 6, (RECORDS, 3))


def anchors():
    def run(net, x):
        h = net.down(x).relu()
        return net.kinds(h).flatten(2), net.places(h).flatten(2)

    def loss(output, target):
        kinds, places, there = target
        chance = torch.sigmoid(output[0])
        missed = (1 - chance) * kinds + chance * (1 - kinds)
        entropy = functional.binary_cross_entropy_with_logits(output[0], kinds, reduction="none")
        far = functional.smooth_l1_loss(output[1], places, reduction="none") * there
        count = there.sum((1, 2)).clamp(min=1)
        return (entropy * missed**2).sum((1, 2)) / count + far.sum((1, 2)) / count

    net = Net(run, down=nn.Conv2d(3, 8, 3, 2, 1), kinds=nn.Conv2d(8, 6, 3, padding=1),
              places=nn.Conv2d(8, 8, 3, padding=1))  # fmt: skip
    y = (torch.randint(2, (RECORDS, 6, 16)).float(), torch.randn(RECORDS, 8, 16),
         torch.randint(2, (RECORDS, 1, 16)).float())  # fmt: skip
    return net, loss, torch.randn(RECORDS, 3, 8, 8), y


def several_tasks():
    def run(net, x):
        h = net.body(x)
        return net.kind(h), net.size(h)[:, 0], net.widths.expand(len(x), 2)

    def loss(output, target):
        kind, size, width = output
        losses = torch.stack([each(kind, target[0]), (size - target[1]) ** 2], 1)
        return (losses * (-width).exp() + width).sum(1)

    net = Net(run, body=stacked(4, 8), kind=nn.Linear(8, 3), size=nn.Linear(8, 1),
              widths=nn.Parameter(torch.zeros(2)))  # fmt: skip
    return net, loss, torch.randn(RECORDS, 4), (labels(), torch.randn(RECORDS))


def recomputed():
    def run(net, x):
        for layer in net.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return net.head(x.mean(1))

    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2)
    )
    return Net(run, layers=layers, head=nn.Linear(8, 3)), each, torch.randn(RECORDS, 4, 8), labels()


def spectrogram():
    def run(net, x):
        window = torch.hann_window(16)
        power = torch.stft(x, 16, 8, window=window, return_complex=True).abs().log1p()
        return net.head(net.layer(power[:, None]).relu().mean((2, 3)))

    net = Net(run, layer=nn.Conv2d(1, 4, 3), head=nn.Linear(4, 3))
    return net, each, torch.randn(RECORDS, 64), labels()


INNOCENT = [
    mixture_of_densities, flow, burgers, forces, perturbed_words, inner_step, pooled_set,
    gated_convolutions, weighted_states, preferences, speech, anchors, several_tasks, recomputed,
    spectrogram,
]  # fmt: skip


@pytest.mark.parametrize("build", some(dict.fromkeys(INNOCENT), 4))
def test_innocent_programs_are_proven_and_exact(build):
    torch.manual_seed(0)
    model, loss, x, y = build()
    expected = alone(model, loss, x, y)
    proof = nw.prove_apart(model, loss, x, y)
    assert proof.proven, str(proof)
    for chunk in (2, RECORDS):
        found = nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0), chunk=chunk).gradients
        for name, value in expected.items():
            torch.testing.assert_close(found[name].double(), value, rtol=1e-4, atol=1e-5)


# -- repairs that a refusal names ------------------------------------------------------------------


def packed(net, x, lengths):
    lengths = lengths.cpu()
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return net.head(net.layer(rows)[1][0])


def at_its_own_end(net, x, lengths):
    return net.head(net.layer(x)[0][torch.arange(len(x)), lengths - 1])


def by_chosen_rows(net, x, lengths):
    kind, found = net.gate(x[:, 0]).argmax(1), x.new_zeros(len(x), 3)
    for number, expert in enumerate(net.experts):
        found[kind == number] = expert(x[:, 0][kind == number])
    return found


def by_where(net, x, lengths):
    kind, found = net.gate(x[:, 0]).argmax(1), x.new_zeros(len(x), 3)
    for number, expert in enumerate(net.experts):
        found = torch.where((kind == number)[:, None], expert(x[:, 0]), found)
    return found


def checked(net, x, lengths):
    assert torch.isfinite(x).all()
    return net.gate(x[:, 0])


def unchecked(net, x, lengths):
    return net.gate(x[:, 0])


def by_torch_func(net, x, lengths):
    return net.gate(x[:, 0]) + torch.func.grad(lambda z: net.gate(z).sin().sum())(x[:, 0])[:, :3]


def by_autograd(net, x, lengths):
    z = x[:, 0].detach().requires_grad_()
    (slope,) = torch.autograd.grad(net.gate(z).sin().sum(), z, create_graph=True)
    return net.gate(z) + slope[:, :3]


@pytest.mark.parametrize(
    ("refused", "word", "repaired"),
    [
        (packed, r"states\[torch.arange", at_its_own_end),
        (by_chosen_rows, "torch.where", by_where),
        (checked, "Leave out checks", unchecked),
        (by_torch_func, "torch.autograd.grad", by_autograd),
    ],
)
def test_the_repair_that_a_refusal_names_works(refused, word, repaired):
    torch.manual_seed(0)
    experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
    net = Net(refused, layer=nn.GRU(4, 6, batch_first=True), head=nn.Linear(6, 3),
              gate=nn.Linear(4, 3), experts=experts)  # fmt: skip
    x, y = (torch.randn(RECORDS, 5, 4), torch.tensor([1, 5, 3, 2, 4, 5])), labels()
    plain = None if refused is by_torch_func else net(*x)
    with pytest.raises(RefusedError, match=word) as found:
        nw.bounded_sum(net, each, x, y, nw.Clipped(1.0))
    assert __file__ in found.value.where
    proof = nw.prove_apart(net, each, x, y)
    assert found.value.repair in str(proof)
    net.function = repaired
    if plain is not None:
        torch.testing.assert_close(net(*x), plain)
    assert nw.prove_apart(net, each, x, y).proven


# -- loops by hand ---------------------------------------------------------------------------------


def run_of(model, loss=each):
    x, y = records("plain")
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, delta=1e-5, steps=4,
                   sampling="full", batch_size=len(x), seed=1, accountant="rdp")  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return nw.make_private(model, optimizer, loss, (x, y), plan, chunk=4)


def batch_in_an_attribute(model, x):
    model.factor = x.abs().mean()[None]


def batch_in_place(model, x):
    model.factor.fill_(float(x.abs().mean()))


def batch_by_state(model, x):
    model.load_state_dict({**model.state_dict(), "mean": x.abs().mean()[None]})


def batch_in_a_function(model, x):
    mean = x.abs().mean()
    model.then = lambda self, h: h * mean


def hooked_later(model, x):
    model.first.register_forward_hook(lambda module, given, result: result - result.mean(0))


def another_class(model, x):
    class Mixed(Model):
        def forward(self, x):
            found = super().forward(x)
            return found - found.mean(0)

    model.__class__ = Mixed


CHANGES = [
    batch_in_an_attribute, batch_in_place, batch_by_state, batch_in_a_function, hooked_later,
    another_class,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_loop_that_carries_a_batch_into_the_model_is_refused(change):
    torch.manual_seed(0)
    model = Model(lambda self, h: h * self.factor * (1 + self.mean), factor=torch.ones(1))
    model.register_buffer("mean", torch.zeros(1))
    run = run_of(model)
    for number, (x, y) in enumerate(run.loader):
        if number == 2:
            change(model, x)
            with pytest.raises(RefusedError) as found:
                run.step(x, y)
            break
        run.step(x, y)
    assert len(found.value.repair.split()) > 3


def test_a_statement_of_batches_of_the_callers_says_that_rows_were_not_mixed():
    torch.manual_seed(0)
    run, (x, y) = run_of(Model()), records("plain")
    run.step(0.7 * x + 0.3 * x.flip(0), y)
    assert any("none is a mixture of records" in said for said in run.statement().assumptions)
    run = run_of(Model())
    for x, y in run.loader:
        with pytest.raises(nw.NoisewiseError, match="but a changed one"):
            run.step(0.7 * x + 0.3 * x.flip(0), y)
        break


def test_a_coin_of_pythons_for_a_whole_batch_is_accepted():
    """Teacher forcing: every piece draws the same."""

    def run(net, words):
        state, token, found = torch.zeros(len(words), 8), words[:, 0], []
        for place in range(1, words.shape[1]):
            state = net.cell(net.words(token), state)
            found.append(net.head(state))
            token = words[:, place] if random.random() < 0.5 else found[-1].argmax(1)
        return torch.stack(found, 2)

    torch.manual_seed(0)
    net = Net(run, words=nn.Embedding(9, 8), cell=nn.GRUCell(8, 8), head=nn.Linear(8, 9))
    words = torch.randint(9, (RECORDS, 5))

    def loss(output, target):
        return functional.cross_entropy(output, target[:, 1:], reduction="none").mean(1)

    assert nw.prove_apart(net, loss, words, words).proven
    nw.bounded_sum(net, loss, words, words, nw.Clipped(1.0), chunk=2)
