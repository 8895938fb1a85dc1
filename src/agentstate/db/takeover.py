"""Rebuilding tables that other hands made, row by row, as this code knows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, MetaData, Table, Text, bindparam, func, inspect, select

from agentstate.db import state
from agentstate.db.additive import add_column, addable, default_text, step
from agentstate.db.types import JsonText, UnixSeconds, UtcText, parse_instant
from agentstate.errors import CannotAdopt, ConstraintViolated, InvalidValue, UnreadableValue

_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def take_over_tables(connection: Connection, metadata: MetaData, database: str) -> tuple[list[str], dict[str, int]]:
    """Rebuild our tables that exist, create those that do not; return the steps taken, and the rows per table.

    Values pass the columns' own types, as if they were written today. Indexes and triggers that a table had beside
    them are made again. Raises `CannotAdopt` naming what stands in the way; the caller's transaction then leaves
    everything as it was.
    """
    if connection.dialect.name != "sqlite":
        return _each_table(connection, metadata, database, _complete)
    with _foreign_hands(connection):
        found = _each_table(connection, metadata, database, _rebuild)
        orphans = {str(row[0]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check")}
        if orphans:
            raise CannotAdopt(database, f"rows of {', '.join(sorted(orphans))} refer to rows that do not exist")
        return found


def _each_table(
    connection: Connection,
    metadata: MetaData,
    database: str,
    take: Callable[[Connection, Table, str], tuple[int, list[str]]],
) -> tuple[list[str], dict[str, int]]:
    """Go through our tables; `take` takes one over and returns how many rows it has, and what was kept beside it."""
    ours = set(state.our_tables(connection))
    existing = set(inspect(connection).get_table_names())
    steps: list[str] = []
    rows: dict[str, int] = {}
    for table in metadata.sorted_tables:
        if table.name in ours:
            steps += _compare_columns(connection, table, database)
            count, kept = take(connection, table, database)
            rows[table.name] = count
            steps.append(f"took over {table.name} with {count} row{'' if count == 1 else 's'}")
            steps += [f"kept {name} on {table.name}" for name in kept]
        elif table.name in existing:
            raise CannotAdopt(database, f"its table {table.name} has other columns than agentstate's")
        else:
            table.create(connection)
            steps.append(f"created {table.name}")
    others = sorted(existing - {table.name for table in metadata.sorted_tables} - {state.VERSION_TABLE})
    return steps + [f"left {name} alone, which is not agentstate's" for name in others], rows


def _complete(connection: Connection, table: Table, database: str) -> tuple[int, list[str]]:
    """Add what is missing to a table on an engine whose columns hold their own types and nothing else."""
    _compare_types(connection, table, database)
    _compare_keys(connection, table, database)
    present = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in present:
            add_column(connection, column)
    return connection.execute(select(func.count()).select_from(table)).scalar_one(), []


def _compare_types(connection: Connection, table: Table, database: str) -> None:
    for found in inspect(connection).get_columns(table.name):
        kinds = found["type"], table.columns[found["name"]].type
        kind, expected = (of.compile(connection.dialect) for of in kinds)
        if kind != expected:
            raise CannotAdopt(database, f"column {table.name}.{found['name']} is {kind} and not {expected}")


def _compare_keys(connection: Connection, table: Table, database: str) -> None:
    """Raise `CannotAdopt` for a table whose rows could not be told apart, or could be half there."""
    inspector = inspect(connection)
    optional = [column["name"] for column in inspector.get_columns(table.name) if column["nullable"]]
    loose = [name for name in optional if not table.columns[name].nullable]
    if loose:
        raise CannotAdopt(database, f"column {table.name}.{loose[0]} may be NULL")
    key = [column.name for column in table.primary_key.columns]
    if inspector.get_pk_constraint(table.name)["constrained_columns"] != key:
        raise CannotAdopt(database, f"table {table.name} has not the primary key ({', '.join(key)})")
    found = {
        (*key["constrained_columns"], key["referred_table"], *key["referred_columns"], key["options"].get("ondelete"))
        for key in inspector.get_foreign_keys(table.name)
    }
    for reference in table.foreign_keys:
        column = reference.column
        if (reference.parent.name, column.table.name, column.name, reference.ondelete) not in found:
            raise CannotAdopt(
                database,
                f"column {table.name}.{reference.parent.name} does not refer to {column.table.name}.{column.name}",
            )


@contextmanager
def _foreign_hands(connection: Connection) -> Iterator[None]:
    """Read bytes that are not UTF-8, so that their row can be named, and rename a table without its references.

    SQLite otherwise turns views and foreign keys of other tables to the renamed table, which is about to go.
    """
    driver: Any = connection.connection.driver_connection
    usual = driver.text_factory
    driver.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    driver.execute("PRAGMA legacy_alter_table = ON")
    try:
        yield
    finally:
        driver.execute("PRAGMA legacy_alter_table = OFF")
        driver.text_factory = usual


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


def _rebuild(connection: Connection, table: Table, database: str) -> tuple[int, list[str]]:
    old = f"_adopted_{table.name}"
    columns = [column["name"] for column in inspect(connection).get_columns(table.name)]
    beside = connection.exec_driver_sql(
        "SELECT type, name, sql FROM sqlite_master "
        "WHERE tbl_name = ? AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        (table.name,),
    ).all()
    for kind, name, _ in beside:
        connection.exec_driver_sql(f'DROP {kind} "{name}"')
    connection.exec_driver_sql(f'ALTER TABLE "{table.name}" RENAME TO "{old}"')
    table.create(connection)
    insert = _insertion(table)
    count = 0
    # A batch at a time: the table may be larger than memory.
    for row in connection.exec_driver_sql(f'SELECT * FROM "{old}"').yield_per(500).mappings():
        _insert(connection, table, insert, {name: row[name] for name in columns}, database)
        count += 1
    connection.exec_driver_sql(f'DROP TABLE "{old}"')
    new = {index["name"] for index in inspect(connection).get_indexes(table.name)}
    kept = [(kind, name, made) for kind, name, made in beside if name not in new]
    for _, _, made in kept:
        connection.exec_driver_sql(made)
    return count, [f"{kind} {name}" for kind, name, _ in kept]


def _insertion(table: Table) -> Insert:
    """Return the INSERT of whole rows; JSON is given as its text, so that it arrives byte for byte."""
    types = {column.name: Text() if isinstance(column.type, JsonText) else column.type for column in table.columns}
    return table.insert().values({name: bindparam(name, type_=kind) for name, kind in types.items()})


def _insert(connection: Connection, table: Table, insert: Insert, row: Mapping[str, Any], database: str) -> None:
    key = ", ".join(f"{column.name} {row.get(column.name)!r}" for column in table.primary_key.columns)
    try:
        values = {column.name: _value(column, row, connection.dialect) for column in table.columns}
        connection.execute(insert, values)
    except (InvalidValue, UnreadableValue) as error:
        detail = f"{error.field} {error.reason if isinstance(error, InvalidValue) else error.detail}"
        raise CannotAdopt(database, f"in table {table.name} the row with {key}: {detail}") from None
    except ConstraintViolated as error:
        raise CannotAdopt(
            database,
            f"in table {table.name} the row with {key} would break {error.detail} "
            "(several spellings of one sender become one); correct or delete one of the rows",
        ) from None


def _value(column: Any, row: Mapping[str, Any], dialect: Dialect) -> Any:
    if column.name not in row:
        return default_text(column)
    value = row[column.name]
    if value is None and not column.nullable:
        raise UnreadableValue("", column.name, "is missing (NULL)")
    if isinstance(value, str) and _NOT_UTF8.search(value):
        raise UnreadableValue("", column.name, "is not UTF-8")
    if value is not None and isinstance(column.type, UtcText | UnixSeconds):
        return parse_instant(value, column.name)
    if isinstance(column.type, JsonText):
        column.type.process_result_value(value, dialect)
    return value
