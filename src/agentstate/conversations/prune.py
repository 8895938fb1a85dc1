"""Conversations that nobody has used for a while are deleted, whole trees at a time; what is kept says why (section 9).

The look at what there is holds no lock, and every deletion is a short transaction of its own that looks again: a live
conversation never waits for maintenance longer than one batch takes (LK-07), and none is deleted that was used after
the look.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from agentstate.clock import earlier, monotonic, rest_after
from agentstate.conversations.models import ACTIVE, ENDED, is_running
from agentstate.conversations.records import PruneReport
from agentstate.conversations.repositories import Conversations
from agentstate.conversations.repositories.ages import Ages
from agentstate.conversations.trees import Tree, in_batches, stale_trees
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import AgentStateError, InvalidValue

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called outside any transaction with the conversations dealt with so far, and how many there are to be deleted."""

DELETED = "deleted"
UNKNOWN_TIME = "unknown_time"
PROTECTED = "protected"
STATUS = "status"
IN_USE = "in_use"
IMPORTED = "imported"
CHANGED = "changed"
NOT_REACHED = "not reached"

REASONS = (UNKNOWN_TIME, PROTECTED, STATUS, IN_USE, IMPORTED, CHANGED, NOT_REACHED)
"""Why trees are kept, in the order in which the first that applies is taken."""

BATCH_TURNS = 2_000
MAX_ROOTS = 100


@dataclass(slots=True)
class _Tally:
    """What has become of the trees so far."""

    conversations: Counter[str] = field(default_factory=Counter)
    roots: dict[str, list[str]] = field(default_factory=dict)
    deleted_turns: int = 0

    def note(self, outcome: str, tree: Tree) -> None:
        """Count a tree's candidates under what has become of it."""
        self.conversations[outcome] += tree.candidates
        roots = self.roots.setdefault(outcome, [])
        if len(roots) < MAX_ROOTS:
            roots.append(tree.root.key.encode(errors="surrogateescape").decode(errors="backslashreplace"))
        if outcome == DELETED:
            self.deleted_turns += tree.turns

    def report(self, cutoff: datetime, *, dry_run: bool) -> PruneReport:
        """Return what was counted; only reasons that occurred are in it."""
        return PruneReport(
            dry_run,
            cutoff,
            candidates=self.conversations.total(),
            deleted=self.conversations[DELETED],
            deleted_turns=self.deleted_turns,
            kept={reason: self.conversations[reason] for reason in REASONS if reason in self.conversations},
            roots={name: tuple(self.roots[name]) for name in (DELETED, *REASONS) if name in self.roots},
        )


def prune(
    database: Database,
    *,
    older_than: timedelta = timedelta(days=7),
    dry_run: bool = False,
    protect: Iterable[str] = (),
    include_imported: bool = False,
    now: datetime | None = None,
    on_progress: OnProgress | None = None,
) -> PruneReport:
    """Delete the trees of conversations of which every one was last used more than `older_than` before `now`.

    A tree, that is a conversation and everything forked from it, goes as a whole or not at all (RT-03); last used
    exactly at the cutoff is not before it (RT-01). The report counts the unused conversations of trees that are kept
    under the first reason that applies: `unknown_time`, a time or a row that cannot be read; `protected`, by a key in
    `protect`; `status`, something in it is at work; `in_use`, something was used since; `imported`, brought in and not
    used since, unless `include_imported` (IM-09); `changed`, by somebody else between look and deletion (RT-09). Only
    reasons that occurred are in it.

    `now` (aware) is the current time if it is not given. `dry_run` reports the same and writes nothing, also on a
    handle that cannot write. Raises `InvalidValue`, and what a unit of work raises, such as `DatabaseBusy`: trees that
    were deleted before that stay deleted, and the next prune goes on from there.
    """
    report, error = prune_in_part(
        database,
        older_than=older_than,
        dry_run=dry_run,
        protect=protect,
        include_imported=include_imported,
        now=now,
        on_progress=on_progress,
    )
    if error is not None:
        raise error
    return report


