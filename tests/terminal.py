"""Standard error as a terminal, for tests of progress lines."""

import io
import sys


def on_terminal(monkeypatch):
    """Make standard error a terminal from here on; pytest would undo it if a fixture did it."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return sys.stderr
