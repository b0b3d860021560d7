"""Signatures by ssh-keygen count: of those on the list, for this file, and no others."""

import base64
import re
import shutil
import subprocess
from datetime import datetime, timedelta, timezone

import pytest

from noisewise.errors import SignatureError
from noisewise.privacy.signatures import verify_signature

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")

DATA = b'{"epsilon": 1.0}\n'
KINDS = {
    "ed25519": ["-t", "ed25519"],
    "rsa": ["-t", "rsa", "-b", "2048"],
    "p256": ["-t", "ecdsa", "-b", "256"],
    "p384": ["-t", "ecdsa", "-b", "384"],
    "p521": ["-t", "ecdsa", "-b", "521"],
}


def keygen(*arguments, **options):
    return subprocess.run(
        ["ssh-keygen", *map(str, arguments)], check=True, capture_output=True, **options
    )


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name, kind in KINDS.items():
        keygen("-q", *kind, "-N", "", "-C", "a comment", "-f", folder / name)
    return folder


def sign(keys, name, data=DATA, namespace="file", options=()):
    return keygen(
        "-Y", "sign", *options, "-n", namespace, "-f", keys / name, input=data
    ).stdout.decode()


def public(keys, name):
    return (keys / f"{name}.pub").read_text().strip()


def allow(keys, name, principal="anna@hospital.example", options=""):
    return f"{principal} {options} {public(keys, name)}\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [DATA, b"", bytes(range(256)) * 500])
def test_a_signature_of_every_kind_of_key_is_accepted(keys, kind, data):
    signer = verify_signature(data, sign(keys, kind, data), allow(keys, kind))
    assert signer.principals == "anna@hospital.example"
    shown = keygen("-l", "-f", keys / kind).stdout.decode()
    assert signer.key.split(" ")[1] in shown
    assert f"({signer.key.split(' ')[0]})" in shown


