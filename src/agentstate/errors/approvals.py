"""What can go wrong with approvals and their stashes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from agentstate.errors.base import AgentStateError, Conflict, InvalidValue, NotFound


class StartNotFound(NotFound):
    """No job of that id waits for its start."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"no job {self.job_id!r} waits for its start; 'agentstate approvals' lists what is open"


class ApprovalNotFound(NotFound):
    """No job of that id waits for its release."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"no job {self.job_id!r} waits for its release; 'agentstate approvals' lists what is open"


class RepoNotFound(NotFound):
    """The pending approval has no such repository."""

    def __init__(self, job_id: str, repo_dir: str) -> None:
        super().__init__(job_id, repo_dir)
        self.job_id = job_id
        self.repo_dir = repo_dir

    def __str__(self) -> str:
        return (
            f"job {self.job_id!r} has no repository {self.repo_dir!r}; "
            f"'agentstate approvals show {self.job_id}' lists its repositories"
        )


class AlreadyPending(Conflict):
    """The job id is taken by a record with other content.

    `kind` is "start" or "approval": which of the two records holds the id.
    """

    def __init__(self, job_id: str, kind: str) -> None:
        super().__init__(job_id, kind)
        self.job_id = job_id
        self.kind = kind

    def __str__(self) -> str:
        waiting = "its start" if self.kind == "start" else "its release"
        return (
            f"job {self.job_id!r} already waits for {waiting} with other content; "
            "use a new job id, or have the open one decided first"
        )


class AlreadyClaimed(Conflict):
    """Somebody else is carrying out a decision about this job: `by` whom and since when (`at`, UTC)."""

    def __init__(self, job_id: str, by: str, at: datetime) -> None:
        super().__init__(job_id, by, at)
        self.job_id = job_id
        self.by = by
        self.at = at

    def __str__(self) -> str:
        since = self.at.strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"job {self.job_id!r} is being decided by {self.by!r} since {since}; "
            "wait for it, or take the claim over when you know that it is stale"
        )


class StartStillPending(Conflict):
    """A job that still waits for its start cannot wait for its release."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} still waits for its start; accept or reject it before asking for its release"


class DuplicateRepo(Conflict):
    """One approval names the same repository twice (after its path was normalised)."""

    def __init__(self, job_id: str, repo_dir: str) -> None:
        super().__init__(job_id, repo_dir)
        self.job_id = job_id
        self.repo_dir = repo_dir

    def __str__(self) -> str:
        return f"job {self.job_id!r} names repository {self.repo_dir!r} twice; name each repository once"


class AlreadyReleased(Conflict):
    """The repository's release is finished, as another commit than the one given now."""

    def __init__(self, job_id: str, repo_dir: str, commit_sha: str) -> None:
        super().__init__(job_id, repo_dir, commit_sha)
        self.job_id = job_id
        self.repo_dir = repo_dir
        self.commit_sha = commit_sha

    def __str__(self) -> str:
        return (
            f"repository {self.repo_dir!r} of job {self.job_id!r} is already released as commit {self.commit_sha}; "
            "look at its git log before committing again"
        )


class NothingToApprove(InvalidValue):
    """A pending approval needs at least one repository."""


class StashError(AgentStateError):
    """git could not answer a question about a repository's stashes; `detail` is git's own words."""

    def __init__(self, repo_dir: str, detail: str) -> None:
        super().__init__(repo_dir, detail)
        self.repo_dir = repo_dir
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.repo_dir}: {self.detail}"


class AmbiguousStash(StashError):
    """More than one stash carries the marker; `refs` lists them."""

    def __init__(self, repo_dir: str, marker: str, refs: Sequence[str]) -> None:
        AgentStateError.__init__(self, repo_dir, marker, tuple(refs))
        self.repo_dir = repo_dir
        self.marker = marker
        self.refs = tuple(refs)
        self.detail = f"{len(self.refs)} stashes carry the marker {marker!r}: {', '.join(self.refs)}"

    def __str__(self) -> str:
        return f"{self.repo_dir}: {self.detail}; drop the ones that are not meant"
