"""Pruning much: more ids than a statement can hold, and so much that live conversations would have to wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from subprocess import TimeoutExpired

import pytest
from sqlalchemy import func, select, text

from agentstate.conversations.messages import messages_text
from agentstate.conversations.prune import prune
from agentstate.conversations.repositories import Conversations
from agentstate.conversations.repositories.line import CONVERSATIONS, TURNS
from agentstate.conversations.workflows import append, create
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.settings import Settings
from builders import NOON, finished, python, said

MANY = 300_000
"""Ids; SQLite takes 32,766 in a statement, as Debian builds it 250,000, and PostgreSQL's protocol 65,535."""

PRUNER = """
import sys
from datetime import datetime
from agentstate.conversations.prune import prune
from agentstate.db.database import Database
target, now = sys.argv[1:]
with Database.open(target) as database:
    report = prune(
        database,
        now=datetime.fromisoformat(now),
        on_progress=lambda done, total: print(done, total, flush=True),
    )
print(report.deleted, report.deleted_turns, report.kept)
"""


NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count - 1)"


def add_many(database: Database, count: int, *, below_the_first: int = 0) -> None:
    """Add conversations of long ago, "k-0" and so on; those with a number below that are children of the first."""
    statement = f"""
        {NUMBERS}
        INSERT INTO conversations (key, parent_key, status, created_at, updated_at)
        SELECT 'k-' || n, CASE WHEN n > 0 AND n < :below_the_first THEN 'k-0' END, 'completed',
            '2026-10-30T12:00:00.000Z', '2026-10-30T12:00:00.000Z' FROM numbers
    """
    with database.write() as work:
        work.connection.execute(text(statement), {"count": count, "below_the_first": below_the_first})
        work.connection.execute(text("ANALYZE"))  # as a server does by itself after a while


def add_turns(database: Database, conversations: int, each: int) -> None:
    """Give each of the conversations that many turns of a few hundred bytes."""
    statement = f"""
        {NUMBERS}
        INSERT INTO turns (id, conversation_key, seq, message_count, created_at, messages)
        SELECT 't-' || n, 'k-' || (n / :each), n % :each + 1, 1, '2026-10-30T12:00:00.000Z', :messages FROM numbers
    """
    parameters = {"count": conversations * each, "each": each, "messages": messages_text([said("word " * 60)])}
    with database.write() as work:
        work.connection.execute(text(statement), parameters)


def left(database: Database) -> tuple[int, int]:
    """Return how many conversations there are, and how many rows refer to one that is not there."""
    with database.read() as work:
        there = work.connection.execute(select(func.count()).select_from(CONVERSATIONS)).scalar_one()
        keys = select(CONVERSATIONS.c.key)
        orphans = 0
        for column in (CONVERSATIONS.c.parent_key, TURNS.c.conversation_key):
            orphans += work.connection.execute(select(func.count()).where(column.not_in(keys))).scalar_one()
        if database.backend == "sqlite":
            orphans += len(work.connection.execute(text("PRAGMA foreign_key_check")).all())
        return there, orphans


@pytest.fixture(params=["memory", "postgresql"])
def large(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of either engine; a file would only take longer."""
    if request.param == "postgresql":
        yield request.getfixturevalue("server_database")
        return
    with Database.memory() as found:
        yield found


@pytest.mark.slow
def test_300_000_conversations_are_pruned_in_one_call(large: Database) -> None:
    """RT-08, RT-05, acceptance 21: deleting a very large tree failed with "too many SQL variables".

    A tenth of that on the server, whose bound is lower: filling it takes most of the time.
    """
    many = MANY if large.in_memory else MANY // 10
    add_many(large, many, below_the_first=many - many // 30)

    done = prune(large, now=NOON, protect=[f"k-{number}" for number in range(many - 1, 2 * many)])

    assert (done.candidates, done.deleted, done.kept) == (many, many - 1, {"protected": 1})
    assert left(large) == (1, 0)


@pytest.mark.slow
def test_300_000_keys_are_looked_up_and_deleted_in_one_call(large: Database) -> None:
    """RT-08: the bound on ids in a statement is the engine's, and no caller can know it."""
    keys = [f"k-{number}" for number in range(MANY if large.in_memory else MANY // 3)]
    add_many(large, 2_000)

    with large.write() as work:
        found = [conversation.key for conversation in Conversations(work).find_many(keys)]
        Conversations(work).lock(keys)
        deleted = Conversations(work).delete_many(keys)

    assert sorted(keys[:2_000]) == found
    assert (deleted, left(large)) == (2_000, (0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "server"])
def test_live_appends_go_on_while_50_000_turns_are_pruned(kind: str, request: pytest.FixtureRequest) -> None:
    """LK-07, acceptance 21: in one transaction it held the lock for longer than others wait for it.

    Appends wait half as long as usual, and come about every 50 ms.
    """
    target = str(request.getfixturevalue("path" if kind == "file" else "server_url"))
    with Database.open(target, "rwc", settings=Settings(busy_timeout=Settings().busy_timeout / 2)) as database:
        upgrade(database)
        add_many(database, 500)
        add_turns(database, 500, 100)
        with database.write(now=NOON) as work:
            create(work, "live")

        pruner = python(PRUNER, target, NOON.isoformat())
        appended = 0
        while pruner.poll() is None:
            with database.write(now=NOON) as work:
                append(work, "live", [said()])
            appended += 1
            with suppress(TimeoutExpired):
                pruner.wait(0.05)
        *steps, report = finished(pruner).splitlines()

        done = [int(step.split()[0]) for step in steps]
        with database.read() as work:
            turns = work.connection.execute(select(func.count()).select_from(TURNS)).scalar_one()
        assert report == "500 50000 {}"
        assert [after - before for before, after in pairwise(done)] == [20] * 25
        assert (turns, left(database)) == (appended, (1, 0))
