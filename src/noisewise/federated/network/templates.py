"""The files of a study as text: meant to be read, and to be right as they are."""

from __future__ import annotations

from collections.abc import Sequence

from noisewise.federated.network.study import Study

__all__ = ["ROUTES", "member_text", "server_text", "study_text"]

ROUTES = {
    "functions": "a key a record, two servers",
    "vectors": "a secret-shared table a party, two or more servers",
    "masks": "masked sums of parties that stay to the end, one server",
}


def study_text(study: Study) -> str:
    """Return the study file: the same for servers, parties and analysts."""
    lines = [
        "# What everybody has agreed on: the same file for servers, parties and analysts.",
        f'name = "{study.name}"',
        f'round = "{study.round}"                  # a party contributes once to a round',
        f"curves = {_list(study.curves)}",
        f"lower = {study.lower}                  # public range of the values",
        f"upper = {study.upper}",
        f"bins = {study.bins}                  # thresholds of the curves",
        f'route = "{study.route}"         # {ROUTES[study.route]}',
        f'relation = "{study.relation.name}"      # replace-one: the number of records is public',
        f"minimum_parties = {study.minimum_parties}          # no answer about fewer contributions",
    ]
    if study.route != "masks":
        lines.append(
            f"checked = {str(study.checked).lower()}            # contributions prove what they "
            "count"
        )
    if study.most_records is not None:
        lines.append(f"most_records = {study.most_records}             # of one party")
    if study.route == "masks":
        lines += [
            f"colluding_parties = {study.colluding}        # who may tell the server all they know",
            f"stage_seconds = {study.stage_seconds}        # for the last parties, once enough "
            "are there",
            f'neighbours = "{study.neighbours}"         # with whom a party shares keys: all, or '
            "few (hundreds of parties)",
        ]
    if study.noiseless_test:
        lines.append("noiseless_test = true")
    lines += ["", "[budget]                     # of all releases of this round together"]
    lines += [f"epsilon = {study.epsilon}", f"delta = {study.delta}"]
    unit = study.protects
    if unit.kind != "record":
        lines += ["", "[unit]                       # what is protected", f'kind = "{unit.kind}"']
        lines += [f'name = "{unit.name}"', f"rows = {unit.rows}         # of a unit, at a party"]
    if unit.kind == "identifier":
        lines.append(f"parties = {unit.parties}      # that may hold rows of one unit")
    for server in study.servers:
        lines += ["", "[[servers]]", f'name = "{server.name}"', f'url = "{server.url}"']
    for kind, members in (("parties", study.parties), ("analysts", study.analysts)):
        for member in members:
            lines += ["", f"[[{kind}]]", f'name = "{member.name}"', f'key = "{member.key}"']
    return _joined(lines)


def server_text(name: str, listen: str, *, noiseless_test: bool = False) -> str:
    """Return the configuration of a server, beside which its certificate and key lie."""
    lines = [
        f"# Aggregation server {name}.",
        f'name = "{name}"',
        f'listen = "{listen}"',
        'study = "study.toml"',
        f'state = "{name}-state"       # must survive a restart; do not restore it from backups',
        f'certificate = "{name}.crt"',
        f'private_key = "{name}.tls.key"',
    ]
    if noiseless_test:
        lines.append("allow_noiseless_test = true")
    lines += ["", "[limits]", "largest_request = 2097152    # bytes", "seconds = 30"]
    return _joined(lines)


def member_text(
    name: str,
    *,
    authority: str,
    seconds: float = 30.0,
    patience: float = 120.0,
    wait: float | None = None,
) -> str:
    """Return the configuration of a party or analyst, beside which its private key lies."""
    lines = [
        f'name = "{name}"',
        'study = "study.toml"',
        f'private_key = "{name}.key"   # proves who we are; nobody else may read it',
        f'authority = "{authority}"  # signed the servers\' certificates',
        f'state = "{name}-state"',
        f"seconds = {seconds}               # until one request counts as failed",
        f"patience = {patience}             # for how long to try again",
    ]
    if wait is not None:
        lines.append(f"wait = {wait}               # for how long to wait for the others")
    return _joined(lines)


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
