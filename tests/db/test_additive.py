"""Missing columns are added without Alembic: once, beside others, and never to a database that is not ours."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, text

import frozen
from agentstate.db.additive import SchemaUpgradeReport, add_missing_columns, default_text
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import CannotAdopt, DatabaseBusy, DatabaseReadOnly, ForeignDatabase, SchemaAhead
from agentstate.settings import Settings
from builders import a_session, filled, sql
from migration_helpers import (
    REVISION_NUMBERS,
    beside,
    contents,
    locked,
    made,
    schema,
    shape,
    state_of,
    together,
    version,
)

# UP-02 to UP-05 on PostgreSQL: tests/postgresql/test_states.py. For the kernel's `kind` they come with that area.

LATER = (
    "pending_approval.claimed_at",
    "pending_approval.claimed_by",
    "start_pending.claimed_at",
    "start_pending.claimed_by",
    "pending_approval_repo.stash_commit",
    "pending_approval_repo.done_at",
    "pending_approval_repo.commit_sha",
)


def columns_of(path: Path) -> list[str]:
    """Return the later columns that the database has, each as often as it has it."""
    return [f"{table}.{name}" for table, names in shape(path).items() for name in names if f"{table}.{name}" in LATER]


def test_the_columns_that_are_missing_are_added_and_reported(path: Path) -> None:
    """UP-03: with every row as it was, NULL in the new columns (MG-12), and a second time nothing is left to do."""
    frozen.load("0002", path)
    before, old = contents(path), shape(path)

    with Database.open(path) as database:
        report = add_missing_columns(database)
        again = add_missing_columns(database)

    assert report == SchemaUpgradeReport(LATER, (), False)
    assert again == SchemaUpgradeReport((), LATER, False)
    assert contents(path, old) == before
    assert sorted(columns_of(path)) == sorted(LATER)
    assert sql(path, "SELECT DISTINCT claimed_at, claimed_by FROM start_pending") == [(None, None)]


def test_a_partly_changed_database_gets_only_the_rest(path: Path) -> None:
    """UP-03: an upgrader that died between two columns must not wedge the next one with "duplicate column"."""
    frozen.load("0002", path)
    sql(path, "ALTER TABLE start_pending ADD COLUMN claimed_at TEXT")

    with Database.open(path) as database:
        report = add_missing_columns(database)

    assert report.skipped == ("start_pending.claimed_at",)
    assert set(report.applied) == set(LATER) - {"start_pending.claimed_at"}


def test_the_migration_finds_its_columns_in_place(path: Path, tmp_path: Path) -> None:
    """The version is not touched: the additive revision comes later, and leaves what is there alone."""
    frozen.load("0002", path)
    with Database.open(tmp_path / "expected.db", "rwc") as database:
        upgrade(database)

    with Database.open(path) as database:
        add_missing_columns(database)
        between = version(path)
        change = upgrade(database)
        with database.write() as work:
            a_session(work)

    assert between == ["0002"]
    assert change.ran == tuple(REVISION_NUMBERS[2:])
    assert schema(path) == schema(tmp_path / "expected.db")


def test_a_table_that_does_not_exist_is_left_to_the_migrations(path: Path) -> None:
    """Phase 1 has no approvals at all: half a table made here would stop the revision that makes it."""
    frozen.load("0001", path)
    before = state_of(path)

    with Database.open(path) as database:
        report = add_missing_columns(database)

    assert report == SchemaUpgradeReport((), (), False)
    assert state_of(path) == before


def test_a_column_gets_its_constant_default_also_in_old_rows(path: Path) -> None:
    """MG-12: quotes, newlines and NOT NULL included; the default of the model is what old rows then say."""
    made(path, "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT); INSERT INTO sessions VALUES (1, 2, 3)")
    metadata = MetaData()
    table = Table(
        "sessions",
        metadata,
        Column("role", Text),
        Column("kind", Text, nullable=False, server_default='it\'s\n"π"'),
        Column("blank", Text, nullable=False, server_default=text("''")),
        Column("count", Integer, nullable=False, server_default=text("7")),
        Column("note", Text),
    )

    with Database.open(path) as database:
        report = add_missing_columns(database, metadata)

    assert len(report.applied) == 4
    assert sql(path, "SELECT kind, blank, count, note FROM sessions") == [('it\'s\n"π"', "", 7, None)]
    assert [default_text(table.c[name]) for name in ("kind", "blank", "count", "note")] == ['it\'s\n"π"', "", "7", None]


def test_a_column_that_old_rows_cannot_have_is_refused_by_name(path: Path) -> None:
    """MG-12: SQLite refuses NOT NULL without a default only when the table has rows, so a test on none passes."""
    frozen.load("0002", path)
    metadata = MetaData()
    Table("sessions", metadata, Column("note", Text), Column("must", Text, nullable=False))
    before = state_of(path)

    with Database.open(path) as database, pytest.raises(CannotAdopt, match=r"sessions\.must"):
        add_missing_columns(database, metadata)

    assert state_of(path) == before


# --- beside others ---------------------------------------------------------------------------------------------------

ADD = """
import sys
import agentstate.metadata
from agentstate.db.additive import add_missing_columns
from agentstate.db.database import Database
from agentstate.settings import Settings

