"""A whole database moved to another one, on the same engine or the other: every row, compared afterwards, or nothing.

The source is read from one snapshot, and everything on the target is one transaction: a copy that is interrupted,
killed or refused leaves the target as it was. Rows pass in batches, so that memory does not grow with the database.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from reprlib import repr as short
from typing import Any, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    RowMapping,
    Table,
    TableClause,
    Text,
    cast,
    column,
    func,
    inspect,
    literal,
    select,
)
from sqlalchemy import table as light_table
from sqlalchemy.dialects import sqlite

from agentstate.db import state
from agentstate.db.database import Database
from agentstate.db.types import CheckedText, JsonText, UtcText
from agentstate.errors import ConstraintViolated, CopyDiffers, InvalidValue, TargetNotEmpty, UnreadableValue

BATCH = 100
"""Rows read and written at once: one statement each."""

_STORED_FORM = sqlite.dialect()
"""Checksums are made of values as SQLite stores them, on whichever engine they are."""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a copy is: `done` of the `total` rows of one table are copied, or read again for their checksum."""

    doing: Literal["copying", "checking"]
    table: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """How many rows a table has, and the checksum of what they say (hexadecimal): the same on every engine."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied from where to where; `left_out` names the source's tables that are not agentstate's."""

    source: str
    target: str
    tables: dict[str, CopiedTable]
    left_out: tuple[str, ...]


OnProgress = Callable[[CopyProgress], None]


def copy_database(
    source: Database, target: Database, metadata: MetaData, *, on_progress: OnProgress | None = None
) -> CopyReport:
    """Copy every row of the tables of `metadata` (`agentstate.metadata.metadata`) into a target without rows.

    The copy is the source as it is at the call, whatever is written to it meanwhile. Times come in their stored form,
    everything else unchanged; numbers that a sequence has given out are not given out again. Before the commit all rows
    are read back and compared with the source's by count and checksum.

    Raises `SchemaBehind`, `SchemaAhead`, `SchemaUnversioned` or `ForeignDatabase` unless both are at head,
    `TargetNotEmpty`, `InvalidValue` when both are the same database, `UnreadableValue` naming a row that this code
    could not have written, `CopyDiffers`, and `ConstraintViolated`; the target is then as it was.
    """
    if _identity(source) == _identity(target):
        raise InvalidValue("target", f"{target.name} is the source itself; name another database")
    with source.connect() as reading, _undecoded(reading):
        _require_head(reading, source)
        _prepare(reading)
        with target.change_schema() as writing:
            _require_head(writing, target)
            _prepare(writing)
            _lock(writing, metadata)
            _require_no_rows(writing, target, metadata)
            with _own_references_checked_last(writing, metadata):
                copied = {
                    table.name: _copy_table(table, reading, writing, source, on_progress)
                    for table in metadata.sorted_tables
                }
            for table in metadata.sorted_tables:
                _compare(table, copied[table.name], writing, target, on_progress)
                _continue_numbers(table, reading, writing)
        others = set(inspect(reading).get_table_names()) - {*metadata.tables, state.VERSION_TABLE}
    return CopyReport(source.name, target.name, copied, tuple(sorted(others)))


