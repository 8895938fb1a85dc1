"""Statements and queries on turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    Executable,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
)

from agentstate.conversations.messages import decoded, is_messages
from agentstate.conversations.models import known_kind, new_turn_id
from agentstate.conversations.records import Message, TurnInfo, TurnRecord
from agentstate.conversations.repositories.line import (
    CONVERSATIONS,
    INFO,
    NO_LIMIT,
    SAID,
    TURNS,
    WHOLE,
    below,
    history,
    line_of,
    line_rows,
)
from agentstate.db.repository import Repository, insert_for
from agentstate.errors import InvalidValue, TurnNotFound

# Where these are in the rows of `history(SAID, …)`.
_seq, _kind, _text = itemgetter(0), itemgetter(4), itemgetter(5)

Seen = TypeVar("Seen")

_KEY = bindparam("its_key", type_=CONVERSATIONS.c.key.type)
_VISIBLE = and_(TURNS.c.conversation_key == CONVERSATIONS.c.key, TURNS.c.seq > CONVERSATIONS.c.compacted_seq)
_FIND = select(*WHOLE).where(TURNS.c.id == bindparam("its_id", type_=TURNS.c.id.type))
_SINCE = bindparam("since", type_=BigInteger)
_HIDDEN = select(CONVERSATIONS.c.compacted_seq).where(CONVERSATIONS.c.key == _KEY).scalar_subquery()
# One bound, known beforehand: both engines seek to it. Of two bounds, SQLite seeks to one and walks to the other.
_AFTER = case((_HIDDEN > _SINCE, _HIDDEN), else_=_SINCE)
_OWN = select(*WHOLE).where(TURNS.c.conversation_key == _KEY, TURNS.c.seq > _AFTER).order_by(TURNS.c.seq)
_LAST = select(*WHOLE).join(CONVERSATIONS, _VISIBLE).where(CONVERSATIONS.c.key == _KEY).order_by(TURNS.c.seq.desc())
_LAST = _LAST.limit(1)
_COUNT = select(func.count(TURNS.c.seq)).join(CONVERSATIONS, _VISIBLE).where(CONVERSATIONS.c.key == _KEY)
_LINE = line_rows()
_PAGE = 200
"""Turns copied or compared at once: bodies may be large."""


class Said(NamedTuple):
    """What was said in one turn."""

    seq: int
    kind: int
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class History(Generic[Seen]):
    """One conversation's row, as far as readers of its history need it, with the turns that it sees, by seq."""

    key: str
    status: str
    next_seq: int
    compacted_seq: int
    inherited_summary: str | None
    summary: str
    turns: list[Seen]


_GIVEN: dict[str, Any] = {
    **{column.name: bindparam(f"its_{column.name}", type_=column.type) for column in TURNS.c},
    **{name: bindparam(f"its_{name}", type_=Text) for name in ("meta", "messages")},
}
"""A turn's values; messages and meta are text already."""
_ADD = insert(TURNS).values(_GIVEN)


@cache
def _add_if_new(dialect: str) -> Executable:
    """Insert a turn, or nothing if its id is taken."""
    statement = insert_for(dialect)(TURNS).values(_GIVEN)
    return statement.on_conflict_do_nothing(index_elements=[TURNS.c.id]).returning(TURNS.c.id)


@cache
def _release() -> Executable:
    """Delete the hidden turns of some conversations (`owners`) that no branch sees and no child was forked from."""
    owners = bindparam("owners", type_=CONVERSATIONS.c.key.type, expanding=True)
    viewer = below(owners)
    owner, child = CONVERSATIONS.alias("owner"), CONVERSATIONS.alias("forked")
    hidden = select(owner.c.compacted_seq).where(owner.c.key == TURNS.c.conversation_key).scalar_subquery()
    seen = select(viewer.c.branch).where(
        viewer.c.owner == TURNS.c.conversation_key,
        TURNS.c.seq > viewer.c.compacted_seq,
        TURNS.c.seq <= viewer.c.upper,
    )
    forked = select(child.c.key).where(
        child.c.parent_key == TURNS.c.conversation_key, child.c.fork_turn_id == TURNS.c.id
    )
    return (
        delete(TURNS)
        .where(TURNS.c.conversation_key.in_(owners), TURNS.c.seq <= hidden, ~seen.exists(), ~forked.exists())
        .returning(TURNS.c.seq)
    )


