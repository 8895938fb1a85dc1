"""What is left after a failure: faults in the middle of every write, full disks, killed processes.

LK-05 and FS-04 speak of turns; sessions, requests and approvals serve here. The same for the tables of later areas
belongs to their tests.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import (
    AgentStateError,
    DatabaseFull,
    DatabaseMissing,
    DatabaseUnavailable,
    InvalidValue,
    TooLarge,
)
from agentstate.settings import Settings
from builders import a_session, filled, python
from db_helpers import asked, can_write, made, on_small_disk
from migration_helpers import contents

MODES = pytest.mark.parametrize("journal_mode", ["wal", "delete"])
ALICE = "alice@bot.example"

WRITES: dict[str, Callable[[Database], object]] = {
    "save_session": lambda to: adapter.save_session("worker", ALICE, "s-9", database=to),
    "reset_session": lambda to: adapter.reset_session("worker", ALICE, database=to),
    "mark_introduced": lambda to: adapter.mark_introduced("worker", "bob@bot.example", database=to),
    "save_start_pending": lambda to: adapter.save_start_pending("job-3", ALICE, ALICE, "please", database=to),
    "delete_start_pending": lambda to: adapter.delete_start_pending("job-1", database=to),
    "claim_start": lambda to: adapter.claim_start("job-1", "builder", database=to),
    "save_pending_approval": lambda to: adapter.save_pending_approval("job-3", ALICE, "Fix", ["/a", "/b"], database=to),
    "claim_approval": lambda to: adapter.claim_approval("job-2", "builder", database=to),
    "mark_repo_done": lambda to: adapter.mark_repo_done("job-2", "/srv/one", "abc123", database=to),
    "delete_pending_approval": lambda to: adapter.delete_pending_approval("job-2", database=to),
}


class Fault(Exception):
    """Something unforeseen."""


@contextmanager
def fault(database: Database, moment: str, count: int = 1) -> Iterator[None]:
    """Let something unforeseen happen when an event of the engine comes for the count-th time."""
    left = [count]

    def strike(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Fault

    event.listen(database._engine, moment, strike)
    try:
        yield
    finally:
        event.remove(database._engine, moment, strike)


def assert_untouched(path: Path, before: object) -> None:
    """Check that a stranger gets the write lock at once and finds what was there."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        stranger.execute("ROLLBACK")
    assert contents(path) == before


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute", "commit"])
@pytest.mark.parametrize("write", WRITES)
def test_a_fault_anywhere_in_a_write_leaves_no_row_and_no_lock(
    file_database: Database, path: Path, write: str, moment: str
) -> None:
    """LK-05: a failed write kept its transaction open, and every later writer met 'database is locked'."""
    filled(file_database)
    before = contents(path)
    faults = 0

    for count in range(1, 100):
        try:
            with fault(file_database, moment, count):
                WRITES[write](file_database)
        except Fault:
            faults = count
            assert_untouched(path, before)
        else:
            break

    assert faults >= 1
    assert contents(path) != before


@pytest.mark.parametrize("value", [object(), float("nan"), b"s-1", "a\0b", "\ud800"])
def test_a_value_that_cannot_be_stored_leaves_no_lock(file_database: Database, path: Path, value: Any) -> None:
    """LK-05: the first rows were in already when an item turned out to be none."""
    filled(file_database)
    before = contents(path)

    def use_case() -> None:
        with file_database.write() as work:
            a_session(work, session_id="s-9")
            a_session(work, role="builder", session_id=value)

    with pytest.raises(InvalidValue):
        use_case()

    assert_untouched(path, before)


def limit(database: Database, pages: int) -> None:
    """Let the database's one connection hold that many pages and no more."""
    with database.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


@MODES
def test_a_full_database_keeps_what_it_has_and_takes_the_rest_later(path: Path, journal_mode: str) -> None:
    """FS-04: half of a turn was stored, or 'cannot rollback' hid that the disk was full."""
    settings = Settings(journal_mode=journal_mode)
    made(path, settings=settings)

    def save(database: Database) -> None:
        adapter.save_pending_approval("job-3", ALICE, "x" * 1_000_000, ["/a", "/b", "/c"], database=database)

    with Database.open(path, settings=settings) as database:
        filled(database)
        before = contents(path)
        limit(database, int(str(asked(path, "PRAGMA page_count"))) + 10)

        with pytest.raises(DatabaseFull, match="free space") as caught:
            save(database)

        assert_untouched(path, before)
        assert adapter.load_session("worker", ALICE, database=database) == "s-1"
        adapter.save_session("worker", ALICE, "s-2", database=database)
        limit(database, 1_000_000)
        save(database)
        found = adapter.load_pending_approval("job-3", database=database)

    assert caught.value.database == str(path)
    assert found is not None
    assert [len(found.commit_message), len(found.repos)] == [1_000_000, 3]
    assert asked(path, "SELECT count(*) FROM pending_approval") == 2
    assert asked(path, "PRAGMA integrity_check") == "ok"


