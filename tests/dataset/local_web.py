"""A web server on this machine whose answers a test decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers by the rule that the test gave for the path."""

    protocol_version = "HTTP/1.1"
    web: Web

    def do_GET(self) -> None:
        self.web.requests.append((self.path, dict(self.headers)))
        self.web.routes[self.path](self)

    def log_message(self, *arguments: object) -> None:
        """Keep the tests quiet."""


@dataclass
class Web:
    """What the server answers, and what it was asked."""

    base: str = ""
    routes: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        return f"{self.base}{path}"

    def serve(self, path: str, content: bytes, **headers: str) -> str:
        self.routes[path] = lambda handler: send(handler, 200, content, **headers)
        return self.url(path)

    def status(self, path: str, code: int, **headers: str) -> str:
        self.routes[path] = lambda handler: send(handler, code, b"", **headers)
        return self.url(path)

    def hang(self, path: str, start: bytes = b"", length: int = 10**6) -> str:
        def answer(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(length))
            handler.end_headers()
            handler.wfile.write(start)
            handler.wfile.flush()
            self.closing.wait(30)
            handler.close_connection = True

        self.routes[path] = answer
        return self.url(path)

    def drip(self, path: str, length: int = 10**6) -> str:
        def answer(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(length))
            handler.end_headers()
            try:
                # Ends some time, so that a client without a deadline fails and does not hang.
                for _ in range(200):
                    handler.wfile.write(b"x")
                    handler.wfile.flush()
                    time.sleep(0.02)
            except OSError:
                pass
            handler.close_connection = True

        self.routes[path] = answer
        return self.url(path)


def send(handler: Handler, code: int, content: bytes, **headers: str) -> None:
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
