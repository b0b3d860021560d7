"""The plan of a private training run: what is public, fixed before any record is read.

A :class:`Plan` couples the bound on one record's influence, the noise, the sampler and the
accountant. It is immutable, checks itself when it is made, and serialises to JSON.
:meth:`Plan.resolve` turns it into the constants of the accountant
(docs/proofs/contract.md#sampler): the sample rate q, the number of steps, the divisor, delta
and the noise multiplier.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from noisewise import checks
from noisewise.errors import UnsoundError
from noisewise.gradients import Clipped, Estimator, PerLayer, Schedule
from noisewise.privacy import ACCOUNTANTS, Relation
from noisewise.release import ALLOCATIONS, UNIT_NAME
from noisewise.training import unit_rules
from noisewise.training.plan_values import from_plain, to_plain
from noisewise.training.resolved import Constants, ResolvedPlan, calibrated, default_delta
from noisewise.training.sampling import REFUSED, SAMPLERS

__all__ = ["Plan"]

ONE_RECORD = "one record"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train privately, in public constants.

    Parameters
    ----------
    gradients : estimator
        How one record's influence is bounded: ``Clipped``, ``Factored``, ``InputScaled``,
        ``Propagated``, ``PerLayer``, ... from :mod:`noisewise.gradients`.
    epsilon, noise_multiplier : float
        Exactly one of them. With `epsilon` the noise is the least that keeps all steps within
        it, and no step beyond it is ever taken; with `noise_multiplier` epsilon follows.
    delta : float, optional
        Default: 1/(10 n) rounded down to a power of ten, where n is the public size.
    epochs, steps : float, int
        Exactly one. An epoch is 1/q steps: each record is drawn once on average.
    batch_size, sample_rate : float
        The *expected* batch size, or the probability with which each record is drawn. With
        both, and `steps` and `delta`, nothing is computed from the size of the dataset.
    noise : {"optimal", "per-layer", "global"}
        How noise is spread over groups of parameters; all three cost the same privacy.
    sampling : {"poisson", "full"}
        "full" takes every record in every step.
    accountant : {"pld", "rdp"}
    relation : {"add-remove", "replace-one"}
    records : int, optional
        The number of records, declared public. Otherwise `make_private` reads it from the data
        if the plan needs it, and the statement says so.
        Where units are given (``make_private(units=)``), the number of units; the expected batch
        size and the sample rate speak of units as well.
    unit : str
        What one record stands for, or one unit.
    unit_rule : {"auto", "units", "rows"}
        With units: "units" draws each unit with the sample rate, and bounds the mean gradient of
        its rows; "rows" draws each of its rows with the sample rate, bounds each, and accounts for
        `unit_rows` of them. "auto" takes the one with the smaller noise, for which `unit_rows` and
        `rows` must be public; else "units".
    unit_rows : int, optional
        The most rows of one unit that take part, chosen at random: with "units" in every step,
        with "rows" (which needs it) once. Default: all.
    rows : int, optional
        The number of rows, declared public; used by "rows" to divide, and by "auto".
    assume_apart : bool
        Train although it is not proven that the model and the loss keep records apart. Every step
        then compares halves of the batch with the whole, and the statement says that this is an
        assumption.
    seed : int, optional
        Reproducible noise and batches, hence *not* secret; default: secret ones.

    Examples
    --------
    >>> plan = Plan(gradients=Clipped(1.0), epsilon=2.0, epochs=10, batch_size=500, records=50_000)
    >>> fixed = plan.resolve()
    >>> fixed.sample_rate, fixed.steps, fixed.delta
    (0.01, 1000, 1e-06)
    >>> fixed.epsilon <= 2.0
    True
    """

    gradients: Estimator | PerLayer | Schedule = field(default_factory=Clipped)
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    epochs: float | None = None
    steps: int | None = None
    batch_size: float | None = None
    sample_rate: float | None = None
    noise: str = "optimal"
    sampling: str = "poisson"
    accountant: str = "pld"
    relation: str = "add-remove"
    records: int | None = None
    unit: str = "one record"
    unit_rule: str = "auto"
    unit_rows: int | None = None
    rows: int | None = None
    assume_apart: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.gradients, (Estimator, PerLayer, Schedule))
        if not known or isinstance(self.gradients, type):  # a class has the methods, too
            raise TypeError(
                "gradients must be an estimator, for example noisewise.Clipped(1.0), got "
                f"{self.gradients!r}"
            )
        self._check_sampling()
        self._check_noise()
        self._check_length()
        self._check_batch()
        self._set("relation", Relation.of(self.relation).name)
        checks.choice("accountant", self.accountant, ACCOUNTANTS)
        checks.choice("noise", self.noise, ALLOCATIONS)
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, type(None))):
            raise TypeError(f"seed must be an int, or None for secret noise, got {self.seed!r}")
        if not isinstance(self.assume_apart, bool):
            raise TypeError(f"assume_apart must be True or False, got {self.assume_apart!r}")
        if not isinstance(self.unit, str) or not self.unit:
            raise TypeError(f"unit must say what one record stands for, got {self.unit!r}")
        unit_rules.check(self)
        if self.records is not None or not self.needs_size:
            self.sigma(self._constants(self.records))  # raises what is impossible

    # ---------------------------------------------------------------- resolution

    def resolve(
        self,
        records: int | None = None,
        *,
        public_size: int | None = None,
        of_units: bool | str = False,
    ) -> ResolvedPlan:
        """Return the constants of the accountant.

        Parameters
        ----------
        records, public_size : int, optional
            Two names for the number of records, which is declared public by giving it here;
            needed unless the plan has `records` or needs none.
        of_units : bool or str
            Whether what is protected are units of several rows, and what they are called.

        Raises
        ------
        ValueError
            If the size is needed and unknown, or no noise reaches the target.
        """
        given = records if records is not None else public_size
        size = self.records if self.records is not None else given
        if size is not None:
            size = checks.integer("records", size, minimum=1)
        constants = self._constants(size)
        if self.delta is not None and size is not None and self.delta > 1 / size:
            warnings.warn(
                f"delta={self.delta:g} is above 1/n = {1 / size:.3g}: a mechanism that publishes "
                f"one record at random would be allowed. {default_delta(size):g} is customary.",
                stacklevel=2,
            )
        if not of_units and self.speaks_of_units:
            raise ValueError(
                "the plan speaks of units of several rows (unit_rule, unit_rows or rows), but none "
                "were given: give units=, one identifier for each row, or every row would be "
                "protected by itself"
            )
        called = of_units if isinstance(of_units, str) else UNIT_NAME
        if of_units and self.unit not in (ONE_RECORD, called) and called != UNIT_NAME:
            raise ValueError(
                f"the plan protects {self.unit!r}, but the identifiers are those of {called!r}: "
                "one promise cannot be about both. Use one word, in Units(name=) or Plan(unit=)"
            )
        rule = unit_rules.chosen(self, constants) if of_units else None
        rows = unit_rules.mean_rows(self, size) if rule == "rows" else 1.0
        return ResolvedPlan(
            plan=self.with_(unit=called) if of_units and self.unit == ONE_RECORD else self,
            records=size,
            sample_rate=constants.rate,
            steps=constants.steps,
            batch_size=constants.divisor * rows,
            delta=constants.delta,
            noise_multiplier=self.sigma(constants, self.unit_rows if rule == "rows" else None),
            size_used=self.needs_size,
            unit_rule=rule,
        )

    @property
    def speaks_of_units(self) -> bool:
        """Whether some field makes sense for units of several rows only."""
        return self.unit_rule != "auto" or self.unit_rows is not None or self.rows is not None

    @property
    def needs_size(self) -> bool:
        """Whether a constant of this plan is computed from the number of records."""
        one_missing = self.batch_size is None or (self.sample_rate is None and not self._takes_all)
        return self.delta is None or one_missing

    def with_(self, **changes: Any) -> Plan:
        """Return a plan with some fields changed, checked again."""
        return replace(self, **changes)

    # ---------------------------------------------------------------- serialisation

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        # What is not said of units is not written: plans without them read as they always did.
        said = [
            item.name
            for item in fields(self)
            if item.name not in unit_rules.FIELDS or getattr(self, item.name) != item.default
        ]
        content = {name: to_plain(getattr(self, name)) for name in said}
        return {"format": "noisewise-plan", "version": 1, **content}

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the plan as JSON, to be read by :meth:`from_json`."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Plan:
        """Return the plan that :meth:`to_dict` described."""
        values = dict(content)
        if values.pop("format", None) != "noisewise-plan" or values.pop("version", None) != 1:
            raise ValueError("this is not a noisewise plan of version 1")
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"a plan has no fields {unknown}; it has {sorted(known)}")
        return cls(**{name: from_plain(value) for name, value in values.items()})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that :meth:`to_json` wrote."""
        return cls.from_dict(json.loads(text))

    # ---------------------------------------------------------------- checks

    @property
    def _takes_all(self) -> bool:
        return SAMPLERS[self.sampling].takes_all

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_sampling(self) -> None:
        if isinstance(self.sampling, str) and self.sampling in SAMPLERS:
            return
        reason = REFUSED.get(
            str(self.sampling), "no analysis of it is known here, so no epsilon would be true"
        )
        raise UnsoundError(
            f"sampling={self.sampling!r} is refused: {reason}. Use sampling='poisson' (each record "
            "independently, run.loader does it), or sampling='full', which is accounted as if "
            "every record took part in every step and so holds for any batches of distinct records."
        )

    def _check_noise(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                "a plan has exactly one of epsilon and noise_multiplier, got "
                f"epsilon={self.epsilon!r} and noise_multiplier={self.noise_multiplier!r}: each "
                "follows from the other. Give the one that you want to fix, e.g. epsilon=2.0."
            )
        if self.epsilon is not None:
            self._set("epsilon", checks.budget(self.epsilon))
        if self.noise_multiplier is not None:
            self._set(
                "noise_multiplier",
                checks.positive(
                    "noise_multiplier",
                    self.noise_multiplier,
                    hint="without noise there is no privacy; "
                    "noisewise.bounded_sum gives sums without noise",
                ),
            )
        if self.delta is not None:
            hint = "Gaussian noise gives no epsilon at delta 0"
            self._set("delta", checks.positive("delta", self.delta, hint=hint))
            checks.fraction("delta", self.delta)

    def _check_length(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"a plan has exactly one of epochs and steps, got epochs={self.epochs!r} and "
                f"steps={self.steps!r}; an epoch is 1/q steps. Give e.g. epochs=20."
            )
        if self.epochs is not None:
            self._set("epochs", checks.positive("epochs", self.epochs))
        if self.steps is not None:
            self._set("steps", checks.integer("steps", self.steps, minimum=1))

    def _check_batch(self) -> None:
        if self.records is not None:
            self._set("records", checks.integer("records", self.records, minimum=1))
        if self.batch_size is not None:
            self._set("batch_size", checks.positive("batch_size", self.batch_size))
        if self.sample_rate is not None:
            self._set("sample_rate", checks.probability("sample_rate", self.sample_rate))
        if self._takes_all and self.sample_rate not in (None, 1.0):
            raise ValueError(
                f"sampling='full' draws every record, so sample_rate is 1, got {self.sample_rate!r}"
                "; leave it out, or use sampling='poisson'."
            )
        if not self._takes_all and self.batch_size is None and self.sample_rate is None:
            raise ValueError(
                "a plan needs the expected batch size or the sample rate, got neither: give e.g. "
                "batch_size=1024 (large batches suit private training), or sampling='full'."
            )
        self._check_against_size(self.records)

    def _check_against_size(self, size: int | None) -> None:
        if size is None or self.batch_size is None:
            return
        if self.batch_size > size and self.sample_rate is None:
            raise ValueError(
                f"batch_size is the expected number of records of a batch, so it cannot exceed "
                f"the {size} records there are, got {self.batch_size:g}. Use sampling='full' for "
                f"full batches, or batch_size={max(1, size // 4)}."
            )
        rate = 1.0 if self._takes_all else self.sample_rate
        if rate is not None and abs(self.batch_size - rate * size) > 1 + 0.01 * self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size:g} contradicts sample_rate={rate:g} of {size} "
                f"records, which expects {rate * size:g}. Leave one of them out."
            )

    # ---------------------------------------------------------------- constants

    def _rate(self, size: int | None) -> tuple[float, float]:
        """Sample rate and divisor."""
        self._check_against_size(size)
        rate = 1.0 if self._takes_all else self.sample_rate
        if rate is not None and self.batch_size is not None:
            return rate, self.batch_size
        if size is None:
            raise ValueError(
                "the number of records is needed to couple the expected batch size and the sample "
                "rate. Declare it public with Plan(records=...) or plan.resolve(records), or give "
                "both batch_size and sample_rate."
            )
        if rate is not None:
            return rate, rate * size
        assert self.batch_size is not None
        return self.batch_size / size, self.batch_size

    def _constants(self, size: int | None) -> Constants:
        rate, divisor = self._rate(size)
        if self.steps is not None:
            steps = self.steps
        else:
            assert self.epochs is not None
            steps = max(1, round(self.epochs / rate))
        if self.delta is None and size is None:
            raise ValueError(
                "delta defaults to 1/(10 n), for which the number of records n is needed: "
                "declare it public with Plan(records=...), or give delta, e.g. delta=1e-6."
            )
        delta = self.delta
        if delta is None:
            assert size is not None
            delta = default_delta(size)
        return Constants(rate, divisor, steps, delta, size)

    def sigma(self, constants: Constants, unit_rows: int | None = None) -> float:
        """Noise multiplier of these constants, for units of so many rows."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        return calibrated(
            self.epsilon,
            constants.delta,
            constants.steps,
            constants.rate,
            self.accountant,
            self.relation,
            unit_rows,
        )
