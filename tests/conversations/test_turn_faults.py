"""Whatever fails, and whenever: a conversation is as it was before the call, and the same call works afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from agentstate.conversations import history, workflows
from agentstate.conversations.repositories import Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import DatabaseFull
from agentstate.settings import Settings
from builders import LATER, MAIN, NOON, a_conversation, a_turn, can_lock, python, said
from conversation_helpers import Injected, everything, statements, texts
from db_helpers import asked, can_write, made, on_small_disk

MODES = pytest.mark.parametrize("journal_mode", ["wal", "delete"])


def a_family(work: UnitOfWork) -> None:
    """Make MAIN (6 turns, of which 2 are compacted) with two branches, one of them branched, and a sub-agent."""
    a_conversation(work, turns=4)
    workflows.fork(work, MAIN, "branch", inherit=True, at_seq=3)
    workflows.fork(work, MAIN, "late", inherit=True)
    a_turn(work, "branch", "4, branch")
    workflows.fork(work, "branch", "leaf", inherit=True)
    history.compact(work, MAIN, 2, "two turns")
    workflows.create(work, "subagent:scout")


OPERATIONS: dict[str, Callable[[UnitOfWork], object]] = {
    "append": lambda work: a_turn(work),
    "append by id": lambda work: a_turn(work, turn_id="turn-9"),
    "create": lambda work: workflows.create(work, "new"),
    "set status": lambda work: workflows.set_status(work, MAIN, "review"),
    "compact": lambda work: history.compact(work, MAIN, 5, "five turns"),
    "compact a branch": lambda work: history.compact(work, "branch", 3, "three turns"),
    "compact old turns": lambda work: history.compact_old_turns(work, MAIN, 1, "three turns"),
    "replace": lambda work: history.replace_history(work, MAIN, [said("new")], expected_next_seq=7),
    "replace by nothing": lambda work: history.replace_history(work, "branch", [], expected_next_seq=6),
    "fork": lambda work: workflows.fork(work, MAIN, "new"),
    "branch off": lambda work: workflows.fork(work, MAIN, "new", inherit=True),
    "finish": lambda work: workflows.finish(work, "subagent:scout", "completed", MAIN, "done"),
    "delete": lambda work: workflows.delete_conversation(work, "leaf"),
    "delete, keep": lambda work: workflows.delete_conversation(work, MAIN, children="keep"),
    "delete, cascade": lambda work: workflows.delete_conversation(work, MAIN, children="cascade"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_before_any_statement_leaves_everything_as_it_was(database: Database, name: str) -> None:
    """SE-06, LK-05: the old history was cleared, the new one was not written; or the lock stayed."""
    with database.write(now=NOON) as work:
        a_family(work)
    before = everything(database)
    faults = 0

    for number in range(1, 50):
        try:
            with statements(database, fail_before=number), database.write(now=LATER) as work:
                OPERATIONS[name](work)
            break
        except Injected:
            faults += 1
            assert everything(database) == before, number
            assert database.path is None or can_lock(database.path)

    assert 1 <= faults < 49
    assert everything(database) != before


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_the_commit_leaves_everything_as_it_was(database: Database, name: str) -> None:
    """SE-06, LK-05: the last of all moments."""
    with database.write(now=NOON) as work:
        a_family(work)
    before = everything(database)

    def strike(_: object) -> None:
        raise Injected

    event.listen(database._engine, "commit", strike)
    try:
        with pytest.raises(Injected), database.write(now=LATER) as work:
            OPERATIONS[name](work)
    finally:
        event.remove(database._engine, "commit", strike)

    assert everything(database) == before
    assert database.path is None or can_lock(database.path)
    with database.write(now=LATER) as work:
        OPERATIONS[name](work)


# --- full ------------------------------------------------------------------------------------------------------------

LARGE = [said("look"), {"role": "tool", "content": "x" * 1_000_000, "tool_call_id": "call_1"}, said("thanks")]


def limit(database: Database, pages: int) -> None:
    """Let the database's one connection hold that many pages and no more."""
    with database.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


