"""Conversations as plain values, without SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""An object with a string `role`; `tool_calls` and `tool_call_id` are understood, every other key is kept."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One stored turn. `kind` is a `TurnKind`, or the plain number that a newer version wrote."""

    id: str
    conversation_key: str
    seq: int
    kind: int
    message_count: int
    origin_key: str | None
    summary: str | None
    author: str
    created_at: datetime
    meta: dict[str, Any] | None
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """One stored turn without its body; `origin_gone` says that the conversation it reports from is not here."""

    id: str
    conversation_key: str
    seq: int
    kind: int
    message_count: int
    origin_key: str | None
    origin_gone: bool
    summary: str | None
    author: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a turn is stored; `created` is False when it was there already, under the same id."""

    turn_id: str
    seq: int
    created: bool


@dataclass(frozen=True, slots=True)
class Repairs:
    """What was done to a list of messages so that every tool call has its result and every result its call."""

    orphan_results: int = 0
    moved_results: int = 0
    aborted_calls: int = 0
    dropped_calls: int = 0

    @property
    def total(self) -> int:
        """How many repairs there were in all."""
        return self.orphan_results + self.moved_results + self.aborted_calls + self.dropped_calls


@dataclass(frozen=True, slots=True)
class ProviderView:
    """What may be sent to a model: summary first, every call paired. `last_seq` is the newest turn in it, or 0."""

    key: str
    messages: list[Message]
    repairs: Repairs
    summary: str
    compacted_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did: the boundary asked for and the one taken, turns newly hidden, rows deleted.

    `summary` is what stands for the hidden turns from now on. `turns` 0 and the boundary where it was: nothing could
    be hidden.
    """

    key: str
    requested_seq: int
    up_to_seq: int
    turns: int
    deleted: int
    summary: str


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a summariser needs: the messages to summarise, and the earlier summary that goes on standing before them."""

    key: str
    up_to_seq: int
    expected_compacted_seq: int
    summary: str
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Deletion:
    """The keys that a deletion removed, and those of the children that it made roots. True if something was there."""

    deleted: tuple[str, ...]
    detached: tuple[str, ...]

    def __bool__(self) -> bool:
        """Return whether there was a row to delete."""
        return bool(self.deleted)


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """One conversation as lists show it; `turn_count` counts its own visible turns, fork points included."""

    key: str
    short_key: str
    parent_key: str | None
    fork_turn_id: str | None
    status: str
    label: str
    summary: str
    created_at: datetime
    updated_at: datetime
    compacted_seq: int
    inherited_seq: int | None
    inherited_summary: str | None
    imported_at: datetime | None
    turn_count: int


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """A part of a list; `next_cursor` asks for the part after it, None at the end."""

    items: tuple[ConversationInfo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ConversationDetail:
    """One conversation with its lineage (itself first, then what it inherits from, nearest first) and its history."""

    conversation: ConversationInfo
    lineage: tuple[str, ...]
    turns: tuple[TurnInfo, ...]


@dataclass(frozen=True, slots=True)
class LegacySession:
    """One conversation as the original's callers know it; `messages` are a copy, unsaved ones included."""

    key: str
    messages: list[Message]
    summary: str
    created: datetime
    updated: datetime


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune did, or would do in a dry run.

    `candidates` are the conversations unused since `cutoff` and those whose last use cannot be read; `deleted` plus
    the sum of `kept` (by reason) is always `candidates`. `roots` names up to 100 roots per reason, and under `deleted`.
    """

    dry_run: bool
    cutoff: datetime
    candidates: int
    deleted: int
    deleted_turns: int
    kept: dict[str, int]
    roots: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ImportEntry:
    """What became of one file, or one conversation of a database.

    `outcome` is imported, already, skipped, conflict or failed, and `reason` says why where that is not plain. `flags`
    name what was guessed or mended. `renamed` is False when the source could not be renamed, None when that was not
    tried.
    """

    source: str
    key: str | None
    outcome: str
    reason: str = ""
    turns: int = 0
    messages: int = 0
    flags: tuple[str, ...] = ()
    orphan_results: int = 0
    aborted_calls: int = 0
    renamed: bool | None = None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or would do in a dry run, entry by entry."""

    entries: tuple[ImportEntry, ...] = field(default=())
    dry_run: bool = False

    def _count(self, outcome: str) -> int:
        return sum(entry.outcome == outcome for entry in self.entries)

    @property
    def imported(self) -> int:
        """How many conversations came in."""
        return self._count("imported")

    @property
    def already(self) -> int:
        """How many were here already."""
        return self._count("already")

    @property
    def skipped(self) -> int:
        """How many entries were no sessions, by their name or kind."""
        return self._count("skipped")

    @property
    def conflicts(self) -> int:
        """How many have a key under which something else is stored."""
        return self._count("conflict")

    @property
    def failed(self) -> int:
        """How many could not be read."""
        return self._count("failed")

    @property
    def not_renamed(self) -> int:
        """How many sources were brought in and could not be renamed."""
        return sum(entry.renamed is False for entry in self.entries)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to look at: no conflict and no failure."""
        return not self.conflicts and not self.failed
