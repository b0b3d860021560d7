"""``select``: a private choice among settings, whose whole cost is in the statement.

A random number of trainings, each on a setting that is drawn at random, and of them the best by a
private score: what leaves is its model. Liu and Talwar (2019), Papernot and Steinke (2022); the
bounds are ours, docs/proofs/selection.md#cost.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.gradients import Estimator, Schedule, bounded_sum
from noisewise.privacy import (
    History,
    Pure,
    Randomness,
    Relation,
    Sensitivity,
    Statement,
    TrialNumber,
)
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    BestOf,
    IntegerNoise,
    LedgerOrPath,
    MemoryAccount,
    Once,
    Outcome,
    Query,
    ThisProcess,
    open_account,
    release,
)
from noisewise.training import promise
from noisewise.training.distributed import default_team
from noisewise.training.evaluation import apart, call_model, split_batch
from noisewise.training.fitting import OptimizerLike, fit
from noisewise.training.plan import Plan
from noisewise.training.private import make_private
from noisewise.training.private_run import LossFunction
from noisewise.training.proposals import Proposal, proposal_of
from noisewise.training.records import (
    Records,
    first_record,
    map_tensors,
    records_of,
)
from noisewise.training.selection_parts import Built, Split, one_by_one, same_chance, summed
from noisewise.training.selection_plans import Plans
from noisewise.training.units import UnitTable

__all__ = ["Candidate", "Selected", "select"]

Score = Callable[[Any, Any], Tensor]

#: Scores are added up as whole numbers, in these units.
_UNITS = 2**20

_NOT_TUNED = "The weights before training, the plan and the hyperparameters were not chosen"
_TUNED = (
    "The settings among which was chosen, how they are proposed, and everything else that is not a "
    "setting were not chosen by looking at these records."
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """What is trained in one trial; `build` makes it of a setting, and never sees a record.

    Parameters
    ----------
    model : nn.Module
    optimizer : Optimizer or callable, optional
        As for :func:`fit`.
    gradients : estimator, optional
        Instead of the plan's.
    plan : str, optional
        Which of several plans.
    options : mapping
        Of :func:`fit`: scheduler, views, augmentation, chunk, averaging.
    """

    model: nn.Module
    optimizer: OptimizerLike | None = None
    gradients: Estimator | Schedule | None = None
    plan: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        allowed = {"scheduler", "views", "augmentation", "chunk", "averaging"}
        if foreign := sorted(set(self.options) - allowed):
            raise ValueError(
                f"a trial has no options {foreign}: whatever shows or stores something of a trial "
                f"that is not chosen would break the promise. It has {sorted(allowed)}."
            )


@dataclass(frozen=True, eq=False)
class Selected:
    """The chosen trial; nothing of the others is left.

    Attributes
    ----------
    model : nn.Module
        Its average, if averaging was asked for.
    setting : object
        With which it was trained.
    score : float
        On the records that were held back, with noise: the mean, or the sum where the number of
        records is not public. On public records the mean, without noise.
    """

    model: nn.Module
    setting: Any
    score: float
    _statement: Statement

    def statement(self) -> Statement:
        """Return the statement of the whole selection."""
        return self._statement


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 for every record whose largest output is its target's, else 0."""
    return (output.argmax(1) == target).float()


