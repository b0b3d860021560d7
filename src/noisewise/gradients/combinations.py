"""Several estimators in one plan: different ones for layers, or one after another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from noisewise.errors import UnsoundError
from noisewise.gradients.estimators import Estimator, Lipschitz
from noisewise.gradients.grouping import GroupSpec, block_of, partition

__all__ = ["PerLayer", "Schedule", "propagating", "rule_of"]


@dataclass(frozen=True)
class PerLayer:
    """Different estimators for different layers, in one step and one Gaussian mechanism.

    Every group of parameters is bounded by its own estimator, and noise is spread over all of them
    (docs/proofs/sums.md#per-layer). Exact norms pay in early convolutions, whose gradients are far
    below any propagated bound; `InputScaled` is exact for dense layers and costs nothing.

    Parameters
    ----------
    rules : mapping of str to estimator
        Prefixes of parameter names, at dots; the longest that fits decides, and ``""`` fits all.
        Estimators that propagate bounds share `loss_clip`, `input_norm` and `knee`.

    Examples
    --------
    >>> from noisewise.gradients import Factored, InputScaled
    >>> rules = PerLayer({"conv1": Factored(0.1), "": InputScaled()})
    >>> [group.name for group in rules.groups({"conv1.weight": 9, "head.weight": 4})]
    ['conv1', 'head']
    """

    rules: Mapping[str, Any]

    def __post_init__(self) -> None:
        rules = {str(prefix): rule for prefix, rule in dict(self.rules).items()}
        if not rules:
            raise ValueError("PerLayer needs at least one estimator: give {'': estimator} for all")
        for prefix, rule in rules.items():
            if isinstance(rule, (PerLayer, Schedule)) or not isinstance(rule, Estimator):
                raise TypeError(f"rules[{prefix!r}] must be an estimator, got {rule!r}")
            if not rule.sound:
                raise UnsoundError(f"{type(rule).__name__} is for study, and alone: leave it out")
        shared = {
            (rule.loss_clip, rule.input_norm, rule.knee)
            for rule in rules.values()
            if isinstance(rule, Lipschitz)
        }
        if len(shared) > 1:
            raise ValueError(
                "one loss gradient enters the model, so all estimators that propagate bounds need "
                "the same loss_clip, input_norm and knee"
            )
        object.__setattr__(self, "rules", rules)

    @property
    def sound(self) -> bool:
        """True: estimators without a proof are refused."""
        return True

    @property
    def lipschitz(self) -> Lipschitz | None:
        """One of those that propagate bounds, if there are any."""
        found = (rule for rule in self.rules.values() if isinstance(rule, Lipschitz))
        return next(found, None)

    def groups(self, parameters: Mapping[str, int]) -> tuple[GroupSpec, ...]:
        """Partition the parameters of every estimator by its own way."""
        found = []
        blocks = self._blocks
        if "" in blocks and all(block_of(name, blocks) for name in parameters):
            blocks.pop("")  # there are no others
        for block in partition(blocks, parameters):
            sizes = {name: parameters[name] for name in block.names}
            for group in self.rules[block.name].groups(sizes):
                # The group of a whole block is called after the block.
                called = block.name or "others"
                name = called if group.name == "model" else group.name
                found.append((GroupSpec(name, group.names, group.size), called))
        # Two blocks may each hold some parameters of one module, and call their groups after it.
        names = Counter(group.name for group, _ in found)
        return tuple(
            group if names[group.name] == 1 else replace(group, name=f"{group.name} of {block}")
            for group, block in found
        )

    def of(self, group: GroupSpec) -> Estimator:
        """Return the estimator that bounds a group."""
        rule: Estimator = self.rules[block_of(group.names[0], self._blocks)]
        return rule

    @property
    def _blocks(self) -> dict[str, list[str]]:
        return {prefix: [prefix] for prefix in self.rules}

    def limits(self, groups: Sequence[GroupSpec]) -> tuple[float, ...]:
        """Thresholds of those that measure; zero for those whose bounds are propagated later."""
        found = dict.fromkeys((group.name for group in groups), 0.0)
        for rule in self.rules.values():
            own = [group for group in groups if self.of(group) is rule]
            if own and not isinstance(rule, Lipschitz):
                found.update(zip((group.name for group in own), rule.limits(own), strict=True))
        return tuple(found.values())


def propagating(estimator: Any) -> Lipschitz | None:
    """Return the estimator, or that of its parts, whose bounds are propagated; None if none is."""
    if isinstance(estimator, PerLayer):
        return estimator.lipschitz
    return estimator if isinstance(estimator, Lipschitz) else None


def rule_of(estimator: Any, group: GroupSpec) -> Estimator:
    """Return the estimator that bounds a group: itself, unless layers have different ones."""
    chosen: Estimator = estimator.of(group) if isinstance(estimator, PerLayer) else estimator
    return chosen


@dataclass(frozen=True)
class Schedule:
    """One estimator after another: each from a fraction of training on.

    The mix-up training of Bu, Wang, Dai and Long (2021): the noise multiplier stays the same, so
    all steps are the same mechanism to the accountant. Stages must form the same groups.

    Parameters
    ----------
    stages : sequence of (fraction, estimator)
        Ascending fractions in [0, 1), the first one 0.

    Examples
    --------
    >>> from noisewise.gradients import Clipped
    >>> schedule = Schedule([(0.0, Clipped(1.0)), (0.5, Clipped(1.0, rule="global"))])
    >>> schedule.at(0.7).rule
    'global'
    """

    stages: Sequence[tuple[float, Any]]

    def __post_init__(self) -> None:
        stages = tuple((float(start), estimator) for start, estimator in self.stages)
        starts = [start for start, _ in stages]
        if not stages or starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= 1:
            raise ValueError(
                "a schedule needs stages (fraction, estimator) with ascending fractions from 0 to "
                f"below 1, got the fractions {starts}"
            )
        for _, estimator in stages:
            if isinstance(estimator, Schedule) or not isinstance(estimator, (Estimator, PerLayer)):
                raise TypeError(f"a stage needs an estimator, got {estimator!r}")
        object.__setattr__(self, "stages", stages)

    @property
    def sound(self) -> bool:
        """Whether every stage is."""
        return all(estimator.sound for _, estimator in self.stages)

    def at(self, progress: float) -> Estimator:
        """Return the estimator in force after the fraction `progress` of all steps."""
        if not 0 <= progress <= 1 or math.isnan(progress):
            raise ValueError(f"progress must lie in [0, 1], got {progress!r}")
        chosen: Estimator = self.stages[0][1]
        for start, estimator in self.stages:
            if progress >= start:
                chosen = estimator
        return chosen
