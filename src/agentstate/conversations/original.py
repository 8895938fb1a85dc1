"""The original program's session database, read as it lies there: nothing in it or beside it is changed (FS-12).

An ordinary read-only connection would leave `-wal` and `-shm` files beside a database in WAL mode. So a file without
them is read as one that does not change, without locks, and the reader makes sure that it has not; a log without shared
memory, which a copy of the files left behind, is read from one more copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from agentstate.conversations.incoming import mended_text
from agentstate.db import files, state
from agentstate.db.failures import translate_sqlite
from agentstate.errors import DatabaseEmpty, DatabaseMissing, DatabaseUnavailable, NotADatabase, NotASessionStore

Value: TypeAlias = bytes | int | float | None
"""What a column holds. Texts come as their bytes, because nothing makes them UTF-8 (VA-08)."""

_Look: TypeAlias = list[tuple[int, int, int]]

SESSION = ("key", "parent_key", "fork_turn_id", "status", "label", "summary", "created_at", "updated_at")
TURN = ("id", "seq", "kind", "messages", "origin_key", "summary", "author", "created_at", "meta")


class Original:
    """An open session database. A session is named by its rowid, since its key need not be a text that can be bound."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, busy_timeout: float, seen: _Look, *, guarded: bool
    ) -> None:
        """Use `open_original`; `seen` is how the file looked before, `guarded` that it must go on to look so."""
        self.path = path
        self.name = mended_text(os.path.basename(path))
        self.mtime = seen[0][2] / 1e9
        self._connection = connection
        self._busy_timeout = busy_timeout
        self._seen = seen
        self._guarded = guarded

    def links(self) -> list[tuple[Value, ...]]:
        """Return `rowid`, `key` and `parent_key` of every session."""
        return self._rows("SELECT rowid, key, parent_key FROM sessions")

    def session(self, rowid: int) -> tuple[Value, ...]:
        """Return a session's columns, as in `SESSION`."""
        return self._rows(f"SELECT {', '.join(SESSION)} FROM sessions WHERE rowid = ?", rowid)[0]

    def turns(self, rowid: int) -> list[tuple[Value, ...]]:
        """Return the columns of a session's turns, as in `TURN`, by seq and then in the order of their storage."""
        of_session = "session_key = (SELECT key FROM sessions WHERE rowid = ?)"
        return self._rows(f"SELECT {', '.join(TURN)} FROM turns WHERE {of_session} ORDER BY seq, rowid", rowid)

    def homeless(self) -> list[tuple[Value, ...]]:
        """Return each key that turns name and no session has, with the number of those turns."""
        there = "SELECT 1 FROM sessions WHERE key = session_key"
        return self._rows(f"SELECT session_key, count(*) FROM turns WHERE NOT EXISTS ({there}) GROUP BY session_key")

    def ensure_unchanged(self) -> None:
        """Raise `DatabaseUnavailable` if somebody may have written to the file while it was read."""
        if self._guarded and self._seen != _look(self.path):
            reason = "its program wrote to it while it was read: stop it, then import once more"
            raise DatabaseUnavailable(self.path, reason)

    def check_tables(self) -> None:
        """Raise `NotASessionStore` unless the tables are those of the original."""
        for table in ("conversations", "sessions"):
            if state.OUR_TABLES[table] <= self._columns(table):
                raise NotASessionStore(self.path, "it is a database of agentstate's own; see 'agentstate copy --help'")
        for table, expected in (("sessions", SESSION), ("turns", (*TURN, "session_key"))):
            missing = [name for name in expected if name not in self._columns(table)]
            if len(missing) == len(expected):
                raise NotASessionStore(self.path, f"it has no table {table}")
            if missing:
                raise NotASessionStore(self.path, f"its table {table} has no column {missing[0]}")

    def _columns(self, table: str) -> set[str]:
        return {decoded(row[1])[0] for row in self._rows(f"PRAGMA table_info({table})")}

    def _rows(self, statement: str, *parameters: int) -> list[tuple[Value, ...]]:
        with _our_errors(self.path, self._busy_timeout):
            return self._connection.execute(statement, parameters).fetchall()


