"""What SQLite and PostgreSQL say of themselves: damage, the schema, the journal mode, space, and what a server is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, MetaData, inspect

from agentstate.db import files, state
from agentstate.db.database import Database
from agentstate.db.health.findings import Finding, of_error, size, some
from agentstate.errors import DatabaseCorrupt, SchemaAhead, SchemaBehind, SchemaUnversioned
from agentstate.settings import Settings

_MOST_PROBLEMS = 100
_NO_DAMAGE = ("NULL value in ", "CHECK constraint failed in ")
"""How what another program wrote begins. SQLite tells checks only where it may write, so `rows` looks at them."""
_MUCH_FREE = 16 * 2**20
"""Bytes of pages without content; less is not worth a word."""


class Schema(NamedTuple):
    """The schema's revision (None: there is none), our tables with the columns they have, and what is wrong."""

    revision: str | None
    columns: Mapping[str, set[str]]
    findings: Sequence[Finding]


def schema(database: Database, connection: Connection, metadata: MetaData) -> Schema:
    """Return what the schema is.

    Raises `ForeignDatabase`: what another program keeps there is not ours to judge.
    """
    try:
        revision = state.schema_revision(connection, database.name)
    except SchemaUnversioned as error:
        return Schema(None, {}, (of_error("schema", error),))
    present = columns(connection, metadata)
    if revision is None or (revision in state.REVISIONS and revision != state.HEAD):
        return Schema(revision, present, (of_error("schema", SchemaBehind(database.name, revision, state.HEAD)),))
    if revision != state.HEAD:
        return Schema(revision, present, (of_error("schema", SchemaAhead(database.name, revision, state.HEAD)),))
    lost = [
        table.name if table.name not in present else f"{table.name}.{column.name}"
        for table in metadata.sorted_tables
        for column in table.columns
        if column.name not in present.get(table.name, ())
    ]
    if not lost:
        return Schema(revision, present, ())
    what = f"at revision {revision}, and yet without {some(list(dict.fromkeys(lost)))}"
    finding = Finding("schema", "error", what, "somebody dropped it by hand: restore a backup")
    return Schema(revision, present, (finding,))


def columns(connection: Connection, metadata: MetaData) -> dict[str, set[str]]:
    """Return those of our tables that are there, each with the names of the columns that it has."""
    inspector = inspect(connection)
    present = set(inspector.get_table_names()) & set(metadata.tables)
    return {table: {column["name"] for column in inspector.get_columns(table)} for table in present}


# --- SQLite ----------------------------------------------------------------------------------------------------------


def integrity(connection: Connection, name: str) -> list[Finding]:
    """Return the rows that break a rule of their table; reads the whole database.

    Raises `DatabaseCorrupt` with SQLite's own words for what is damaged (FS-06).
    """
    lines = [str(line) for line in connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_PROBLEMS})").scalars()]
    written = sorted({line for line in lines if line.startswith(_NO_DAMAGE)})
    damage = [" ".join(line.split()) for line in lines if line != "ok" and line not in written]
    if damage:
        raise DatabaseCorrupt(name, some(damage))
    if not written:
        return []
    do = "another program wrote that: correct it with sqlite3, after a backup"
    return [Finding("integrity", "error", f"rows break a rule of their table: {some(written)}", do)]


def journal_mode(connection: Connection) -> str:
    """Return the journal mode that SQLite says."""
    return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())


def page_size(connection: Connection) -> int:
    """Return the bytes of a page."""
    return int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def unwanted_mode(found: str, path: str, settings: Settings) -> list[Finding]:
    """Return whether the database is in another journal mode than the settings ask for.

    Only WAL is the file's own: the others belong to a connection, and the file cannot tell them apart.
    """
    wanted = settings.journal_mode or ("delete" if files.shared_mount(path) else "wal")
    if (found == "wal") == (wanted == "wal"):
        return []
    if wanted == "wal":
        do = "nothing, if AGENT_DB_JOURNAL_MODE is meant: the next program that writes switches it"
        return [Finding("journal mode", "note", f"the journal mode is {found}, and wal is wanted", do)]
    what = f"the journal mode is wal, and {wanted} is wanted; it stays as long as anybody has the database open"
    return [Finding("journal mode", "warning", what, "stop all its users, then start one of them")]


def space(connection: Connection) -> list[Finding]:
    """Return how much of the file holds nothing, and whether the file can give it back (FS-14)."""
    automatic, pages, free, page_size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("auto_vacuum", "page_count", "freelist_count", "page_size")
    )
    findings = []
    if free * page_size >= _MUCH_FREE and free * 4 >= pages:
        what = f"{size(free * page_size)} of the file's {size(pages * page_size)} hold nothing"
        command = "'agentstate maintain'" if automatic else "'agentstate maintain --full'"
        findings.append(Finding("space", "note", what, f"{command} gives them back"))
    if not automatic:
        do = "'agentstate maintain --full' rewrites it once, and switches auto_vacuum on"
        findings.append(Finding("space", "note", "auto_vacuum is off: the file never becomes smaller", do))
    return findings


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def server(connection: Connection) -> list[Finding]:
    """Return what makes a server unfit to be written to, or to hold every text."""
    standby = connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one()
    read_only = connection.exec_driver_sql("SHOW default_transaction_read_only").scalar_one()
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    findings = []
    if standby:
        do = "to write, name the primary, or all hosts and target_session_attrs=read-write"
        findings.append(Finding("server", "note", "the server is a standby, which can only be read", do))
    elif read_only == "on":
        do = "look for default_transaction_read_only in the server, the database and the role"
        findings.append(Finding("server", "warning", "transactions only read there, unless they say otherwise", do))
    if encoding != "UTF8":
        do = "make a database of encoding UTF8 (createdb -E UTF8) and copy everything: 'agentstate copy'"
        findings.append(Finding("server", "warning", f"its encoding is {encoding}, which cannot hold every text", do))
    return findings
