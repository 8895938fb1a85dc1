"""What a call costs, counted: statements, steps of SQLite's machine, rows, bytes; a long history costs no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from agentstate.conversations import history, workflows
from agentstate.conversations.repositories import Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import TurnUnreadable
from builders import LATER, MAIN, NOON, a_conversation, a_turn, said
from conversation_helpers import everything, statements
from db_helpers import made

MANY = """
WITH RECURSIVE number(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM number WHERE seq < {count})
INSERT INTO turns (id, conversation_key, seq, message_count, created_at, messages)
SELECT 'turn-' || seq, '{key}', seq, 1, '2026-11-29T12:00:00.000Z',
CASE WHEN seq > {count} - 20 THEN '[{{"role":"user","content":"' || seq || '"}}]' ELSE 'not to be read' END FROM number
"""


def many_turns(work: UnitOfWork, count: int) -> None:
    """Make a conversation with that many turns, of which only the newest 20 can be read."""
    a_conversation(work)
    work.connection.exec_driver_sql(MANY.format(count=count, key=MAIN))
    work.connection.exec_driver_sql(f"UPDATE conversations SET next_seq = {count + 1}")


# --- statements ------------------------------------------------------------------------------------------------------

COSTS: dict[str, tuple[int, Callable[[UnitOfWork], object]]] = {
    "append": (2, lambda work: a_turn(work)),
    "append, by the caller's id": (4, lambda work: a_turn(work, turn_id="new")),
    "append, repeated": (2, lambda work: a_turn(work, text="1", turn_id="turn-1")),
    "report": (2, lambda work: workflows.report(work, MAIN, "subagent:1", "done")),
    "set status": (1, lambda work: workflows.set_status(work, MAIN, "review")),
    "fork": (5, lambda work: workflows.fork(work, MAIN, "child")),
    "branch off": (5, lambda work: workflows.fork(work, MAIN, "child", inherit=True)),
    "messages": (2, lambda work: history.messages(work, "leaf")),
    "provider view": (2, lambda work: history.provider_messages(work, "leaf")),
    "newest of the history": (2, lambda work: Turns(work).list_history("leaf", last=20)),
    "own turns": (2, lambda work: Turns(work).list_turns(MAIN, 3, 20)),
}


@pytest.mark.parametrize("name", COSTS)
def test_a_call_is_a_few_statements(database: Database, name: str) -> None:
    """A round trip each on a server; the history of a branch of a branch is no more than any other."""
    limit, use_case = COSTS[name]
    with database.write(now=NOON) as work:
        a_conversation(work)
        for number in range(1, 41):
            a_turn(work, text=str(number), turn_id=f"turn-{number}")
        workflows.fork(work, MAIN, "middle", inherit=True)
        workflows.fork(work, "middle", "leaf", inherit=True)

    with database.write(now=LATER) as work, statements(database) as log:
        use_case(work)

    assert 1 <= len(log) <= limit, log


def test_a_unit_that_appends_has_no_statement_of_its_own(file_database: Database) -> None:
    """Once the schema was seen at head, it is not looked at again."""
    with file_database.write() as work:
        a_conversation(work)

    with statements(file_database) as log, file_database.write() as work:
        a_turn(work)

    assert [statement.split()[0] for statement in log] == ["UPDATE", "INSERT"]


# --- the length of a history -----------------------------------------------------------------------------------------

READS: dict[str, Callable[[UnitOfWork, int], object]] = {
    "the newest of the history": lambda work, count: Turns(work).list_history(MAIN, last=20),
    "a page of the history": lambda work, count: Turns(work).list_history(MAIN, since_seq=count - 20, limit=20),
    "the end of the history": lambda work, count: Turns(work).list_history(MAIN, since_seq=count - 20),
    "a page of its own turns": lambda work, count: Turns(work).list_turns(MAIN, count - 20, 20),
    "the end of its own turns": lambda work, count: Turns(work).list_turns(MAIN, count - 20),
    "the last turn": lambda work, count: Turns(work).find_last(MAIN),
    "the newest without bodies": lambda work, count: Turns(work).list_history_info(MAIN, last=20),
    "append": lambda work, count: a_turn(work),
    "fork": lambda work, count: workflows.fork(work, MAIN, "child"),
    "branch off": lambda work, count: workflows.fork(work, MAIN, "child", inherit=True),
}


def steps(count: int, use_case: Callable[[UnitOfWork, int], object]) -> int:
    """Return how many instructions SQLite's machine executes for a call, in a conversation of that many turns."""
    done = 0

    def step() -> int:
        nonlocal done
        done += 1
        return 0

    with Database.memory() as database, database.write() as work:
        many_turns(work, count)
        driver = work.connection.connection.driver_connection
        assert driver is not None
        driver.set_progress_handler(step, 1)
        use_case(work, count)
        driver.set_progress_handler(None, 1)
    return done


