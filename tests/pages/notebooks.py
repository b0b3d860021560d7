"""The tutorials as notebooks: made from the pages, so that there is one text.

``python -m tests.pages.notebooks`` writes those that differ from their page; with ``--execute`` it
also runs them and keeps what they print.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in (ROOT / "docs" / "tutorials").glob("*.md") if p.name != "index.md")
FOLDER = ROOT / "docs" / "tutorials" / "notebooks"
PRINTED = re.compile(r'^ *#> .*\n|^( *)"""\n(?:.*\n)*?\1"""\n', re.MULTILINE)


def target_of(page: Path) -> Path:
    """Return where the notebook of a page is."""
    return FOLDER / f"{page.stem}.ipynb"


def notebook_of(page: Path) -> Any:
    """Return a page as a notebook: what is printed on the page is left to the notebook."""
    text = re.sub(r"^<!--.*-->\n", "", page.read_text("utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\]\((?!http|#)([\w./#-]+)\)", r"](../\1)", text)
    text = re.sub(r"^```bash$", "```console", text, flags=re.MULTILINE)
    text = re.sub(
        r"^```python\n# (\w+\.py)$", r"```python\n%%writefile \1", text, flags=re.MULTILINE
    )
    code = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
    text = code.sub(lambda block: PRINTED.sub("", block[0]), text)
    made = jupytext.reads(text, fmt="md")
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same every time
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    return made


def sources(notebook: Any) -> list[tuple[str, str]]:
    """Return what a notebook says, without what it printed."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def execute(notebook: Any, folder: Path, seconds: int = 1800) -> Any:
    """Run a notebook in a folder, with the noisewise of this repository."""
    from nbclient import NotebookClient

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), before]))
    try:
        client = NotebookClient(
            notebook, timeout=seconds, resources={"metadata": {"path": str(folder)}}
        )
        return client.execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def main(arguments: list[str]) -> None:
    """Write the notebooks that differ, or that are named."""
    FOLDER.mkdir(exist_ok=True)
    run = "--execute" in arguments
    named = [part for part in arguments if not part.startswith("--")]
    for page in PAGES:
        target, made = target_of(page), notebook_of(page)
        same = target.exists() and sources(nbformat.read(target, 4)) == sources(made)
        if (named and page.stem not in named) or (same and not named):
            continue
        if run:
            with tempfile.TemporaryDirectory() as folder:
                made = execute(made, Path(folder))
            for cell in made.cells:
                cell.metadata.pop("execution", None)  # times of the day
                if "outputs" in cell:  # warnings hold paths of this machine
                    cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        nbformat.write(made, target)
        print("written:", target.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
