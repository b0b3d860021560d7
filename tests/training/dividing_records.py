"""Ways to give records to several workers, right and wrong, and what is expected of each."""

import torch
import torch.distributed as dist
from making_runs import plan, start, table
from torch import nn
from torch.utils.data import Dataset

from noisewise.training import Distributed, StepError

RECORDS = 200


def parts(values, rank, size):
    return values[rank::size]


def shuffled(seed, records=RECORDS):
    x, y = table(records)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order], y[order]


def part(data, rank, size):
    return tuple(parts(values, rank, size) for values in data)


class Rows(Dataset):
    """Any records, read one by one."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, index):
        return tuple(values[index] for values in self.data)


class Augmented(Rows):
    """Records that look different each time."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (-x if torch.rand(()) < 0.5 else x), y


class Odd:
    """Something that has no bytes."""


class OddRows(Rows):
    def __getitem__(self, index):
        return (*super().__getitem__(index), Odd())


def odd_collate(items):
    return [item[0] for item in items], Odd()


def with_one(data, rank, size, row, owner=1):
    """Parts of which one worker also has a row of another."""
    x, y = part(data, rank, size)
    if rank == owner:
        x, y = torch.cat([x, row[0]]), torch.cat([y, row[1]])
    return x, y


def first_row():
    x, y = table(RECORDS)
    return x[:1], y[:1]


def changed_on(worker, rank):
    x, y = table(RECORDS)
    if rank == worker:
        x = x.clone()
        x[17, 2] += 1e-6
    return x, y


