"""Correct training in many forms, which no test may accuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CORRECT", "Variant"]


@dataclass(frozen=True)
class Variant:
    """One correct training; `declared` are the arguments of `check` that describe it."""

    #: Of a whole program (`programs`), which has a model and settings of its own, or free.
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    #: Whether enough of it can be seen; otherwise the right verdict is "not judged".
    judged: bool = True
    #: The model that it must be run on, if not any.
    case: str = ""


def _falling(step: int) -> float:
    return 0.98**step


def _growing(step: int) -> float:
    return 1 + 0.01 * step


def _to_zero(step: int) -> float:
    return max(0.0, 1 - step / 60)


def _released(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = "released."
    return {n.removeprefix(kept): r for n, r in result.items() if n.startswith(kept)}


def _habit(name: str, judged: bool = True) -> Variant:
    return Variant(name, {"habit": name}, judged=judged)


CORRECT = (
    Variant("flat clipping", {}),
    Variant("soft clipping", {"rule": "soft"}),
    Variant("automatic clipping", {"rule": "automatic"}),
    Variant("global clipping (drop)", {"rule": "global"}),
    Variant("per-layer clipping at C/sqrt(K)", {"rule": "layer"}),
    Variant("per-layer clipping, uneven noise", {"rule": "layer", "allocation": "uneven"}),
    Variant("per-layer clipping, optimal noise", {"rule": "layer", "allocation": "optimal"}),
    Variant("momentum", {"momentum": 0.9}, {"momentum": 0.9}),
    Variant("momentum, not declared", {"momentum": 0.9}),
    Variant("Nesterov momentum, not declared", {"momentum": 0.9, "nesterov": True}),
    Variant("weight decay", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
    Variant("weight decay, not declared", {"weight_decay": 0.1}),
    Variant(
        "momentum and weight decay",
        {"momentum": 0.9, "weight_decay": 0.05},
        {"momentum": 0.9, "weight_decay": 0.05},
    ),
    Variant("Adam", {"optimizer": "adam"}, {"optimizer": "adam"}),
    Variant(
        "AdamW",
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "adam", "weight_decay": 0.1},
    ),
    Variant(
        "Adam, automatic clipping",
        {"optimizer": "adam", "rule": "automatic"},
        {"optimizer": "adam"},
    ),
    Variant("weight averaging", {"average": 0.9}),
    Variant("augmentation multiplicity", {"copies": 2}),
    Variant("sum instead of mean", {"reduction": "sum"}),
    Variant("virtual batches", {}, {"options": {"micro_batch_size": (2, 8), "world_size": (1, 4)}}),
    Variant("learning-rate warm-up", {"warmup": 4}),
    Variant("global clipping (drop) at C", {"rule": "drop"}),
    Variant("learning-rate decay", {"lr_schedule": _falling}),
    Variant("learning rate that is zero in the end", {"lr_schedule": _to_zero}),
    Variant("sigma schedule, declared", {"noise_schedule": _falling}, {"noise_schedule": _falling}),
    Variant("clipping schedule with its noise", {"clip_schedule": _falling}),
    Variant("projected weights", {"project": 3.0}),
    Variant("dropout", {"training_mode": True}, case="MLP with dropout"),
    Variant("sign of the noisy gradient", {"post": "sign"}, judged=False),
    Variant("noisy gradient limited to C", {"post": "limited"}, judged=False),
    Variant("noisy gradient normalised", {"post": "normalised"}, judged=False),
    Variant(
        "sign of the noisy gradient, observed",
        {"post": "sign", "show_release": True},
        {"observe": _released},
    ),
    Variant(
        "Nesterov momentum and weight decay, not declared",
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    ),
    Variant(
        "momentum and learning-rate warm-up", {"momentum": 0.9, "warmup": 4}, {"momentum": 0.9}
    ),
    _habit("cosine schedule over the whole run", judged=False),
    _habit("noise of the operating system"),
    _habit("a generator of its own for each step"),
    _habit("gradients at older weights"),
    _habit("weight decay inside each record's gradient"),
    _habit("gradients in bfloat16"),
    _habit("two groups of tensors, clipped apart"),
    _habit("lookahead", judged=False),
    _habit("public gradient added", judged=False),
    _habit("Lion", judged=False),
    _habit("a step for every two batches", judged=False),
    Variant(
        "correlated noise, declared",
        {"habit": "correlated noise"},
        {"correlated_noise": True},
        judged=False,
    ),
    _habit("size drawn first, then records"),
    _habit("noise shared by four workers"),
    _habit("rows of the noisy gradient centred"),
    _habit("largest half of the noisy gradient", judged=False),
    _habit("rate falls with noisy lengths", judged=False),
    _habit("layers unfrozen in time, protected"),
    _habit("sums and noise on a fine grid"),
    _habit("mean of the weights from step 50 on", judged=False),
    _habit("records added in random order"),
    _habit("tiny gradients dropped"),
    _habit("factors from the sum of the tensors' norms"),
    _habit("elements limited, then clipped"),
    _habit("clipping that is not monotone"),
    _habit("clipping by the hyperbolic tangent"),
    _habit("weights rounded to bfloat16 after each step", judged=False),
    _habit("RMSprop, not declared", judged=False),
    _habit("learning rate in cycles"),
    _habit("five percent more noise than asked"),
    _habit("a tenth of the drawn records left out by chance"),
    _habit("jitter of a public size"),
    _habit("inputs moved and scaled by public numbers"),
    _habit("a random half of the coordinates moves", judged=False),
    _habit("tensors take turns", judged=False),
    _habit("noisy matrices made orthogonal", judged=False),
    _habit("weights kept in a box"),
    Variant("noise on the weights"),
    Variant("layers share the bound"),
    Variant("normalised gradients"),
    Variant("augmentations averaged"),
    Variant("by hand in numpy"),
    Variant("two passes"),
    Variant("micro batches padded with nothing"),
    Variant("geometric gaps"),
    Variant("heavy ball"),
    Variant("adam with decay"),
    Variant("batches of fixed size"),
    Variant("declared noise schedule"),
    Variant("public clip schedule"),
    Variant("head learns faster"),
    Variant("moving average returned"),
    Variant("lookahead of five steps", judged=False),
    Variant("warm up and cosine"),
    Variant("tied weights one norm"),
    Variant("dropout per record"),
    Variant("constant loss scale"),
    _habit("sum limited before its noise", judged=False),
    _habit("two local steps of each record"),
    _habit("weighted by agreement with the last release"),
    _habit("half the bound for one class"),
    _habit("noisy gradient rounded by chance", judged=False),
    _habit("Adagrad, not declared", judged=False),
    _habit("weights pulled to zero by their signs", judged=False),
    _habit("noisy gradients filtered"),
    _habit("noise by the inverse of its law"),
    _habit("noise turned by a fixed rotation"),
    _habit("singular values limited after each step"),
    _habit("a public half of the coordinates is trained"),
    _habit("average with a decay that grows", judged=False),
    _habit("pulled towards the first weights"),
    _habit("rates by the width of each tensor"),
    _habit("easy records left out"),
    Variant(
        "sigma that grows, declared",
        {"habit": "sigma that grows, declared"},
        {"noise_schedule": _growing},
    ),
    _habit("sums in double precision, two orders"),
    _habit("each worker draws from its shard"),
    _habit("trained in a public subspace", judged=False),
    _habit("second moments less the noise", judged=False),
    _habit("gradients uphill of the last release"),
    _habit("focal weights before clipping"),
    _habit("records with momentum of their own"),
    _habit("tensors clipped, then all of them"),
    _habit("factor rounded down to power of two"),
    _habit("norm that follows what was released"),
    _habit("steps left out by a public coin", judged=False),
    Variant("along one public direction a step", judged=False),
    Variant("two passes with one mask"),
    Variant("schedule-free", judged=False),
    Variant("held to the mean of its own weights"),
    Variant("adapters merged at the end", judged=False),
    _habit("records retire when they have given enough", judged=False),
    _habit("every record flips a coin of its own"),
    _habit("noise around a public number"),
    _habit("clipped around half of the last release"),
    _habit("each record gives some of its tensors by chance"),
    _habit("labels replaced by chance"),
    _habit("a bound drawn anew at each step"),
    Variant("bounded by the loss itself"),
    Variant("one mask for the whole batch"),
    Variant("two releases from one batch with the noise of two"),
)
