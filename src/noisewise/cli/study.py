"""``noisewise study new`` and ``noisewise study check``: a federated study without writing TOML."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from noisewise.federated.network import Study

__all__ = ["app"]

app = typer.Typer(help="Set up a study across parties, and check it.", no_args_is_help=True)

RECORDS = 1000


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="A new folder, with one inside for each role.")],
    server: Annotated[list[str], typer.Option(help="NAME=URL of a server; may be repeated.")],
    party: Annotated[
        list[str],
        typer.Option(help="The .public file of 'noisewise key new', or NAME=KEY; may be repeated."),
    ],
    analyst: Annotated[list[str], typer.Option(help="The same, for those who may ask.")],
    curve: Annotated[
        list[str] | None,
        typer.Option(help="ecdf, histogram, roc, hosmer-lemeshow; may be repeated. [default: roc]"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the study; by default the folder's.")] = None,
    round_name: Annotated[
        str, typer.Option("--round", help="A party contributes once to a round.")
    ] = "1",
    lower: Annotated[float, typer.Option(help="Public lower bound of the values.")] = 0.0,
    upper: Annotated[float, typer.Option(help="Public upper bound of the values.")] = 1.0,
    bins: Annotated[int, typer.Option(help="Thresholds of the curves.")] = 1024,
    route: Annotated[
        str | None,
        typer.Option(
            help="functions (a key a record), vectors (a table a party) or masks (one server). "
            "[default: masks with one server, else vectors]"
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Of all releases of the round.")] = 1.0,
    delta: Annotated[float, typer.Option(help="0 for pure differential privacy.")] = 0.0,
    relation: Annotated[
        str, typer.Option(help="add-remove, or replace-one (numbers of records are public).")
    ] = "add-remove",
    minimum_parties: Annotated[
        int | None,
        typer.Option(help="No answer about fewer. [default: all; with masks two thirds and one]"),
    ] = None,
    colluding_parties: Annotated[
        int | None,
        typer.Option(help="With masks: how many may tell the server all they know. Must be said."),
    ] = None,
    neighbours: Annotated[
        str,
        typer.Option(
            help="With masks: 'all' share keys with each other, or 'few' (hundreds of parties)."
        ),
    ] = "all",
    checked: Annotated[
        bool | None,
        typer.Option(
            help="With functions: keys prove that they count one record each; who cheats is left "
            "out and named. [default: checked with functions]"
        ),
    ] = None,
    most_records: Annotated[
        int | None, typer.Option(help="With functions: of one party. [default: any number]")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="What is protected: 'party', 'device', or a word for what identifiers stand for, "
            "'one patient'. [default: one record]"
        ),
    ] = None,
    unit_rows: Annotated[
        int, typer.Option(help="Rows of a unit that count at a party, at most.")
    ] = 1,
    unit_parties: Annotated[
        int | None,
        typer.Option(help="How many parties may hold rows of one unit. [default: all]"),
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option(
            help="NAME.crt of 'noisewise key new NAME --host HOST', one for every server; left out "
            "if servers have certificates of a public authority."
        ),
    ] = None,
    trial: Annotated[
        bool,
        typer.Option(
            "--trial",
            help="Make keys and certificates here. Whoever makes them can pass for everybody.",
        ),
    ] = False,
) -> None:
    r"""Write the study and a folder of configuration for each server, party and analyst.

    For example:

      noisewise study new heart --server alpha=https://a.example:8443 \
        --server beta=https://b.example:8443 --party north.public \
        --party south.public --analyst registry.public --curve roc --epsilon 1
      noisewise study check heart/*/*.toml
    """
    from noisewise.federated.network import (
        ConfigurationError,
        Server,
        Study,
        read_certificates,
        read_members,
        with_keys,
        write_study,
    )
    from noisewise.privacy import Relation

    servers = []
    for text in server:
        label, separator, url = text.partition("=")
        if not separator or not url.startswith("https://"):
            raise ConfigurationError(f"--server {text!r}: write NAME=https://host:port")
        servers.append(Server(label, url.rstrip("/")))
    chosen = route or ("masks" if len(servers) == 1 else "vectors")
    if chosen == "masks" and colluding_parties is None:
        raise ConfigurationError(
            "route 'masks' needs --colluding-parties, the number of parties that may tell the "
            "server everything or lie for it: it decides how much noise each party adds, so nobody "
            "chooses it silently"
        )
    if trial and certificate:
        raise ConfigurationError("--trial makes certificates itself: leave out --certificate")
    certificates = read_certificates(certificate or [], servers)
    parties, analysts = (read_members(given, trial=trial) for given in (party, analyst))
    least = 2 * len(parties) // 3 + 1 if chosen == "masks" else len(parties)
    with tempfile.TemporaryDirectory() as held:
        # Keys of a trial are made aside, so that a study which is refused leaves nothing behind.
        place = Path(held)
        made = Study(
            name=name or folder.resolve().name,
            round=round_name,
            curves=tuple(curve or ["roc"]),
            lower=lower,
            upper=upper,
            bins=bins,
            route=cast(Any, chosen),
            relation=Relation.of(relation),
            epsilon=epsilon,
            delta=delta,
            minimum_parties=minimum_parties or least,
            servers=tuple(servers),
            parties=tuple(with_keys(parties, place)),
            analysts=tuple(with_keys(analysts, place)),
            colluding=colluding_parties or 0,
            checked=chosen == "functions" if checked is None else checked,
            most_records=most_records,
            protects=_protects(unit, unit_rows, unit_parties, len(parties)),
            neighbours=cast(Any, neighbours),
        )
        written = write_study(folder, made, trial=trial, keys=place, certificates=certificates)
    typer.echo(f"study {made.name}, round {made.round}, fingerprint {made.fingerprint[:16]}")
    for path in written:
        typer.echo(f"  {path.parent}  for {path.stem}")
    if trial:
        typer.echo(
            "A TRIAL: keys and certificates were made here, so whoever has this folder can pass "
            "for everybody. For real records each makes its own: noisewise key new"
        )
    else:
        theirs = "" if certificates else "certificate NAME.crt (from a public authority, or by "
        theirs += "" if certificates else "'noisewise key new NAME --host HOST') and its key "
        typer.echo(
            "Send each its folder. Parties and analysts put their NAME.key into it; servers their "
            f"{theirs}NAME.tls.key. Then each runs: noisewise study check NAME.toml"
        )


@app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="Configuration of a role, or study files; one or more.")
    ],
    fingerprint: Annotated[
        str | None, typer.Option(help="That the others have, read to you over the telephone.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show who would see what, with made-up records.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check that copies of a study mean the same, and that each role's files belong to it.

    For example:

      noisewise study check north.toml --dry-run
      noisewise study check north/north.toml south/south.toml alpha/alpha.toml
    """
    from noisewise.federated.network import check_copy, sights, sizes

    copies = [check_copy(path) for path in files]
    prints = {copy.study.fingerprint for copy in copies if copy.study is not None}
    problems = [f"{copy.path}: {problem}" for copy in copies for problem in copy.problems]
    if len(prints) > 1:
        problems.append("these files are not of the same study: their fingerprints differ")
    if fingerprint is not None and not (
        len(fingerprint) >= 16 and prints and all(own.startswith(fingerprint) for own in prints)
    ):
        problems.append(f"the fingerprint is not {fingerprint!r} (16 digits or more are compared)")
    studies = [copy.study for copy in copies if copy.study is not None]
    if as_json:
        found: dict[str, Any] = {
            "files": [
                {
                    "path": str(copy.path),
                    "role": copy.who,
                    "fingerprint": None if copy.study is None else copy.study.fingerprint,
                }
                for copy in copies
            ],
            "problems": problems,
        }
        if dry_run and studies:
            found["sees"] = [vars(sight) for sight in sights(studies[0])]
            found["bytes"] = sizes(studies[0], RECORDS)
        typer.echo(json.dumps(found, indent=2))
    else:
        console = Console(highlight=False)
        table = Table("file", "role", "study", "fingerprint")
        for copy in copies:
            study = copy.study
            about = "cannot be read" if study is None else f"{study.name}, round {study.round}"
            print_ = "" if study is None else study.fingerprint[:16]
            table.add_row(str(copy.path), copy.who, about, print_)
        console.print(table)
        for problem in problems:
            console.print(f"[bold red]problem:[/] {problem}".replace("[[", "\\[["))
        if dry_run and studies:
            _rehearse(console, studies[0])
        if not problems:
            console.print("All of this fits together.")
    if problems:
        raise typer.Exit(1)


def _protects(unit: str | None, rows: int, held_by: int | None, parties: int) -> Any:
    from noisewise.federated import EACH_RECORD, Protected
    from noisewise.federated.network import ConfigurationError

    if unit is None:
        if rows != 1 or held_by is not None:
            raise ConfigurationError("--unit-rows and --unit-parties need --unit")
        return EACH_RECORD
    if unit in ("party", "device"):
        if held_by is not None:
            raise ConfigurationError(f"--unit-parties says nothing of a {unit}: leave it out")
        return Protected(cast(Any, unit), rows=rows)
    return Protected("identifier", unit, rows, parties if held_by is None else held_by)


def _rehearse(console: Console, study: Study) -> None:
    from noisewise.federated.network import sights, sizes

    table = Table("who", "would see", "would not see", title="Dry run", title_justify="left")
    for sight in sights(study):
        table.add_row(sight.who, sight.sees, sight.never)
    console.print(table)
    console.print(
        f"curves: {', '.join(study.curves)}; all releases of this round together cost at most "
        f"epsilon {study.epsilon:g}, delta {study.delta:g} ({study.relation.name}); no answer "
        f"about fewer than {study.minimum_parties} parties"
    )
    said = study.protects.contribution.sentences
    console.print(f"protected: {study.protects.name}" + "".join(f"; {text}" for text in said))
    sent = sizes(study, RECORDS)
    if sent is not None:
        told = ", ".join(f"{name} {size:,} bytes" for name, size in sent.items())
        console.print(f"{RECORDS:,} made-up records would send: {told}")
