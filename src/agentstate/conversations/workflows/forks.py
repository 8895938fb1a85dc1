"""Conversations fork, and sub-agents report back, each time in the caller's one transaction.

A fork copies nothing: a branch knows up to which turn it sees its parent (section 5). There is no merge: a report is an
ordinary turn of the conductor's, in the voice of a user, that says where it comes from (section 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentstate.conversations.messages import meta_text
from agentstate.conversations.models import (
    ACTIVE,
    COMPLETED,
    ENDED,
    Conversation,
    TurnKind,
    effective_summary,
    fork_key,
    new_turn_id,
    subagent_key,
    task_id,
)
from agentstate.conversations.records import Appended, Message
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.workflows.turns import append, change
from agentstate.db.types import plain_text
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationEnded, ConversationExists, ConversationNotFound, InvalidValue
from agentstate.identity import identifier


def fork(
    work: UnitOfWork,
    parent_key: str,
    child_key: str,
    *,
    label: str = "",
    inherit: bool = False,
    at_seq: int | None = None,
    meta: dict[str, Any] | None = None,
) -> Conversation:
    """Make a conversation that comes from another one, and note in the parent, as a turn of kind 2, where it left.

    Without `inherit` the child starts empty: a sub-agent. With it the child is a branch: it sees the parent's history
    up to the fork point, or up to `at_seq` to start earlier, and nothing that the parent does later changes what it
    sees. Nothing is copied, whatever the parent's length. `meta` is kept with the fork point.

    Raises `ConversationNotFound` for the parent, `ConversationExists` for the child, and `InvalidValue`; then neither
    side has changed (SE-08, SE-09).
    """
    identifier(parent_key, "parent_key")
    identifier(child_key, "child_key")
    plain_text(label, "label")
    _check_at_seq(at_seq, inherit)
    meta_text(meta)  # so that what is refused is named by its own place
    note = {**(meta or {}), "child": child_key, "inherit": bool(inherit)} | (
        {} if at_seq is None else {"at_seq": at_seq}
    )
    point = {
        "id": new_turn_id(work.now),
        "conversation_key": parent_key,
        "kind": int(TurnKind.FORK_POINT),
        "message_count": 0,
        "origin_key": None,
        "summary": None,
        "author": "",
        "created_at": work.now,
        "meta": meta_text(note),
        "messages": "[]",
    }

    conversations = Conversations(work)
    parent = conversations.find_row(parent_key, lock=True)
    if parent is None:
        raise ConversationNotFound(parent_key)
    child = Conversation(
        key=child_key, parent_key=parent_key, fork_turn_id=point["id"], label=label, status=ACTIVE, next_seq=1
    )
    if inherit:
        if at_seq is not None and not parent.compacted_seq <= at_seq < parent.next_seq:
            raise InvalidValue(
                "at_seq",
                f"{at_seq} is not between {parent.compacted_seq}, up to which {parent_key!r} is compacted, "
                f"and its last turn, {parent.next_seq - 1}",
            )
        child.inherited_seq = parent.next_seq if at_seq is None else at_seq
        child.next_seq = child.inherited_seq + 1
        child.compacted_seq = parent.compacted_seq
        child.inherited_summary = effective_summary(parent.inherited_summary, parent.summary) or None
    made = conversations.add(child)
    Turns(work).add({**point, "seq": conversations.take_seq(parent_key, ended=True)})
    return made


def fork_to_free_key(work: UnitOfWork, parent_key: str, *, label: str = "", inherit: bool = False) -> Conversation:
    """Fork a conversation to its usual key, `<parent>:fork:<UTC second>`, with -2, -3 … if that is taken; as `fork`."""
    usual = candidate = fork_key(parent_key, work.now)
    number = 1
    while True:
        try:
            return fork(work, parent_key, candidate, label=label, inherit=inherit)
        except ConversationExists:
            number += 1
            candidate = f"{usual}-{number}"


def spawn(
    work: UnitOfWork,
    conductor_key: str,
    task_id: str,
    *,
    label: str = "",
    key: str | None = None,
    inherit: bool = False,
) -> str:
    """Fork a conversation for a sub-agent that works on a task, and return its key, `subagent:<task>` if none is given.

    Raises `ConversationExists` when the task has one already: a new task is not piled onto an old one.
    """
    identifier(task_id, "task_id")
    child = fork(
        work,
        conductor_key,
        subagent_key(task_id) if key is None else key,
        label=label or task_id,
        inherit=inherit,
        meta={"task_id": task_id},
    )
    return child.key


def record_turn(work: UnitOfWork, key: str, messages: Sequence[Message], *, turn_id: str | None = None) -> Appended:
    """Store a normal turn of a sub-agent; as `append`."""
    return append(work, key, messages, turn_id=turn_id)


def complete(work: UnitOfWork, key: str, status: str = COMPLETED) -> None:
    """End a conversation; ending it the same way again changes nothing.

    Raises `InvalidValue` for a status that is no end, `ConversationNotFound`, and `ConversationEnded` when it has
    ended another way.
    """
    if _has_to_end(work, key, status):
        change(work, key, status=status)


def _has_to_end(work: UnitOfWork, key: str, status: str) -> bool:
    """Return whether the conversation is not ended that way yet; raises what `complete` raises."""
    if identifier(status, "status") not in ENDED:
        raise InvalidValue("status", f"{status!r} is no end; one of {', '.join(sorted(ENDED))} is")
    row = Conversations(work).find_row(key, lock=True)
    if row is None:
        raise ConversationNotFound(identifier(key, "key"))
    if row.status in ENDED and row.status != status:
        raise ConversationEnded(key, row.status)
    return bool(row.status != status)


def report(
    work: UnitOfWork,
    conductor_key: str,
    origin_key: str,
    text: str,
    *,
    author: str | None = None,
    turn_id: str | None = None,
) -> Appended:
    """Tell the conductor what a sub-agent found, as a user would, signed with its task unless `author` is given."""
    return _say(work, TurnKind.REPORT, conductor_key, origin_key, text, author, turn_id)


def ask(
    work: UnitOfWork,
    conductor_key: str,
    origin_key: str,
    text: str,
    *,
    author: str | None = None,
    turn_id: str | None = None,
) -> Appended:
    """Put a sub-agent's question to the conductor; as `report`."""
    return _say(work, TurnKind.QUESTION, conductor_key, origin_key, text, author, turn_id)


