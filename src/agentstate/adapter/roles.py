"""What agent scripts call for role state: sessions and introductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentstate._lazy import LazyModule
from agentstate.adapter.handles import Target, open_database

if TYPE_CHECKING:
    from agentstate.roles import repositories as _rows
    from agentstate.roles import workflows as _workflows
else:
    _rows = LazyModule("agentstate.roles.repositories")
    _workflows = LazyModule("agentstate.roles.workflows")


def load_session(role: str, sender: str, *, database: Target = None) -> str | None:
    """Return the provider session that the role continues with the sender, or None."""
    with open_database(database).read() as work:
        return _rows.RoleSessions(work).find(role, sender)


def save_session(role: str, sender: str, session_id: str, *, database: Target = None) -> None:
    """Remember the provider session to continue, in place of an earlier one. `session_id` is any text but the empty."""
    with open_database(database).write() as work:
        _rows.RoleSessions(work).save(role, sender, session_id)


def reset_session(role: str, sender: str, *, database: Target = None) -> bool:
    """Forget the session (`/neu`), keep the introduction; return whether there was a session."""
    with open_database(database).write() as work:
        return _rows.RoleSessions(work).delete(role, sender)


def is_introduced(role: str, sender: str, *, database: Target = None) -> bool:
    """Return whether the role has greeted the sender."""
    with open_database(database).read() as work:
        return _rows.Introductions(work).exists(role, sender)


def mark_introduced(role: str, sender: str, *, database: Target = None) -> bool:
    """Remember that the sender has been greeted; return True for exactly one caller, however many race.

    The time of the first mark stays, the time of the last one is refreshed.
    """
    with open_database(database).write() as work:
        return _rows.Introductions(work).mark(role, sender)


def add_first_reply_notice(role: str, sender: str, reply: str, notice: str, *, database: Target = None) -> str:
    """Return the reply, with the notice and a blank line before it on first contact.

    Marks nothing: call `mark_introduced` once the reply went out, so that the notice is shown at least once.
    """
    with open_database(database).read() as work:
        return _workflows.add_first_reply_notice(work, role, sender, reply, notice)
