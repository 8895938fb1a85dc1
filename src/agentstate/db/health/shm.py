"""A program of its own: says what the memory file of a write-ahead log holds, and who reads.

Run as `python -P shm.py FILE-shm`; prints JSON: `frames` in the log, how many of them are `backfilled` into the
database, and `readers`, each a process id and the number of frames that were there when it began. A process of its own,
because closing the file drops every lock that a process has on it (FS-11). It only reads: SQLite's "WAL-mode File
Format" says what lies where, and the kernel says who holds which lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys

_HEADER = struct.Struct("=IIIBBHI")
_HEADER_SIZE = 48
_CHECKPOINT = struct.Struct("=I5I")
_FIRST_READ_LOCK = 123
_READ_LOCKS = 5
_FLOCK = struct.Struct("hhqqi4x")
"""What the kernel of 64-bit Linux calls `struct flock`: kind, whence, start, length, process."""

_TRIES = 100


def index(descriptor: int) -> dict[str, object]:
    """Return what the file says; raises ValueError when it cannot be understood, or is not at rest for long enough."""
    for _ in range(_TRIES):
        content = os.pread(descriptor, 2 * _HEADER_SIZE + _CHECKPOINT.size, 0)
        if len(content) == 2 * _HEADER_SIZE + _CHECKPOINT.size and content[:_HEADER_SIZE] == content[_HEADER_SIZE:96]:
            break
    else:
        raise ValueError("its two headers differ")
    version, _, _, ready, _, _, frames = _HEADER.unpack_from(content)
    if version != 3_007_000 or not ready:
        raise ValueError("it is of another version")
    backfilled, *marks = _CHECKPOINT.unpack_from(content, 2 * _HEADER_SIZE)
    readers = []
    for number, mark in enumerate(marks):
        holder = _holder(descriptor, _FIRST_READ_LOCK + number)
        if holder is not None:
            # Who holds the first lock reads the database alone, which had everything when it began.
            readers.append([holder, mark if number else backfilled])
    return {"frames": frames, "backfilled": backfilled, "readers": readers}


def _holder(descriptor: int, byte: int) -> int | None:
    """Return the process that has a lock on the byte, 0 for one that cannot be seen from here, None for nobody."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(process, 0)


if __name__ == "__main__":
    print(json.dumps(index(os.open(sys.argv[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))))
