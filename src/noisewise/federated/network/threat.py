"""Whom one must trust for what when servers are real machines."""

from __future__ import annotations

from noisewise.federated.function_sharing import CHECKED, UNCHECKED
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.study import Study
from noisewise.federated.sharing.bounded import SOUNDNESS_BITS
from noisewise.federated.threat import ThreatModel

__all__ = ["rows_of", "threat_of"]


def _validity(study: Study) -> tuple[str, ...]:
    if study.checked and study.route == "vectors":
        return (
            "that records are true: a party chooses the cells of its records. That each of its "
            f"tables counts at most {study.most_records} records, and none less than 0 times, is "
            f"proven; a false one passes with probability below 2^-{SOUNDNESS_BITS} if all servers "
            "follow the protocol",
            "that a server which departs from the protocol leaves honest parties in",
        )
    if study.checked:
        most = study.most_records
        return (
            CHECKED + ("" if most is None else f"; a party counts at most {most} of them"),
            "that a server which departs from the protocol leaves honest parties in",
        )
    if study.route == "functions":
        return (UNCHECKED,)
    return (
        "that a party's table counts records: it is not checked, so a party can add any numbers. "
        "They spoil the curve and say nothing about other parties' records; keys of single records "
        "(route 'functions') and tables with most_records can be checked",
    )


def rows_of(study: Study) -> str:
    """Say what is taken for granted about how a party made the rows that it contributes.

    Nobody but the party sees its file, table or query, so every study takes it for granted. Where a
    whole party is what is protected, all its rows may depend on each other.
    """
    kind = study.protects.kind
    if kind in ("party", "device"):
        return ""
    alone = "one record" if kind == "record" else f"the rows of {study.protects.name}"
    return (
        f"each party's own file, table or query made a row from {alone} alone (no averages or "
        "ranks over others, no limit, no join that repeats it); nobody else can see that"
    )


def threat_of(study: Study, noise: str) -> ThreatModel:
    """Say who must be trusted for what; `noise` says who adds which."""
    names = ", ".join(server.name for server in study.servers)
    seen = "which parties contributed and when, the number of complete contributions"
    if study.relation.count_is_public or study.route == "functions":
        seen += ", how many records each party has"
    return ThreatModel(
        protocol=f"{route_of(study).description}, over TLS with signed requests",
        adversary="semi-honest",
        must_not_collude=f"all {len(study.servers)} servers ({names}) together",
        server_sees=f"{seen}; its shares alone say nothing about the records",
        result_goes_to="the registered analysts, with all noise in it before it leaves a server",
        drop_outs=(
            "a contribution counts if all servers have it whole, and not at all otherwise; "
            f"no release about fewer than {study.minimum_parties} contributions"
        ),
        noise=noise,
        hardness="AES is a pseudorandom permutation; Ed25519 and TLS keep their promises",
        not_promised=(
            *_validity(study),
            "a server that departs from the protocol can spoil the result",
            "who takes part is not hidden from servers and analysts",
        ),
        noiseless=study.noiseless_test,
        rows=rows_of(study),
    )
