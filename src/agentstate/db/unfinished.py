"""What a copy, or a database that is being restored, is called until it is whole and gets its name.

The name says which process makes it, and on which machine, so that what a killed one left can be told from what
another one is making at this moment, in a directory that several machines share too.
"""

from __future__ import annotations

import os
import re
from typing import Literal

Kind = Literal["partial", "restoring"]

_FORM = re.compile(
    r".*\.(?P<kind>partial|restoring)-(?P<machine>.*)-(?P<process>\d+)(?:-wal|-shm|-journal)?", re.DOTALL
)


def unfinished(path: str, kind: Kind) -> str:
    """Return what this process calls the file that is to be at `path`: a copy, or a database that is restored."""
    return f"{path}.{kind}-{os.uname().nodename}-{os.getpid()}"


def abandoned(name: str, *kinds: Kind) -> bool:
    """Return whether a file of this name was being made by a process, of this machine, that is gone."""
    found = _FORM.fullmatch(name)
    if found is None or found["kind"] not in kinds:
        return False
    return found["machine"] == os.uname().nodename and not _alive(int(found["process"]))


def waiting_to_replace(path: str) -> list[str]:
    """Return the whole databases, sidecars left out, that a restore has made for `path` and not put there yet."""
    directory, name = os.path.split(path)
    try:
        entries = os.listdir(directory)
    except OSError:
        return []
    return sorted(
        os.path.join(directory, entry)
        for entry in entries
        if entry.startswith(f"{name}.restoring-") and not entry.endswith(("-wal", "-shm", "-journal"))
    )


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
