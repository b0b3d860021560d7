"""Curves across processes: aggregation servers, parties and analysts that talk over TLS.

Needs ``pip install 'noisewise[federated]'``. Names are imported when they are first used, so that a
party's machine loads no server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noisewise.errors import MissingExtraError

try:
    import aiohttp as _aiohttp
except ImportError as error:
    raise MissingExtraError(
        "noisewise.federated.network talks HTTP through aiohttp: pip install 'noisewise[federated]'"
    ) from error

if TYPE_CHECKING:
    from noisewise.federated.network.collection import RemoteAggregator, Taken, progress_of
    from noisewise.federated.network.contribution import contribute, withdraw
    from noisewise.federated.network.errors import (
        ConfigurationError,
        NetworkError,
        RefusedError,
        UnreachableError,
    )
    from noisewise.federated.network.measurement import curve_domain as curve_domain
    from noisewise.federated.network.rehearsal import sights as sights, sizes as sizes
    from noisewise.federated.network.serving import run_server
    from noisewise.federated.network.settings import ClientSettings, Limits, ServerSettings
    from noisewise.federated.network.setup import (
        check_copy as check_copy,
        new_certificate as new_certificate,
        new_key as new_key,
        read_certificates as read_certificates,
        read_members as read_members,
        with_keys as with_keys,
        write_study as write_study,
    )
    from noisewise.federated.network.study import Server as Server, Study
    from noisewise.federated.network.threat import rows_of as rows_of

del _aiohttp

_HOMES = {
    "collection": ("RemoteAggregator", "Taken", "progress_of"),
    "contribution": ("contribute", "withdraw"),
    "errors": ("ConfigurationError", "NetworkError", "RefusedError", "UnreachableError"),
    "measurement": ("curve_domain",),
    "rehearsal": ("sights", "sizes"),
    "serving": ("run_server",),
    "settings": ("ClientSettings", "Limits", "ServerSettings"),
    "setup": (
        "check_copy",
        "new_certificate",
        "new_key",
        "read_certificates",
        "read_members",
        "with_keys",
        "write_study",
    ),
    "study": ("Server", "Study"),
    "threat": ("rows_of",),
}

__all__ = [
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


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
