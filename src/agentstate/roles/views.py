"""Role state for a person to look at."""

from __future__ import annotations

from agentstate.db.uow import UnitOfWork
from agentstate.roles.records import IntroductionRecord, SessionRecord
from agentstate.roles.repositories import Introductions, RoleSessions


def sessions(work: UnitOfWork) -> list[SessionRecord]:
    """Return all sessions, the one saved last first."""
    return [
        SessionRecord(row.role, row.sender, row.session_id, row.updated_at)
        for row in RoleSessions(work).list_by_recency()
    ]


def introductions(work: UnitOfWork) -> list[IntroductionRecord]:
    """Return all introductions, the newest first contact first."""
    return [
        IntroductionRecord(row.role, row.sender, row.introduced_at, row.updated_at)
        for row in Introductions(work).list_by_recency()
    ]
