"""Files that people write: what is wrong is named, and everybody agrees or nobody talks."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("aiohttp")

from noisewise.federated.network import ClientSettings, ConfigurationError, ServerSettings, Study
from noisewise.federated.network.identity import write_new_key
from noisewise.federated.network.study import Member, Server
from noisewise.federated.network.trial import make_trial


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return make_trial(tmp_path_factory.mktemp("trial"))


@pytest.fixture
def study(trial):
    return Study.read(trial.folder / "study.toml")


def edited(trial, tmp_path, name, old, new):
    for path in trial.folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def read_with_keys(path):
    """Read a study and its parties' keys, which are read when they are first needed."""
    return Study.read(path).party_keys


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bins = 1024", "bins = 1", "bins must be a whole number >= 2"),
        ("bins = 1024", "bin = 1024", "'bins' is missing"),
        ("lower = 0.0", "lower = 0.0\nlowr = 1", r"unknown keys \['lowr'\]"),
        ("lower = 0.0", "lower = 'a'", "lower must be a number"),
        ("upper = 1.0", "upper = 0.0", "bounds must increase"),
        ('curves = ["roc"]', 'curves = ["rock"]', "curves must be a choice of"),
        ('curves = ["roc"]', "curves = []", "curves must be a choice of"),
        ('route = "functions"', 'route = "gossip"', "route must be one of"),
        ('relation = "add-remove"', 'relation = "nobody"', "relation must be one of"),
        ("epsilon = 1.0", "epsilon = 0.0", "epsilon must be > 0"),
        ("epsilon = 1.0", "epsilon = 1.0\ndelta2 = 1", "unknown keys"),
        ("minimum_parties = 1", "minimum_parties = 4", "between 1 and the 3 parties"),
        ('name = "trial"', 'name = "TEST-trial"', "noiseless_test = true goes with"),
        ('name = "trial"', 'name = "trial"\nnoiseless_test = true', "noiseless_test = true goes"),
        ('name = "trial"', 'name = "../trial"', "use letters, digits"),
        ('name = "north"', 'name = "south"', "every party needs a name of its own"),
        ('key = "ed25519:', 'key = "rsa:', None),
        ('name = "trial"', "name = [", "is not valid TOML"),
    ],
)
def test_a_wrong_study_file_is_refused_in_words(trial, tmp_path, old, new, message):
    path = edited(trial, tmp_path, "study.toml", old, new)
    with pytest.raises(ValueError, match=message):
        read_with_keys(path)


def test_two_servers_for_functions_and_at_least_two_for_vectors(study):
    alone = study.servers[:1]
    three = (*study.servers, Server("gamma", "https://x"))
    with pytest.raises(ConfigurationError, match="exactly two servers"):
        replace(study, servers=three)
    with pytest.raises(ConfigurationError, match="at least two servers"):
        replace(study, servers=alone, route="vectors")
    assert replace(study, servers=three, route="vectors")


def test_one_key_for_two_members_is_refused(study):
    twin = Member("twin", study.parties[0].key)
    with pytest.raises(ConfigurationError, match="a key of its own"):
        replace(study, parties=(*study.parties, twin))


def test_the_fingerprint_covers_everything_but_addresses(study, tmp_path):
    elsewhere = tuple(replace(server, url="https://elsewhere") for server in study.servers)
    assert replace(study, servers=elsewhere).fingerprint == study.fingerprint
    extra = Member("extra", write_new_key(tmp_path / "extra.key"))
    changes = [
        {"round": "2"},
        {"name": "other"},
        {"curves": ("ecdf",)},
        {"upper": 1.5},
        {"lower": -0.5},
        {"bins": 512},
        {"route": "vectors"},
        {"relation": "replace-one"},
        {"epsilon": 1.0000000000000002},
        {"delta": 1e-9},
        {"minimum_parties": 2},
        {"parties": (*study.parties, extra)},
        {"analysts": (*study.analysts, extra)},
        {"servers": study.servers[::-1]},
    ]
    prints = [replace(study, **change).fingerprint for change in changes]
    masked = replace(study, route="masks", servers=study.servers[:1], minimum_parties=3)
    options = [{}, {"colluding": 1}, {"stage_seconds": 60.0}]
    prints += [replace(masked, **change).fingerprint for change in options]
    assert len({study.fingerprint, *prints}) == len(changes) + len(options) + 1


def test_parties_can_come_from_a_file(trial, tmp_path):
    path = edited(trial, tmp_path, "study.toml", 'name = "trial"',
                  'name = "trial"\nparties_file = "phones.csv"')  # fmt: skip
    keys = [write_new_key(tmp_path / f"{i}.phone") for i in range(3)]
    (tmp_path / "phones.csv").write_text(
        "".join(f"phone-{i},{key}\n" for i, key in enumerate(keys))
    )
    study = Study.read(path)
    assert [member.name for member in study.parties][-3:] == ["phone-0", "phone-1", "phone-2"]
    assert study.party_keys["phone-2"]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("alpha.toml", "listen", "listne", "is 'listne' a misspelling"),
        ("alpha.toml", 'listen = "127.0.0.1:', 'listen = "127.0.0.1;', "host:port"),
        ("alpha.toml", 'name = "alpha"', 'name = "omega"', "not a server of this study"),
        ("alpha.toml", 'study = "study.toml"', 'study = "no.toml"', "no configuration file"),
        ("alpha.toml", "seconds = 30", "seconds = 0", "seconds must be above 0"),
        ("alpha.toml", "seconds = 30", "secs = 30", "unknown keys"),
    ],
)
def test_a_wrong_server_file_is_refused_in_words(trial, tmp_path, name, old, new, message):
    path = edited(trial, tmp_path, name, old, new)
    with pytest.raises(ConfigurationError, match=message):
        ServerSettings.read(path)


def test_a_wrong_certificate_is_refused_in_words(trial, tmp_path):
    path = edited(trial, tmp_path, "alpha.toml", "alpha.crt", "beta.crt")
    with pytest.raises(ConfigurationError, match="cannot use certificate"):
        ServerSettings.read(path).tls()


def test_a_noiseless_study_needs_a_server_that_allows_it(tmp_path):
    trial = make_trial(tmp_path, noiseless_test=True)
    assert ServerSettings.read(trial.config("alpha")).study.name == "TEST-trial"
    path = trial.config("alpha")
    path.write_text(path.read_text().replace("allow_noiseless_test = true", ""))
    with pytest.raises(ConfigurationError, match="adds no noise"):
        ServerSettings.read(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("north.key", "nobody.key", "no private key at"),
        ("north.key", "alpha.tls.key", "make an Ed25519 key"),
        ("north.key", "study.toml", "not an unencrypted PEM key"),
        ('name = "north"', 'name = "north"\n[addresses]\nomega = "https://x"\n', "not a server"),
    ],
)
def test_a_wrong_party_file_is_refused_in_words(trial, tmp_path, old, new, message):
    path = edited(trial, tmp_path, "north.toml", old, new)
    if "[addresses]" in new:
        path.write_text(path.read_text().replace(new, 'name = "north"') + new.split("\n", 1)[1])
    with pytest.raises(ConfigurationError, match=message):
        ClientSettings.read(path)


def test_addresses_must_be_https(trial, tmp_path):
    path = edited(trial, tmp_path, "study.toml", "https://", "http://")
    with pytest.raises(ConfigurationError, match="must begin with https"):
        ClientSettings.read(path.with_name("north.toml"))


def test_private_keys_are_for_their_owner_only(trial):
    for name in ("north.key", "alpha.tls.key"):
        assert (trial.folder / name).stat().st_mode & 0o077 == 0