@pytest.mark.parametrize("name", READS)
def test_a_long_history_costs_no_more_steps_than_a_short_one(name: str) -> None:
    """Every row that is looked at is some steps: ten thousand turns are looked at no more than a hundred."""
    assert steps(10_000, READS[name]) == steps(100, READS[name]) > 0


def test_the_newest_twenty_of_ten_thousand_are_twenty_bodies(database: Database) -> None:
    """All others cannot even be decoded, and nobody notices; whoever wants one more does."""
    with database.write() as work:
        many_turns(work, 10_000)

    with database.read() as work:
        found = Turns(work).list_history(MAIN, last=20)
        with pytest.raises(TurnUnreadable) as caught:
            Turns(work).list_history(MAIN, last=21)

    assert [turn.messages for turn in found] == [[said(str(seq))] for seq in range(9_981, 10_001)]
    assert caught.value.seq == 9_980


def looked_at(plan: dict[str, Any], table: str) -> int:
    """Return how many rows of the table the server looked at while it carried out a plan."""
    own = 0
    if plan.get("Relation Name") == table:
        own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return int(own + sum(looked_at(part, table) for part in plan.get("Plans", [])))


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_server_looks_at_no_other_conversation(server_database: Database, analyzed: bool) -> None:
    """It took every line for a hundred conversations, and read the whole table, whose rows are bodies."""
    with server_database.write() as work:
        many_turns(work, 10_000)
        workflows.fork(work, MAIN, "branch", inherit=True)
        if analyzed:
            work.connection.exec_driver_sql("ANALYZE conversations, turns")
    reads: dict[str, Callable[[UnitOfWork], object]] = {
        "newest": lambda work: Turns(work).list_history("branch", last=20),
        "page": lambda work: Turns(work).list_history("branch", since_seq=9_980, limit=20),
        "end": lambda work: Turns(work).list_history("branch", since_seq=9_980),
        "own page": lambda work: Turns(work).list_turns(MAIN, 9_980, 20),
        "last": lambda work: Turns(work).find_last(MAIN),
    }
    asked: list[tuple[str, Any]] = []
    found: dict[str, int] = {}

    event.listen(server_database._engine, "before_cursor_execute", lambda *of: asked.append((of[2], of[3])))
    for name, read in reads.items():
        with server_database.read() as work:
            read(work)
            (plan,) = work.connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {asked[-1][0]}", asked[-1][1]
            ).scalar_one()
        found[name] = looked_at(plan["Plan"], "turns")

    assert all(1 <= rows <= 100 for rows in found.values()), found


# --- what a fork stores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inherit", [False, True])
@pytest.mark.parametrize("count", [20, 10_000])
def test_a_fork_stores_two_rows_whatever_it_inherits(database: Database, count: int, inherit: bool) -> None:
    """A branch that copied its parent would double every long conversation."""
    with database.write(now=NOON) as work:
        many_turns(work, count)
    before = [set(rows) for rows in everything(database)]

    with database.write(now=LATER) as work:
        workflows.fork(work, MAIN, "child", inherit=inherit)

    added = [set(rows) - old for rows, old in zip(everything(database), before, strict=True)]
    assert [len(rows) for rows in added] == [2, 1]  # the child, the parent's own row, and the fork point
    assert sum(len(str(value)) for rows in added for row in rows for value in row) < 500


@pytest.mark.parametrize("inherit", [False, True])
def test_a_fork_writes_as_many_bytes_however_long_its_parent_is(tmp_path: Path, inherit: bool) -> None:
    """Counted in the write-ahead log: the pages of the rows and their indexes, and no others."""
    written: list[int] = []
    for count in (200, 10_000):
        path = made(tmp_path / f"{count}.db")
        with Database.open(path) as database:
            with database.write(now=NOON) as work:
                many_turns(work, count)
            with database.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            with database.write(now=LATER) as work:
                workflows.fork(work, MAIN, "child", inherit=inherit)
            written.append(os.stat(f"{path}-wal").st_size)

    assert all(0 < size < 16 * 4_120 for size in written), written
