"""Space of deleted rows is given back: FS-13 (the write-ahead log) and FS-14 (the file), in steps that hold nobody up.

That others get their turn between deletions is shown with the prune (LK-07).
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from agentstate import clock
from agentstate.db.database import Database
from agentstate.db.space import STEP_PAGES, SpaceReport
from agentstate.errors import (
    DatabaseBusy,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnavailable,
    InvalidValue,
    NoRoomToRewrite,
    SchemaBehind,
)
from agentstate.settings import Settings
from builders import a_session, sql
from db_helpers import asked, holding, made, on_small_disk

MEBIBYTE = 2**20


def fill_and_empty(path: Path, mebibytes: int, *, keep: int = 0) -> None:
    """Store that many rows of a mebibyte, and delete all but the last few, as another program would."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE IF NOT EXISTS filling (body BLOB)")
        connection.executemany("INSERT INTO filling VALUES (zeroblob(?))", [(MEBIBYTE,)] * mebibytes)
        connection.execute("DELETE FROM filling WHERE rowid <= ?", (mebibytes - keep,))
        connection.commit()


def without_auto_vacuum(path: Path) -> None:
    """Make the file one that keeps its size, as a program without that setting makes it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")


def wal(path: Path) -> int:
    """Return the bytes of the write-ahead log."""
    log = path.with_name(f"{path.name}-wal")
    return log.stat().st_size if log.exists() else 0


# --- the file ---


def test_the_file_of_deleted_rows_gets_small(file_database: Database, path: Path) -> None:
    """FS-14: rows were deleted by age, and the file kept its peak size."""
    fill_and_empty(path, 20)
    peak = path.stat().st_size + wal(path)

    report = file_database.reclaim()

    assert peak > 20 * MEBIBYTE
    assert path.stat().st_size < peak / 4
    assert wal(path) == 0
    assert (report.file_before + report.wal_before, report.file_after) == (peak, path.stat().st_size)
    assert (report.auto_vacuum, report.free_pages_after, report.wal_after, report.hint) == ("incremental", 0, 0, "")
    assert report.free_pages_before > 5_000


def test_work_is_bounded_and_the_next_call_goes_on(file_database: Database, path: Path) -> None:
    """FS-14: a full VACUUM blocked everybody; so many pages at a time do not."""
    fill_and_empty(path, 10)

    first = file_database.reclaim(1_500)
    second = file_database.reclaim(1)
    last = file_database.reclaim()

    assert first.free_pages_before - first.free_pages_after == 1_500
    assert first.hint == f"{first.free_pages_after} free pages are left for the next run"
    assert second.free_pages_before - second.free_pages_after == 1
    assert (last.free_pages_after, last.hint) == (0, "")


def test_between_two_steps_others_get_their_turn(
    file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LK-07: a step moves 1,000 pages, and SQLite queues nobody who waits for the lock."""
    fill_and_empty(path, 10)
    rests: list[float] = []
    free: list[object] = []

    def note(seconds: float) -> None:
        rests.append(seconds)
        free.append(asked(path, "PRAGMA freelist_count"))
        sql(path, "UPDATE sessions SET session_id = session_id")  # the lock is free

    monkeypatch.setattr(clock, "pause", note)

    before = file_database.reclaim().free_pages_before

    assert all(0.005 <= seconds <= 0.1 for seconds in rests)
    assert free == [max(0, before - STEP_PAGES * step) for step in range(1, before // STEP_PAGES + 2)]


def test_time_that_is_up_ends_it_after_a_step(file_database: Database, path: Path) -> None:
    """A timer gives maintenance so many seconds; each run must still get on."""
    fill_and_empty(path, 10)

    report = file_database.reclaim(max_seconds=0)

    assert report.free_pages_before - report.free_pages_after == STEP_PAGES
    assert wal(path) == 0


@pytest.mark.parametrize("mode", ["delete", "truncate"])
def test_it_works_without_a_write_ahead_log(path: Path, mode: str) -> None:
    """FS-01: on a shared file system there is none."""
    settings = Settings(journal_mode=mode, busy_timeout=60)
    made(path, settings=settings)
    fill_and_empty(path, 5)

    with Database.open(path, settings=settings) as database:
        report = database.reclaim()

    assert report.file_after < report.file_before / 4
    assert (report.wal_before, report.wal_after, report.hint) == (0, 0, "")


def test_nothing_to_give_back_is_no_error(file_database: Database) -> None:
    """A timer runs it every night."""
    file_database.reclaim()

    report = file_database.reclaim()

    assert report.file_before == report.file_after > 0
    assert (report.free_pages_before, report.free_pages_after, report.hint) == (0, 0, "")


# --- a file that was made without auto_vacuum ---


def test_a_file_made_without_auto_vacuum_says_so(path: Path) -> None:
    """FS-14: it did nothing, and nobody knew why the file stayed as large."""
    made(path)
    without_auto_vacuum(path)
    fill_and_empty(path, 3)

    with Database.open(path) as database:
        report = database.reclaim()

    assert report.auto_vacuum == "none"
    assert report.free_pages_before == report.free_pages_after > 700
    assert report.file_after > 3 * MEBIBYTE
    assert "'agentstate maintain --full' rewrites it once" in report.hint


def test_full_rewrites_it_once_and_for_all(path: Path) -> None:
    """FS-14: afterwards it can be made smaller like any other, with every row that it had."""
    made(path)
    without_auto_vacuum(path)
    fill_and_empty(path, 5, keep=1)

    with Database.open(path) as database:
        report = database.reclaim(full=True)
        assert (asked(path, "PRAGMA auto_vacuum"), report.auto_vacuum) == (2, "incremental")
        assert (report.free_pages_after, report.hint, wal(path)) == (0, "", 0)
        assert MEBIBYTE < report.file_after == path.stat().st_size < 2 * MEBIBYTE

        fill_and_empty(path, 5, keep=1)
        assert database.reclaim().file_after < 3 * MEBIBYTE
    assert asked(path, "PRAGMA integrity_check") == "ok"
    assert asked(path, "SELECT count(*) FROM filling") == 2


def test_a_rewrite_without_room_for_it_is_not_begun(tmp_path: Path) -> None:
    """FS-04: it needs as much free disk as the rows have; a disk that is full in the middle helps nobody."""
    code = f"""
import sqlite3
from pathlib import Path
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import NoRoomToRewrite
path = Path("agent.db").absolute()
with Database.open(path, "rwc") as database:
    upgrade(database)
    filling = sqlite3.connect(path)
    filling.execute("CREATE TABLE filling (body BLOB)")
    filling.commit()
    for _ in range(6):
        filling.execute("INSERT INTO filling VALUES (zeroblob(1 << 20))")
        filling.commit()
        filling.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    filling.close()
    before = path.read_bytes()
    try:
        database.reclaim(full=True)
    except NoRoomToRewrite as error:
        print(error.needed > 6 << 20, error.free < 4 << 20, path.read_bytes() == before)
    grow("30m")
    print(database.reclaim(full=True).auto_vacuum)
"""

    assert on_small_disk(code, tmp_path / "disk", "10m") == ["True True True", "incremental"]


def test_a_rewrite_waits_for_the_lock_and_says_when_it_did_not_get_it(path: Path) -> None:
    """LK-08: VACUUM's bare "database is locked" says neither which database nor what to do."""
    made(path)
    fill_and_empty(path, 1)

    with Database.open(path, settings=Settings(busy_timeout=0.1)) as database:
        with holding(path, "BEGIN IMMEDIATE"), pytest.raises(DatabaseBusy) as caught:
            database.reclaim(full=True)
        assert database.reclaim(full=True).free_pages_after == 0

    assert (caught.value.database, caught.value.seconds) == (str(path), 0.1)


# --- readers and writers meanwhile ---


def test_a_reader_who_keeps_the_log_is_reported(file_database: Database, path: Path) -> None:
    """FS-13: one reader kept open starved the checkpoint, and the log grew until the disk was full."""
    with holding(path, "BEGIN", "SELECT count(*) FROM sessions"):
        fill_and_empty(path, 2)

        report = file_database.reclaim()

        assert report.blocked_by_reader
        assert report.wal_after == wal(path) > 2 * MEBIBYTE
        assert "somebody is still reading" in report.hint

    report = file_database.reclaim()
    assert (report.blocked_by_reader, report.wal_after, report.hint) == (False, 0, "")
    assert path.stat().st_size < MEBIBYTE


def test_a_reader_of_the_newest_rows_is_told_from_a_writer(file_database: Database, path: Path) -> None:
    """FS-13: everything is in the file already, but the log cannot be cut while somebody reads from it."""
    with file_database.write() as work:
        a_session(work)

    with holding(path, "BEGIN", "SELECT count(*) FROM sessions"):
        reading = file_database.reclaim()
    with file_database.write() as work:
        a_session(work)
    with holding(path, "BEGIN IMMEDIATE"):
        writing = file_database.reclaim()

    assert (reading.blocked_by_reader, reading.wal_after > 0) == (True, True)
    assert (writing.blocked_by_reader, writing.wal_after > 0) == (False, True)
    assert writing.hint == "somebody is writing, so that the write-ahead log could not be emptied this time"


def test_writers_do_not_wait_for_a_reader_of_old_rows(path: Path) -> None:
    """LK-07: a checkpoint that waits for a reader holds the write lock; here the reader stays as long as it takes."""
    made(path)
    with (
        Database.open(path, settings=Settings(busy_timeout=12)) as database,
        holding(path, "BEGIN", "SELECT count(*) FROM sessions"),
        ThreadPoolExecutor(1) as pool,
    ):
        with database.write() as work:
            a_session(work)
        cleaning = pool.submit(database.reclaim)
        with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as writer:
            while not cleaning.done():
                writer.execute("UPDATE sessions SET session_id = session_id")

    assert cleaning.result().blocked_by_reader


def test_a_lock_that_is_held_too_long_is_an_error_of_ours(path: Path) -> None:
    """LK-08: what was given back before stays given."""
    made(path)
    fill_and_empty(path, 1)

    with Database.open(path, settings=Settings(busy_timeout=0.1)) as database:
        with holding(path, "BEGIN IMMEDIATE"), pytest.raises(DatabaseBusy):
            database.reclaim()
        assert database.reclaim().free_pages_after == 0


# --- where nothing can be given back ---


def test_a_planted_link_is_not_followed(file_database: Database, path: Path, tmp_path: Path) -> None:
    """FS-12: a log that somebody put beside the database would be written through."""
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    path.with_name(f"{path.name}-journal").symlink_to(victim)

    with pytest.raises(DatabaseUnavailable, match="is a symbolic link, which is not followed"):
        file_database.reclaim()

    assert victim.read_text() == "theirs"


def test_where_there_is_no_file_there_is_nothing_to_do(database: Database) -> None:
    """The same call everywhere: code for one engine must not fail on the other."""
    report = database.reclaim(full=True)

    if database.path is None:
        hint = "" if database.in_memory else "on PostgreSQL autovacuum does this"
        assert report == SpaceReport(None, hint=hint)
    else:
        assert report.auto_vacuum == "incremental"


def test_a_handle_that_cannot_write_says_so(path: Path) -> None:
    """An operator looks with a read-only handle; nothing is moved under them."""
    made(path)

    with Database.open(path, "ro") as database, pytest.raises(DatabaseReadOnly):
        database.reclaim()


def test_a_schema_that_is_not_ours_is_left_alone(path: Path) -> None:
    """UP-01: whoever does not know the schema does not write to the file."""
    made(path, to="0002")

    with Database.open(path) as database, pytest.raises(SchemaBehind):
        database.reclaim()


@pytest.mark.parametrize("pages", [-1, 1.5, True, "many", None])
def test_a_number_of_pages_is_one(file_database: Database, pages: object) -> None:
    """SQLite takes a negative number, and text, for "all of them"."""
    with pytest.raises(InvalidValue, match="max_pages"):
        file_database.reclaim(pages)  # type: ignore[arg-type]


def test_no_room_is_a_full_disk(path: Path) -> None:
    """Whoever handles a full disk handles this, too."""
    error = NoRoomToRewrite(str(path), 3, 2)

    assert isinstance(error, DatabaseFull)
    assert "needs 3 bytes of free disk, and 2 are free" in str(error)
