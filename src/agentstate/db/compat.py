"""Reading what is not quite as the models say: databases that predate a column, and rows that others damaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Table,
    cast,
    inspect,
    literal,
    null,
    select,
    type_coerce,
)
from sqlalchemy.orm import Mapper, Session, aliased

from agentstate.db.base import Base
from agentstate.errors import UnreadableValue

if TYPE_CHECKING:
    from agentstate.db.uow import UnitOfWork

log = logging.getLogger("agentstate")

Model = TypeVar("Model", bound=Base)


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
        return _rows_one_value_at_a_time(session, model, statement)


def _rows_one_value_at_a_time(session: Session, model: type[Model], statement: Select[Model]) -> list[Model]:
    mapper: Mapper[Any] = inspect(model).mapper
    columns: list[Column[Any]] = [attribute.columns[0] for attribute in mapper.column_attrs]  # type: ignore[misc]
    keys = {column.name for column in mapper.primary_key}
    # As bytes nothing is undecodable; the columns' own types then judge value by value.
    raw = [type_coerce(cast(getattr(model, column.key), LargeBinary), LargeBinary) for column in columns]
    dialect = session.connection().dialect
    rows: list[Model] = []
    for values in session.execute(statement.with_only_columns(*raw)):
        try:
            read = {column.key: _value(column, value, dialect) for column, value in zip(columns, values, strict=True)}
        except UnreadableValue as error:
            name = ", ".join(
                f"{column.name}={bytes(value or b'').decode('utf-8', 'backslashreplace')!r}"
                for column, value in zip(columns, values, strict=True)
                if column.name in keys
            )
            log.warning(
                "%s: the row with %s is left out: %s",
                mapper.class_.__tablename__,
                name,
                error.detail,
                extra={"row_left_out": True},
            )
        else:
            rows.append(mapper.class_(**read))
    return rows


def _value(column: Column[Any], value: bytes | None, dialect: Any) -> Any:
    if value is None:
        return None
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        raise UnreadableValue("", column.name, f"column {column.name} is not UTF-8") from None
    processor = column.type.result_processor(dialect, None)
    if processor is not None:
        return processor(text)
    return int(text) if column.type.python_type is int else text


def _default(column: Column[Any]) -> Any:
    from agentstate.db.additive import default_text  # only a database that lacks columns needs it

    text = default_text(column)
    return cast(null(), column.type) if text is None else type_coerce(literal(text), column.type)
