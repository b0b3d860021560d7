"""What a server process owns while it runs: database, ledger and marks, opened together."""

from __future__ import annotations

from pathlib import Path

from noisewise.errors import LedgerError
from noisewise.federated.network.errors import ConfigurationError
from noisewise.federated.network.marks import Marks
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.store import Connection, Store
from noisewise.federated.network.study import Study
from noisewise.files import private_file
from noisewise.privacy import Ledger

__all__ = ["ServerState"]


class ServerState:
    """The durable state of one server in one round.

    Parameters
    ----------
    settings : ServerSettings
    """

    ledger: Ledger | None

    def __init__(self, settings: ServerSettings) -> None:
        study = settings.study
        self.store = Store(settings.state, {"study": study.fingerprint, "server": settings.name})
        self.ledger = None
        try:
            self.ledger = _open_ledger(settings.state, study, begun=self.store.read(_has_marks))
            self.marks = Marks(self.store, self.ledger, f"{study.fingerprint}/{settings.name}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Finish what is being written and let another process have the folder."""
        self.store.close()
        if self.ledger is not None:
            self.ledger.close()


def _has_marks(connection: Connection) -> bool:
    return connection.execute("SELECT 1 FROM marks LIMIT 1").fetchone() is not None


def _open_ledger(folder: Path, study: Study, *, begun: bool) -> Ledger | None:
    """Return the round's ledger, a new one before the round; none at all for a noiseless test."""
    if study.noiseless_test:
        return None
    path = folder / "budget.ledger"
    try:
        if path.exists() and path.stat().st_size:
            ledger = Ledger.open(path)
        elif begun:
            raise ConfigurationError(
                f"{str(path)!r} was deleted: what this server has spent is unknown. Restore it to "
                "its latest state, or start a new round."
            )
        else:
            ledger = Ledger.create(
                path,
                epsilon=study.epsilon,
                delta=study.delta,
                relation=study.relation,
                unit=study.protects.name,
            )
        for each in folder.glob("budget.ledger*"):
            private_file(each)
    except LedgerError as error:
        raise ConfigurationError(f"the server's ledger cannot be used: {error}") from error
    expected = (study.epsilon, study.delta)
    accounted = (ledger.budget, ledger.relation, ledger.unit)
    if accounted != (expected, study.relation, study.protects.name):
        ledger.close()
        raise ConfigurationError(
            f"{str(path)!r} has the budget {ledger.budget} under {ledger.relation} for "
            f"{ledger.unit}, the study {expected} under {study.relation} for "
            f"{study.protects.name}: it is the ledger of another round"
        )
    return ledger