FULL_DISK = """
from pathlib import Path
from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import DatabaseFull
from agentstate.settings import Settings
path = Path("agent.db").absolute()
large = ("job-1", "alice", "alice", "x" * 3_000_000)
with Database.open(path, "rwc", settings=Settings(journal_mode=sys.argv[1])) as database:
    upgrade(database)
    adapter.save_session("worker", "alice", "s-1", database=database)
    try:
        adapter.save_start_pending(*large, database=database)
    except DatabaseFull as error:
        print(error.database == str(path))
    print(adapter.load_start_pending("job-1", database=database))
    print(adapter.load_session("worker", "alice", database=database))
    adapter.save_session("worker", "alice", "s-2", database=database)
    grow("40m")
    adapter.save_start_pending(*large, database=database)
    print(len(adapter.load_start_pending("job-1", database=database).body))
"""


@MODES
def test_a_full_disk_is_told_like_a_full_database(tmp_path: Path, journal_mode: str) -> None:
    """FS-04: a real file system without space, and then with some."""
    found = on_small_disk(FULL_DISK, tmp_path / "disk", "1m", journal_mode)

    assert found == ["True", "None", "s-1", "3000000"]


INSIDE = """
import sys, time
from agentstate.db.database import Database
from agentstate.roles.repositories import RoleSessions
from agentstate.settings import Settings
with Database.open(sys.argv[1], settings=Settings(journal_mode=sys.argv[2])) as database, database.write() as work:
    work.session.connection().exec_driver_sql("PRAGMA cache_size = 5")  # so that pages are in the file before the end
    for number in range(2000):
        RoleSessions(work).save("worker", f"sender-{number}", "x" * 500)
    print("inside", flush=True)
    time.sleep(3600)
"""


@MODES
def test_a_killed_writer_leaves_nothing_behind(path: Path, journal_mode: str) -> None:
    """LK-05: kill -9 in the middle of a unit, whose pages are partly in the file already."""
    settings = Settings(busy_timeout=0, journal_mode=journal_mode)
    made(path, settings=settings)
    with Database.open(path, settings=settings) as database:
        filled(database)
    before = contents(path)
    writer = python(INSIDE, path, journal_mode)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "inside\n"
    locked = not can_write(path)

    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with Database.open(path, settings=settings) as database:
        found = adapter.load_session("worker", "sender-1", database=database)
        rows = contents(path)
        adapter.save_session("worker", "sender-1", "s-1", database=database)

    assert locked
    assert found is None
    assert rows == before
    assert asked(path, "PRAGMA integrity_check") == "ok"


@MODES
@pytest.mark.parametrize("replaced", [True, False])
def test_a_unit_is_not_stored_in_a_file_that_went_away_under_it(path: Path, journal_mode: str, replaced: bool) -> None:
    """A commit into a file without a name succeeds, and nobody ever finds it."""
    settings = Settings(journal_mode=journal_mode)
    made(path, settings=settings)
    other = made(path.with_name("other.db"))

    def use_case(database: Database) -> None:
        with database.write() as work:
            a_session(work)
            for file in [path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}-journal")]:
                file.unlink(missing_ok=True)
            if replaced:
                os.replace(other, path)

    with Database.open(path, settings=settings) as database:
        with pytest.raises(DatabaseUnavailable if replaced else DatabaseMissing):
            use_case(database)

        if replaced:
            assert adapter.load_session("worker", ALICE, database=database) is None
            adapter.save_session("worker", ALICE, "s-2", database=database)

    assert path.exists() is replaced


def test_a_value_larger_than_a_row_can_be_is_named(file_database: Database) -> None:
    """The driver's 'string or blob too big' is the caller's mistake, and not the database's."""
    with file_database.write() as work:
        driver: Any = work.session.connection().connection.driver_connection
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)

        with pytest.raises(TooLarge):
            a_session(work, session_id="x" * 2000)


def test_a_drivers_error_of_no_special_kind_keeps_its_words_and_code(file_database: Database) -> None:
    """SQLAlchemy's and sqlite3's errors never reach a caller, and nothing of what they say is lost."""
    with file_database.read() as work, pytest.raises(AgentStateError) as caught:
        work.session.connection().exec_driver_sql("SELECT nonsense(")

    assert type(caught.value) is DatabaseUnavailable
    assert "incomplete input (SQLITE_ERROR)" in str(caught.value)
    assert isinstance(caught.value.__cause__, sqlite3.Error)
