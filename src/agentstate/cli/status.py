"""`agentstate status`: which database this is, and in what state."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import click
from sqlalchemy import Connection, inspect

from agentstate.cli import exits
from agentstate.cli.output import database_option, json_option, print_fields, print_json, target
from agentstate.db import state
from agentstate.db.database import Database
from agentstate.db.health.findings import size as size_text
from agentstate.errors import AgentStateError, DatabaseError, ForeignDatabase, SchemaUnversioned
from agentstate.metadata import metadata


@click.command()
@database_option
@json_option
def status(database: str | None, as_json: bool) -> int:
    """Show the database, its schema and what it holds.

    \b
    Exit code: 0 the schema is at head · 3 behind (or none yet) · 4 ahead · 5 no version, or another program's ·
    6 corrupt, or no database · 7 missing or empty · 9 busy or out of reach
    """
    try:
        with Database.open(target(database), "ro") as opened:
            facts, code = _facts(opened)
    except AgentStateError as error:
        if not as_json:
            raise
        print_json(
            {"database": getattr(error, "database", "") or None, "state": type(error).__name__, "error": str(error)}
        )
        return exits.exit_code(error)
    if as_json:
        print_json(facts)
    else:
        print_fields(_for_people(facts))
    return code


def _facts(database: Database) -> tuple[dict[str, Any], int]:
    try:
        revision = database.revision()
        problem: DatabaseError | None = None
    except (SchemaUnversioned, ForeignDatabase) as error:
        revision, problem = None, error
    with database.connect() as connection:
        present = set(inspect(connection).get_table_names())
        engine = _engine_facts(database, connection)
        names = [table.name for table in metadata.sorted_tables if table.name in present]
        if isinstance(problem, ForeignDatabase):
            names = []
        rows = {name: int(connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one()) for name in names}
    at_head = revision == state.HEAD
    facts = {
        "database": database.name,
        "url": database.url_without_password,
        "backend": database.backend,
        "state": _state(revision, problem),
        "revision": revision,
        "head": state.HEAD,
        "at_head": at_head,
        "rows": rows,
        **engine,
        "open_starts": rows.get("start_pending", 0),
        "open_approvals": rows.get("pending_approval", 0),
    }
    if problem is not None:
        facts["error"] = str(problem)
        return facts, exits.exit_code(problem)
    if at_head:
        return facts, 0
    return facts, exits.BEHIND if revision is None or revision in state.REVISIONS else exits.AHEAD


def _engine_facts(database: Database, connection: Connection) -> dict[str, Any]:
    if database.path is None:
        version = connection.exec_driver_sql("SHOW server_version").scalar_one()
        size = connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()
        standby = connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one()
        return {"backend_version": version, "database_bytes": size, "standby": standby}
    return {
        "backend_version": sqlite3.sqlite_version,
        "file_bytes": _size(database.path),
        "wal_bytes": _size(f"{database.path}-wal"),
        "journal_mode": connection.exec_driver_sql("PRAGMA journal_mode").scalar_one(),
    }


def _state(revision: str | None, problem: DatabaseError | None) -> str:
    if problem is not None:
        return "foreign" if isinstance(problem, ForeignDatabase) else "unversioned"
    if revision == state.HEAD:
        return "at head"
    if revision is None:
        return "no schema yet"
    return "behind" if revision in state.REVISIONS else "ahead"


def _for_people(facts: dict[str, Any]) -> list[tuple[str, object]]:
    advice = {
        "at head": "",
        "no schema yet": "run 'agentstate upgrade'",
        "behind": f"run 'agentstate upgrade' to get to {state.describe(state.HEAD)}",
        "ahead": f"this agentstate knows {state.describe(state.HEAD)}; install the newer one",
        "unversioned": "see 'agentstate adopt --dry-run'",
        "foreign": "another program's database",
    }
    known = ": ".join(part for part in (facts["state"], advice[facts["state"]]) if part)
    if facts["backend"] == "sqlite":
        engine = f"SQLite {facts['backend_version']}, journal mode {facts['journal_mode']}"
        wal = f" + {size_text(facts['wal_bytes'])} write-ahead log" if facts["wal_bytes"] else ""
        size = size_text(facts["file_bytes"]) + wal
    else:
        engine = f"PostgreSQL {facts['backend_version']}{', a read-only standby' if facts['standby'] else ''}"
        size = size_text(facts["database_bytes"])
    return [
        ("database", facts["database"]),
        ("engine", engine),
        (
            "schema",
            ", ".join(part for part in (facts["revision"] and state.describe(facts["revision"]), known) if part),
        ),
        ("size", size),
        *((f"rows in {table}", count) for table, count in facts["rows"].items()),
        ("waiting", f"{facts['open_starts']} for a start, {facts['open_approvals']} for a release"),
    ]


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0
