"""Reading what is not quite as the models say: databases that predate a column, and rows that others damaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Column, LargeBinary, Select, cast, inspect, literal, null, select, type_coerce
from sqlalchemy.orm import Mapper, Session, aliased

from agentstate.db.additive import default_text
from agentstate.db.base import Base
from agentstate.errors import UnreadableValue

log = logging.getLogger("agentstate")

Model = TypeVar("Model", bound=Base)


def readable(model: type[Model], session: Session) -> type[Model]:
    """Return the model, or a stand-in for it that also reads a table which lacks some of its columns.

    The stand-in is used like the class, `select(found).where(found.job_id == …)`, and yields ordinary objects whose
    missing columns hold their defaults. That a table is complete is remembered per database; that it is not is asked
    again each time, so that a reader kept open notices when somebody else upgrades (UP-02). A table that is missing
    altogether raises `SchemaBehind` when it is read.
    """
    table = model.__tablename__
    complete: set[str] = session.info.setdefault("complete_tables", set())
    if session.info.get("at_head") or table in complete:
        return model
    connection = session.connection()
    inspector = inspect(connection)
    present = {column["name"] for column in inspector.get_columns(table)} if inspector.has_table(table) else set()
    columns: Sequence[Column[Any]] = list(model.__table__.columns)  # type: ignore[arg-type]
    if not present or all(column.name in present for column in columns):
        if present:
            complete.add(table)
        return model
    stand_in = select(
        *(column if column.name in present else _default(column).label(column.name) for column in columns)
    ).subquery()
    return aliased(model, stand_in, adapt_on_names=True)


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
    text = default_text(column)
    return cast(null(), column.type) if text is None else type_coerce(literal(text), column.type)
