"""Asking a process of its own about a file that may be in use here.

Reading a database by ordinary calls drops every lock that this process has on it, at the moment the file is closed
(FS-11). A process of its own has none to lose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from agentstate.db.database import is_held
from agentstate.errors import DatabaseUnavailable


def ask(program: str, path: str, here: Callable[[str], Any] | None = None) -> Any:
    """Run the module whose file is `program` on the file at `path`, and return what it prints as JSON.

    `here` gives the same answer in this process. It is asked where no process can be started, as in a sandbox, unless
    this one has the file open. Raises `DatabaseUnavailable` if neither can be asked, and with the program's last words
    when it ends badly.
    """
    try:
        done = subprocess.run(  # -P: beside the program lie modules with names of the standard library's
            [sys.executable, "-P", program, path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        if here is None or is_held(path):
            raise DatabaseUnavailable(path, f"no process can be started to look at it: {error.strerror}") from None
        try:
            return here(path)
        except OSError as obstacle:
            raise DatabaseUnavailable(path, str(obstacle.strerror)) from obstacle
    if done.returncode:
        raise DatabaseUnavailable(path, (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return json.loads(done.stdout)
