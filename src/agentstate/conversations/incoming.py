"""What an importer brings in: one conversation with its turns, whichever form it came from.

Nothing that is here already is replaced or emptied: a conversation that somebody uses stays as it is (IM-04, IM-06).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from agentstate.conversations.models import Conversation, effective_summary, new_turn_id
from agentstate.conversations.repositories import Conversations, Turns, chunks
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationExists
from agentstate.identity import UNSTORABLE

TURN_ID_REPLACED = "turn_id_replaced"
CHARACTERS_REPLACED = "characters_replaced"

Outcome: TypeAlias = Literal["imported", "already", "conflict"]


@dataclass(frozen=True, slots=True)
class IncomingTurn:
    """One turn to store. `id` None: a new one is made; `messages` and `meta` are stored text already."""

    id: str | None
    seq: int
    kind: int
    message_count: int
    origin_key: str | None
    summary: str | None
    author: str
    created_at: datetime
    meta: str | None
    messages: str


@dataclass(frozen=True, slots=True)
class IncomingConversation:
    """One conversation to store, as its row will be; `imported_from` is `<file name>#<sha256>`."""

    key: str
    parent_key: str | None
    fork_turn_id: str | None
    status: str
    label: str
    summary: str
    created_at: datetime
    updated_at: datetime
    next_seq: int
    compacted_seq: int
    imported_from: str
    turns: tuple[IncomingTurn, ...]


@dataclass(frozen=True, slots=True)
class BroughtIn:
    """What became of a conversation: stored now, here already, or in conflict with another one of its key."""

    outcome: Outcome
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stored:
    """What there is under a key, as far as an incoming conversation is judged by it."""

    digest: str | None
    used: bool
    summary: str
    messages: Callable[[], int]
    fingerprint: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Planned:
    """What a dry run would have stored so far."""

    conversations: dict[str, _Stored] = field(default_factory=dict)
    turn_ids: set[str] = field(default_factory=set)


def bring_in(work: UnitOfWork, incoming: IncomingConversation) -> BroughtIn:
    """Store a conversation with all its turns, unless it is here already or its key is in use; say which.

    - "imported": its key was free, or belonged to a conversation that nobody has used. Such a one keeps its label,
      status and parent, and gets everything else.
    - "already": it was brought in before (by the digest in `imported_from`), or holds the same messages.
    - "conflict": something else is stored under its key. As with "already", nothing is written.

    A turn whose id is taken gets a new one, flag `turn_id_replaced`. The parent, if one is given, must be stored.
    """
    outcome = _judge(_stored(work, incoming.key, lock=True), incoming)
    while outcome is None and not _insert(work, incoming):
        outcome = _judge(_stored(work, incoming.key, lock=True), incoming)
    if outcome in ("already", "conflict"):
        return BroughtIn(outcome)
    if outcome == "imported":
        kept = {"key", "parent_key", "fork_turn_id", "status", "label"}
        values = {name: value for name, value in _row(work, incoming).items() if name not in kept}
        Conversations(work).fill(incoming.key, **values)
    replaced = _add_turns(work, incoming)
    return BroughtIn("imported", (TURN_ID_REPLACED,) if replaced else ())


def would_bring_in(work: UnitOfWork, incoming: IncomingConversation, planned: Planned | None = None) -> BroughtIn:
    """Return what `bring_in` would return now, and write nothing: for dry runs, also in a unit that only reads.

    `planned` is told what would be stored, so that the next call of the same dry run takes it into account.
    """
    planned = Planned() if planned is None else planned
    outcome = _judge(_stored(work, incoming.key, lock=False), incoming) or "imported"
    if outcome == "imported":
        outcome = _judge(planned.conversations.get(incoming.key), incoming) or "imported"
    if outcome != "imported":
        return BroughtIn(outcome)
    ids = [turn.id for turn in incoming.turns if turn.id is not None]
    replaced = len(set(ids)) < len(ids) or not planned.turn_ids.isdisjoint(ids)
    replaced = replaced or any(_taken(work, incoming.key, some) for some in chunks(ids))
    planned.turn_ids.update(ids)
    planned.conversations[incoming.key] = _as_stored(incoming)
    return BroughtIn("imported", (TURN_ID_REPLACED,) if replaced else ())


def mended_text(text: str) -> str:
    """Return the text with U+FFFD for what no text column holds: NUL and lone surrogates; flag what it changes."""
    return UNSTORABLE.sub("\ufffd", text)


def _insert(work: UnitOfWork, incoming: IncomingConversation) -> bool:
    """Insert the conversation's row; return False if, on a server, somebody has made one since we looked."""
    try:
        Conversations(work).add(Conversation(**_row(work, incoming)))
    except ConversationExists:
        return False
    return True