class Turns(Repository):
    """The turns of conversations; an unknown key has none."""

    __slots__ = ()

    def add(self, values: dict[str, Any]) -> None:
        """Insert one turn under an id of our own making; `messages` and `meta` are given as their stored text."""
        self._insert(values, _ADD)

    def add_if_new(self, values: dict[str, Any]) -> bool:
        """Insert one turn unless its id is taken; return whether it was inserted."""
        return self._insert(values, _add_if_new(self.connection.dialect.name)).first() is not None

    def add_many(self, rows: Sequence[dict[str, Any]]) -> None:
        """Insert turns whose ids are known to be free, in as few statements as the driver needs.

        Raises `ConstraintViolated` if, on a server, somebody has just taken one of them.
        """
        parameters = [{f"its_{name}": value for name, value in row.items()} for row in rows]
        if parameters:
            self.connection.execute(_ADD, parameters)

    def add_new(self, rows: Sequence[dict[str, Any]]) -> set[str]:
        """Insert those of the turns whose ids are free, in as few statements as the driver needs; return these ids."""
        parameters = [{f"its_{name}": value for name, value in row.items()} for row in rows]
        if not parameters:
            return set()
        return set(self.connection.execute(_add_if_new(self.connection.dialect.name), parameters).scalars())

    def _insert(self, values: dict[str, Any], statement: Any) -> Any:
        return self.connection.execute(statement, {f"its_{name}": value for name, value in values.items()})

    def find_stored(self, turn_id: str) -> Row[Any] | None:
        """Return the turn's row with messages and meta as their stored text, or None."""
        return self.connection.execute(_FIND, {"its_id": turn_id}).first()

    def find(self, turn_id: str) -> TurnRecord | None:
        """Return the turn, hidden or not, or None."""
        row = self.find_stored(turn_id)
        return None if row is None else turn_record(row)

    def get(self, turn_id: str) -> TurnRecord:
        """Return the turn, hidden or not; raises `TurnNotFound`."""
        found = self.find(turn_id)
        if found is None:
            raise TurnNotFound(turn_id)
        return found

    def list_turns(self, key: str, since_seq: int = 0, limit: int | None = None) -> list[TurnRecord]:
        """Return the conversation's own visible turns with a seq above `since_seq`, by seq.

        A poller that remembers the last seq it saw misses nothing that is appended later.
        """
        statement = _OWN if limit is None else _OWN.limit(_count_of(limit, "limit"))
        parameters = {"its_key": key, "since": _since_of(since_seq)}
        return [turn_record(row) for row in self.connection.execute(statement, parameters)]

    def find_last(self, key: str) -> TurnRecord | None:
        """Return the conversation's own visible turn with the highest seq, or None."""
        row = self.connection.execute(_LAST, {"its_key": key}).first()
        return None if row is None else turn_record(row)

    def count(self, key: str) -> int:
        """Return how many turns `list_turns` would return; no body is read."""
        return int(self.connection.execute(_COUNT, {"its_key": key}).scalar_one())

    def list_history(
        self, key: str, since_seq: int = 0, limit: int | None = None, last: int | None = None
    ) -> list[TurnRecord]:
        """Return the turns that the conversation sees, inherited ones first, by seq.

        Only those above `since_seq`; of these the oldest `limit`, or the newest `last`: no other body is read.
        """
        found = self.read_history(key, since_seq, limit, last)
        return [] if found is None else found.turns

    def read_history(
        self, key: str, since_seq: int = 0, limit: int | None = None, last: int | None = None
    ) -> History[TurnRecord] | None:
        """Return row and history of a conversation from one snapshot, or None for an unknown key."""
        head, rows = self._history(WHOLE, key, since_seq, limit, last)
        return None if head is None else _history_of(key, head, [turn_record(row) for row in rows])

    def read_said(self, key: str) -> History[Said] | None:
        """Return row and messages of a conversation's history from one snapshot, or None for an unknown key."""
        head, rows = self._history(SAID, key, 0, None, None)
        if head is None:
            return None
        try:
            # One call for all of them, and rows by position: a history has many short turns.
            found: list[Any] = json.loads(f"[{','.join(map(_text, rows))}]")
        except (ValueError, RecursionError):
            found = []
        if len(found) != len(rows) or not all(map(is_messages, found)):
            found = [decoded(row.conversation_key, row.seq, row.id, row.messages, None)[0] for row in rows]
        return _history_of(key, head, list(map(Said, map(_seq, rows), map(_kind, rows), found)))

    def list_history_info(self, key: str, last: int | None = None) -> list[TurnInfo]:
        """Return the turns that the conversation sees (or the newest `last`), by seq, without their bodies."""
        _, rows = self._history(INFO, key, 0, None, last)
        return [
            TurnInfo(
                row.id,
                row.conversation_key,
                row.seq,
                known_kind(row.kind),
                row.message_count,
                row.origin_key,
                bool(row.origin_gone),
                row.summary,
                row.author,
                row.created_at,
            )
            for row in rows
        ]

    def walk_texts(self, key: str) -> Iterator[str]:
        """Yield the stored messages of each turn that the conversation sees, by seq; few are in memory at once."""
        rows = self._history(SAID, key, 0, _PAGE, None)[1]
        while rows:
            yield from (row.messages for row in rows)
            rows = self._history(SAID, key, rows[-1].seq, _PAGE, None)[1]

    def _history(
        self, columns: tuple[Any, ...], key: str, since: int, limit: int | None, last: int | None
    ) -> tuple[Row[Any] | None, list[Row[Any]]]:
        if limit is not None and last is not None:
            raise InvalidValue("last", "give either limit, for the oldest, or last, for the newest")
        page = "last" if last is not None else "all" if limit is None else "first"
        parameters: dict[str, Any] = {"its_key": key, "since": _since_of(since)}
        wanted = _count_of(last, "last") if limit is None else _count_of(limit, "limit")
        if page != "all":
            parameters["count"] = max(1, wanted)
        rows = list(self.connection.execute(history(columns, page, self.connection.dialect.name), parameters))
        rows.sort(key=_seq)
        if not rows or rows[0].seq:
            return None, []
        return rows[0], rows[1:] if page == "all" or wanted else []

    def line(self, key: str) -> list[tuple[str, int]]:
        """Return the conversations whose turns this one sees, itself among them, each with the last seq visible."""
        return [(row.owner, row.upper) for row in self.connection.execute(_LINE, {"its_key": key})]

    def release(self, keys: Sequence[str]) -> int:
        """Delete the turns of these conversations that nobody needs any more; return how many (section 5).

        A hidden turn is kept while a branch sees it, and while a living child was forked at it.
        """
        if not keys:
            return 0
        return len(self.connection.execute(_release(), {"owners": list(keys)}).all())

    def copy_inherited(self, branch: str) -> None:
        """Give a branch turns of its own in place of those that it, or a branch below it, still inherits.

        Same seq and content, new ids: every history that goes through the branch stays as it is.
        """
        after = 0
        while rows := self.connection.execute(_inherited(), {"branch": branch, "after": after}).all():
            self.add_many([{**row._mapping, "id": new_turn_id(self.now), "conversation_key": branch} for row in rows])
            after = rows[-1].seq

    def list_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return which of up to `CHUNK` ids are taken, each with the conversation of its turn."""
        statement = _ids()
        return {row.id: row.conversation_key for row in self.connection.execute(statement, {"ids": list(ids)})}


@cache
def _inherited() -> Select[Any]:
    """Select what `branch` inherits and it, or a branch below it, still sees: a page of it after the seq `after`."""
    branch = bindparam("branch", type_=CONVERSATIONS.c.key.type)
    line, viewers = line_of(branch), below(branch)
    itself = CONVERSATIONS.alias("itself")
    seen_by_itself = select(itself.c.key).where(itself.c.key == branch, TURNS.c.seq > itself.c.compacted_seq)
    seen_below = select(viewers.c.branch).where(TURNS.c.seq > viewers.c.compacted_seq, TURNS.c.seq <= viewers.c.upper)
    return (
        select(*WHOLE)
        .join(line, and_(TURNS.c.conversation_key == line.c.owner, TURNS.c.seq <= line.c.upper))
        .where(
            line.c.owner != branch,
            TURNS.c.seq > bindparam("after", type_=BigInteger),
            or_(seen_by_itself.exists(), seen_below.exists()),
        )
        .order_by(TURNS.c.seq)
        .limit(_PAGE)
    )


@cache
def _ids() -> Select[Any]:
    ids = bindparam("ids", type_=TURNS.c.id.type, expanding=True)
    return select(TURNS.c.id, TURNS.c.conversation_key).where(TURNS.c.id.in_(ids))


def _history_of(key: str, head: Row[Any], turns: list[Seen]) -> History[Seen]:
    return History(key, head.status, head.next_seq, head.compacted_seq, head.inherited_summary, head.summary, turns)


def turn_record(row: Row[Any]) -> TurnRecord:
    """Return a turn's row as a record; raises `TurnUnreadable` if its messages or meta do not decode."""
    messages, meta = decoded(row.conversation_key, row.seq, row.id, row.messages, row.meta)
    return TurnRecord(
        row.id,
        row.conversation_key,
        row.seq,
        known_kind(row.kind),
        row.message_count,
        row.origin_key,
        row.summary,
        row.author,
        row.created_at,
        meta,
        messages,
    )


def _since_of(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > NO_LIMIT:
        raise InvalidValue("since_seq", f"{value!r} is not the seq of a turn")
    return value


def _count_of(value: int | None, field: str) -> int:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < NO_LIMIT):
        raise InvalidValue(field, f"{value!r} is not a number of turns")
    return value or 0
