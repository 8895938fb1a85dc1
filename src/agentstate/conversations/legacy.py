"""The original's way to use conversations: one list of messages per key, kept in memory and saved now and then."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from agentstate.conversations import history
from agentstate.conversations.cached import Batch, CachedConversation
from agentstate.conversations.messages import checked_copy, messages_text
from agentstate.conversations.models import TurnKind, effective_summary
from agentstate.conversations.records import Compaction, LegacySession, Message
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.workflows import append, create, set_summary
from agentstate.conversations.writer import TurnWriter, begin_turn
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    AgentStateError,
    ConversationExists,
    ConversationNotFound,
    InvalidValue,
    SaveFailed,
    TurnTooLarge,
)
from agentstate.identity import identifier


@dataclass(frozen=True, slots=True)
class LegacyGraph:
    """What goes past the cache, straight to the database; `begun` are the ids of the turns begun here."""

    database: Database
    begun: set[str]

    def messages(self, key: str) -> list[Message]:
        """Return the stored messages of the conversation's history; raises `ConversationNotFound`."""
        with self.database.read() as work:
            return history.messages(work, key)

    def begin_turn(self, key: str, kind: int = TurnKind.NORMAL) -> TurnWriter:
        """Return a writer of one turn. Once it is stored, tell the cache: `LegacySessions.advance_stored`."""
        turn = begin_turn(self.database, key, kind)
        self.begun.add(turn.id)
        return turn


