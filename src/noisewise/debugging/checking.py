"""`check`: run all tests on a training function and say what is wrong with it.

Order matters. The preflight learns what the training can do. Then contributions of single
records, their sum and the noise are measured, the batches are solved for, the second step is
replayed, data-dependent decisions are provoked and late steps read, the claim recomputed, broken
records tried, units looked at as a whole where there are any, and the tests of the paper (T1 to
T4) complete the picture with its figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.debugging import freshness, late, noise, paper, path, replay, sampling, sensitivity
from noisewise.debugging.bench import DEFAULT, QUICK, THOROUGH, Bench
from noisewise.debugging.findings import Findings, TestResult
from noisewise.debugging.grouping import takes_units, whole_units
from noisewise.debugging.neighbours import neighbours
from noisewise.debugging.preflight import preflight
from noisewise.debugging.replacement import separation_by_replacement
from noisewise.debugging.replay import Claim
from noisewise.debugging.synthesis import Records
from noisewise.debugging.trainer import BlackBox, StateDict, TrainingFailedError
from noisewise.errors import NoisewiseError

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

__all__ = ["TESTS", "PrivacyBugError", "assert_private", "check"]

_EFFORTS = {"quick": QUICK, "default": DEFAULT, "thorough": THOROUGH}


@dataclass(frozen=True)
class Test:
    """One test: how it runs, what it needs, and which question it answers.

    Attributes
    ----------
    aspect
        The question without whose answer nothing is called private so far; empty for tests
        that repeat or refine others.
    reads_updates
        Cannot run where single updates cannot be read.
    reads_noise
        Cannot run where the noise cannot be set.
    takes_random
        Can run where gradients are random themselves.
    optional
        Has nothing to do unless the user names an option or a claim.
    """

    name: str
    run: Callable[[Bench, Claim | None], TestResult]
    aspect: str = ""
    reads_updates: bool = True
    reads_noise: bool = False
    takes_random: bool = False
    optional: bool = False
    of_the_paper: bool = False

    # Tells pytest that this is no test class, in spite of its name.
    __test__ = False

    def skip(self, why: str) -> TestResult:
        """Return the result of a test that could not run."""
        return TestResult(self.name, self.name, "skipped", why)


def _additivity(bench: Bench, _: Claim | None) -> TestResult:
    if bench.known.along_one:
        why = "every update lies along one direction that the seed draws"
        return TestResult("separation", "a batch is the sum of its records", "skipped", why)
    if bench.known.random:
        return separation_by_replacement(bench)
    return sensitivity.additivity(bench)


#: All tests but the preflight, in the order in which they run.
REGISTRY = (
    Test("separation", _additivity, "whether records are kept apart", takes_random=True),
    Test(
        "contribution",
        lambda bench, _: sensitivity.contribution(bench),
        "how much one record contributes",
        takes_random=True,
    ),
    Test(
        "noise",
        lambda bench, _: noise.distribution(bench),
        "size and shape of the noise",
        reads_noise=True,
        takes_random=True,
    ),
    Test(
        "freshness",
        lambda bench, _: freshness.freshness(bench),
        "whether noise is fresh",
        reads_noise=True,
        takes_random=True,
    ),
    Test(
        "invariance", lambda bench, _: freshness.invariance(bench), reads_noise=True, optional=True
    ),
    Test("sampling", lambda bench, _: sampling.batches(bench), "the sampling", takes_random=True),
    Test(
        "neighbours",
        lambda bench, _: neighbours(bench),
        reads_noise=True,
        takes_random=True,
    ),
    Test("second-step", lambda bench, _: replay.two_steps(bench)),
    Test(
        "decisions",
        lambda bench, _: path.control_flow(bench),
        "decisions taken on the data",
        reads_updates=False,
        reads_noise=True,
        takes_random=True,
    ),
    Test(
        "late-steps",
        lambda bench, _: late.late_steps(bench),
        "late steps",
        reads_noise=True,
        takes_random=True,
    ),
    Test("claim", replay.claim, reads_noise=True, takes_random=True, optional=True),
    Test("broken-records", lambda bench, _: sensitivity.broken_records(bench), takes_random=True),
    Test(
        "whole-units",
        lambda bench, _: whole_units(bench),
        "whether units are kept together",
    ),
    Test(
        "loss-and-clip",
        lambda bench, _: paper.clipping_exists(bench),
        takes_random=True,
        of_the_paper=True,
    ),
    Test("loss-and-batch", lambda bench, _: paper.clipping_per_record(bench), of_the_paper=True),
    Test(
        "distance-and-clip",
        lambda bench, _: paper.noise_calibration(bench),
        reads_noise=True,
        of_the_paper=True,
    ),
    Test(
        "law-of-noise", lambda bench, _: paper.noise_law(bench), reads_noise=True, of_the_paper=True
    ),
)
_OF_THE_PAPER = frozenset(test.name for test in REGISTRY if test.of_the_paper)
_NOISE_OF_THE_PAPER = ("distance-and-clip", "law-of-noise")
TESTS = ("preflight", *(test.name for test in REGISTRY))


class CheckOptions(TypedDict, total=False):
    """Of :func:`check`, for functions that hand them on."""

    example: Required[tuple[Tensor, Tensor]]
    momentum: float
    weight_decay: float
    optimizer: str
    adam_epsilon: float
    adam_betas: tuple[float, float]
    sampling: str
    options: Mapping[str, Sequence[Any]] | None
    noise_schedule: Callable[[int], float] | None
    correlated_noise: bool
    observe: Callable[[Any], Mapping[str, Tensor]] | None
    claimed: Claim | None
    progress: Callable[[int], None] | None
    tests: Sequence[str]
    thorough: bool
    effort: str | None
    fail_fast: bool
    seed: int


class PrivacyBugError(NoisewiseError, AssertionError):
    """Training that was asserted to be private has a bug, or could not be judged."""

    def __init__(self, findings: Findings) -> None:
        said = "is not private" if findings.verdict == "bug" else "could not be judged"
        super().__init__(f"the training {said}:\n{findings}")
        self.findings = findings


def check(
    train: Callable[..., Mapping[str, Tensor]],
    model_fn: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    *,
    example: tuple[Tensor, Tensor],
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimizer: str = "sgd",
    adam_epsilon: float = 1e-8,
    adam_betas: tuple[float, float] = (0.9, 0.999),
    sampling: str = "poisson",
    options: Mapping[str, Sequence[Any]] | None = None,
    noise_schedule: Callable[[int], float] | None = None,
    correlated_noise: bool = False,
    observe: Callable[[Any], Mapping[str, Tensor]] | None = None,
    claimed: Claim | None = None,
    progress: Callable[[int], None] | None = None,
    tests: Sequence[str] = TESTS,
    thorough: bool = False,
    effort: str | None = None,
    fail_fast: bool = False,
    seed: int = 0,
) -> Findings:
    """Look for bugs in DP training, from the checkpoints that it returns on synthetic data.

    Parameters
    ----------
    train
        ``train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr)`` runs
        `steps` steps of DP-SGD on `data`, a pair of tensors, from the state dict `init` and
        returns a state dict. `noise_multiplier`, `seed`, `steps` and `lr` may be missing from
        its signature; the tests that need them are then skipped, with the reason. If it takes
        `units`, one number for each record, records of one unit must be bounded as one, and
        `batch_size` counts units.
    model_fn
        Builds the model, without arguments.
    loss_fn
        ``(output, target) -> loss``, a torch loss module or function.
    example
        A batch ``(x, y)``. Only shapes, dtypes and the kind of target are read from it.
    momentum, weight_decay, optimizer
        What `train` uses: ``"sgd"`` or ``"adam"`` (Adam with decoupled weight decay).
    adam_epsilon, adam_betas
        Settings of Adam.
    sampling
        What the accountant assumes: ``"poisson"`` or ``"fixed"`` (batches of fixed size).
    options
        Further arguments of `train` that must not change the result, with values to try,
        such as ``{"micro_batch_size": (2, 8), "world_size": (1, 2)}``.
    noise_schedule
        Public factor of `noise_multiplier` at each step, from step 0 on, where sigma changes
        during training and the accountant knows it: ``lambda step: 0.99**step``.
    correlated_noise
        Whether the noise of a step depends on that of earlier ones by a matrix that the accountant
        knows (DP-FTRL, matrix mechanisms). What compares steps is then left out, so that the
        verdict is at best ``not judged``, and no step is accused of the others' noise.
    observe
        Where the weights are not what a step releases, since signs are taken or lengths are
        limited afterwards: picks from what `train` returns the noisy gradient of the last
        step, as divided by the batch size, one tensor per parameter. `train` may then return
        anything: ``observe=lambda result: result["released"]``.
    claimed
        The epsilon that was printed for a run, to be recomputed from what is measured.
    progress
        Is called with the number of runs so far after each run of the training.
    tests
        Names of the tests to run.
    thorough
        Spend about four times as many runs.
    effort
        ``"quick"``, ``"default"`` or ``"thorough"``; overrides `thorough`.
    fail_fast
        End at the first test that finds something; what the others would say is left open.
    seed
        Seed of the synthetic data and of the model's initial weights.

    Returns
    -------
    Findings
        ``.verdict``, ``.ok``, ``.bugs``, ``.table()``, ``.report("x.html")``.
    """
    checks.choice("optimizer", optimizer, ("sgd", "adam"))
    checks.choice("sampling", sampling, ("poisson", "fixed"))
    chosen = checks.choice(
        "effort", effort or ("thorough" if thorough else "default"), tuple(_EFFORTS)
    )
    for name in tests:
        checks.choice("tests", name, TESTS)
    if isinstance(model_fn, nn.Module):
        raise TypeError(
            f"model_fn must build a fresh model each time it is called, got a model: give a "
            f"function, such as `lambda: {type(model_fn).__name__}(...)`"
        )
    if isinstance(loss_fn, type):
        raise TypeError(f"loss_fn is a class: give {loss_fn.__name__}(), an object")
    if not callable(train):
        raise TypeError(
            f"train must be a function, got {type(train).__name__}; a script is checked by "
            "`noisewise debug --command 'python train.py ...'`"
        )
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_fn()
        bench = Bench(
            box=BlackBox.of(train, model, observe, progress),
            records=Records.like(model, loss_fn, example),
            init=_initial(model),
            optimizer=optimizer,
            momentum=checks.positive("momentum", momentum, zero=True),
            weight_decay=checks.positive("weight_decay", weight_decay, zero=True),
            adam_epsilon=checks.positive("adam_epsilon", adam_epsilon),
            adam_betas=adam_betas,
            effort=_EFFORTS[chosen],
            options={name: tuple(values) for name, values in (options or {}).items()},
            sampling=sampling,
            schedule=noise_schedule,
            correlated=correlated_noise,
        )
        results = _run(bench, tuple(tests), claimed, fail_fast)
    seconds = time.perf_counter() - began
    return Findings(_explained(bench, results), bench.box.calls, seconds, tuple(bench.notes))


def assert_private(
    train: Callable[..., Mapping[str, Tensor]],
    model_fn: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    *,
    allow_not_judged: bool = False,
    **arguments: Unpack[CheckOptions],
) -> Findings:
    """Raise :class:`PrivacyBugError`, an ``AssertionError``, unless the training is ok.

    A training of which too little could be tested fails as well, unless `allow_not_judged`.
    """
    findings = check(train, model_fn, loss_fn, **arguments)
    if findings.verdict == "bug" or not (findings.ok or allow_not_judged):
        raise PrivacyBugError(findings)
    return findings


def _initial(model: nn.Module) -> StateDict:
    """Return the weights of a fresh model; layers that start at zero get small values."""
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not bool(parameter.detach().any()):
            state[name] = 0.05 * torch.randn_like(state[name])
    return state


def _run(
    bench: Bench, tests: tuple[str, ...], claimed: Claim | None, fail_fast: bool
) -> tuple[TestResult, ...]:
    results = [preflight(bench)]
    if bench.known.hopeless and not bench.known.obstacle:
        return tuple(results)
    for test in REGISTRY:
        # What the tests of the paper say may be withdrawn, so that nothing ends with them.
        if fail_fast and any(r.findings and r.test not in _OF_THE_PAPER for r in results):
            break
        if test.name not in tests or (test.name == "whole-units" and not takes_units(bench)):
            continue
        why = _why_not(bench, test)
        try:
            result = test.skip(why) if why else test.run(bench, claimed)
        except TrainingFailedError as error:
            result = test.skip(str(error))
        results.append(replace(result, aspect=test.aspect, optional=test.optional))
    return tuple(results)


def _why_not(bench: Bench, test: Test) -> str:
    """Say why a test cannot run, or nothing."""
    known = bench.known
    if known.obstacle and (test.reads_updates or known.hopeless):
        return known.obstacle
    if test.reads_noise and "noise_multiplier" not in bench.box.accepted:
        return "train takes no `noise_multiplier`"
    if test.of_the_paper and bench.box.observe is not None:
        return "the tests of the paper look at weights, not at what is observed"
    if known.random and not test.takes_random:
        return "gradients are random even without noise (dropout, augmentation)"
    return ""


def _explained(bench: Bench, results: tuple[TestResult, ...]) -> tuple[TestResult, ...]:
    """Withdraw alarms of the paper's tests that a sharper test has shown to be harmless.

    Losses cannot tell a sum over the batch from batch clipping, which `separation` can; the law of
    the noise takes the scale for granted, and distances under Adam have little power, where
    `noise` compares with what records contribute.
    """
    status = {result.test: result.status for result in results}
    names = {finding.name for result in results for finding in result.findings}
    # What follows from another finding is not listed again.
    implied = set()
    if status.get("noise") == "failed":
        implied.add("noise-law-wrong")
    if status.get("late-steps") == "failed":
        implied |= {"path-depends-on-data", "step-depends-on-batch"}
    if names & {"divides-by-actual-batch-size", "divisor-depends-on-dataset-size"}:
        implied |= {"step-depends-on-batch", "noise-differs-between-steps"}
        implied.add("noise-depends-on-dataset-size")
    final = []
    for result in results:
        reason = ""
        if result.status == "failed":
            if result.test == "loss-and-batch" and status.get("separation") == "passed":
                reason = "a batch is the sum of its records (separation; no division by B?)"
            elif result.test in _NOISE_OF_THE_PAPER and status.get("noise") == "passed":
                reason = "noise is in proportion to what a record contributes (noise)"
        if reason:
            summary = f"{result.summary}; harmless: {reason}"
            result = replace(result, status="explained", summary=summary, findings=())
        kept = tuple(f for f in result.findings if f.name not in implied)
        final.append(replace(result, findings=kept))
    return tuple(final)
