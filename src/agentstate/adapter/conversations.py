"""What agent scripts call for conversations: turns, forks, reports, compaction, lists.

What is returned is JSON as it is: instants are 24-character UTC text, such as `2026-11-29T11:00:00.000Z`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from agentstate._lazy import LazyModule
from agentstate.adapter.handles import Target, open_database
from agentstate.errors import InvalidValue

if TYPE_CHECKING:
    from agentstate.conversations import history as _history
    from agentstate.conversations import importer as _importer
    from agentstate.conversations import importer_db as _importer_db
    from agentstate.conversations import prune as _prune
    from agentstate.conversations import repositories as _rows
    from agentstate.conversations import views as _views
    from agentstate.conversations import workflows as _workflows
    from agentstate.conversations.records import Message
else:
    _history = LazyModule("agentstate.conversations.history")
    _importer = LazyModule("agentstate.conversations.importer")
    _importer_db = LazyModule("agentstate.conversations.importer_db")
    _prune = LazyModule("agentstate.conversations.prune")
    _rows = LazyModule("agentstate.conversations.repositories")
    _views = LazyModule("agentstate.conversations.views")
    _workflows = LazyModule("agentstate.conversations.workflows")


# --- writing ---------------------------------------------------------------------------------------------------------


def create_conversation(key: str, label: str = "", *, database: Target = None) -> None:
    """Make an empty conversation. `label` is its name for people. Raises `ConversationExists`."""
    with open_database(database).write() as work:
        _workflows.create(work, key, label=label)


def append_turn(
    key: str,
    messages: Sequence[Message],
    *,
    turn_id: str | None = None,
    author: str = "",
    meta: dict[str, Any] | None = None,
    database: Target = None,
) -> int:
    """Store one turn, whole or not at all, at the end of a conversation; return its seq.

    `messages` are dicts with a `role`, and anything else that JSON can hold. With a `turn_id` of the caller's the call
    is safe to repeat: the same turn is stored once, and its seq returned (SE-11). `author` and `meta` (an object) are
    kept with it. Raises `ConversationNotFound`, `ConversationEnded`, `TurnConflict`, `EmptyTurn`, `InvalidMessage`,
    `TurnTooLarge`.
    """
    with open_database(database).write() as work:
        return _workflows.append(work, key, messages, turn_id=turn_id, author=author, meta=meta).seq


def fork_conversation(
    key: str, child: str | None = None, *, label: str = "", inherit: bool = False, database: Target = None
) -> str:
    """Fork a conversation and return the child's key, `<key>:fork:<UTC second>` if `child` is not given.

    With `inherit` the child is a branch, which goes on from here and sees everything said so far; without it starts
    empty, for a sub-agent. Raises `ConversationNotFound` and `ConversationExists`; then neither side has changed.
    """
    with open_database(database).write() as work:
        if child is None:
            return _workflows.fork_to_free_key(work, key, label=label, inherit=inherit).key
        return _workflows.fork(work, key, child, label=label, inherit=inherit).key


def report_turn(
    conductor: str,
    origin: str,
    text: str,
    *,
    kind: Literal["report", "question", "plan"] = "report",
    author: str | None = None,
    database: Target = None,
) -> int:
    """Tell a conductor what the conversation `origin` found, asks or plans, in the voice of a user; return the seq.

    `author` is the last part of `origin` if it is not given. Raises `ConversationNotFound`, `ConversationEnded`.
    """
    say = {"report": _workflows.report, "question": _workflows.ask, "plan": _workflows.submit_plan}.get(kind)
    if say is None:
        raise InvalidValue("kind", f"{kind!r} is not one of report, question, plan")
    with open_database(database).write() as work:
        return say(work, conductor, origin, text, author=author).seq


def finish_subagent(key: str, status: str, conductor: str, text: str, *, database: Target = None) -> int:
    """End a sub-agent's conversation and report to its conductor, both or neither; return the report's seq.

    `status` is completed, failed, canceled or archived. Raises `ConversationNotFound`, `ConversationEnded`.
    """
    with open_database(database).write() as work:
        return _workflows.finish(work, key, status, conductor, text).seq


def set_conversation_status(key: str, status: str, *, database: Target = None) -> None:
    """Set the status; completed, failed, canceled and archived take no more turns. Raises `ConversationNotFound`."""
    with open_database(database).write() as work:
        _workflows.set_status(work, key, status)


def set_conversation_summary(key: str, text: str, *, database: Target = None) -> None:
    """Replace the summary that stands for the compacted turns, `''` for none. Raises `ConversationNotFound`."""
    with open_database(database).write() as work:
        _workflows.set_summary(work, key, text)


def compact_conversation(
    key: str, up_to_seq: int, summary: str, *, expected_compacted_seq: int | None, database: Target = None
) -> dict[str, Any]:
    """Hide the turns up to `up_to_seq` behind a summary; return what was done (see `Compaction`).

    `expected_compacted_seq` is the `compacted_seq` of the view that was summarised, None for "whatever it is"; another
    one stored raises `StaleCompaction`. Raises `EmptySummary` and `ConversationNotFound`.
    """
    with open_database(database).write() as work:
        done = _history.compact(work, key, up_to_seq, summary, expected_compacted_seq=expected_compacted_seq)
    return _plain(done)


def delete_conversation(
    key: str, children: Literal["refuse", "keep", "cascade"] = "refuse", *, database: Target = None
) -> dict[str, list[str]]:
    """Delete a conversation; return the keys `deleted` and those `detached`, that are roots now. Unknown: both empty.

    `children` decides about the branches that continue it: "refuse" deletes nothing, "keep" gives each a copy of what
    it inherits, "cascade" deletes everything below. Raises `ConversationHasChildren` (RT-04).
    """
    with open_database(database).write() as work:
        done = _workflows.delete_conversation(work, key, children=children)
    return {"deleted": list(done.deleted), "detached": list(done.detached)}


# --- reading ---------------------------------------------------------------------------------------------------------


def load_messages(key: str, *, database: Target = None) -> list[Message]:
    """Return everything said in the conversation's history, as it was stored. Raises `ConversationNotFound`."""
    with open_database(database).read() as work:
        return _history.messages(work, key)


