"""Waiting jobs for a person to look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agentstate.approvals import workflows
from agentstate.db.uow import UnitOfWork


@dataclass(frozen=True, slots=True)
class OpenCase:
    """One job that waits for a yes: `waits_for` is "start" or "release"; `summary` is the first line of what it is."""

    waits_for: str
    job_id: str
    requested_by: str
    summary: str
    created_at: datetime
    claimed_by: str | None
    claimed_at: datetime | None
    repos_done: int
    repos_total: int


def open_cases(work: UnitOfWork) -> list[OpenCase]:
    """Return every job that waits for a person, oldest first."""
    starts = [
        OpenCase(
            "start",
            start.job_id,
            start.requested_by,
            _first_line(start.body),
            start.created_at,
            start.claimed_by,
            start.claimed_at,
            0,
            0,
        )
        for start in workflows.list_start_pending(work)
    ]
    releases = [
        OpenCase(
            "release",
            approval.job_id,
            approval.requested_by,
            _first_line(approval.commit_message),
            approval.created_at,
            approval.claimed_by,
            approval.claimed_at,
            sum(repo.done_at is not None for repo in approval.repos),
            len(approval.repos),
        )
        for approval in workflows.list_pending_approvals(work)
    ]
    return sorted(starts + releases, key=lambda case: (case.created_at, case.job_id))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
