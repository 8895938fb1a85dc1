"""What agent scripts call: one function per use case, plain values in and out.

    from agentstate import adapter
    session_id = adapter.load_session("worker", "alice@bot.example")

Every function is one transaction on the database that `AGENT_DB_PATH` (or `AGENT_DB_URL`) names, unless `database=`
is given: a path, a URL, or an open `Database`. A database opened here stays open for the life of the process.

Arguments mean the same everywhere. `role` is a role's name, such as "worker". `sender` is who writes, in any of the
spellings that `agentstate.identity.normalise_sender` folds into one. `job_id` is the queue's name for the job. `key` is
a conversation's name, any text of up to 512 characters, and `seq` a turn's place in it. Refused values raise
`InvalidValue` (or below it `InvalidRole`, `InvalidIdentifier`) naming the field, before anything is written. All
functions can raise the errors of `DatabaseError`; after any error the next call works.

Importing this package loads neither SQLAlchemy nor Alembic; the first call loads SQLAlchemy and its one area. Each area
has a file of its own here, named after it, and this one lists what scripts call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentstate.adapter.approvals import (
    claim_approval,
    claim_start,
    delete_pending_approval,
    delete_start_pending,
    find_stash_ref,
    list_pending_approvals,
    list_start_pending,
    load_pending_approval,
    load_start_pending,
    mark_repo_done,
    save_pending_approval,
    save_start_pending,
    unfinished,
)
from agentstate.adapter.conversations import (
    append_turn,
    compact_conversation,
    conversation_graph,
    create_conversation,
    delete_conversation,
    finish_subagent,
    fork_conversation,
    import_sessions,
    list_conversations,
    load_messages,
    load_provider_messages,
    load_turns,
    prune_conversations,
    report_turn,
    set_conversation_status,
    set_conversation_summary,
)
from agentstate.adapter.handles import Target as Target
from agentstate.adapter.roles import (
    add_first_reply_notice,
    is_introduced,
    load_session,
    mark_introduced,
    reset_session,
    save_session,
)

if TYPE_CHECKING:
    from agentstate.approvals.records import (
        PendingApprovalRecord,
        PendingRepoRecord,
        RepoChange,
        StartPendingRecord,
        UnfinishedRecord,
    )

__all__ = [
    "PendingApprovalRecord",
    "PendingRepoRecord",
    "RepoChange",
    "StartPendingRecord",
    "UnfinishedRecord",
    "add_first_reply_notice",
    "append_turn",
    "claim_approval",
    "claim_start",
    "compact_conversation",
    "conversation_graph",
    "create_conversation",
    "delete_conversation",
    "delete_pending_approval",
    "delete_start_pending",
    "find_stash_ref",
    "finish_subagent",
    "fork_conversation",
    "import_sessions",
    "is_introduced",
    "list_conversations",
    "list_pending_approvals",
    "list_start_pending",
    "load_messages",
    "load_pending_approval",
    "load_provider_messages",
    "load_session",
    "load_start_pending",
    "load_turns",
    "mark_introduced",
    "mark_repo_done",
    "prune_conversations",
    "report_turn",
    "reset_session",
    "save_pending_approval",
    "save_session",
    "save_start_pending",
    "set_conversation_status",
    "set_conversation_summary",
    "unfinished",
]

# The classes of what the functions return or take, and where they are written: a script that names none loads none.
_RECORDS = {
    "PendingApprovalRecord": "agentstate.approvals.records",
    "PendingRepoRecord": "agentstate.approvals.records",
    "RepoChange": "agentstate.approvals.records",
    "StartPendingRecord": "agentstate.approvals.records",
    "UnfinishedRecord": "agentstate.approvals.records",
}

# One public path, in help and pickles too, whichever file a function is written in.
for _name in __all__:
    if _name not in _RECORDS:
        globals()[_name].__module__ = __name__


def __getattr__(name: str) -> object:
    """Load a record class at its first use: `adapter.RepoChange` (PEP 562)."""
    if name in _RECORDS:
        return getattr(import_module(_RECORDS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
