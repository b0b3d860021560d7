"""The bugs and the correct variants that the tests are judged by.

Numbers 1 to 38 are the catalogue of `docs/debugging.md`; numbers 39 to 53 were found in the
issues and pull requests of real libraries, which are cited. `UNSEEN` was written after the
tests had been frozen, to see what they catch without having been made for it. Two of those were
missed; the tests were improved and frozen again, and `FRESH` was written after that. One of
those was missed; the same happened a third time, with `LATEST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BUGS", "CORRECT", "FRESH", "LATEST", "UNSEEN", "Mutant", "Variant"]


@dataclass(frozen=True)
class Mutant:
    """One mistake: its number, the switch of `Training`, what it does, where it was seen."""

    number: int
    bug: str
    what: str
    source: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One correct training; `declared` are the arguments of `check` that describe it."""

    name: str
    settings: Mapping[str, Any]
    declared: Mapping[str, Any] = field(default_factory=dict)


BUGS = (
    Mutant(1, "no-clipping", "gradients are not clipped"),
    Mutant(2, "clip-after-mean", "the mean gradient of the batch is clipped"),
    Mutant(3, "clip-micro-batch", "the mean of each micro-batch is clipped"),
    Mutant(4, "layer-clip-C-each", "each tensor is clipped to C"),
    Mutant(5, "biases-unclipped", "biases are neither counted nor clipped"),
    Mutant(6, "norm-omits-layer", "the norm leaves out the last layer"),
    Mutant(7, "squared-norm", "division by the squared norm"),
    Mutant(8, "element-clamp", "elements are clamped to C"),
    Mutant(9, "copies-clipped-separately", "augmented copies clipped one by one and added"),
    Mutant(10, "clip-to-median", "the clipping norm is the median norm of the batch"),
    Mutant(11, "factor-1.3", "gradients are clipped to 1.3 C"),
    Mutant(12, "raw-mixed-in", "5 % of the raw gradient is added"),
    Mutant(13, "batch-norm", "records are normalised with batch statistics"),
    Mutant(14, "standardise-with-private-data", "features are standardised with the data"),
    Mutant(15, "nan-unhandled", "non-finite gradients reach the sum"),
    Mutant(16, "noise-without-clip", "noise of deviation sigma"),
    Mutant(17, "no-noise", "no noise"),
    Mutant(18, "noise-divided-twice", "noise divided by the batch size twice"),
    Mutant(19, "root-of-sigma", "noise of deviation sqrt(sigma) C"),
    Mutant(20, "half-sigma", "noise of deviation sigma C / 2"),
    Mutant(21, "laplace", "Laplace noise of the same variance"),
    Mutant(22, "truncated", "noise cut off at two deviations"),
    Mutant(23, "reseed-each-step", "the generator is seeded again at each step"),
    Mutant(24, "reseed-each-tensor", "the generator is seeded again for each tensor"),
    Mutant(25, "last-layer-unnoised", "no noise on the last layer"),
    Mutant(26, "noise-lost-after-first-step", "noise only at the first step"),
    Mutant(27, "stale-gradients", "gradients accumulate over steps (zero_grad forgotten)"),
    Mutant(28, "noise-per-micro-batch", "noise divided among k micro-batches as 1/k each"),
    Mutant(29, "noise-per-worker", "each of W workers adds noise of sigma/W"),
    Mutant(
        30,
        "noise-then-clip",
        "noise first, clipping after",
        "NVIDIA/NVFlare issue 462 asks about this order",
    ),
    Mutant(31, "shuffle", "shuffled batches"),
    Mutant(32, "fixed-size", "batches of fixed size"),
    Mutant(33, "twice-the-rate", "records are drawn with probability 2q"),
    Mutant(34, "with-replacement", "drawing with replacement"),
    Mutant(35, "same-batch-every-step", "the same batch at each step"),
    Mutant(
        36,
        "resample-empty",
        "empty batches are drawn again",
        "proposed in meta-pytorch/opacus issue 161",
    ),
    Mutant(37, "divide-by-actual-batch", "division by the size of the batch drawn"),
    Mutant(
        38,
        "divisor-from-dataset",
        "the divisor depends on the number of records",
        "meta-pytorch/opacus issues 571 and 819",
    ),
    Mutant(
        39,
        "closure-recomputes",
        "a closure recomputes the gradient after the noise",
        "meta-pytorch/opacus pull request 330",
    ),
    Mutant(
        40,
        "clip-argument-ignored",
        "clipping uses a default norm, noise the given one",
        "meta-pytorch/opacus pull request 664",
    ),
    Mutant(
        41,
        "accumulate-aliased",
        "the accumulated sum is an alias of the last micro-batch",
        "meta-pytorch/opacus pull request 707",
    ),
    Mutant(
        42,
        "noise-after-learning-rate",
        "noise is added after the learning rate was applied",
        "google-deepmind/optax pull request 369",
    ),
    Mutant(
        43,
        "noise-every-accumulation",
        "full noise at every accumulated micro-batch",
        "google-deepmind/optax issue 527",
    ),
    Mutant(
        44,
        "key-reused-by-shape",
        "tensors of equal shape share their noise",
        "jax-ml/jax pull request 3646",
    ),
    Mutant(
        45,
        "noise-on-mean",
        "noise for the sum is added to the mean",
        "google-deepmind/jax_privacy issue 383",
    ),
    Mutant(
        46, "noise-clip-squared", "noise of deviation sigma C^2", "greenelab/SPRINT_gan issue 5"
    ),
    Mutant(
        47,
        "one-micro-batch",
        "noise on the average, for num_microbatches = 1",
        "tensorflow/privacy issue 153",
    ),
    Mutant(
        48,
        "ghost-bias-norm",
        "the norm of a bias gradient is squared once too often",
        "meta-pytorch/opacus pull request 751",
    ),
    Mutant(
        49,
        "skip-empty-batch",
        "an empty batch is skipped, noise and all",
        "VectorInstitute/FL4Health pull request 114",
    ),
    Mutant(
        50,
        "accumulation-erased",
        "zero_grad at every virtual step: the last piece counts",
        "meta-pytorch/opacus issues 54 and 93",
    ),
    Mutant(
        51, "weighted-sampler", "records have different chances", "meta-pytorch/opacus issue 813"
    ),
    Mutant(
        52,
        "constant-seed",
        "the generator of the noise has a default seed",
        "DataResponsibly/DataSynthesizer pull request 46",
    ),
    Mutant(
        53,
        "no-noise-for-one-record",
        "no noise when a batch has one record",
        "DPBayes/ADADP pull request 3",
    ),
)

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
)

