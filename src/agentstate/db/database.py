"""The handle that a caller holds: one database, opened in one mode."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

from sqlalchemy import Connection, Engine, Pool

from agentstate.clock import utc_now
from agentstate.db import files, state, targets
from agentstate.db.base import Base
from agentstate.db.engine import ensure_journal_mode, file_engine, memory_engine, server_engine
from agentstate.db.failures import translate_sqlite
from agentstate.db.types import aware, plain_text
from agentstate.db.uow import UnitOfWork, connected, schema_change, unit_of_work
from agentstate.errors import (
    AgentStateError,
    DatabaseEmpty,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseUnavailable,
    InvalidValue,
    SchemaBehind,
)
from agentstate.settings import Settings, read_settings

if TYPE_CHECKING:
    from agentstate.db.space import SpaceReport

_abandoned: list[Pool] = []
"""Pools inherited through fork(): kept for ever, so that no child closes a connection that its parent uses (CN-01)."""

_handles: WeakSet[Database] = WeakSet()


class Database:
    """A database and the units of work on it. Threads may share one; after `os.fork()` the child reconnects by itself.

    A child forked while a unit of work is open, here or in another thread, gets `DatabaseUnavailable` instead: SQLite
    cannot lock the file in it (CN-01).

    with Database.open(path) as database, database.write() as work:
        RoleSessions(work).save("worker", "alice@bot.example", "s-1")
    """

    def __init__(
        self,
        engine_for: Any,
        *,
        kind: Literal["file", "memory", "server"],
        path: str | None,
        name: str,
        mode: files.Mode,
        settings: Settings,
    ) -> None:
        """Use `Database.open` or `Database.memory`."""
        self._engine_for = engine_for
        self._kind = kind
        self._engine: Engine = engine_for(self._missing)
        self._path = path
        self._name = name
        self._mode: files.Mode = mode
        self._settings = settings
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._file: tuple[int, int] | None = None
        self._at_head = False
        self._found: str | None = None
        self._memory_tables = 0
        self._complete_tables: set[str] = set()
        self._in_use = True
        _handles.add(self)

    @classmethod
    def open(cls, target: str | Path, mode: files.Mode = "rw", *, settings: Settings | None = None) -> Self:
        """Open the database at `target`: a path, or a URL, `sqlite:////var/lib/x/agent.db` or `postgresql://host/db`.

        `mode` is "rw" (the file must exist), "rwc" (an absent file is created, mode 0600, still without a schema) or
        "ro" (cannot write by construction, and reads a database that is older than this code). `settings` None takes
        them from the environment.

        Raises `DatabaseMissing`, `DatabaseEmpty`, `DatabaseUnavailable`, `NotADatabase` or `DatabaseCorrupt` when the
        file is not a usable database, whose bytes do not change, and `InvalidValue` for an unusable target. The
        state of the schema is looked at by the first unit of work.
        """
        if mode not in ("rw", "rwc", "ro"):
            raise InvalidValue("mode", f"{mode!r} is not one of rw, rwc, ro")
        chosen = read_settings() if settings is None else settings
        database = (
            cls._server(str(target), mode, chosen) if targets.is_server(target) else cls._file_at(target, mode, chosen)
        )
        try:
            database._probe()
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def _file_at(cls, target: str | Path, mode: files.Mode, settings: Settings) -> Self:
        path = files.resolve(targets.file_path(target))
        return cls(
            lambda missing: file_engine(path, mode, settings, missing),
            kind="file",
            path=path,
            name=path,
            mode=mode,
            settings=settings,
        )

    @classmethod
    def _server(cls, url: str, mode: files.Mode, settings: Settings) -> Self:
        plain_text(url, "database")
        from agentstate.db.postgresql import without_password  # only whoever has a server loads what knows it

        return cls(
            lambda missing: server_engine(url, settings, missing),
            kind="server",
            path=None,
            name=without_password(url),
            mode=mode,
            settings=settings,
        )

    @classmethod
    def memory(cls, *, settings: Settings | None = None) -> Self:
        """Return a new database in memory, with the tables of every area imported so far; importing one adds its.

        It lives as long as the handle. All threads share its one connection and wait for each other; opening a unit
        inside another one on the same database therefore waits for itself and ends in `DatabaseBusy`.
        """
        chosen = Settings() if settings is None else settings
        name = "the database in memory"
        return cls(
            lambda missing: memory_engine(name, chosen, missing),
            kind="memory",
            path=None,
            name=name,
            mode="rw",
            settings=chosen,
        )

    @contextmanager
    def write(self, *, now: datetime | None = None) -> Iterator[UnitOfWork]:
        """Open a unit of work that writes: leaving the block commits, an exception rolls back.

        `now` (aware; None: the current time) is the time of everything written in it. Waits for the write lock up to
        the busy timeout, then raises `DatabaseBusy`. Raises `DatabaseReadOnly` on a handle of mode "ro", and
        `SchemaBehind`, `SchemaAhead`, `SchemaUnversioned` or `ForeignDatabase` unless the schema is this code's own.
        """
        if self.readonly:
            raise DatabaseReadOnly(self._name)
        self._prepare(writes=True)
        with self._unit(writes=True, now=now) as work:
            yield work
            self._check_still_there()

    @contextmanager
    def read(self, *, now: datetime | None = None) -> Iterator[UnitOfWork]:
        """Open a unit of work that only reads, from one consistent snapshot; a write in it raises `DatabaseReadOnly`.

        An older or newer schema is read as far as it goes (`agentstate.db.compat.readable`). Raises
        `SchemaUnversioned` or `ForeignDatabase` for a database that is not ours.
        """
        self._prepare(writes=False)
        with self._unit(writes=False, now=now) as work:
            yield work

    @property
    def readonly(self) -> bool:
        """Whether this handle cannot write."""
        return self._mode == "ro"

    @property
    def path(self) -> str | None:
        """The absolute path of the SQLite file, links resolved; None for a database in memory or on a server."""
        return self._path

    @property
    def backend(self) -> str:
        """The engine behind it: "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    @property
    def in_memory(self) -> bool:
        """Whether the database lives only as long as this handle."""
        return self._kind == "memory"

    @property
    def url_without_password(self) -> str:
        """The URL of the database, fit for logs and messages."""
        if self._kind == "server":
            return self._name
        return "sqlite://" if self._path is None else targets.file_url(self._path)

    @property
    def name(self) -> str:
        """How messages call the database: its path, or its URL without the password."""
        return self._name

    @property
    def settings(self) -> Settings:
        """How the database is opened."""
        return self._settings

    def revision(self) -> str | None:
        """Return the schema's revision, known to this code or not; None for a database without tables.

        Raises `SchemaUnversioned` or `ForeignDatabase`.
        """
        with self.connect() as connection:
            return state.schema_revision(connection, self._name)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Open a reading transaction below the level of units of work, whatever the state of the schema."""
        self._reconnect_if_needed()
        with connected(self._engine, self._name, writes=False) as connection:
            connection.begin()
            yield connection

    @contextmanager
    def change_schema(self, *, keep: bool = True) -> Iterator[Connection]:
        """Open a transaction that may change the schema, foreign keys off; `keep=False` rolls it back at the end."""
        if self.readonly:
            raise DatabaseReadOnly(self._name)
        self._reconnect_if_needed()
        with schema_change(self._engine, self._name, keep=keep) as connection:
            yield connection
            self._check_still_there()
        self._at_head = False
        self._complete_tables.clear()

    def reclaim(self, max_pages: int = 25_600, *, max_seconds: float | None = None, full: bool = False) -> SpaceReport:
        """Give the room of deleted rows back to the disk: at most `max_pages` pages, and all of the write-ahead log.

        Goes in steps between which others take their turn; the step at whose end `max_seconds` have passed is the last.
        `full` rewrites the whole file instead, while writers wait, and switches on auto_vacuum, without which a
        file never gets smaller (FS-14). A reader that keeps the log from being emptied is reported (FS-13). Where there
        is no file nothing is to be done.

        Raises what a unit of work that writes raises, and `NoRoomToRewrite`; what was given back before stays given.
        """
        from agentstate.db.space import SpaceReport, reclaim_file  # only maintenance loads what knows it

        if self.readonly:
            raise DatabaseReadOnly(self._name)
        self._prepare(writes=True)
        if self._path is None:
            return SpaceReport(None, hint="" if self.in_memory else "on PostgreSQL autovacuum does this")
        return reclaim_file(self._path, self._settings, max_pages=max_pages, max_seconds=max_seconds, full=full)

    def close(self) -> None:
        """Close every connection. The handle can be used again and then opens new ones; a memory database is gone."""
        self._engine.dispose()
        self._in_use = False
        self._at_head = False
        self._memory_tables = 0

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the handle."""
        self.close()

    def __repr__(self) -> str:
        """Say which database this is, without any password."""
        return f"<Database {self._name} {self._mode}>"

    @contextmanager
    def _unit(self, *, writes: bool, now: datetime | None) -> Iterator[UnitOfWork]:
        instant = utc_now() if now is None else aware(now, "now")
        info = {"at_head": self._at_head or self._kind == "memory", "complete_tables": self._complete_tables}
        with unit_of_work(self._engine, writes=writes, now=instant, database=self._name, info=info) as work:
            yield work

    def _prepare(self, *, writes: bool) -> None:
        """Look at the schema until it has been seen at head once: one SELECT, then nothing (foundation, section 3)."""
        self._reconnect_if_needed()
        if self._at_head or self._kind == "memory":
            return
        with connected(self._engine, self._name, writes=False) as connection:
            with connection.begin():
                self._found = state.schema_revision(connection, self._name)
            if self._found is None:
                raise SchemaBehind(self._name, None, state.HEAD)
            if writes:
                state.require_head(self._found, self._name)
            if self._found == state.HEAD:
                if self._path is not None and not self.readonly:
                    self._ensure_journal_mode(connection, self._path)
                self._at_head = True

    def _ensure_journal_mode(self, connection: Connection, path: str) -> None:
        driver: Any = connection.connection.driver_connection
        try:
            ensure_journal_mode(driver, path, self._settings)
        except sqlite3.Error as error:
            raise translate_sqlite(error, path, self._settings.busy_timeout, self._missing) or error from error

    def _reconnect_if_needed(self) -> None:
        """Leave connections behind that belong to a parent process or to a file that is no longer at the path."""
        self._in_use = True
        if self._kind == "memory":
            self._create_memory_tables()
            return  # a child process has a copy of the memory, connection and all
        if self._pid == os.getpid() and not self._file_changed():
            return
        with self._lock:
            if self._pid != os.getpid():
                _abandoned.append(self._engine.pool)
                self._engine = self._engine_for(self._missing)
                self._pid = os.getpid()
            if self._file_changed():
                self._engine.dispose()
                self._probe()
                self._at_head = False
                self._complete_tables.clear()

    def _probe(self) -> None:
        """Connect once, which tells whether the file is a database, and remember which file it is."""
        self._engine.connect().close()
        if self._path is not None:
            found = os.stat(self._path)
            self._file = (found.st_dev, found.st_ino)

    def _file_changed(self) -> bool:
        if self._path is None or self._file is None:
            return False
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            # Writing on would fill a file without a name, lost with the last process that has it open.
            raise DatabaseMissing(self._path) from None
        except OSError as error:
            raise DatabaseUnavailable(self._path, str(error.strerror)) from None
        if found.st_size == 0 and self._at_head:
            raise DatabaseEmpty(self._path)
        return (found.st_dev, found.st_ino) != self._file

    def _check_still_there(self) -> None:
        """Raise before the commit of what nobody would find again: a file without a name, or another than the one."""
        if self._file_changed():
            raise DatabaseUnavailable(self._name, "the file was replaced meanwhile; nothing was written, try again")

    def _create_memory_tables(self) -> None:
        if self._memory_tables == len(Base.metadata.tables):
            return
        with self._lock, schema_change(self._engine, self._name) as connection:
            Base.metadata.create_all(connection)
            self._memory_tables = len(Base.metadata.tables)

    def _missing(self, detail: str) -> AgentStateError:
        if self._at_head:
            self._at_head = False  # somebody changed the schema meanwhile: the next call looks at it
            return DatabaseUnavailable(self._name, f"{detail}; its schema was changed meanwhile, try again")
        return SchemaBehind(self._name, self._found, state.HEAD)


def is_held(path: str) -> bool:
    """Return whether this process holds a `Database` on the file at `path` that is not closed."""
    return any(database.path == path and database._in_use for database in list(_handles))


def _renew_locks() -> None:
    """Give a child process locks of its own: who held one in the parent does not exist in the child (CN-01)."""
    for database in list(_handles):
        database._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
