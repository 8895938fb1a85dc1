"""Units of work: the only place where transactions begin, commit and roll back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import cache
from typing import Any, Literal, cast

from sqlalchemy import Connection, Engine, QueuePool
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Mapper, Session, object_mapper
from sqlalchemy.orm.attributes import flag_modified

from agentstate.db.engine import SCHEMA, WRITES
from agentstate.db.types import JsonText
from agentstate.errors import ConstraintViolated, DatabaseBusy, DatabaseError, DatabaseUnavailable


class UnitOfWork:
    """One transaction: its connection, and the one instant (aware UTC) at which everything in it happens."""

    __slots__ = ("_session", "connection", "info", "now")

    def __init__(self, connection: Connection, now: datetime, info: dict[str, Any]) -> None:
        """Use `Database.write` or `Database.read`; `info` is what the database knows about its schema."""
        self.connection = connection
        self.now = now
        self.info = info
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session in this transaction, made at its first use: statements on hot paths do without."""
        if self._session is None:
            self._session = Session(
                self.connection, expire_on_commit=False, info=self.info, join_transaction_mode="rollback_only"
            )
        return self._session

    def flush(self) -> None:
        """Write what the session holds back, if there is one."""
        if self._session is not None:
            _save_json_changed_in_place(self._session)
            self._session.flush()

    def close(self) -> None:
        """Let go of the session's objects."""
        if self._session is not None:
            self._session.close()


@contextmanager
def unit_of_work(
    engine: Engine, *, writes: bool, now: datetime, database: str, info: dict[str, Any]
) -> Iterator[UnitOfWork]:
    """Begin a transaction, commit it when the block is left, roll it back when the block raises.

    A writing unit takes the write lock at once and waits for it up to the busy timeout. `database` is the name that
    errors carry, `info` becomes the session's info. Nothing is retried here: after a failure nothing of the unit is
    stored, and whether to repeat it is the caller's decision (LK-09).
    """
    with connected(engine, database, writes=writes, schema="use") as connection:
        connection.begin()
        work = UnitOfWork(connection, now, info)
        try:
            yield work
            if writes:
                work.flush()
                connection.commit()
        except PendingRollbackError:
            connection.rollback()
            reason = "the connection was lost earlier in this unit of work; nothing of it was written"
            raise DatabaseUnavailable(database, reason) from None
        except BaseException:
            # A transaction whose COMMIT failed counts as ended, and would stay open with its lock (LK-05).
            with suppress(DatabaseError):  # on a lost connection there is nothing to roll back, and it is not the cause
                connection.rollback()
            raise
        finally:
            work.close()


@contextmanager
def schema_change(engine: Engine, database: str, *, keep: bool = True) -> Iterator[Connection]:
    """Begin a transaction that alone may change the schema; commit it when the block is left.

    On SQLite it holds the write lock and foreign keys are off; on PostgreSQL it waits for the units that have begun,
    and those that begin wait for it.
    `keep=False` rolls everything back at the end: a rehearsal.
    """
    connection = connected(engine, database, writes=True, schema="change")
    on_sqlite = connection.dialect.name == "sqlite"
    with connection, _foreign_keys_off(connection) if on_sqlite else nullcontext(), connection.begin() as transaction:
        try:
            yield connection
            if on_sqlite:
                _check_foreign_keys(connection, database)
            if not keep:
                transaction.rollback()
        except Exception:
            raise
        except BaseException:
            # Interrupted in the middle of a statement: nothing more can be said here, and closing rolls back.
            connection.invalidate()
            raise


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
        if not connection.invalidated:  # an interrupt has closed it, and everything on it is rolled back
            driver.execute("PRAGMA foreign_keys = ON")


def _check_foreign_keys(connection: Connection, database: str) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if broken:
        where = ", ".join(sorted({str(row[0]) for row in broken}))
        raise ConstraintViolated(database, f"rows of {where} ({len(broken)}) would refer to rows that do not exist")


def connected(
    engine: Engine, database: str, *, writes: bool, schema: Literal["use", "change"] | None = None
) -> Connection:
    """Return a connection whose transactions take the write lock, or only read.

    What they do with the schema, beside looking at it, keeps units and changes of the schema apart on a server.
    """
    try:
        return engine.connect().execution_options(**{WRITES: writes, SCHEMA: schema})
    except PoolTimeout:
        # In memory there is one connection, on a server as many as the setting says: all are in use.
        raise DatabaseBusy(database, cast(QueuePool, engine.pool).timeout()) from None


def _save_json_changed_in_place(session: Session) -> None:
    for instance in session.identity_map.values():
        for key in _json_attributes(object_mapper(instance)):
            if key in instance.__dict__ and JsonText.changed_in_place(instance.__dict__[key]):
                flag_modified(instance, key)


@cache
def _json_attributes(mapper: Mapper[Any]) -> tuple[str, ...]:
    return tuple(attribute.key for attribute in mapper.column_attrs if isinstance(attribute.columns[0].type, JsonText))
