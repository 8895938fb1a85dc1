"""What rows of any table can have wrong with them: they belong to nobody, or cannot be read (VA-08)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    MetaData,
    Table,
    cast,
    exists,
    func,
    literal_column,
    select,
)
from sqlalchemy import type_coerce as coerce

from agentstate.db.compat import FoundRow, rows_one_by_one
from agentstate.db.health.findings import Finding, counted, some

Problem = Callable[[Mapping[str, Any]], str | None]
"""Says what is wrong with a row whose values can all be read; None if nothing is."""

_PAGE = 20
_NAMED = 3


def orphans(connection: Connection, metadata: MetaData, present: Mapping[str, set[str]]) -> list[Finding]:
    """Return the rows that refer to a row that is not there, per foreign key.

    Only programs that do not switch foreign keys on make them; the models say what refers to what, since a table made
    by other hands may lack the constraint. `present` are the tables and columns that the database has.
    """
    findings: list[Finding] = []
    for table in metadata.sorted_tables:
        for key in sorted(table.foreign_keys, key=lambda found: found.parent.name):
            if key.parent.name in present.get(table.name, ()) and key.column.table.name in present:
                findings += _orphans(connection, table, key.parent, key.column, key.ondelete == "CASCADE")
    return findings


def _orphans(
    connection: Connection, table: Table, column: Column[Any], referred: Column[Any], belongs: bool
) -> Iterator[Finding]:
    parent = referred.table.alias("parent")
    alone = column.is_not(None) & ~exists().where(parent.c[referred.name] == column)
    rows = int(connection.execute(select(func.count()).select_from(table).where(alone)).scalar_one())
    if not rows:
        return
    names = as_stored(connection, column)
    values = connection.execute(select(names).where(alone).distinct().order_by(names).limit(_NAMED)).scalars().all()
    what = f"{counted(rows, 'row', 'rows')} of {table.name} {'belongs' if rows == 1 else 'belong'} to no row of "
    where = f"WHERE {column.name} NOT IN (SELECT {referred.name} FROM {referred.table.name})"
    mend = f"DELETE FROM {table.name} {where}" if belongs else f"UPDATE {table.name} SET {column.name} = NULL {where}"
    yield Finding(
        "orphans",
        "warning",
        f"{what}{referred.table.name}: {column.name} {some(values)}",
        f"restore what is missing from a backup, or let them go: {mend}",
    )


def wrong(
    connection: Connection, metadata: MetaData, present: Mapping[str, set[str]], problems: Mapping[str, Problem]
) -> list[Finding]:
    """Return the rows that cannot be read, and those that break a rule of their table; reads every row.

    What cannot be read: bytes that are no UTF-8, times, numbers and JSON that are none, and what `problems`
    says, by table, of a row whose values can.
    """
    findings: list[Finding] = []
    for table in metadata.sorted_tables:
        names = present.get(table.name, set())
        if names:
            findings += _unreadable(connection, table, names, problems.get(table.name))
        # SQLite's own check does not look at rules where it may only read.
        if {column.name for column in table.columns} <= names:
            for rule in sorted(table.constraints, key=lambda found: str(found.name)):
                findings += _broken(connection, table, rule) if isinstance(rule, CheckConstraint) else []
    return findings


def _broken(connection: Connection, table: Table, rule: CheckConstraint) -> Iterator[Finding]:
    wrong = literal_column(f"NOT ({rule.sqltext})", Boolean)
    rows = int(connection.execute(select(func.count()).select_from(table).where(wrong)).scalar_one())
    if rows:
        keys = as_stored(connection, next(iter(table.primary_key)))
        names = connection.execute(select(keys).where(wrong).order_by(keys).limit(_NAMED)).scalars().all()
        what = f"{counted(rows, 'row breaks', 'rows break')} the rule of {table.name} that {rule.sqltext}"
        do = "another program wrote that: correct it with sqlite3 or psql, after a backup"
        yield Finding("rows", "error", f"{what}: {some(names, rows)}", do)


def _unreadable(connection: Connection, table: Table, names: set[str], problem: Problem | None) -> Iterator[Finding]:
    keys = [column.name for column in table.primary_key]
    statement = select(*(column for column in table.columns if column.name in names))
    bad = 0
    named: list[str] = []
    for row in rows_one_by_one(connection, statement.execution_options(yield_per=_PAGE), {}):
        detail = _detail(row, problem)
        if detail is not None:
            bad += 1
            if len(named) < _NAMED:
                named.append(f"{row.name(keys)}: {detail}")
    if bad:
        what = f"{counted(bad, 'row', 'rows')} of {table.name} cannot be read: {some(named, bad)}"
        do = "another program wrote that: correct or delete it with sqlite3 or psql, after a backup"
        yield Finding("rows", "error", what, do)


def _detail(row: FoundRow, problem: Problem | None) -> str | None:
    if row.error is not None:
        return f"{row.error.field}: {row.error.detail}"
    return problem(row.values) if problem is not None and row.values is not None else None


def as_stored(connection: Connection, column: Column[Any]) -> ColumnElement[Any]:
    """Return a column to select so that no byte in it makes SQLite's driver fail: as bytes there."""
    if connection.dialect.name != "sqlite":
        return column
    return coerce(cast(column, LargeBinary), LargeBinary).label(column.name)
