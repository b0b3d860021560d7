"""Programs whose forward pass is clean and whose backward pass mixes records."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from separation.program import (
    CLASSES,
    HIDDEN,
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


class Backward(torch.autograd.Function):
    """Identity whose gradient is what a function makes of it."""

    @staticmethod
    def forward(context, x, change):
        context.change = change
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return context.change(gradient), None


@mixing("gradient centred over records", "custom function, g - g.mean(0)")
def centred() -> Case:
    return between(lambda self, h: Backward.apply(h, lambda g: g - g.mean(0)))


@mixing("gradient divided by its norm", "custom function, norm over the batch")
def normed() -> Case:
    return between(lambda self, h: Backward.apply(h, lambda g: g / g.norm()))


@mixing("gradients sorted over records", "custom function")
def sorted_gradients() -> Case:
    return between(lambda self, h: Backward.apply(h, lambda g: g.sort(0).values))


@mixing("gradient reversal by the batch", "strength from the mean activation, saved for backward")
def reversal() -> Case:
    class Reversal(torch.autograd.Function):
        @staticmethod
        def forward(context, h):
            context.save_for_backward(h)
            return h.clone()

        @staticmethod
        def backward(context, gradient):
            (h,) = context.saved_tensors
            return -gradient * h.abs().mean()

    return between(lambda self, h: Reversal.apply(h))


@mixing("saved tensors changed on their way back", "an unpack hook returns the batch mean")
def unpacked() -> Case:
    def squashed(self, h):
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: t, lambda t: t.mean(0, keepdim=True).expand_as(t)
        )
        with hooks:
            return h.tanh() * h

    return between(squashed)


@mixing("saved tensors changed when packed", "a pack hook rolls the batch")
def packed() -> Case:
    def squashed(self, h):
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.roll(1, 0), lambda t: t)
        with hooks:
            return h.square()

    return between(squashed)


@mixing("data changed after it was saved", "an in-place write through .data before the backward")
def behind() -> Case:
    def poisoned(self, h):
        out = h.tanh()
        kept = out.clone()
        out.data.copy_(out.data.mean(0).expand_as(out))
        return kept + (out - out.detach())

    return between(poisoned)


@mixing("checkpoint that runs differently again", "the second run adds the batch mean")
def checkpointed() -> Case:
    class Twice(Between):
        again = False

        def inside(self, h):
            shift = h.detach().mean(0) * float(self.again)
            self.again = True
            return h * (h + shift).sigmoid()

        def forward(self, x):
            self.again = False
            return self.b(checkpoint(self.inside, self.a(x), use_reentrant=False))

    return Twice(), cross_entropy, rows(), labels()


# ------------------------------------------------------------------ hooks
@mixing("tensor hook over the batch", "clamps at three times the mean gradient")
def tensor_hook() -> Case:
    def hooked(self, h):
        h.register_hook(lambda g: g.clamp(max=g.abs().mean()))
        return h

    return between(hooked)


@mixing("hook on an element's view", "the hook of a slice looks at the whole batch's gradient")
def view_hook() -> Case:
    def hooked(self, h):
        left, right = h.chunk(2, 1)
        left.register_hook(lambda g: g - g.mean(0, keepdim=True))
        return torch.cat([left, right], 1)

    return between(hooked)


@mixing("hook that closes over activations", "gradient times the detached batch mean of another")
def closed_hook() -> Case:
    def hooked(self, h):
        seen = h.detach()
        out = h.relu()
        out.register_hook(lambda g: g * seen.mean())
        return out

    return between(hooked)


@mixing("hook of a graph node", "grad_fn.register_prehook")
def node_hook() -> Case:
    def hooked(self, h):
        out = h.tanh()
        out.grad_fn.register_prehook(lambda gs: tuple(g / (1 + g.norm()) for g in gs))
        return out

    return between(hooked)


@mixing("module backward hook", "full backward hook divides by the batch's maximum")
def module_hook() -> Case:
    model, loss, x, y = with_loss(cross_entropy)
    model.b.register_full_backward_hook(
        lambda module, inner, outer: tuple(None if g is None else g / g.abs().max() for g in inner)
    )
    return model, loss, x, y


@mixing("module backward pre-hook", "removes the mean gradient over records")
def module_pre_hook() -> Case:
    model, loss, x, y = with_loss(cross_entropy)
    model.b.register_full_backward_pre_hook(lambda module, outer: (outer[0] - outer[0].mean(0),))
    return model, loss, x, y


@mixing("parameter hook", "the summed gradient is normalised: no sum over records any more")
def parameter_hook() -> Case:
    model, loss, x, y = with_loss(cross_entropy)
    model.a.weight.register_hook(lambda g: g / g.norm())
    return model, loss, x, y


@mixing("hook after accumulation", "signs of the summed gradient")
def accumulation_hook() -> Case:
    model, loss, x, y = with_loss(cross_entropy)

    def signed(parameter):
        parameter.grad.sign_()

    model.a.weight.register_post_accumulate_grad_hook(signed)
    return model, loss, x, y


@mixing("function on a weight", "its gradient is divided by its own norm", disarmed=True)
def weight_function() -> Case:
    class Odd(Between):
        def forward(self, x):
            weight = Backward.apply(self.a.weight, lambda g: g / (1 + g.norm()))
            return self.b(functional.linear(x, weight, self.a.bias))

    return Odd(), cross_entropy, rows(), labels()


@mixing(
    "function on an expanded parameter",
    "a token per record whose gradients are divided by their mean over the batch",
    disarmed=True,
)
def expanded() -> Case:
    class Token(Between):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, HIDDEN))

        def forward(self, x):
            token = self.token.expand(len(x), -1).clone()
            token = Backward.apply(token, lambda g: g / (1e-3 + g.abs().mean(0)))
            return self.b(self.a(x) * token)

    return Token(), cross_entropy, rows(), labels()


@mixing(
    "parametrisation with a gradient of its own",
    "squares the summed gradient of a weight",
    disarmed=True,
)
def parametrised() -> Case:
    class Squared(nn.Module):
        def forward(self, weight):
            return Backward.apply(weight, lambda g: g * g.abs())

    model, loss, x, y = with_loss(cross_entropy)
    parametrize.register_parametrization(model.a, "weight", Squared())
    return model, loss, x, y


# ------------------------------------------------------------------ torch's own traps
@mixing("embedding scaled by frequency", "scale_grad_by_freq counts a word over the batch")
def by_frequency() -> Case:
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, HIDDEN, scale_grad_by_freq=True)
            self.head = nn.Linear(HIDDEN, CLASSES)

        def forward(self, word):
            return self.head(self.embed(word % 7).mean(1))

    return Words(), cross_entropy, words(), labels()


@mixing("bag scaled by frequency", "EmbeddingBag with scale_grad_by_freq")
def bag_by_frequency() -> Case:
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(VOCABULARY, HIDDEN, mode="sum", scale_grad_by_freq=True)
            self.head = nn.Linear(HIDDEN, CLASSES)

        def forward(self, word):
            return self.head(self.bag(word % 7))

    return Bag(), cross_entropy, words(), labels()


@mixing("gradient of a coupled scalar as a feature", "autograd.grad of the norm of the mean output")
def attribution() -> Case:
    class Attributed(Between):
        def forward(self, x):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(
                self.b(self.a(x).tanh()).mean(0).norm(), x, create_graph=True
            )
            return self.b(self.a(x + slope))

    return Attributed(), cross_entropy, rows(), labels()


@mixing("backward within the forward", "an auxiliary loss is propagated at once, unbounded")
def inner_backward() -> Case:
    class Auxiliary(Between):
        def forward(self, x):
            h = self.a(x)
            h.mean(0).square().sum().backward(retain_graph=True)
            return self.b(h)

    return Auxiliary(), cross_entropy, rows(), labels()


@mixing("gradient written by hand", "forward puts a batch statistic into a parameter's .grad")
def written() -> Case:
    class Written(Between):
        def forward(self, x):
            self.b.bias.grad = self.b(self.a(x)).detach().mean(0).square()
            return self.b(self.a(x))

    return Written(), cross_entropy, rows(), labels()


@mixing("gradient written in the backward", "a custom function adds to another parameter's .grad")
def written_later() -> Case:
    class Written(Between):
        def forward(self, x):
            def change(gradient):
                total = gradient.detach().mean(0).square().sum()
                bias = self.b.bias
                bias.grad = (torch.zeros_like(bias) if bias.grad is None else bias.grad) + total
                return gradient

            return self.b(Backward.apply(self.a(x), change))

    return Written(), cross_entropy, rows(), labels()


@mixing(
    "sum over time and records in a bias",
    "a bias whose gradient passes through a square root",
    disarmed=True,
)
def rooted() -> Case:
    class Rooted(Between):
        def forward(self, x):
            bias = Backward.apply(self.b.bias, lambda g: g.sign() * g.abs().sqrt())
            return functional.linear(self.a(x), self.b.weight, bias)

    return Rooted(), cross_entropy, rows(), labels()


@mixing("second derivative over the batch", "penalty on the slope of the summed loss by a weight")
def double() -> Case:
    model = Between()

    def loss(output, target):
        losses = cross_entropy(output, target)
        (slope,) = torch.autograd.grad(losses.sum(), model.b.weight, create_graph=True)
        return losses + slope.square().sum()

    return model, loss, rows(), labels()


@mixing("hook that keeps gradients", "this batch's gradients scale the next forward pass")
def kept() -> Case:
    class Kept(Between):
        scale = 1.0

        def forward(self, x):
            h = self.a(x) * self.scale

            def keep(gradient):
                self.scale = 1 + gradient.detach().norm()

            h.register_hook(keep)
            return self.b(h)

    return Kept(), cross_entropy, rows(), labels()
