"""What is written is whole, on the disk, and its owner's alone, whatever was there before."""

import os
import stat

import pytest

from noisewise.errors import StateError
from noisewise.files.durable import private_file, private_folder, replace_file, write_anew
from noisewise.files.locks import locked


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.parametrize("existing", [None, 0o755, 0o777, 0o750, 0o1777, 0o700])
def test_a_folder_of_state_has_mode_0700_even_if_it_existed(tmp_path, umask, existing):
    folder = tmp_path / "above" / "state"
    if existing is not None:
        folder.mkdir(parents=True)
        folder.chmod(existing)
    assert private_folder(folder) == folder
    assert mode(folder) == 0o700


def test_a_folder_behind_a_link_is_narrowed_too(tmp_path):
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("real")
    private_folder(tmp_path / "link")
    assert mode(tmp_path / "real") == 0o700


def test_what_is_no_folder_is_refused_with_a_word(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(StateError, match="no folder"):
            private_folder(path)


def test_a_mode_that_cannot_be_changed_is_refused_with_a_word(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.chmod", refuse)
    with pytest.raises(StateError, match="0755"):
        private_folder(tmp_path)


@pytest.mark.parametrize("existing", [0o644, 0o666, 0o600, 0o400])
def test_a_file_never_gains_rights(tmp_path, existing):
    path = tmp_path / "file"
    path.touch()
    path.chmod(existing)
    private_file(path)
    assert mode(path) == existing & 0o600


def test_a_replaced_file_has_mode_0600_whatever_it_or_its_draft_had(tmp_path, umask):
    path, draft = tmp_path / "state", tmp_path / "state.new"
    for old in (path, draft):
        old.write_bytes(b"old")
        old.chmod(0o666)
    replace_file(path, b"new")
    assert (path.read_bytes(), mode(path), draft.exists()) == (b"new", 0o600, False)


def test_a_draft_that_is_a_link_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (tmp_path / "state.new").symlink_to(victim)
    replace_file(tmp_path / "state", b"new")
    assert victim.read_bytes() == b"untouched"
    assert (tmp_path / "state").read_bytes() == b"new"


def test_a_checkpoint_belongs_to_its_owner_alone_even_if_it_existed(tmp_path):
    torch = pytest.importorskip("torch")
    from noisewise.training.checkpoints import read, write

    path = tmp_path / "run.checkpoint"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write(path, {"weights": torch.ones(2), "step": 3})
    assert mode(path) == 0o600
    assert read(path)["step"] == 3


def _device(place):
    """A private twin of the null device."""
    try:
        os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root can make devices")


def _lock(place):
    with locked(place, create=True):
        pass


@pytest.mark.parametrize("make", [os.mkfifo, _device, os.mkdir])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_regular_file_is_refused_and_left_as_it_is(tmp_path, make, beside, link):
    """Whoever is root could replace a device of the machine, or take its mode away."""
    real, path = tmp_path / "real", tmp_path / "file"
    place = path.with_name("file.new") if beside else path
    make(real if link else place)
    if link:
        place.symlink_to(real)
    before = place.stat()
    uses = [lambda: replace_file(path, b"x")]
    if not beside:
        uses += [lambda: write_anew(path, b"x"), lambda: private_file(path), lambda: _lock(path)]
    for use in uses:
        with pytest.raises((OSError, StateError), match="not a regular file"):
            use()
    assert place.stat() == before
    assert place.is_symlink() == link
    assert beside == (not path.exists())
