"""Role state: what one session and one introduction are."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from agentstate.db.base import Base
from agentstate.db.types import CheckedText, Identifier, UtcText, opaque_text
from agentstate.identity import normalise_sender, valid_role


class RoleSession(Base):
    """The provider session that a role continues with a sender; `session_id` is opaque to us."""

    __tablename__ = "sessions"

    role: Mapped[str] = mapped_column(Identifier("role", valid_role), primary_key=True)
    sender: Mapped[str] = mapped_column(Identifier("sender", normalise_sender), primary_key=True)
    session_id: Mapped[str] = mapped_column(CheckedText("session_id", opaque_text))
    updated_at: Mapped[datetime] = mapped_column(UtcText("updated_at"))


class Introduction(Base):
    """The mark that a role has greeted a sender: when first, and when the mark was last asked for."""

    __tablename__ = "introductions"

    role: Mapped[str] = mapped_column(Identifier("role", valid_role), primary_key=True)
    sender: Mapped[str] = mapped_column(Identifier("sender", normalise_sender), primary_key=True)
    introduced_at: Mapped[datetime] = mapped_column(UtcText("introduced_at"))
    updated_at: Mapped[datetime] = mapped_column(UtcText("updated_at"))
