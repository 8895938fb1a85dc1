"""Which schema a database has, told without Alembic: one SELECT on the way to a normal call."""

from __future__ import annotations

from sqlalchemy import Connection, inspect

from agentstate.errors import (
    DatabaseCorrupt,
    DatabaseUnavailable,
    ForeignDatabase,
    SchemaAhead,
    SchemaBehind,
    SchemaUnversioned,
)

REVISIONS = {"0001": "role_state", "0002": "approvals", "0003": "approval_progress", "0004": "conversations"}
"""Every revision this code knows, oldest first; a test keeps it equal to migrations/versions."""

HEAD = "0004"

VERSION_TABLE = "alembic_version"

OUR_TABLES = {
    "sessions": {"role", "sender", "session_id"},
    "introductions": {"role", "sender"},
    "start_pending": {"job_id", "sender", "requested_by", "body"},
    "pending_approval": {"job_id", "requested_by", "commit_message"},
    "pending_approval_repo": {"job_id", "repo_dir"},
    "conversations": {"key", "parent_key", "next_seq", "compacted_seq"},
    "turns": {"id", "conversation_key", "seq", "messages"},
}
"""Tables and the columns by which ours are told from another program's of the same name."""

_SESSION_STORE = {"sessions": "key", "turns": "session_key"}
"""Tables and columns by which the session store of the original program is known, whose history can be brought in."""


_VERSION = f"SELECT version_num FROM {VERSION_TABLE}"
_OUR_VERSION = f"SELECT version_num, (SELECT count(sender) FROM sessions WHERE role IS NULL) FROM {VERSION_TABLE}"
"""The version, but only beside a table of our first revision: other programs number their revisions 0001 too."""
_COLUMNS = ((VERSION_TABLE, "version_num"), ("sessions", "role"), ("sessions", "sender"))


def describe(revision: str | None) -> str:
    """Return how a person reads a revision: number and name, `0003 (approval_progress)`."""
    if revision is None:
        return "no schema"
    return f"{revision} ({REVISIONS[revision]})" if revision in REVISIONS else revision


def schema_revision(connection: Connection, database: str) -> str | None:
    """Return the revision of the schema, known or not; None for a database without any table.

    `database` is the name that errors carry. Raises `SchemaUnversioned` for our tables without a version, and
    `ForeignDatabase` for tables that are not ours.
    """
    versions = _versions(connection, _OUR_VERSION)
    if len(versions) == 1 and versions[0] in REVISIONS:
        return versions[0]
    versions = versions or _versions(connection, _VERSION)
    tables = [name for name in inspect(connection).get_table_names() if name != VERSION_TABLE]
    ours = our_tables(connection)
    if versions:
        if len(versions) > 1 and ours:
            raise DatabaseCorrupt(database, f"it has {len(versions)} schema versions: {', '.join(sorted(versions))}")
        if ours or not tables:
            return ", ".join(sorted(versions))
        raise _foreign(connection, database, tables)
    if ours:
        raise SchemaUnversioned(database, HEAD)
    if tables:
        raise _foreign(connection, database, tables)
    return None


def _foreign(connection: Connection, database: str, tables: list[str]) -> ForeignDatabase:
    inspector = inspect(connection)
    known = connection.dialect.name == "sqlite" and all(
        table in tables and column in {found["name"] for found in inspector.get_columns(table)}
        for table, column in _SESSION_STORE.items()
    )
    hint = f"this is the original's session store, which 'agentstate conversations import {database}' brings in"
    return ForeignDatabase(database, sorted(tables), hint if known else "")


def our_tables(connection: Connection) -> list[str]:
    """Return the names of the tables that are ours by name and columns, sorted."""
    inspector = inspect(connection)
    return sorted(
        table
        for table in set(inspector.get_table_names()) & set(OUR_TABLES)
        if OUR_TABLES[table] <= {column["name"] for column in inspector.get_columns(table)}
    )


def _versions(connection: Connection, statement: str) -> list[str]:
    # On PostgreSQL a statement that fails ends its transaction, so the columns are asked for first.
    if connection.dialect.name == "postgresql":
        columns = _COLUMNS if statement == _OUR_VERSION else _COLUMNS[:1]
        pairs = ", ".join(f"(to_regclass('{table}'), '{column}')" for table, column in columns)
        found = f"SELECT count(*) FROM pg_attribute WHERE NOT attisdropped AND (attrelid, attname) IN ({pairs})"
        if connection.exec_driver_sql(found).scalar_one() < len(columns):
            return []
    try:
        return [str(version) for version in connection.exec_driver_sql(statement).scalars()]
    except (SchemaBehind, DatabaseUnavailable):
        return []  # no such table; another obstacle meets the next statement as well


def require_head(revision: str | None, database: str) -> None:
    """Raise `SchemaBehind` or `SchemaAhead` unless the revision is the one that this code writes."""
    if revision == HEAD:
        return
    if revision is None or revision in REVISIONS:
        raise SchemaBehind(database, revision, HEAD)
    raise SchemaAhead(database, revision, HEAD)
