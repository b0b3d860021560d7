"""Curves across processes: aggregation servers, parties and analysts that talk over TLS.

Needs ``pip install 'noisewise[federated]'``.
"""

from noisewise.errors import MissingExtraError

try:
    import aiohttp as _aiohttp
except ImportError as error:
    raise MissingExtraError(
        "noisewise.federated.network talks HTTP through aiohttp: pip install 'noisewise[federated]'"
    ) from error

from noisewise.federated.network.collection import NOBODY, RemoteAggregator, Taken, progress_of
from noisewise.federated.network.contribution import contribute, withdraw
from noisewise.federated.network.errors import (
    ConfigurationError,
    NetworkError,
    RefusedError,
    UnreachableError,
)
from noisewise.federated.network.serving import run_server
from noisewise.federated.network.settings import ClientSettings, Limits, ServerSettings
from noisewise.federated.network.study import Study

del _aiohttp

__all__ = [
    "NOBODY",
    "ClientSettings",
    "ConfigurationError",
    "Limits",
    "NetworkError",
    "RefusedError",
    "RemoteAggregator",
    "ServerSettings",
    "Study",
    "Taken",
    "UnreachableError",
    "contribute",
    "progress_of",
    "run_server",
    "withdraw",
]
