"""Engines: the only place where connections are made and prepared, and where BEGIN is written.

SQLite's driver is kept out of transactions (`isolation_level = None`): writers say BEGIN IMMEDIATE, so that waiting for
the lock happens at the start and under the busy timeout; a deferred read-then-write fails at once instead, or loses
an update silently (LK-01, LK-02).
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.engine import ExceptionContext

from agentstate.clock import monotonic, pause
from agentstate.db import files, forks
from agentstate.db.failures import translate_sqlite
from agentstate.errors import AgentStateError, DatabaseUnavailable
from agentstate.settings import Settings

log = logging.getLogger("agentstate")

WRITES = "agentstate_writes"
"""Execution option of a connection: whether its transactions take the write lock."""

SCHEMA = "agentstate_schema"
"""Execution option of a connection to a server: its transactions "use" the schema or "change" it, else only look."""

_MAY_WRITE = "agentstate_may_write"
"""What was last said to a SQLite connection about writing, kept with the connection."""

MINIMUM_SQLITE = (3, 35, 0)
"""RETURNING and DROP COLUMN."""


Missing = Callable[[str], AgentStateError]


def file_engine(path: str, mode: files.Mode, settings: Settings, missing: Missing) -> Engine:
    """Return an engine for the SQLite file at `path`; every connection is checked and prepared as it is made.

    Any number of connections may be open at once, so that waiting for the write lock is SQLite's busy timeout and
    never a queue for a connection. A read-only handle in a directory that cannot be written opens a new connection
    each time, because whether the file may be read without its sidecars is decided anew each time (FS-02). `missing`
    makes the error for a table or column that is not there.
    """

    def connect() -> sqlite3.Connection:
        if files.check(path, mode) is None:
            files.create(path)
        return open_sqlite(path, mode, settings)

    if mode == "ro" and not files.writable_directory(path):
        engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    else:
        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=5, max_overflow=-1)
    forks.close_idle_before_fork(engine)
    return _with_events(engine, path, settings, missing)


def looking_engine(path: str, query: str, settings: Settings, missing: Missing) -> Engine:
    """Return an engine for looking at the SQLite file at `path` in one certain way: `query` is SQLite's, of its URI."""

    def connect() -> sqlite3.Connection:
        files.check(path, "ro")
        return _connect(path, query, "ro", settings)

    return _with_events(create_engine("sqlite://", creator=connect, poolclass=NullPool), path, settings, missing)


def keeps_a_log(path: str, settings: Settings) -> bool:
    """Return whether the file is in mode WAL, asked for without locks and without making anything beside it."""
    try:
        _connect(path, "mode=ro&nolock=1", "ro", settings).close()
    except sqlite3.OperationalError as error:
        # Without locks there is no log either: a file in mode WAL cannot be opened so.
        return getattr(error, "sqlite_errorname", "") == "SQLITE_CANTOPEN"
    except sqlite3.DatabaseError:
        pass  # whatever it is, whoever opens it with locks is told
    return False


def memory_engine(name: str, settings: Settings, missing: Missing) -> Engine:
    """Return an engine with one connection to a database in memory, shared by all threads, one at a time (CN-02).

    The pool hands the connection out and makes others wait for it, up to the busy timeout.
    """

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=settings.busy_timeout,
    )
    return _with_events(engine, name, settings, missing)


def server_engine(url: str, settings: Settings, missing: Missing) -> Engine:
    """Return an engine for the PostgreSQL server that the URL names; its driver is loaded only now."""
    from agentstate.db import postgresql

    postgresql.load_driver()
    engine = create_engine(
        "postgresql+psycopg://",
        pool_pre_ping=True,
        pool_size=settings.pool_size,
        max_overflow=0,
        pool_timeout=settings.busy_timeout,
    )
    return postgresql.with_events(engine, url, settings, missing)


