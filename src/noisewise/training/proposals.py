"""Where the settings of trials come from: a list, or a search space of Optuna.

Every trial draws its setting from the same public law, whatever the trials before it found; a
sampler that learns from scores would make trials depend on each other, and the analysis of
:class:`~noisewise.privacy.Selection` would not be about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noisewise.privacy import Randomness

__all__ = ["Proposal", "proposal_of"]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A law of settings.

    Attributes
    ----------
    propose : callable
        From a generator to a setting.
    listed : tuple
        All settings, if they are finitely many; else a few.
    words : str
        For the statement.
    """

    propose: Callable[[Randomness], Any]
    listed: tuple[Any, ...]
    words: str


def proposal_of(settings: Any) -> Proposal:
    """Return the law that a list, a mapping of Optuna's distributions or a function stands for."""
    if callable(settings):
        return _of_space(settings)
    if isinstance(settings, Mapping):
        return _of_distributions(settings)
    if isinstance(settings, Sequence) and not isinstance(settings, (str, bytes)) and settings:
        known = tuple(settings)
        return Proposal(
            lambda rng: known[int(rng.below(len(known)))],
            known,
            f"each trial takes one of {len(known)} listed settings, all equally likely",
        )
    raise TypeError(
        "settings must be a list of settings, a mapping from names to Optuna's distributions, or a "
        f"function from an Optuna trial to a setting, got {type(settings).__name__}"
    )


def _of_distributions(space: Mapping[str, Any]) -> Proposal:
    optuna = _optuna()
    for name, distribution in space.items():
        if not isinstance(distribution, optuna.distributions.BaseDistribution):
            raise TypeError(
                f"the search space has {type(distribution).__name__} for {name!r}: give one of "
                "Optuna's distributions, e.g. optuna.distributions.FloatDistribution(0.1, 10, "
                "log=True), or a list of whole settings"
            )
    fixed = dict(space)
    return _lazy(lambda study: dict(study.ask(fixed).params))


def _of_space(function: Callable[[Any], Any]) -> Proposal:
    return _lazy(lambda study: function(study.ask()))


def _lazy(ask: Callable[[Any], Any]) -> Proposal:
    optuna = _optuna()

    def draw(rng: Randomness) -> Any:
        seed = int(rng.below(2**32 - 1))
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            # A new study for every trial: nothing of the ones before is in it.
            return ask(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)))
        finally:
            optuna.logging.set_verbosity(before)

    few = tuple(draw(child) for child in Randomness.seeded(0).spawn(3))
    return Proposal(draw, few, "each trial draws its setting at random from an Optuna search space")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "search spaces need Optuna: pip install 'noisewise[tuning]'; a list of settings needs "
            "nothing"
        ) from error
    return optuna
