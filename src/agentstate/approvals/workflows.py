"""What happens to waiting jobs, each in the caller's one transaction.

A decision is carried out in three steps that survive a kill between any two of them: claim (one winner), act (named by
the job id, so that acting twice is acting once), delete. What a killed process leaves is listed by `unfinished`, and
the same command, given again, finishes it (roles-and-approvals section 3, "Exactly once").
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row

from agentstate.approvals.models import PendingApproval, PendingApprovalRepo, StartPending, normalise_repo_dir
from agentstate.approvals.records import (
    PendingApprovalRecord,
    PendingRepoRecord,
    RepoChange,
    StartPendingRecord,
    UnfinishedRecord,
)
from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.db.types import aware
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    AlreadyClaimed,
    AlreadyPending,
    AlreadyReleased,
    ApprovalNotFound,
    DuplicateRepo,
    Forbidden,
    InvalidValue,
    NothingToApprove,
    RepoNotFound,
    StartNotFound,
    StartStillPending,
)
from agentstate.identity import identifier, normalise_sender, valid_job_id

# --- waiting for the start -------------------------------------------------------------------------------------------


def save_start_pending(work: UnitOfWork, job_id: str, sender: str, requested_by: str, body: str) -> None:
    """Remember a request that waits for its start; the same request again changes nothing.

    Raises `AlreadyPending` when the job id is taken: by a request with other content, or by a job that already waits
    for its release.
    """
    starts = StartsPending(work)
    starts.reserve(job_id)
    if PendingApprovals(work).exists(job_id):
        raise AlreadyPending(job_id, "approval")
    if starts.add(job_id, sender, requested_by, body):
        return
    found = starts.find(job_id)
    wanted = (normalise_sender(sender), normalise_sender(requested_by, "requested_by"), body)
    if found is not None and (found.sender, found.requested_by, found.body) != wanted:
        raise AlreadyPending(job_id, "start")


def load_start_pending(work: UnitOfWork, job_id: str) -> StartPendingRecord | None:
    """Return the waiting request, or None."""
    found = StartsPending(work).find(job_id)
    return None if found is None else _start_record(found)


def list_start_pending(work: UnitOfWork, sender: str | None = None) -> list[StartPendingRecord]:
    """Return the waiting requests (of one sender, if given), oldest first."""
    return [_start_record(row) for row in StartsPending(work).list_oldest_first(sender)]


def claim_start(
    work: UnitOfWork, job_id: str, by: str, stale_after: timedelta | None = None, sender: str | None = None
) -> StartPendingRecord:
    """Claim the decision about a waiting request for `by`; of those who race for it, one wins.

    A claim at least `stale_after` old is taken over (None: never; zero: always, for a caller who knows by a lock of
    its own that no other process is deciding). `sender`, if given, must be the one whose request it is. Raises
    `StartNotFound`, `AlreadyClaimed` naming who has it since when, and `Forbidden`; then nothing is changed.
    """
    starts = StartsPending(work)
    found = starts.find(job_id, lock=True)
    if found is None:
        raise StartNotFound(valid_job_id(job_id))
    _allow(sender, found.sender, f"decide about job {job_id!r}")
    identifier(by, "by")
    if not starts.claim(job_id, by, _stale_before(work, stale_after)):
        raise _claimed(job_id, found)
    return StartPendingRecord(
        found.job_id, found.sender, found.requested_by, found.body, found.created_at, work.now, by
    )


# --- waiting for the release -----------------------------------------------------------------------------------------


def save_pending_approval(
    work: UnitOfWork,
    job_id: str,
    requested_by: str,
    commit_message: str,
    repos: Iterable[RepoChange | str | os.PathLike[str]],
) -> None:
    """Remember a finished job that waits for its release, with all its repositories or not at all.

    `repos` are absolute paths, or `RepoChange`. The same approval again changes nothing. Raises `NothingToApprove`
    without a repository, `DuplicateRepo` for the same one twice, `StartStillPending` while the job waits for its
    start, and `AlreadyPending` when the job id is taken by an approval with other content.
    """
    changes = repo_changes(job_id, repos)
    approvals = PendingApprovals(work)
    approvals.reserve(job_id)
    if StartsPending(work).exists(job_id):
        raise StartStillPending(job_id)
    if approvals.add(job_id, requested_by, commit_message, changes):
        return
    found = approvals.find(job_id)
    stored = {(repo.repo_dir, repo.stash_commit) for repo in approvals.repos_of(job_id)}
    same = (
        found is not None
        and (found.requested_by, found.commit_message) == (normalise_sender(requested_by), commit_message)
        and stored == {(change.repo_dir, change.stash_commit) for change in changes}
    )
    if not same:
        raise AlreadyPending(job_id, "approval")


def load_pending_approval(work: UnitOfWork, job_id: str) -> PendingApprovalRecord | None:
    """Return the waiting release with its repositories, or None."""
    approvals = PendingApprovals(work)
    found = approvals.find(job_id)
    return None if found is None else _approval_record(found, approvals.repos_of(job_id))


def list_pending_approvals(work: UnitOfWork) -> list[PendingApprovalRecord]:
    """Return the waiting releases with their repositories, oldest first."""
    approvals = PendingApprovals(work)
    rows = approvals.list_oldest_first()
    repos = _by_job(approvals.all_repos())
    return [_approval_record(row, repos[row.job_id]) for row in rows]


def claim_approval(
    work: UnitOfWork, job_id: str, by: str, stale_after: timedelta | None = None, sender: str | None = None
) -> PendingApprovalRecord:
    """Claim the decision about a waiting release for `by`; of those who race for it, one wins.

    `stale_after` as in `claim_start`; what an earlier claim finished stays finished. `sender`, if given, must be the
    one who requested the job. Raises `ApprovalNotFound`, `AlreadyClaimed` naming who has it since when, and
    `Forbidden`; then nothing is changed.
    """
    approvals = PendingApprovals(work)
    found = approvals.find(job_id, lock=True)
    if found is None:
        raise ApprovalNotFound(valid_job_id(job_id))
    _allow(sender, found.requested_by, f"decide about job {job_id!r}")
    identifier(by, "by")
    if not approvals.claim(job_id, by, _stale_before(work, stale_after)):
        raise _claimed(job_id, found)
    record = _approval_record(found, approvals.repos_of(job_id))
    return PendingApprovalRecord(
        record.job_id, record.requested_by, record.commit_message, record.created_at, work.now, by, record.repos
    )


def mark_repo_done(work: UnitOfWork, job_id: str, repo_dir: str | os.PathLike[str], commit_sha: str) -> None:
    """Note that one repository is released, as which commit; noting the same again changes nothing.

    Raises `ApprovalNotFound`, `RepoNotFound`, and `AlreadyReleased` when another commit is noted.
    """
    approvals = PendingApprovals(work)
    path = normalise_repo_dir(repo_dir)
    if approvals.mark_done(job_id, path, identifier(commit_sha, "commit_sha")):
        return
    found = approvals.find_repo(job_id, path)
    if found is None:
        raise ApprovalNotFound(job_id) if not approvals.exists(job_id) else RepoNotFound(job_id, path)
    if found.commit_sha != commit_sha:
        raise AlreadyReleased(job_id, path, str(found.commit_sha))


# --- what a killed process left --------------------------------------------------------------------------------------


def unfinished(work: UnitOfWork) -> list[UnfinishedRecord]:
    """Return the decisions that were begun and not finished, each once, starts first, oldest first; changes nothing."""
    approvals = PendingApprovals(work)
    rows = [row for row in StartsPending(work).list_oldest_first() if row.claimed_at is not None]
    found = [UnfinishedRecord("start", row.job_id, row.claimed_by, row.claimed_at, 0, 0) for row in rows]
    repos = _by_job(approvals.all_repos())
    for row in approvals.list_oldest_first():
        its_repos = repos[row.job_id]
        done = sum(repo.done_at is not None for repo in its_repos)
        if row.claimed_at is not None or done:
            found.append(UnfinishedRecord("approval", row.job_id, row.claimed_by, row.claimed_at, done, len(its_repos)))
    return found


def repo_changes(job_id: str, repos: Iterable[RepoChange | str | os.PathLike[str]]) -> list[RepoChange]:
    """Return the repositories with their paths normalised, in the order given.

    Called before the transaction too, since a generator of the caller's may take its time. Raises
    `NothingToApprove`, `DuplicateRepo` and `InvalidValue`.
    """
    if isinstance(repos, str | bytes | os.PathLike) or not isinstance(repos, Iterable):
        raise InvalidValue("repos", "must be a list of repositories")
    changes: list[RepoChange] = []
    for repo in repos:
        given = (
            repo
            if isinstance(repo, RepoChange)
            else RepoChange(os.fspath(repo) if isinstance(repo, os.PathLike) else repo)
        )
        change = RepoChange(normalise_repo_dir(given.repo_dir), given.stash_commit)
        if any(change.repo_dir == earlier.repo_dir for earlier in changes):
            raise DuplicateRepo(job_id, change.repo_dir)
        changes.append(change)
    if not changes:
        raise NothingToApprove("repos", "a pending approval needs at least one repository with a change")
    return changes


def _allow(sender: str | None, owner: str, what: str) -> None:
    if sender is not None and normalise_sender(sender) != owner:
        raise Forbidden(normalise_sender(sender), what)


def _stale_before(work: UnitOfWork, stale_after: timedelta | None) -> datetime | None:
    if stale_after is None:
        return None
    if not isinstance(stale_after, timedelta) or stale_after < timedelta(0):
        raise InvalidValue("stale_after", "must be a timedelta that is not negative, or None")
    if stale_after == timedelta(0):
        return datetime.max.replace(tzinfo=UTC)  # any claim, also one made before the clock was set back
    try:
        return work.now - stale_after
    except OverflowError:
        return None  # no claim is that old


def _claimed(job_id: str, row: Row[Any]) -> AlreadyClaimed:
    return AlreadyClaimed(job_id, str(row.claimed_by), aware(row.claimed_at, "claimed_at"))


def _by_job(repos: Sequence[PendingApprovalRepo]) -> dict[str, list[PendingApprovalRepo]]:
    found: dict[str, list[PendingApprovalRepo]] = defaultdict(list)
    for repo in repos:
        found[repo.job_id].append(repo)
    return found


def _start_record(row: StartPending | Row[Any]) -> StartPendingRecord:
    return StartPendingRecord(
        row.job_id, row.sender, row.requested_by, row.body, row.created_at, row.claimed_at, row.claimed_by
    )


def _approval_record(
    row: PendingApproval | Row[Any], repos: Sequence[PendingApprovalRepo | Row[Any]]
) -> PendingApprovalRecord:
    return PendingApprovalRecord(
        row.job_id,
        row.requested_by,
        row.commit_message,
        row.created_at,
        row.claimed_at,
        row.claimed_by,
        tuple(PendingRepoRecord(repo.repo_dir, repo.stash_commit, repo.done_at, repo.commit_sha) for repo in repos),
    )