def doubled():
    """A dataset in which every row is there twice, neighbours belonging to different people."""
    x, y = table(RECORDS // 2)
    return x.repeat_interleave(2, 0), y.repeat_interleave(2, 0)


def names(rank, size):
    return [f"Alice-{index}" for index in range(RECORDS)][rank::size]


def whole(**options):
    return Distributed(**options)


def shard(**options):
    return Distributed(data="shard", **options)


#: Name: (what the refusal says, or nothing; data and team of a worker).
CASES = {
    "equal": (None, lambda r, n: (table(RECORDS), whole())),
    "equal, in a dict": (None, lambda r, n: (dict(zip("xy", table(RECORDS), strict=True)), None)),
    "equal, read one by one": (None, lambda r, n: (Rows(table(RECORDS)), whole())),
    "equal, with duplicates": (None, lambda r, n: (doubled(), whole())),
    "no data": (None, lambda r, n: (None, whole())),
    "each shuffled its own copy": ("in different orders", lambda r, n: (shuffled(r), whole())),
    "each shuffled, read one by one": (
        "in different orders",
        lambda r, n: (Rows(shuffled(r)), whole()),
    ),
    "other records": ("different records", lambda r, n: (table(RECORDS, seed=r), whole())),
    "the last worker differs in a bit": (
        "different records",
        lambda r, n: (changed_on(n - 1, r), whole()),
    ),
    "other types": (
        "different kinds",
        lambda r, n: (tuple(v.to(torch.float64 if r else v.dtype) for v in table(RECORDS)), None),
    ),
    "data on some only": (
        "different kinds",
        lambda r, n: (table(RECORDS) if r == 0 else None, whole()),
    ),
    "other sizes": ("different records", lambda r, n: (table(RECORDS - (r == 1)), whole())),
    "augmented": ("read differently", lambda r, n: (Augmented(table(RECORDS)), whole())),
    "augmented, identified": (
        None,
        lambda r, n: (Augmented(table(RECORDS)), whole(identifiers=range(RECORDS))),
    ),
    "identifiers in other orders": (
        "in different orders",
        lambda r, n: (
            table(RECORDS),
            whole(identifiers=torch.randperm(RECORDS, generator=torch.Generator().manual_seed(r))),
        ),
    ),
    "identifiers on some only": (
        "different kinds",
        lambda r, n: (table(RECORDS), whole(identifiers=range(RECORDS) if r else None)),
    ),
    "too few identifiers": (
        "200 are needed",
        lambda r, n: (table(RECORDS), whole(identifiers=range(RECORDS - 1))),
    ),
    "parts": (None, lambda r, n: (part(table(RECORDS), r, n), shard())),
    "parts, in a dict": (
        None,
        lambda r, n: (dict(zip("xy", part(table(RECORDS), r, n), strict=True)), shard()),
    ),
    "parts, read one by one": (None, lambda r, n: (Rows(part(table(RECORDS), r, n)), shard())),
    "parts of one shuffled copy": (None, lambda r, n: (part(shuffled(5), r, n), shard())),
    "parts of copies that each shuffled": (
        "given to two workers",
        lambda r, n: (part(shuffled(r), r, n), shard()),
    ),
    "parts of such copies, read one by one": (
        "given to two workers",
        lambda r, n: (Rows(part(shuffled(r), r, n)), shard()),
    ),
    "the whole as a part": ("given to two workers", lambda r, n: (table(RECORDS), shard())),
    "one record twice": (
        "given to two workers",
        lambda r, n: (with_one(table(RECORDS), r, n, first_row()), shard()),
    ),
    "one record twice on one worker": (
        None,
        lambda r, n: (with_one(table(RECORDS), r, n, first_row(), owner=0), shard()),
    ),
    "equal rows of two people": (
        "numbers in the undivided",
        lambda r, n: (part(doubled(), r, n), shard()),
    ),
    "equal rows of two people, identified": (
        None,
        lambda r, n: (part(doubled(), r, n), shard(identifiers=names(r, n))),
    ),
    "every worker counts from nought": (
        "same identifier was given",
        lambda r, n: (part(doubled(), r, n), shard(identifiers=range(len(names(r, n))))),
    ),
    "one name for all": (
        "given the same identifier",
        lambda r, n: (
            part(table(RECORDS), r, n),
            shard(identifiers=[f"Alice at {r}"] * len(names(r, n))),
        ),
    ),
    "identifiers that are none": (
        "whole numbers, words",
        lambda r, n: (part(table(RECORDS), r, n), shard(identifiers=torch.rand(RECORDS // n))),
    ),
    "augmented parts": (
        "read differently",
        lambda r, n: (Augmented(part(table(RECORDS), r, n)), shard()),
    ),
    "records without bytes": (
        "cannot be compared",
        lambda r, n: (OddRows(part(table(RECORDS), r, n)), shard()),
    ),
    "a part is missing": (
        "was given no record",
        lambda r, n: (tuple(v[:0] for v in table(4)) if r == n - 1 else shuffled(r, 40), shard()),
    ),
    "fewer than declared": (
        "far fewer",
        lambda r, n: (part(table(RECORDS), r, n + 1), shard()),
    ),
}


def division(folder):
    """Try all of them; what each worker is told."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    torch.manual_seed(rank)  # with one seed all would draw the same augmentation
    for name, (_, make) in CASES.items():
        data, team = make(rank, size)
        path = folder / f"{name} {size}.ledger"
        options = {"collate": odd_collate} if "without bytes" in name else {}
        result = {"refused": False, "message": "", "assumptions": ()}
        try:
            run = start(
                nn.Linear(5, 2),
                data=data if data is not None else False,
                the_plan=plan(sample_rate=0.1, batch_size=20, records=RECORDS, accountant="rdp"),
                ledger=path,
                team=team,
                **options,
            )
            if data is None:
                run.step(*(values[:20] for values in table()))
            result["assumptions"] = run.statement().assumptions
            run.close()
        except (StepError, TypeError, ValueError) as error:
            result.update(refused=True, message=str(error))
        lines = path.read_text().splitlines() if path.exists() else []
        result["charged"] = len(lines) > 1 and data is not None
        results[name] = result
    return results
