"""What is deleted by its age, in all areas: one table of policies, and the sweep that carries them out.

A new policy is a line in `POLICIES` and a function that does what a `Task` says and returns an `Outcome`. Rows are
deleted batch by batch, each in a unit of work of its own whose statement decides again, with `rest_after` in between
(LK-07); age is counted from the last thing that happened to a row (RT-01). What one area's rows are still needed for by
another is looked up here and nowhere else (RT-02).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.clock import earlier, monotonic, utc_now
from agentstate.conversations.prune import NOT_REACHED, prune_in_part
from agentstate.conversations.repositories import Conversations
from agentstate.db import state
from agentstate.db.database import Database
from agentstate.db.space import SpaceReport
from agentstate.db.types import aware
from agentstate.errors import AgentStateError, DatabaseCorrupt, DatabaseReadOnly, InvalidValue
from agentstate.settings import configured_ages

OnProgress: TypeAlias = Callable[[str, int | None, int | None], None]
"""Called outside any transaction with what is being done, how much of it is done, and how much there is in all."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a policy is to do: delete what is older than `age` at `now`, or with `dry_run` only count it.

    One transaction deletes about `batch_rows` rows. No batch but the first begins after `max_seconds`.
    """

    database: Database
    now: datetime
    age: timedelta
    dry_run: bool
    batch_rows: int
    max_seconds: float | None
    on_progress: Callable[[int, int], None] | None


class Outcome(NamedTuple):
    """What became of the rows that were old enough, and the error that ended it early."""

    candidates: int
    deleted: int
    kept: dict[str, int]
    error: AgentStateError | None


@dataclass(frozen=True, slots=True)
class Policy:
    """One kind of rows that age: how long they are kept by default (None: for ever), and what deletes them."""

    name: str
    table: str
    keep: timedelta | None
    run: Callable[[Task], Outcome]


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What one policy did, or would do in a dry run.

    `candidates` are the rows older than `cutoff`; `deleted` plus the sum of `kept` (by reason) is always `candidates`
    (RT-09). `error` says what ended it early; what was still to be deleted then is kept as `not reached`.
    """

    policy: str
    table: str
    candidates: int
    deleted: int
    kept: dict[str, int]
    cutoff: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did, policy by policy; those that keep their rows for ever are not in it.

    `space` is None in a dry run, and when giving space back failed: `error` says why. `finished` is False when
    anything failed or was not reached: the next sweep goes on.
    """

    policies: tuple[PolicyReport, ...]
    space: SpaceReport | None
    finished: bool
    dry_run: bool
    error: str | None


def _sweep_conversations(task: Task) -> Outcome:
    """Prune trees that nobody used; who waits for a person's yes keeps their conversations."""
    with task.database.read(now=task.now) as work:
        waiting = StartsPending(work).list_names() | PendingApprovals(work).list_names()
        protect = Conversations(work).list_keys_of(waiting)
    report, error = prune_in_part(
        task.database,
        older_than=task.age,
        dry_run=task.dry_run,
        protect=protect,
        now=task.now,
        batch_turns=task.batch_rows,
        max_seconds=task.max_seconds,
        on_progress=task.on_progress,
    )
    return Outcome(report.candidates, report.deleted, report.kept, error)


POLICIES = (Policy("conversations", "conversations", timedelta(days=7), _sweep_conversations),)


