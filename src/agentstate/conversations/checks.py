"""What only raw SQL can do to conversations and turns, as findings of a look at the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, func, select

from agentstate.conversations.messages import is_messages
from agentstate.conversations.repositories.line import CONVERSATIONS, TURNS
from agentstate.db.health.findings import Finding, counted, some
from agentstate.db.health.rows import as_stored
from agentstate.db.uow import UnitOfWork

_KEY, _PARENT_KEY = CONVERSATIONS.c.key, CONVERSATIONS.c.parent_key
_PARENT = CONVERSATIONS.alias("parent")
_NAMED = 3

_HIGHEST = select(func.max(TURNS.c.seq)).where(TURNS.c.conversation_key == _KEY).scalar_subquery()
_HAS_PARENT = select(_PARENT.c.key).where(_PARENT.c.key == _PARENT_KEY).correlate(CONVERSATIONS).exists()


def turn_problem(values: Mapping[str, Any]) -> str | None:
    """Return why the messages or the meta of a turn, which are JSON, are not what a turn holds; None if they are."""
    if not is_messages(values["messages"]):
        return "messages: not a list of messages"
    if values["meta"] is not None and not isinstance(values["meta"], dict):
        return "meta: not an object"
    return None


def branches_without_parent(work: UnitOfWork) -> list[Finding]:
    """Return the branches whose inherited history is gone: `inherited_seq` says there is one, and no parent has it."""
    return _found(
        work,
        CONVERSATIONS.c.inherited_seq.is_not(None) & ~_HAS_PARENT,
        ("branch has", "branches have"),
        "lost the conversation that its history is in",
        "restore it from a backup, or accept the loss: UPDATE conversations SET inherited_seq = NULL WHERE key = …",
    )


def seqs_used_up(work: UnitOfWork) -> list[Finding]:
    """Return the conversations whose `next_seq` is taken already, so that no turn can be appended."""
    return _found(
        work,
        (CONVERSATIONS.c.next_seq <= _HIGHEST) | (CONVERSATIONS.c.next_seq <= CONVERSATIONS.c.inherited_seq),
        ("conversation takes", "conversations take"),
        "no more turns, because next_seq is not above the highest seq",
        "after a backup: UPDATE conversations SET next_seq = (highest seq, or inherited_seq, + 1) WHERE key = …",
    )


def _found(work: UnitOfWork, wrong: ColumnElement[bool], noun: tuple[str, str], what: str, do: str) -> list[Finding]:
    rows = int(work.connection.execute(select(func.count()).select_from(CONVERSATIONS).where(wrong)).scalar_one())
    if not rows:
        return []
    key = as_stored(work.connection, _KEY)
    keys = work.connection.execute(select(key).where(wrong).order_by(_KEY).limit(_NAMED)).scalars().all()
    return [Finding("conversations", "error", f"{counted(rows, *noun)} {what}: {some(keys, rows)}", do)]
