"""Many at once on a server, where nothing but rows and locks of jobs keeps them apart: one winner, nobody hurt."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade
from agentstate.errors import AgentStateError, AlreadyPending, DatabaseBusy, SchemaBehind, StartStillPending
from agentstate.settings import Settings
from builders import a_start, an_approval, finished, python
from postgres_server import Server

# Each process lets its threads make the same call at one moment, under names of their own, and prints what came of it.
RACER = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from agentstate import adapter
from agentstate.errors import AgentStateError
target, call, process = sys.argv[1:]

class Lost(AgentStateError):
    pass

def won(answer):
    if not answer:
        raise Lost

def save_start(name):
    adapter.save_start_pending("job-9", name, name, name, database=target)

def save_approval(name):
    adapter.save_pending_approval("job-9", name, name, ["/a", "/b"], database=target)

calls = {
    "claim_start": lambda name: adapter.claim_start("job-1", name, database=target),
    "claim_approval": lambda name: adapter.claim_approval("job-2", name, database=target),
    "mark_introduced": lambda name: won(adapter.mark_introduced("worker", "alice", database=target)),
    "mark_repo_done": lambda name: adapter.mark_repo_done("job-2", "/srv/one", name, database=target),
    "delete_approval": lambda name: won(adapter.delete_pending_approval("job-2", database=target)),
    "save_start": save_start,
    "save_approval": save_approval,
    "save_either": lambda name: (save_start, save_approval)[ord(name[-1]) % 2](name),
}

def answer(number):
    name = f"{process}-{number}"
    barrier.wait()
    try:
        calls[call](name)
    except AgentStateError as error:
        return type(error).__name__
    return "won by " + name

barrier = threading.Barrier(8)
with ThreadPoolExecutor(8) as pool:
    print(*pool.map(answer, range(8)), sep="\\n")
"""

RACES = {
    "claim_start": {"AlreadyClaimed"},
    "claim_approval": {"AlreadyClaimed"},
    "mark_introduced": {"Lost"},
    "mark_repo_done": {"AlreadyReleased"},
    "delete_approval": {"Lost"},
    "save_start": {"AlreadyPending"},
    "save_approval": {"AlreadyPending"},
    "save_either": {"AlreadyPending", "StartStillPending"},
}


@pytest.mark.parametrize("call", RACES)
def test_of_the_threads_of_two_processes_one_wins(server_database: Database, server_url: str, call: str) -> None:
    """AP-01, AP-02, AP-09, ID-04: a double click ran the side effect twice, or one id stood for two jobs."""
    with server_database.write() as work:
        a_start(work, "job-1")
        an_approval(work, "job-2")

    processes = [python(RACER, server_url, call, name) for name in ("one", "two")]
    answers = [line for process in processes for line in finished(process).splitlines()]

    winners = [answer for answer in answers if answer.startswith("won by ")]
    assert len(answers) == 16
    assert len(winners) == 1
    assert set(answers) - set(winners) <= RACES[call]
    if call.startswith("save"):
        starts = [job.body for job in adapter.list_start_pending(database=server_database) if job.job_id == "job-9"]
        waiting = [job for job in adapter.list_pending_approvals(database=server_database) if job.job_id == "job-9"]
        assert [f"won by {name}" for name in starts + [job.commit_message for job in waiting]] == winners
        assert all(len(job.repos) == 2 for job in waiting)


@pytest.mark.parametrize("first", ["start", "approval"])
def test_a_job_id_that_another_unit_is_saving_is_waited_for(
    server: Server, server_database: Database, first: str
) -> None:
    """AP-09: neither unit sees the other's row yet, and both would store a job under the one id."""
    saves = {
        "start": lambda work: a_start(work, "job-9"),
        "approval": lambda work: an_approval(work, "job-9"),
    }
    second = "approval" if first == "start" else "start"

    def save_second() -> None:
        with server_database.write() as work:
            saves[second](work)

    with ThreadPoolExecutor(1) as pool:
        with server_database.write() as work:
            saves[first](work)
            waiting = pool.submit(save_second)
            while not waiting.done() and not server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
        refused = waiting.exception(60)

    assert isinstance(refused, StartStillPending if first == "start" else AlreadyPending)
    found = (
        adapter.list_start_pending(database=server_database),
        adapter.list_pending_approvals(database=server_database),
    )
    assert [len(rows) for rows in found] == ([1, 0] if first == "start" else [0, 1])


