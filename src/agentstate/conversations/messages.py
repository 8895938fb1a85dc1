"""Messages and meta as stored text: what they must be, decided before SQL, and how they are read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentstate.conversations.models import MAX_TURN_BYTES
from agentstate.conversations.records import Message
from agentstate.db.types import json_text
from agentstate.errors import InvalidMessage, InvalidValue, TurnTooLarge, TurnUnreadable

MAX_DEPTH = 200
"""Levels of lists and objects in a message: what is nested deeper could be written and never read again."""


def messages_text(messages: Sequence[Message]) -> str:
    """Return a turn's messages as compact JSON, as they are stored.

    Every message is a dict with string keys, a non-empty string `role` and JSON values. Raises `InvalidMessage` with
    the path of what is none, such as `messages[2].meta.score`, and `TurnTooLarge` above `MAX_TURN_BYTES`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidMessage("messages", f"must be a list of messages, not {type(messages).__name__}")
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    text = _json(list(messages), "messages")
    if len(text) * 4 > MAX_TURN_BYTES:
        require_size(len(text.encode()))
    return text


def message_text(message: Message) -> str:
    """Return one message as compact JSON; raises `InvalidMessage`, and `TurnTooLarge` for what no turn can hold."""
    _check(message, "message")
    text = _json(message, "message")
    if len(text) * 4 > MAX_TURN_BYTES - 2:
        require_size(len(text.encode()) + 2)  # a turn's brackets
    return text


def checked_copy(message: Message) -> Message:
    """Return a copy of one message that shares nothing with it; raises what `message_text` raises."""
    copy: Message = json.loads(message_text(message))
    return copy


def require_size(size: int) -> None:
    """Raise `TurnTooLarge` if a turn may not have that many bytes of stored messages."""
    if size > MAX_TURN_BYTES:
        raise TurnTooLarge(size, MAX_TURN_BYTES)


def meta_text(meta: dict[str, Any] | None) -> str | None:
    """Return a turn's meta as compact JSON, None for None; raises `InvalidValue` with the path of what JSON lacks."""
    if meta is None:
        return None
    if not isinstance(meta, dict):
        raise InvalidValue("meta", f"must be an object (a dict) or None, not {type(meta).__name__}")
    try:
        _check_below(meta, "meta")
    except InvalidMessage as error:
        raise InvalidValue(error.path, error.reason) from None
    return json_text(meta, "meta")


def decoded(conversation_key: str, seq: int, turn_id: str, messages: str, meta: str | None) -> tuple[Any, Any]:
    """Return stored messages and meta as values; raises `TurnUnreadable` for what is not of our making."""
    try:
        found = json.loads(messages), None if meta is None else json.loads(meta)
    except (ValueError, RecursionError):
        raise TurnUnreadable(conversation_key, seq, turn_id) from None
    if not is_messages(found[0]):
        raise TurnUnreadable(conversation_key, seq, turn_id)
    if meta is not None and not isinstance(found[1], dict):
        raise TurnUnreadable(conversation_key, seq, turn_id)
    return found


def is_messages(value: object) -> bool:
    """Return whether a value read back is a list of messages."""
    return isinstance(value, list) and {*map(type, value)} <= {dict}


def _check(message: object, path: str) -> None:
    if not isinstance(message, dict):
        raise InvalidMessage(path, f"must be a dict, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidMessage(f"{path}.role", "must be a non-empty text, such as 'user'")
    _check_below(message, path)


def _check_below(value: object, path: str) -> None:
    """Refuse keys that JSON would silently turn into text, and nesting that could not be read back."""
    level: list[tuple[str, object]] = [(path, value)]
    for _ in range(MAX_DEPTH):
        below: list[tuple[str, object]] = []
        for at, item in level:
            if isinstance(item, dict):
                for key, entry in item.items():
                    if not isinstance(key, str):
                        raise InvalidMessage(at, f"the key {key!r} is not text")
                    if isinstance(entry, dict | list | tuple):
                        below.append((f"{at}.{key}", entry))
            elif isinstance(item, list | tuple):
                below += [
                    (f"{at}[{i}]", entry) for i, entry in enumerate(item) if isinstance(entry, dict | list | tuple)
                ]
        if not below:
            return
        level = below
    raise InvalidMessage(path, f"is nested more than {MAX_DEPTH} levels deep, or contains itself")


def _json(value: object, field: str) -> str:
    try:
        return json_text(value, field)
    except InvalidMessage:
        raise
    except InvalidValue as error:
        raise InvalidMessage(error.field, error.reason) from None
