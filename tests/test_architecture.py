"""Dependencies point downward only: who may import whom, read from the source itself."""

import ast
from pathlib import Path

import pytest

import noisewise

ROOT = Path(noisewise.__file__).parent

#: What each subpackage may import besides itself and what is free to all.
ALLOWED = {
    "files": set(),
    "privacy": set(),
    "release": {"privacy"},
    "mechanisms": {"privacy", "release"},
    "datasets": {"privacy"},
    "bounds": {"privacy"},
    "nn": {"privacy", "bounds"},
    "separation": set(),
    "gradients": {"privacy", "bounds", "separation"},
    "training": {"privacy", "release", "bounds", "nn", "separation", "gradients", "datasets"},
    "estimators": {
        "privacy",
        "release",
        "mechanisms",
        "bounds",
        "nn",
        "gradients",
        "training",
        "datasets",
    },
    "ecdf": {"privacy", "release"},
    "federated": {"privacy", "release", "ecdf"},
    "huggingface": {"privacy", "training", "accelerate"},
    "debugging": {"privacy", "reports"},
    "auditing": {"privacy"},
    "analysis": {"privacy", "release", "bounds", "nn", "gradients", "training", "ecdf"},
    "reports": {"privacy"},
}
FREE = {"errors", "_version", "arithmetic", "checks", "files", "working"}
#: Names that a package shows and another one makes: imported when first used.
SHOWN = {
    "privacy/__init__.py imports noisewise.mechanisms",
    # A model recommends the plan that trains it.
    "nn/models/renewed.py imports noisewise.gradients",
    "nn/models/renewed.py imports noisewise.training",
}


def imports(path):
    """(module, at top level?) for every import of noisewise in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module == "noisewise":
                yield from (f"noisewise.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def offences(package, allowed):
    for path in sorted((ROOT / package).rglob("*.py")):
        for module in imports(path):
            parts = module.split(".")
            if parts[0] != "noisewise" or len(parts) < 2:
                continue
            if parts[1] not in allowed | {package} | FREE:
                yield f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize(
    "package", sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").is_file())
)
def test_dependencies_point_downward(package):
    if package in ("cli",):  # the commands stand on everything
        return
    assert package in ALLOWED, f"say in this test what {package} may import"
    assert set(offences(package, ALLOWED[package])) <= SHOWN


def shown_by(face):
    """What a package shows: to users in `__all__`, to other packages by "import name as name"."""
    shown = {path.stem for path in face.parent.iterdir()}
    for node in ast.walk(ast.parse(face.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            shown |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and target.id == "__all__":
                    shown |= set(ast.literal_eval(node.value))
    return shown


def reaching_in():
    """Imports of another package's modules instead of what its `__init__` shows."""
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module.startswith("noisewise."):
                continue
            package, *inside = node.module.split(".")[1:]
            if package == own or not (ROOT / package).is_dir():
                continue
            face = ROOT.joinpath(package, *inside, "__init__.py")
            if not face.is_file():
                yield f"{path.relative_to(ROOT)} imports from {node.module}"
                continue
            hidden = {alias.name for alias in node.names} - shown_by(face)
            if hidden:
                yield f"{path.relative_to(ROOT)}: {node.module} does not show {sorted(hidden)}"


def test_packages_are_imported_by_their_faces():
    assert list(reaching_in()) == []


def test_the_check_notices_an_upward_import():
    assert any("noisewise.privacy" in line for line in offences("release", set()))


def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_the_public_names_exist():
    for name in noisewise.__all__:
        assert getattr(noisewise, name) is not None
    for name in noisewise.privacy.__all__:
        assert getattr(noisewise.privacy, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        noisewise.nonsense  # noqa: B018