def load_provider_messages(key: str, *, database: Target = None) -> dict[str, Any]:
    """Return what may be sent to a model under `messages`: the summary first, every tool call with its result.

    Beside it: `key`, `repairs`, `summary`, `compacted_seq`, `last_seq`. Raises `ConversationNotFound`.
    """
    with open_database(database).read() as work:
        return _plain(_history.provider_messages(work, key))


def load_turns(key: str, since_seq: int = 0, *, database: Target = None) -> list[dict[str, Any]]:
    """Return the conversation's own turns with a seq above `since_seq`, by seq; an unknown key has none.

    A poller that remembers the last seq it saw misses nothing that is appended later.
    """
    with open_database(database).read() as work:
        return [_plain(turn) for turn in _rows.Turns(work).list_turns(key, since_seq)]


def list_conversations(*, database: Target = None, **filters: Any) -> dict[str, Any]:
    """Return `conversations`, a list of objects, and `next_cursor`, None at the end.

    `filters` are `prefix`, `contains`, `parent`, `roots`, `status`, `sort` (key, created, updated), `descending`,
    `limit` (1 to 1,000) and `cursor`, as in `agentstate.conversations.views.list_conversations`.
    """
    unknown = sorted(filters.keys() - _FILTERS)
    if unknown:
        raise InvalidValue(unknown[0], f"is no filter; there are {', '.join(sorted(_FILTERS))}")
    with open_database(database).read() as work:
        page = _views.list_conversations(work, **filters)
    return {"conversations": [_plain(item) for item in page.items], "next_cursor": page.next_cursor}


_FILTERS = {"prefix", "contains", "parent", "roots", "status", "sort", "descending", "limit", "cursor"}


def conversation_graph(*, database: Target = None) -> dict[str, Any]:
    """Return all conversations as `nodes` and the forks between them as `edges`."""
    with open_database(database).read() as work:
        return _views.conversation_graph(work).as_dict()


# --- many at once ----------------------------------------------------------------------------------------------------


def prune_conversations(days: float = 7, dry_run: bool = False, *, database: Target = None) -> dict[str, Any]:
    """Delete whole trees of conversations that nobody used for so many days; return a report (see `PruneReport`).

    With `dry_run` nothing is deleted and the numbers are the same. What is at work, and what was imported and not used
    since, stays.
    """
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 <= days <= 36_500:
        raise InvalidValue("days", f"{days!r} is not a number of days between 0 and 36500")
    report = _plain(_prune.prune(open_database(database), older_than=timedelta(days=days), dry_run=dry_run))
    return report | {"roots": {reason: list(roots) for reason, roots in report["roots"].items()}}


def import_sessions(path: str | os.PathLike[str], dry_run: bool = False, *, database: Target = None) -> dict[str, Any]:
    """Bring in the session files of a directory, or the sessions of the original program's database file.

    Returns the counts and `entries`, one per file or conversation with what became of it. Sources that came in whole
    are renamed to `….json.migrated`; a database is left as it is.
    """
    opened = open_database(database)
    if os.path.isfile(path):
        report = _importer_db.import_session_database(opened, os.fspath(path), dry_run=dry_run)
    else:
        report = _importer.import_sessions(opened, path, dry_run=dry_run)
    names = ("imported", "already", "skipped", "conflicts", "failed", "not_renamed", "complete")
    return {name: getattr(report, name) for name in names} | _plain(report)


def _plain(record: object) -> dict[str, Any]:
    """Return a record as JSON knows it; what callers stored, messages and meta, is handed out as it is."""
    return {name: _plain_value(getattr(record, name)) for name in _names(cast(Any, type(record)))}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _plain_value(value: object) -> object:
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, tuple):
        return [_plain_value(entry) for entry in value]
    return int(value) if isinstance(value, IntEnum) else _plain(value)


_PLAIN = (str, int, bool, list, dict)
