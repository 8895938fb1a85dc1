"""What tests of conversations look at: both tables whole, the statements of a call, and a fault before any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event

from agentstate.conversations import history
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from agentstate.db.engine import WRITES

Rows = list[tuple[object, ...]]


class Injected(Exception):
    """What goes wrong in these tests; no code of ours knows it."""


@contextmanager
def statements(database: Database, fail_before: int | None = None) -> Iterator[list[str]]:
    """Collect the statements of the units in the block, without what opens a transaction.

    Raises `Injected` in place of the statement of that number, counted from 1.
    """
    log: list[str] = []

    def listen(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("SET TRANSACTION"):
            return
        log.append(statement)
        if len(log) == fail_before:
            raise Injected(statement)

    event.listen(database._engine, "before_cursor_execute", listen)
    try:
        yield log
    finally:
        event.remove(database._engine, "before_cursor_execute", listen)


@contextmanager
def failing_commit(database: Database, *, stored: bool) -> Iterator[None]:
    """Let the first COMMIT of a write in the block fail: instead of being done, or (`stored`) right after it was."""
    failed: list[Connection] = []

    def fail(connection: Connection) -> None:
        if not failed and connection.get_execution_options()[WRITES]:
            failed.append(connection)
            if stored:
                driver: Any = connection.connection.driver_connection
                driver.commit()
            raise Injected

    event.listen(database._engine, "commit", fail)
    try:
        yield
    finally:
        event.remove(database._engine, "commit", fail)


def everything(database: Database) -> tuple[Rows, Rows]:
    """Return every row of conversations and turns as they are stored."""
    with database.read() as work:
        conversations, turns = (
            [tuple(row) for row in work.connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY 1")]
            for table in ("conversations", "turns")
        )
    return conversations, turns


def texts(database: Database, key: str) -> list[object]:
    """Return the contents of the messages that the conversation sees."""
    with database.read() as work:
        return [message["content"] for message in history.messages(work, key)]


def seqs(database: Database, key: str) -> list[int]:
    """Return the seqs of the conversation's own visible turns."""
    with database.read() as work:
        return [turn.seq for turn in Turns(work).list_turns(key)]


def stored_seqs(database: Database, key: str) -> list[int]:
    """Return the seqs of the conversation's rows, hidden ones too."""
    with database.read() as work:
        found = work.connection.exec_driver_sql("SELECT conversation_key, seq FROM turns ORDER BY seq").all()
    return [row.seq for row in found if row.conversation_key == key]


def column(database: Database, key: str, name: str) -> Any:
    """Return one column of the conversation's row."""
    with database.read() as work:
        return getattr(Conversations(work).get(key), name)
