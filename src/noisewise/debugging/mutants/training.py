"""DP-SGD in five small stages, with a switch for every known way to get it wrong.

``Training(model_fn, loss_fn)`` is correct, and so is every `rule`, `optimizer` and other
setting of it. ``bug="..."`` changes one line of one stage, here or through `hooks`. The names
are explained, with their sources, in ``catalogue.csv``. The stages are those of algorithm 1 of
Anonymous (2023):

    sample -> per-record gradients -> clip and sum -> noise -> descend
    (`batches`, `bounding` and `noising`; the last stage and the loop are here)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.debugging.mutants.batches import batches
from noisewise.debugging.mutants.bounding import Bounding, Gradients, per_record
from noisewise.debugging.mutants.hooks import HOOKS, PHYSICAL, Situation, mutated
from noisewise.debugging.mutants.noising import draw_noise, misplaced
from noisewise.debugging.trainer import Data, StateDict

__all__ = ["Training"]


def _constant(step: int) -> float:
    return 1.0


def _sign(update: Gradients, clip: float) -> Gradients:
    return {n: u.sign() for n, u in update.items()}


def _limited(update: Gradients, clip: float) -> Gradients:
    length = float(torch.stack([u.norm() for u in update.values()]).norm())
    return {n: u * min(1.0, clip / max(length, 1e-30)) for n, u in update.items()}


def _normalised(update: Gradients, clip: float) -> Gradients:
    length = float(torch.stack([u.norm() for u in update.values()]).norm())
    return {n: u / max(length, 1e-30) for n, u in update.items()}


#: What may be done to a noisy gradient at no cost in privacy.
_POST_PROCESSING: dict[str, Callable[[Gradients, float], Gradients]] = {
    "none": lambda update, clip: update,
    "sign": _sign,
    "limited": _limited,
    "normalised": _normalised,
}


@dataclass(frozen=True)
class Training:
    """A training function for :func:`noisewise.debugging.check`; see the module.

    Parameters
    ----------
    bug
        Name of the mistake to make, or ``None``.
    habit
        Name of something unusual and harmless, planted like a mistake (`habits`), or ``None``.
    rule
        How one record's gradient g is bounded: ``flat`` min(1, C/|g|), ``soft``
        C/sqrt(|g|^2 + C^2), ``automatic`` C/(|g| + 0.01), ``global`` C/Z if |g| <= Z else 0,
        ``drop`` 1 if |g| <= C else 0,
        ``layer`` each of K tensors to C/sqrt(K).
    optimizer, momentum, nesterov, weight_decay
        ``sgd`` or ``adam`` (decay decoupled).
    average
        Decay of the exponential moving average of weights that is returned, 0 for none.
    copies
        Augmented copies of a record, whose gradients are averaged before clipping.
    reduction
        ``mean`` divides by the batch size, ``sum`` does not.
    allocation
        ``even`` noise; ``uneven``: more on some tensors, less on others, same epsilon;
        ``optimal``: the least noise in all, same epsilon (the last two with rule ``layer``).
    warmup
        Steps over which the learning rate rises to its value.
    lr_schedule, noise_schedule, clip_schedule
        Public factors of the learning rate, of sigma and of C (with its noise) at each step.
    post
        What is done to the noisy gradient: a key of ``_POST_PROCESSING``.
    project
        Length to which the weights are limited after each step, 0 for none.
    training_mode
        Whether dropout is on.
    show_release
        Whether the noisy gradient of the last step is returned too, as ``released.NAME``.
    """

    model_fn: Callable[[], nn.Module]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    bug: str | None = None
    rule: str = "flat"
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    average: float = 0.0
    copies: int = 1
    reduction: str = "mean"
    allocation: str = "even"
    warmup: int = 0
    lr_schedule: Callable[[int], float] = _constant
    noise_schedule: Callable[[int], float] = _constant
    clip_schedule: Callable[[int], float] = _constant
    post: str = "none"
    project: float = 0.0
    training_mode: bool = False
    show_release: bool = False
    habit: str | None = None

    def __call__(
        self,
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: Data,
        init: StateDict,
        steps: int,
        lr: float,
        micro_batch_size: int = PHYSICAL,
        world_size: int = 2,
    ) -> StateDict:
        """Train and return the weights."""
        x, y = data
        torch.default_generator.manual_seed(seed)
        model = self.model_fn().train(self.training_mode)
        model.load_state_dict(init)
        # The weights are those of the model itself, so that a step is seen by the next gradient.
        weights = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        bounding = Bounding(self.bug, self.rule)
        fixed = {n: v for n, v in model.state_dict().items() if n not in weights}
        chance = torch.Generator().manual_seed(0 if self.bug == "constant-seed" else seed)
        apart = 0 if self.bug == "seed-shared-with-sampler" else 1_000_003
        draw = torch.Generator().manual_seed(seed + apart)
        situation = Situation(
            model,
            self.loss_fn,
            (x, y),
            clip,
            noise_multiplier,
            batch_size,
            lr,
            seed,
            steps,
            weights,
            chance,
            draw,
        )
        x, y = situation.data = self._changed("data", (x, y), situation)
        smooth = {n: w.clone() for n, w in weights.items()}
        state: dict[str, Gradients] = {}
        released: Gradients = {}
        for step, batch in enumerate(batches(self.bug, len(x), batch_size, steps, draw)):
            situation.step = step
            batch = self._changed("batch", batch, situation)
            if batch is None:
                continue
            situation.batch = batch
            inputs, targets = self._changed("inputs", (x[batch], y[batch]), situation)
            records = per_record(
                self.bug, model, self.loss_fn, list(weights), inputs, targets, self.copies
            )
            records = situation.records = self._changed("records", records, situation)
            used = self._changed("clip", self.clip_schedule(step) * clip, situation)
            add_up = self._changed("bounded", bounding.clip_and_sum, situation)
            total = add_up(records, used, micro_batch_size)
            total = self._changed("total", total, situation)
            noise = draw_noise(
                self.bug,
                self.allocation,
                weights,
                clip * self.clip_schedule(step),
                noise_multiplier * self.noise_schedule(step),
                batch_size,
                chance,
                len(batch),
                len(x),
            )
            noise = misplaced(self.bug, noise, step, len(batch), lr, micro_batch_size, world_size)
            noise = self._changed("noise", noise, situation)
            if self.bug == "half-precision":
                total = {n: (t.half() + noise[n].half()).float() for n, t in total.items()}
                noise = {n: torch.zeros_like(z) for n, z in noise.items()}
            divisor = self._divisor(batch_size, len(batch), len(x))
            divisor = self._changed("divisor", divisor, situation)
            update = {n: (total[n] + noise[n]) / divisor for n in weights}
            released = update
            update = _POST_PROCESSING[self.post](update, clip)
            rate = lr * min(1.0, (step + 1) / self.warmup) if self.warmup else lr
            rate = self._changed("lr", rate * self.lr_schedule(step), situation)
            update = self._changed("update", update, situation)
            if update is None:
                continue
            self._descend(weights, update, state, rate, step)
            if self.project:
                length = torch.stack([w.norm() for w in weights.values()]).norm()
                for w in weights.values():
                    w.mul_(min(1.0, self.project / float(length)))
            for n in smooth:
                smooth[n].lerp_(weights[n], 1 - self.average)
            if self._changed("after", None, situation):
                break
        result = {**fixed, **smooth} if self.average else {**fixed, **weights}
        result = self._changed("result", result, situation)
        if self.show_release:
            result = {**result, **{f"released.{n}": r for n, r in released.items()}}
        return result

    def _changed(self, stage: str, value: Any, situation: Situation) -> Any:
        """Return what a stage hands on, changed by the habit and then by the bug."""
        for name in (self.habit, self.bug):
            if name in HOOKS:
                value = mutated(name, stage, value, situation)
        return value

    # Stage 5: divide by a public constant and move.

    def _divisor(self, batch_size: int, drawn: int, total: int) -> float:
        if self.bug == "divide-by-actual-batch":
            return max(1, drawn)
        if self.bug == "divisor-from-dataset":
            return max(1, int(total / math.ceil(total / batch_size)))
        return 1.0 if self.reduction == "sum" else float(batch_size)

    def _descend(
        self,
        weights: Gradients,
        update: Gradients,
        state: dict[str, Gradients],
        lr: float,
        step: int,
    ) -> None:
        for n, w in weights.items():
            g = update[n]
            if self.optimizer == "adam":
                first = state.setdefault("first", {}).setdefault(n, torch.zeros_like(w))
                second = state.setdefault("second", {}).setdefault(n, torch.zeros_like(w))
                first.lerp_(g, 0.1)
                second.mul_(0.999).addcmul_(g, g, value=0.001)
                size = (second / (1 - 0.999 ** (step + 1))).sqrt().add_(1e-8)
                w.sub_(lr * self.weight_decay * w)
                w.sub_(lr * (first / (1 - 0.9 ** (step + 1))) / size)
                continue
            g = g + self.weight_decay * w
            if self.momentum:
                velocity = state.setdefault("velocity", {}).setdefault(n, torch.zeros_like(w))
                velocity.mul_(self.momentum).add_(g)
                g = g + self.momentum * velocity if self.nesterov else velocity
            w.sub_(lr * g)
