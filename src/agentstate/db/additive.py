"""Columns added later, without Alembic: bring an existing database up to the models' columns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, MetaData, inspect
from sqlalchemy.schema import CreateColumn, DefaultClause

from agentstate.clock import monotonic, pause
from agentstate.db import state
from agentstate.db.base import Base
from agentstate.db.database import Database
from agentstate.errors import CannotAdopt, DatabaseBusy, SchemaUnversioned

BUSY_RETRIES = 5
BUSY_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class SchemaUpgradeReport:
    """What was added, what had nothing to do or could not run, and whether the handle was read-only.

    `applied` and `skipped` hold steps named `table.column`.
    """

    applied: tuple[str, ...]
    skipped: tuple[str, ...]
    read_only: bool


def add_missing_columns(database: Database, metadata: MetaData = Base.metadata) -> SchemaUpgradeReport:
    """Add the columns that existing tables lack compared with `metadata`; idempotent, and safe beside others.

    Looked at are the tables of the areas imported so far. A column that somebody else adds meanwhile counts as
    applied; a lock is waited for up to the busy timeout, then `DatabaseBusy`; a read-only handle is reported, not
    raised, and its steps are skipped. A table that does not exist is left to the migrations. The version row is not
    touched: the additive revision finds its columns in place. Raises `CannotAdopt` naming a column that cannot be
    added to a filled table, `SchemaAhead` for a database that a newer agentstate wrote, and `ForeignDatabase`.
    """
    with database.connect() as connection:
        with suppress(SchemaUnversioned):
            found = state.schema_revision(connection, database.name)
            if found is not None and found not in state.REVISIONS:
                state.require_head(found, database.name)
        missing, present = _compare(connection, metadata)
    for column in missing:
        if not addable(column):
            raise CannotAdopt(database.name, f"column {step(column)} has no constant default and may not be NULL")
    if database.readonly:
        return SchemaUpgradeReport((), tuple(present + [step(column) for column in missing]), bool(missing))
    for column in missing:
        _add_when_free(database, column)
    return SchemaUpgradeReport(tuple(step(column) for column in missing), tuple(present), False)


def addable(column: Column[Any]) -> bool:
    """Return whether a filled table can be given the column: it may be NULL, or has a constant default (MG-12)."""
    return bool(column.nullable) or default_text(column) is not None


def default_text(column: Column[Any]) -> str | None:
    """Return the constant of the column's server default as text, or None when it has none."""
    default = column.server_default
    if not isinstance(default, DefaultClause):
        return None
    text = str(getattr(default.arg, "text", default.arg))
    return text[1:-1].replace("''", "'") if text.startswith("'") and text.endswith("'") else text


def step(column: Column[Any]) -> str:
    """Return how reports name a column."""
    return f"{column.table.name}.{column.name}"


def _compare(connection: Connection, metadata: MetaData) -> tuple[list[Column[Any]], list[str]]:
    inspector = inspect(connection)
    existing = set(inspector.get_table_names())
    missing: list[Column[Any]] = []
    present: list[str] = []
    for table in metadata.sorted_tables:
        if table.name not in existing:
            continue
        names = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in names:
                missing.append(column)
            elif column.nullable or column.server_default is not None:
                present.append(step(column))
    return missing, present


def _add_when_free(database: Database, column: Column[Any]) -> None:
    deadline = monotonic() + database.settings.busy_timeout
    for attempt in range(BUSY_RETRIES + 1):
        try:
            with database.change_schema() as connection:
                names = {found["name"] for found in inspect(connection).get_columns(column.table.name)}
                if column.name not in names:
                    add_column(connection, column)
            return
        except DatabaseBusy:
            if attempt == BUSY_RETRIES or monotonic() >= deadline:
                raise
            pause(BUSY_PAUSE)


def add_column(connection: Connection, column: Column[Any]) -> None:
    """Add the column to its table: a change of the schema only, no row is rewritten and no index made."""
    ddl = CreateColumn(column).compile(dialect=connection.dialect)
    # A server looks once it has the table's lock, for which somebody else's ALTER TABLE may have made it wait.
    unless = "IF NOT EXISTS " if connection.dialect.name == "postgresql" else ""
    connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {unless}{ddl}")
