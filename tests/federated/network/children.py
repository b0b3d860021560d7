"""What the processes of a test do: a server, a party, an analyst, each killed where a plan says.

They are forked from a process that has everything imported, so that starting one takes a few
hundredths of a second. A plan wraps functions of the library *in the child*: at the n-th call
the process kills itself (SIGKILL: nothing is flushed, nothing is closed).
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import noisewise.federated.network.collection as collection_module
import noisewise.federated.network.masks.party as masked_party_module
import noisewise.federated.network.masks.service as masked_service_module
import noisewise.federated.network.outbox as outbox_module
import noisewise.federated.network.reservations as reservations_module
import noisewise.federated.network.store as store_module
from noisewise.errors import NoisewiseError, UnsoundError
from noisewise.federated import Domain, Records
from noisewise.federated.fss import generate_point
from noisewise.federated.masking import MaskingClient
from noisewise.federated.network import (
    ClientSettings,
    RemoteAggregator,
    ServerSettings,
    contribute,
    run_server,
)
from noisewise.federated.network.client import Client
from noisewise.federated.network.marks import Marks
from noisewise.federated.network.masks.party import Journal
from noisewise.federated.network.measurement import curve_domain
from noisewise.federated.network.releases import Releases
from noisewise.federated.questions import EcdfQuestion, RocQuestion
from noisewise.privacy.ledger import Ledger
from noisewise.privacy.randomness import resolve

#: Where a process can be told to die: the function, and whether before or after the call.
PLACES = {
    "server": {
        "before a commit": (store_module, "_commit_together", "before"),
        "after a commit": (store_module, "_commit_together", "after"),
        "before the charge": (Ledger, "charge_once", "before"),
        "after the charge": (Ledger, "charge_once", "after"),
        "after the noise": (Releases, "_make", "after"),
        "after keeping": (reservations_module, "keep", "after"),
        "before finishing": (reservations_module, "finish", "before"),
        "before the witness": (Marks, "write", "before"),
    },
    "party": {
        "before a file": (outbox_module, "write_anew", "before"),
        "after a file": (outbox_module, "write_anew", "after"),
        "before a request": (Client, "_attempt", "before"),
        "after an answer": (Client, "_attempt", "after"),
        "before the receipt": (outbox_module.Outbox, "deliver", "before"),
        "after the receipt": (outbox_module.Outbox, "empty", "before"),
    },
    "masked party": {
        "before a file": (masked_party_module, "replace_file", "before"),
        "after a file": (masked_party_module, "replace_file", "after"),
        "before a request": (Client, "_attempt", "before"),
        "after an answer": (Client, "_attempt", "after"),
        "before sharing": (MaskingClient, "share", "before"),
        "after sharing": (MaskingClient, "share", "after"),
        "before masking": (MaskingClient, "mask", "before"),
        "after masking": (MaskingClient, "mask", "after"),
        "before confirming": (MaskingClient, "confirm", "before"),
        "after confirming": (MaskingClient, "confirm", "after"),
        "before revealing": (MaskingClient, "reveal", "before"),
        "after revealing": (MaskingClient, "reveal", "after"),
        "before the receipt": (outbox_module.Outbox, "acknowledge", "before"),
        "after the receipt": (Journal, "forget", "before"),
    },
    "masked server": {
        "before a commit": (store_module, "_commit_together", "before"),
        "after a commit": (store_module, "_commit_together", "after"),
        "before the charge": (Ledger, "charge_once", "before"),
        "after the charge": (Ledger, "charge_once", "after"),
        "before the witness": (Marks, "write", "before"),
        "before the total": (masked_service_module, "_unmask", "before"),
        "after the total": (masked_service_module, "_unmask", "after"),
    },
    "analyst": {
        "before a request": (Client, "_attempt", "before"),
        "after an answer": (Client, "_attempt", "after"),
        "before adding up": (collection_module, "_combine", "before"),
    },
}


def warm_up() -> None:
    """Compile and plan what every child needs, once, in the process that they are forked from."""
    first, second = generate_point([1, 2], 3, bytes(8))
    assert (first.sum_over_domain() + second.sum_over_domain()).sum() == 2
    RocQuestion(Domain(0, 1, 8, labelled=True, closed="below"), 1.0, relation="replace-one").planned  # noqa: B018
    EcdfQuestion(Domain(0, 1, 8), 1.0, relation="replace-one").planned  # noqa: B018


def die_at(kind: str, place: str | None, count: int) -> None:
    """Make this process kill itself at the `count`-th call (from 1) of a place."""
    if place is None:
        return
    owner, name, when = PLACES[kind][place]
    original = getattr(owner, name)
    left = [count]

    def now() -> bool:
        left[0] -= 1
        return left[0] == 0

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if name == "_attempt":

        @functools.wraps(original)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            last = now()
            if last and when == "before":
                kill()
            result = await original(*args, **kwargs)
            if last:
                kill()
            return result
    else:

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            last = now()
            if last and when == "before":
                kill()
            result = original(*args, **kwargs)
            if last:
                kill()
            return result

    setattr(owner, name, wrapped)


def serve(config: str, place: str | None = None, count: int = 1) -> None:
    settings = ServerSettings.read(Path(config))
    die_at("masked server" if settings.study.route == "masks" else "server", place, count)
    run_server(settings)


def give(
    config: str, data: str, report: str, place: str | None = None, count: int = 1, **options: Any
) -> None:
    """Contribute the records of an .npz file; write "done" or the error's words."""
    settings = ClientSettings.read(Path(config))
    die_at("masked party" if settings.study.route == "masks" else "party", place, count)
    stored = np.load(data)
    records = Records(stored["values"], stored["positive"])
    _report(report, lambda: contribute(settings, records, **options))


def take(
    config: str,
    report: str,
    place: str | None = None,
    count: int = 1,
    epsilon: float = 1.0,
    **options: Any,
) -> None:
    """Collect a curve; write its noisy sums or the error's words."""
    die_at("analyst", place, count)

    def job() -> dict[str, Any]:
        taken: list[Any] = []
        settings = ClientSettings.read(Path(config))
        aggregator = RemoteAggregator(settings, told=taken.append, **options)
        study = settings.study
        if "roc" in study.curves:
            question: Any = RocQuestion(curve_domain(study, "roc"), epsilon, relation="replace-one")
        else:
            question = EcdfQuestion(curve_domain(study, "ecdf"), epsilon, relation="replace-one")
        sums = aggregator.ask(question, (), resolve(None))
        curve = question.answer(sums)
        try:
            promise: Any = curve.statement().to_dict()
        except UnsoundError as error:
            promise = str(error)
        return {
            "sums": sums.noisy.tolist(),
            "records": sums.records,
            "contributions": taken[0].contributions,
            "release": taken[0].name,
            "drop-outs": [said for said in sums.threat.sentences if said.startswith("drop-outs")],
            "statement": promise,
        }

    _report(report, job)


def command(*words: str) -> None:
    """Run the command ``noisewise``."""
    from noisewise.cli import main

    sys.argv = ["noisewise", *words]
    main()


def _report(path: str, job: Any) -> None:
    try:
        said = {"result": job()}
    except NoisewiseError as error:
        said = {"error": str(error), "type": type(error).__name__}
    target = Path(path)
    partial = target.with_suffix(".new")
    partial.write_text(json.dumps(said), "utf-8")
    os.replace(partial, target)
