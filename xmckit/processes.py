"""Python processes that this one starts: they import what this process can import, and they end with it.

    child = subprocess.Popen(command("my_package.worker:serve", "some", "arguments"), stdin=subprocess.PIPE, …)

A child that calls `end_with_stdin` ends as soon as the process that holds the other end of its stdin is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

# `sys` is compiled in, so nothing is imported before the path is set, not even from the working folder.
_START = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from {} import {} as main; main(*sys.argv[1:])"


def command(target: str, *arguments: str) -> list[str]:
    """Return the command that calls `package.module:function` with `arguments` in a new Python.

    The child searches the folders that this process searches; the working folder is not added.
    """
    module, _, function = target.partition(":")
    path = "\n".join(os.path.abspath(entry) for entry in sys.path if entry)
    return [sys.executable, "-c", _START.format(module, function), path, *arguments]


def end_with_stdin() -> None:
    """End this process as soon as its stdin is closed; nothing else may read from stdin."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def describe_exit(code: int) -> str:
    """Describe how a process ended: `exit code 3`, or `SIGSEGV (Segmentation fault)`."""
    if code >= 0:
        return f"exit code {code}"
    if -code not in set(signal.Signals):  # real-time signals have no names
        return f"signal {-code}"
    return f"{signal.Signals(-code).name} ({signal.strsignal(-code)})"