def ensure_journal_mode(connection: sqlite3.Connection, path: str, settings: Settings) -> None:
    """Put the database into the journal mode that is wanted; a mode that cannot be had is reported, not fatal (FS-01).

    Switching to WAL fails at once while somebody else is writing, whatever the busy timeout (LK-06), so it is tried
    again until the timeout, outside any transaction. Leaving WAL fails as long as anybody else has the database open,
    which may be for days, so it is tried once.
    """
    wanted = settings.journal_mode or _default_journal_mode(path)
    deadline = monotonic() + settings.busy_timeout
    while True:
        current = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        if current == wanted:
            return
        try:
            answer = str(connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()[0])
        except sqlite3.OperationalError as error:
            if not str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY"):
                raise
            if current != "wal" and monotonic() < deadline:
                pause(0.02)
                continue
            answer = current
        if answer != wanted:
            log.warning("%s: journal mode %s was asked for, the database stays in %s", path, wanted, answer)
        return


def _default_journal_mode(path: str) -> str:
    mount = files.shared_mount(path)
    if mount is None:
        return "wal"
    log.warning("%s lies on %s, where WAL is not safe: journal mode DELETE is used", path, mount)
    return "delete"


def open_sqlite(path: str, mode: files.Mode, settings: Settings) -> sqlite3.Connection:
    """Return a prepared connection to an existing file; raises the driver's errors as they are."""
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        raise DatabaseUnavailable(path, f"SQLite {sqlite3.sqlite_version} is too old, 3.35 or newer is needed")
    if mode != "ro":
        return _connect(path, "mode=rw", mode, settings)
    try:
        return _connect(path, "mode=ro", mode, settings)
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        if files.writable_directory(path) or name not in ("SQLITE_READONLY_DIRECTORY", "SQLITE_CANTOPEN"):
            raise
    # A database in WAL mode, whose shared memory cannot be made in this directory (FS-02).
    if files.has_wal(path):
        raise DatabaseUnavailable(
            path,
            f"its newest rows are in {path}-wal, which only a user who may write to {os.path.dirname(path)} can read "
            "while nobody else has the database open",
        )
    return _connect(path, "mode=ro&immutable=1", mode, settings)


def _connect(path: str, query: str, mode: files.Mode, settings: Settings) -> sqlite3.Connection:
    # From parts, never by pasting: '?', '#' and '%' in a path would name another file (CN-06).
    connection = forks.OwnConnection(
        path,
        f"file:{quote(os.fsencode(path))}?{query}",
        uri=True,
        timeout=settings.busy_timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if mode != "ro":
            connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
            _prepare_file(connection, path, settings)
        connection.execute("PRAGMA schema_version").fetchone()  # reads the first page: is it a database at all?
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare_file(connection: sqlite3.Connection, path: str, settings: Settings) -> None:
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
        # Lasting properties, before the first page makes them final.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        ensure_journal_mode(connection, path, settings)
    elif (
        settings.journal_mode in ("truncate", "persist")
        and connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal"
    ):
        # These two belong to the connection and not to the file. Leaving WAL is for `ensure_journal_mode`.
        connection.execute(f"PRAGMA journal_mode = {settings.journal_mode}")


def _with_events(engine: Engine, name: str, settings: Settings, missing: Missing) -> Engine:
    def translate(context: ExceptionContext) -> BaseException | None:
        """Return our own error in place of the driver's; one of ours that a type raised comes out as it was."""
        original = context.original_exception
        if isinstance(original, AgentStateError):
            return original
        return translate_sqlite(original, name, settings.busy_timeout, missing)

    def begin(connection: Connection) -> None:
        """Begin on the driver's connection: through SQLAlchemy the two statements would cost as much as the rest."""
        writes = connection.get_execution_options().get(WRITES, False)
        driver: Any = connection.connection.driver_connection
        try:
            # query_only makes a statement that writes fail in a reading unit, instead of being rolled back unnoticed.
            # Said only when it changes: it makes SQLite compile every statement of the connection anew.
            if connection.info.get(_MAY_WRITE) is not writes:
                driver.execute(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
                connection.info[_MAY_WRITE] = writes
            driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        except sqlite3.Error as error:
            raise translate_sqlite(error, name, settings.busy_timeout, missing) or error from error

    event.listen(engine, "begin", begin)
    event.listen(engine, "handle_error", translate)
    return engine