def test_the_other_hash_and_windows_line_ends_are_accepted(keys):
    text = sign(keys, "ed25519", options=("-O", "hashalg=sha256"))
    verify_signature(DATA, text, allow(keys, "ed25519"))
    verify_signature(DATA, text.replace("\n", "\r\n"), allow(keys, "ed25519"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_the_file_or_of_any_byte_of_the_signature_is_noticed(keys, kind):
    text, allowed = sign(keys, kind), allow(keys, kind)
    for other in (DATA + b" ", DATA[:-1], b"", DATA.replace(b"1.0", b"9.0")):
        with pytest.raises(SignatureError, match="does not belong"):
            verify_signature(other, text, allowed)
    body = re.search("-----\n(.*)-----END", text, re.DOTALL)[1]
    blob = base64.b64decode(body)
    for place in range(len(blob)):
        changed = bytearray(blob)
        changed[place] ^= 1
        with pytest.raises(SignatureError):
            verify_signature(DATA, _armour(changed), allowed)
    for size in (0, 5, 6, 10, len(blob) // 2, len(blob) - 1):
        with pytest.raises(SignatureError):
            verify_signature(DATA, _armour(blob[:size]), allowed)
    with pytest.raises(SignatureError, match="behind its end"):
        verify_signature(DATA, _armour(blob + b"\0"), allowed)


def _armour(blob):
    text = base64.b64encode(bytes(blob)).decode()
    return f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----\n"


def test_only_who_is_on_the_list_counts(keys):
    text = sign(keys, "ed25519")
    for allowed in ("", "# nobody\n\n", allow(keys, "p256"), f"# {allow(keys, 'ed25519')}"):
        with pytest.raises(SignatureError, match="not on your list"):
            verify_signature(DATA, text, allowed)
    both = allow(keys, "p256", "bob@x") + "\n# us\n" + allow(keys, "ed25519", '"anna@x,chief@x"')
    assert verify_signature(DATA, text, both).principals == "anna@x,chief@x"


def test_a_signature_for_another_purpose_is_refused(keys):
    with pytest.raises(SignatureError, match="namespace"):
        verify_signature(DATA, sign(keys, "ed25519", namespace="git"), allow(keys, "ed25519"))


NOW = datetime(2030, 6, 15, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("options", "good"),
    [
        ('namespaces="file"', True),
        ('namespaces="git,file"', True),
        ('namespaces="git"', False),
        ('namespaces="f*"', True),
        ('namespaces="!file,*"', False),
        ('NAMESPACES="fil?",valid-before="20300616"', True),
        ('valid-after="20300615115959Z"', True),
        ('valid-after="203006151201Z"', False),
        ('valid-before="203006151201Z"', True),
        ('valid-before="20300614"', False),
        ('valid-after="20300101",valid-before="20300201"', False),
        ("cert-authority", False),
        ('unheard-of="x"', False),
        ('namespaces="file",unheard-of', False),
    ],
)
def test_the_options_of_the_list_are_obeyed_and_unknown_ones_refuse(keys, options, good):
    allowed, text = allow(keys, "ed25519", options=options), sign(keys, "ed25519")
    if good:
        verify_signature(DATA, text, allowed, now=NOW)
        return
    with pytest.raises(SignatureError, match="only with"):
        verify_signature(DATA, text, allowed, now=NOW)
    # Another line for the same key may allow it.
    verify_signature(DATA, text, allowed + allow(keys, "ed25519"), now=NOW)


@pytest.mark.parametrize(
    "options",
    ["", 'namespaces="file"', 'namespaces="git"', 'namespaces="!file,*"', 'namespaces="f?le"',
     'valid-before="20200101"', 'valid-after="20200101Z"'],
)  # fmt: skip
def test_ssh_keygen_itself_decides_alike(keys, options, tmp_path):
    allowed, text = allow(keys, "ed25519", options=options), sign(keys, "ed25519")
    (tmp_path / "allowed").write_text(allowed)
    (tmp_path / "sig").write_text(text)
    theirs = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-n", "file", "-I", "anna@hospital.example", "-f",
         str(tmp_path / "allowed"), "-s", str(tmp_path / "sig")],
        input=DATA, capture_output=True, check=False,
    ).returncode == 0  # fmt: skip
    try:
        verify_signature(DATA, text, allowed)
        ours = True
    except SignatureError:
        ours = False
    assert ours == theirs


@pytest.mark.parametrize(
    "allowed",
    ["anna", "anna ssh-ed25519", "anna ssh-ed25519 !!", 'anna "x" ssh-ed25519 AAAA', "a b c d",
     'anna valid-after="yesterday" KEY', 'anna valid-after="20301399" KEY', "\0"],
)  # fmt: skip
def test_a_list_that_cannot_be_read_is_refused(keys, allowed):
    with pytest.raises(SignatureError):
        verify_signature(
            DATA, sign(keys, "ed25519"), allowed.replace("KEY", public(keys, "ed25519"))
        )


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN SSH SIGNATURE-----", _armour(b""), "\0"])
def test_what_is_no_signature_is_refused(text):
    with pytest.raises(SignatureError):
        verify_signature(DATA, text, "")


def test_short_rsa_keys_are_refused(tmp_path):
    keygen("-q", "-t", "rsa", "-b", "1024", "-N", "", "-f", tmp_path / "short")
    with pytest.raises(SignatureError, match="1024 bits"):
        verify_signature(DATA, sign(tmp_path, "short"), allow(tmp_path, "short"))


def test_a_list_that_expires_tomorrow_still_counts(keys):
    tomorrow = (datetime.now(timezone.utc) + timedelta(days=1)).strftime("%Y%m%d%H%MZ")
    allowed = allow(keys, "p384", options=f'valid-before="{tomorrow}"')
    verify_signature(DATA, sign(keys, "p384"), allowed)


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_a_comment_is_one_line_whatever_some_program_shows_as_the_end_of_one(
    keys, separator, tmp_path
):
    signature, entry = sign(keys, "ed25519"), allow(keys, "ed25519")
    for allowed in (f"# revoked{separator}{entry}", f"#{separator}{entry}"):
        with pytest.raises(SignatureError, match="not shown"):
            verify_signature(DATA, signature, allowed)
        assert not ssh_keygen_allows(allowed, signature, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        'valid-before="20200101",valid-before="20990101"',
        'valid-before="20990101",VALID-BEFORE="20200101"',
        'valid-after="20990101",valid-after="20200101"',
        'namespaces="git",namespaces="file"',
    ],
)
def test_an_option_that_is_given_twice_is_refused(keys, options, tmp_path):
    signature, allowed = sign(keys, "ed25519"), allow(keys, "ed25519", options=options)
    with pytest.raises(SignatureError, match="twice"):
        verify_signature(DATA, signature, allowed)
    assert not ssh_keygen_allows(allowed, signature, tmp_path)


def test_a_key_that_is_not_of_the_type_its_line_says_is_refused(keys, tmp_path):
    signature = sign(keys, "ed25519")
    allowed = allow(keys, "ed25519").replace("ssh-ed25519", "ssh-rsa")
    with pytest.raises(SignatureError, match="which its key is not"):
        verify_signature(DATA, signature, allowed)
    assert not ssh_keygen_allows(allowed, signature, tmp_path)


def ssh_keygen_allows(allowed, signature, folder):
    """Whether OpenSSH itself accepts the signature."""
    (folder / "allowed").write_text(allowed, newline="")
    (folder / "signature").write_text(signature)
    found = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-f", folder / "allowed", "-I", "anna@hospital.example",
         "-n", "file", "-s", folder / "signature"],
        input=DATA, capture_output=True, check=False,
    )  # fmt: skip
    return found.returncode == 0
