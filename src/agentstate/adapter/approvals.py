"""What agent scripts call for approvals: jobs that wait for their start or for their release."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from agentstate._lazy import LazyModule
from agentstate.adapter.handles import Target, open_database

if TYPE_CHECKING:
    from agentstate.approvals import repositories as _rows
    from agentstate.approvals import stash as _stash
    from agentstate.approvals import workflows as _workflows
    from agentstate.approvals.records import PendingApprovalRecord, RepoChange, StartPendingRecord, UnfinishedRecord
else:
    _rows = LazyModule("agentstate.approvals.repositories")
    _stash = LazyModule("agentstate.approvals.stash")
    _workflows = LazyModule("agentstate.approvals.workflows")


# --- waiting for the start -------------------------------------------------------------------------------------------


def save_start_pending(job_id: str, sender: str, requested_by: str, body: str, *, database: Target = None) -> None:
    """Remember a request that waits for its start; the same request again changes nothing.

    `sender` is whose request it is, `requested_by` who asked the builder (a role or a person), `body` the request
    itself. Raises `AlreadyPending` when the job id is taken by other content or waits for its release.
    """
    with open_database(database).write() as work:
        _workflows.save_start_pending(work, job_id, sender, requested_by, body)


def load_start_pending(job_id: str, *, database: Target = None) -> StartPendingRecord | None:
    """Return the waiting request, or None."""
    with open_database(database).read() as work:
        return _workflows.load_start_pending(work, job_id)


def list_start_pending(sender: str | None = None, *, database: Target = None) -> list[StartPendingRecord]:
    """Return the waiting requests (of one sender, if given), oldest first."""
    with open_database(database).read() as work:
        return _workflows.list_start_pending(work, sender)


def delete_start_pending(job_id: str, *, database: Target = None) -> bool:
    """Delete the waiting request, once it is started or rejected; return whether there was one."""
    with open_database(database).write() as work:
        return _rows.StartsPending(work).delete(job_id)


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
    with open_database(database).write() as work:
        return _workflows.claim_start(work, job_id, by, stale_after, sender)


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
    changes = _workflows.repo_changes(job_id, repos)
    with open_database(database).write() as work:
        _workflows.save_pending_approval(work, job_id, requested_by, commit_message, changes)


def load_pending_approval(job_id: str, *, database: Target = None) -> PendingApprovalRecord | None:
    """Return the waiting release with its repositories ordered by path, or None."""
    with open_database(database).read() as work:
        return _workflows.load_pending_approval(work, job_id)


def list_pending_approvals(*, database: Target = None) -> list[PendingApprovalRecord]:
    """Return the waiting releases with their repositories, oldest first."""
    with open_database(database).read() as work:
        return _workflows.list_pending_approvals(work)


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
    with open_database(database).write() as work:
        return _workflows.claim_approval(work, job_id, by, stale_after, sender)


def mark_repo_done(job_id: str, repo_dir: str | os.PathLike[str], commit_sha: str, *, database: Target = None) -> None:
    """Note that one repository is released, as which commit; noting the same again changes nothing.

    Raises `ApprovalNotFound`, `RepoNotFound`, and `AlreadyReleased` when another commit is noted.
    """
    with open_database(database).write() as work:
        _workflows.mark_repo_done(work, job_id, repo_dir, commit_sha)


def delete_pending_approval(job_id: str, *, database: Target = None) -> bool:
    """Delete the waiting release with its repositories, once released or discarded; return whether there was one."""
    with open_database(database).write() as work:
        return _rows.PendingApprovals(work).delete(job_id)


def unfinished(*, database: Target = None) -> list[UnfinishedRecord]:
    """Return the decisions begun and not finished, what a killed process left; each once, changing nothing."""
    with open_database(database).read() as work:
        return _workflows.unfinished(work)


def find_stash_ref(repo_dir: str | os.PathLike[str], marker: str) -> str | None:
    """Return the `stash@{N}` whose message starts with the marker, or None; the repository is not touched.

    `marker` comes from `agentstate.approvals.stash.marker_for`. Raises `AmbiguousStash` for more than one, and
    `StashError` with git's own words when git cannot answer.
    """
    return _stash.find_stash_ref(repo_dir, marker)
