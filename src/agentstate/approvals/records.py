"""Approvals as plain values, without SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StartPendingRecord:
    """A request that waits for its start. Times are UTC; `claimed_at` None means nobody is deciding it now."""

    job_id: str
    sender: str
    requested_by: str
    body: str
    created_at: datetime
    claimed_at: datetime | None
    claimed_by: str | None


@dataclass(frozen=True, slots=True)
class RepoChange:
    """A repository whose change is to be approved, and the full commit id of the stash that holds the change.

    `stash_commit` None means that the stash is known by the job's marker only.
    """

    repo_dir: str
    stash_commit: str | None = None


@dataclass(frozen=True, slots=True)
class PendingRepoRecord:
    """One repository of a pending approval; `done_at` and `commit_sha` are set once its release is finished."""

    repo_dir: str
    stash_commit: str | None
    done_at: datetime | None
    commit_sha: str | None


@dataclass(frozen=True, slots=True)
class PendingApprovalRecord:
    """A finished job that waits for its release, with its repositories ordered by path.

    No repository at all (`repos` empty, made by other hands) means that nothing was stashed: there is nothing to
    release or to discard (AP-08).
    """

    job_id: str
    requested_by: str
    commit_message: str
    created_at: datetime
    claimed_at: datetime | None
    claimed_by: str | None
    repos: tuple[PendingRepoRecord, ...]


@dataclass(frozen=True, slots=True)
class UnfinishedRecord:
    """A decision that was begun and not finished: what a killed process leaves.

    `kind` is "start" or "approval". Of an approval, `repos_done` of `repos_total` repositories are released already;
    for a start both are 0. `claimed_by` None with some repositories done: partly released, and the claim is gone.
    """

    kind: str
    job_id: str
    claimed_by: str | None
    claimed_at: datetime | None
    repos_done: int
    repos_total: int
