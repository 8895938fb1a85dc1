"""The whole schema in one place: importing this maps every area."""

from __future__ import annotations

from agentstate.approvals import models as _approvals
from agentstate.conversations import models as _conversations
from agentstate.db.base import Base
from agentstate.roles import models as _roles

__all__ = ["AREAS", "metadata"]

AREAS = (_roles, _approvals, _conversations)
metadata = Base.metadata