class LegacySessions:
    """Conversations as lists of messages, with a write-behind cache; threads may share one.

    Whatever is added or replaced is kept in memory until `save`, `flush_dirty` or `close`: few writes is the purpose.
    What others append appears by itself and is never overwritten (LK-04). No error is swallowed: what could not be
    saved stays unsaved. A conversation that was deleted by others reads as its unsaved messages, saving it raises
    `ConversationNotFound`, and `get_or_create` makes it anew. Keys are identifiers, else `InvalidIdentifier`. Every
    method is a unit of work of its own, or several: call none inside another one.
    """

    def __init__(self, database: Database) -> None:
        """Use the database, which stays the caller's to close."""
        self._database = database
        self._cache: dict[str, CachedConversation] = {}
        self._begun: set[str] = set()
        self._lock = threading.RLock()

    def get_or_create(self, key: str) -> LegacySession:
        """Return the conversation with all its messages, and make it if there is none."""
        with self._lock:
            while True:
                with self._database.read() as work:
                    row, entry = Conversations(work).find_row(identifier(key, "key")), self._look(work, key)
                if row is not None:
                    summary = effective_summary(row.inherited_summary, row.summary)
                    return LegacySession(key, entry.view(), summary, row.created_at, row.updated_at)
                self._create(key)

    def add_message(self, key: str, role: str, content: str) -> None:
        """Add a message of that role and content; as `add_full_message`."""
        self.add_full_message(key, {"role": role, "content": content})

    def add_full_message(self, key: str, message: Message) -> None:
        """Add a copy of a message, stored at the next save; the conversation is made now if there is none.

        Raises `InvalidMessage` and `TurnTooLarge`, with nothing changed.
        """
        copy = checked_copy(message)
        with self._lock:
            self._opened(key).add(copy)

    def get_history(self, key: str) -> list[Message]:
        """Return the messages of the conversation's history and the unsaved ones; an unknown key has none."""
        with self._lock:
            return self._stored(key).view()

    def set_history(self, key: str, history: Sequence[Message]) -> None:
        """Replace all messages, saved and unsaved; the conversation is made now if there is none.

        The next save replaces what is stored, but only what this instance has seen of it: `save`. Raises
        `InvalidMessage` and `TurnTooLarge`, with nothing changed.
        """
        copies: list[Message] = json.loads(messages_text(history))
        with self._lock:
            self._opened(key).replace(copies)

    def truncate_history(self, key: str, keep_last: int) -> None:
        """Keep only the newest `keep_last` messages (0 or less: none), as `set_history` would.

        Nothing happens to an unknown key, or when there are no more than that.
        """
        if isinstance(keep_last, bool) or not isinstance(keep_last, int):
            raise InvalidValue("keep_last", f"{keep_last!r} is not a number of messages")
        with self._lock:
            entry = self._stored(key)
            messages = entry.view()
            surplus = len(messages) - max(keep_last, 0)
            if not entry.gone and surplus > 0:
                entry.replace(messages[surplus:])

    def get_summary(self, key: str) -> str:
        """Return what stands for everything that was compacted, `''` for an unknown key."""
        with self._database.read() as work:
            row = Conversations(work).find_row(identifier(key, "key"))
        return "" if row is None else effective_summary(row.inherited_summary, row.summary)

    def set_summary(self, key: str, text: str) -> None:
        """Replace the conversation's own summary at once. Raises `ConversationNotFound` and `InvalidValue`."""
        with self._database.write() as work:
            set_summary(work, identifier(key, "key"), text)

    def mark_dirty(self, key: str) -> None:
        """Change nothing: whatever is unsaved is known to be, marked or not, so that no message is forgotten."""
        identifier(key, "key")

    def save(self, key: str) -> None:
        """Store what is new, as one normal turn or, after `set_history`, in place of the whole history.

        More than one turn may hold becomes several. Raises `ConversationChanged` when others wrote since this instance
        last read what is to be replaced: nothing has changed then, and `reload` is the way out. After any error the
        messages stay unsaved, and saving again is safe whatever became of the first try: they are stored once, unless
        others have compacted the first try away meanwhile (LK-09).
        """
        with self._lock:
            entry = self._cache.get(identifier(key, "key"))
            most: int | None = None
            while entry is not None and (batch := entry.next_batch(most)) is not None:
                try:
                    with self._database.write() as work:
                        seq = _store(work, key, batch, entry.next_seq)
                        known = batch.replaces or entry.knows(Turns(work).read_history(key, entry.since))
                        entry.freeze(batch)
                except TurnTooLarge:
                    most = len(batch.messages) // 2  # one alone would have been refused when it was added
                    continue
                except ConversationNotFound:
                    entry.take(None)
                    raise
                entry.settle(batch, seq)
                if not known:
                    entry.forget()

    def flush_dirty(self) -> None:
        """Save every conversation that has something unsaved; raises `SaveFailed` with the error of each that failed.

        Those that failed stay unsaved, and the others are saved.
        """
        with self._lock:
            keys = [key for key, entry in self._cache.items() if entry.dirty]
        failures: dict[str, Exception] = {}
        for key in keys:
            try:
                self.save(key)
            except AgentStateError as error:
                failures[key] = error
        if failures:
            raise SaveFailed(failures)

    def reload(self, key: str) -> None:
        """Forget what is known of the conversation, its unsaved messages too: the way out of a conflict."""
        with self._lock:
            self._cache.pop(identifier(key, "key"), None)

    def advance_stored(self, key: str, n: int) -> None:
        """Note that the caller has appended `n` messages to the database directly, such as by `graph().begin_turn`.

        They are not written again and occur once in the history, whether `add_full_message` was called with them
        before, is called later (until the next save) or never. Meant are those of `graph()`'s turns first, then the
        newest that others wrote, as far as they were not noted before; `InvalidValue` if there are fewer.

        With an unsaved `set_history` this saves it, which raises `ConversationChanged` if anything was appended after
        it: save before appending directly.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InvalidValue("n", f"{n!r} is not a number of messages")
        with self._lock:
            entry = self._stored(key)
            if not entry.replaced:
                entry.claim(n, self._begun)
            elif n:
                self.save(key)

    def compact_old_turns(self, key: str, keep_last: int, summary: str) -> Compaction:
        """Save, and hide all but the newest `keep_last` messages behind the summary, whole turns only.

        Raises what `save` and `history.compact_old_turns` raise.
        """
        with self._lock:
            self.save(key)
            with self._database.write() as work:
                return history.compact_old_turns(work, key, keep_last, summary)

    def graph(self) -> LegacyGraph:
        """Return a handle that goes past the cache."""
        return LegacyGraph(self._database, self._begun)

    def close(self) -> None:
        """Save everything; raises what `flush_dirty` raises, and may be called again then. The database stays open."""
        self.flush_dirty()

    def _stored(self, key: str) -> CachedConversation:
        """Return what is known of the conversation, after looking at the database."""
        with self._database.read() as work:
            return self._look(work, identifier(key, "key"))

    def _look(self, work: UnitOfWork, key: str) -> CachedConversation:
        """Take into the cache what is stored: one statement, and a second one if more happened than appends."""
        entry, turns, whole = self._cache.get(key) or CachedConversation(), Turns(work), False
        found = turns.read_history(key, entry.since)
        if found is not None and not entry.follows(found):
            found, whole = turns.read_history(key), True
        entry.take(found, whole=whole)
        if not entry.gone:
            self._cache[key] = entry
        return entry

    def _opened(self, key: str) -> CachedConversation:
        """Return what is known of the conversation, after making it if there is none."""
        entry = self._cache.get(identifier(key, "key"))
        while entry is None or entry.gone:
            entry = self._stored(key)
            if entry.gone:
                self._create(key)
        return entry

    def _create(self, key: str) -> None:
        with self._database.write() as work, suppress(ConversationExists):
            create(work, key)


def _store(work: UnitOfWork, key: str, batch: Batch, next_seq: int) -> int | None:
    if batch.replaces:
        return history.replace_history(work, key, batch.messages, expected_next_seq=next_seq, turn_id=batch.turn_id)
    return append(work, key, batch.messages, turn_id=batch.turn_id).seq
