"""Modules beside a script, of which another script may have loaded others by the same names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["forget_strangers"]


def forget_strangers(folder: Path) -> None:
    """Forget modules that are named like files of this folder but came from another one."""
    for file in folder.glob("*.py"):
        loaded = getattr(sys.modules.get(file.stem), "__file__", None)
        if loaded is not None and Path(os.path.abspath(loaded)).parent != folder.resolve():
            del sys.modules[file.stem]