def select(
    build: Callable[[Any], Any],
    data: Any,
    plan: Plan | Mapping[str, Plan],
    *,
    settings: Any,
    loss: LossFunction,
    score: Score = accuracy,
    trials: float | TrialNumber = 8.0,
    held_back: float = 0.1,
    public_validation: Any = None,
    ledger: LedgerOrPath = None,
    preprocessing: Any = None,
    bound_to: bytes = b"",
    split: Callable[[Any], tuple[Any, Any]] = split_batch,
    units: Any = None,
) -> Selected:
    """Train on several settings and keep the best, privately; the statement covers all of it.

    Each of a random number of trials draws a setting, trains on it and is scored. The epsilon of
    the plan is that of the whole selection, charged before the first trial.

    Parameters
    ----------
    build : callable
        From a setting to a `Candidate`, or to a pair of model and optimizer. It must not see
        the records.
    data : tensors, dataset or DataLoader
        As for :func:`make_private`.
    plan : Plan, or mapping of names to plans
        With several, a candidate says which is its own. They have one epsilon and delta.
    settings : list, mapping or callable
        A list of settings, all equally likely; a mapping from names to Optuna's distributions; or
        a function from an Optuna trial to a setting. Drawn at random: samplers that learn from
        scores are not what the analysis is about.
    loss : callable
    score : callable
        From output and target of one record to a number from 0 to 1; what is outside is clamped.
        The sum over records decides. Default: accuracy.
    trials : float or TrialNumber
        Expected number of trials, by the Poisson law, which is the most even of all; or any law.
    held_back : float
        Probability with which a record is held back for the score. It takes part in no training,
        and the others in no score, so that a record pays for one of the two.
    public_validation : tensors or dataset, optional
        Public records to score on instead.
    ledger : Ledger or path, optional
        Charged with the whole selection before the first trial.
    preprocessing : Preprocessing, optional
        How records became numbers.
    bound_to : bytes
        As for :func:`make_private`.
    split : callable
        From a batch to (inputs, targets).
    units : sequence, optional
        As for :func:`make_private`. A unit is held back with all its rows or trained on with all of
        them, and its score is the mean over its rows.

    Returns
    -------
    Selected

    Examples
    --------
    >>> import torch, noisewise.training as training
    >>> x = torch.randn(500, 4)
    >>> y = (x[:, 0] > 0).long()
    >>> def build(rate):
    ...     model = torch.nn.Linear(4, 2)
    ...     return model, torch.optim.SGD(model.parameters(), lr=rate)
    >>> plan = training.Plan(epsilon=3.0, delta=1e-5, steps=10, sample_rate=0.2, seed=1)
    >>> chosen = training.select(build, (x, y), plan, settings=[0.1, 1.0, 10.0], trials=3,
    ...                          loss=torch.nn.CrossEntropyLoss())
    >>> chosen.setting in (0.1, 1.0, 10.0), chosen.statement().epsilon <= 3.0
    (True, True)
    """
    if default_team() is not None:
        raise UnsupportedModelError(
            "a selection runs in one process: workers would draw numbers of trials of their own. "
            "Call select before torch.distributed is initialised."
        )
    number = trials if isinstance(trials, TrialNumber) else TrialNumber.of_mean(trials, "poisson")
    records = records_of(data)
    table = None if units is None else UnitTable.of(units, len(records))
    public = None if public_validation is None else records_of(public_validation)
    share = 0.0 if public is not None else checks.fraction("held_back", held_back)
    plans = Plans.of(
        plan,
        round(len(records if table is None else table) * (1 - share)),
        number,
        scored=public is None,
        of_units=False if table is None else table.name,
    )
    proposal = proposal_of(settings)
    job = _Job(build, plans, proposal, loss, score, share, public, preprocessing, split)
    said = job.preflight(records, table)
    first = plans.first
    relation = Relation.of(first.plan.relation)
    seed = first.plan.seed
    rng = resolve(None if seed is None else Randomness.seeded(b"select/%d/" % seed + bound_to))
    # What is handed to the trials are the records themselves; each trial bounds what it takes.
    one = Sensitivity(1.0, "linf", relation)
    query = Query.of(
        lambda held: Split.of(held, share, rng, table),
        one,
        "a choice among settings",
        unit=first.plan.unit,
        assumptions=said,
    )
    noise = BestOf(number, plans.histories, one, job.trial)
    with open_account(
        ledger,
        relation=relation,
        delta=first.delta,
        unit=first.plan.unit,
        accountant=first.plan.accountant,
    ) as account:
        once = Once(account, rng)
        found = release(query, noise, ThisProcess(records), once, delta=first.delta, rng=once.rng)
    best, (model, setting) = found.value
    return Selected(model, setting, best, found.statement)


