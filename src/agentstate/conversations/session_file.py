"""What a session file says: one of the original program's, or an export of ours, ready to be stored.

Strict, because a file that was cut or written by something else must not pass for a conversation (IM-05): of two values
of one key none is picked (VA-06), and a number that JSON cannot hold is no number. Nothing here touches files.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Any

from agentstate.conversations.incoming import CHARACTERS_REPLACED, IncomingConversation, IncomingTurn, mended_text
from agentstate.conversations.messages import messages_text, meta_text
from agentstate.conversations.models import ACTIVE, MAX_TURN_BYTES, TurnKind
from agentstate.conversations.pairing import pair, turn_starts
from agentstate.conversations.records import Repairs
from agentstate.conversations.times import TIME_GUESSED, lifetime, read_time
from agentstate.db.types import plain_text
from agentstate.errors import InvalidIdentifier, InvalidMessage, InvalidValue, TurnTooLarge
from agentstate.identity import identifier

KEY_FROM_NAME = "key_from_name"
TURNS_IGNORED = "turns_ignored"
SUMMARY_IGNORED = "summary_ignored"

MAX_SEQ = 2**62 - 1
"""A last seq after which there is room for as many next ones as anybody will write."""


class Unusable(Exception):
    """The file is not brought in: `outcome` is skipped or failed, and `reason` a code, with what is known behind it."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A session as it is to be stored, what was guessed or mended, and what a provider's view will have to repair."""

    incoming: IncomingConversation
    flags: tuple[str, ...]
    messages: int
    repairs: Repairs


def parse_session(data: bytes, name: str, mtime: float) -> SessionFile:
    """Return what a file says; `name` is its name, by which it is remembered, `mtime` when it was written (seconds).

    Its key is the one in it; its name counts only where there is none (IM-10). An export's `turns` are used when they
    fit its messages (flag `turns_ignored` otherwise), with `label` and `status`; any other list of messages is divided
    at its `user` messages. A file's `parent_key` is not taken over: a file holds the whole history, and the parent need
    not be here. Raises `Unusable`.
    """
    document = _checked_document(_decoded(data), name)
    flags: list[str] = []
    key = _key(document, name, flags)
    messages = document.pop("messages", None)
    messages = [] if messages is None else messages
    texts = _texts(messages)
    repairs = pair(messages)[1]
    starts = [(start, read_time(messages[start].get("created_at"))) for start in turn_starts(messages)]
    messages.clear()  # the texts are enough from here on, and a large file's messages are larger than it is
    created, updated, guessed = lifetime(read_time(document.get("created")), read_time(document.get("updated")), mtime)
    if guessed:
        flags.append(TIME_GUESSED)
    summary = _summary(document, flags)

    exported = "turns" in document
    turns = _exported_turns(document, texts, created) if exported else None
    if exported and turns is None:
        flags.append(TURNS_IGNORED)
    next_seq = document["next_seq"] if turns is not None else 0
    if turns is None:
        turns = _divided(starts, texts, created)
        next_seq = len(turns) + 1
    incoming = IncomingConversation(
        key=key,
        parent_key=None,
        fork_turn_id=None,
        status=_status(document) if exported else ACTIVE,
        label=_label(document, flags) if exported else "",
        summary=summary,
        created_at=created,
        updated_at=updated,
        next_seq=next_seq,
        compacted_seq=(turns[0].seq if turns else next_seq) - 1,
        imported_from=f"{printable_name(name)}#{sha256(data).hexdigest()}",
        turns=tuple(turns),
    )
    return SessionFile(incoming, tuple(dict.fromkeys(flags)), len(texts), repairs)


def printable_name(name: str) -> str:
    """Return a file's name as text that can be stored and shown; what is not UTF-8 in it becomes U+FFFD."""
    return mended_text(name)


