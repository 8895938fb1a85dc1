"""The original program's database is brought in, a tree of conversations at a time, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import cast

from agentstate.conversations.incoming import (
    CHARACTERS_REPLACED,
    BroughtIn,
    Planned,
    bring_in,
    mended_text,
    would_bring_in,
)
from agentstate.conversations.original import Original, Value, decoded, open_original
from agentstate.conversations.original_rows import FoundConversation, read_conversation
from agentstate.conversations.records import ImportEntry, ImportReport
from agentstate.conversations.repositories import Conversations
from agentstate.db.database import Database
from agentstate.errors import InvalidIdentifier, TurnTooLarge
from agentstate.identity import identifier

PARENT_MISSING = "parent_missing"
CYCLE_BROKEN = "cycle_broken"


@dataclass(frozen=True, slots=True)
class _Member:
    """One session of the original and its place in the tree; `reason` names a parent that it cannot keep."""

    rowid: int
    key: str
    parent_key: str | None
    flags: frozenset[str] = frozenset()
    reason: str = ""

    def as_root(self, flag: str) -> _Member:
        """Return it without its parent, which the reason names."""
        return replace(self, parent_key=None, flags=self.flags | {flag}, reason=f"its parent was {self.parent_key!r}")


def import_session_database(
    database: Database,
    path: str | Path,
    *,
    dry_run: bool = False,
    now: datetime | None = None,
    on_progress: Callable[[ImportEntry], None] | None = None,
) -> ImportReport:
    """Bring in every conversation of the original program's database at a path, and report what became of each.

    The file is only read, and nothing is left beside it. Each tree of conversations is one transaction, so that after a
    crash or an error the same call goes on from there. What is here already is recognised and nothing stored is
    replaced; the children of a conflict hang on what is stored under its key. Turns of a session that is gone are
    `skipped` (`no_session`); what fails has the reason `bad_key` or `too_large`.

    A dry run says the same and writes nothing. `now` (aware; None: the current time) is when they were imported.
    `on_progress` is given each entry, once its tree is stored.

    Raises `NotASessionStore` for another file or none, `DatabaseUnavailable` for one that cannot be read or changes
    meanwhile, and what the database raises; every tree that was complete by then stays.
    """
    planned = Planned() if dry_run else None
    entries: list[ImportEntry] = []

    def report(some: Iterable[ImportEntry]) -> None:
        for entry in some:
            entries.append(entry)
            if on_progress is not None:
                on_progress(entry)

    with open_original(path, database.settings.busy_timeout) as original:
        members, unnamed = _members(original)
        for tree in _trees(members):
            found, failed = _read_tree(original, tree)
            outcomes = _store(database, [conversation for _, conversation in found], now, planned)
            report(failed)
            report(_entry(original, *one, brought) for one, brought in zip(found, outcomes, strict=True))
        report(unnamed)
        report(_homeless(original))
    return ImportReport(tuple(entries), dry_run)


def _read_tree(
    original: Original, tree: list[_Member]
) -> tuple[list[tuple[_Member, FoundConversation]], list[ImportEntry]]:
    """Return a tree as it is to be stored, parents first, and the entries of what cannot be."""
    found: list[tuple[_Member, FoundConversation]] = []
    failed: dict[str | None, ImportEntry] = {}
    for member in tree:
        placed = member.as_root(PARENT_MISSING) if member.parent_key in failed else member
        try:
            found.append((placed, read_conversation(original, placed.rowid, placed.key, placed.parent_key)))
        except TurnTooLarge as error:
            reason = f"too_large: a turn has {error.size} bytes, and {error.limit} are allowed"
            failed[member.key] = ImportEntry(original.name, member.key, "failed", reason)
    original.ensure_unchanged()
    return found, list(failed.values())


def _store(
    database: Database, tree: list[FoundConversation], now: datetime | None, planned: Planned | None
) -> list[BroughtIn]:
    """Bring in a tree in one transaction; with `planned`, the memory of a dry run, only say what would become of it."""
    if planned is not None:
        with database.read(now=now) as work:
            return [would_bring_in(work, found.conversation, planned) for found in tree]
    with database.write(now=now) as work:
        Conversations(work).lock(found.conversation.key for found in tree)
        return [bring_in(work, found.conversation) for found in tree]


def _entry(original: Original, member: _Member, found: FoundConversation, brought: BroughtIn) -> ImportEntry:
    conflict = "another conversation is stored under its key" if brought.outcome == "conflict" else ""
    return ImportEntry(
        original.name,
        member.key,
        brought.outcome,
        "; ".join(filter(None, (conflict, member.reason))),
        len(found.conversation.turns),
        found.messages,
        tuple(sorted(member.flags | found.flags | set(brought.flags))),
        found.repairs.orphan_results,
        found.repairs.aborted_calls,
    )


def _homeless(original: Original) -> Iterable[ImportEntry]:
    """Name turns whose session is gone: the original shows them to nobody, and a report must not be silent (RT-09)."""
    for key, turns in original.homeless():
        yield ImportEntry(original.name, mended_text(decoded(key)[0]), "skipped", "no_session", turns=cast(int, turns))


def _members(original: Original) -> tuple[dict[str, _Member], list[ImportEntry]]:
    """Return the sessions by key, and the entries of those whose key cannot be one here."""
    links = original.links()
    members: dict[str, _Member] = {}
    keys: dict[Value, str] = {}
    unnamed: list[ImportEntry] = []
    for rowid, raw, _ in links:
        key, replaced = decoded(raw)
        try:
            if identifier(key, "key") in members:
                raise InvalidIdentifier("key", "another key is the same once U+FFFD stands for what is not UTF-8")
        except InvalidIdentifier as error:
            shown = None if raw is None else mended_text(key)
            unnamed.append(ImportEntry(original.name, shown, "failed", f"bad_key: {error.reason}"))
            continue
        keys[raw] = key
        flags = frozenset({CHARACTERS_REPLACED}) if replaced else frozenset[str]()
        members[key] = _Member(cast(int, rowid), key, None, flags)
    for _, raw, parent in links:
        if raw in keys and parent not in (None, b""):
            there = keys.get(parent)
            member = replace(members[keys[raw]], parent_key=there or decoded(parent)[0])
            members[keys[raw]] = member if there else member.as_root(PARENT_MISSING)
    for key in _smallest_of_cycles(members):
        members[key] = members[key].as_root(CYCLE_BROKEN)
    return members, unnamed


def _smallest_of_cycles(members: dict[str, _Member]) -> list[str]:
    """Return the smallest key of every circle of parents."""
    seen: set[str] = set()
    found: list[str] = []
    for start in members:
        way: list[str] = []
        key: str | None = start
        while key is not None and key not in seen:
            seen.add(key)
            way.append(key)
            key = members[key].parent_key
        if key in way:
            found.append(min(way[way.index(key) :]))
    return found


def _trees(members: dict[str, _Member]) -> Iterable[list[_Member]]:
    """Yield each root with everything below it, parents first; in the order of keys."""
    children: dict[str | None, list[_Member]] = {}
    for key in sorted(members, reverse=True):
        children.setdefault(members[key].parent_key, []).append(members[key])
    for root in reversed(children.get(None, [])):
        tree: list[_Member] = []
        waiting = [root]
        while waiting:
            tree.append(waiting.pop())
            waiting += children.get(tree[-1].key, [])
        yield tree
