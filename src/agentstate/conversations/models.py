"""Conversations: what one conversation and one turn are, and the rules about one row."""

from __future__ import annotations

import os
from datetime import datetime
from enum import IntEnum
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from agentstate.db.base import Base
from agentstate.db.types import CheckedText, Identifier, Int64, JsonText, UtcText, aware
from agentstate.errors import InvalidValue

ACTIVE = "active"
CLARIFYING = "clarifying"
REVIEW = "review"
EXECUTING = "executing"
COMPLETED = "completed"
FAILED = "failed"
CANCELED = "canceled"
ARCHIVED = "archived"

ENDED = frozenset({COMPLETED, FAILED, CANCELED, ARCHIVED})
"""The statuses of a conversation that takes no more turns. Any other text is legal too, and counts as not ended."""

MAX_TURN_BYTES = 32 * 1024 * 1024
"""Bytes of UTF-8 that the stored messages of one turn may have (VA-07)."""


class TurnKind(IntEnum):
    """What a turn is; the numbers are those of the original's database, which users bring along."""

    NORMAL = 0
    REPORT = 1
    FORK_POINT = 2
    QUESTION = 10
    PLAN_SUBMIT = 11


HEARSAY = frozenset({TurnKind.REPORT, TurnKind.QUESTION, TurnKind.PLAN_SUBMIT})
"""Kinds that say what another agent said: with an origin, and never with a system's authority (SE-10)."""


AUTHORITATIVE = frozenset({"system", "developer"})
"""Roles that a model obeys."""


class Conversation(Base):
    """One line of turns, and what it inherits from the conversation that it was forked from.

    A branch sees its parent's turns up to `inherited_seq`; turns up to `compacted_seq` are hidden behind the
    summaries. `next_seq` only grows: a seq is never used twice. `fork_turn_id` names the parent's turn at which this
    one left; it is no foreign key, since that turn may be gone.
    """

    __tablename__ = "conversations"
    __table_args__ = (
        CheckConstraint("next_seq >= 1", "next_seq"),
        CheckConstraint("compacted_seq >= 0", "compacted_seq"),
        CheckConstraint("compacted_seq < next_seq", "compacted_below_next"),
        Index(None, "parent_key"),
        Index(None, "updated_at"),
    )

    key: Mapped[str] = mapped_column(Identifier("key"), primary_key=True)
    parent_key: Mapped[str | None] = mapped_column(
        Identifier("parent_key", optional=True), ForeignKey("conversations.key", ondelete="SET NULL")
    )
    fork_turn_id: Mapped[str | None] = mapped_column(CheckedText("fork_turn_id", optional=True))
    status: Mapped[str] = mapped_column(Identifier("status"), server_default=text("'active'"))
    label: Mapped[str] = mapped_column(CheckedText("label"), server_default=text("''"))
    summary: Mapped[str] = mapped_column(CheckedText("summary"), server_default=text("''"))
    created_at: Mapped[datetime] = mapped_column(UtcText("created_at"))
    updated_at: Mapped[datetime] = mapped_column(UtcText("updated_at"))
    next_seq: Mapped[int] = mapped_column(Int64("next_seq"), server_default=text("1"))
    compacted_seq: Mapped[int] = mapped_column(Int64("compacted_seq"), server_default=text("0"))
    inherited_seq: Mapped[int | None] = mapped_column(Int64("inherited_seq"))
    inherited_summary: Mapped[str | None] = mapped_column(CheckedText("inherited_summary", optional=True))
    imported_at: Mapped[datetime | None] = mapped_column(UtcText("imported_at"))
    imported_from: Mapped[str | None] = mapped_column(CheckedText("imported_from", optional=True))


class Turn(Base):
    """A list of messages, stored whole or not at all; never edited, and never deleted singly.

    `seq` is its place in its conversation, the only order of turns. `origin_key` names the conversation that a report
    comes from, which may be gone. `messages` is the last column: SQLite reads the others without walking a long body.
    """

    __tablename__ = "turns"
    __table_args__ = (CheckConstraint("seq >= 1", "seq"), UniqueConstraint("conversation_key", "seq"))

    id: Mapped[str] = mapped_column(Identifier("id"), primary_key=True)
    conversation_key: Mapped[str] = mapped_column(
        Identifier("conversation_key"), ForeignKey("conversations.key", ondelete="CASCADE")
    )
    seq: Mapped[int] = mapped_column(Int64("seq"))
    kind: Mapped[int] = mapped_column(Int64("kind"), server_default=text("0"))
    message_count: Mapped[int] = mapped_column(Int64("message_count"))
    origin_key: Mapped[str | None] = mapped_column(Identifier("origin_key", optional=True))
    summary: Mapped[str | None] = mapped_column(CheckedText("summary", optional=True))
    author: Mapped[str] = mapped_column(CheckedText("author"), server_default=text("''"))
    created_at: Mapped[datetime] = mapped_column(UtcText("created_at"))
    meta: Mapped[dict[str, Any] | None] = mapped_column(JsonText("meta"))
    messages: Mapped[list[dict[str, Any]]] = mapped_column(JsonText("messages"))


def known_kind(number: int) -> int:
    """Return the kind as its `TurnKind`; a number that a newer version wrote comes back as it is."""
    try:
        return TurnKind(number)
    except ValueError:
        return number


def checked_kind(value: object) -> TurnKind:
    """Return the kind if a turn of it may be written; raises `InvalidValue` for an unknown one."""
    try:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        return TurnKind(value)
    except ValueError:
        kinds = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in TurnKind)
        raise InvalidValue("kind", f"{value!r} is not one of {kinds}") from None


def new_turn_id(now: datetime) -> str:
    """Return a new id: a UUID of version 7, which begins with the milliseconds of `now` (aware).

    Ids made later sort later, to the millisecond, which keeps an index of them compact; nothing is ordered by it.
    """
    milliseconds = max(0, int(aware(now, "now").timestamp() * 1000))
    random = int.from_bytes(os.urandom(10))
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64
    return str(UUID(int=value | 0b10 << 62 | random & (1 << 62) - 1))


def is_running(status: str, *, branch: bool) -> bool:
    """Return whether a child is at work: not ended; a branch that is only `active` is just there."""
    return status not in ENDED and not (branch and status == ACTIVE)


def short_key(key: str) -> str:
    """Return how lists call a conversation: `agent:ada:main` is `main`; two parts or fewer are kept whole."""
    parts = key.split(":", 2)
    return parts[2] if len(parts) > 2 else key


def task_id(key: str) -> str:
    """Return the part of a key after its last `:`, by which a sub-agent signs."""
    return key.rpartition(":")[2]


def main_key(agent: str) -> str:
    """Return the key of an agent's main conversation."""
    return f"agent:{agent}:main"


def subagent_key(task: str) -> str:
    """Return the key of the conversation of a sub-agent that works on a task."""
    return f"subagent:{task}"


def fork_key(key: str, now: datetime) -> str:
    """Return the usual key of a fork made at `now` (aware): the parent's, `:fork:` and the second in UTC."""
    return f"{key}:fork:{aware(now, 'now'):%Y%m%dT%H%M%S}"


def effective_summary(inherited: str | None, own: str) -> str:
    """Return what stands for everything hidden: the inherited summary and the own one, as far as there are any."""
    return "\n\n".join(part for part in (inherited or "", own) if part.strip())
