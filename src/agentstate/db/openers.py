"""Who has a database open, asked of the kernel: SQLite would have to change what lies beside the file to find out.

There are two witnesses. The list of every process's open files knows all processes that this user may look into, also
those that only wait. The lock that SQLite keeps on a database in mode WAL for as long as it is open is seen whoever has
it, in a container or on another machine of the same file system too, if that one passes locks on. What neither sees:
another user's process that has a database open in another mode than WAL and neither reads nor writes at this moment.

Run as a program, `python -P openers.py FILE` prints [[process, name], …] and whether somebody has a lock, as JSON.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys

_LOCKS = (512, 0x40000000)
"""Length and start of the bytes that SQLite locks to read or write a file, as its file format says."""


def openers(path: str) -> list[str]:
    """Return the processes that have the file at `path` open, as a person reads them, `python3 (pid 71)`.

    Raises `DatabaseUnavailable` when that cannot be told, because the file is somebody else's.
    """
    from agentstate.db import outside  # neither is for the program
    from agentstate.errors import DatabaseUnavailable

    try:
        seen, locked = outside.ask(__file__, path, _witnesses)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(path, f"whether others have it open cannot be told: {error.reason}") from error
    me = os.getpid()
    names = [f"this process ({me})" if process == me else f"{name} (pid {process})" for process, name in seen]
    return names or (["a process that this user cannot see"] if locked else [])


def _seen(path: str) -> list[tuple[int, str]]:
    file = os.stat(path)
    found = []
    for entry in sorted(filter(str.isdecimal, _entries("/proc")), key=int):
        directory = f"/proc/{entry}/fd"
        if any(_is(file, f"{directory}/{descriptor}") for descriptor in _entries(directory)):
            found.append((int(entry), _name(entry)))
    return found


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []  # gone meanwhile, another user's, or a system without such a list


def _is(file: os.stat_result, name: str) -> bool:
    try:
        found = os.stat(name)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)


def _name(process: str) -> str:
    try:
        with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"


def _locked(path: str) -> bool:
    """Return whether another process has one of SQLite's locks; asking takes it for a moment, if it is free."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *_LOCKS)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return True
    finally:
        os.close(descriptor)
    return False


def _witnesses(path: str) -> tuple[list[tuple[int, str]], bool]:
    seen = _seen(path)
    if any(process == os.getpid() for process, _ in seen):
        return seen, False  # not asked, because closing the file would drop this process's locks on it
    return seen, _locked(path)


if __name__ == "__main__":
    try:
        print(json.dumps(_witnesses(sys.argv[1])))
    except OSError as error:
        sys.exit(str(error.strerror))
