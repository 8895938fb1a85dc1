"""When conversations were last used, and what else decides whether they are pruned; no turn's body is read.

Read so that a damaged row neither stops the look nor passes for an old one: on SQLite other programs can write bytes
that are no text into any column, and times that are none; on PostgreSQL, times that Python does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Double,
    LargeBinary,
    Row,
    Select,
    bindparam,
    cast,
    extract,
    func,
    select,
    type_coerce,
)

from agentstate.conversations.repositories.conversations import chunks
from agentstate.conversations.repositories.line import CONVERSATIONS, TURNS
from agentstate.db.repository import Repository
from agentstate.db.types import parse_instant
from agentstate.errors import InvalidIdentifier, UnreadableValue
from agentstate.identity import identifier

_KEYS = bindparam("keys", type_=CONVERSATIONS.c.key.type, expanding=True)
# Counted, not listed: where most have no parent, SQLite would rather walk over the table than over the index.
_CHILDREN = (
    select(CONVERSATIONS.c.parent_key, func.count().label("children"))
    .where(CONVERSATIONS.c.parent_key.in_(_KEYS))
    .group_by(CONVERSATIONS.c.parent_key)
)

_NEVER_USED_SINCE = datetime.max.replace(tzinfo=UTC)


class Age(NamedTuple):
    """What decides whether a conversation is pruned; two are equal while nothing has happened to it.

    `updated_at` is None when the last use is unknown: the time, or any other of these, cannot be read. Bytes of a key
    that are no UTF-8 stand as lone surrogates. `imported_at` lies in the far future when it cannot be read.
    """

    key: str
    parent_key: str | None
    status: str
    updated_at: datetime | None
    imported_at: datetime | None
    inherits: bool
    turns: int

    def is_stale(self, cutoff: datetime) -> bool:
        """Return whether the last use is known and lies before the cutoff; exactly at it is not before it."""
        return self.updated_at is not None and self.updated_at < cutoff

    def is_as_imported(self) -> bool:
        """Return whether an importer brought the conversation in and nobody has used it since (IM-09)."""
        return self.imported_at is not None and (self.updated_at is None or self.imported_at >= self.updated_at)


class Ages(Repository):
    """The ages of conversations, in no order."""

    __slots__ = ()

    def list_all(self) -> list[Age]:
        """Return the ages of all conversations."""
        return [_age(row) for row in self.connection.execute(_select(self.connection.dialect.name))]

    def list_some(self, keys: Iterable[str]) -> list[Age]:
        """Return the ages of those of the conversations that there are."""
        statement = _select(self.connection.dialect.name).where(CONVERSATIONS.c.key.in_(_KEYS))
        found: list[Age] = []
        for some in chunks(keys):
            found += map(_age, self.connection.execute(statement, {"keys": some}))
        return found

    def count_children(self, keys: Iterable[str]) -> dict[str, int]:
        """Return how many were forked from each of the conversations, leaving out those without any."""
        found: dict[str, int] = {}
        for some in chunks(keys):
            found |= {row.parent_key: row.children for row in self.connection.execute(_CHILDREN, {"keys": some})}
        return found


@cache
def _select(dialect: str) -> Select[Any]:
    columns = CONVERSATIONS.c
    turns = select(func.count()).where(TURNS.c.conversation_key == columns.key).scalar_subquery()
    as_stored = _bytes if dialect == "sqlite" else _seconds
    return select(
        *(as_stored(column) for column in (columns.key, columns.parent_key, columns.status)),
        *(as_stored(column) for column in (columns.updated_at, columns.imported_at)),
        columns.inherited_seq.is_not(None).label("inherits"),
        turns.label("turns"),
    )


def _bytes(column: Column[Any]) -> ColumnElement[Any]:
    """Select a column as bytes: SQLite's driver fails on a whole result for one text that is no UTF-8."""
    return type_coerce(cast(column, LargeBinary), LargeBinary).label(column.name)


def _seconds(column: Column[Any]) -> ColumnElement[Any]:
    """Select an instant as seconds since 1970: PostgreSQL knows `infinity` and years that its driver fails on."""
    if column.name in ("updated_at", "imported_at"):
        return cast(extract("epoch", column), Double).label(column.name)
    return column


def _age(row: Row[Any]) -> Age:
    try:
        key, parent_key, status, updated_at, imported_at = (
            value.decode() if isinstance(value, bytes) else value for value in row[:5]
        )
        identifier(key, "key")  # another one could not be asked for
    except (UnicodeDecodeError, InvalidIdentifier):
        return Age(_escaped(row.key), _escaped(row.parent_key), "", None, None, row.inherits, row.turns)
    return Age(
        key,
        parent_key,
        status,
        _instant(updated_at, None),
        _instant(imported_at, _NEVER_USED_SINCE),
        bool(row.inherits),
        row.turns,
    )


def _escaped(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _instant(value: Any, unreadable: datetime | None) -> datetime | None:
    if value is None:
        return None
    try:
        return parse_instant(value, "")
    except UnreadableValue:
        return unreadable
