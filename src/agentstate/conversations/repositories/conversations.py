"""Statements and queries on conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Row, Select, Update, bindparam, case, delete, select, update

from agentstate.conversations.models import ENDED, Conversation
from agentstate.conversations.records import ConversationInfo, ConversationPage
from agentstate.conversations.repositories import lists
from agentstate.conversations.repositories.line import CONVERSATIONS, line_of
from agentstate.db.repository import Repository, insert_for
from agentstate.errors import ConversationExists, ConversationNotFound
from agentstate.identity import identifier

CHUNK = 500
"""At most so many ids are in one statement: engines bound their number (RT-08)."""

_KEY = bindparam("its_key", type_=CONVERSATIONS.c.key.type)
_NOW = bindparam("its_now", type_=CONVERSATIONS.c.updated_at.type)
_LAST_USE = case((CONVERSATIONS.c.updated_at < _NOW, _NOW), else_=CONVERSATIONS.c.updated_at)
"""A clock that was set back does not make a conversation older (TM-05)."""

_EXISTS = select(CONVERSATIONS.c.key).where(CONVERSATIONS.c.key == _KEY)

Value = TypeVar("Value")


def chunks(values: Iterable[Value], size: int = CHUNK) -> Iterator[list[Value]]:
    """Yield the values in lists of at most `size`."""
    found = list(values)
    for start in range(0, len(found), size):
        yield found[start : start + size]


@cache
def _take_seq(*, ended: bool) -> Update:
    """Give out the next seq and note the use: the one statement that orders turns, and the row lock of writers."""
    statement = (
        update(CONVERSATIONS)
        .where(CONVERSATIONS.c.key == _KEY)
        .values(next_seq=CONVERSATIONS.c.next_seq + 1, updated_at=_LAST_USE)
        .returning((CONVERSATIONS.c.next_seq - 1).label("seq"))
    )
    if ended:
        return statement
    # Not NOT IN: its list would be expanded anew at each call, for a tenth of the whole append.
    return statement.where(*(CONVERSATIONS.c.status != status for status in sorted(ENDED)))


@cache
def _find(*, lock: bool) -> Select[Any]:
    statement = select(CONVERSATIONS).where(CONVERSATIONS.c.key == _KEY)
    return statement.with_for_update(key_share=True) if lock else statement


class Conversations(Repository):
    """The conversations. A `Conversation` is the row as it was when it was read or made."""

    __slots__ = ()

    def find(self, key: str) -> Conversation | None:
        """Return the conversation, or None."""
        return self.session.get(Conversation, identifier(key, "key"), populate_existing=True)

    def get(self, key: str) -> Conversation:
        """Return the conversation; raises `ConversationNotFound`."""
        found = self.find(key)
        if found is None:
            raise ConversationNotFound(key)
        return found

    def find_row(self, key: str, *, lock: bool = False) -> Row[Any] | None:
        """Return the conversation's columns, or None; `lock` keeps others from changing it until the unit ends."""
        return self.connection.execute(_find(lock=lock), {"its_key": key}).first()

    def exists(self, key: str) -> bool:
        """Return whether there is a conversation of that key."""
        return self.connection.execute(_EXISTS, {"its_key": key}).first() is not None

    def find_many(self, keys: Iterable[str]) -> list[Conversation]:
        """Return those of the conversations that there are, by key; any number of keys may be asked for (RT-08)."""
        found: list[Conversation] = []
        for some in chunks(sorted(set(keys))):
            statement = select(Conversation).where(Conversation.key.in_(some)).order_by(Conversation.key)
            found += self.session.scalars(statement, execution_options={"populate_existing": True})
        return found

    def list_children(self, key: str) -> Sequence[Conversation]:
        """Return the conversations forked from this one, by time of creation and key."""
        statement = select(Conversation).where(Conversation.parent_key == key)
        statement = statement.order_by(Conversation.created_at, Conversation.key)
        return self.session.scalars(statement, execution_options={"populate_existing": True}).all()

    def list_page(self, wanted: lists.Wanted) -> ConversationPage:
        """Return one page of the conversations that are wanted, in the order that is; raises `InvalidCursor`."""
        return lists.page(self.connection, wanted)

    def list_tree(self, root: str | None = None) -> list[ConversationInfo]:
        """Return all conversations, or `root` and all below it, by time of creation and key."""
        return lists.everything(self.connection, root)

    def find_info(self, key: str) -> ConversationInfo | None:
        """Return the conversation as lists show it, or None."""
        return lists.one(self.connection, key)

    def list_keys(self, prefix: str, limit: int) -> list[str]:
        """Return the first `limit` of the keys that begin with the prefix, in order."""
        return lists.keys_from(self.connection, prefix, limit)

    def list_keys_of(self, names: Iterable[str]) -> set[str]:
        """Return the keys that these agents and people may be using: a name itself, and what begins with `agent:NAME:`.

        Names are taken literally, and that there are conversations under the names themselves is not looked up.
        """
        found: set[str] = set()
        for name in names:
            found.add(name)
            found.update(lists.keys_from(self.connection, f"agent:{name}:"))
        return found

    def list_lineage(self, key: str) -> list[str]:
        """Return the conversation and those it inherits from, nearest first; nothing for an unknown key."""
        parents = {row.owner: row.parent_key for row in self.connection.execute(_lineage(), {"its_key": key})}
        found: list[str] = []
        at: str | None = key
        while at is not None and at in parents:  # each once, also in a circle, which only raw SQL can make
            found.append(at)
            at = parents.pop(at)
        return found

    def add(self, conversation: Conversation) -> Conversation:
        """Insert a conversation and return it; columns left unset get their defaults.

        Raises `ConversationExists`, after which the unit of work is as usable as before (CN-04).
        """
        given = {column.key: conversation.__dict__.get(column.key) for column in CONVERSATIONS.c}
        values = {"created_at": self.now, "updated_at": self.now} | {k: v for k, v in given.items() if v is not None}
        identifier(values.get("key"), "key")
        insert = insert_for(self.connection.dialect.name)
        statement = insert(CONVERSATIONS).values(values).on_conflict_do_nothing().returning(CONVERSATIONS.c.key)
        if self.connection.execute(statement).first() is None:
            raise ConversationExists(conversation.key)
        return self.get(conversation.key)

    def take_seq(self, key: str, *, ended: bool = False) -> int | None:
        """Give out the conversation's next seq and note its use; None for an unknown one.

        One that has ended gives out none, unless `ended`.
        """
        parameters = {"its_key": key, "its_now": self.now}
        row = self.connection.execute(_take_seq(ended=ended), parameters).first()
        return None if row is None else int(row.seq)

    def give_back_seq(self, key: str) -> None:
        """Take the seq back that this unit has just been given: seqs have no gaps (PG-05)."""
        statement = update(CONVERSATIONS).where(CONVERSATIONS.c.key == key)
        self.connection.execute(statement.values(next_seq=CONVERSATIONS.c.next_seq - 1))

    def change(self, key: str, **values: Any) -> bool:
        """Set columns of the conversation and note its use; return whether there is one."""
        statement = (
            update(CONVERSATIONS)
            .where(CONVERSATIONS.c.key == _KEY)
            .values(**values, updated_at=_LAST_USE)
            .returning(CONVERSATIONS.c.key)
        )
        return self.connection.execute(statement, {"its_key": key, "its_now": self.now}).first() is not None

    def fill(self, key: str, **values: Any) -> None:
        """Set columns of a conversation that nobody has used, its times among them: they are what it is filled with."""
        self.connection.execute(update(CONVERSATIONS).where(CONVERSATIONS.c.key == key).values(**values))

    def lock(self, keys: Iterable[str]) -> None:
        """Keep others from writing to these conversations until the unit ends.

        Always in the order of their keys, so that two who lock the same ones wait and never deadlock (PG-02). Whoever
        writes to several calls this first and then reads again what it decided on. SQLite's single writer needs none.
        The lock is FOR NO KEY UPDATE, as an UPDATE's own: a second UPDATE of a child in one unit looks whether its
        parent is still there, and would wait for the parent's stronger lock while it holds the child's.
        """
        if self.connection.dialect.name != "postgresql":
            return
        for some in chunks(sorted(set(keys))):
            statement = select(CONVERSATIONS.c.key).where(CONVERSATIONS.c.key.in_(some))
            self.connection.execute(statement.order_by(CONVERSATIONS.c.key).with_for_update(key_share=True)).all()

    def delete(self, key: str) -> bool:
        """Delete the conversation with its turns; return whether there was one. Its children become roots."""
        return self.delete_many([key]) > 0

    def delete_many(self, keys: Iterable[str]) -> int:
        """Delete these conversations with their turns, and return how many there were; any number of keys (RT-08).

        What they may be needed for is the caller's to know: `delete_conversation` and `prune` do.
        """
        deleted = 0
        for some in chunks(sorted(set(keys))):
            statement = delete(CONVERSATIONS).where(CONVERSATIONS.c.key.in_(some)).returning(CONVERSATIONS.c.key)
            deleted += len(self.connection.execute(statement).all())
        return deleted

    def list_descendants(self, key: str) -> list[Row[Any]]:
        """Return every conversation below this one: `key`, `parent_key`, `status`, `inherited_seq`; in no order."""
        return list(self.connection.execute(_descendants(), {"its_key": key}))

    def detach(self, key: str) -> list[str]:
        """Make the children of a conversation roots, and return their keys, sorted; their last use stays as it is."""
        statement = (
            update(CONVERSATIONS)
            .where(CONVERSATIONS.c.parent_key == key)
            .values(parent_key=None, fork_turn_id=None)
            .returning(CONVERSATIONS.c.key)
        )
        return sorted(self.connection.execute(statement).scalars())

    def end_inheritance(self, key: str) -> None:
        """Note that the conversation sees nothing of its parent any more; its last use stays as it is."""
        self.connection.execute(update(CONVERSATIONS).where(CONVERSATIONS.c.key == key).values(inherited_seq=None))


@cache
def _lineage() -> Select[Any]:
    line = line_of(_KEY)
    return select(line.c.owner, line.c.parent_key)


@cache
def _descendants() -> Select[Any]:
    columns = ("key", "parent_key", "status", "inherited_seq")
    found = (
        select(*(CONVERSATIONS.c[name] for name in columns))
        .where(CONVERSATIONS.c.parent_key == _KEY)
        .cte("found", recursive=True)
    )
    child = CONVERSATIONS.alias("child")
    found = found.union(select(*(child.c[name] for name in columns)).join(found, child.c.parent_key == found.c.key))
    return select(found).where(found.c.key != _KEY)
