"""Reading what is not quite as the models say: databases that predate a column, and rows that others damaged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Table,
    Text,
    cast,
    inspect,
    literal,
    null,
    select,
    type_coerce,
)
from sqlalchemy.orm import Mapper, Session, aliased
from sqlalchemy.types import TypeDecorator, TypeEngine

from agentstate.db.base import Base
from agentstate.errors import UnreadableValue

if TYPE_CHECKING:
    from agentstate.db.uow import UnitOfWork

log = logging.getLogger("agentstate")

Model = TypeVar("Model", bound=Base)

_ESCAPED = re.compile("[\ud800-\udfff]")


def readable(model: type[Model], session: Session) -> type[Model]:
    """Return the model, or a stand-in for it that also reads a table which lacks some of its columns.

    The stand-in is used like the class, `select(found).where(found.job_id == …)`, and yields ordinary objects whose
    missing columns hold their defaults. That a table is complete is remembered per database; that it is not is asked
    again each time, so that a reader kept open notices when somebody else upgrades (UP-02). A table that is missing
    altogether raises `SchemaBehind` when it is read.
    """
    if session.info.get("at_head"):
        return model
    columns = _columns(Base.metadata.tables[model.__tablename__], session.connection(), session.info)
    return model if columns is None else aliased(model, select(*columns).subquery(), adapt_on_names=True)


def readable_select(statement: Select[Any], table: Table, work: UnitOfWork) -> Select[Any]:
    """Return a SELECT of all columns of a table, or one with defaults for those that the database lacks.

    For rows without objects: the same as `readable` at a third of the time.
    """
    if work.info.get("at_head"):
        return statement
    columns = _columns(table, work.connection, work.info)
    return statement if columns is None else statement.with_only_columns(*columns)


def _columns(table: Table, connection: Connection, info: dict[Any, Any]) -> list[ColumnElement[Any]] | None:
    """Return what to select in place of the table's columns, None if it has them all or is not there."""
    complete: set[str] = info.setdefault("complete_tables", set())
    if table.name in complete:
        return None
    inspector = inspect(connection)
    if not inspector.has_table(table.name):
        return None
    present = {column["name"] for column in inspector.get_columns(table.name)}
    if all(column.name in present for column in table.columns):
        complete.add(table.name)
        return None
    return [column if column.name in present else _default(column).label(column.name) for column in table.columns]


def readable_rows(session: Session, model: type[Model], statement: Select[Model]) -> Sequence[Model]:
    """Return what the statement selects, leaving out rows that cannot be read; each is named in a warning (VA-08).

    `model` is the class, or the stand-in of `readable`, that the statement selects.
    """
    try:
        return session.scalars(statement).all()
    except UnreadableValue:
        mapper: Mapper[Any] = inspect(model).mapper
        columns = statement.with_only_columns(*(getattr(model, attribute.key) for attribute in mapper.column_attrs))
        keys = [column.name for column in mapper.primary_key]
        found = _one_value_at_a_time(session.connection(), columns, {}, str(model.__tablename__), keys)
        return [mapper.class_(**row.values) for row in found if row.values is not None]


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One row by the names of its columns: `values` as they are read, None if that fails.

    `raw` are those values too, or, where rows had to be read value by value, the stored ones as text: a byte that is
    not UTF-8 is a lone surrogate in it, as `surrogateescape` says.
    """

    raw: Mapping[str, Any]
    values: Mapping[str, Any] | None
    error: UnreadableValue | None = None

    def name(self, keys: Sequence[str]) -> str:
        """Return what a person calls the row: its keys, as they are stored."""
        return ", ".join(f"{key}={_shown(self.raw[key])!r}" for key in keys)


def found_rows(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any], *, table: str, keys: Sequence[str]
) -> list[FoundRow]:
    """Return every row that a SELECT of columns yields; one that cannot be read is named in a warning (VA-08).

    `table` and `keys`, the columns that tell its rows apart, are what the warning calls a row by.
    """
    try:
        rows = connection.execute(statement, parameters)
        return [FoundRow(values, values) for values in (row._asdict() for row in rows)]
    except UnreadableValue:
        return list(_one_value_at_a_time(connection, statement, parameters, table, keys))


def _one_value_at_a_time(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any], table: str, keys: Sequence[str]
) -> Iterator[FoundRow]:
    for row in rows_one_by_one(connection, statement, parameters):
        if row.error is not None:
            detail = row.error.detail
            log.warning(
                "%s: the row with %s is left out: %s", table, row.name(keys), detail, extra={"row_left_out": True}
            )
        yield row


def rows_one_by_one(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any]
) -> Iterator[FoundRow]:
    """Yield every row that a SELECT of columns yields, judged value by value; `error` says why one cannot be read."""
    columns = list(statement.selected_columns)
    names = [str(column.key) for column in columns]
    # As bytes nothing is undecodable in SQLite, and as text nothing is too large on a server; the columns' own types
    # then judge value by value.
    form = Text() if connection.dialect.name == "postgresql" else LargeBinary()
    stored = [type_coerce(cast(column, form), form) for column in columns]
    for row in connection.execute(statement.with_only_columns(*stored), parameters):
        raw = {
            name: value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
            for name, value in zip(names, row, strict=True)
        }
        try:
            values = {
                name: _value(name, column.type, raw[name], connection.dialect)
                for name, column in zip(names, columns, strict=True)
            }
        except UnreadableValue as error:
            yield FoundRow(raw, None, error)
        else:
            yield FoundRow(raw, values)


def _value(name: str, kind: TypeEngine[Any], text: str | None, dialect: Any) -> Any:
    if text is None:
        return None
    if _ESCAPED.search(text):
        raise UnreadableValue("", name, f"column {name} is not UTF-8")
    processor = kind.result_processor(dialect, None)
    if processor is not None:
        return processor(text)
    try:
        stored = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
        return int(text) if stored.python_type is int else text
    except ValueError:
        raise UnreadableValue("", name, f"column {name} holds {text!r}, which is no number") from None


def _shown(text: str | None) -> str:
    return (text or "").encode(errors="surrogateescape").decode(errors="backslashreplace")


def _default(column: Column[Any]) -> Any:
    from agentstate.db.additive import default_text  # only a database that lacks columns needs it

    text = default_text(column)
    return cast(null(), column.type) if text is None else type_coerce(literal(text), column.type)