def sweep(
    database: Database,
    *,
    keep: Mapping[str, timedelta | None] | None = None,
    only: Iterable[str] | None = None,
    dry_run: bool = False,
    batch_rows: int = 2_000,
    max_seconds: float | None = None,
    now: datetime | None = None,
    on_progress: OnProgress | None = None,
) -> SweepReport:
    """Delete the rows that are older than they are kept for, and give their space back to the disk.

    `keep` says by policy how long (None: for ever); for the others the environment does (`AGENT_KEEP_CONVERSATIONS`),
    else the policy itself. `only` names the policies to carry out. A transaction deletes about `batch_rows` rows. When
    `max_seconds` have passed since the beginning, each policy ends after its batch, but not before its first, so that
    all get on. `dry_run` counts and writes nothing, also on a handle that cannot write. `now` (aware) is the current
    time if it is not given.

    A policy that fails says so in its report, and the others are carried out all the same. Raises `InvalidValue`,
    `InvalidSetting`, `DatabaseReadOnly`, and `SchemaBehind` and its like for a schema that is not this code's own.
    """
    began = monotonic()
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise InvalidValue("batch_rows", f"{batch_rows!r} is not a number of rows above 0")
    if max_seconds is not None and not (_is_number(max_seconds) and max_seconds >= 0):
        raise InvalidValue("max_seconds", f"{max_seconds!r} is not a number of seconds")
    ages = _ages({} if keep is None else keep)
    names = _known(ages if only is None else only, "only")
    instant = utc_now() if now is None else aware(now, "now")
    if database.readonly and not dry_run:
        raise DatabaseReadOnly(database.name)
    if not database.in_memory:
        state.require_head(database.revision(), database.name)

    def seconds_left() -> float | None:
        return None if max_seconds is None else max(0.0, max_seconds - (monotonic() - began))

    reports: list[PolicyReport] = []
    for policy in POLICIES:
        age = ages[policy.name]
        if policy.name in names and age is not None:
            show = _named(on_progress, policy.name)
            task = Task(database, instant, age, dry_run, batch_rows, seconds_left(), show)
            reports.append(_carry_out(policy, task))
    space, error = (None, None) if dry_run else _give_space_back(database, seconds_left(), on_progress)
    finished = error is None and not any(report.error or NOT_REACHED in report.kept for report in reports)
    return SweepReport(tuple(reports), space, finished, dry_run, error)


def _carry_out(policy: Policy, task: Task) -> PolicyReport:
    try:
        outcome = policy.run(task)
    except AgentStateError as error:
        outcome = Outcome(0, 0, {}, error)  # it failed before anything was counted
    if isinstance(outcome.error, DatabaseCorrupt):
        raise outcome.error  # whoever goes on writing to damage makes more of it
    return PolicyReport(
        policy.name,
        policy.table,
        outcome.candidates,
        outcome.deleted,
        outcome.kept,
        earlier(task.now, task.age),
        None if outcome.error is None else str(outcome.error),
    )


def _give_space_back(
    database: Database, max_seconds: float | None, on_progress: OnProgress | None
) -> tuple[SpaceReport | None, str | None]:
    if on_progress is not None:
        on_progress("giving space back", None, None)
    try:
        return database.reclaim(max_seconds=max_seconds), None
    except AgentStateError as error:
        return None, str(error)


def _ages(keep: Mapping[str, timedelta | None]) -> dict[str, timedelta | None]:
    """Return how long each policy keeps its rows."""
    if not isinstance(keep, Mapping):
        raise InvalidValue("keep", f"must say by policy how long, such as a dict of them, not {keep!r}")
    _known(keep, "keep")
    for name, age in keep.items():
        if age is not None and (not isinstance(age, timedelta) or age < timedelta(0)):
            raise InvalidValue("keep", f"{name}: must be a timedelta that is not negative, or None, not {age!r}")
    defaults = {policy.name: policy.keep for policy in POLICIES}
    return {**defaults, **configured_ages(defaults), **keep}


def _known(names: Iterable[str], field: str) -> frozenset[str]:
    known = [policy.name for policy in POLICIES]
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidValue(field, f"must be several policies, such as a list of them, not {names!r}")
    found = list(names)
    for name in found:
        if name not in known:
            raise InvalidValue(field, f"{name!r} is not a policy; there is {', '.join(known)}")
    return frozenset(found)


def _named(on_progress: OnProgress | None, name: str) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(name, done, total)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