def _stored(work: UnitOfWork, key: str, *, lock: bool) -> _Stored | None:
    row = Conversations(work).find_row(key, lock=lock)
    if row is None:
        return None
    turns = Turns(work)
    summary = effective_summary(row.inherited_summary, row.summary)
    return _Stored(
        None if row.imported_from is None else _digest(row.imported_from),
        row.next_seq > 1 or bool(summary) or turns.count(key) > 0,
        summary,
        lambda: sum(turn.message_count for turn in turns.list_history_info(key)),
        lambda: _fingerprint(turns.walk_texts(key)),
    )


def _as_stored(incoming: IncomingConversation) -> _Stored:
    """Return what `_stored` would return once the conversation is stored; the turns themselves are let go."""
    messages = sum(turn.message_count for turn in incoming.turns)
    fingerprint = _fingerprint(turn.messages for turn in incoming.turns)
    used = incoming.next_seq > 1 or bool(incoming.summary.strip())
    return _Stored(_digest(incoming.imported_from), used, incoming.summary, lambda: messages, lambda: fingerprint)


def _judge(stored: _Stored | None, incoming: IncomingConversation) -> Outcome | None:
    """Return what is to become of it; None: there is no such conversation yet, so that it is to be inserted."""
    if stored is None:
        return None
    if stored.digest == _digest(incoming.imported_from):
        return "already"
    if not stored.used and (incoming.turns or incoming.summary):
        return "imported"
    messages = sum(turn.message_count for turn in incoming.turns)
    if messages != stored.messages():
        return "conflict"
    if not messages:  # two empty lists are equal, and say nothing about what the summaries stand for
        return "already" if incoming.summary in ("", stored.summary) else "conflict"
    same = _fingerprint(turn.messages for turn in incoming.turns) == stored.fingerprint()
    return "already" if same else "conflict"


def _digest(imported_from: str) -> str:
    return imported_from.rpartition("#")[2]


def _fingerprint(texts: Iterable[str]) -> bytes:
    """Return a hash of the messages in these lists, however they are divided into turns; nothing is decoded."""
    found = sha256()
    for text in texts:
        if text != "[]":
            found.update(f"{text[1:-1]},".encode())
    return found.digest()


def _row(work: UnitOfWork, incoming: IncomingConversation) -> dict[str, Any]:
    return {
        "key": incoming.key,
        "parent_key": incoming.parent_key,
        "fork_turn_id": incoming.fork_turn_id,
        "status": incoming.status,
        "label": incoming.label,
        "summary": incoming.summary,
        "created_at": incoming.created_at,
        "updated_at": incoming.updated_at,
        "next_seq": incoming.next_seq,
        "compacted_seq": incoming.compacted_seq,
        "imported_at": work.now,
        "imported_from": incoming.imported_from,
    }


def _add_turns(work: UnitOfWork, incoming: IncomingConversation) -> int:
    """Insert the turns; return how many got a new id because theirs was taken."""
    replaced = 0
    for some in chunks(incoming.turns):
        rows: dict[str, dict[str, Any]] = {}
        for turn in some:
            repeated = turn.id in rows
            replaced += repeated
            turn_id = new_turn_id(work.now) if turn.id is None or repeated else turn.id
            rows[turn_id] = _turn_row(incoming.key, turn, turn_id)
        taken = rows.keys() - Turns(work).add_new(list(rows.values()))
        Turns(work).add_many([{**rows[turn_id], "id": new_turn_id(work.now)} for turn_id in taken])
        replaced += len(taken)
    return replaced


def _taken(work: UnitOfWork, key: str, ids: Sequence[str]) -> list[str]:
    """Return those of up to `CHUNK` ids that are taken by turns of other conversations."""
    return [turn_id for turn_id, owner in Turns(work).list_ids(ids).items() if owner != key]


def _turn_row(key: str, turn: IncomingTurn, turn_id: str) -> dict[str, Any]:
    return {
        "id": turn_id,
        "conversation_key": key,
        "seq": turn.seq,
        "kind": turn.kind,
        "message_count": turn.message_count,
        "origin_key": turn.origin_key,
        "summary": turn.summary,
        "author": turn.author,
        "created_at": turn.created_at,
        "meta": turn.meta,
        "messages": turn.messages,
    }
