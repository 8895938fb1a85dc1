"""Many at once, as real threads and processes: no place is given twice, no turn is lost, nobody deadlocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations.records import Appended
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import (
    AgentStateError,
    ConversationChanged,
    ConversationEnded,
    ConversationHasChildren,
    ConversationNotFound,
    DatabaseBusy,
    TurnConflict,
)
from builders import LATER, MAIN, NOON, a_conversation, a_turn, finished, python, said
from conversation_helpers import column, everything, seqs, stored_seqs, texts
from postgres_server import Server

APPEND = """
import sys
from agentstate.conversations import workflows
from agentstate.db.database import Database
from agentstate.settings import Settings
target, name = sys.argv[1:]
with Database.open(target, settings=Settings(busy_timeout=60)) as database:
    for number in range(50):
        with database.write() as work:
            workflows.append(work, "agent:ada:main", [{"role": "user", "content": f"{name} {number}"}])
"""

SAME_ID = """
import sys
from agentstate.conversations import workflows
from agentstate.db.database import Database
from agentstate.errors import TurnConflict
from agentstate.settings import Settings
target, name, same = sys.argv[1:]
with Database.open(target, settings=Settings(busy_timeout=60)) as database:
    for number in range(20):
        said = [{"role": "user", "content": str(number) if same == "same" else name}]
        try:
            with database.write() as work:
                stored = workflows.append(work, "agent:ada:main", said, turn_id=str(number))
            print(number, "stored" if stored.created else "there")
        except TurnConflict:
            print(number, "conflict")
"""


def target_of(database: Database, request: pytest.FixtureRequest) -> str | None:
    """Return what another process opens, None in memory, where there is none."""
    return request.getfixturevalue("server_url") if database.backend == "postgresql" else database.path


# --- appends ---------------------------------------------------------------------------------------------------------


def test_eight_threads_and_two_processes_get_every_place_once(
    database: Database, request: pytest.FixtureRequest
) -> None:
    """LK-03: two writers got one number, and a message was dropped or stood in another's place."""
    with database.write() as work:
        a_conversation(work)
    target = target_of(database, request)
    processes = [python(APPEND, target, f"process-{number}") for number in range(2)] if target else []

    def append(thread: int) -> list[int]:
        found: list[int] = []
        for number in range(50):
            with database.write() as work:
                found.append(a_turn(work, text=f"thread-{thread} {number}"))
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(append, range(8)))
    for process in processes:
        finished(process)

    count = 500 if target else 400
    with database.read() as work:
        turns = Turns(work).list_turns(MAIN)
    assert [turn.seq for turn in turns] == list(range(1, count + 1))
    assert column(database, MAIN, "next_seq") == count + 1
    said_by = Counter(str(turn.messages[0]["content"]).split()[0] for turn in turns)
    assert set(said_by.values()) == {50}
    for thread, found in enumerate(answers):
        assert [turn.seq for turn in turns if turn.messages[0]["content"].startswith(f"thread-{thread} ")] == found


@pytest.mark.parametrize("content", ["same", "another"])
def test_of_all_who_store_one_id_one_does(database: Database, request: pytest.FixtureRequest, content: str) -> None:
    """SE-11: two deliveries of one message at once; the others find the turn, or that it is another one."""
    with database.write() as work:
        a_conversation(work)
    target = target_of(database, request)
    processes = [python(SAME_ID, target, f"process-{number}", content) for number in range(2)] if target else []

    def append(thread: int) -> list[str]:
        found: list[str] = []
        for number in range(20):
            text = str(number) if content == "same" else f"thread-{thread}"
            try:
                with database.write() as work:
                    stored = workflows.append(work, MAIN, [said(text)], turn_id=str(number))
                found.append(f"{number} {'stored' if stored.created else 'there'}")
            except TurnConflict:
                found.append(f"{number} conflict")
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = Counter(answer for answers in pool.map(append, range(8)) for answer in answers)
    for process in processes:
        answers.update(finished(process).splitlines())

    others = (8 + len(processes)) - 1
    loser = "there" if content == "same" else "conflict"
    assert answers == Counter(
        {**{f"{number} stored": 1 for number in range(20)}, **{f"{number} {loser}": others for number in range(20)}}
    )
    assert seqs(database, MAIN) == list(range(1, 21))


