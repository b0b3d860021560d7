"""What an ordinary trainer may do and a private one must not, refused before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.training import Plan

__all__ = [
    "check_arguments",
    "check_choices",
    "check_dataset",
    "check_options",
    "check_overridden",
    "virtual_size",
]

_DEFAULT_MAX_GRAD_NORM = 1.0
_OF_PLATEAUS = ("reduce_lr_on_plateau", "greedy")


def check_arguments(args: Any, plan: Plan) -> None:
    """Refuse training arguments that would make the statement false, or would do nothing."""
    for refused, reason in _refused(args):
        if refused:
            raise UnsoundError(reason)
    for refused, reason in _unsupported(args):
        if refused:
            raise UnsupportedModelError(reason)
    if args.max_steps > 0 and plan.steps is not None and args.max_steps != plan.steps:
        raise ValueError(
            f"the arguments train {args.max_steps} steps, the plan {plan.steps}; the plan decides, "
            "since its noise is made for that many. Leave max_steps out."
        )
    if args.max_steps > 0 and plan.steps is None:
        raise ValueError(
            "the plan says how long is trained, since its noise is made for that: leave max_steps "
            f"out of the arguments, or give Plan(steps={args.max_steps})."
        )


def _refused(args: Any) -> Iterable[tuple[bool, str]]:
    yield (
        _word(args, "train_sampling_strategy", "random") != "random"
        or bool(getattr(args, "group_by_length", False)),
        "train_sampling_strategy: batches that are drawn by length or in order are not the Poisson "
        "batches that are accounted for. Leave it at 'random'; noisewise draws every record "
        "independently.",
    )
    yield (
        args.auto_find_batch_size,
        "auto_find_batch_size begins again when memory runs out, and memory depends on the batch "
        "that was drawn. Give per_device_train_batch_size, the number of records that are "
        "processed at once; it changes nothing in the result.",
    )
    yield (
        args.max_grad_norm not in (0.0, _DEFAULT_MAX_GRAD_NORM),
        f"max_grad_norm={args.max_grad_norm:g} clips the gradient of a whole batch, which bounds "
        "no record. The bound on each record is the plan's: Plan(gradients=Clipped(...)). Leave "
        "max_grad_norm out.",
    )
    yield (
        _word(args, "include_num_input_tokens_seen", "no") not in ("no", "False"),
        "include_num_input_tokens_seen writes down how many tokens the private batches had. Leave "
        "it out.",
    )
    yield (
        not args.skip_memory_metrics,
        "skip_memory_metrics=False writes down how much memory training took, which depends on the "
        "batches that were drawn. Leave it out.",
    )
    yield (
        bool(args.debug),
        f"debug={args.debug} prints numbers that were computed from private records. Leave it out.",
    )


def _unsupported(args: Any) -> Iterable[tuple[bool, str]]:
    yield (
        args.fp16,
        "fp16=True scales the loss and skips steps whose gradients overflow, and which do depends "
        "on the records. Use bf16=True or full precision.",
    )
    yield (
        args.n_gpu > 1,
        "several GPUs in one process (DataParallel) copy the model for every batch, and the copies "
        "cannot be followed. Show the process one of them with CUDA_VISIBLE_DEVICES.",
    )
    yield (
        bool(args.deepspeed) or bool(args.fsdp),
        "DeepSpeed and FSDP take gradients out of the library's hands. Use plain processes "
        "(torchrun), or make_private in a loop of your own (docs/distributed.md).",
    )
    yield (
        bool(args.torch_compile),
        "torch_compile=True is not supported: what runs must be seen operation by operation to "
        "prove that records are kept apart. Leave it out.",
    )
    yield (
        bool(args.use_liger_kernel),
        "use_liger_kernel=True computes the loss of a whole batch in one kernel, which cannot be "
        "followed. Leave it out.",
    )
    yield (
        _word(args, "optim", "") in ("lomo", "adalomo"),
        f"optim={_word(args, 'optim', '')!r} updates weights during the backward pass, before "
        "there is noise. Use an ordinary optimizer, for example optim='adamw_torch'.",
    )


def virtual_size(args: Any, plan: Plan) -> int:
    """Return how many records are processed at once.

    Gradient accumulation is a way to have a larger batch than memory; here a batch is one Poisson
    draw of the plan, and it is processed in pieces of `per_device_train_batch_size`.
    """
    size, times = int(args.per_device_train_batch_size), int(args.gradient_accumulation_steps)
    if times > 1 and plan.batch_size is not None and abs(size * times - plan.batch_size) >= 1:
        raise ValueError(
            f"{size} records (per_device_train_batch_size) accumulated {times} times "
            f"(gradient_accumulation_steps) are {size * times}, but the plan expects batches of "
            f"{plan.batch_size:g}. The plan decides how many records a step has; leave "
            "gradient_accumulation_steps out, and batches are processed in pieces anyway."
        )
    return size


def check_choices(args: Any, callbacks: Iterable[Any], public: bool, shared: bool) -> None:
    """Refuse choices by results on records that nobody declared public."""
    stops = any(
        base.__name__ == "EarlyStoppingCallback"
        for callback in callbacks
        for base in type(callback).__mro__
    )
    chooses = [
        name
        for chosen, name in (
            (args.load_best_model_at_end, "load_best_model_at_end"),
            (_word(args, "save_strategy", "") == "best", "save_strategy='best'"),
            (_word(args, "lr_scheduler_type", "") in _OF_PLATEAUS, "lr_scheduler_type"),
            (stops, "EarlyStoppingCallback"),
        )
        if chosen
    ]
    if not chooses:
        return
    if shared:
        raise UnsoundError(
            f"{chooses[0]} chooses by results on eval_dataset, which holds records of "
            "train_dataset: the choice would tell of them, and no noise covers it. Evaluate on "
            "other records, which are public, or choose by nothing."
        )
    if not public:
        raise UnsoundError(
            f"{chooses[0]} chooses by results on eval_dataset, and no statement covers a choice by "
            "private records. If those records are public, say so: "
            "PrivateTrainer(public_evaluation=True)."
        )


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of an ordinary trainer that would not be private."""
    if options.get("compute_loss_func") is not None:
        raise UnsoundError(
            "compute_loss_func gets the loss of a whole batch, divided by its number of tokens, so "
            "each record's share depends on the others. Give PrivateTrainer(loss=...), a function "
            "of the output and the labels that returns one loss per record."
        )
    if options.get("model_init") is not None:
        raise ValueError(
            "model_init makes a new model for every training, each of which costs its epsilon. "
            "Give the model itself."
        )