# --- opposite orders -------------------------------------------------------------------------------------------------

OPPOSITE = """
import sys
from agentstate import adapter
from agentstate.errors import Conflict, NotFound
target, me, *order = sys.argv[1:]
for turn in range(200):
    for job in order:
        adapter.save_session("worker", job, f"{me}-{turn}", database=target)
        try:
            adapter.save_pending_approval(job, "alice", "Add", ["/a", "/b"], database=target)
            adapter.claim_approval(job, me, database=target)
            for repo in ("/a", "/b") if me == "one" else ("/b", "/a"):
                adapter.mark_repo_done(job, repo, "c" * 40, database=target)
            adapter.delete_pending_approval(job, database=target)
        except (Conflict, NotFound):
            pass
"""


def test_two_processes_work_on_two_jobs_in_opposite_orders(server_database: Database, server_url: str) -> None:
    """PG-02: rows locked in different orders ended in deadlocks; here each call takes its locks in one order."""
    processes = [python(OPPOSITE, server_url, name, *order) for name, *order in (("one", "a", "b"), ("two", "b", "a"))]

    for process in processes:
        finished(process)

    with server_database.read() as work:
        assert work.connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 2
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert work.connection.exec_driver_sql(deadlocks).scalar_one() == 0
    assert adapter.list_pending_approvals(database=server_database) == []


def test_units_that_deadlock_by_their_callers_order_end_typed_whole_and_repeatable(server_url: str) -> None:
    """PG-02: an order that only the callers know may deadlock; the server ends one of the two, the other goes on."""
    with Database.open(server_url, settings=Settings(busy_timeout=60)) as database:
        both_hold_one = threading.Barrier(2)

        def save(first: str, second: str) -> str:
            try:
                with database.write() as work:
                    a_start(work, first)
                    both_hold_one.wait(60)
                    a_start(work, second)
                return "done"
            except DatabaseBusy:
                with database.write() as work:
                    a_start(work, first)
                    a_start(work, second)
                return "done again"

        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(save, ("job-1", "job-2"), ("job-2", "job-1")))

        assert sorted(ends) == ["done", "done again"]
        assert len(adapter.list_start_pending(database=database)) == 2


# --- beside a change of the schema -----------------------------------------------------------------------------------


def test_writers_beside_a_downgrade_and_an_upgrade_get_typed_errors_only(server_url: str) -> None:
    """PG-02: a unit and an upgrade that wanted two tables in different orders waited for each other, and one died."""
    settings = Settings(busy_timeout=60)
    with (
        Database.open(server_url, settings=settings) as database,
        Database.open(server_url, settings=settings) as other,
    ):
        stop = threading.Event()
        errors: Counter[str] = Counter()

        def write(number: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                try:
                    adapter.save_start_pending(f"{number}-{turn}", "alice", "alice", "please", database=database)
                    adapter.list_pending_approvals(database=database)
                    adapter.delete_start_pending(f"{number}-{turn}", database=database)
                except AgentStateError as error:
                    errors[type(error).__name__] += 1

        with ThreadPoolExecutor(3) as pool:
            writers = [pool.submit(write, number) for number in range(3)]
            try:
                for _ in range(10):
                    downgrade(other, "0002", force=True)
                    upgrade(other)
            finally:
                stop.set()
            for writer in writers:
                writer.result(60)

        assert set(errors) <= {"DatabaseBusy", "DatabaseUnavailable", SchemaBehind.__name__}
        adapter.save_start_pending("after", "alice", "alice", "please", database=database)