def test_sixteen_threads_mix_calls_and_no_memory_reads_as_empty(database: Database) -> None:
    """CN-03: tasks that shared a connection swallowed its errors, and the agent forgot everything for one answer."""
    with database.write() as work:
        a_conversation(work, turns=5)

    def mixed(thread: int) -> tuple[int, int]:
        appended = empty = 0
        for number in range(50):
            match (thread + number) % 5:
                case 0 | 1:
                    with database.write() as work:
                        a_turn(work, text=f"{thread} {number}")
                    appended += 1
                case 2:
                    with database.read() as work:
                        empty += not history.messages(work, MAIN)
                case 3:
                    with database.read() as work:
                        empty += not history.provider_messages(work, MAIN).messages
                        empty += not Turns(work).list_history(MAIN, last=3)
                case 4:
                    with database.write() as work:
                        history.compact_old_turns(work, MAIN, 3, "what was said")
        return appended, empty

    with ThreadPoolExecutor(16) as pool:
        counts = list(pool.map(mixed, range(16)))

    assert sum(empty for _, empty in counts) == 0
    assert sum(appended for appended, _ in counts) == 320
    assert column(database, MAIN, "next_seq") == 326
    assert column(database, MAIN, "summary") == "what was said"
    first = column(database, MAIN, "compacted_seq") + 1
    assert stored_seqs(database, MAIN) == list(range(first, 326))


# --- one waits for the other -----------------------------------------------------------------------------------------


def while_another_waits(
    server: Server, database: Database, first: Callable[[UnitOfWork], object], second: Callable[[UnitOfWork], object]
) -> object:
    """Let `second` begin while `first` has not committed; return its answer, or its error."""

    def run_second() -> object:
        try:
            with database.write(now=LATER) as work:
                return second(work)
        except AgentStateError as error:
            return error

    with ThreadPoolExecutor(1) as pool:
        with database.write(now=LATER) as work:
            first(work)
            waiting = pool.submit(run_second)
            while not waiting.done() and not server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
            assert not waiting.done()
        return waiting.result(60)


def test_a_fork_of_what_is_being_deleted_finds_nothing(server: Server, server_database: Database) -> None:
    """SE-09: the child was made while its parent went, and hung on nothing, outside every cascade."""
    with server_database.write(now=NOON) as work:
        a_conversation(work, turns=2)

    for inherit in (False, True):
        error = while_another_waits(
            server,
            server_database,
            lambda work: workflows.delete_conversation(work, MAIN),
            lambda work: workflows.fork(work, MAIN, "child", inherit=inherit),  # noqa: B023  (called within the loop)
        )
        assert isinstance(error, ConversationNotFound)
        assert everything(server_database) == ([], [])
        with server_database.write(now=NOON) as work:
            a_conversation(work, turns=2)


def test_a_deletion_of_what_is_being_forked_looks_again(server: Server, server_database: Database) -> None:
    """RT-04, SE-09: it decided that there are no children, and then there was one."""
    with server_database.write(now=NOON) as work:
        a_conversation(work, turns=2)

    error = while_another_waits(
        server,
        server_database,
        lambda work: workflows.fork(work, MAIN, "child"),
        lambda work: workflows.delete_conversation(work, MAIN, children="cascade"),
    )

    assert type(error) is ConversationChanged
    assert column(server_database, "child", "parent_key") == MAIN
    with server_database.write() as work, pytest.raises(ConversationHasChildren):
        workflows.delete_conversation(work, MAIN, children="cascade")


def test_a_compaction_keeps_the_turn_that_was_being_appended(server: Server, server_database: Database) -> None:
    """SE-05: what was said while the summary was stored was lost."""
    with server_database.write(now=NOON) as work:
        a_conversation(work, turns=3)

    while_another_waits(
        server,
        server_database,
        lambda work: a_turn(work, text="4"),
        lambda work: history.compact(work, MAIN, 3, "three turns"),
    )

    assert texts(server_database, MAIN) == ["4"]


def test_an_append_to_what_is_being_ended_is_refused(server: Server, server_database: Database) -> None:
    """SE-13: a turn that nobody reads any more must not look stored."""
    with server_database.write(now=NOON) as work:
        a_conversation(work, turns=1)

    for turn_id in (None, "turn-9"):
        error = while_another_waits(
            server,
            server_database,
            lambda work: workflows.set_status(work, MAIN, "completed"),
            lambda work: a_turn(work, turn_id=turn_id),  # noqa: B023  (called within the loop)
        )
        assert isinstance(error, ConversationEnded)
        with server_database.write() as work:
            workflows.set_status(work, MAIN, "active")

    assert texts(server_database, MAIN) == ["1"]


LATE: dict[str, Callable[[UnitOfWork], object]] = {
    "append": lambda work: workflows.append(work, "two", [said("late")], turn_id="turn-9"),
    "replace": lambda work: history.replace_history(work, "two", [said("late")], expected_next_seq=2, turn_id="turn-9"),
}


@pytest.mark.parametrize("name", LATE)
def test_an_id_that_is_being_taken_elsewhere_is_a_conflict_and_no_gap(
    server: Server, server_database: Database, name: str
) -> None:
    """SE-11, PG-05: the other row is not to be seen yet; nothing may be lost, and no number."""
    with server_database.write(now=NOON) as work:
        a_conversation(work, "one")
        a_conversation(work, "two", turns=1)

    def late(work: UnitOfWork) -> TurnConflict:
        with pytest.raises(TurnConflict) as caught:
            LATE[name](work)
        assert a_turn(work, "two", "2") == 2  # the unit goes on
        return caught.value

    error = while_another_waits(server, server_database, lambda work: a_turn(work, "one", turn_id="turn-9"), late)

    assert isinstance(error, TurnConflict), error
    assert (error.turn_id, error.conversation_key) == ("turn-9", "one")
    assert texts(server_database, "two") == ["1", "2"]
    assert seqs(server_database, "one") == [1]


