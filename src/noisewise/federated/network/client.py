"""Signed requests to one server, tried again until they are answered or patience ends.

Every request here may safely be repeated: contributions are known by their content and
releases by their name. Each attempt is signed anew, with a new nonce, and an answer counts only
if it carries that nonce, so a delayed or repeated answer to something else is not believed.

Every request brings the latest mark of the server along that any answer carried, and no answer may
carry an older one (:mod:`noisewise.federated.network.marks`): a server that was restored from a
backup is noticed by whoever has seen what it forgot.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from noisewise.federated.network.errors import RefusedError, UnreachableError
from noisewise.federated.network.headers import MARK_HEADER, NONCE_HEADER
from noisewise.federated.network.reading import read_json, readable
from noisewise.federated.network.seen import SeenMarks
from noisewise.federated.network.settings import ClientSettings

__all__ = ["Client"]

T = TypeVar("T")

# Refusals that a new attempt may overcome: the request was seen before (a network that sends
# things twice), took too long, or was damaged or answered by something else on the way ("http":
# our servers always give a reason).
_PASSING = {"replayed", "slow", "http", "busy", "reserved"}
# Those among them that are an answer, if they last.
_WAITING = {"busy", "reserved"}
# Refusals with a status of 500 or more that no new attempt overcomes.
_FINAL = {"rolled-back"}


class Client:
    """Connections to all servers of a study. Use as an asynchronous context manager.

    Parameters
    ----------
    settings : ClientSettings
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._study = settings.study
        self._session: aiohttp.ClientSession | None = None
        self._seen = SeenMarks.of(settings.state, settings.study)

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(ssl=self.settings.tls(), limit_per_host=8)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        server: str,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        seconds: float | None = None,
    ) -> bytes:
        """Send a request and return the answer's body.

        Parameters
        ----------
        server, method, path, body
        seconds : float, optional
            Until this request counts as failed, if it takes longer than others.

        Raises
        ------
        RefusedError
            If the server refuses.
        UnreachableError
            If it does not answer within the patience.
        """
        deadline = time.monotonic() + self.settings.patience
        pause = 0.1
        while True:
            try:
                return await self._attempt(server, method, path, body, seconds)
            except RefusedError as error:
                if error.code in _FINAL or (error.code not in _PASSING and error.status < 500):
                    raise
                failure: Exception = error
            except (
                aiohttp.ClientError,
                asyncio.TimeoutError,
                OSError,
                _StrangeAnswerError,
            ) as error:
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    raise UnreachableError(
                        f"server {server!r} has a certificate that the authority did not sign, or "
                        f"for another name: {error}"
                    ) from error
                failure = error
            if time.monotonic() + pause > deadline:
                if isinstance(failure, RefusedError) and failure.code in _WAITING:
                    raise failure
                raise UnreachableError(
                    f"server {server!r} at {self.settings.url(server)} did not answer within "
                    f"{self.settings.patience:g} seconds ({type(failure).__name__}: {failure}). "
                    "Nothing is lost; try again later."
                ) from failure
            # Not in step with others who lost the same server.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 5.0)

    async def ask(
        self,
        server: str,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        read: Callable[[Any], T],
    ) -> T:
        """Send a request and return what `read` makes of the JSON in the answer.

        What `read` stumbles over is an answer that cannot be read, so nothing that a server says
        goes any further unread.
        """
        answer = await self.request(server, method, path, body)
        with readable(server):
            return read(read_json(answer))

    async def _attempt(
        self, server: str, method: str, path: str, body: bytes, seconds: float | None
    ) -> bytes:
        if self._session is None:
            raise RuntimeError("use the client in an `async with` block")
        credential = self.settings.signer.sign(
            server=server,
            study=self._study.fingerprint,
            method=method,
            path=path,
            body=body,
            time=int(time.time()),
        )
        headers = {"Authorization": credential.header}
        shown = self._seen.latest(server)
        if shown is not None:
            headers[MARK_HEADER] = shown
        url = self.settings.url(server) + path
        timeout = aiohttp.ClientTimeout(total=seconds or self.settings.seconds)
        async with self._session.request(
            method, url, data=body, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            answer = await response.read()
            said = response.headers.get(NONCE_HEADER)
            # Only a refusal before the signature was read may leave it out.
            if said != credential.nonce and (said is not None or response.status == 200):
                raise _StrangeAnswerError("the answer belongs to another request")
            if response.status != 200:
                raise _refused(response.status, answer)
            await asyncio.to_thread(
                self._seen.take, server, shown, response.headers.get(MARK_HEADER)
            )
            return answer


class _StrangeAnswerError(Exception):
    """An answer that does not belong to the question."""


def _refused(status: int, answer: bytes) -> RefusedError:
    try:
        fields = read_json(answer)
        reason, code = str(fields["error"]), str(fields["code"])
        if code == "unsigned":  # we do sign, so this server reads signatures of another version
            reason += ": the server may run version 0.1 of noisewise, which must be updated"
        return RefusedError(reason, status, code)
    except (ValueError, TypeError, KeyError):
        return RefusedError(
            f"HTTP status {status} without a reason: this was not an aggregation server, or the "
            "request was damaged on the way",
            status,
            "http",
        )
