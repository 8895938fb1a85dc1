"""Databases made by other hands are taken over with every row, and what others keep in them stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.approvals.repositories import PendingApprovals, StartsPending
from agentstate.db.base import Base
from agentstate.db.database import Database
from agentstate.db.schema import adopt, at_head, upgrade
from agentstate.db.state import describe
from agentstate.errors import SchemaUnversioned
from agentstate.metadata import metadata
from agentstate.roles.repositories import RoleSessions
from builders import agentstate, filled, sql
from migration_helpers import (
    PHASE_1,
    REVISION_NUMBERS,
    TIMES,
    beside,
    contents,
    made,
    phase_1,
    schema,
    state_of,
    version,
)

NEWEST = REVISION_NUMBERS[-1]


def test_a_hand_written_phase_1_database_is_adopted_with_every_row(path: Path) -> None:
    """roles-and-approvals acceptance 11, TM-04: each form of time becomes the stored one, nothing else changes."""
    phase_1(path)
    with Database.open(path.parent / "expected.db", "rwc") as database:
        upgrade(database)

    with Database.open(path) as database:
        adoption = adopt(database, metadata)
        head = at_head(database)

    assert head
    assert adoption.rows == {"sessions": len(TIMES), "introductions": len(TIMES)}
    assert sql(path, "SELECT role, sender, session_id, updated_at FROM sessions ORDER BY rowid") == [
        ("worker", f"user{number}@bot.example", f"s-{number}\n'日本' 🐟", stored)
        for number, (_, stored) in enumerate(TIMES)
    ]
    assert sql(path, "SELECT role, sender, introduced_at, updated_at FROM introductions ORDER BY rowid") == [
        ("builder", f"Telegram:{number}", stored, stored) for number, (_, stored) in enumerate(TIMES)
    ]
    assert (schema(path), version(path)) == (schema(path.parent / "expected.db"), [NEWEST])
    assert adoption.backup is not None
    assert len(sql(adoption.backup, "SELECT * FROM sessions")) == len(TIMES)


def test_an_adopted_database_is_used_like_any_other(path: Path) -> None:
    """A person who wrote before the adoption is remembered after it, whatever spelling the old program stored."""
    made(path, PHASE_1, ("sessions", ("worker", " Alice@Bot.Example/phone", "s-1", 1772435709)))

    with Database.open(path) as database:
        adopt(database, metadata)

    assert adapter.load_session("worker", "alice@bot.example", database=str(path)) == "s-1"
    assert adapter.mark_introduced("worker", "alice@bot.example", database=str(path))


def test_a_dry_run_reports_every_step_and_changes_nothing(path: Path) -> None:
    """MG-10: the operator reads what would happen before anything does; the real run then takes the same steps."""
    phase_1(path)
    before = state_of(path)

    with Database.open(path) as database:
        rehearsed = adopt(database, metadata, dry_run=True)
        untouched, around = state_of(path), beside(path)
        adoption = adopt(database, metadata)

    assert (untouched, around) == (before, ["agent.db"])
    assert rehearsed.backup is None
    assert (rehearsed.steps, rehearsed.rows, rehearsed.reached) == (adoption.steps, adoption.rows, NEWEST)
    assert "took over sessions with 12 rows" in adoption.steps
    assert "created pending_approval_repo" in adoption.steps
    assert adoption.steps[-1] == f"stamped as {describe(NEWEST)}"


def test_the_command_tells_what_it_would_do_and_did(path: Path) -> None:
    """roles-and-approvals acceptance 11: what `agentstate adopt` prints is what an operator has to go by."""
    phase_1(path)

    rehearsed = agentstate("adopt", "--dry-run", AGENT_DB_PATH=str(path))
    done = agentstate("adopt", "--json", AGENT_DB_PATH=str(path))
    again = agentstate("adopt", AGENT_DB_PATH=str(path))

    assert (rehearsed.returncode, done.returncode, again.returncode) == (0, 0, 1)
    assert rehearsed.stdout.splitlines()[-1] == "dry run: nothing was changed"
    assert json.loads(done.stdout)["adoption"]["rows"] == {"introductions": 12, "sessions": 12}
    assert "already" in again.stderr


@pytest.mark.parametrize("table", ["start_pending", "pending_approval", "pending_approval_repo"])
def test_a_database_that_the_models_made_without_a_version_is_adopted(table: str, path: Path) -> None:
    """MG-10 (a), (b): with the later columns of one table missing too, which are added and reported."""
    with Database.open(path, "rwc") as database:
        with database.change_schema() as connection:
            Base.metadata.create_all(connection)
        sql(path, f"CREATE TABLE alembic_version AS SELECT '{NEWEST}' AS version_num")
        filled(database)
        by_others = '{ "b": 1.50, "a": "\\u00e9" }'  # another spelling than ours
        sql(path, "UPDATE turns SET meta = ? WHERE id = 'turn-1'", (by_others,))
        before = contents(path)
    later = [row[1] for row in sql(path, f"PRAGMA table_info({table})")][-2:]
    for column in later:
        sql(path, f"ALTER TABLE {table} DROP COLUMN {column}")
    sql(path, "DROP TABLE alembic_version")

    with Database.open(path) as database:
        with pytest.raises(SchemaUnversioned, match="agentstate adopt"):
            upgrade(database)
        adoption = adopt(database, metadata)
        with database.write() as work:
            found = (len(StartsPending(work).list_oldest_first()), len(PendingApprovals(work).list_oldest_first()))

    assert [step for step in adoption.steps if step.startswith("added")] == [f"added {table}.{name}" for name in later]
    assert contents(path) == before
    assert found == (1, 1)


def test_a_version_table_without_a_version_is_no_obstacle(path: Path) -> None:
    """MG-10: an interrupted or mistaken Alembic run leaves an empty version table."""
    phase_1(path)
    sql(path, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")

    with Database.open(path) as database:
        adopt(database, metadata)

    assert version(path) == [NEWEST]
    assert len(sql(path, "SELECT * FROM sessions")) == len(TIMES)


def test_what_others_keep_in_the_same_file_stays_and_still_works(path: Path) -> None:
    """MG-02: a rebuild turns views and references to the old table and drops its indexes and triggers."""
    made(
        path,
        PHASE_1 + "CREATE INDEX by_session ON sessions (session_id);"
        "CREATE TABLE notes (role TEXT, sender TEXT, note TEXT, FOREIGN KEY (role, sender) REFERENCES sessions);"
        "CREATE VIEW latest AS SELECT sender, max(updated_at) AS at FROM sessions GROUP BY sender;"
        "CREATE TRIGGER noted AFTER UPDATE ON sessions BEGIN"
        "  INSERT INTO notes VALUES (new.role, new.sender, 'changed'); END;",
        ("sessions", ("worker", "alice@bot.example", "s-1", "2026-03-02 07:15:09")),
        ("notes", ("worker", "alice@bot.example", "by hand")),
    )

    with Database.open(path) as database:
        adoption = adopt(database, metadata)
        with database.write() as work:
            RoleSessions(work).save("worker", "alice@bot.example", "s-2")

    assert "left notes alone, which is not agentstate's" in adoption.steps
    assert "kept index by_session on sessions" in adoption.steps
    assert "kept trigger noted on sessions" in adoption.steps
    assert sql(path, "SELECT note FROM notes") == [("by hand",), ("changed",)]
    assert [row[0] for row in sql(path, "SELECT sender FROM latest")] == ["alice@bot.example"]
    assert sql(path, "PRAGMA foreign_key_check") == []


def test_a_table_without_rowid_is_taken_over(path: Path) -> None:
    """Two texts as primary key is what WITHOUT ROWID is made for, so a hand-written table may well be one."""
    made(
        path,
        "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at TEXT, PRIMARY KEY (role, sender))"
        " WITHOUT ROWID;",
        ("sessions", ("worker", "alice@bot.example", "s-1", "2026-03-02 07:15:09")),
    )

    with Database.open(path) as database:
        adoption = adopt(database, metadata)

    assert adoption.rows == {"sessions": 1}
    assert len(sql(path, "SELECT rowid FROM sessions")) == 1
