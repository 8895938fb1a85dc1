"""Walking a long history while the caller takes its time: no snapshot is held for that long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from agentstate.conversations import history
from agentstate.conversations.messages import messages_text
from agentstate.conversations.workflows import create
from agentstate.db.database import Database
from agentstate.settings import Settings
from builders import NOON, a_turn, said
from db_helpers import asked, made

TURNS = 5_000
LIMIT = 64 * 2**20
SIZE = 20_000
"""Characters of a turn that is written elsewhere: all of them are more than the limit."""

A_LONG_HISTORY = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
    INSERT INTO turns (id, conversation_key, seq, message_count, created_at, messages)
    SELECT 'long-' || n, 'long', n, 1, '2026-10-30T12:00:00.000Z', :messages FROM numbers
"""


@pytest.fixture
def long(path: Path) -> Iterator[Database]:
    """A database in a file with a conversation of 5,000 turns and an empty one."""
    made(path)
    with Database.open(path, settings=Settings(busy_timeout=60, synchronous="normal")) as database:
        with database.write(now=NOON) as work:
            create(work, "long")
            create(work, "elsewhere")
            work.connection.execute(text(A_LONG_HISTORY), {"count": TURNS, "messages": messages_text([said()])})
            work.connection.execute(text("UPDATE conversations SET next_seq = 5001 WHERE key = 'long'"))
        yield database


def test_the_log_stays_small_while_a_long_history_is_walked(long: Database, path: Path) -> None:
    """FS-13: one read over everything kept its snapshot as long as its caller was busy, and the log grew meanwhile.

    The caller's slow code is the writing of 5,000 turns elsewhere, as many as it has been given.
    """
    assert TURNS * SIZE > 1.3 * LIMIT
    log = path.with_name(f"{path.name}-wal")
    largest = walked = 0

    with Database.open(path, settings=long.settings) as elsewhere:
        for walked, turn in enumerate(history.walk_history(long, "long"), 1):
            assert turn.seq == walked
            if walked % 50 == 0:
                with elsewhere.write(now=NOON) as work:
                    for _ in range(50):
                        a_turn(work, "elsewhere", "x" * SIZE)
                largest = max(largest, log.stat().st_size)

    assert walked == TURNS
    assert 0 < largest < LIMIT
    assert asked(path, "SELECT count(*) FROM turns WHERE conversation_key = 'elsewhere'") == TURNS
