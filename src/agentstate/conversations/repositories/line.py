"""The line of a conversation and what it inherits, as one statement: its row, and the turns that it sees.

Row and turns belong to one snapshot: a compaction between two statements would hide turns before the reader saw the
summary that replaces them. So the first part of the statement here is the conversation's own row (`seq` 0), and the
second part its turns.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    select,
    true,
    type_coerce,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.sql.selectable import CompoundSelect

from agentstate.conversations.models import Conversation, Turn

CONVERSATIONS = cast(Table, Conversation.__table__)
TURNS = cast(Table, Turn.__table__)

NO_LIMIT = 2**62
"""A seq that no turn reaches."""

WHOLE = (
    *(column for column in TURNS.c if column.name not in ("meta", "messages")),
    type_coerce(TURNS.c.meta, Text).label("meta"),
    type_coerce(TURNS.c.messages, Text).label("messages"),
)
"""A turn's columns, the two JSON ones as their stored text: what does not decode must be told with its turn."""

BODILESS = tuple(column for column in WHOLE if column.name not in ("meta", "messages"))

SAID = tuple(TURNS.c[name] for name in ("id", "conversation_key", "kind")) + WHOLE[-1:]
"""As little as a reader of messages needs: half the time of reading whole turns."""


def _origin_gone() -> ColumnElement[bool]:
    origin = CONVERSATIONS.alias("origin")
    there = select(true()).where(origin.c.key == TURNS.c.origin_key).exists()
    return and_(TURNS.c.origin_key.is_not(None), ~there).label("origin_gone")


INFO = (*BODILESS, _origin_gone())

_HEAD = ("status", "next_seq", "compacted_seq", "inherited_summary")


def line_of(key: ColumnElement[str]) -> CTE:
    """Return the conversations whose turns one of them sees: each `owner`, visible from above `hidden` up to `upper`.

    That is the conversation itself, and then its parent as long as it inherits; `hidden` is its own `compacted_seq`
    throughout (section 5). UNION, not UNION ALL: a circle that only raw SQL can make would not end otherwise.
    """
    line = (
        select(
            CONVERSATIONS.c.key.label("owner"),
            sql_cast(literal(NO_LIMIT), BigInteger).label("upper"),
            CONVERSATIONS.c.compacted_seq.label("hidden"),
            CONVERSATIONS.c.inherited_seq,
            CONVERSATIONS.c.parent_key,
        )
        .where(CONVERSATIONS.c.key == key)
        .cte("line", recursive=True)
    )
    parent = CONVERSATIONS.alias("parent")
    upper = case((line.c.inherited_seq < line.c.upper, line.c.inherited_seq), else_=line.c.upper)
    return line.union(
        select(parent.c.key, upper, line.c.hidden, parent.c.inherited_seq, parent.c.parent_key)
        .join(line, parent.c.key == line.c.parent_key)
        .where(line.c.inherited_seq.is_not(None))
    )


def below(keys: Any) -> CTE:
    """Return who inherits from each of some conversations: `owner`, the branch, its `compacted_seq` and `upper`.

    A branch below a branch sees no more of the owner than its parent does.
    """
    found = (
        select(
            CONVERSATIONS.c.parent_key.label("owner"),
            CONVERSATIONS.c.key.label("branch"),
            CONVERSATIONS.c.inherited_seq.label("upper"),
            CONVERSATIONS.c.compacted_seq,
        )
        .where(
            CONVERSATIONS.c.parent_key.in_(keys) if keys.expanding else CONVERSATIONS.c.parent_key == keys,
            CONVERSATIONS.c.inherited_seq.is_not(None),
        )
        .cte("below", recursive=True)
    )
    child = CONVERSATIONS.alias("child")
    upper = case((child.c.inherited_seq < found.c.upper, child.c.inherited_seq), else_=found.c.upper)
    return found.union(
        select(found.c.owner, child.c.key, upper, child.c.compacted_seq)
        .join(found, child.c.parent_key == found.c.branch)
        .where(child.c.inherited_seq.is_not(None))
    )


