"""One handle used by forked children and by many threads.

Forks happen in processes of their own here: the test runner has threads, which do not survive a fork. CN-01 and CN-04
on PostgreSQL: tests/postgresql/test_forks.py and test_outages.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import AlreadyPending, ConstraintViolated
from agentstate.settings import Settings
from builders import NOON, a_session, a_start, finished, python
from db_helpers import asked, can_write, made

MODES = pytest.mark.parametrize("journal_mode", ["wal", "delete"])

# What every script starts with. `tell` and `wait` are the two ends of a pipe between parent and child.
START = """
import os, sys, threading
from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import DatabaseUnavailable
from agentstate.settings import Settings
path, mode = sys.argv[1:]
settings = Settings(busy_timeout=20, journal_mode=mode)
database = Database.open(path, settings=settings)

def save(name, count=50, to=database):
    for number in range(count):
        adapter.save_session("worker", f"{name}-{number}", "s-1", database=to)

def refused(call, *arguments):
    try:
        call(*arguments)
    except DatabaseUnavailable as error:
        return "forked" in str(error) and path in str(error)

class Signal:
    def __init__(self):
        self.read, self.write = os.pipe()
    def tell(self):
        os.write(self.write, b"x")
    def wait(self):
        os.read(self.read, 1)

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

BOTH_WRITE = """
adapter.load_session("worker", "alice", database=database)
child = os.fork()
if child == 0:
    save("child")
    sys.exit(0)
save("parent")
assert status(child) == 0
save("parent", 51)
"""

PARENT_CLOSES = """
adapter.load_session("worker", "alice", database=database)
written, closed = Signal(), Signal()
child = os.fork()
if child == 0:
    save("child")
    written.tell()
    closed.wait()
    save("later child")
    written.tell()
    closed.wait()
    sys.exit(0)
written.wait()
save("parent")
database.close()
closed.tell()
written.wait()
save("later parent")
closed.tell()
assert status(child) == 0
"""

FORK_INSIDE = """
with database.write() as work:
    from agentstate.roles.repositories import RoleSessions
    RoleSessions(work).save("worker", "alice", "s-1")
    child = os.fork()
    if child == 0:
        assert refused(save, "child", 1)
        assert refused(Database.open, path)
        assert refused(RoleSessions(work).save, "worker", "bob", "s-1")
        {leave}
    assert status(child) == {expected}
    if mode == "delete":
        assert os.path.exists(path + "-journal"), "the child rolled the parent's transaction back"
save("parent", 1)
"""

THREAD_INSIDE = """
other = Database.open(path + ".other", settings=settings)
inside, done = threading.Event(), threading.Event()
def work():
    with database.write():
        inside.set()
        done.wait()
thread = threading.Thread(target=work)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    assert refused(save, "child", 1)
    assert refused(lambda: adapter.load_session("worker", "alice", database=path))
    save("child", 50, to=other)
    os._exit(0)
code = status(child)
done.set()
thread.join()
assert code == 0
save("parent")
"""

LOCKS_HELD = """
import sqlite3
from agentstate.adapter import handles
other = path + ".other"
outsider = sqlite3.connect(path, isolation_level=None)
outsider.execute("BEGIN EXCLUSIVE")
thread = threading.Thread(target=adapter.load_session, args=("worker", "alice"), kwargs={"database": path})
database.close()
database._lock.acquire()
os.environ["AGENT_DB_BUSY_TIMEOUT"] = "20"
thread.start()
while not handles._opening.locked():
    pass
child = os.fork()
if child == 0:
    adapter.save_session("worker", "alice", "s-1", database=other)
    assert database._lock.acquire(blocking=False)
    os._exit(0)
code = status(child)
outsider.execute("COMMIT")
outsider.close()
thread.join()
assert code == 0
"""

MEMORY = """
memory = Database.memory()
adapter.save_session("worker", "alice", "the parent's", database=memory)
child = os.fork()
if child == 0:
    assert adapter.load_session("worker", "alice", database=memory) == "the parent's"
    save("child", 50, to=memory)
    sys.exit(0)
assert status(child) == 0
assert adapter.load_session("worker", "child-1", database=memory) is None
"""


def run(script: str, path: Path, journal_mode: str) -> None:
    """Run a script on a new database."""
    made(path, settings=Settings(journal_mode=journal_mode))
    finished(python(START + script, path, journal_mode))
    assert asked(path, "PRAGMA integrity_check") == "ok"


@MODES
def test_parent_and_child_write_through_one_handle(path: Path, journal_mode: str) -> None:
    """CN-01: a connection carried through fork() has locks that it only believes to hold."""
    run(BOTH_WRITE, path, journal_mode)

    assert asked(path, "SELECT count(*) FROM sessions") == 101


