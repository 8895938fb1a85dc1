"""What happens to role state, each in the caller's one transaction."""

from __future__ import annotations

from agentstate.db.types import plain_text
from agentstate.db.uow import UnitOfWork
from agentstate.roles.repositories import Introductions


def add_first_reply_notice(work: UnitOfWork, role: str, sender: str, reply: str, notice: str) -> str:
    """Return the reply, with the notice and a blank line before it on first contact.

    Nothing is marked: the caller marks the introduction after the reply went out. A crash in between shows the notice
    twice rather than never (ID-04).
    """
    reply, notice = plain_text(reply, "reply"), plain_text(notice, "notice")
    if Introductions(work).exists(role, sender):
        return reply
    return f"{notice}\n\n{reply}"
