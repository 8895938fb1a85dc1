"""Opening a database to look at it, so that nothing is different afterwards: no byte, and no file beside it.

An ordinary read-only connection to a file in mode WAL makes `-wal` and `-shm` where there are none, and writes into
the one that a killed process left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from agentstate.db import files, targets
from agentstate.db.database import Database, is_held
from agentstate.db.engine import keeps_a_log, looking_engine
from agentstate.db.health import engines
from agentstate.errors import AgentStateError, DatabaseReadOnly, DatabaseUnavailable
from agentstate.settings import Settings

Answer = TypeVar("Answer")

_TRIES_WITHOUT_LOCKS = 2
_LOCKS = "mode=ro"
_LOCKS_ALONE = "mode=ro&readonly_shm=1"
_NO_LOCKS = "mode=ro&immutable=1"


@dataclass(frozen=True, slots=True)
class Look:
    """An open look: the database, and whether it is read without locks, as a file in mode WAL that nobody uses."""

    database: Database
    without_locks: bool

    def journal_mode(self, connection: Connection) -> str:
        """Return the journal mode of a file, which SQLite does not say where it reads without locks."""
        return "wal" if self.without_locks else engines.journal_mode(connection)


def look(target: str, settings: Settings, question: Callable[[Look], Answer]) -> Answer:
    """Ask the question about the database at `target` (a path or URL) and return its answer; nothing is changed.

    A file in mode WAL that nobody has open is read without locks, because locks would have to be made first. If
    somebody writes to it meanwhile, the question is asked again, so it must not keep anything of the first time; and
    at last with locks, as any reader asks: a file that is in use all the time has `-wal` and `-shm` beside it anyway.

    Raises what `Database.open` raises in mode "ro".
    """
    if targets.is_server(target):
        with Database.open(target, "ro", settings=settings) as database:
            return question(Look(database, False))
    path = files.resolve(targets.file_path(target))
    for _ in range(_TRIES_WITHOUT_LOCKS):
        files.check(path, "ro")
        before = _state(path)
        query = _query(path, settings)
        try:
            answer = _ask(path, query, settings, question)
        except AgentStateError:
            if query == _NO_LOCKS and _state(path) != before:
                continue  # half of it was read before somebody's write, and half after
            raise
        if query != _NO_LOCKS or _state(path) == before:
            return answer
    return _ask(path, _LOCKS, settings, question)


def _ask(path: str, query: str, settings: Settings, question: Callable[[Look], Answer]) -> Answer:
    database = Database(
        lambda missing: looking_engine(path, query, settings, missing),
        kind="file",
        path=path,
        name=path,
        mode="ro",
        settings=settings,
    )
    with database:
        try:
            with database.connect():
                pass
        except DatabaseReadOnly:
            raise DatabaseUnavailable(
                path,
                "a write was cut off in the middle; the next program that opens the database for writing sets that "
                "right: run 'agentstate upgrade', then look again",
            ) from None
        return question(Look(database, query == _NO_LOCKS))


def _query(path: str, settings: Settings) -> str:
    """Return how SQLite opens the file without leaving a trace."""
    if os.path.exists(f"{path}-wal") and os.path.exists(f"{path}-shm"):
        # SQLite shares its view of the memory file among all connections of a process: one that may only read it
        # would keep a writer in this process from writing.
        return _LOCKS if is_held(path) else _LOCKS_ALONE
    if files.has_wal(path):
        raise DatabaseUnavailable(
            path,
            f"its newest rows are in {path}-wal, and cannot be read without writing beside it; the next program that "
            "opens the database for writing takes them in: run 'agentstate upgrade', then look again",
        )
    return _NO_LOCKS if keeps_a_log(path, settings) else _LOCKS


def _state(path: str) -> list[tuple[int, int, int] | None]:
    """Return what is different after somebody has written to the database."""
    found: list[tuple[int, int, int] | None] = []
    for suffix in ("", *files.SIDECARS):
        try:
            status = os.stat(path + suffix)
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found
