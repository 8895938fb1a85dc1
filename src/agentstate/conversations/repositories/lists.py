"""The lists of conversations: one statement each, which reads no turn's body and counts turns in the index alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Text,
    bindparam,
    cast,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from agentstate.conversations.cursors import decode_cursor, encode_cursor
from agentstate.conversations.models import short_key
from agentstate.conversations.records import ConversationInfo, ConversationPage
from agentstate.conversations.repositories.line import CONVERSATIONS, TURNS
from agentstate.db.compat import found_rows
from agentstate.db.types import aware, plain_text
from agentstate.errors import InvalidCursor, InvalidValue
from agentstate.identity import identifier

SORTS = ("key", "created", "updated")
MAX_LIMIT = 1_000
_ALL = 2**62
"""A limit that is none: the two engines have no common word for that."""

_INFO = tuple(column for column in CONVERSATIONS.c if column.name not in ("next_seq", "imported_from"))
_NAMES = tuple(column.name for column in _INFO)
_KEY = bindparam("its_key", type_=CONVERSATIONS.c.key.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which conversations a page of the list shows, and in which order; what makes no sense is refused here.

    `prefix` is of the key, `contains` of key or label: both are literal and tell capitals from small letters (ID-05,
    ID-06). `sort` is from `SORTS`, always with the key last (TM-06, ID-08).
    """

    prefix: str | None = None
    contains: str | None = None
    parent: str | None = None
    roots: bool = False
    status: str | None = None
    sort: str = "created"
    descending: bool = False
    limit: int = 100
    cursor: str | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidValue` naming the field."""
        for field in ("prefix", "contains"):
            if getattr(self, field) is not None:
                plain_text(getattr(self, field), field)
        for field in ("parent", "status"):
            if getattr(self, field) is not None:
                identifier(getattr(self, field), field)
        for field in ("roots", "descending"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidValue(field, f"must be True or False, not {getattr(self, field)!r}")
        if self.roots and self.parent is not None:
            raise InvalidValue("roots", "a root has no parent: ask for roots or for the children of one")
        if self.sort not in SORTS:
            raise InvalidValue("sort", f"{self.sort!r} is not one of {', '.join(SORTS)}")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidValue("limit", f"{self.limit!r} is not a number from 1 to {MAX_LIMIT}")


def page(connection: Connection, wanted: Wanted) -> ConversationPage:
    """Return one page of the list; a row that cannot be read is left out and named in a warning (VA-08)."""
    dialect = connection.dialect.name
    given = _given(wanted)
    if wanted.cursor is not None:
        given |= _position(dialect, wanted)
    statement = _page(dialect, wanted.sort, wanted.descending, frozenset(given), wanted.roots)
    rows = found_rows(
        connection, statement, {**given, "count": wanted.limit + 1}, table=CONVERSATIONS.name, keys=["key"]
    )
    shown = rows[: wanted.limit]
    cursor = None
    if len(rows) > wanted.limit:
        last = shown[-1].raw
        cursor = encode_cursor(wanted.sort, wanted.descending, last["sort_value"], last["key"])
    return ConversationPage(tuple(_info(row.values) for row in shown if row.values is not None), cursor)


def everything(connection: Connection, root: str | None) -> list[ConversationInfo]:
    """Return all conversations, or `root` and all below it, by time of creation and key; as `page`, without pages."""
    parameters = {} if root is None else {"its_key": root}
    rows = found_rows(connection, _all(root is None), parameters, table=CONVERSATIONS.name, keys=["key"])
    found = [_info(row.values) for row in rows if row.values is not None]
    return sorted(found, key=lambda info: (info.created_at, info.key))


def one(connection: Connection, key: str) -> ConversationInfo | None:
    """Return one conversation, or None; raises `UnreadableValue` where a list leaves it out."""
    row = connection.execute(_one(), {"its_key": key}).first()
    return None if row is None else _info(row._mapping)


def keys_from(connection: Connection, prefix: str, count: int | None = None) -> list[str]:
    """Return the keys that begin with the prefix, in order: the first `count`, or all."""
    given = _given(Wanted(prefix=prefix))
    rows = found_rows(
        connection,
        _keys(frozenset(given)),
        {**given, "count": _ALL if count is None else count},
        table=CONVERSATIONS.name,
        keys=["key"],
    )
    return [row.values["key"] for row in rows if row.values is not None]


@cache
def _page(dialect: str, sort: str, descending: bool, given: frozenset[str], roots: bool) -> Select[Any]:
    """Select a page: first its rows, then for these alone the number of their turns."""
    place = _place(CONVERSATIONS.c, sort, dialect)
    rows = select(*_INFO, cast(place[0], Text).label("sort_value")).where(*_filters(dialect, given))
    if roots:
        rows = rows.where(CONVERSATIONS.c.parent_key.is_(None))
    if "after" in given:
        after = _after(sort, dialect)
        rows = rows.where(tuple_(*place) < tuple_(*after) if descending else tuple_(*place) > tuple_(*after))
    rows = rows.order_by(*_ordered(place, descending)).limit(bindparam("count", type_=BigInteger))
    page = rows.subquery("page")
    order = _ordered(_place(page.c, sort, dialect), descending)
    return select(*page.c, _turn_count(page.c)).order_by(*order)


@cache
def _all(whole: bool) -> Select[Any]:
    statement = select(*_INFO, _turn_count(CONVERSATIONS.c))
    if whole:
        return statement
    tree = select(CONVERSATIONS.c.key).where(CONVERSATIONS.c.key == _KEY).cte("tree", recursive=True)
    child = CONVERSATIONS.alias("child")
    # UNION, not UNION ALL: a circle that only raw SQL can make would not end otherwise.
    tree = tree.union(select(child.c.key).join(tree, child.c.parent_key == tree.c.key))
    return statement.where(CONVERSATIONS.c.key.in_(select(tree.c.key)))


@cache
def _one() -> Select[Any]:
    return select(*_INFO, _turn_count(CONVERSATIONS.c)).where(CONVERSATIONS.c.key == _KEY)


@cache
def _keys(given: frozenset[str]) -> Select[Any]:
    statement = select(CONVERSATIONS.c.key).where(*_filters("", given)).order_by(CONVERSATIONS.c.key)
    return statement.limit(bindparam("count", type_=BigInteger))


def _turn_count(conversation: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[int]:
    """Count the conversation's own visible turns, in the unique index."""
    own = select(func.count()).select_from(TURNS).where(TURNS.c.conversation_key == conversation.key)
    return own.where(TURNS.c.seq > conversation.compacted_seq).scalar_subquery().label("turn_count")


def _filters(dialect: str, given: frozenset[str]) -> list[ColumnElement[bool]]:
    key = CONVERSATIONS.c.key
    # Not LIKE, for which % and _ are no letters, and which folds case on one engine.
    find = func.strpos if dialect == "postgresql" else func.instr
    text = bindparam("contains", type_=Text)
    known: dict[str, ColumnElement[bool]] = {
        "prefix": key >= bindparam("prefix", type_=Text),
        "end": key < bindparam("end", type_=Text),
        "contains": or_(find(key, text) > 0, find(CONVERSATIONS.c.label, text) > 0),
        "parent": CONVERSATIONS.c.parent_key == bindparam("parent", type_=Text),
        "status": CONVERSATIONS.c.status == bindparam("status", type_=Text),
    }
    return [condition for name, condition in known.items() if name in given]


def _given(wanted: Wanted) -> dict[str, Any]:
    given = {name: getattr(wanted, name) for name in ("prefix", "contains", "parent", "status")}
    given["end"] = _successor(wanted.prefix) if wanted.prefix else None
    return {name: value for name, value in given.items() if value is not None}


def _successor(prefix: str) -> str | None:
    """Return the first text, code point by code point, after all that begin with the prefix; None if there is none."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if after == 0xD800 else after)  # surrogates are no characters


def _place(columns: ReadOnlyColumnCollection[str, Any], sort: str, dialect: str) -> Sequence[ColumnElement[Any]]:
    """Return what a list is ordered by: a total order, since the key is the last of it."""
    if sort == "key":
        return [columns.key]
    time: Column[datetime] = columns[f"{sort}_at"]
    # As text: other hands have stored times as bytes, which SQLite puts behind all texts.
    return [time if dialect == "postgresql" else cast(time, Text), columns.key]


def _ordered(place: Sequence[ColumnElement[Any]], descending: bool) -> list[ColumnElement[Any]]:
    return [column.desc() if descending else column.asc() for column in place]


def _after(sort: str, dialect: str) -> Sequence[ColumnElement[Any]]:
    """Return the place that a cursor holds, as `_place` orders rows."""
    if dialect == "postgresql":
        value: ColumnElement[Any] = cast(bindparam("value", type_=Text), TIMESTAMP(timezone=True))
        key: ColumnElement[Any] = bindparam("after", type_=Text)
    else:  # given as bytes: what other hands stored need not be UTF-8
        value, key = (cast(bindparam(name, type_=LargeBinary), Text) for name in ("value", "after"))
    return [key] if sort == "key" else [value, key]


def _position(dialect: str, wanted: Wanted) -> dict[str, Any]:
    value, key = decode_cursor(wanted.cursor, wanted.sort, wanted.descending)
    found: dict[str, Any] = {"after": key} if wanted.sort == "key" else {"value": value, "after": key}
    try:
        if dialect != "postgresql":
            return {name: text.encode(errors="surrogateescape") for name, text in found.items()}
        if "value" in found and value not in ("infinity", "-infinity"):
            found["value"] = aware(datetime.fromisoformat(value), "cursor").isoformat()
        return {name: plain_text(text, "cursor") for name, text in found.items()}
    except (ValueError, InvalidValue):
        raise InvalidCursor from None


def _info(values: Mapping[Any, Any]) -> ConversationInfo:
    columns = {name: values[name] for name in _NAMES}
    return ConversationInfo(**columns, short_key=short_key(values["key"]), turn_count=values["turn_count"])
