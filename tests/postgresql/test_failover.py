"""A primary dies and its standby takes over: a caller goes on without a restart, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import DatabaseReadOnly, DatabaseUnavailable
from agentstate.settings import Settings
from builders import agentstate, python
from postgres_server import Server, need_binaries

# Stores one job after the other, each again until it is acknowledged, and says what came of every call.
WRITER = """
import sys, time
from agentstate import adapter
from agentstate.errors import DatabaseError
number = 0
while True:
    number += 1
    while True:
        try:
            adapter.save_start_pending(f"job-{number}", "alice", "alice", "please", database=sys.argv[1])
            break
        except DatabaseError as error:
            print(type(error).__name__, flush=True)
            time.sleep(0.02)
    print("stored", flush=True)
"""

WRITES = 40


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """A primary with a database "agent" at head and a synchronous standby, both of which keep what they confirm."""
    need_binaries()
    primary, standby = Server(durable=True), Server(durable=True)
    try:
        primary.create()
        primary.start()
        primary.execute("CREATE DATABASE agent")
        with Database.open(primary.url("agent"), settings=Settings()) as database:
            upgrade(database)
        standby.copy_from(primary)
        standby.start()
        primary.wait_for_standby()
        yield primary, standby
    finally:
        standby.remove()
        primary.remove()


def stored(writer: subprocess.Popen[str], count: int) -> Counter[str]:
    """Read what the writer says until it has stored that many more; return how often it said what."""
    said: Counter[str] = Counter()
    assert writer.stdout is not None
    while said["stored"] < count:
        said[writer.stdout.readline().rstrip()] += 1
        assert writer.poll() is None
    return said


@pytest.mark.slow
def test_a_writer_follows_a_promoted_standby_and_loses_nothing(servers: tuple[Server, Server]) -> None:
    """Foundation section 6, PG-06: with two hosts and target_session_attrs a failover is some errors and no restart."""
    primary, standby = servers
    url = f"{primary.url('agent', others=[standby])}?target_session_attrs=read-write"
    reading = Database.open(standby.url("agent"), "ro")
    kept_open = Database.open(url)
    adapter.save_session("worker", "alice", "before", database=kept_open)
    writer = python(WRITER, url)
    try:
        before = stored(writer, WRITES)
        on_standby = len(adapter.list_start_pending(database=reading))
        status = agentstate("status", "--json", AGENT_DB_URL=standby.url("agent"))
        doctor = agentstate("doctor", AGENT_DB_URL=standby.url("agent"))
        with pytest.raises(DatabaseReadOnly, match="primary"), Database.open(standby.url("agent")) as database:
            adapter.save_session("worker", "alice", "on the standby", database=database)

        primary.crash()
        during: list[str] = []
        assert writer.stdout is not None
        while during.count("DatabaseUnavailable") < 3:
            during.append(writer.stdout.readline().rstrip())
        with pytest.raises(DatabaseUnavailable):
            adapter.save_session("worker", "alice", "nobody writes", database=kept_open)
        without_primary = adapter.load_session("worker", "alice", database=reading)
        standby.promote()
        after = stored(writer, WRITES)
        adapter.save_session("worker", "alice", "after", database=kept_open)
    finally:
        writer.kill()
        rest = Counter(writer.stdout.read().splitlines()) if writer.stdout else Counter()
        writer.communicate()

    acknowledged = before["stored"] + during.count("stored") + after["stored"] + rest["stored"]
    reading.close()
    kept_open.close()
    while standby.clients():
        pass  # the killed writer's last word is still being obeyed
    jobs = [job for (job,) in standby.rows("SELECT job_id FROM start_pending", "agent")]
    assert set(before) == {"stored"}
    assert set(during) | set(after) <= {"stored", "DatabaseUnavailable", "DatabaseReadOnly"}
    assert on_standby >= WRITES
    assert (json.loads(status.stdout)["standby"], status.returncode) == (True, 0)
    assert doctor.stdout.startswith("note\tserver\tthe server is a standby, which can only be read\t")
    assert without_primary == "before"
    assert {f"job-{number}" for number in range(1, acknowledged + 1)} <= set(jobs)
    assert len(jobs) - acknowledged in (0, 1)  # the last one may have been stored and not been told
    assert adapter.load_session("worker", "alice", database=standby.url("agent")) == "after"
