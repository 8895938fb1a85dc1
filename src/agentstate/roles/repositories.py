"""Statements and queries on sessions and introductions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import cast

from sqlalchemy import Insert, Table, bindparam, delete, select, update

from agentstate.db.compat import readable_rows
from agentstate.db.repository import Repository, insert_for
from agentstate.roles.models import Introduction, RoleSession

_SESSIONS = cast(Table, RoleSession.__table__)
_INTRODUCTIONS = cast(Table, Introduction.__table__)

_FIND_SESSION = select(_SESSIONS.c.session_id).where(
    _SESSIONS.c.role == bindparam("role"), _SESSIONS.c.sender == bindparam("sender")
)
_DELETE_SESSION = (
    delete(_SESSIONS)
    .where(_SESSIONS.c.role == bindparam("role"), _SESSIONS.c.sender == bindparam("sender"))
    .returning(_SESSIONS.c.role)
)
_FIND_INTRODUCTION = select(_INTRODUCTIONS.c.role).where(
    _INTRODUCTIONS.c.role == bindparam("role"), _INTRODUCTIONS.c.sender == bindparam("sender")
)
_TOUCH_INTRODUCTION = update(_INTRODUCTIONS).where(
    _INTRODUCTIONS.c.role == bindparam("its_role"), _INTRODUCTIONS.c.sender == bindparam("its_sender")
)
_DELETE_INTRODUCTION = (
    delete(_INTRODUCTIONS)
    .where(_INTRODUCTIONS.c.role == bindparam("role"), _INTRODUCTIONS.c.sender == bindparam("sender"))
    .returning(_INTRODUCTIONS.c.role)
)


@cache
def _save_session(dialect: str) -> Insert:
    insert = insert_for(dialect)(_SESSIONS)
    new = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=[_SESSIONS.c.role, _SESSIONS.c.sender],
        set_={"session_id": new.session_id, "updated_at": new.updated_at},
    )


@cache
def _add_introduction(dialect: str) -> Insert:
    insert = insert_for(dialect)(_INTRODUCTIONS)
    return insert.on_conflict_do_nothing().returning(_INTRODUCTIONS.c.role)


class RoleSessions(Repository):
    """The provider sessions that roles continue."""

    __slots__ = ()

    def find(self, role: str, sender: str) -> str | None:
        """Return the session id to continue, or None."""
        found = self.connection.execute(_FIND_SESSION, {"role": role, "sender": sender}).scalar()
        return None if found is None else str(found)

    def save(self, role: str, sender: str, session_id: str) -> None:
        """Insert or replace the session id and refresh its time."""
        connection = self.connection
        connection.execute(
            _save_session(connection.dialect.name),
            {"role": role, "sender": sender, "session_id": session_id, "updated_at": self.now},
        )

    def delete(self, role: str, sender: str) -> bool:
        """Delete the session; return whether there was one."""
        deleted = self.connection.execute(_DELETE_SESSION, {"role": role, "sender": sender})
        return deleted.first() is not None

    def list_by_recency(self) -> Sequence[RoleSession]:
        """Return all sessions, the one saved last first, then by role and sender.

        A row that cannot be read is left out and named in a warning (VA-08).
        """
        return readable_rows(
            self.session,
            RoleSession,
            select(RoleSession).order_by(RoleSession.updated_at.desc(), RoleSession.role, RoleSession.sender),
        )


class Introductions(Repository):
    """The marks of whom a role has greeted."""

    __slots__ = ()

    def exists(self, role: str, sender: str) -> bool:
        """Return whether the role has greeted the sender."""
        found = self.connection.execute(_FIND_INTRODUCTION, {"role": role, "sender": sender})
        return found.first() is not None

    def mark(self, role: str, sender: str) -> bool:
        """Set the mark; return True only if it was not there. The first time stays, the last time is refreshed."""
        connection = self.connection
        added = connection.execute(
            _add_introduction(connection.dialect.name),
            {"role": role, "sender": sender, "introduced_at": self.now, "updated_at": self.now},
        )
        if added.first() is not None:
            return True
        connection.execute(_TOUCH_INTRODUCTION, {"its_role": role, "its_sender": sender, "updated_at": self.now})
        return False

    def forget(self, role: str, sender: str) -> bool:
        """Delete the mark, so that the next contact counts as the first; return whether there was one."""
        deleted = self.connection.execute(_DELETE_INTRODUCTION, {"role": role, "sender": sender})
        return deleted.first() is not None

    def list_by_recency(self) -> Sequence[Introduction]:
        """Return all introductions, the newest first contact first, then by role and sender.

        A row that cannot be read is left out and named in a warning (VA-08).
        """
        return readable_rows(
            self.session,
            Introduction,
            select(Introduction).order_by(Introduction.introduced_at.desc(), Introduction.role, Introduction.sender),
        )
