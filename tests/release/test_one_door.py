"""Nothing but the kernel draws noise for a release, charges an account or makes a statement.

Read from the syntax tree of the whole library. What is not moved yet stands in `EXCEPTIONS`, name
by name; an entry that is no longer needed fails, so the list can only shrink.
"""

import ast
from pathlib import Path

import pytest

import noisewise

ROOT = Path(noisewise.__file__).parent

#: Functions that draw noise, by name. They belong to the kernel.
SAMPLERS = {
    "bernoulli_exp", "discrete_gaussian", "discrete_laplace", "normal_for", "normal_numpy", "polya",
}  # fmt: skip
#: Methods by which noise that was planned is drawn or used. Noise may be made of other noise, so
#: methods of these names may call each other; only the kernel calls them for a release, and
#: only there do exact numbers and noise meet (`applied`).
DRAWS = {".applied", ".draw", ".draw_share"}
#: What spends, called as a method or by its bare name. Parties get `approve` from the kernel, as an
#: argument, and call it with the value that nobody has seen.
CHARGES = {".approve", ".charge", ".charge_once", ".exchange_mark"}
#: What promises.
STATEMENTS = {"Promise", "Statement", "Statement.compose", "Statement.derive"}

#: Where these things are defined, and the kernel itself.
HOME = ("privacy/ledger.py", "privacy/statement.py", "privacy/randomness/")
KERNEL = "release/"

#: Draws records for experiments, and never noise.
NO_NOISE = ("debugging/",)

EXCEPTIONS = {
    "estimators/base.py": {".charge"},
    "estimators/fits.py": {".charge"},
}


def called(node):
    """Name of what is called: the function, or the method, or Statement's own."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "Statement":
            return f"Statement.{node.func.attr}"
        return f".{node.func.attr}"
    return ""


def offences(tree, draws=True):
    """Names of forbidden calls below a node."""
    found = set()

    def visit(node, inside_draw):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == "applied":
                found.add("def applied")
            inside_draw = inside_draw or f".{node.name}" in DRAWS
        if isinstance(node, ast.Call):
            name = called(node)
            if (
                name.lstrip(".") in SAMPLERS
                or name in CHARGES
                or (name != "approve" and f".{name}" in CHARGES)
                or name in STATEMENTS
                or (draws and name in DRAWS and not inside_draw)
            ):
                found.add(name)
        for child in ast.iter_child_nodes(node):
            visit(child, inside_draw)

    visit(tree, False)
    return found


def library():
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith((KERNEL, *HOME)):
            found = offences(ast.parse(path.read_text("utf-8")), not name.startswith(NO_NOISE))
            if found:
                yield name, found


def test_nothing_but_the_kernel_draws_noise_charges_or_states():
    assert dict(library()) == EXCEPTIONS


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def f(x, rng): return x + discrete_laplace((), 1, rng)", "discrete_laplace"),
        ("def f(x, s): return x + s.normal_numpy(3)", ".normal_numpy"),
        ("def f(x, s):\n    noise = s.block.draw(rng)\n    return x + noise", ".draw"),
        ("def f(m, x): return m.applied(x, None)", ".applied"),
        ("async def f(l): l.charge(1)", ".charge"),
        ("class A:\n    def pay(self): self._ledger.charge_once(1)", ".charge_once"),
        ("def f(ledger): charge_once(ledger, 1)", "charge_once"),
        ("def f(account): account.approve(1, '', '', None)", ".approve"),
        ("def f(): return Statement.derive(())", "Statement.derive"),
        ("def f(): return Statement(1, 2)", "Statement"),
        ("def f(): return Promise(()).state()", "Promise"),
        ("class N:\n    def applied(self, exact, rng): return exact", "def applied"),
        ("def draw(self, l): l.charge(1)", ".charge"),
    ],
)
def test_each_of_them_elsewhere_is_noticed(code, name):
    assert offences(ast.parse(code)) == {name}


def test_noise_may_be_made_of_noise():
    code = "class N:\n    def draw(self, rng): return sum(b.draw(rng) for b in self.blocks)"
    assert offences(ast.parse(code)) == set()