def _decoded(data: bytes) -> Any:
    if not data:
        raise Unusable("failed", "empty_file")
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except UnicodeDecodeError as error:
        raise Unusable("failed", f"not_utf8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Unusable("failed", f"not_json: {error.msg}, line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise Unusable("failed", "not_json: nested too deeply") from None
    except ValueError:  # Python converts no integer of more digits than sys.get_int_max_str_digits()
        raise Unusable("failed", "bad_number: an integer with too many digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise Unusable("failed", f"duplicate_key: {mended_text(twice)!r}")
    return found


def _constant(name: str) -> Any:
    raise Unusable("failed", f"bad_number: {name}")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise Unusable("failed", f"bad_number: {text[:40]}")
    return value


def _checked_document(document: Any, name: str) -> dict[str, Any]:
    """Return the document if it is a session; indexes and metadata are told by name and content (IM-04)."""
    found = document if isinstance(document, dict) else {}
    if name.endswith(".meta.json") and "messages" not in found:
        raise Unusable("skipped", "metadata")
    if name in ("index.json", "sessions.json") and "key" not in found and "messages" not in found:
        raise Unusable("skipped", "index")
    if not isinstance(document, dict):
        raise Unusable("failed", "not_an_object")
    if "key" not in document and "messages" not in document:
        raise Unusable("failed", "not_a_session")
    return document


def _key(document: dict[str, Any], name: str, flags: list[str]) -> str:
    key = document.get("key")
    if key is None or key == "":
        key = name.removesuffix(".json")
        flags.append(KEY_FROM_NAME)
    try:
        return identifier(key, "key")
    except InvalidIdentifier as error:
        raise Unusable("failed", f"bad_key: {error.reason}") from None


def _texts(messages: Any) -> list[str]:
    """Return the text of each message as it will be stored, byte for byte what the source says in compact form."""
    if not isinstance(messages, list):
        raise Unusable("failed", "bad_message: messages is not a list")
    texts = []
    for index, message in enumerate(messages):
        try:
            texts.append(messages_text([message])[1:-1])
        except InvalidMessage as error:
            below = error.path.removeprefix("messages[0]")
            raise Unusable("failed", f"bad_message: messages[{index}]{below} {mended_text(error.reason)}") from None
        except TurnTooLarge as error:
            raise Unusable("failed", f"too_large: messages[{index}] has {error.size} bytes") from None
    return texts


def _summary(document: dict[str, Any], flags: list[str]) -> str:
    summary = document.get("summary")
    if summary is not None and not isinstance(summary, str):
        flags.append(SUMMARY_IGNORED)
    return _mended(summary, flags)


def _label(document: dict[str, Any], flags: list[str]) -> str:
    return _mended(document.get("label"), flags)


def _mended(value: Any, flags: list[str]) -> str:
    text = value if isinstance(value, str) else ""
    mended = mended_text(text)
    if mended != text:
        flags.append(CHARACTERS_REPLACED)
    return mended


def _status(document: dict[str, Any]) -> str:
    try:
        return identifier(document.get("status"), "status")
    except InvalidIdentifier:
        return ACTIVE


def _divided(starts: list[tuple[int, datetime | None]], texts: list[str], created: datetime) -> list[IncomingTurn]:
    """Return turns that begin at these positions, each with the time of its first message, if that has one."""
    ends = [start for start, _ in starts[1:]] + [len(texts)]
    return [
        IncomingTurn(
            id=None,
            seq=seq,
            kind=int(TurnKind.NORMAL),
            message_count=end - start,
            origin_key=None,
            summary=None,
            author="",
            created_at=time or created,
            meta=None,
            messages=_joined(texts[start:end]),
        )
        for seq, ((start, time), end) in enumerate(zip(starts, ends, strict=False), 1)
    ]


def _exported_turns(document: dict[str, Any], texts: list[str], created: datetime) -> list[IncomingTurn] | None:
    """Return the turns that an export lists, or None if they do not fit its messages, or one is no turn."""
    turns: list[IncomingTurn] = []
    position = last = 0
    try:
        for turn in document["turns"]:
            count = _number(turn["message_count"], 0, len(texts) - position)
            last = _number(turn["seq"], last + 1, MAX_SEQ)
            turns.append(_exported_turn(turn, last, texts[position : position + count], created))
            position += count
        _number(document["next_seq"], last + 1, MAX_SEQ + 1)
    except (InvalidValue, KeyError, TypeError):
        return None
    return turns if position == len(texts) else None


def _exported_turn(turn: dict[str, Any], seq: int, texts: list[str], created: datetime) -> IncomingTurn:
    turn_id, origin, summary = turn.get("id"), turn.get("origin_key"), turn.get("summary")
    return IncomingTurn(
        id=None if turn_id is None else identifier(turn_id, "id"),
        seq=seq,
        kind=_number(turn.get("kind", 0), -(2**63), 2**63 - 1),
        message_count=len(texts),
        origin_key=None if origin is None else identifier(origin, "origin_key"),
        summary=None if summary is None else plain_text(summary, "summary"),
        author=plain_text(turn.get("author", ""), "author"),
        created_at=read_time(turn.get("created_at")) or created,
        meta=meta_text(turn.get("meta")),
        messages=_joined(texts),
    )


def _number(value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidValue("number", f"{value!r} is not between {least} and {most}")
    return value


def _joined(texts: list[str]) -> str:
    text = f"[{','.join(texts)}]"
    if len(text) * 4 > MAX_TURN_BYTES and (size := len(text.encode())) > MAX_TURN_BYTES:
        raise Unusable("failed", f"too_large: a turn has {size} bytes, and {MAX_TURN_BYTES} are allowed")
    return text
