"""Turns that are collected message by message, while a model thinks, and stored whole at the end (section 10)."""

from __future__ import annotations

import json
import threading
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

from agentstate.clock import utc_now
from agentstate.conversations.messages import message_text, meta_text, require_size
from agentstate.conversations.models import HEARSAY, TurnKind, checked_kind, new_turn_id
from agentstate.conversations.records import Message
from agentstate.conversations.workflows import append
from agentstate.conversations.workflows.turns import check_voice
from agentstate.db.database import Database
from agentstate.db.types import plain_text
from agentstate.errors import InvalidValue, TurnAlreadyCommitted, TurnDiscarded
from agentstate.identity import identifier


class _State(Enum):
    OPEN = auto()
    STORED = auto()
    DISCARDED = auto()


def begin_turn(database: Database, key: str, kind: int = TurnKind.NORMAL, *, turn_id: str | None = None) -> TurnWriter:
    """Return a writer of one turn of the conversation `key`; nothing is read or written yet.

    `turn_id` is a new one unless it is given; storing a turn again under its id does not store it twice (SE-11). Raises
    `InvalidValue` for an unknown kind and for fork points, which only `fork` writes.

    with begin_turn(database, "agent:ada:main") as turn:
        turn.add({"role": "user", "content": "Is it raining?"})
        turn.add(ask_the_model())
    """
    if checked_kind(kind) == TurnKind.FORK_POINT:
        raise InvalidValue("kind", "a fork point is written by `fork` only")
    given = new_turn_id(utc_now()) if turn_id is None else identifier(turn_id, "turn_id")
    return TurnWriter(database, identifier(key, "key"), TurnKind(kind), given)


class TurnWriter:
    """One turn in the making, which any thread may add to; until it is stored it exists only here.

    Leaving the `with` block stores the turn in one transaction, an exception discards it. Inside the block no
    transaction and no connection is in use, however long the model takes (PG-01).

    A commit that fails leaves the turn open, inside the block and after it: call `commit()` again. The id stays, so
    that a turn whose commit was only believed to have failed is not stored twice (LK-09). Once the turn is stored,
    every further change raises `TurnAlreadyCommitted`, and once it is discarded, `TurnDiscarded`.
    """

    def __init__(self, database: Database, key: str, kind: TurnKind, turn_id: str) -> None:
        """Use `begin_turn`."""
        self._database = database
        self._key = key
        self._kind = kind
        self._id = turn_id
        self._seq: int | None = None
        self._messages: list[Message] = []
        self._size = 1
        self._origin_key: str | None = None
        self._author = ""
        self._summary: str | None = None
        self._meta: dict[str, Any] | None = None
        self._state = _State.OPEN
        self._failure: BaseException | None = None
        self._lock = threading.RLock()

    @property
    def id(self) -> str:
        """The turn's id, from the start."""
        return self._id

    @property
    def seq(self) -> int | None:
        """The turn's place in its conversation, None until it is stored."""
        return self._seq

    def add(self, message: Message) -> None:
        """Add a copy of the message; one that is refused changes nothing, and the turn can be gone on with.

        Raises `InvalidMessage`, `TurnTooLarge`, and `ReportRoleRefused` for what a report may not say: what has been
        added can be stored.
        """
        with self._lock:
            self._require_open()
            text = message_text(message)
            size = self._size + len(text.encode()) + 1  # the bracket or comma after it
            require_size(size)
            if self._kind in HEARSAY:
                check_voice(self._kind, [*self._messages[:1], message])
            self._messages.append(json.loads(text))
            self._size = size

    def set_origin(self, key: str) -> None:
        """Say which conversation a report, question or plan comes from; it need not exist. Raises `InvalidValue`."""
        with self._lock:
            self._require_open()
            self._origin_key = identifier(key, "origin_key")

    def set_author(self, name: str) -> None:
        """Sign the turn, for people. Raises `InvalidValue`."""
        with self._lock:
            self._require_open()
            self._author = plain_text(name, "author")

    def set_summary(self, text: str) -> None:
        """Say what this one turn did, for people; no rule reads it. Raises `InvalidValue`."""
        with self._lock:
            self._require_open()
            self._summary = plain_text(text, "summary")

    def set_meta(self, meta: dict[str, Any]) -> None:
        """Keep a copy of an object with the turn, in place of an earlier one. Raises `InvalidValue`."""
        with self._lock:
            self._require_open()
            text = meta_text(meta)
            self._meta = None if text is None else json.loads(text)

    def commit(self) -> None:
        """Store the turn now; leaving the block then does nothing.

        Without messages nothing is stored or raised, and the turn stays open: there is nothing yet that could be
        committed. Raises what `append` raises and what the database says; the turn is open then.
        """
        with self._lock:
            self._require_open()
            try:
                self._store()
            except BaseException as error:
                self._failure = error
                raise

    def discard(self) -> None:
        """Give the turn up; leaving the block then does nothing.

        A turn whose commit failed in a way that leaves its fate open may be stored nevertheless: look for its id.
        """
        with self._lock:
            self._require_open()
            self._state = _State.DISCARDED

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Store the turn, or discard it if the block failed; a failed `commit()` of its own does not discard it."""
        with self._lock:
            failure, self._failure = self._failure, None
            if self._state is not _State.OPEN:
                return
            if error is None:
                self._store()
            elif error is not failure:
                self._state = _State.DISCARDED

    def _require_open(self) -> None:
        if self._state is _State.STORED:
            raise TurnAlreadyCommitted(self._id)
        if self._state is _State.DISCARDED:
            raise TurnDiscarded(self._id)

    def _store(self) -> None:
        if not self._messages:
            return
        with self._database.write() as work:
            stored = append(
                work,
                self._key,
                self._messages,
                turn_id=self._id,
                kind=self._kind,
                origin_key=self._origin_key,
                summary=self._summary,
                author=self._author,
                meta=self._meta,
            )
        self._seq, self._state = stored.seq, _State.STORED
