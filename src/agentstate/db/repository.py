"""What every repository has in common: the session and the time of its unit of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.dialects import sqlite
    from sqlalchemy.orm import Session

    from agentstate.db.uow import UnitOfWork


class Repository:
    """Queries and statements of one area; made where they are used: `PendingApprovals(work)`."""

    __slots__ = ("_work", "connection", "now")

    def __init__(self, work: UnitOfWork) -> None:
        """Work inside that unit of work; its `now` is the time of everything written."""
        self._work = work
        self.connection = work.connection
        self.now = work.now

    @property
    def session(self) -> Session:
        """The unit's session, for queries that yield objects."""
        return self._work.session


def insert_for(dialect: str) -> Callable[[Table], sqlite.Insert]:
    """Return the INSERT construct of an engine that knows ON CONFLICT; `dialect` is SQLAlchemy's name of the engine.

    Statements on hot paths are built once per engine from it, on the table and not on the class, and executed on the
    unit's connection: half the time of the session's own insert.
    """
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return cast("Callable[[Table], sqlite.Insert]", postgresql.insert)  # another class with the same methods
    from sqlalchemy.dialects import sqlite

    return sqlite.insert