def check_overridden(kind: type, base: type) -> None:
    """Refuse subclasses that replace what makes training private."""
    remedies = {
        "compute_loss": "Give PrivateTrainer(loss=...), a function of the output and the labels "
        "that returns one loss per record.",
        "training_step": "What happens in a step is the library's; use callbacks for the rest.",
        "get_train_dataloader": "Batches are drawn as they are accounted for; give train_dataset.",
        "_get_train_sampler": "Batches are drawn as they are accounted for; give train_dataset.",
    }
    for name, remedy in remedies.items():
        if getattr(kind, name) is not getattr(base, name):
            raise UnsoundError(
                f"{kind.__name__} has a {name} of its own, which would not be private. {remedy}"
            )


def check_dataset(dataset: Any) -> None:
    """Refuse data from which records cannot be drawn independently."""
    if dataset is None:
        raise ValueError("PrivateTrainer needs train_dataset")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UnsoundError(
            f"train_dataset is a {type(dataset).__name__}, which gives its records in an order of "
            "its own, so they cannot be drawn independently. Give a dataset with __len__ and "
            "__getitem__."
        )


def _word(args: Any, name: str, default: str) -> str:
    """The value of an option that may be a word or one of an enumeration."""
    value = getattr(args, name, default)
    return str(getattr(value, "value", value))