@contextmanager
def open_original(path: str | Path, busy_timeout: float) -> Iterator[Original]:
    """Open the original program's database at a path for reading; all that is read is of one moment.

    The program may be running if its database is in WAL mode; otherwise it must not write meanwhile. Raises
    `NotASessionStore` for what is none, a missing file included, and `DatabaseUnavailable` for what cannot be read.
    """
    real = files.resolve(path)
    try:
        files.check(real, "ro")
    except (DatabaseMissing, DatabaseEmpty) as error:
        reason = "it is empty" if isinstance(error, DatabaseEmpty) else "there is no such file"
        raise NotASessionStore(real, reason) from None
    except NotADatabase as error:
        raise NotASessionStore(real, error.reason) from None
    seen = _look(real)
    with ExitStack() as stack:
        at, locked = _way_in(real, stack)
        with _our_errors(real, busy_timeout):
            connection = stack.enter_context(closing(_connect(at, busy_timeout, locked=locked)))
            connection.execute("BEGIN")
        original = Original(connection, real, busy_timeout, seen, guarded=at != real or not locked)
        original.ensure_unchanged()
        original.check_tables()
        yield original


def decoded(value: Value) -> tuple[str, bool]:
    """Return the text that a column holds, '' for NULL, and whether that took U+FFFD for what is not UTF-8 (VA-08)."""
    if not isinstance(value, bytes):
        return "" if value is None else str(value), False
    try:
        return value.decode(), False
    except UnicodeDecodeError:
        return value.decode(errors="replace"), True


def digest(session: tuple[Value, ...], turns: list[tuple[Value, ...]]) -> str:
    """Return the SHA-256 of a session's rows, by which it is known again."""
    found = sha256()
    for row in (session, *turns):
        for value in row:
            content = value if isinstance(value, bytes) else str(value).encode()
            found.update(f"{type(value).__name__} {len(content)} ".encode())
            found.update(content)
    return found.hexdigest()


def _connect(path: str, busy_timeout: float, *, locked: bool) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}?mode=ro{'' if locked else '&immutable=1'}"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout, isolation_level=None)
    connection.text_factory = bytes
    return connection


def _way_in(path: str, stack: ExitStack) -> tuple[str, bool]:
    """Return which file to open, and whether SQLite is to lock it, so that nothing is created beside the original."""
    if any(_status(path + "-journal")):
        raise DatabaseUnavailable(
            path, f"{path}-journal is there: its program is writing, or died doing so; start and stop it once"
        )
    if os.path.exists(path + "-wal") and os.access(path + "-shm", os.W_OK, effective_ids=True):
        return path, True
    if files.has_wal(path):
        return _copy(path, stack), True
    return path, False


def _copy(path: str, stack: ExitStack) -> str:
    """Return the path of a copy of the database and its log, which is gone when the stack is left.

    Without shared memory to write to, this process has it open nowhere: ordinary calls drop no lock of it (FS-11).
    """
    try:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentstate-"))
        copy = os.path.join(directory, "original.db")
        for suffix in ("", "-wal"):
            shutil.copyfile(path + suffix, copy + suffix)
    except OSError as error:
        raise DatabaseUnavailable(path, f"it must be copied to be read, but: {error.strerror}") from None
    return copy


def _look(path: str) -> _Look:
    """Return what changes when somebody writes to the database, or begins to: which file, size and time of each."""
    return [_status(path + suffix) for suffix in ("", "-wal", "-journal")]


def _status(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0, 0
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else (0, 0, 0)


@contextmanager
def _our_errors(path: str, busy_timeout: float) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        found = translate_sqlite(error, path, busy_timeout, lambda detail: NotASessionStore(path, detail))
        if isinstance(found, NotADatabase):
            found = NotASessionStore(path, found.reason)
        raise found or error from None
