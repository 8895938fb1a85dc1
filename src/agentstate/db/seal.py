"""The seal of a backup: a line after its last page, with a checksum of all bytes before it.

SQLite's own check knows the structure of a file, and not what rows are meant to say: a byte that flips within a text
goes unnoticed. A seal notices every one. SQLite itself does not look behind the last page, so that a sealed file is a
database like any other; one that is written to loses its seal sooner or later, and until then says that it was.

Run as a program, `python -P seal.py FILE` prints the state of the file's seal as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from typing import BinaryIO, Literal

State = Literal["intact", "broken", "cut", "written since", "none"]

_SEAL = re.compile(rb"\nagentstate backup 1 ([0-9a-f]{64}) ([0-9a-f]{8})\n")
_LENGTH = len(b"\nagentstate backup 1 \n ") + 64 + 8
_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_PIECE = 2**20


def put(path: str) -> None:
    """Seal the finished copy at `path`, which nobody else knows yet, and have it on the disk when this returns."""
    with open(path, "r+b") as file:
        digest, changes = _digest(file, os.fstat(file.fileno()).st_size), _changes(file)
        file.seek(0, os.SEEK_END)
        file.write(b"\nagentstate backup 1 %s %s\n" % (digest, changes))
        file.flush()
        os.fsync(file.fileno())


def state(path: str) -> State:
    """Return whether the file at `path` is as it was when it was sealed.

    "broken" is one whose bytes changed though no program wrote to it as a database; "cut" one that ends within a page;
    "none" one that has no seal, as other programs' copies and databases in use.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - _LENGTH, 0))
        found = _SEAL.fullmatch(file.read())
        file.seek(0)
        header = file.read(_HEADER)
        if found is None:
            page_size = int.from_bytes(header[16:18], "big")
            page_size = 65_536 if page_size == 1 else page_size
            is_database = header.startswith(_MAGIC) and page_size
            return "cut" if is_database and size % page_size else "none"
        if _digest(file, size - _LENGTH) == found[1]:
            return "intact"
        # Who writes says so in both places, which no single flipped byte does.
        written = _changes(file) != found[2] and header[24:28] == header[92:96]
        return "written since" if written else "broken"


def _digest(file: BinaryIO, size: int) -> bytes:
    file.seek(0)
    digest = hashlib.sha256()
    while size:
        piece = file.read(min(size, _PIECE))
        if not piece:
            break
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest().encode()


def _changes(file: BinaryIO) -> bytes:
    """Return SQLite's counter of changes, which every program that writes counts up."""
    file.seek(24)
    return file.read(4).hex().encode()


if __name__ == "__main__":
    print(json.dumps(state(sys.argv[1])))
