"""What agent scripts call: one function per use case, plain values in and out.

    from agentstate import adapter
    session_id = adapter.load_session("worker", "alice@bot.example")

Every function is one transaction on the database that `AGENT_DB_PATH` (or `AGENT_DB_URL`) names, unless `database=`
is given: a path, a URL, or an open `Database`. A database opened here stays open for the life of the process.

Arguments mean the same everywhere. `role` is a role's name, such as "worker". `sender` is who writes, in any of the
spellings that `agentstate.identity.normalise_sender` folds into one. `job_id` is the queue's name for the job.
Refused values raise `InvalidValue` (or below it `InvalidRole`, `InvalidIdentifier`) naming the field, before anything
is written. All functions can raise the errors of `DatabaseError`; after any error the next call works.

Importing this module loads neither SQLAlchemy nor Alembic; the first call loads SQLAlchemy and its one area.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agentstate._lazy import LazyModule
from agentstate.errors import InvalidValue
from agentstate.settings import Settings, configured_target, read_settings

if TYPE_CHECKING:
    from agentstate.approvals import records as _records
    from agentstate.approvals import repositories as _approval_rows
    from agentstate.approvals import stash as _stash
    from agentstate.approvals import workflows as _approvals
    from agentstate.approvals.records import PendingApprovalRecord as PendingApprovalRecord
    from agentstate.approvals.records import PendingRepoRecord as PendingRepoRecord
    from agentstate.approvals.records import RepoChange as RepoChange
    from agentstate.approvals.records import StartPendingRecord as StartPendingRecord
    from agentstate.approvals.records import UnfinishedRecord as UnfinishedRecord
    from agentstate.db import database as _db
    from agentstate.db.database import Database
    from agentstate.roles import repositories as _roles
    from agentstate.roles import workflows as _role_workflows
else:
    _db = LazyModule("agentstate.db.database")
    _roles = LazyModule("agentstate.roles.repositories")
    _role_workflows = LazyModule("agentstate.roles.workflows")
    _records = LazyModule("agentstate.approvals.records")
    _approval_rows = LazyModule("agentstate.approvals.repositories")
    _approvals = LazyModule("agentstate.approvals.workflows")
    _stash = LazyModule("agentstate.approvals.stash")

Target: TypeAlias = "str | Path | Database | None"

_RECORDS = ("PendingApprovalRecord", "PendingRepoRecord", "RepoChange", "StartPendingRecord", "UnfinishedRecord")

_opened: dict[tuple[str, Settings], Database] = {}
_opening = threading.Lock()


# --- sessions and introductions --------------------------------------------------------------------------------------


def load_session(role: str, sender: str, *, database: Target = None) -> str | None:
    """Return the provider session that the role continues with the sender, or None."""
    with _open(database).read() as work:
        return _roles.RoleSessions(work).find(role, sender)


def save_session(role: str, sender: str, session_id: str, *, database: Target = None) -> None:
    """Remember the provider session to continue, in place of an earlier one. `session_id` is any text but the empty."""
    with _open(database).write() as work:
        _roles.RoleSessions(work).save(role, sender, session_id)


def reset_session(role: str, sender: str, *, database: Target = None) -> bool:
    """Forget the session (`/neu`), keep the introduction; return whether there was a session."""
    with _open(database).write() as work:
        return _roles.RoleSessions(work).delete(role, sender)


def is_introduced(role: str, sender: str, *, database: Target = None) -> bool:
    """Return whether the role has greeted the sender."""
    with _open(database).read() as work:
        return _roles.Introductions(work).exists(role, sender)


def mark_introduced(role: str, sender: str, *, database: Target = None) -> bool:
    """Remember that the sender has been greeted; return True for exactly one caller, however many race.

    The time of the first mark stays, the time of the last one is refreshed.
    """
    with _open(database).write() as work:
        return _roles.Introductions(work).mark(role, sender)


def add_first_reply_notice(role: str, sender: str, reply: str, notice: str, *, database: Target = None) -> str:
    """Return the reply, with the notice and a blank line before it on first contact.

    Marks nothing: call `mark_introduced` once the reply went out, so that the notice is shown at least once.
    """
    with _open(database).read() as work:
        return _role_workflows.add_first_reply_notice(work, role, sender, reply, notice)


# --- waiting for the start -------------------------------------------------------------------------------------------


def save_start_pending(job_id: str, sender: str, requested_by: str, body: str, *, database: Target = None) -> None:
    """Remember a request that waits for its start; the same request again changes nothing.

    `sender` is whose request it is, `requested_by` who asked the builder (a role or a person), `body` the request
    itself. Raises `AlreadyPending` when the job id is taken by other content or waits for its release.
    """
    with _open(database).write() as work:
        _approvals.save_start_pending(work, job_id, sender, requested_by, body)


def load_start_pending(job_id: str, *, database: Target = None) -> StartPendingRecord | None:
    """Return the waiting request, or None."""
    with _open(database).read() as work:
        return _approvals.load_start_pending(work, job_id)


def list_start_pending(sender: str | None = None, *, database: Target = None) -> list[StartPendingRecord]:
    """Return the waiting requests (of one sender, if given), oldest first."""
    with _open(database).read() as work:
        return _approvals.list_start_pending(work, sender)


def delete_start_pending(job_id: str, *, database: Target = None) -> bool:
    """Delete the waiting request, once it is started or rejected; return whether there was one."""
    with _open(database).write() as work:
        return _approval_rows.StartsPending(work).delete(job_id)


def claim_start(
    job_id: str,
    by: str,
    stale_after: timedelta | None = None,
    *,
    sender: str | None = None,
    database: Target = None,
) -> StartPendingRecord:
    """Claim the decision about a waiting request; of those who race for it one wins, the others get `AlreadyClaimed`.

    `by` says who decides, a process or a person. A claim at least `stale_after` old is taken over: None takes over
    none, zero any (only for a caller who knows by a lock of its own that nobody else is deciding). `sender`, if given,
    must be the one whose request it is, else `Forbidden` (AP-05). Raises `StartNotFound`.
    """
    with _open(database).write() as work:
        return _approvals.claim_start(work, job_id, by, stale_after, sender)


# --- waiting for the release -----------------------------------------------------------------------------------------


def save_pending_approval(
    job_id: str,
    requested_by: str,
    commit_message: str,
    repos: Iterable[str | os.PathLike[str] | RepoChange],
    *,
    database: Target = None,
) -> None:
    """Remember a finished job that waits for its release, with all its repositories or not at all.

    `repos` are absolute paths or `RepoChange(repo_dir, stash_commit)`. The same approval again changes nothing. Raises
    `NothingToApprove` without a repository, `DuplicateRepo` for one named twice, `StartStillPending` while the job
    waits for its start, `AlreadyPending` when the job id is taken by other content.
    """
    changes = _approvals.repo_changes(job_id, repos)
    with _open(database).write() as work:
        _approvals.save_pending_approval(work, job_id, requested_by, commit_message, changes)


def load_pending_approval(job_id: str, *, database: Target = None) -> PendingApprovalRecord | None:
    """Return the waiting release with its repositories ordered by path, or None."""
    with _open(database).read() as work:
        return _approvals.load_pending_approval(work, job_id)


def list_pending_approvals(*, database: Target = None) -> list[PendingApprovalRecord]:
    """Return the waiting releases with their repositories, oldest first."""
    with _open(database).read() as work:
        return _approvals.list_pending_approvals(work)


def claim_approval(
    job_id: str,
    by: str,
    stale_after: timedelta | None = None,
    *,
    sender: str | None = None,
    database: Target = None,
) -> PendingApprovalRecord:
    """Claim the decision about a waiting release; of those who race for it one wins, the others get `AlreadyClaimed`.

    `by` and `stale_after` as in `claim_start`; repositories that an earlier claim finished stay finished. `sender`, if
    given, must be the one who requested the job, else `Forbidden` (AP-05). Raises `ApprovalNotFound`.
    """
    with _open(database).write() as work:
        return _approvals.claim_approval(work, job_id, by, stale_after, sender)


def mark_repo_done(job_id: str, repo_dir: str | os.PathLike[str], commit_sha: str, *, database: Target = None) -> None:
    """Note that one repository is released, as which commit; noting the same again changes nothing.

    Raises `ApprovalNotFound`, `RepoNotFound`, and `AlreadyReleased` when another commit is noted.
    """
    with _open(database).write() as work:
        _approvals.mark_repo_done(work, job_id, repo_dir, commit_sha)


def delete_pending_approval(job_id: str, *, database: Target = None) -> bool:
    """Delete the waiting release with its repositories, once released or discarded; return whether there was one."""
    with _open(database).write() as work:
        return _approval_rows.PendingApprovals(work).delete(job_id)


def unfinished(*, database: Target = None) -> list[UnfinishedRecord]:
    """Return the decisions begun and not finished, what a killed process left; each once, changing nothing."""
    with _open(database).read() as work:
        return _approvals.unfinished(work)


def find_stash_ref(repo_dir: str | os.PathLike[str], marker: str) -> str | None:
    """Return the `stash@{N}` whose message starts with the marker, or None; the repository is not touched.

    `marker` comes from `agentstate.approvals.stash.marker_for`. Raises `AmbiguousStash` for more than one, and
    `StashError` with git's own words when git cannot answer.
    """
    return _stash.find_stash_ref(repo_dir, marker)


def __getattr__(name: str) -> object:
    """Load a record class at its first use: `adapter.RepoChange` (PEP 562)."""
    if name in _RECORDS:
        return getattr(_records, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _open(target: Target) -> Database:
    if target is not None and not isinstance(target, str | Path):
        if not isinstance(target, _db.Database):
            raise InvalidValue("database", f"must be a path, a URL or a Database, not {type(target).__name__}")
        if target.in_memory:
            import agentstate.metadata  # noqa: F401  (a unit in memory has the tables of the areas known when it begins)
        return target
    settings = read_settings()
    name = os.fspath(configured_target() if target is None else target)
    # A relative path means another file after chdir().
    key = (name if "://" in name else os.path.abspath(name), settings)
    found = _opened.get(key)
    if found is None:
        with _opening:
            found = _opened.get(key)
            if found is None:
                found = _opened[key] = _db.Database.open(name, "rw", settings=settings)
    return found


def _renew_lock() -> None:
    """Give a child process a lock of its own: who held it in the parent does not exist in the child (CN-01)."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