UNSEEN = (
    Mutant(101, "clips-the-loss", "the loss is clipped instead of the gradient"),
    Mutant(102, "largest-element-norm", "the largest element is taken for the norm"),
    Mutant(103, "mean-norm-of-batch", "all records are scaled by the mean norm of the batch"),
    Mutant(104, "variance-as-deviation", "noise of deviation (sigma C)^2"),
    Mutant(105, "noise-decays", "noise falls like 1/t over the steps"),
    Mutant(106, "noise-cancels-next-step", "every second step subtracts the noise of the first"),
    Mutant(107, "noise-shared-by-rows", "all rows of a weight matrix get the same noise"),
    Mutant(108, "twelve-uniforms", "noise is the sum of twelve uniform numbers"),
    Mutant(109, "poisson-truncated", "batches above the expected size are cut off"),
    Mutant(110, "hidden-validation-split", "the last tenth of the records is never used"),
    Mutant(111, "clip-grows", "the clipping norm grows with the steps, the noise does not"),
    Mutant(112, "minority-counted-twice", "records of class 0 are added twice"),
    Mutant(113, "pad-by-repeating", "batches are filled up by repeating a record"),
    Mutant(114, "class-balanced-after-clip", "the sum is weighted by the classes in the batch"),
    Mutant(115, "bias-set-to-class-prior", "the last bias starts at the class frequencies"),
)

FRESH = (
    Mutant(
        201,
        "noise-over-dataset-size",
        "noise of deviation 2 sigma C B / N, the sensitivity of a mean over the dataset",
        "Yangfan-Jiang/Federated-Learning-with-Differential-Privacy issue 3",
    ),
    Mutant(
        202,
        "some-coordinates-unnoised",
        "one coordinate in fifty is released without noise",
        "NVIDIA/NVFlare issue 343",
    ),
    Mutant(
        203,
        "rand-for-randn",
        "uniform instead of Gaussian random numbers",
        "the call named in fedbiomed/fedbiomed issue 1443",
    ),
    Mutant(
        204,
        "incomplete-batch-dropped",
        "the last N mod B records are never drawn (drop_last)",
        "the sampler replaced in TL-System/plato pull request 194 worked on such a subset",
    ),
    Mutant(
        205,
        "private-gradient-overwritten",
        "the last tensor gets the plain gradient of the batch",
        "suspected in lxuechen/private-transformers issue 9",
    ),
)

LATEST = (
    Mutant(
        301,
        "weights-clamped",
        "weights are clamped to C after each step, gradients are not clipped",
        "KanishJebaMathewM/Truxify issue 3844; epfml/disco pull request 317",
    ),
    Mutant(
        302,
        "minority-oversampled",
        "records of rare classes are repeated until all classes are equally large",
        "asked for in meta-pytorch/opacus issue 198",
    ),
    Mutant(
        303,
        "half-precision",
        "sum and noise are added in half precision",
        "described in awslabs/fast-differential-privacy issue 18",
    ),
    Mutant(
        304,
        "class-weights-from-labels",
        "losses are weighted by the inverse frequency of their class in the private data",
        "weights computed like those of meta-pytorch/opacus issue 600",
    ),
    Mutant(
        305,
        "seed-shared-with-sampler",
        "batches and noise come from generators with the same seed",
        "the danger named in IBM/differential-privacy-library issue 31",
    ),
)
