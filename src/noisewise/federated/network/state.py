"""What a server process owns while it runs: its database and its ledger, opened together."""

from __future__ import annotations

from noisewise.federated.network.releases import open_ledger
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.store import Store
from noisewise.privacy.ledger import Ledger

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
        try:
            self.ledger = open_ledger(settings.state, study)
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        """Finish what is being written and let another process have the folder."""
        self.store.close()
        if self.ledger is not None:
            self.ledger.close()
