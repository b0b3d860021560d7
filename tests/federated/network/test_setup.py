"""`key new`, `study new` and `study check`: a study whose files nobody wrote by hand."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp")

from noisewise.cli import app
from noisewise.federated.network.settings import ClientSettings, ServerSettings
from noisewise.federated.network.study import Study

SERVERS = ["--server", "alpha=https://a.example:8443", "--server", "beta=https://b.example:8443"]


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words):
    result = run(*words)
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    return result.output


def members(folder):
    """Keys of two parties and an analyst, made where they live."""
    for name in ("north", "south", "registry"):
        done("key", "new", name, "--folder", folder / name)
    public = {name: folder / name / f"{name}.public" for name in ("north", "south", "registry")}
    return [
        *("--party", public["north"], "--party", public["south"]),
        *("--analyst", public["registry"]),
    ]


def test_a_key_is_secret_and_never_replaced(tmp_path):
    told = done("key", "new", "north", "--folder", tmp_path)
    assert os.stat(tmp_path / "north.key").st_mode & 0o077 == 0
    assert (tmp_path / "north.public").read_text().startswith("north,ed25519:")
    assert "PRIVATE" not in told
    before = (tmp_path / "north.key").read_bytes()
    again = run("key", "new", "north", "--folder", tmp_path)
    assert "never replaced" in str(again.exception)
    assert (tmp_path / "north.key").read_bytes() == before
    assert "letters, digits" in str(run("key", "new", "../north").exception)


def test_a_study_is_written_for_every_role_and_means_the_same_everywhere(tmp_path):
    given = members(tmp_path / "own")
    done("study", "new", tmp_path / "heart", *SERVERS, *given, "--curve", "ecdf", "--upper", "120")
    roles = {path.parent.name: path for path in (tmp_path / "heart").glob("*/*.toml")
             if path.name != "study.toml"}  # fmt: skip
    assert set(roles) == {"alpha", "beta", "north", "south", "registry"}
    study = Study.read(tmp_path / "heart" / "study.toml")
    assert (study.name, study.upper, study.route) == ("heart", 120.0, "vectors")
    assert study.minimum_parties == 2
    assert ServerSettings.read(roles["alpha"]).port == 8443
    for copy in (tmp_path / "heart").glob("*/study.toml"):
        assert Study.read(copy).fingerprint == study.fingerprint
    # Each puts its own key in, and its part is complete.
    for name in ("north", "south", "registry"):
        key = tmp_path / "own" / name / f"{name}.key"
        key.rename(roles[name].parent / key.name)
        assert ClientSettings.read(roles[name]).signer.name == name
    told = done("study", "check", *(roles[name] for name in ("north", "south", "registry")))
    assert "fits together" in told
    assert not list((tmp_path / "heart").rglob("*.tls.key")), "certificates are the servers' own"


def trial(folder, *options):
    port = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port.append(probe.getsockname()[1])
    servers = [f"--server={name}=https://127.0.0.1:{number}"
               for name, number in zip(("alpha", "beta"), port, strict=True)]  # fmt: skip
    given = ["--party", "north", "--party", "south", "--analyst", "registry", "--trial"]
    told = done("study", "new", folder, *servers, *given, *options)
    assert "A TRIAL" in told
    return [path for path in sorted(folder.glob("*/*.toml")) if path.name != "study.toml"]


def test_every_problem_of_a_copy_is_found(tmp_path):
    files = trial(tmp_path / "heart")
    folder = tmp_path / "heart"
    assert "fits together" in done("study", "check", *files)
    own = Study.read(folder / "study.toml").fingerprint
    done("study", "check", folder / "study.toml", "--fingerprint", own[:16])

    def problems(*words):
        result = run("study", "check", *words, "--json")
        assert result.exit_code == 1, result.output
        return " ".join(json.loads(result.output)["problems"])

    assert "fingerprint is not" in problems(folder / "study.toml", "--fingerprint", "0" * 16)
    assert "fingerprint is not" in problems(folder / "study.toml", "--fingerprint", own[:3])
    # Another threshold in one copy.
    study = folder / "south" / "study.toml"
    text = study.read_text()
    study.write_text(text.replace("bins = 1024", "bins = 1000"))
    assert "fingerprints differ" in problems(*files)
    study.write_text(text)
    # The key of somebody else.
    key = folder / "south" / "south.key"
    held = key.read_bytes()
    key.write_bytes((folder / "north" / "north.key").read_bytes())
    assert "not the one whose public half" in problems(folder / "south" / "south.toml")
    key.write_bytes(held)
    key.chmod(0o644)
    assert "others may read" in problems(folder / "south" / "south.toml")
    key.chmod(0o600)
    # A certificate for another host, a missing one, a file that is none.
    config = folder / "alpha" / "alpha.toml"
    study = folder / "alpha" / "study.toml"
    study.write_text(text.replace("127.0.0.1", "elsewhere.example"))
    assert "elsewhere.example" in problems(config)
    study.write_text(text)
    (folder / "alpha" / "alpha.crt").unlink()
    assert "cannot use certificate" in problems(config)
    (tmp_path / "broken.toml").write_text("name = ")
    assert "broken.toml" in problems(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--party", "north"], "noisewise key new"),
        (["--server", "gamma=http://c.example"], "https"),
        (["--epsilon", "-1"], "epsilon"),
        (["--route", "masks", "--colluding-parties", "0"], "one server"),
        (["--route", "masks"], "chooses it silently"),
        (["--minimum-parties", "7"], "minimum_parties"),
        (["--party", "north=ed25519:bm8="], "not a public key"),
        (["--curve", "pie"], "curves must be"),
    ],
)
def test_a_study_that_is_refused_leaves_nothing_behind(tmp_path, options, says):
    result = run("study", "new", tmp_path / "heart", *SERVERS, *members(tmp_path / "own"), *options)
    assert result.exit_code != 0
    assert says in str(result.exception)
    assert not (tmp_path / "heart").exists()


def test_a_quote_in_an_address_cannot_add_to_the_study(tmp_path):
    url = 'https://a.example:1"\nminimum_parties = 1\nx = "'
    servers = ["--server", f"alpha={url}", "--server", "beta=https://b.example"]
    result = run("study", "new", tmp_path / "heart", *servers, *members(tmp_path / "own"))
    assert result.exit_code != 0
    assert not (tmp_path / "heart").exists()


@pytest.mark.parametrize("route", ["functions", "vectors"])
def test_the_dry_run_says_who_would_see_what(tmp_path, route):
    files = trial(tmp_path / "heart", "--route", route)
    found = json.loads(done("study", "check", files[0], "--dry-run", "--json"))
    by_role = {sight["who"]: sight["sees"] for sight in found["sees"]}
    assert ("how many records each has" in by_role["server alpha"]) is (route == "functions")
    assert "must not happen" in by_role["all servers together (alpha, beta)"]
    # What is said to be sent is what the servers would get: 8 bytes a cell for vectors.
    if route == "vectors":
        assert found["bytes"]["beta"] >= 2 * 1024 * 8
    assert "would see" in done("study", "check", files[0], "--dry-run")


def test_the_dry_run_of_masks_names_who_must_not_collude(tmp_path):
    given = members(tmp_path / "own")
    server = ["--server", "alpha=https://a.example:8443"]
    done("study", "new", tmp_path / "heart", *server, *given, "--colluding-parties", "0")
    study = tmp_path / "heart" / "study.toml"
    found = json.loads(done("study", "check", study, "--dry-run", "--json"))
    assert found["bytes"] is None
    assert any("2 or more parties" in sight["who"] for sight in found["sees"])


@pytest.mark.slow
def test_a_first_study_runs_with_no_file_written_by_hand(tmp_path):
    files = trial(tmp_path / "heart", "--bins", "16")
    folder = tmp_path / "heart"
    assert "fits together" in done("study", "check", *files)
    rng = np.random.default_rng(0)
    for party in ("north", "south"):
        frame = pd.DataFrame({"p": rng.random(50), "y": rng.integers(0, 2, 50)})
        frame.to_parquet(folder / party / "records.parquet")
    command = [sys.executable, "-m", "noisewise"]
    servers = [
        subprocess.Popen(
            [*command, "serve", "--config", folder / name / f"{name}.toml"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("alpha", "beta")
    ]
    try:
        for server in servers:
            assert server.stdout is not None
            assert " at https://" in server.stdout.readline()
        for party in ("north", "south"):
            place = folder / party
            subprocess.run(
                [*command, "contribute", "--data", place / "records.parquet", "--column", "p",
                 "--label", "y", "--config", place / f"{party}.toml"],
                check=True, timeout=300,
            )  # fmt: skip
        analyst = folder / "registry" / "registry.toml"
        told = subprocess.run(
            [*command, "collect", "--config", analyst, "--json"],
            check=True, timeout=300, capture_output=True, text=True,
        )  # fmt: skip
        assert json.loads(told.stdout)["statement"]["epsilon"] <= 1.0
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)
