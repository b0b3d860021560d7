"""`key new`, `study new` and `study check`: a study whose files nobody wrote by hand."""

import json
import os
import socket
import ssl
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("aiohttp")

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from noisewise.cli import app
from noisewise.federated.network.certificates import TrialAuthority, own_certificate
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


def own(folder):
    """Certificates that two servers made for themselves, on their machines."""
    for name, host in (("alpha", "a.example"), ("beta", "b.example")):
        done("key", "new", name, "--host", host, "--folder", folder / name)
        assert os.stat(folder / name / f"{name}.tls.key").st_mode & 0o077 == 0
    return [folder / name / f"{name}.crt" for name in ("alpha", "beta")]


def connects(server, client, host):
    """Whether a client that trusts what it was given speaks to a server, without a network."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(outgoing, incoming, server_hostname=host)
    there = server.wrap_bio(incoming, outgoing, server_side=True)
    for _ in range(4):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_servers_make_their_own_certificates_and_each_vouches_for_its_host_alone(tmp_path):
    given = members(tmp_path / "own")
    alpha, beta = own(tmp_path / "own")
    study = ["study", "new", tmp_path / "heart", *SERVERS, *given]
    told = done(*study, "--certificate", alpha, "--certificate", beta)
    assert "servers their NAME.tls.key" in told
    folder = tmp_path / "heart"
    contexts = {}
    for name in ("alpha", "beta"):
        key = tmp_path / "own" / name / f"{name}.tls.key"
        (folder / name / key.name).write_bytes(key.read_bytes())
        os.chmod(folder / name / key.name, 0o600)
        done("study", "check", folder / name / f"{name}.toml")
        contexts[name] = ServerSettings.read(folder / name / f"{name}.toml").tls()
    key = tmp_path / "own" / "north" / "north.key"
    key.rename(folder / "north" / "north.key")
    client = ClientSettings.read(folder / "north" / "north.toml").tls()
    assert connects(contexts["alpha"], client, "a.example")
    assert connects(contexts["beta"], client, "b.example")
    assert not connects(contexts["alpha"], client, "b.example")
    # Alpha's administrator signs a certificate for the other server's host with alpha's key.
    pem = (tmp_path / "own" / "alpha" / "alpha.tls.key").read_bytes()
    certificate = x509.load_pem_x509_certificate(alpha.read_bytes())
    signer = TrialAuthority(certificate, serialization.load_pem_private_key(pem, None))
    signer.issue(["b.example"], tmp_path / "false.crt", tmp_path / "false.key")
    (tmp_path / "false.crt").write_bytes((tmp_path / "false.crt").read_bytes() + alpha.read_bytes())
    false = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    false.load_cert_chain(tmp_path / "false.crt", tmp_path / "false.key")
    assert not connects(false, client, "b.example")


def test_a_certificate_that_could_sign_for_others_is_refused(tmp_path):
    given = members(tmp_path / "own")
    alpha, beta = own(tmp_path / "own")
    study = ["study", "new", tmp_path / "heart", *SERVERS, *given]
    authority = TrialAuthority.create()
    authority.write_certificate(tmp_path / "authority.crt")
    authority.issue(["a.example"], tmp_path / "issued.crt", tmp_path / "issued.key")
    own_certificate("wide", "*.example", tmp_path / "wide.crt", tmp_path / "wide.key")
    both = tmp_path / "both.crt"
    both.write_bytes(alpha.read_bytes() + (tmp_path / "authority.crt").read_bytes())
    for wrong, says in (
        ("authority.crt", "could pass for the other server"),
        ("issued.crt", "could pass for the other server"),
        ("wide.crt", "could pass for the other server"),
        ("both.crt", "no file with one certificate"),
        ("nothing.crt", "no file with one certificate"),
    ):
        result = run(*study, "--certificate", tmp_path / wrong, "--certificate", beta)
        assert says in str(result.exception)
    assert "one for every server" in str(run(*study, "--certificate", beta).exception).lower()
    assert "leave out" in str(run(*study, "--certificate", beta, "--trial").exception)
    assert not (tmp_path / "heart").exists()


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
