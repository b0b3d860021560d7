"""Single HTTP requests, signed or spoilt on purpose, without the library's client."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import replace
from typing import Any

from noisewise.federated.network import ClientSettings
from noisewise.federated.network.identity import Credential


def ask(
    federation: Any,
    server: str,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    sender: str = "analyst",
    signed_server: str | None = None,
    signed_path: str | None = None,
    signed_body: bytes | None = None,
    study: str | None = None,
    offset: int = 0,
    credential: Credential | None = None,
    name: str | None = None,
    signed: bool = True,
) -> tuple[int, Any, Credential | None]:
    """Send one request; return status, parsed answer and the credential that was used."""
    trial = federation.trial
    settings = ClientSettings.read(trial.config(sender))
    if credential is None and signed:
        credential = settings.signer.sign(
            server=signed_server or server,
            study=study or settings.study.fingerprint,
            method=method,
            path=signed_path or path,
            body=body if signed_body is None else signed_body,
            time=int(time.time()) + offset,
        )
    if credential is not None and name is not None:
        credential = replace(credential, name=name)
    headers = {} if credential is None else {"Authorization": credential.header}
    port = trial.ports[trial.servers.index(server)]
    trust = ssl.create_default_context(cafile=trial.folder / "authority.crt")
    for attempt in range(100):
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=20)
        try:
            connection.connect()
            break
        except ConnectionRefusedError:
            assert attempt < 99, "the server does not listen"
            time.sleep(0.05)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    try:
        return response.status, json.loads(answer), credential
    except ValueError:
        return response.status, answer, credential
