"""What happens to conversations, each in the caller's one transaction."""

from __future__ import annotations

from agentstate.conversations.workflows.deletion import delete_conversation
from agentstate.conversations.workflows.forks import (
    ask,
    complete,
    finish,
    fork,
    fork_to_free_key,
    record_turn,
    report,
    spawn,
    submit_plan,
)
from agentstate.conversations.workflows.turns import (
    append,
    create,
    set_label,
    set_status,
    set_summary,
)

__all__ = [
    "append",
    "ask",
    "complete",
    "create",
    "delete_conversation",
    "finish",
    "fork",
    "fork_to_free_key",
    "record_turn",
    "report",
    "set_label",
    "set_status",
    "set_summary",
    "spawn",
    "submit_plan",
]
