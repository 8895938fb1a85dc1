"""Building blocks of tests: the fixed time, rows with defaults, and real processes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentstate.approvals import workflows as approvals
from agentstate.approvals.records import RepoChange
from agentstate.conversations import workflows as conversations
from agentstate.conversations.models import Conversation, TurnKind
from agentstate.conversations.repositories import Conversations
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.roles.repositories import Introductions, RoleSessions

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
MAIN = "agent:ada:main"

ROOT = Path(__file__).resolve().parents[1]


def a_session(
    work: UnitOfWork, role: str = "worker", sender: str = "alice@bot.example", session_id: str = "s-1"
) -> None:
    """Save a session."""
    RoleSessions(work).save(role, sender, session_id)


def an_introduction(work: UnitOfWork, role: str = "worker", sender: str = "alice@bot.example") -> None:
    """Mark an introduction."""
    Introductions(work).mark(role, sender)


def a_start(
    work: UnitOfWork,
    job_id: str = "job-1",
    sender: str = "alice@bot.example",
    requested_by: str = "alice@bot.example",
    body: str = "please add a licence",
) -> None:
    """Save a request that waits for its start."""
    approvals.save_start_pending(work, job_id, sender, requested_by, body)


def an_approval(
    work: UnitOfWork,
    job_id: str = "job-1",
    requested_by: str = "alice@bot.example",
    commit_message: str = "Add a licence",
    repos: Iterable[str | RepoChange] = ("/srv/one", "/srv/two"),
) -> None:
    """Save a finished job that waits for its release."""
    approvals.save_pending_approval(work, job_id, requested_by, commit_message, list(repos))


def said(text: str = "hello", role: str = "user") -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": text}


def a_conversation(work: UnitOfWork, key: str = MAIN, *, turns: int = 0, status: str = "active") -> None:
    """Make a conversation with that many turns, which say "1", "2", …; the status is set at the end."""
    conversations.create(work, key)
    for number in range(turns):
        a_turn(work, key, str(number + 1))
    if status != "active":
        conversations.set_status(work, key, status)


def a_turn(
    work: UnitOfWork,
    key: str = MAIN,
    text: str = "hello",
    *,
    role: str = "user",
    turn_id: str | None = None,
    kind: int = TurnKind.NORMAL,
    origin_key: str | None = None,
) -> int:
    """Append a turn of one message and return its seq."""
    messages = [said(text, role)]
    return conversations.append(work, key, messages, turn_id=turn_id, kind=kind, origin_key=origin_key).seq


def filled(database: Database) -> None:
    """Put one row or more into every table, at NOON; the same ones each time, so without forks (their ids are new)."""
    with database.write(now=NOON) as work:
        a_session(work)
        a_session(work, role="builder", session_id="s-2")
        an_introduction(work)
        a_start(work, "job-1")
        an_approval(work, "job-2")
        a_conversation(work)
        a_turn(work, turn_id="turn-1")
        # Its key sorts before its parent's: whoever copies rows in the order of keys meets the child first.
        Conversations(work).add(Conversation(key="agent:ada:job", parent_key=MAIN, fork_turn_id="turn-1"))
        a_turn(work, "agent:ada:job", turn_id="turn-2", kind=TurnKind.REPORT, origin_key="subagent:job-1")


def sql(path: str | Path, statement: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
    """Run one statement as another program would, with sqlite3 alone, and return its rows."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(statement, parameters).fetchall()
        connection.commit()
    return rows


def can_lock(path: str | Path) -> bool:
    """Return whether another program could take the write lock at this moment."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def python(code: str, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start a real Python process that runs the code; `sys.argv[1:]` are the arguments."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AGENT")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**variables, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], timeout: float = 120) -> str:
    """Wait for a process to end well and return what it printed; its own words are the failure otherwise."""
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors
    return output


def agentstate(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as an operator does."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AGENT")}
    return subprocess.run(
        [sys.executable, "-m", "agentstate.cli.main", *map(str, arguments)],
        env={**variables, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
