"""Driver errors become agentstate errors here, told apart by the driver's own codes and not by its messages."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable

from agentstate.errors import (
    AgentStateError,
    ConstraintViolated,
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnavailable,
    NotADatabase,
    TooLarge,
    UnreadableValue,
)


def translate_sqlite(
    error: BaseException, database: str, busy_timeout: float, missing: Callable[[str], AgentStateError]
) -> AgentStateError | None:
    """Return our error for one of sqlite3, or None when it is not one.

    `database` is the path that a person should read; `busy_timeout` (seconds) is how long SQLite waited for a lock;
    `missing` makes the error for a table or column that is not there, which depends on the schema's state.
    """
    if not isinstance(error, sqlite3.Error):
        return None
    message = str(error)
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DatabaseBusy(database, busy_timeout)
    if name.startswith("SQLITE_CONSTRAINT"):
        return ConstraintViolated(database, message)
    if name == "SQLITE_READONLY_DBMOVED":
        return DatabaseUnavailable(database, "the file was moved, replaced or deleted while it was open")
    if name.startswith("SQLITE_READONLY"):
        return DatabaseReadOnly(database)
    if name == "SQLITE_FULL":
        return DatabaseFull(database)
    if name.startswith("SQLITE_CORRUPT"):
        return DatabaseCorrupt(database, message)
    if name == "SQLITE_NOTADB" or message == "unsupported file format":
        return NotADatabase(database, message)
    if name == "SQLITE_TOOBIG":
        return TooLarge("value", "it is larger than the database can hold in one field or row")
    # These two share SQLITE_ERROR with everything else, and the second has no code at all: only their words tell.
    if re.match(r"no such (table|column)|table \S+ has no column named", message):
        return missing(message)
    undecodable = re.match(r"Could not decode to UTF-8 column '(.*?)' with text (.*)", message, re.DOTALL)
    if undecodable:
        return UnreadableValue(database, undecodable[1], f"{undecodable[2]} is not UTF-8")
    return DatabaseUnavailable(database, f"{message}{f' ({name})' if name else ''}")
