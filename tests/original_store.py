"""Session databases of the original program, as it makes them, for the tests of their import."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SCHEMA = """
CREATE TABLE sessions (
    key TEXT PRIMARY KEY, parent_key TEXT NOT NULL DEFAULT '', fork_turn_id TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT 'active', label TEXT NOT NULL DEFAULT '', summary TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL
);
CREATE TABLE turns (
    id TEXT PRIMARY KEY, session_key TEXT NOT NULL REFERENCES sessions(key) ON DELETE CASCADE, seq INTEGER NOT NULL,
    kind INTEGER NOT NULL DEFAULT 0, messages TEXT NOT NULL DEFAULT '[]', origin_key TEXT NOT NULL DEFAULT '',
    summary TEXT NOT NULL DEFAULT '', author TEXT NOT NULL DEFAULT '', created_at TEXT NOT NULL,
    meta TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX idx_turns_session_seq ON turns(session_key, seq);
CREATE INDEX idx_sessions_parent ON sessions(parent_key);
"""
"""As real files have it."""

SEED_SCHEMA = """
CREATE TABLE sessions (
    key TEXT PRIMARY KEY, parent_key TEXT REFERENCES sessions(key), fork_turn_id TEXT,
    status TEXT NOT NULL DEFAULT 'active', label TEXT NOT NULL DEFAULT '', summary TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL
);
CREATE TABLE turns (
    id TEXT PRIMARY KEY, session_key TEXT NOT NULL REFERENCES sessions(key) ON DELETE CASCADE, seq INTEGER NOT NULL,
    kind INTEGER NOT NULL DEFAULT 0, messages TEXT NOT NULL, origin_key TEXT, summary TEXT,
    author TEXT NOT NULL DEFAULT '', created_at INTEGER NOT NULL, meta TEXT, UNIQUE(session_key, seq)
);
"""
"""As it was sketched."""


class OriginalStore:
    """A session database that is being written, with sqlite3 alone; `close` before it is imported."""

    def __init__(self, path: Path, schema: str = SCHEMA) -> None:
        """Make an empty store at the path."""
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self.make(schema)

    def make(self, schema: str) -> None:
        """Make its tables, in place of those that it has."""
        self.run("DROP TABLE IF EXISTS turns")
        self.run("DROP TABLE IF EXISTS sessions")
        for statement in schema.split(";"):
            self.run(statement)

    def session(self, key: str | None, **columns: Any) -> None:
        """Insert a session; what is not given is as the original fills it in."""
        times = {"created_at": "2026-11-29T09:00:00.12Z", "updated_at": "2026-11-29T10:00:00Z"}
        self._insert("sessions", {"key": key, **times, **columns})

    def turn(self, session_key: str, seq: object, messages: list[dict[str, Any]] | str, **columns: Any) -> None:
        """Insert a turn; messages and meta are values, or text that is stored as it is."""
        values = {
            "id": f"{session_key}, turn {self._count()}",
            "session_key": session_key,
            "seq": seq,
            "messages": messages,
            "created_at": "2026-11-29T09:00:00.12Z",
            **columns,
        }
        for name in {"messages", "meta"} & set(values):
            if not isinstance(values[name], str | None):
                values[name] = json.dumps(values[name], ensure_ascii=False, separators=(",", ":"))
        self._insert("turns", values)

    def run(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        if self._connection is None:
            self._connection = sqlite3.connect(self.path)
        return self._connection.execute(statement, parameters).fetchall()

    def close(self) -> None:
        """Commit, and let go of the file."""
        if self._connection is not None:
            self._connection.commit()
            self._connection.close()
            self._connection = None

    def _insert(self, table: str, values: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(values))
        self.run(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))

    def _count(self) -> int:
        return int(self.run("SELECT count(*) FROM turns")[0][0])

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of the file."""
        self.close()
