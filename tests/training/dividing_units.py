"""Units of several rows on several workers: trainings, and ways to give them out wrongly."""

from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

import torch
import torch.distributed as dist
from making_runs import plan, small_model, start, table, weights

from noisewise.training import Distributed, StepError

ROWS, STEPS = 240, 8


def owners(rows=ROWS):
    """Whose rows they are: units of one row, of several, and one with a third of the table."""
    numbers = torch.randint(0, 60, (rows,), generator=torch.Generator().manual_seed(1))
    numbers[::3] = 7
    return [f"Alice {number}" for number in numbers.tolist()]


def mine(names, rank, size):
    """Rows of the units of one worker."""
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [index for index, name in enumerate(names) if order[name] % size == rank]


def trained(the_plan, names, data, **options):
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    run = start(model, optimizer, data, the_plan, units=names, **options)
    drawn = []
    for x, y in run.loader:
        drawn.append(x[:, 0].tolist())
        run.step(x, y)
    return {"weights": weights(model), "statement": run.statement().to_json(), "drawn": drawn}


def full(**changes):
    return plan(sampling="full", batch_size=None, steps=STEPS, unit="one patient", **changes)


def poisson(**changes):
    changes = {"sample_rate": 0.3, "batch_size": None, "steps": 40, **changes}
    return plan(unit="one patient", **changes)


def halves(values, rank, size):
    return tuple(part[rank::size] for part in values)


#: Name: (what the refusal says; data, units and team of a worker).
WRONG = {
    "rows of a unit at two workers": (
        "rows of the same unit",
        lambda r, n: (halves(table(ROWS), r, n), owners()[r::n], "shard"),
    ),
    "one unit in other types": (
        "rows of the same unit",
        lambda r, n: (
            halves(table(2 * n), r, n),
            [(1.0, Fraction(1), True, Decimal("1.00"))[r], f"Alice {r}"],
            "shard",
        ),
    ),
    "one unit in a tuple": (
        "rows of the same unit",
        lambda r, n: (
            halves(table(2 * n), r, n),
            [("Alice", 2 if r else 2.0, date(2020, 1, 1)), f"Alice {r}"],
            "shard",
        ),
    ),
    "numbers here, text there": (
        "different kinds",
        lambda r, n: (
            halves(table(2 * n), r, n),
            [17, 100 + r] if r else ["17", "Alice"],
            "shard",
        ),
    ),
    "a number among the text of one worker": (
        "different kinds",
        lambda r, n: (
            halves(table(2 * n), r, n),
            [f"Alice {r}", 17 if r == n - 1 else f"17{'' if r == 0 else r}"],
            "shard",
        ),
    ),
    "dates here, moments there, in a tuple": (
        "different kinds",
        lambda r, n: (
            halves(table(2 * n), r, n),
            [("Alice", datetime(2020, 1, 1) if r else date(2020, 1, 1)), ("Alice", 100 + r)],
            "shard",
        ),
    ),
    "a missing one on one worker": (
        "units",
        lambda r, n: (
            halves(table(2 * n), r, n),
            [None if r == 0 else "Alice 1", f"Alice {r} again"],
            "shard",
        ),
    ),
    "units on some only": (
        "only some workers",
        lambda r, n: (table(ROWS), owners() if r else None, "whole"),
    ),
    "no units on one worker": (
        "was given no unit",
        lambda r, n: (
            tuple(part[: 0 if r == n - 1 else 4] for part in table(4, seed=r)),
            [] if r == n - 1 else [f"Alice {r} {row}" for row in range(4)],
            "shard",
        ),
    ),
    "copies whose units differ": (
        "units that differ",
        lambda r, n: (table(ROWS), owners()[r:] + owners()[:r], "whole"),
    ),
    "copies whose rows differ": (
        "different records",
        lambda r, n: (table(ROWS, seed=r), owners(), "whole"),
    ),
    "far fewer than declared": (
        "far fewer",
        lambda r, n: (
            halves(table(ROWS), r, n),
            [f"Alice {r} {row // 4}" for row in range(len(range(r, ROWS, n)))],
            "shard",
        ),
    ),
}


def units(folder):
    """Trainings on whole copies and on parts, and every refusal."""
    rank, size = dist.get_rank(), dist.get_world_size()
    names, data = owners(), table(ROWS)
    own = mine(names, rank, size)
    part, part_names = tuple(values[own] for values in data), [names[row] for row in own]
    shard = {"data": part, "names": part_names, "team": Distributed(data="shard")}
    found = {
        "whole": trained(full(), names, data),
        "parts": trained(full(), **shard),
        "drawn whole": trained(poisson(), names, data),
        "drawn parts": trained(poisson(), **shard),
        "drawn rows": trained(poisson(unit_rule="rows", unit_rows=2), names, data),
        "own": part_names,
        "refused": {},
    }
    for name, (_, make) in WRONG.items():
        given, whose, kind = make(rank, size)
        path = folder / f"{name} {size}.units.ledger"
        said = None
        the_plan = poisson(records=300 if "declared" in name else None, accountant="rdp")
        try:
            start(
                torch.nn.Linear(5, 2),
                data=given,
                the_plan=the_plan,
                ledger=path,
                team=Distributed(data=kind),
                units=whose,
            ).close()
        except (StepError, TypeError, ValueError) as error:
            said = str(error)
        found["refused"][name] = said, path.exists()
    return found
