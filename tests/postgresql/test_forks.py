"""One handle used by a process and by its forked children.

Forks happen in processes of their own here: the test runner has threads, which do not survive a fork.
"""

from __future__ import annotations

import pytest

from builders import finished, python
from postgres_server import Server

# What every script starts with.
START = """
import gc, os, sys, threading
from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import DatabaseUnavailable
from agentstate.roles.repositories import RoleSessions
from agentstate.settings import Settings
database = Database.open(sys.argv[1], settings=Settings(busy_timeout=20))

def save(name, count=50, to=database):
    for number in range(count):
        adapter.save_session("worker", f"{name}-{number}", "s-1", database=to)

def backend():
    with database.read() as work:
        return work.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

BOTH_WRITE = """
before = backend()
children = []
for number in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        assert backend() != before
        save(f"child-{{number}}")
        {leave}
save("parent")
assert [status(child) for child in children] == [0, 0, 0]
save("parent", 51)
assert backend() == before, "the parent had to connect anew"
"""

FORK_INSIDE = """
before = backend()
with database.write() as work:
    RoleSessions(work).save("worker", "alice", "s-1")
    child = os.fork()
    if child == 0:
        try:
            RoleSessions(work).save("worker", "bob", "s-1")
        except DatabaseUnavailable as error:
            assert "forked" in str(error)
        else:
            os._exit(9)
        save("child")
        {leave}
    assert status(child) == {expected}
    RoleSessions(work).save("builder", "alice", "s-1")
assert backend() == before, "the parent had to connect anew"
save("parent", 1)
"""

BOTH_LEAVE = """
child = None
try:
    with database.write() as work:
        RoleSessions(work).save("worker", "alice", "s-1")
        child = os.fork()
        if child:
            assert status(child) == 4
except DatabaseUnavailable as error:
    sys.exit(4 if child == 0 and "forked" in str(error) else 5)
"""

THREAD_INSIDE = """
inside, done = threading.Event(), threading.Event()
def work():
    with database.write() as unit:
        RoleSessions(unit).save("worker", "thread", "s-1")
        inside.set()
        done.wait()
thread = threading.Thread(target=work)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    save("child")
    gc.collect()
    sys.exit(0)
assert status(child) == 0
done.set()
thread.join()
save("parent")
"""

OTHERS = pytest.mark.parametrize("leave", ["sys.exit(0)", "database.close(); sys.exit(0)", "os._exit(0)"])


def senders(server: Server, url: str) -> int:
    """Return how many sessions there are, as another program counts them."""
    return int(server.rows("SELECT count(*) FROM sessions", url.rpartition("/")[2])[0][0])


@OTHERS
def test_parent_and_children_write_through_one_handle(server: Server, server_url: str, leave: str) -> None:
    """CN-01: a child's end said goodbye on the parent's connection; the parent keeps its connection and uses it."""
    finished(python(START + BOTH_WRITE.format(leave=leave), server_url))

    assert senders(server, server_url) == 3 * 50 + 51


@pytest.mark.parametrize(
    ("leave", "expected"),
    [("sys.exit(3)", 3), ("raise ValueError", 1), ("database.close(); gc.collect(); sys.exit(0)", 0)],
    ids=["exit", "exception", "close"],
)
def test_a_child_forked_inside_a_unit_leaves_it_to_its_parent(
    server: Server, server_url: str, leave: str, expected: int
) -> None:
    """CN-01: the child's rollback went down the parent's connection, whose COMMIT then had nothing to commit."""
    finished(python(START + FORK_INSIDE.format(leave=leave, expected=expected), server_url))

    assert senders(server, server_url) == 2 + 50 + 1


def test_a_child_cannot_commit_its_parents_unit(server: Server, server_url: str) -> None:
    """CN-01: a block that both leave would be committed by the one that comes first, in the middle of the other's."""
    finished(python(START + BOTH_LEAVE, server_url))

    assert senders(server, server_url) == 1


def test_a_child_forked_while_a_thread_writes_has_connections_of_its_own(server: Server, server_url: str) -> None:
    """CN-01: a server has no locks that a process only believes to hold, so the child may write at once."""
    finished(python(START + THREAD_INSIDE, server_url))

    assert senders(server, server_url) == 1 + 50 + 50