class _Rows:
    """The rows of one table as values, batch by batch; counts them and adds up their digests.

    A sum of digests does not depend on the order of the rows, which engines' collations make differ.
    """

    def __init__(self, table: Table, connection: Connection, database: str) -> None:
        self._table = table
        self._connection = connection
        self._database = database
        self._columns = [
            (
                of.name,
                of.type.result_processor(connection.dialect, None),
                _transport(of).bind_processor(_STORED_FORM),
                isinstance(of.type, JsonText),
            )
            for of in table.columns
        ]
        self._sum = 0
        self.count = 0

    def batches(self) -> Generator[list[dict[str, Any]], None, None]:
        """Yield the values of all rows by their columns' names; raises `UnreadableValue` naming a row."""
        # Without types: a value that cannot be read then stands beside the key that names its row.
        columns: list[ColumnElement[Any]] = list(_light(self._table, lambda of: None).c)
        if self._connection.dialect.name == "postgresql":
            # As text: the driver cannot read every instant that the server knows, such as infinity.
            columns = [
                cast(untyped, Text).label(of.name) if isinstance(of.type, UtcText) else untyped
                for of, untyped in zip(self._table.columns, columns, strict=True)
            ]
        with self._connection.execute(select(*columns), execution_options={"yield_per": BATCH}) as found:
            for part in found.mappings().partitions():
                yield [self._row(raw) for raw in part]

    def copied(self) -> CopiedTable:
        """Return what has been seen so far."""
        return CopiedTable(self.count, f"{self._sum % 2**256:064x}")

    def _row(self, raw: RowMapping) -> dict[str, Any]:
        values: dict[str, Any] = {}
        stored: dict[str, Any] = {}
        for name, read, bind, as_text in self._columns:
            try:
                value = raw[name] if read is None else read(raw[name])
                values[name] = raw[name] if as_text else value
                stored[name] = values[name] if bind is None else bind(values[name])
                if stored[name] != values[name] and not isinstance(value, datetime):
                    raise UnreadableValue("", name, f"{short(values[name])} should be {short(stored[name])}")
            except (UnreadableValue, InvalidValue) as error:
                raise UnreadableValue(self._database, name, self._where(raw, name, error)) from None
        text = json.dumps(stored, sort_keys=True, default=lambda blob: {"bytes": bytes(blob).hex()})
        self._sum += int.from_bytes(hashlib.sha256(text.encode()).digest())
        self.count += 1
        return values

    def _where(self, raw: RowMapping, name: str, error: UnreadableValue | InvalidValue) -> str:
        key = ", ".join(f"{of.name}={raw[of.name]!r}" for of in self._table.primary_key.columns)
        detail = error.detail if isinstance(error, UnreadableValue) else error.reason
        if isinstance(raw[name], str) and any("\udc80" <= letter <= "\udcff" for letter in raw[name]):
            detail = "not UTF-8"
        return f"in table {self._table.name} the row with {key}: {detail}"


def _transport(of: Column[Any]) -> Any:
    """Return the type that carries a column's values: JSON travels as its text, so that it arrives byte for byte."""
    return CheckedText(of.name, optional=True) if isinstance(of.type, JsonText) else of.type


def _light(table: Table, kind: Callable[[Column[Any]], Any]) -> TableClause:
    """Return the table with other types, without defaults and keys."""
    return light_table(table.name, *(column(of.name, kind(of)) for of in table.columns), schema=table.schema)


def _copy_table(
    table: Table, reading: Connection, writing: Connection, source: Database, on_progress: OnProgress | None
) -> CopiedTable:
    total = reading.execute(select(func.count()).select_from(table)).scalar_one()
    rows = _Rows(table, reading, source.name)
    insert = _light(table, _transport).insert()
    with closing(rows.batches()) as batches:
        for batch in batches:
            try:
                writing.execute(insert, batch)
            except ConstraintViolated as error:
                raise ConstraintViolated(error.database, f"table {table.name}: {error.detail}") from error
            if on_progress is not None:
                on_progress(CopyProgress("copying", table.name, rows.count, total))
    return rows.copied()


def _compare(
    table: Table, copied: CopiedTable, writing: Connection, target: Database, on_progress: OnProgress | None
) -> None:
    rows = _Rows(table, writing, target.name)
    with closing(rows.batches()) as batches:
        for _ in batches:
            if on_progress is not None:
                on_progress(CopyProgress("checking", table.name, rows.count, copied.rows))
    if rows.count != copied.rows:
        raise CopyDiffers(target.name, f"{table.name} has {rows.count} rows instead of {copied.rows}")
    if rows.copied() != copied:
        raise CopyDiffers(target.name, f"the {copied.rows} rows of {table.name} say something else")


def _identity(database: Database) -> object:
    """Return what two handles on the same database have in common, however each of them names it."""
    with database.connect() as connection:
        if database.path is not None:
            file = os.stat(database.path)
            return file.st_dev, file.st_ino
        return tuple(
            connection.exec_driver_sql(
                "SELECT extract(epoch FROM pg_postmaster_start_time()), oid, current_schema() FROM pg_database "
                "WHERE datname = current_database()"
            ).one()
        )