@cache
def history(columns: tuple[Any, ...], page: str, dialect: str) -> CompoundSelect[Any]:
    """Return the statement that selects a conversation's row and the turns of its history, in no order.

    Each row begins with `seq`, 0 for the conversation itself, and `summary`, its own or the turn's; then come the
    turns' other `columns`, and what readers need of the conversation. Parameters: `its_key`, `since` (a seq), and with
    `page` "first" or "last" instead of "all" also `count`: only that many of the oldest or newest turns, and no other
    body is read.
    """
    key = bindparam("its_key", type_=CONVERSATIONS.c.key.type)
    columns = tuple(column for column in columns if column.name not in ("seq", "summary"))
    line = line_of(key)
    head = CONVERSATIONS.alias("head")
    its_row = select(
        sql_cast(literal(0), BigInteger).label("seq"),
        head.c.summary,
        *(sql_cast(null(), column.type).label(column.name) for column in columns),
        *(head.c[name] for name in _HEAD),
    ).where(head.c.key == key)
    since = bindparam("since", type_=BigInteger)
    # One bound and not two: of two, SQLite seeks to the first and walks to the second.
    after = case((line.c.hidden > since, line.c.hidden), else_=since)
    visible = and_(TURNS.c.seq <= line.c.upper, TURNS.c.seq > after)
    wanted = (TURNS.c.seq, TURNS.c.summary, *columns)
    if page == "all":
        source, found = _joined(line, TURNS, and_(TURNS.c.conversation_key == line.c.owner, visible), wanted, dialect)
    else:
        chosen = _chosen(line, after, newest=page == "last", dialect=dialect)
        places = and_(TURNS.c.conversation_key == chosen.c.owner, TURNS.c.seq == chosen.c.seq)
        source, found = _joined(chosen, TURNS, places, wanted, dialect)
    nothing = (sql_cast(null(), head.c[name].type).label(name) for name in _HEAD)
    return union_all(its_row, select(*found, *nothing).select_from(source))


def _chosen(line: CTE, after: ColumnElement[int], *, newest: bool, dialect: str) -> Any:
    """Return the places of the first or last `count` turns behind `after`, read from the index alone.

    Of each conversation in the line at most `count` entries are looked at, so that the newest twenty of ten thousand
    turns cost no more than the newest twenty of a hundred.
    """
    count = bindparam("count", type_=BigInteger)
    entry, mark = TURNS.alias("entry"), TURNS.alias("mark")
    farthest = (
        select(mark.c.seq)
        .where(mark.c.conversation_key == line.c.owner, mark.c.seq <= line.c.upper, mark.c.seq > after)
        .order_by(mark.c.seq.desc() if newest else mark.c.seq)
        .limit(1)
        .offset(count - 1)
        .scalar_subquery()
    )
    lower = func.coalesce(farthest, after + 1) if newest else after + 1
    upper = line.c.upper if newest else func.coalesce(farthest, line.c.upper)
    # Materialised: else the bounds would be worked out anew for every turn.
    bounds = select(line.c.owner, lower.label("lower"), upper.label("upper")).cte("bounds").prefix_with("MATERIALIZED")
    within = and_(entry.c.conversation_key == bounds.c.owner, entry.c.seq.between(bounds.c.lower, bounds.c.upper))
    source, (seq,) = _joined(bounds, entry, within, (entry.c.seq,), dialect)
    found = select(bounds.c.owner, seq).select_from(source)
    return found.order_by(seq.desc() if newest else seq).limit(count).subquery("chosen")


def _joined(
    outer: FromClause, turns: FromClause, condition: ColumnElement[bool], columns: tuple[Any, ...], dialect: str
) -> tuple[FromClause, tuple[Any, ...]]:
    """Return `outer` joined with the turns that fit each of its rows, and the columns of these as the join has them.

    PostgreSQL takes every line for a hundred conversations, and would read the whole table rather than its index. A
    LATERAL part, which its OFFSET keeps apart, is looked up row by row.
    """
    if dialect != "postgresql":
        return outer.join(turns, condition), columns
    found = select(*columns).where(condition).offset(0).lateral()
    return outer.join(found, true()), tuple(found.c)


def line_rows() -> Select[Any]:
    """Return the statement that selects the line itself: `owner` and `upper`, for `its_key`."""
    line = line_of(bindparam("its_key", type_=CONVERSATIONS.c.key.type))
    return select(line.c.owner, line.c.upper)
