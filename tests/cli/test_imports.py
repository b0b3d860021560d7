"""What a command imports: nothing heavy for a word of help, no server on a party's machine."""

import importlib
import subprocess
import sys

import pytest

from noisewise.cli.commands import app
from noisewise.privacy.accountants import ACCOUNTANTS

RUN = """
import sys
sys.argv = ["noisewise", *{arguments!r}]
from noisewise.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("\\n".join(sys.modules), file=sys.stderr)
"""
SERVER = ("access", "intake", "marks", "releases", "reservations", "service", "serving", "state",
          "store", "masks.service", "masks.handouts")  # fmt: skip


def modules_after(program: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a program."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["train", "--help"], ["contribute", "--help"]]
)
def test_a_word_of_help_imports_nothing_that_computes(arguments):
    """Completion asks the same at every press of the key."""
    loaded = modules_after(RUN.format(arguments=arguments))
    assert "noisewise.cli" in loaded
    heavy = {"torch", "sklearn", "matplotlib", "aiohttp", "numpy", "pandas", "scipy"}
    assert not loaded & heavy


def test_the_help_of_budget_knows_every_accountant():
    """The words stand in the command, because the registry needs what computes."""
    (budget,) = (each for each in app.registered_commands if each.callback.__name__ == "budget")
    hint = budget.callback.__annotations__["accountant"]
    assert "; ".join(f"{a.name}: {a.words}" for a in ACCOUNTANTS.values()) in hint


def test_training_would_be_noticed_by_the_test_above():
    program = "import noisewise.training, sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    assert "torch" in modules_after(program)


def test_a_party_that_contributes_loads_no_server():
    pytest.importorskip("aiohttp")
    # What `noisewise contribute` imports when it runs, to the last name.
    program = (
        "from noisewise.cli.contribute import contribute\n"
        "from noisewise.federated.network import contribution\n"
        "from noisewise.federated.network.settings import ClientSettings\n"
        "from noisewise.federated.domain import Records\n"
        "from noisewise.cli.evaluate import read_predictions\n"
        "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    loaded = modules_after(program)
    assert "noisewise.federated.network.client" in loaded
    server = {f"noisewise.federated.network.{name}" for name in SERVER}
    assert not loaded & server
    assert "torch" not in loaded


def test_the_modules_of_the_server_are_those_that_it_loads():
    pytest.importorskip("aiohttp")
    program = (
        "from noisewise.federated.network import run_server\n"
        "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    assert {f"noisewise.federated.network.{name}" for name in SERVER} <= modules_after(program)


def test_every_name_of_the_network_is_found_where_it_lives():
    pytest.importorskip("aiohttp")
    network = importlib.import_module("noisewise.federated.network")
    named = {name for names in network._HOMES.values() for name in names}
    assert named >= set(network.__all__)  # the others are for packages of our own
    for name in named:
        assert getattr(network, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = network.nothing_here
