"""A complete copy of an SQLite database, taken while others use it."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress

from agentstate.db import files
from agentstate.db.engine import open_sqlite
from agentstate.db.failures import translate_sqlite
from agentstate.errors import DatabaseCorrupt, DatabaseUnavailable
from agentstate.settings import Settings


def write_backup(source: str, destination: str, settings: Settings) -> None:
    """Copy the database at `source` to the new file `destination`, which alone is complete.

    The copy is made by SQLite's online backup, so it holds everything committed before the call however much is
    written meanwhile (FS-08); it is checked, has mode 0600, and appears under its name only when it is whole. Raises
    `DatabaseUnavailable` when the destination exists or cannot be written, `DatabaseFull`, and for the source what
    `Database.open` raises.
    """
    files.check(source, "ro")
    if os.path.lexists(destination):
        raise DatabaseUnavailable(destination, "something is there already; choose another name")
    partial = f"{destination}.partial-{os.getpid()}"
    if not files.create(partial):
        raise DatabaseUnavailable(destination, f"{partial} is in the way; remove it")
    try:
        files.refuse_links(partial)
        _copy(source, partial, settings)
        _put_in_place(partial, destination)
        _sync_directory(destination)
    except sqlite3.Error as error:
        writing = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
        name = destination if writing else source
        raise (translate_sqlite(error, name, settings.busy_timeout, _impossible) or error) from error
    except OSError as error:
        raise DatabaseUnavailable(destination, str(error.strerror)) from error
    finally:
        for leftover in (partial, *(partial + suffix for suffix in files.SIDECARS)):
            with suppress(FileNotFoundError):
                os.unlink(leftover)


def _copy(source: str, partial: str, settings: Settings) -> None:
    with closing(open_sqlite(source, "ro", settings)) as original, closing(sqlite3.connect(partial)) as copy:
        original.backup(copy)
        # The copy carries the original's WAL mark; without it one file is the whole database.
        copy.execute("PRAGMA journal_mode = DELETE")
        answer = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if answer != "ok":
            raise DatabaseCorrupt(source, str(answer))


def _put_in_place(partial: str, destination: str) -> None:
    """Give the finished copy its name; a link, unlike a rename, never replaces what appeared there meanwhile."""
    try:
        os.link(partial, destination)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        os.rename(partial, destination)  # a file system without hard links


def _sync_directory(path: str) -> None:
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _impossible(detail: str) -> DatabaseUnavailable:
    return DatabaseUnavailable("the backup", detail)
