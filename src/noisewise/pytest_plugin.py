"""A pytest fixture, so that a team keeps the check in its test suite.

Enable it with ``pytest_plugins = ["noisewise.pytest_plugin"]`` in ``conftest.py`` (or not at all
where the package's entry point does so)::

    def test_our_training_is_private(assert_private):
        assert_private(train, build, loss, example=(x, y))

``pytest --privacy-report DIR`` writes the HTML page of each check to a folder, and
``--privacy-effort thorough`` spends more runs. The module stands at the top and imports torch
only when a check runs, so that it costs a test suite nothing to have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from noisewise.debugging import Findings

__all__ = ["assert_private", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("noisewise")
    group.addoption(
        "--privacy-report",
        metavar="DIR",
        default=None,
        help="write an HTML page for each privacy check into this folder",
    )
    group.addoption(
        "--privacy-effort",
        choices=("quick", "default", "thorough"),
        default=None,
        help="how many runs a privacy check may spend",
    )


@pytest.fixture
def assert_private(request: pytest.FixtureRequest) -> Callable[..., Findings]:
    """Return `noisewise.debugging.assert_private`, with the options of the command line."""
    from noisewise.debugging import PrivacyBugError, check

    folder = request.config.getoption("--privacy-report")
    effort = request.config.getoption("--privacy-effort")

    def run(
        train: Any, model_fn: Any, loss_fn: Any, *, allow_not_judged: bool = False, **arguments: Any
    ) -> Findings:
        # A failure shows the test and the findings, not these lines.
        __tracebackhide__ = True
        if effort is not None:
            arguments.setdefault("effort", effort)
        findings = check(train, model_fn, loss_fn, **arguments)
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^\w.-]+", "_", request.node.nodeid)
            findings.report(Path(folder) / f"{name}.html")
        if findings.verdict == "bug" or not (findings.ok or allow_not_judged):
            raise PrivacyBugError(findings)
        return findings

    return run
