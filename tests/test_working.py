"""Whoever waits for long is told so, on standard error; whoever does not is left alone."""

import io
import time

from rich.console import Console

from noisewise import working as module
from noisewise.working import working


def test_quick_work_says_nothing(capsys):
    with working("counting", after=60.0):
        pass
    with working("counting", after=0.0, quiet=True):
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_long_work_is_told_in_plain_lines_where_there_is_no_terminal(capsys):
    with working("certifying the model", after=0.0):
        time.sleep(0.2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("certifying the model: 0 s\n")
    assert "\x1b" not in said.err


def test_on_a_terminal_one_line_is_drawn_and_removed(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        module, "Console", lambda **_: Console(file=screen, force_terminal=True, width=60)
    )
    with working("auditing", after=0.0):
        time.sleep(0.3)
    shown = screen.getvalue()
    assert "auditing" in shown
    assert shown.rstrip().endswith("\x1b[?25h") or "\x1b[2K" in shown  # erased at the end


def test_an_exception_passes_and_the_line_ends():
    try:
        with working("failing", after=0.0):
            raise KeyError("gone")
    except KeyError:
        return
    raise AssertionError("the exception was swallowed")