def _require_head(connection: Connection, database: Database) -> None:
    state.require_head(state.schema_revision(connection, database.name), database.name)


def _require_no_rows(connection: Connection, target: Database, metadata: MetaData) -> None:
    filled = [
        table.name
        for table in metadata.sorted_tables
        if connection.execute(select(literal(1)).select_from(table).limit(1)).first()
    ]
    if filled:
        raise TargetNotEmpty(target.name, filled)


@contextmanager
def _undecoded(connection: Connection) -> Iterator[None]:
    """Read bytes that are not UTF-8 as lone surrogates, which no type lets pass, so that their row can be named."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        yield
        return
    usual = driver.text_factory
    driver.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    try:
        yield
    finally:
        driver.text_factory = usual


def _prepare(connection: Connection) -> None:
    """Let statements take as long as a large database needs, and have the server write times as this code reads them.

    The limit on a statement's time is for what people wait for.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0; SET LOCAL datestyle = ISO")


def _lock(connection: Connection, metadata: MetaData) -> None:
    """Keep other writers away from the tables until the end; SQLite's one writer is this transaction already."""
    if connection.dialect.name == "postgresql":
        names = ", ".join(_quoted(connection, table) for table in metadata.sorted_tables)
        connection.exec_driver_sql(f"LOCK TABLE {names} IN EXCLUSIVE MODE")


@contextmanager
def _own_references_checked_last(connection: Connection, metadata: MetaData) -> Iterator[None]:
    """Let a row come before the row of the same table that it refers to, its parent: no order of batches is right.

    On SQLite all foreign keys are checked at the end of a change of the schema.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    inspector = inspect(connection)
    quote = connection.dialect.identifier_preparer.quote
    keys = [
        f"ALTER TABLE {_quoted(connection, table)} ALTER CONSTRAINT {quote(str(key['name']))}"
        for table in metadata.sorted_tables
        for key in inspector.get_foreign_keys(table.name, table.schema)
        if key["referred_table"] == table.name and not key["options"].get("deferrable")
    ]
    for alter in keys:
        connection.exec_driver_sql(f"{alter} DEFERRABLE INITIALLY DEFERRED")
    yield
    connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    for alter in keys:
        connection.exec_driver_sql(f"{alter} NOT DEFERRABLE")


def _continue_numbers(table: Table, reading: Connection, writing: Connection) -> None:
    """Let the target's sequence go on after the largest number that the source has ever given out."""
    of = table.autoincrement_column
    if of is None:
        return
    largest = max(reading.execute(select(func.max(of))).scalar() or 0, _given_out(table, of, reading))
    if largest < 1:
        return
    if writing.dialect.name == "postgresql":
        sequence = _sequence(table, of, writing)
        if sequence is not None:
            # Unlike setval(), this is undone when the transaction is.
            writing.exec_driver_sql(f"ALTER SEQUENCE {sequence} RESTART WITH {largest + 1}")
    elif table.kwargs.get("sqlite_autoincrement"):
        writing.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
        writing.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table.name, largest))


def _given_out(table: Table, of: Column[Any], connection: Connection) -> int:
    """Return the largest number that the table's sequence has given out, also to rows that are gone; 0 for none."""
    if connection.dialect.name == "postgresql":
        sequence = _sequence(table, of, connection)
        if sequence is None:
            return 0
        last, used = connection.exec_driver_sql(f"SELECT last_value, is_called FROM {sequence}").one()
        return int(last) if used else int(last) - 1
    if not table.kwargs.get("sqlite_autoincrement"):
        return 0
    found = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).scalar()
    return int(found or 0)


def _sequence(table: Table, of: Column[Any], connection: Connection) -> str | None:
    found = select(func.pg_get_serial_sequence(_quoted(connection, table), of.name))
    sequence: str | None = connection.execute(found).scalar()
    return sequence


def _quoted(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)