@MODES
def test_a_turn_that_does_not_fit_is_absent_and_stored_once_later(path: Path, journal_mode: str) -> None:
    """FS-04: a part of the turn was stored, and the conversation could not be opened any more."""
    settings = Settings(journal_mode=journal_mode)
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database:
        with database.write() as work:
            a_conversation(work, turns=2)
        before = everything(database)
        limit(database, int(str(asked(path, "PRAGMA page_count"))) + 10)
        with pytest.raises(DatabaseFull), database.write() as work:
            workflows.append(work, MAIN, LARGE, turn_id="large")
        after, free = everything(database), can_lock(path)
        with database.write() as work:
            small = a_turn(work, text="small")
        limit(database, 1_000_000)
        with database.write() as work:
            stored = workflows.append(work, MAIN, LARGE, turn_id="large")
        with database.write() as work:
            again = workflows.append(work, MAIN, LARGE, turn_id="large")

        assert texts(database, MAIN) == ["1", "2", "small", *(message["content"] for message in LARGE)]
    assert (after, free) == (before, True)
    assert (small, stored.seq, stored.created, again.created) == (3, 4, True, False)
    assert asked(path, "PRAGMA integrity_check") == "ok"


FULL_DISK = """
import sys
from pathlib import Path
from agentstate.conversations import history, workflows
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import DatabaseFull
from agentstate.settings import Settings
path = Path("agent.db").absolute()
large = [{"role": "user", "content": "look"}, {"role": "tool", "content": "x" * 3_000_000}]
def append(database, messages):
    with database.write() as work:
        return workflows.append(work, "k", messages, turn_id=str(len(messages))).seq
def said(database):
    with database.read() as work:
        return [len(message["content"]) for message in history.messages(work, "k")]
with Database.open(path, "rwc", settings=Settings(journal_mode=sys.argv[1])) as database:
    upgrade(database)
    with database.write() as work:
        workflows.create(work, "k")
    append(database, large[:1])
    try:
        append(database, large)
    except DatabaseFull as error:
        print(error.database == str(path))
    print(said(database))
    grow("40m")
    print(append(database, large), append(database, large))
    print(said(database))
"""


@MODES
def test_a_full_disk_takes_no_part_of_a_turn(tmp_path: Path, journal_mode: str) -> None:
    """FS-04: a real file system without space, and then with some."""
    found = on_small_disk(FULL_DISK, tmp_path / "disk", "1m", journal_mode)

    assert found == ["True", "[4]", "2 2", "[4, 4, 3000000]"]


# --- killed ----------------------------------------------------------------------------------------------------------

INSIDE = """
import sys, time
from agentstate.conversations import history, workflows
from agentstate.db.database import Database
from agentstate.settings import Settings
with Database.open(sys.argv[1], settings=Settings(journal_mode=sys.argv[2])) as database, database.write() as work:
    work.connection.exec_driver_sql("PRAGMA cache_size = 5")  # so that pages are in the file before the end
    history.compact(work, "agent:ada:main", 2, "two turns")
    for number in range(20):
        workflows.append(work, "agent:ada:main", [{"role": "user", "content": "x" * 100_000}])
    print("inside", flush=True)
    time.sleep(3600)
"""


@MODES
def test_a_process_killed_between_turns_leaves_none_of_them(path: Path, journal_mode: str) -> None:
    """SE-12: half a turn was there after the kill, and the agent could not start any more."""
    settings = Settings(busy_timeout=0, journal_mode=journal_mode)
    made(path, settings=settings)
    with Database.open(path, settings=settings) as database:
        with database.write(now=NOON) as work:
            a_conversation(work, turns=3)
        before = everything(database)
    writer = python(INSIDE, path, journal_mode)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "inside\n"
    locked = not can_write(path)

    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with Database.open(path, settings=settings) as database:
        after = everything(database)
        with database.write() as work:
            seq = a_turn(work)

    assert locked
    assert after == before
    assert seq == 4
    assert asked(path, "PRAGMA integrity_check") == "ok"


KILLED = """
import sys
from agentstate.conversations import workflows
from agentstate.db.database import Database
with Database.open(sys.argv[1]) as database:
    print("going", flush=True)
    for number in range(100_000):
        messages = [{"role": "user", "content": str(part)} for part in range(number % 7 + 1)]
        with database.write() as work:
            workflows.append(work, "agent:ada:main", messages, meta={"number": number})
"""


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_whole_turns(file_database: Database, path: Path) -> None:
    """SE-12: each turn is there with all its messages or not at all, and no number is missing."""
    with file_database.write() as work:
        a_conversation(work)
    counts = [0]

    for _ in range(5):
        writer = python(KILLED, path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "going\n"
        while asked(path, "SELECT count(*) FROM turns") == counts[-1]:
            pass
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with file_database.read() as work:
            turns = Turns(work).list_turns(MAIN)
        counts.append(len(turns))

        assert [turn.seq for turn in turns] == list(range(1, len(turns) + 1))
        for turn in turns:
            assert turn.meta is not None
            assert len(turn.messages) == turn.message_count == turn.meta["number"] % 7 + 1

    assert counts == sorted(set(counts))
    assert asked(path, "PRAGMA integrity_check") == "ok"
