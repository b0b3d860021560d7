"""Running an aggregation server as a process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from aiohttp import web

from noisewise.federated.network.errors import ConfigurationError
from noisewise.federated.network.masks.service import MaskedService
from noisewise.federated.network.service import Service
from noisewise.federated.network.settings import ServerSettings

__all__ = ["run_server"]


def run_server(settings: ServerSettings, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Parameters
    ----------
    settings : ServerSettings
    ready : callable, optional
        Told the address as soon as requests are taken.
    """
    asyncio.run(_serve(settings, ready))


async def _serve(settings: ServerSettings, ready: Callable[[str], None] | None) -> None:
    # The thread that writes gives the interpreter away in every statement and would wait 5 ms
    # to get it back from a busy event loop.
    sys.setswitchinterval(0.0005)
    tls = settings.tls()
    masked = settings.study.route == "masks"
    service = MaskedService(settings) if masked else Service(settings)
    runner = web.AppRunner(
        service.application(),
        access_log=None,
        handle_signals=False,
        keepalive_timeout=settings.limits.seconds,
        shutdown_timeout=5.0,
        auto_decompress=False,  # what was signed is what was sent, and nothing grows on the way in
    )
    try:
        await runner.setup()
        site = web.TCPSite(
            runner, settings.host, settings.port, ssl_context=tls, backlog=1024, reuse_address=True
        )
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen at {settings.host}:{settings.port}: {error}"
            ) from error
        if ready is not None:
            ready(site.name)
        await _stop_signal()
    finally:
        await runner.cleanup()
        service.close()


async def _stop_signal() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stopped.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopped.set))
    await stopped.wait()