def prune_in_part(
    database: Database,
    *,
    older_than: timedelta,
    dry_run: bool = False,
    protect: Iterable[str] = (),
    include_imported: bool = False,
    now: datetime | None = None,
    batch_turns: int = BATCH_TURNS,
    max_seconds: float | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[PruneReport, AgentStateError | None]:
    """Delete as `prune` does, as far as time and the database allow, and return what was done and what went wrong.

    No batch begins when `max_seconds` have passed since the first; at least one is done. An error ends the deletions,
    too. What was still to be deleted then is in the report as kept, `not reached`. A transaction deletes up to
    `batch_turns` turns. Raises what the look raises, before which nothing was deleted.
    """
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise InvalidValue("older_than", f"must be a timedelta that is not negative, not {older_than!r}")
    protected = _keys(protect)
    with database.read(now=now) as work:
        cutoff = earlier(work.now, older_than)
        ages = Ages(work).list_all()

    tally = _Tally()
    going: list[Tree] = []
    for tree in stale_trees(ages, cutoff):
        reason = _reason_to_keep(tree, cutoff, protected, include_imported)
        if reason is None and not dry_run:
            going.append(tree)
        else:
            tally.note(reason or DELETED, tree)
    error = _delete(database, deque(in_batches(going, batch_turns)), tally, max_seconds, on_progress)
    return tally.report(cutoff, dry_run=dry_run), error


def _delete(
    database: Database,
    batches: deque[list[Tree]],
    tally: _Tally,
    max_seconds: float | None,
    on_progress: OnProgress | None,
) -> AgentStateError | None:
    """Delete trees batch by batch, and note what became of each; return the error that ended it early."""
    began = monotonic()
    done, total = 0, sum(len(tree.members) for batch in batches for tree in batch)
    error: AgentStateError | None = None
    while batches:
        if on_progress is not None:
            on_progress(done, total)
        try:
            with database.write() as work:
                started = monotonic()
                unchanged, changed = _look_again(work, batches[0])
                Conversations(work).delete_many(member.key for tree in unchanged for member in tree.members)
        except AgentStateError as found:
            error = found
            break
        ended = monotonic()
        for tree in unchanged:
            tally.note(DELETED, tree)
        for tree in changed:
            tally.note(CHANGED, tree)
        done += sum(len(tree.members) for tree in batches.popleft())
        if max_seconds is not None and ended - began >= max_seconds:
            break
        if batches:
            rest_after(ended - started)
    for batch in batches:
        for tree in batch:
            tally.note(NOT_REACHED, tree)
    if on_progress is not None and total and error is None:
        on_progress(done, total)
    return error


def _look_again(work: UnitOfWork, batch: list[Tree]) -> tuple[list[Tree], list[Tree]]:
    """Lock trees, and return those to which nothing has happened since they were read, and the others."""
    members = [member for tree in batch for member in tree.members]
    keys = sorted(member.key for member in members)
    Conversations(work).lock(keys)
    found = {age.key: age for age in Ages(work).list_some(keys)}
    children = Ages(work).count_children(keys)
    expected = Counter(member.parent_key for member in members)
    unchanged: list[Tree] = []
    changed: list[Tree] = []
    for tree in batch:
        same = all(
            found.get(member.key) == member and children.get(member.key, 0) == expected[member.key]
            for member in tree.members
        )
        (unchanged if same else changed).append(tree)
    return unchanged, changed


def _reason_to_keep(tree: Tree, cutoff: datetime, protected: frozenset[str], include_imported: bool) -> str | None:
    if any(member.updated_at is None for member in tree.members):
        return UNKNOWN_TIME
    if any(member.key in protected for member in tree.members):
        return PROTECTED
    below = (member for member in tree.members if member is not tree.root)
    if tree.root.status not in {ACTIVE, *ENDED} or any(is_running(age.status, branch=age.inherits) for age in below):
        return STATUS
    if not all(member.is_stale(cutoff) for member in tree.members):
        return IN_USE
    if not include_imported and any(member.is_as_imported() for member in tree.members):
        return IMPORTED
    return None


def _keys(protect: Iterable[str]) -> frozenset[str]:
    if isinstance(protect, str) or not isinstance(protect, Iterable):
        raise InvalidValue("protect", f"must be several keys, such as a list of them, not {protect!r}")
    keys = frozenset(protect)
    for key in keys:
        if not isinstance(key, str):
            raise InvalidValue("protect", f"holds {key!r}, which is no key")  # and would protect nothing
    return keys