@MODES
def test_what_a_child_commits_survives_that_its_parent_closes(path: Path, journal_mode: str) -> None:
    """CN-01: the parent took itself for the last one and removed the log that the child went on writing."""
    run(PARENT_CLOSES, path, journal_mode)

    assert asked(path, "SELECT count(*) FROM sessions") == 200


@MODES
@pytest.mark.parametrize(
    ("leave", "expected"), [("sys.exit(3)", 3), ("raise ValueError", 1)], ids=["exit", "exception"]
)
def test_a_child_forked_inside_a_unit_leaves_it_to_its_parent(
    path: Path, journal_mode: str, leave: str, expected: int
) -> None:
    """CN-01: leaving the block, or only ending, the child rolled back what the parent was about to commit."""
    run(FORK_INSIDE.format(leave=leave, expected=expected), path, journal_mode)

    assert asked(path, "SELECT count(*) FROM sessions") == 2


@MODES
def test_a_child_cannot_commit_its_parents_unit(path: Path, journal_mode: str) -> None:
    """CN-01: a block that both leave would be committed twice, by one of them without the lock."""
    script = """
child = None
try:
    with database.write() as work:
        from agentstate.roles.repositories import RoleSessions
        RoleSessions(work).save("worker", "alice", "s-1")
        child = os.fork()
        if child:
            assert status(child) == 4
except DatabaseUnavailable as error:
    sys.exit(4 if child == 0 and "forked" in str(error) else 5)
"""
    run(script, path, journal_mode)

    assert asked(path, "SELECT count(*) FROM sessions") == 1


@MODES
def test_a_child_forked_while_a_thread_writes_is_refused_there_only(path: Path, journal_mode: str) -> None:
    """CN-01: SQLite in the child takes that thread's locks for its own; an error is better than lost rows."""
    other = made(Path(f"{path}.other"))

    run(THREAD_INSIDE, path, journal_mode)

    assert asked(path, "SELECT count(*) FROM sessions") == 50
    assert asked(other, "SELECT count(*) FROM sessions") == 50


def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have(path: Path) -> None:
    """CN-01: a lock held by another thread at the moment of the fork is held for ever in the child."""
    other = made(Path(f"{path}.other"))

    run(LOCKS_HELD, path, "delete")

    assert asked(other, "SELECT count(*) FROM sessions") == 1


def test_a_child_has_its_own_copy_of_a_database_in_memory(path: Path) -> None:
    """CN-01: memory is copied by a fork, connection and all, and has no locks to lose."""
    run(MEMORY, path, "wal")


def test_many_threads_mix_reads_and_writes_on_one_handle(database: Database) -> None:
    """CN-03: parallel tasks shared a connection; the losers swallowed the error and the agent 'forgot'."""
    with database.write(now=NOON) as work:
        a_start(work, "job-0")

    def use(thread: int) -> list[int]:
        seen = []
        for number in range(50):
            sender = f"sender-{thread}-{number}"
            adapter.save_session("worker", sender, f"s-{number}", database=database)
            assert adapter.load_session("worker", sender, database=database) == f"s-{number}"
            seen.append(len(adapter.list_start_pending(database=database)))
        adapter.save_start_pending(f"job-{thread}", "alice", "alice", "please", database=database)
        return seen

    with ThreadPoolExecutor(16) as pool:
        seen = [count for counts in pool.map(use, range(1, 17)) for count in counts]

    assert len(seen) == 16 * 50
    assert min(seen) >= 1
    assert len(adapter.list_start_pending(database=database)) == 17
    with database.read() as work:
        assert work.session.connection().exec_driver_sql("SELECT count(*) FROM sessions").scalar() == 16 * 50


def test_a_conflict_does_not_make_the_handle_unusable(database: Database) -> None:
    """CN-04: after one IntegrityError every later call on the same object failed until the restart."""
    request = ("job-1", "alice@bot.example", "alice@bot.example")
    adapter.save_start_pending(*request, "please", database=database)
    values = "('worker', 'bob@bot.example', 's-1', '2026-11-29T11:00:00.000Z')"

    with pytest.raises(AlreadyPending):
        adapter.save_start_pending(*request, "something else", database=database)
    with pytest.raises(ConstraintViolated, match=r"(?i)unique"), database.write() as work:
        work.session.connection().exec_driver_sql(f"INSERT INTO sessions VALUES {values}, {values}")

    with database.write() as work:
        a_session(work)
    assert adapter.load_session("worker", "alice@bot.example", database=database) == "s-1"
    assert adapter.load_session("worker", "bob@bot.example", database=database) is None


def test_a_conflict_keeps_no_lock(file_database: Database, path: Path) -> None:
    """CN-04: nor may it keep others from writing."""
    adapter.save_start_pending("job-1", "alice", "alice", "please", database=file_database)

    with pytest.raises(AlreadyPending):
        adapter.save_start_pending("job-1", "alice", "alice", "something else", database=file_database)

    assert can_write(path)
