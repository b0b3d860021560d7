"""How one record's influence is bounded: every estimator side by side.

An estimator says three things: which parameters are bounded together (``groups``), by how
much each record counts (``scale``: one factor per record, a function of what it ``measures``
of that record and of public values), and how far one record can then move a group's sum
(``limits``). The engine holds every factor to its limit, and adds a slack for rounding to
every limit.

Sources: Propagated, Barczewski and Ramon (2024) and Béthune et al. (2024), Algorithm 1 of each;
InputScaled, Eq. 5.2.14 of Barczewski (2025) with the record's own norm in place of the batch
maximum; those of clipping rules are in `noisewise.gradients.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from noisewise import checks
from noisewise.errors import UnsoundError
from noisewise.gradients.grouping import GROUPINGS, GroupSpec, by_layer, partition
from noisewise.gradients.registry import register
from noisewise.gradients.rules import (
    RULES,
    SMALLEST,
    Clip as ClipRule,
    clip_scale,
    formula,
    is_elementwise,
)

__all__ = [
    "BatchMaxScaled",
    "Clipped",
    "Estimator",
    "Factored",
    "InputScaled",
    "Lipschitz",
    "Propagated",
    "clips",
    "factors_of",
    "keeps_its_word",
]

Clip = float | Mapping[str, float] | Sequence[float]

#: ``norm``: the exact norm of a record's gradient of the group; ``bound``: a proven upper
#: bound of it; ``input``: an upper bound of the Jacobian in the parameters, use by use;
#: ``nothing``: every record counts once.
Measure = Literal["norm", "bound", "input", "nothing"]


@runtime_checkable
class Estimator(Protocol):
    """What the engine asks of an estimator."""

    @property
    def sound(self) -> bool:
        """Whether a sensitivity was proven, so that an epsilon may be stated."""

    @property
    def measures(self) -> Measure:
        """What `scale` is given for every record, see the module's first lines."""

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """Partition the parameters (name to size) into groups that are bounded together."""

    def limits(self, groups: Sequence[GroupSpec]) -> tuple[float, ...]:
        """Bound on the length of one record's scaled gradient, per group."""

    def scale(self, measure: Tensor, limit: float) -> Tensor:
        """One factor per record; an estimator of one's own is asked once a batch, of one record."""


#: Sums of longer gradients could overflow float32.
_LONGEST = 1e30


def _threshold(name: str, value: float) -> float:
    value = checks.positive(name, value)
    if value > _LONGEST:
        raise ValueError(
            f"{name} must be at most {_LONGEST:g}, got {value:g}: sums of such gradients overflow"
        )
    return value


def _check_clip(clip: Clip) -> Clip:
    if isinstance(clip, Mapping):
        return {str(k): _threshold(f"clip[{k!r}]", v) for k, v in clip.items()}
    if isinstance(clip, Sequence):
        return tuple(_threshold(f"clip[{i}]", v) for i, v in enumerate(clip))
    return _threshold("clip", clip)


def _thresholds(clip: Clip, groups: Sequence[GroupSpec]) -> tuple[float, ...]:
    """One threshold per group, from a number for all, a list in order, or names."""
    if isinstance(clip, Mapping):
        names = [group.name for group in groups]
        if set(clip) != set(names):
            raise ValueError(
                f"clip names the groups {sorted(clip)}, but the model has {sorted(names)}: give "
                "one threshold for each"
            )
        return tuple(clip[name] for name in names)
    if isinstance(clip, Sequence):
        if len(clip) != len(groups):
            raise ValueError(
                f"clip has {len(clip)} thresholds for {len(groups)} groups "
                f"({', '.join(group.name for group in groups)})"
            )
        return tuple(clip)
    return tuple(float(clip) for _ in groups)