@dataclass(frozen=True, eq=False)
class _Job:
    """Everything public about the trials."""

    build: Callable[[Any], Any]
    plans: Plans
    proposal: Proposal
    loss: LossFunction
    score: Score
    share: float
    public: Records | None
    preprocessing: Any
    split: Callable[[Any], tuple[Any, Any]]
    built: Built = field(default_factory=Built)

    def candidate(self, setting: Any) -> tuple[Candidate, Plan]:
        made = self.build(setting)
        if isinstance(made, tuple) and len(made) == 2:
            made = Candidate(*made)
        if not isinstance(made, Candidate):
            raise TypeError(
                "build must return a Candidate or a pair of model and optimizer, got "
                f"{type(made).__name__}"
            )
        self.built.require_new(made.model)
        name = made.plan if made.plan is not None else next(iter(self.plans.resolved))
        if name not in self.plans.resolved:
            raise ValueError(
                f"a candidate has the plan {name!r}, which is not among those that were handed "
                f"over and paid for: {list(self.plans.resolved)}"
            )
        plan = self.plans.resolved[name].plan
        if made.gradients is not None:
            promise.require_sound(made.gradients)
            plan = plan.with_(gradients=made.gradients)
        return made, plan

    def preflight(self, records: Records, table: UnitTable | None) -> tuple[str, ...]:
        """Try settings on a record of zeros before anything is charged; return assumptions."""
        if len(records) < 1:
            raise ValueError("there are no records to train on")
        batch = first_record(next(iter(records.batches([torch.zeros(1, dtype=torch.int64)]))))
        x, y = self.split(batch)
        self._require_steady_build()
        self._require_steady_build()
        said: list[str] = []
        for setting in self.proposal.listed:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                made, plan = self.candidate(setting)
            bounded_sum(made.model, self.loss, x, y, plan.gradients)
            self._require_steady_score(made.model, x, y)
            optimizer = made.optimizer
            if not isinstance(optimizer, torch.optim.Optimizer):
                make = optimizer or torch.optim.Adam
                optimizer = make(made.model.parameters())
            options = {k: v for k, v in made.options.items() if k != "scheduler"}
            with make_private(
                made.model,
                optimizer,
                self.loss,
                records,
                plan,
                records=len(records if table is None else table) if plan.needs_size else None,
                preprocessing=self.preprocessing,
                units=table,
                **options,
            ) as run:
                said += run.assumptions()
        each = "record" if table is None else "unit, with all its rows,"
        public = (
            f"Each {each} was held back for the score with probability {self.share:g}, by a coin "
            "of its own; the others were trained on."
            if self.public is None
            else "The records of the score are public."
        )
        kept = [s for s in dict.fromkeys(said) if not s.startswith(_NOT_TUNED)]
        return (*kept, _TUNED, f"Settings: {self.proposal.words}.", public)

    def trial(self, held: Split, rng: Randomness) -> Outcome:
        """Train on one setting, and score it."""
        self._require_steady_build()
        setting = self.proposal.propose(rng)
        seed = None if rng.is_secure else int(rng.below(2**62))
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.below(2**62)))
            made, plan = self.candidate(setting)
        plan = plan.with_(seed=seed)
        sized = self.plans.resolved[made.plan or next(iter(self.plans.resolved))]
        fitted = fit(
            made.model,
            held.training,
            plan,
            loss=self.loss,
            optimizer=made.optimizer,
            metrics=False,
            progress=False,
            split=self.split,
            records=sized.records,
            preprocessing=self.preprocessing,
            units=held.units,
            **made.options,
        )
        model = fitted.model.eval()
        trained = fitted.run.account.history
        if held.held is None:
            assert self.public is not None
            scores = list(self._scores(model, one_by_one(self.public)))
            return Outcome(sum(scores) / _UNITS / max(1, len(scores)), (model, setting), (trained,))
        value, scored = self._noisy(model, held.held, held.held_units, rng, plan)
        # The size that is expected may be public, the size of the part is not.
        size = self.share * (sized.records or 0) / (1 - self.share) if sized.size_used else 1.0
        return Outcome(value / _UNITS / max(1.0, size), (model, setting), (trained, scored))

    def _noisy(
        self,
        model: nn.Module,
        held: Records,
        units: UnitTable | None,
        rng: Randomness,
        plan: Plan,
    ) -> tuple[int, History]:
        epsilon = self.plans.score_epsilon
        assert epsilon is not None
        moves = Sensitivity(float(_UNITS), "l1", Relation.of(plan.relation))
        noise = IntegerNoise(
            "laplace", _UNITS / Fraction(epsilon), moves, Pure(epsilon), "discrete Laplace noise"
        )
        account = MemoryAccount()
        query = Query.of(
            lambda part: summed(list(self._scores(model, one_by_one(part))), units),
            moves,
            "the score of held-back records",
            unit=plan.unit,
        )
        found = release(query, noise, ThisProcess(held), account, rng=rng)
        return int(found.value), account.history

    def _scores(self, model: nn.Module, batches: Any) -> Iterator[int]:
        """Score records one by one, so that none depends on another, in whole units."""
        model.eval()
        for batch in batches:
            try:
                value = self._score(model, *self.split(batch))
            except Exception:
                # Made-up records can be scored, or the trials had not begun. That one of these
                # cannot is told to nobody.
                value = math.nan
            yield 0 if math.isnan(value) else round(min(1.0, max(0.0, value)) * _UNITS)

    def _score(self, model: nn.Module, x: Any, y: Any) -> float:
        """Score one record by copies of model and score: what they keep goes with them."""
        model, score = apart(model), apart(self.score)
        with torch.no_grad():
            found = torch.as_tensor(score(call_model(model, x), y)).double().reshape(-1)
        if found.numel() != 1:
            raise ValueError(
                f"score must return one number for one record, got a tensor of {found.numel()}"
            )
        return float(found)

    def _require_steady_score(self, model: nn.Module, x: Any, y: Any) -> None:
        """Refuse a score that remembers other records where no copy of it is another one."""
        other = map_tensors(x, lambda t: torch.rand_like(t) if t.is_floating_point() else t + 1)
        model.eval()
        first = self._score(model, x, y)
        with contextlib.suppress(Exception):  # made up: there may be no such record
            self._score(model, other, y)
        second = self._score(model, x, y)
        model.train()
        if first != second and not (math.isnan(first) and math.isnan(second)):
            raise UnsoundError(
                f"score gave {first:.6g} for a made-up record, and {second:.6g} for the same one "
                "after another: it remembers records, or draws, so one record would move the "
                "scores of others. Let it depend on its arguments alone."
            )

    def _require_steady_build(self) -> None:
        """Refuse a build that goes on from what an earlier trial has left."""
        if self.proposal.listed:
            with same_chance():
                made, _ = self.candidate(self.proposal.listed[0])
            self.built.require_same(made.model)