def work():
    with Database.open(sys.argv[1], settings=Settings(busy_timeout=60)) as database:
        report = add_missing_columns(database)
        return len(report.applied) + len(report.skipped)
"""


@pytest.mark.slow
@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_six_processes_add_the_same_columns_at_once(journal_mode: str, path: Path) -> None:
    """UP-03: "duplicate column name" wedged the one that came second; each now reports every column."""
    frozen.load("0002", path, journal_mode=journal_mode)

    reported = together(6, ADD, path)

    assert reported == [str(len(LATER))] * 6
    assert sorted(columns_of(path)) == sorted(LATER)


def test_a_lock_that_is_held_for_a_moment_is_waited_for(path: Path, settings: Settings) -> None:
    """UP-04: SQLITE_BUSY aborted the ALTER while another process wrote."""
    frozen.load("0002", path)

    with Database.open(path, settings=settings) as database, locked(path, seconds=0.3):
        report = add_missing_columns(database)

    assert report.applied == LATER


@pytest.mark.parametrize("seconds", [0, 0.05, 0.25])
def test_a_lock_that_is_held_too_long_is_named_and_the_next_try_succeeds(seconds: float, path: Path) -> None:
    """UP-04: the limit is the configured one, also where it is shorter than the retries; nothing is half added."""
    frozen.load("0002", path)
    before = schema(path)

    with Database.open(path, settings=Settings(busy_timeout=seconds)) as database:
        with locked(path), pytest.raises(DatabaseBusy) as caught:
            add_missing_columns(database)
        after = schema(path)
        report = add_missing_columns(database)

    assert (caught.value.database, caught.value.seconds) == (str(path), seconds)
    assert after == before
    assert report.applied == LATER


# --- not to be changed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_a_read_only_handle_is_reported_and_touches_nothing(journal_mode: str, path: Path) -> None:
    """UP-05: SQLITE_READONLY was thrown at a process that only wanted to read; a write still raises."""
    frozen.load("0002", path, journal_mode=journal_mode)
    before = state_of(path)

    with Database.open(path, "ro") as database:
        report = add_missing_columns(database)
        with pytest.raises(DatabaseReadOnly), database.write():
            pass

    assert report == SchemaUpgradeReport((), LATER, True)
    assert state_of(path) == before
    if journal_mode == "delete":  # a reader of a WAL database always makes its shared memory
        assert beside(path) == ["agent.db"]


def test_a_newer_database_is_not_changed(path: Path) -> None:
    """UP-01: the newer version may have dropped the column on purpose."""
    frozen.load("0003", path)
    sql(path, "UPDATE alembic_version SET version_num = 'r999'")
    sql(path, "ALTER TABLE start_pending DROP COLUMN claimed_by")
    before = state_of(path)

    with Database.open(path) as database, pytest.raises(SchemaAhead):
        add_missing_columns(database)

    assert state_of(path) == before


def test_another_programs_database_is_not_changed(path: Path) -> None:
    """A wrong path must not put columns into a table that only has the name of ours."""
    made(path, "CREATE TABLE sessions (session_key TEXT, session_data TEXT);")
    before = state_of(path)

    with Database.open(path) as database, pytest.raises(ForeignDatabase):
        add_missing_columns(database)

    assert state_of(path) == before


def test_a_database_without_a_version_gets_its_columns(path: Path) -> None:
    """Made by a program that knew no Alembic: that is what adding without Alembic is for."""
    frozen.load("0002", path)
    sql(path, "DROP TABLE alembic_version")

    with Database.open(path) as database:
        report = add_missing_columns(database)

    assert report.applied == LATER


def test_a_column_that_a_newer_version_added_by_hand_survives_our_writes(path: Path) -> None:
    """UP-07: an old writer that replaces whole rows drops what it does not know."""
    with Database.open(path, "rwc") as database:
        upgrade(database)
        filled(database)
        sql(path, "ALTER TABLE sessions ADD COLUMN x TEXT")
        sql(path, "UPDATE sessions SET x = 'newer'")
        with database.write() as work:
            a_session(work, session_id="s-9")

    assert sorted(sql(path, "SELECT session_id, x FROM sessions")) == [("s-2", "newer"), ("s-9", "newer")]


def test_only_the_areas_in_use_are_looked_at(path: Path) -> None:
    """A script that maps one area must not pay for, or change, the tables of the others."""
    frozen.load("0002", path)
    code = (
        "import sys\n"
        "import agentstate.roles.models\n"
        "from agentstate.db.additive import add_missing_columns\n"
        "from agentstate.db.database import Database\n"
        "with Database.open(sys.argv[1]) as database:\n"
        "    print(add_missing_columns(database).applied)\n"
    )

    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)

    assert done.stdout == "()\n"
    with closing(sqlite3.connect(path)) as connection:
        assert [row[1] for row in connection.execute("PRAGMA table_info(start_pending)")][-1] == "created_at"
