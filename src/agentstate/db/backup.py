"""A complete copy of an SQLite database, taken while others use it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentstate.clock import utc_now
from agentstate.db import files, seal, state, targets
from agentstate.db.database import Database
from agentstate.db.failures import translate_sqlite
from agentstate.db.unfinished import unfinished
from agentstate.errors import (
    BackupExists,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseUnavailable,
    InvalidValue,
    SchemaBehind,
    SchemaUnversioned,
)
from agentstate.settings import Settings

OnProgress = Callable[[int, int], None]
"""Called with the number of pages copied so far, and of all."""

_STEP = 1_024
"""Pages copied between two looks at who wants to stop it."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup: its file and size in bytes, the database, and its schema's revision (None: it has none)."""

    file: str
    database: str
    revision: str | None
    size: int


def back_up(database: Database, destination: str, *, on_progress: OnProgress | None = None) -> Backup:
    """Copy the database to a new file: `destination`, or a file of a dated name in it if it is a directory.

    Whatever revision the schema has is copied, and tables without a version as well. Raises what `write_backup` raises,
    `InvalidValue` for a destination that cannot be, and for a database that it would be of no use to keep,
    `SchemaBehind` (it has no tables yet) or `ForeignDatabase`.
    """
    if database.path is None:
        raise InvalidValue("database", f"{database.name} is not a file")
    try:
        revision = database.revision()
        if revision is None:
            raise SchemaBehind(database.name, None, state.HEAD)
    except SchemaUnversioned:
        revision = None
    targets.refuse_mistyped_server(destination)
    if targets.is_server(destination):
        raise InvalidValue("destination", "it is a server's address, and a backup is a file")
    file = os.path.abspath(destination)
    if os.path.isdir(file):
        file = os.path.join(file, os.path.basename(dated(database.path, revision)))
    if os.path.lexists(file):
        raise BackupExists(file)
    file = files.resolve(file)
    if file in [database.path + suffix for suffix in files.SIDECARS]:
        raise InvalidValue("destination", f"{file} is where SQLite keeps what belongs to the database")
    _write(database, file, on_progress)
    return Backup(file, database.name, revision, os.stat(file).st_size)


def write_backup(source: str, destination: str, settings: Settings) -> None:
    """Copy the database at `source` to the new file `destination`, which alone is complete.

    The copy is made by SQLite's online backup from one snapshot, so it holds everything committed before the call
    however much is written meanwhile (FS-08); it is checked, sealed (`agentstate.db.seal`), has mode 0600, and appears
    under its name only when it is whole and on the disk. What a killed backup left in the same directory is removed.

    Raises `BackupExists`, `DatabaseUnavailable` when the destination cannot be written, `DatabaseFull`, and for the
    source what `Database.open` raises.
    """
    if os.path.lexists(destination):
        raise BackupExists(destination)
    with Database.open(source, "ro", settings=settings) as database:
        _write(database, destination, None)


def dated(path: str, revision: str | None) -> str:
    """Return the name that a backup of the database at `path` has beside it: with its revision and the current time."""
    return f"{path}.backup-{revision or 'unversioned'}-{moment()}"


def moment() -> str:
    """Return the current time as it stands in names of files: in their order, and without a colon."""
    return utc_now().strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"


def _write(database: Database, destination: str, on_progress: OnProgress | None) -> None:
    files.remove_stale_partials(destination)
    with new_file(destination, database) as partial:
        with database.connect() as connection:
            copy_pages(connection, partial, database.name, on_progress)
        seal.put(partial)
        _put_in_place(partial, destination)
        sync(os.path.dirname(destination) or ".")


@contextmanager
def new_file(destination: str, source: Database) -> Iterator[str]:
    """Give the name of a new file beside `destination`, empty and its owner's alone; it is gone when the block ends.

    Unless it has got another name by then. Errors of SQLite and of the system become ours, naming the destination where
    writing failed and the source where reading did.
    """
    partial = unfinished(destination, "partial")
    if not files.create(partial):
        raise DatabaseUnavailable(destination, f"{partial} is in the way; remove it")
    try:
        files.refuse_links(partial)
        yield partial
    except sqlite3.Error as error:
        writing = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
        name = destination if writing else source.name
        raise (translate_sqlite(error, name, source.settings.busy_timeout, _impossible) or error) from error
    except FileExistsError:
        raise BackupExists(destination) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DatabaseFull(destination) from error
        raise DatabaseUnavailable(destination, str(error.strerror)) from error
    finally:
        for leftover in (partial, *(partial + suffix for suffix in files.SIDECARS)):
            with suppress(OSError):
                os.unlink(leftover)


def copy_pages(connection: Connection, partial: str, name: str, on_progress: OnProgress | None) -> None:
    """Copy all pages that the open transaction sees into the empty file `partial`, and check the copy.

    The transaction makes all steps see the same, and none wait for a lock. Raises `DatabaseCorrupt` for the database
    called `name`, and the driver's errors as they are.
    """
    connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()  # what is seen is settled by reading
    original: Any = connection.connection.driver_connection

    def progress(status: int, remaining: int, total: int) -> None:
        if on_progress is not None:
            on_progress(total - remaining, total)

    with closing(sqlite3.connect(partial)) as copy:
        original.backup(copy, pages=_STEP, progress=progress)
        # The copy carries the original's WAL mark; without it one file is the whole database.
        copy.execute("PRAGMA journal_mode = DELETE")
        answer = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if answer != "ok":
            raise DatabaseCorrupt(name, str(answer))


def _put_in_place(partial: str, destination: str) -> None:
    """Give the finished copy its name; a link, unlike a rename, never replaces what appeared there meanwhile."""
    try:
        os.link(partial, destination)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        os.rename(partial, destination)  # a file system without hard links


def sync(path: str) -> None:
    """Have the file, or the names in the directory, on the disk when this returns; no database in use (FS-11)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _impossible(detail: str) -> DatabaseUnavailable:
    return DatabaseUnavailable("the backup", detail)
