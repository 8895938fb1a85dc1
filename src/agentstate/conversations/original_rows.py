"""The rows of the original's database as conversations and turns: what was guessed or mended is flagged."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstate.conversations.incoming import (
    CHARACTERS_REPLACED,
    TURN_ID_REPLACED,
    IncomingConversation,
    IncomingTurn,
    mended_text,
)
from agentstate.conversations.messages import messages_text, meta_text, require_size
from agentstate.conversations.models import ACTIVE, TurnKind, known_kind
from agentstate.conversations.original import Original, Value, decoded, digest
from agentstate.conversations.pairing import pair
from agentstate.conversations.records import Message, Repairs
from agentstate.conversations.repositories.line import NO_LIMIT
from agentstate.conversations.times import TIME_GUESSED, from_seconds, lifetime, read_time
from agentstate.errors import InvalidIdentifier, InvalidValue
from agentstate.identity import identifier

_SECONDS = re.compile(r"-?\d{9,11}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FoundConversation:
    """A conversation ready to be brought in, what was guessed or mended for that, and what its provider view mends."""

    conversation: IncomingConversation
    flags: frozenset[str]
    messages: int
    repairs: Repairs


def read_conversation(original: Original, rowid: int, key: str, parent_key: str | None) -> FoundConversation:
    """Return a session of the original with its turns; `key` and `parent_key` are what it is to be called here.

    Raises `TurnTooLarge` if one of the turns could not be stored whole.
    """
    flags: set[str] = set()
    session, turns = original.session(rowid), original.turns(rowid)
    _, _, fork_turn_id, status, label, summary, created, updated = session
    created_at, updated_at, guessed = lifetime(_time(created), _time(updated), original.mtime)
    if guessed:
        flags.add(TIME_GUESSED)
    seqs = _seqs(turns, flags)
    said: list[Message] = []
    conversation = IncomingConversation(
        key=key,
        parent_key=parent_key,
        fork_turn_id=_text(fork_turn_id, flags) or None,
        status=_identifier(status, flags, "status_replaced") or ACTIVE,
        label=_text(label, flags),
        summary=_text(summary, flags),
        created_at=created_at,
        updated_at=updated_at,
        next_seq=seqs[-1] + 1 if seqs else 1,
        compacted_seq=seqs[0] - 1 if seqs else 0,
        imported_from=f"{original.name}#{digest(session, turns)}",
        turns=tuple(_turn(row, seq, created_at, said, flags) for row, seq in zip(turns, seqs, strict=True)),
    )
    return FoundConversation(conversation, frozenset(flags), len(said), pair(said)[1])


def _turn(row: tuple[Value, ...], seq: int, otherwise: datetime, said: list[Message], flags: set[str]) -> IncomingTurn:
    """Return one turn, created `otherwise` if it does not say when; its messages are added to `said`."""
    turn_id, _, kind, messages, origin, summary, author, created, meta = row
    unreadable: dict[str, str] = {}
    found, stored = _messages(messages, unreadable, flags)
    said += found
    created_at = _time(created)
    if created_at is None:
        flags.add(TIME_GUESSED)
    origin_key = _identifier(origin, flags, "unreadable_origin_key")
    if origin_key is None and origin:
        unreadable["unreadable_origin_key"] = decoded(origin)[0]
    return IncomingTurn(
        id=_identifier(turn_id, flags, TURN_ID_REPLACED),
        seq=seq,
        kind=_kind(kind, flags),
        message_count=len(found),
        origin_key=origin_key,
        summary=_text(summary, flags) or None,
        author=_text(author, flags),
        created_at=created_at or otherwise,
        meta=meta_text({**_meta(meta, flags), **unreadable} or None),
        messages=stored,
    )


def _messages(value: Value, unreadable: dict[str, str], flags: set[str]) -> tuple[list[Message], str]:
    """Return a turn's messages and their stored text; what is no list of messages is kept in `unreadable`."""
    raw = _json(value, flags)
    if not raw:
        return [], "[]"
    try:
        found = json.loads(raw, object_pairs_hook=_object)
        return found, messages_text(found)
    except (InvalidValue, ValueError, RecursionError):
        require_size(len(raw.encode()))  # what is too large for messages is too large for meta
    unreadable["unreadable_messages"] = raw
    flags.add("unreadable_messages")
    return [], "[]"


def _meta(value: Value, flags: set[str]) -> dict[str, Any]:
    raw = _json(value, flags)
    try:
        found: dict[str, Any] = json.loads(raw or "{}", object_pairs_hook=_object)
        meta_text(found)
    except (InvalidValue, ValueError, RecursionError):
        flags.add("unreadable_meta")
        return {"unreadable_meta": raw}
    return found


def _json(value: Value, flags: set[str]) -> str:
    """Return a column's JSON text, '' for none at all."""
    text, replaced = decoded(value)
    if replaced:
        flags.add(CHARACTERS_REPLACED)
    return "" if text.strip() in ("", "null") else text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a key twice: one of its values would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _text(value: Value, flags: set[str]) -> str:
    text, replaced = decoded(value)
    storable = mended_text(text)
    if replaced or storable != text:
        flags.add(CHARACTERS_REPLACED)
    return storable


def _identifier(value: Value, flags: set[str], otherwise: str) -> str | None:
    """Return an identifier, None for none; what cannot be one is None too, and `otherwise` is flagged."""
    text = _text(value, flags)
    if not text:
        return None
    try:
        return identifier(text, "value")
    except InvalidIdentifier:
        flags.add(otherwise)
        return None


def _kind(value: Value, flags: set[str]) -> int:
    if isinstance(value, int) and isinstance(known_kind(value), TurnKind):
        return value
    flags.add("unknown_kind")
    return value if isinstance(value, int) else int(TurnKind.NORMAL)


def _seqs(rows: list[tuple[Value, ...]], flags: set[str]) -> list[int]:
    """Return the turns' seqs: their own if they can be used, else 1, 2, …"""
    own = [row[1] for row in rows if isinstance(row[1], int) and 1 <= row[1] < NO_LIMIT]
    if len(set(own)) == len(rows):
        return own
    flags.add("renumbered")
    return list(range(1, len(rows) + 1))


def _time(value: Value) -> datetime | None:
    """Return the instant of an RFC 3339 text or of seconds since 1970, which a text column keeps as digits."""
    if isinstance(value, bytes):
        text = decoded(value)[0]
        if not _SECONDS.fullmatch(text):
            return read_time(text)
        value = int(text)
    if value is None:
        return None
    try:
        found = from_seconds(value)
    except (ValueError, OverflowError):
        return None
    return None if found.year == 1 else found
