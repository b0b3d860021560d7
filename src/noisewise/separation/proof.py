"""What a watched run showed: proven apart, or not, with operation, line and repair."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from noisewise.separation.refusal import RefusedError, is_line

__all__ = ["ESCAPED", "FOREIGN", "HANDED", "KEPT", "RAISING", "Finding", "Proof"]

#: What stands between a model and its proof.
ESCAPED = "reads a record's value into Python, and what follows depends on it"
FOREIGN = (
    "was not made by an operation that can be followed (numpy, another thread), or was made or "
    "written after the first batch; it may hold values of records. Make public tensors before "
    "make_private, and keep none from batch to batch"
)
HANDED = (
    "can hand records to a thread that runs already, and what that does nobody follows. Keep "
    "queues, threads and loops of events out of the model, the loss and the augmentation"
)
KEPT = "keeps values of records: it is released with the model, without noise"
RAISING = (
    "gets a mixture of records and may raise because of it, so whether a record fails, and counts "
    "nothing, would depend on others"
)


#: What people write, by the operations that torch makes of it.
_SAID = {
    "_local_scalar_dense": ".item(), float(), bool(), int() or a condition",
    "nonzero": "nonzero(), or a mask in place of an index,",
    "equal": "torch.equal()",
    "_unique2": "unique()",
}


class Finding(NamedTuple):
    """One thing that stands between a model and its proof."""

    operation: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.operation} at {self.place}: {self.what}"


@dataclass(frozen=True)
class Proof:
    """Whether a model and a loss keep the records of a batch apart, and why not.

    Attributes
    ----------
    proven : bool
        True if nothing below was found but `outside` and `notes`.
    mixed : tuple of Finding
        Operations whose mixture of records reaches a loss or a parameter's gradient.
    unknown : tuple of Finding
        Operations on records that no rule speaks for.
    escapes : tuple of Finding
        Places where Python learnt something of a record: what followed depends on it.
    state : tuple of Finding
        State of the model that was written with records' values, or keeps them.
    sizes : tuple of Finding
        Numbers that change with the number of records (only looked for where that is not fixed).
    outside : tuple of Finding
        Tensors that are neither inputs, parameters nor buffers: taken as public.
    records : int
        Number of records of the batch that was watched; what is proven holds for this size.
    notes : tuple of str
        What else the reader should know.
    advice : str
        What to do about it, where that is known better than from the kind of what was found.
    """

    mixed: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    escapes: tuple[Finding, ...] = ()
    state: tuple[Finding, ...] = ()
    sizes: tuple[Finding, ...] = ()
    outside: tuple[Finding, ...] = ()
    records: int = 0
    notes: tuple[str, ...] = field(default=())
    advice: str = ""

    @property
    def proven(self) -> bool:
        """Whether the records were shown to stay apart."""
        return not (self.mixed or self.unknown or self.escapes or self.state or self.sizes)

    def __bool__(self) -> bool:
        return self.proven

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the state that keeps values of records."""
        return tuple(finding.operation for finding in self.state)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for everything that was found, the most telling first."""
        return (
            *(f"{f.operation} at {f.place} {f.what}" for f in self.mixed),
            *(f"{_SAID.get(f.operation, f.operation)} at {f.place} {f.what}" for f in self.escapes),
            *(f"{f.operation}, written at {f.place}, {f.what}" for f in self.state),
            *(f"{f.operation} at {f.place} {f.what}" for f in self.sizes),
            *(f"{f.operation} at {f.place} {f.what}" for f in self.unknown),
        )

    def repair(self) -> str:
        """What to do about the first reason."""
        if self.advice:
            return self.advice
        if self.mixed:
            return (
                "Compute each record's output, loss and gradient from that record alone: no "
                "statistics, sorting, attention or selection over the batch axis. "
                "noisewise.nn.fix(model) replaces batch normalisation."
            )
        if self.escapes:
            return (
                "Let no number of a record become a Python number or a size: use torch.where "
                "instead of if, masks instead of selections, and no .item(), .tolist() or .numpy() "
                "in the model or the loss. Leave out checks (assert torch.isfinite(x).all()): a "
                "record whose gradient is not finite counts nothing."
            )
        if self.state:
            return (
                "Freeze that state (evaluation mode), reset it in every forward pass, do not keep "
                "records in attributes or lists, or release it with noise of its own."
            )
        if self.sizes:
            return (
                "Do not divide by the number of records of the batch; noisewise divides by a "
                "public constant. Or fix the size with chunk=."
            )
        return (
            "Write it with other operations, or report the missing rule; "
            "noisewise.Plan(assume_apart=True) trains it on your word, which the statement says."
        )

    def refusal(self, program: str = "") -> RefusedError:
        """Say why it is not trained; `program` is where it is defined."""
        findings = (*self.mixed, *self.escapes, *self.state, *self.sizes, *self.unknown)
        # One mixture often reaches the loss and many gradients: told once here, and all in print.
        told: dict[tuple[str, ...], str] = {}
        for finding, reason in zip(findings, self.reasons, strict=True):
            told.setdefault((finding.operation, finding.place), reason)
        reasons = list(told.values())
        shown = reasons[:3]
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        lines = [finding.place for finding in findings if is_line(finding.place)]
        return RefusedError(
            "it is not proven that the model and the loss keep records apart, so no sensitivity "
            f"can be stated: {'; '.join(shown)}{more}",
            self.repair(),
            lines[0] if lines else program,
        )

    def __str__(self) -> str:
        if self.proven:
            text = (
                f"proven: with {self.records} records at a time, every record's contribution to "
                "every gradient depends on that record and on public values alone"
            )
        else:
            text = "not proven:\n" + "\n".join(f"  - {reason}" for reason in self.reasons)
            text += f"\n  {self.repair()}"
        for finding in self.outside:
            text += f"\n  taken as public: {finding.operation}, at {finding.place}: {finding.what}"
        for note in self.notes:
            text += f"\n  note: {note}"
        return text
