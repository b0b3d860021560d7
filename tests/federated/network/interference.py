"""A network that misbehaves: between client and server, both ends real TLS over real sockets.

It reads whole HTTP messages and, by a schedule, delays them, loses them before or after the
server has acted, cuts them in the middle, delivers them twice, delivers an old one again later
(out of order), or changes a byte. Everything it does, a network or a broken middlebox can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

FAULTS = (
    "delay",
    "lose the request",
    "cut the request",
    "lose the answer",
    "cut the answer",
    "twice, first answer",
    "twice, second answer",
    "again later",
    "change a byte",
    "someone else's answer",
)


@dataclass
class Line:
    """The way to one server."""

    name: str
    target: int
    certificate: Path
    key: Path
    authority: Path
    faults: dict[int, tuple[str, float]] = field(default_factory=dict)
    moments: dict[int, Callable[[], None]] = field(default_factory=dict)
    port: int = 0
    messages: int = 0
    applied: list[str] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    last_answer: bytes = b""
    server: asyncio.Server | None = None

    def clear(self) -> None:
        """Behave from now on."""
        self.faults.clear()
        self.moments.clear()

    async def start(self) -> None:
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(self.certificate, self.key)
        self.server = await asyncio.start_server(self._client, "127.0.0.1", 0, ssl=server_side)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _message(reader):
                if not await self._pass(request, writer):
                    break
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(OSError, ssl.SSLError):
                writer.close()

    async def _pass(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        number = self.messages
        self.messages += 1
        fault, amount = self.faults.get(number, ("", 0.0))
        moment = self.moments.get(number)
        if fault:
            self.applied.append(fault)
        if self.held and number % 3 == 2:
            await self._forward(self.held.pop(0))
        if moment is not None and amount < 0.5:
            moment()
        if fault == "delay":
            await asyncio.sleep(amount)
        if fault == "lose the request":
            return False
        if fault == "again later":
            self.held.append(request)
        if fault == "change a byte":
            place = min(len(request) - 1, int(len(request) * (0.5 + amount / 2)))
            request = request[:place] + bytes([request[place] ^ 1]) + request[place + 1 :]
        if fault == "cut the request":
            await self._forward(request[: max(1, int(len(request) * amount))], whole=False)
            return False
        old = self.last_answer
        answer = await self._forward(request)
        if fault.startswith("twice"):
            second = await self._forward(request)
            answer = second if fault.endswith("second answer") else answer
        if moment is not None and amount >= 0.5:
            moment()
        if fault == "someone else's answer" and old:
            answer = old
        if not answer or fault == "lose the answer":
            return False
        self.last_answer = answer
        if fault == "cut the answer":
            answer = answer[: max(1, int(len(answer) * amount))]
        writer.write(answer)
        await writer.drain()
        return fault != "cut the answer"

    async def _forward(self, request: bytes, *, whole: bool = True) -> bytes:
        trust = ssl.create_default_context(cafile=self.authority)
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.target, ssl=trust, server_hostname="localhost"
            )
        except (OSError, ssl.SSLError):
            return b""
        try:
            writer.write(request)
            await writer.drain()
            return await asyncio.wait_for(_message(reader), 20) if whole else b""
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            return b""
        finally:
            with contextlib.suppress(OSError, ssl.SSLError):
                writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read one HTTP message with a Content-Length; nothing at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head + (await reader.readexactly(length) if length else b"")


class Network:
    """The lines to all servers, in a thread of their own."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = {line.name: line for line in lines}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for line in lines:
            started: Future[None] = asyncio.run_coroutine_threadsafe(line.start(), self._loop)
            started.result(10)

    def close(self) -> None:
        async def stop() -> None:
            for line in self.lines.values():
                if line.server is not None:
                    line.server.close()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
