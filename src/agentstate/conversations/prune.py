"""Conversations that nobody has used for a while are deleted, whole trees at a time; what is kept says why (section 9).

The look at what there is holds no lock, and every deletion is a short transaction of its own that looks again: a live
conversation never waits for maintenance longer than one batch takes (LK-07), and none is deleted that was used after
the look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from agentstate.clock import monotonic, pause
from agentstate.conversations.models import ACTIVE, ENDED, is_running
from agentstate.conversations.records import PruneReport
from agentstate.conversations.repositories import Conversations
from agentstate.conversations.repositories.ages import Age, Ages
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import InvalidValue

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called outside any transaction with the conversations dealt with so far, and how many there are to be deleted."""

DELETED = "deleted"
UNKNOWN_TIME = "unknown_time"
PROTECTED = "protected"
STATUS = "status"
IN_USE = "in_use"
IMPORTED = "imported"
CHANGED = "changed"

REASONS = (UNKNOWN_TIME, PROTECTED, STATUS, IN_USE, IMPORTED, CHANGED)
"""Why trees are kept, in the order in which the first that applies is taken."""

BATCH_CONVERSATIONS = 200
BATCH_TURNS = 2_000
MAX_ROOTS = 100

_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class _Tree:
    """A root and everything below it; `candidates` of its members are stale or of unknown time."""

    root: Age
    members: list[Age]
    candidates: int
    turns: int


@dataclass(slots=True)
class _Tally:
    """What has become of the trees so far."""

    conversations: Counter[str] = field(default_factory=Counter)
    roots: dict[str, list[str]] = field(default_factory=dict)
    deleted_turns: int = 0

    def note(self, outcome: str, tree: _Tree) -> None:
        self.conversations[outcome] += tree.candidates
        roots = self.roots.setdefault(outcome, [])
        if len(roots) < MAX_ROOTS:
            roots.append(tree.root.key.encode(errors="surrogateescape").decode(errors="backslashreplace"))
        if outcome == DELETED:
            self.deleted_turns += tree.turns

    def report(self, cutoff: datetime, *, dry_run: bool) -> PruneReport:
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
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise InvalidValue("older_than", f"must be a timedelta that is not negative, not {older_than!r}")
    protected = _keys(protect)
    with database.read(now=now) as work:
        cutoff = _before(work.now, older_than)
        ages = Ages(work).list_all()

    tally = _Tally()
    going: list[_Tree] = []
    for tree in _trees(ages, cutoff):
        reason = _reason_to_keep(tree, cutoff, protected, include_imported)
        if reason is None and not dry_run:
            going.append(tree)
        else:
            tally.note(reason or DELETED, tree)
    _delete(database, going, tally, on_progress)
    return tally.report(cutoff, dry_run=dry_run)


def _delete(database: Database, going: list[_Tree], tally: _Tally, on_progress: OnProgress | None) -> None:
    """Delete trees batch by batch, and note what became of each."""
    done, total = 0, sum(len(tree.members) for tree in going)
    taken: float | None = None
    for batch in _batches(going):
        if on_progress is not None:
            on_progress(done, total)
        if taken is not None:
            # SQLite queues nobody: who waits for the lock asks for it again and again, and must find it free (LK-07).
            pause(min(max(taken, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        with database.write() as work:
            started = monotonic()
            unchanged, changed = _look_again(work, batch)
            Conversations(work).delete_many(member.key for tree in unchanged for member in tree.members)
        taken = monotonic() - started
        for tree in unchanged:
            tally.note(DELETED, tree)
        for tree in changed:
            tally.note(CHANGED, tree)
        done += sum(len(tree.members) for tree in batch)
    if on_progress is not None and total:
        on_progress(done, total)


def _look_again(work: UnitOfWork, batch: list[_Tree]) -> tuple[list[_Tree], list[_Tree]]:
    """Lock trees, and return those to which nothing has happened since they were read, and the others."""
    members = [member for tree in batch for member in tree.members]
    keys = sorted(member.key for member in members)
    Conversations(work).lock(keys)
    found = {age.key: age for age in Ages(work).list_some(keys)}
    children = Ages(work).count_children(keys)
    expected = Counter(member.parent_key for member in members)
    unchanged: list[_Tree] = []
    changed: list[_Tree] = []
    for tree in batch:
        same = all(
            found.get(member.key) == member and children.get(member.key, 0) == expected[member.key]
            for member in tree.members
        )
        (unchanged if same else changed).append(tree)
    return unchanged, changed


def _batches(trees: Iterable[_Tree]) -> Iterator[list[_Tree]]:
    """Yield trees in groups that one transaction may take, by conversations and by turns; a bigger tree comes alone."""
    batch: list[_Tree] = []
    conversations = turns = 0
    for tree in trees:
        conversations += len(tree.members)
        turns += tree.turns
        if batch and (conversations > BATCH_CONVERSATIONS or turns > BATCH_TURNS):
            yield batch
            batch, conversations, turns = [], len(tree.members), tree.turns
        batch.append(tree)
    if batch:
        yield batch


def _reason_to_keep(tree: _Tree, cutoff: datetime, protected: frozenset[str], include_imported: bool) -> str | None:
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


def _trees(ages: Iterable[Age], cutoff: datetime) -> list[_Tree]:
    """Return the trees in which anything is stale or of unknown time, by the keys of their roots."""
    by_key = {age.key: age for age in ages}
    members: dict[str, list[Age]] = {}
    for key, root in _roots(by_key).items():
        members.setdefault(root, []).append(by_key[key])
    trees: list[_Tree] = []
    for root, those in sorted(members.items()):
        candidates = sum(age.updated_at is None or age.is_stale(cutoff) for age in those)
        if candidates:
            trees.append(_Tree(by_key[root], those, candidates, sum(age.turns for age in those)))
    return trees


def _roots(by_key: dict[str, Age]) -> dict[str, str]:
    """Return for every key the key of its tree's root.

    A conversation whose parent is not there is a root; of a circle, which only raw SQL can make, the smallest key is.
    """
    roots: dict[str, str] = {}
    for start in by_key:
        path: dict[str, None] = {}
        key = start
        while key not in roots and key not in path:
            path[key] = None
            parent = by_key[key].parent_key
            if parent in by_key:
                key = parent
            else:
                roots[key] = key
        if key in roots:
            root = roots[key]
        else:
            walked = list(path)
            root = min(walked[walked.index(key) :])
        roots.update(dict.fromkeys(path, root))
    return roots


def _keys(protect: Iterable[str]) -> frozenset[str]:
    if isinstance(protect, str) or not isinstance(protect, Iterable):
        raise InvalidValue("protect", f"must be several keys, such as a list of them, not {protect!r}")
    keys = frozenset(protect)
    for key in keys:
        if not isinstance(key, str):
            raise InvalidValue("protect", f"holds {key!r}, which is no key")  # and would protect nothing
    return keys


def _before(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)  # nothing is that old