@register(
    measured="the exact norm of its gradient",
    factor="by the rule",
    sensitivity="C per group",
    needs="nothing",
    proof="docs/proofs/sums.md#clipped",
    presets={
        "clipped": {"clip": 1.0},
        "layerwise": {"clip": 1.0, "per": "layer"},
        "automatic": {"clip": 1.0, "rule": "automatic"},
    },
)
@dataclass(frozen=True)
class Clipped:
    """Exact norms: each record's gradient of a group is cut to length `clip`.

    Parameters
    ----------
    clip : float, mapping or sequence
        Threshold C: one for every group, or one per group by name or in order.
    per : {"model", "layer", "parameter"} or mapping
        What is bounded together; a mapping names blocks, each a list of prefixes of
        parameter names, which together must cover all of them.
    rule : {"clip", "automatic", "global", "normalise"}
        ``clip``: g min(1, C/|g|). ``automatic``: g C/(|g| + gamma). ``global``: g if
        |g| <= C, else nothing. ``normalise``: g C/|g|.
    gamma : float
        Of ``automatic``.
    """

    clip: Clip = 1.0
    per: str | Mapping[str, Sequence[str]] = "model"
    rule: str = "clip"
    gamma: float = 0.01
    sound: ClassVar[bool] = True
    measures: ClassVar[Measure] = "norm"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _check_clip(self.clip))
        if isinstance(self.per, str):
            checks.choice("per", self.per, GROUPINGS)
        checks.choice("rule", self.rule, tuple(RULES))
        checks.positive("gamma", self.gamma)

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """Partition by `per`."""
        return partition(self.per, parameters)

    def limits(self, groups: Sequence[GroupSpec]) -> tuple[float, ...]:
        """Return the thresholds themselves."""
        return _thresholds(self.clip, groups)

    def scale(self, measure: Tensor, limit: float) -> Tensor:
        """Apply the rule to the exact norm."""
        return clip_scale(measure, limit, self.rule, self.gamma)


@register(
    measured="an upper bound u of its layer gradient, exact where that is cheap",
    factor="min(1, C/u)",
    sensitivity="C per layer",
    needs="nothing",
    proof="docs/proofs/sums.md#factored",
    presets={"factored": {"clip": 1.0}},
)
@dataclass(frozen=True)
class Factored:
    """Each record's layer gradient scaled by min(1, C/u), u an upper bound of its norm.

    u comes from the two factors of the gradient, activation and cotangent. It is the exact
    norm for dense layers; for convolutions and sequences the exact norm where that costs no
    more than the contraction itself, else the tightest product bound. No Lipschitz model is
    needed and no per-record gradient of the whole model exists.

    Parameters
    ----------
    clip : float, mapping or sequence
        C for every layer, or one per layer by name or in order.
    """

    clip: Clip = 1.0
    sound: ClassVar[bool] = True
    measures: ClassVar[Measure] = "bound"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", _check_clip(self.clip))

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """One group per layer."""
        return by_layer(parameters)

    def limits(self, groups: Sequence[GroupSpec]) -> tuple[float, ...]:
        """Return the thresholds themselves."""
        return _thresholds(self.clip, groups)

    def scale(self, measure: Tensor, limit: float) -> Tensor:
        """Clip by the upper bound, which is at least the norm."""
        return clip_scale(measure, limit, "clip")


class Lipschitz:
    """Estimators whose limits come from propagated bounds, which the engine renews each step."""

    sound: ClassVar[bool] = True
    loss_clip: float | None
    input_norm: float | None
    knee: float | None = None

    def __post_init__(self) -> None:
        if self.loss_clip is not None:
            object.__setattr__(self, "loss_clip", checks.positive("loss_clip", self.loss_clip))
        if self.input_norm is not None:
            object.__setattr__(self, "input_norm", checks.positive("input_norm", self.input_norm))
        if self.knee is not None:
            object.__setattr__(self, "knee", checks.positive("knee", self.knee))

    def limits(self, groups: Sequence[GroupSpec]) -> tuple[float, ...]:
        """Refuse: they depend on the model's weights."""
        raise UnsoundError(
            f"{type(self).__name__} has no limit of its own: its bounds are propagated through "
            "the model. Use noisewise.bounded_sum or noisewise.make_private, which do that."
        )


@register(
    measured="nothing",
    factor="1",
    sensitivity="propagated bound of each parameter",
    needs="a Lipschitz model",
    proof="docs/proofs/sums.md#propagated",
    presets={"propagated": {}},
)
@dataclass(frozen=True)
class Propagated(Lipschitz):
    """Nothing is clipped: bounds are propagated through the model from the public input norm.

    Parameters
    ----------
    loss_clip : float, optional
        Each record's cotangent at the logits is clipped to this norm first (Béthune et al.
        2024, section 3.1), which lowers every bound.
    input_norm : float, optional
        Promised bound on the norm of a record, if the model does not start with a
        ``BoundedInput`` (then records beyond it are scaled down to it).
    knee : float, optional
        A record whose loss gradient is shorter than this counts in proportion, by the factor
        min(1, length / knee). For models with ``RenewGradient``, after which lengths no longer
        tell an easy record from a hard one.
    """

    loss_clip: float | None = None
    input_norm: float | None = None
    knee: float | None = None
    measures: ClassVar[Measure] = "nothing"

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """One group per parameter: each has its own bound."""
        return partition("parameter", parameters)

    def scale(self, measure: Tensor, limit: float) -> Tensor:
        """Every record counts once."""
        return torch.ones_like(measure)


