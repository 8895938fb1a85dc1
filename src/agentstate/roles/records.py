"""Role state as plain values, without SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """Which provider session a role continues with a sender, and when it was last saved (UTC)."""

    role: str
    sender: str
    session_id: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class IntroductionRecord:
    """When a role greeted a sender first, and when the mark was last asked for (UTC)."""

    role: str
    sender: str
    introduced_at: datetime
    updated_at: datetime
