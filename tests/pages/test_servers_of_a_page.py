"""The commands of the page on three hospitals, with real servers, as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("aiohttp")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "hospitals.md"


@pytest.mark.slow
def test_the_commands_of_three_hospitals_give_one_report(tmp_path):
    block = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    (program,) = block.findall(PAGE.read_text("utf-8"))
    rng = np.random.default_rng(0)
    for name in ("north", "south", "east"):
        sick = rng.random(60) < 0.3
        frame = pd.DataFrame({"sick": sick.astype(int), "score": rng.beta(2 + 2 * sick, 5)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    program = program.replace("noisewise ", f'"{sys.executable}" -m noisewise ')
    # Whatever happens, no server is left behind.
    program = "trap 'kill $(jobs -p) 2> /dev/null' EXIT\n" + program
    done = subprocess.run(
        ["bash", "-ec", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AUC" in done.stdout
    assert "Privacy statement" in (tmp_path / "joint.html").read_text("utf-8")