@register(
    measured="its own layer input",
    factor="1 / input norm",
    sensitivity="bound of the cotangent",
    needs="a Lipschitz model",
    proof="docs/proofs/sums.md#input-scaled",
    presets={"input-scaled": {}},
)
@dataclass(frozen=True)
class InputScaled(Lipschitz):
    """Each record's layer gradient divided by the norm of its own layer input.

    The sound form of Eq. 5.2.14 of Barczewski (2025): the factor of a record depends on that record
    alone. What is left of a record is at most the propagated bound on its cotangent. The norm
    is that of the Jacobian in the layer's parameters: of the unfolded input for a
    convolution, with a one per position for the bias.

    Parameters
    ----------
    loss_clip, input_norm, knee
        As of `Propagated`.
    """

    loss_clip: float | None = None
    input_norm: float | None = None
    knee: float | None = None
    measures: ClassVar[Measure] = "input"

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """One group per layer."""
        return by_layer(parameters)

    def scale(self, measure: Tensor, limit: float) -> Tensor:
        """Divide by the record's own input norm."""
        return 1.0 / measure.clamp_min(SMALLEST)


@register(
    measured="the largest input norm of the *batch*",
    factor="1 / maximum",
    sensitivity="none: no epsilon",
    needs="a Lipschitz model",
    proof="docs/proofs/published.md#batch-maximum",
)
@dataclass(frozen=True)
class BatchMaxScaled(Lipschitz):
    """Algorithm 8 of Barczewski (2025) as printed, for study: divided by the batch's largest norm.

    One record can change the maximum and so the share of all others: with s records of norm
    rho and one of norm R, leaving out the last moves the sum by s (1 - rho/R) + 1 times the
    claimed sensitivity. It trains, and it has no epsilon.
    """

    loss_clip: float | None = None
    input_norm: float | None = None
    study: bool = field(default=False, kw_only=True)
    sound: ClassVar[bool] = False
    reason: ClassVar[str] = (
        "it divides by the largest norm of the batch, so that one record changes what all others "
        "contribute"
    )
    measures: ClassVar[Measure] = "input"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.study is not True:
            raise UnsoundError(
                "BatchMaxScaled divides by the largest norm of the batch, so one record changes "
                "what the others contribute and no useful sensitivity exists. For study say "
                "BatchMaxScaled(study=True), which reports no epsilon; for training use "
                "InputScaled, which divides by the record's own norm."
            )

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """One group per layer."""
        return by_layer(parameters)

    def scale(self, measure: Tensor, limit: float) -> Tensor:
        """Divide everybody by the largest norm: this is what mixes the records."""
        if measure.numel() == 0:
            return measure
        finite = torch.where(torch.isfinite(measure), measure, torch.zeros_like(measure))
        return (1.0 / finite.amax().clamp_min(SMALLEST)).expand_as(measure)


def keeps_its_word(estimator: Any) -> bool:
    """Whether limits and factors are formulas of this module, the same at every step."""
    return type(estimator) in (Clipped, Factored) and is_elementwise(
        getattr(estimator, "rule", "clip")
    )


def clips(estimator: Any) -> bool:
    """Whether factors are those of the rule ``clip``."""
    kind = type(estimator)
    return kind is Factored or (kind is Clipped and RULES[estimator.rule] is ClipRule)


def factors_of(
    estimator: Estimator, limit: float, device: torch.device | str = "cpu"
) -> Callable[[Tensor], Tensor]:
    """Return the function that gives each record its factor, by that record's measure alone.

    It is the same for all pieces of a batch. An estimator that is not of this module gets a copy:
    whatever it does to it, the measure stays what it was. One that claims no soundness, for study,
    may look at all records.
    """
    if keeps_its_word(estimator) or type(estimator) in (InputScaled, Propagated):
        return lambda measure: estimator.scale(measure, limit)
    if not estimator.sound:
        return lambda measure: estimator.scale(measure.clone(), limit)
    return formula(estimator.scale, limit, device)
