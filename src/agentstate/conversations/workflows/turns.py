"""Conversations are made and appended to, each time in the caller's one transaction.

A turn is stored whole or not at all, and a turn that was stored once under its id is not stored again (section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agentstate.conversations.messages import messages_text, meta_text
from agentstate.conversations.models import (
    ACTIVE,
    AUTHORITATIVE,
    ENDED,
    HEARSAY,
    Conversation,
    TurnKind,
    checked_kind,
    new_turn_id,
)
from agentstate.conversations.records import Appended, Message
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.types import aware, plain_text
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    ConversationChanged,
    ConversationEnded,
    ConversationNotFound,
    EmptyTurn,
    InvalidValue,
    OriginMissing,
    ReportRoleRefused,
    TurnConflict,
)
from agentstate.identity import identifier

_HEARSAY_NAMES: dict[int, str] = {
    TurnKind.REPORT: "report",
    TurnKind.QUESTION: "question",
    TurnKind.PLAN_SUBMIT: "plan",
}


def create(work: UnitOfWork, key: str, *, label: str = "", status: str = ACTIVE) -> Conversation:
    """Make an empty conversation; raises `ConversationExists`, after which the unit of work goes on."""
    conversation = Conversation(
        key=identifier(key, "key"), label=plain_text(label, "label"), status=identifier(status, "status")
    )
    return Conversations(work).add(conversation)


def append(
    work: UnitOfWork,
    key: str,
    messages: Sequence[Message],
    *,
    turn_id: str | None = None,
    kind: int = TurnKind.NORMAL,
    origin_key: str | None = None,
    summary: str | None = None,
    author: str = "",
    meta: dict[str, Any] | None = None,
    created_at: datetime | None = None,
) -> Appended:
    """Store one turn at the end of a conversation and return its place.

    `turn_id` makes the call safe to repeat: the same turn under the same id is stored once, and its place is returned
    also when the conversation has ended since (SE-11). Kinds 1, 10 and 11 say what another agent said and need
    `origin_key`; they speak as a user, so that the reader may doubt them (SE-10). `summary` and `author` are for
    people; `created_at` (aware) is the unit's time if it is not given, and orders nothing.

    Raises, before anything is written, `EmptyTurn`, `InvalidMessage`, `TurnTooLarge`, `OriginMissing`,
    `ReportRoleRefused` and `InvalidValue`; and `ConversationNotFound`, `ConversationEnded` and `TurnConflict`, then
    with nothing changed.
    """
    if checked_kind(kind) == TurnKind.FORK_POINT:
        raise InvalidValue("kind", "a fork point is written by `fork` only")
    turn = _turn(messages, turn_id, kind, origin_key, summary, author, meta, created_at)
    turn |= {"conversation_key": identifier(key, "key")}
    turn["created_at"] = turn["created_at"] or work.now
    turns = Turns(work)
    if turn_id is None:
        turn |= {"id": new_turn_id(work.now), "seq": _next_seq(work, key)}
        turns.add(turn)
        return Appended(turn["id"], turn["seq"], True)

    if work.connection.dialect.name == "postgresql":
        Conversations(work).lock([key])  # who stores the same turn at the same time has finished before we look
    stored = turns.find_stored(turn_id)
    if stored is not None:
        if not _same(stored, turn):
            raise TurnConflict(turn_id, stored.conversation_key)
        return Appended(turn_id, stored.seq, False)
    turn |= {"id": turn_id, "seq": _next_seq(work, key)}
    if not turns.add_if_new(turn):
        # Another conversation took the id between our look and now.
        Conversations(work).give_back_seq(key)
        raise TurnConflict(turn_id, turns.list_ids([turn_id])[turn_id])
    return Appended(turn_id, turn["seq"], True)


def set_status(work: UnitOfWork, key: str, status: str) -> None:
    """Set the status; any text is one, and those in `ENDED` take no more turns. Raises `ConversationNotFound`.

    Unguarded on purpose: it is the way out of every rule about conversations that have ended.
    """
    change(work, key, status=identifier(status, "status"))


def set_summary(work: UnitOfWork, key: str, summary: str) -> None:
    """Replace the conversation's own summary, `''` for none; what a branch inherited stays before it."""
    change(work, key, summary=plain_text(summary, "summary"))


def set_label(work: UnitOfWork, key: str, label: str) -> None:
    """Set the name for people. Raises `ConversationNotFound`."""
    change(work, key, label=plain_text(label, "label"))


def check_hearsay(kind: int, messages: Sequence[Message], origin_key: str | None) -> None:
    """Raise `OriginMissing` or `ReportRoleRefused` unless a report, question or plan is one (SE-10)."""
    if origin_key is None:
        raise OriginMissing(_HEARSAY_NAMES[kind])
    check_voice(kind, messages)


def check_voice(kind: int, messages: Sequence[Message]) -> None:
    """Raise `ReportRoleRefused` unless the messages of a report, question or plan speak as a user."""
    name = _HEARSAY_NAMES[kind]
    for message in messages:
        if message["role"] in AUTHORITATIVE:
            raise ReportRoleRefused(name, message["role"])
    if messages[0]["role"] != "user":
        raise ReportRoleRefused(name, messages[0]["role"])


def require_open(work: UnitOfWork, key: str) -> None:
    """Raise `ConversationNotFound` or `ConversationEnded` unless the conversation takes turns."""
    row = Conversations(work).find_row(key)
    if row is None:
        raise ConversationNotFound(key)
    if row.status in ENDED:
        raise ConversationEnded(key, row.status)


def _turn(
    messages: Sequence[Message],
    turn_id: str | None,
    kind: int,
    origin_key: str | None,
    summary: str | None,
    author: str,
    meta: dict[str, Any] | None,
    created_at: datetime | None,
) -> dict[str, Any]:
    """Return a turn's columns, checked, all but its conversation and seq; what is refused is refused before SQL."""
    text = messages_text(messages)
    if not messages:
        raise EmptyTurn
    if kind in HEARSAY:
        check_hearsay(kind, messages, origin_key)
    return {
        "id": None if turn_id is None else identifier(turn_id, "turn_id"),
        "kind": int(kind),
        "message_count": len(messages),
        "origin_key": None if origin_key is None else identifier(origin_key, "origin_key"),
        "summary": None if summary is None else plain_text(summary, "summary"),
        "author": plain_text(author, "author"),
        "created_at": None if created_at is None else aware(created_at, "created_at"),
        "meta": meta_text(meta),
        "messages": text,
    }


def _next_seq(work: UnitOfWork, key: str) -> int:
    seq = Conversations(work).take_seq(key)
    if seq is None:
        require_open(work, key)
        seq = Conversations(work).take_seq(key)  # somebody reopened it between the two statements
    if seq is None:
        raise ConversationChanged(key, "open", "ended")
    return seq


def _same(stored: Any, turn: dict[str, Any]) -> bool:
    names = ("conversation_key", "kind", "origin_key", "author", "summary", "messages", "meta")
    return all(getattr(stored, name) == turn[name] for name in names)


def change(work: UnitOfWork, key: str, **values: Any) -> None:
    """Set columns of the conversation's row and note its use; raises `ConversationNotFound`."""
    if not Conversations(work).change(key, **values):
        raise ConversationNotFound(key)
