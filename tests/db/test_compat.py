"""Databases that predate a column, and rows that other hands damaged, are read as far as they can be."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

import frozen
from agentstate.approvals import workflows as approvals
from agentstate.approvals.models import PendingApproval, PendingApprovalRepo, StartPending
from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.db.compat import readable, readable_rows
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import UnreadableValue
from agentstate.roles import views
from agentstate.roles.models import RoleSession
from agentstate.roles.repositories import RoleSessions
from builders import NOON, a_session, a_start, finished, python, sql

# UP-02's table (pi_agent_sessions) and UP-06's statuses belong to the kernel and the broker: the areas here have no
# vocabulary. Their columns `claimed_at`, `claimed_by`, `stash_commit`, `done_at` and `commit_sha` play the part of
# `kind`.

UPGRADE_AND_CLAIM = """
import sys
from agentstate.approvals import workflows
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
with Database.open(sys.argv[1]) as database:
    upgrade(database)
    with database.write() as work:
        workflows.claim_start(work, "job-1", "somebody else")
"""


# --- older schemas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_rows_of_an_older_schema_look_like_rows_of_the_newest(mode: str, path: Path, tmp_path: Path) -> None:
    """UP-02: a viewer that opened a database without a column died of "no such column"."""
    frozen.load("0002", path)
    frozen.load("0002", tmp_path / "upgraded.db")

    with Database.open(path, "ro" if mode == "ro" else "rw") as database, database.read() as work:
        old = (
            approvals.list_start_pending(work),
            approvals.list_pending_approvals(work),
            approvals.load_start_pending(work, "job-1"),
            approvals.load_pending_approval(work, "job-7"),
            approvals.list_start_pending(work, "telegram:42"),
            approvals.unfinished(work),
        )
    with Database.open(tmp_path / "upgraded.db") as database:
        upgrade(database)
        with database.read() as work:
            new = (
                approvals.list_start_pending(work),
                approvals.list_pending_approvals(work),
                approvals.load_start_pending(work, "job-1"),
                approvals.load_pending_approval(work, "job-7"),
                approvals.list_start_pending(work, "telegram:42"),
                approvals.unfinished(work),
            )

    assert old == new
    assert [start.claimed_by for start in old[0]] == [None] * 3
    assert [len(approval.repos) for approval in old[1]] == [3, 1, 0]


def test_the_stand_in_yields_ordinary_objects(path: Path) -> None:
    """UP-02: code that gets a row must not have to know which database it came from."""
    frozen.load("0002", path)

    with Database.open(path, "ro") as database, database.read() as work:
        start = readable(StartPending, work.session)
        found = work.session.scalars(select(start).where(start.job_id == "job-1", start.claimed_at.is_(None))).one()

    assert type(found) is StartPending
    assert (found.sender, found.created_at, found.claimed_at, found.claimed_by) == (
        "alice@bot.example",
        datetime(2026, 5, 11, 12, 0, tzinfo=UTC),
        None,
        None,
    )


def test_a_reader_kept_open_sees_the_columns_that_another_process_adds(path: Path) -> None:
    """UP-02: that a column is missing was remembered, and hid its real values until the viewer was restarted."""
    frozen.load("0002", path)

    with Database.open(path, "ro") as viewer:
        with viewer.read() as work:
            before = StartsPending(work).list_oldest_first()
            shown = [start.claimed_by for start in before]
        finished(python(UPGRADE_AND_CLAIM, path))
        with viewer.read() as work:
            after = [(type(start), start.claimed_by) for start in StartsPending(work).list_oldest_first()]

    assert shown == [None, None, None]
    assert after == [(StartPending, "somebody else"), (StartPending, None), (StartPending, None)]


def test_a_reader_inside_its_snapshot_is_not_disturbed_by_an_upgrade(path: Path) -> None:
    """UP-02: one reading unit is one moment, also when the schema changes in the middle of it."""
    frozen.load("0002", path, journal_mode="wal")

    with Database.open(path, "ro") as viewer:
        with viewer.read() as work:
            first = StartsPending(work).find("job-1")
            finished(python(UPGRADE_AND_CLAIM, path))
            work.session.expunge_all()
            second = StartsPending(work).find("job-1")
        with viewer.read() as work:
            third = StartsPending(work).find("job-1")

    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.claimed_by, second.claimed_by, third.claimed_by) == (None, None, "somebody else")


def test_a_complete_table_is_asked_for_its_columns_once_per_database(path: Path) -> None:
    """Asking each time would double the cost of every read; what is complete stays complete."""
    frozen.load("0002", path)
    sql(path, "ALTER TABLE start_pending ADD COLUMN claimed_at TEXT")
    sql(path, "ALTER TABLE start_pending ADD COLUMN claimed_by TEXT")

    with Database.open(path, "ro") as database:
        with database.read() as work:
            complete, lacking = readable(StartPending, work.session), readable(PendingApproval, work.session)
        with database.read() as work:
            remembered = set(work.session.info["complete_tables"])

    assert complete is StartPending
    assert lacking is not PendingApproval
    assert remembered == {"start_pending"}


def test_at_head_the_class_itself_is_read(file_database: Database) -> None:
    """A normal call pays nothing for databases of yesterday."""
    with file_database.read() as work:
        found = [readable(model, work.session) for model in (StartPending, PendingApproval, PendingApprovalRepo)]

    assert found == [StartPending, PendingApproval, PendingApprovalRepo]


# --- rows that others damaged ----------------------------------------------------------------------------------------


def test_one_undecodable_row_of_100_does_not_hide_the_other_99(
    file_database: Database, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """VA-08: another tool had written Latin-1; the fetch raised and the whole list was unreadable."""
    with file_database.write(now=NOON) as work:
        for number in range(100):
            a_session(work, sender=f"user{number}@bot.example", session_id=f"s-{number}")
    sql(path, "UPDATE sessions SET session_id = CAST(x'ff41' AS TEXT) WHERE sender = 'user42@bot.example'")

    with caplog.at_level(logging.WARNING, "agentstate"), file_database.read() as work:
        rows = RoleSessions(work).list_by_recency()

    assert sorted(int(row.session_id[2:]) for row in rows) == [number for number in range(100) if number != 42]
    assert {type(row) for row in rows} == {RoleSession}
    assert {row.updated_at for row in rows} == {NOON}
    (warning,) = caplog.messages
    assert all(word in warning for word in ("sessions", "role='worker'", "sender='user42@bot.example'", "session_id"))


DAMAGE = {
    "not utf-8": ("body = CAST(x'c328' AS TEXT)", "body is not UTF-8"),
    "not utf-8 in the key": ("job_id = CAST(x'6afffe' AS TEXT)", "job_id is not UTF-8"),
    "no time": ("created_at = 'yesterday'", "'yesterday' is not a time"),
    "a time out of range": ("created_at = 99999999999999", "is not a time"),
}


@pytest.mark.parametrize("revision", ["0002", "0003"])
@pytest.mark.parametrize(("change", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_a_row_that_cannot_be_read_is_left_out_and_named(
    change: str, reason: str, revision: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """VA-08: on the newest schema and through the stand-in for an older one; the others keep their order and values."""
    frozen.load(revision, path)
    sql(path, f"UPDATE start_pending SET {change} WHERE job_id = 'job-1 (2)'")

    with Database.open(path, "ro") as database, database.read() as work:
        start = readable(StartPending, work.session)
        rows = readable_rows(work.session, start, select(start).order_by(start.job_id))
        others = [(row.job_id, row.body, row.claimed_by) for row in rows]

    kept = sql(path, "SELECT job_id, body FROM start_pending WHERE body LIKE 'Füge%' OR body = '' ORDER BY job_id")
    assert [(job_id, body) for job_id, body, _ in others] == kept
    assert {claimed for _, _, claimed in others} == ({None} if revision == "0002" else {"builder@host:4711"})
    (warning,) = caplog.messages
    assert "start_pending" in warning
    assert reason in warning


def test_a_row_asked_for_by_its_key_raises_instead(file_database: Database, path: Path) -> None:
    """VA-08: None would say that the job is not there, and it would be accepted a second time."""
    with file_database.write(now=NOON) as work:
        a_start(work, "job-1")
    sql(path, "UPDATE start_pending SET body = CAST(x'ff41' AS TEXT)")

    with pytest.raises(UnreadableValue) as caught, file_database.read() as work:
        StartsPending(work).find("job-1")
    with file_database.read() as work:
        other = PendingApprovals(work).find("job-1")

    assert (caught.value.field, caught.value.database) == ("body", str(path))
    assert other is None


def test_times_that_earlier_programs_wrote_are_read(file_database: Database, path: Path) -> None:
    """TM-04: replacing sqlite3's own datetime adapter changed the form on disk; what it wrote still reads."""
    with closing(sqlite3.connect(path)) as connection:
        for number, time in enumerate(["2026-11-29 12:00:00", "2026-11-29 12:00:00.000000+00:00", 1795953600]):
            connection.execute("INSERT INTO sessions VALUES ('worker', ?, 's', ?)", (f"{number}@b", time))
        connection.commit()

    with file_database.read() as work:
        times = [session.updated_at for session in views.sessions(work)]

    assert times == [NOON] * 3


def test_nothing_is_registered_for_the_whole_process() -> None:
    """TM-04: an adapter of sqlite3's is everybody's; the host's own datetimes would change on disk."""
    code = (
        "import sqlite3\n"
        "before = (dict(sqlite3.adapters), dict(sqlite3.converters))\n"
        "import agentstate.metadata, agentstate.cli.main\n"
        "from agentstate.db.database import Database\n"
        "from agentstate.db.schema import upgrade\n"
        "with Database.memory() as database, database.write() as work:\n"
        "    pass\n"
        "assert (dict(sqlite3.adapters), dict(sqlite3.converters)) == before\n"
    )

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