def test_an_id_that_was_not_taken_after_all_is_free(server: Server, server_database: Database) -> None:
    """SE-11: the first unit rolls back, so the second one stores the turn."""
    with server_database.write(now=NOON) as work:
        a_conversation(work)

    def fail(work: UnitOfWork) -> None:
        a_turn(work, turn_id="turn-9")

    def second() -> Appended:
        with server_database.write() as work:
            return workflows.append(work, MAIN, [said("second")], turn_id="turn-9")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError), server_database.write() as work:
            fail(work)
            waiting = pool.submit(second)
            while not waiting.done() and not server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
            _ = 1 / 0
        stored = waiting.result(60)

    assert stored == Appended("turn-9", 1, True)
    assert texts(server_database, MAIN) == ["second"]


# --- opposite orders -------------------------------------------------------------------------------------------------

OPPOSITE = """
import sys
from agentstate.conversations import history, workflows
from agentstate.db.database import Database
from agentstate.errors import ConversationChanged
from agentstate.settings import Settings
target, me, *order = sys.argv[1:]

def finish_and_go_on(work, key, conductor):
    workflows.finish(work, key, "completed", conductor, me)
    workflows.set_status(work, key, "active")

with Database.open(target, settings=Settings(busy_timeout=60)) as database:
    def do(use_case):
        while True:
            try:
                with database.write() as work:
                    return use_case(work)
            except ConversationChanged:
                pass  # somebody was quicker: decide again

    for turn in range(100):
        for here, there in (order, order[::-1]):
            branch = f"{here}:{me}:{turn}"
            do(lambda work: workflows.fork(work, here, branch, inherit=True))
            do(lambda work: workflows.append(work, branch, [{"role": "user", "content": me}]))
            do(lambda work: finish_and_go_on(work, here, there))
            do(lambda work: history.compact_old_turns(work, branch, 0, "all"))
            do(lambda work: history.compact_old_turns(work, here, 0, "all"))
            do(lambda work: workflows.delete_conversation(work, branch, children="cascade"))
"""


@pytest.mark.slow
def test_two_processes_fork_compact_finish_and_delete_in_opposite_orders(
    server_database: Database, server_url: str
) -> None:
    """PG-02: rows locked in different orders ended in a deadlock, and memory or a run was lost."""
    with server_database.write() as work:
        a_conversation(work, "a")
        a_conversation(work, "b")

    processes = [python(OPPOSITE, server_url, name, *order) for name, *order in (("one", "a", "b"), ("two", "b", "a"))]
    for process in processes:
        finished(process)

    with server_database.write() as work:
        for key in ("a", "b"):
            history.compact_old_turns(work, key, 0, "all")
        found = [(row.key, row.next_seq, row.status, row.summary) for row in Conversations(work).find_many(["a", "b"])]
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert work.connection.exec_driver_sql(deadlocks).scalar_one() == 0
    assert found == [("a", 401, "active", "all"), ("b", 401, "active", "all")]
    conversations, turns = everything(server_database)
    assert (len(conversations), turns) == (2, [])


@pytest.mark.parametrize(
    "other",
    [
        lambda work: history.compact(work, "child", 1, "S"),
        lambda work: workflows.delete_conversation(work, MAIN, children="keep"),
        lambda work: workflows.finish(work, "sub", "completed", MAIN, "done"),
    ],
    ids=["compact", "delete", "finish"],
)
def test_a_second_turn_in_one_unit_waits_for_nobody_who_waits_for_it(
    server: Server, server_database: Database, other: Callable[[UnitOfWork], object]
) -> None:
    """PG-02: the server looks at the parent again when a child is updated twice, after the child is locked."""
    with server_database.write(now=NOON) as work:
        a_conversation(work, turns=2)
        workflows.fork(work, MAIN, "child", inherit=True)
        workflows.fork(work, MAIN, "sub")
        workflows.set_status(work, "sub", "paused")

    def run_other() -> object:
        with server_database.write() as work:
            return other(work)

    with ThreadPoolExecutor(1) as pool:
        with server_database.write() as work:
            for key in ("child", "sub"):
                workflows.append(work, key, [said("one")])
            waiting = pool.submit(run_other)
            while not waiting.done() and not server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
            for key in ("child", "sub"):
                workflows.append(work, key, [said("two")])
        error = waiting.exception(60)

    assert not isinstance(error, DatabaseBusy)
    with server_database.read() as work:
        assert [turn.messages[0]["content"] for turn in Turns(work).list_turns("child")][-2:] == ["one", "two"]
