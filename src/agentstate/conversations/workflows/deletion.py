"""Conversations are deleted, never a branch's history with them unless that was asked for (section 8)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from sqlalchemy import Row

from agentstate.conversations.models import is_running
from agentstate.conversations.records import Deletion
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationChanged, ConversationHasChildren, InvalidValue
from agentstate.identity import identifier

Children: TypeAlias = Literal["refuse", "keep", "cascade"]


def delete_conversation(work: UnitOfWork, key: str, *, children: Children = "refuse") -> Deletion:
    """Delete a conversation with its turns, and say which went and which became roots; an unknown key is no error.

    While anything below it is at work, nothing is deleted. Otherwise `children` decides about the branches that
    continue it: "refuse" deletes nothing, "keep" gives each a copy of what it inherits, "cascade" deletes all of it.
    Sub-agents' conversations become roots unless they are deleted too. Raises `ConversationHasChildren` (RT-04).
    """
    if children not in ("refuse", "keep", "cascade"):
        raise InvalidValue("children", f"{children!r} is not one of refuse, keep, cascade")
    conversations, turns = Conversations(work), Turns(work)
    row = conversations.find_row(identifier(key, "key"))
    if row is None:
        return Deletion((), ())
    family, line = conversations.list_descendants(key), turns.line(key)
    ancestors = {owner for owner, _ in line if owner != key} | {row.parent_key or key}
    conversations.lock([key, *(below.key for below in family), *ancestors])
    if not conversations.exists(key):
        return Deletion((), ())  # somebody else was quicker
    _require_unchanged(work, key, family, line)

    running = sorted(row.key for row in family if is_running(row.status, branch=row.inherited_seq is not None))
    branches = sorted(row.key for row in family if row.parent_key == key and row.inherited_seq is not None)
    if running or (branches and children == "refuse"):
        raise ConversationHasChildren(key, branches, running)
    deleted = [key]
    detached: list[str] = []
    if children == "cascade":
        deleted += sorted(row.key for row in family)
    else:
        for branch in branches:
            turns.copy_inherited(branch)
            conversations.end_inheritance(branch)
        detached = conversations.detach(key)
    conversations.delete_many(deleted)
    turns.release(sorted(ancestors - {key}))  # they kept turns for what is gone, its fork point at least
    return Deletion(tuple(deleted), tuple(detached))


def _require_unchanged(work: UnitOfWork, key: str, family: list[Row[Any]], line: list[tuple[str, int]]) -> None:
    """Look again at what was locked: somebody may have been quicker (PG-02)."""
    before = ({tuple(row) for row in family}, set(line))
    now = ({tuple(row) for row in Conversations(work).list_descendants(key)}, set(Turns(work).line(key)))
    if before != now:
        seen, found = (", ".join(sorted(row[0] for row in rows)) for rows, _ in (before, now))
        raise ConversationChanged(key, seen, found)
