"""Units of work: the only place where transactions begin, commit and roll back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Mapper, Session, object_mapper
from sqlalchemy.orm.attributes import flag_modified

from agentstate.db.engine import WRITES
from agentstate.db.types import JsonText
from agentstate.errors import ConstraintViolated, DatabaseBusy

SCHEMA_LOCK = 0x6167656E74
"""PostgreSQL's advisory lock ("agent") under which one process at a time changes the schema. It ends with the
transaction, so that it also works behind a pooler (PG-03)."""


@dataclass(frozen=True, slots=True)
class UnitOfWork:
    """One transaction: its session, and the one instant (aware UTC) at which everything in it happens."""

    session: Session
    now: datetime


@contextmanager
def unit_of_work(
    engine: Engine, *, writes: bool, now: datetime, database: str, info: dict[str, Any]
) -> Iterator[UnitOfWork]:
    """Begin a transaction, commit it when the block is left, roll it back when the block raises.

    A writing unit takes the write lock at once and waits for it up to the busy timeout. `database` is the name that
    errors carry, `info` becomes the session's info. Nothing is retried here: after a failure nothing of the unit is
    stored, and whether to repeat it is the caller's decision (LK-09).
    """
    session = Session(engine.execution_options(**{WRITES: writes}), expire_on_commit=False, info=info)
    try:
        with _connecting(engine, database):
            connection = session.connection()
        try:
            yield UnitOfWork(session, now)
            if writes:
                _save_json_changed_in_place(session)
                session.commit()
        except BaseException:
            # The session forgets a transaction whose COMMIT failed, and it would stay open with its lock (LK-05).
            connection.rollback()
            raise
    finally:
        session.close()  # rolls back what is not committed and gives the connection back


@contextmanager
def schema_change(engine: Engine, database: str, *, keep: bool = True) -> Iterator[Connection]:
    """Begin a transaction that alone may change the schema; commit it when the block is left.

    On SQLite it holds the write lock and foreign keys are off; on PostgreSQL it holds an advisory lock.
    `keep=False` rolls everything back at the end: a rehearsal.
    """
    with _connecting(engine, database):
        connection = engine.execution_options(**{WRITES: True}).connect()
    on_sqlite = connection.dialect.name == "sqlite"
    with connection, _foreign_keys_off(connection) if on_sqlite else nullcontext(), connection.begin() as transaction:
        if not on_sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
        yield connection
        if on_sqlite:
            _check_foreign_keys(connection, database)
        if not keep:
            transaction.rollback()


@contextmanager
def _foreign_keys_off(connection: Connection) -> Iterator[None]:
    """Switch foreign keys off around a transaction: rebuilding a parent table would delete its children (MG-01).

    On the driver's connection and before BEGIN, since SQLite ignores the PRAGMA inside a transaction.
    """
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys = ON")


def _check_foreign_keys(connection: Connection, database: str) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if broken:
        where = ", ".join(sorted({str(row[0]) for row in broken}))
        raise ConstraintViolated(database, f"rows of {where} ({len(broken)}) would refer to rows that do not exist")


@contextmanager
def _connecting(engine: Engine, database: str) -> Iterator[None]:
    try:
        yield
    except PoolTimeout:
        # In memory there is one connection, on a server as many as the setting says: all are in use.
        raise DatabaseBusy(database, engine.pool.timeout()) from None  # type: ignore[attr-defined]


def _save_json_changed_in_place(session: Session) -> None:
    for instance in session.identity_map.values():
        for key in _json_attributes(object_mapper(instance)):
            if key in instance.__dict__ and JsonText.changed_in_place(instance.__dict__[key]):
                flag_modified(instance, key)


@cache
def _json_attributes(mapper: Mapper[Any]) -> tuple[str, ...]:
    return tuple(attribute.key for attribute in mapper.column_attrs if isinstance(attribute.columns[0].type, JsonText))