def submit_plan(
    work: UnitOfWork,
    conductor_key: str,
    origin_key: str,
    text: str,
    *,
    author: str | None = None,
    turn_id: str | None = None,
) -> Appended:
    """Show the conductor a sub-agent's plan; as `report`."""
    return _say(work, TurnKind.PLAN_SUBMIT, conductor_key, origin_key, text, author, turn_id)


def finish(
    work: UnitOfWork, key: str, status: str, conductor_key: str, text: str, *, turn_id: str | None = None
) -> Appended:
    """End a sub-agent's conversation and report to its conductor, both or neither; returns the report's place.

    `turn_id` makes it safe to repeat, as in `append`. Raises what `complete` and `report` raise.
    """
    Conversations(work).lock([identifier(key, "key"), identifier(conductor_key, "conductor_key")])
    # What can be refused comes first: a caller who catches the error keeps a unit in which nothing of this happened.
    has_to_end = _has_to_end(work, key, status)
    reported = report(work, conductor_key, key, text, turn_id=turn_id)
    if has_to_end:
        change(work, key, status=status)
    return reported


def _say(
    work: UnitOfWork, kind: TurnKind, to: str, origin: str, text: str, author: str | None, turn_id: str | None
) -> Appended:
    if not isinstance(text, str):
        raise InvalidValue("text", f"must be text, not {type(text).__name__}")
    signed = task_id(identifier(origin, "origin_key")) if author is None else author
    said = [{"role": "user", "content": text}]
    return append(work, to, said, turn_id=turn_id, kind=kind, origin_key=origin, author=signed)


def _check_at_seq(at_seq: int | None, inherit: bool) -> None:
    if at_seq is None:
        return
    if isinstance(at_seq, bool) or not isinstance(at_seq, int):
        raise InvalidValue("at_seq", f"must be a seq, a whole number, not {at_seq!r}")
    if not inherit:
        raise InvalidValue("at_seq", "only a branch (inherit=True) starts at a turn of its parent")
