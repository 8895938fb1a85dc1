"""Rebuilding tables that other hands made, row by row, as this code knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, MetaData, Table, inspect

from agentstate.db import state
from agentstate.db.additive import addable, default_text, step
from agentstate.db.types import UnixSeconds, UtcText, parse_instant
from agentstate.errors import CannotAdopt, ConstraintViolated, InvalidValue, UnreadableValue


def take_over_tables(connection: Connection, metadata: MetaData, database: str) -> tuple[list[str], dict[str, int]]:
    """Rebuild our tables that exist, create those that do not; return the steps taken, and the rows per table.

    Values pass the columns' own types, as if they were written today. Raises `CannotAdopt` naming what stands in the
    way; the caller's transaction then leaves everything as it was.
    """
    ours = set(state.our_tables(connection))
    existing = set(inspect(connection).get_table_names())
    steps: list[str] = []
    rows: dict[str, int] = {}
    for table in metadata.sorted_tables:
        if table.name in ours:
            steps += _compare_columns(connection, table, database)
            rows[table.name] = _rebuild(connection, table, database)
            count = rows[table.name]
            steps.append(f"took over {table.name} with {count} row{'' if count == 1 else 's'}")
        elif table.name in existing:
            raise CannotAdopt(database, f"its table {table.name} has other columns than agentstate's")
        else:
            table.create(connection)
            steps.append(f"created {table.name}")
    others = sorted(existing - {table.name for table in metadata.sorted_tables} - {state.VERSION_TABLE})
    steps += [f"left {name} alone, which is not agentstate's" for name in others]
    return steps, rows


def _compare_columns(connection: Connection, table: Table, database: str) -> list[str]:
    present = [column["name"] for column in inspect(connection).get_columns(table.name)]
    unknown = [name for name in present if name not in table.columns]
    if unknown:
        raise CannotAdopt(database, f"table {table.name} has columns that would be lost: {', '.join(unknown)}")
    missing = [column for column in table.columns if column.name not in present]
    for column in missing:
        if not addable(column):
            raise CannotAdopt(database, f"column {step(column)} is missing and cannot be guessed")
    return [f"added {step(column)}" for column in missing]


def _rebuild(connection: Connection, table: Table, database: str) -> int:
    old = f"_adopted_{table.name}"
    columns = [column["name"] for column in inspect(connection).get_columns(table.name)]
    connection.exec_driver_sql(f'ALTER TABLE "{table.name}" RENAME TO "{old}"')
    table.create(connection)
    count = 0
    # Rows are read by rowid, a batch at a time: the table may be larger than memory.
    for row in connection.exec_driver_sql(f'SELECT * FROM "{old}" ORDER BY rowid').yield_per(500).mappings():
        _insert(connection, table, {name: row[name] for name in columns}, database)
        count += 1
    connection.exec_driver_sql(f'DROP TABLE "{old}"')
    return count


def _insert(connection: Connection, table: Table, row: Mapping[str, Any], database: str) -> None:
    key = ", ".join(f"{column.name} {row.get(column.name)!r}" for column in table.primary_key.columns)
    try:
        values = {column.name: _value(column, row) for column in table.columns}
        connection.execute(table.insert(), values)
    except (InvalidValue, UnreadableValue) as error:
        detail = f"{error.field} {error.reason if isinstance(error, InvalidValue) else error.detail}"
        raise CannotAdopt(database, f"in table {table.name} the row with {key}: {detail}") from None
    except ConstraintViolated as error:
        raise CannotAdopt(
            database,
            f"in table {table.name} the row with {key} would break {error.detail} "
            "(several spellings of one sender become one); correct or delete one of the rows",
        ) from None


def _value(column: Any, row: Mapping[str, Any]) -> Any:
    if column.name not in row:
        return default_text(column)
    value = row[column.name]
    if value is not None and isinstance(column.type, UtcText | UnixSeconds):
        return parse_instant(value, column.name)
    return value
