"""Giving the room of deleted rows back to the disk: pages out of an SQLite file, and its write-ahead log emptied.

SQLite does both only outside of transactions, so they have a connection of their own here. No step holds the write
lock for longer than a batch of deletions does (LK-07); only rewriting the whole file does, on demand.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from agentstate.clock import monotonic, pause, rest_after
from agentstate.db import files
from agentstate.db.engine import open_sqlite
from agentstate.db.failures import translate_sqlite
from agentstate.errors import AgentStateError, DatabaseUnavailable, InvalidValue, NoRoomToRewrite
from agentstate.settings import Settings

STEP_PAGES = 1_000

_CHECKPOINTS = 5
_CHECKPOINT_WAIT = 100
"""Milliseconds. A checkpoint that waits for a reader keeps writers waiting, too."""

_AUTO_VACUUM = ("none", "full", "incremental")
Holder = Literal["reader", "writer"]


@dataclass(frozen=True, slots=True)
class SpaceReport:
    """How much room a database took before and after some of it was given back; sizes are bytes.

    `auto_vacuum` is SQLite's: "incremental" as we make files; "full" gives pages back by itself; with "none" a file
    keeps its size until it is rewritten; None where there is no file, and then every number is 0. `free_pages` hold
    nothing. `blocked_by_reader` says that somebody who is still reading kept the log from being emptied. `hint` tells
    a person what is left to do, if anything.
    """

    auto_vacuum: str | None
    free_pages_before: int = 0
    free_pages_after: int = 0
    file_before: int = 0
    file_after: int = 0
    wal_before: int = 0
    wal_after: int = 0
    blocked_by_reader: bool = False
    hint: str = ""


def reclaim_file(
    path: str, settings: Settings, *, max_pages: int, max_seconds: float | None, full: bool
) -> SpaceReport:
    """Give back up to `max_pages` pages of the file at `path`, and empty its log; `Database.reclaim` says it all."""
    if isinstance(max_pages, bool) or not isinstance(max_pages, int) or max_pages < 0:
        raise InvalidValue("max_pages", f"{max_pages!r} is not a number of pages")
    files.check(path, "rw")
    try:
        with closing(open_sqlite(path, "rw", settings)) as connection:
            free_before, file_before, wal_before = _free(connection), _size(path), _size(f"{path}-wal")
            if full:
                _rewrite(connection, path)
            else:
                _give_pages_back(connection, max_pages, max_seconds)
            holder = _empty_log(connection)
            auto_vacuum, free_after = _AUTO_VACUUM[_pragma(connection, "auto_vacuum")], _free(connection)
            return SpaceReport(
                auto_vacuum,
                free_before,
                free_after,
                file_before,
                _size(path),
                wal_before,
                _size(f"{path}-wal"),
                holder == "reader",
                _hint(auto_vacuum, free_after, holder),
            )
    except sqlite3.Error as error:

        def missing(detail: str) -> AgentStateError:
            return DatabaseUnavailable(path, detail)

        raise translate_sqlite(error, path, settings.busy_timeout, missing) or error from error


def _give_pages_back(connection: sqlite3.Connection, max_pages: int, max_seconds: float | None) -> None:
    began = monotonic()
    for start in range(0, max_pages, STEP_PAGES):
        if _free(connection) == 0:
            return
        started = monotonic()
        # As a script, which runs to its end: the driver's `execute` goes one step, and a step frees one page.
        connection.executescript(f"PRAGMA incremental_vacuum({min(STEP_PAGES, max_pages - start)})")
        ended = monotonic()
        if max_seconds is not None and ended - began >= max_seconds:
            return
        rest_after(ended - started)


def _rewrite(connection: sqlite3.Connection, path: str) -> None:
    """Rewrite the whole file without its free pages, from now on with auto_vacuum."""
    pages = _pragma(connection, "page_count") - _free(connection)
    needed, disk = pages * _pragma(connection, "page_size"), os.statvfs(os.path.dirname(path))
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise NoRoomToRewrite(path, needed, free)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("VACUUM")


def _empty_log(connection: sqlite3.Connection) -> Holder | None:
    """Write the log's pages into the file and cut it to nothing; return who kept it from that, if anybody did."""
    # First what disturbs nobody, so that little is left to do while writers wait.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT}").fetchall()
    for attempt in range(_CHECKPOINTS):
        if attempt:
            pause(_CHECKPOINT_WAIT / 1_000)
        if not _checkpoint(connection, "TRUNCATE")[0]:
            return None
    # Everybody who reads the newest pages from the log keeps it from being cut, but not from being copied.
    busy, pages, copied = _checkpoint(connection, "FULL")
    return "writer" if busy and copied == pages else "reader"


def _checkpoint(connection: sqlite3.Connection, kind: Literal["FULL", "TRUNCATE"]) -> tuple[int, int, int]:
    """Return whether it was kept from being done, the pages in the log, and how many of them are in the file, too."""
    busy, pages, copied = connection.execute(f"PRAGMA wal_checkpoint({kind})").fetchone()
    return busy, pages, copied


def _hint(auto_vacuum: str, free_pages: int, holder: Holder | None) -> str:
    hints: list[str] = []
    if auto_vacuum == "none":
        hints.append(
            "the file was made without auto_vacuum and keeps its size: 'agentstate maintain --full' rewrites it once, "
            "which needs as much free disk as the file has and keeps writers waiting, and switches auto_vacuum on"
        )
    elif free_pages:
        hints.append(f"{free_pages} free pages are left for the next run")
    if holder == "reader":
        hints.append("somebody is still reading what was there before, so that the write-ahead log cannot be emptied")
    if holder == "writer":
        hints.append("somebody is writing, so that the write-ahead log could not be emptied this time")
    return "; ".join(hints)


def _free(connection: sqlite3.Connection) -> int:
    return _pragma(connection, "freelist_count")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0
