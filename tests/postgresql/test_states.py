"""The states of a schema on a server: told apart, taken over, completed, and read by newer code."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from agentstate import adapter
from agentstate.cli.main import run as command
from agentstate.db.additive import add_missing_columns
from agentstate.db.base import Base
from agentstate.db.database import Database
from agentstate.db.schema import adopt, at_head, downgrade, upgrade
from agentstate.errors import (
    CannotAdopt,
    DatabaseBusy,
    DatabaseError,
    ForeignDatabase,
    SchemaAhead,
    SchemaBehind,
    SchemaUnversioned,
)
from agentstate.metadata import metadata
from agentstate.settings import Settings
from builders import a_session, filled
from migration_helpers import REVISION_NUMBERS, together
from postgres_schema import contents, filled_at, schema, shape, state_of, version

NEWEST = REVISION_NUMBERS[-1]


def run(url: str, *statements: str) -> str:
    """Run statements as another program would, and return the URL."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)
    return url


def by_the_models(url: str) -> str:
    """Make the tables from the models, fill them, and leave no version; return the URL."""
    with Database.open(url) as database:
        with database.change_schema() as connection:
            Base.metadata.create_all(connection)
        run(url, f"CREATE TABLE alembic_version AS SELECT '{NEWEST}' AS version_num")
        filled(database)
    return run(url, "DROP TABLE alembic_version")


# --- told apart ------------------------------------------------------------------------------------------------------

SESSIONS = "CREATE TABLE sessions (id int, data text)"
VERSION = "CREATE TABLE alembic_version AS SELECT '{}'::text AS version_num"

STATES: dict[str, tuple[Callable[[str], object], type[DatabaseError] | None, int]] = {
    "at head": (lambda url: filled_at(url, NEWEST), None, 0),
    "empty": (lambda url: None, SchemaBehind, 3),
    "behind": (lambda url: filled_at(url, "0002"), SchemaBehind, 3),
    "ahead": (
        lambda url: run(filled_at(url, NEWEST), "UPDATE alembic_version SET version_num = 'r999'"), SchemaAhead, 4
    ),
    "unversioned": (by_the_models, SchemaUnversioned, 5),
    "version table without a row": (
        lambda url: run(by_the_models(url), VERSION.format("x"), "DELETE FROM alembic_version"), SchemaUnversioned, 5
    ),
    "foreign": (lambda url: run(url, "CREATE TABLE users (id int)"), ForeignDatabase, 5),
    "foreign with a table of our name": (lambda url: run(url, SESSIONS), ForeignDatabase, 5),
    "foreign with a number of ours": (lambda url: run(url, SESSIONS, VERSION.format(NEWEST)), ForeignDatabase, 5),
    "foreign with another version table": (
        lambda url: run(url, SESSIONS, "CREATE TABLE alembic_version (id int)"), ForeignDatabase, 5
    ),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_error_and_its_code_and_is_left_as_it_was(
    state: str, empty_server_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """UP-01, MG-10: "0001" is what many programs call their first revision; a failed probe ends a transaction here."""
    make, error, code = STATES[state]
    make(empty_server_url)
    before = state_of(empty_server_url) if "another version" not in state else schema(empty_server_url)

    with Database.open(empty_server_url) as database:
        if error is None:
            assert at_head(database)
        else:
            with pytest.raises(error) as caught, database.write() as work:
                a_session(work)
            assert caught.value.database == database.name
            assert f"{database.name}" in str(caught.value)
    status = command(["status", "--json", "--database", empty_server_url])

    assert (state_of(empty_server_url) if "another version" not in state else schema(empty_server_url)) == before
    assert status == code
    assert json.loads(capsys.readouterr().out)["backend"] == "postgresql"


# --- read by newer code ----------------------------------------------------------------------------------------------


def test_a_database_that_predates_columns_is_read_and_its_upgrade_noticed(empty_server_url: str) -> None:
    """UP-02: a long-lived reader sees defaults for what is not there yet, and the values once somebody upgraded."""
    url = filled_at(empty_server_url, "0002")
    with Database.open(url, "ro") as reader, Database.open(url) as writer:
        before = adapter.list_start_pending(database=reader) + adapter.list_start_pending(
            "Telegram:42", database=reader
        )
        approvals = adapter.list_pending_approvals(database=reader)
        with pytest.raises(SchemaBehind, match="0002"):
            adapter.claim_start("job-1", "alice", database=writer)

        upgrade(writer)
        adapter.claim_start(before[0].job_id, "alice", database=writer)
        after = adapter.load_start_pending(before[0].job_id, database=reader)

    assert len(before) >= 2
    assert {job.claimed_by for job in before} == {None}
    assert all(repo.done_at is None for approval in approvals for repo in approval.repos)
    assert after is not None
    assert after.claimed_by == "alice"


# --- completed -------------------------------------------------------------------------------------------------------

COMPLETE = """
import sys
import agentstate.metadata
from agentstate.db.additive import add_missing_columns
from agentstate.db.database import Database
from agentstate.settings import Settings

def work():
    with Database.open(sys.argv[1], settings=Settings(busy_timeout=60)) as database:
        return len(add_missing_columns(database).applied)
"""


def test_six_processes_add_missing_columns_at_once(empty_server_url: str, server_url: str) -> None:
    """UP-03: `duplicate column` killed all but the first; the revision then finds the columns in place."""
    url = filled_at(empty_server_url, "0002")
    before, old = contents(url), shape(url)

    found = [int(count) for count in together(6, COMPLETE, url)]
    completed = (schema(url), version(url))
    with Database.open(url) as database:
        again = add_missing_columns(database)
        upgrade(database)
    with Database.open(server_url) as database:
        downgrade(database, "0003")

    assert max(found) == 7
    assert completed == (schema(server_url), ["0002"])  # whose columns are those of 0003
    assert again.applied == ()
    assert (contents(url, old), version(url)) == (before, [NEWEST])


def test_a_column_that_somebody_else_is_adding_counts_as_applied(empty_server_url: str) -> None:
    """UP-03: its catalog row is not to be seen yet, so only the server can say that it is there, once it is."""
    url = filled_at(empty_server_url, "0002")
    with psycopg.connect(url) as outsider, Database.open(url, settings=Settings(busy_timeout=60)) as database:
        outsider.execute("ALTER TABLE start_pending ADD COLUMN claimed_at timestamptz")

        def commit_when_waited_for() -> None:
            with psycopg.connect(url, autocommit=True) as watcher:
                waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                while watcher.execute(waiting).fetchone() == (0,):
                    pass
            outsider.commit()

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(commit_when_waited_for)
            report = add_missing_columns(database)
            watching.result(60)

    assert "start_pending.claimed_at" in report.applied
    assert len(shape(url)["start_pending"]) == 7


def test_missing_columns_wait_for_a_lock_and_give_up_typed(empty_server_url: str) -> None:
    """UP-04: a reader that stays holds the table; nothing is half added, and later it works."""
    url = filled_at(empty_server_url, "0002")
    before = state_of(url)

    with Database.open(url, settings=Settings(busy_timeout=0.05)) as database:
        with psycopg.connect(url) as outsider:
            outsider.execute("SELECT * FROM pending_approval")
            with pytest.raises(DatabaseBusy):
                add_missing_columns(database)
        after = state_of(url)
        report = add_missing_columns(database)
    with Database.open(url, "ro") as reader:
        read_only = add_missing_columns(reader)

    assert after == before
    assert len(report.applied) == 7
    assert (read_only.applied, read_only.read_only) == ((), False)


# --- taken over ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [None, "start_pending.claimed_by", "pending_approval_repo.done_at"])
def test_a_database_that_the_models_made_is_adopted(
    missing: str | None, empty_server_url: str, server_url: str
) -> None:
    """MG-10 (a), (b): unversioned says so; a later column that is missing is added and reported, all else stays."""
    url = by_the_models(empty_server_url)
    rows = {table: len(found) for table, found in contents(url).items()}
    if missing is not None:
        table, column = missing.split(".")
        run(url, f"ALTER TABLE {table} DROP COLUMN {column}")
    known, untouched = shape(url), state_of(url)

    with Database.open(url) as database:
        with pytest.raises(SchemaUnversioned, match="agentstate adopt"):
            upgrade(database)
        rehearsed = adopt(database, metadata, dry_run=True)
        after_rehearsal = state_of(url)
        adoption = adopt(database, metadata)
        head = at_head(database)
        with pytest.raises(CannotAdopt, match="already"):
            adopt(database, metadata)

    assert after_rehearsal == untouched
    assert rehearsed.steps == adoption.steps
    assert [step for step in adoption.steps if step.startswith("added")] == ([f"added {missing}"] if missing else [])
    assert head
    assert contents(url, known) == untouched[1]
    assert adoption.rows == rows
    assert (schema(url), version(url)) == (schema(server_url), [NEWEST])


REFUSED = {
    "a column that cannot be guessed": ("ALTER TABLE start_pending DROP COLUMN created_at", "start_pending.created_at"),
    "a column that would be lost": ("ALTER TABLE sessions ADD COLUMN mood text", "mood"),
    "a wrong type": ("ALTER TABLE sessions ALTER updated_at TYPE text", "sessions.updated_at is TEXT"),
    "a time without zone": ("ALTER TABLE introductions ALTER introduced_at TYPE timestamp", "introduced_at"),
    "another order of keys": ('ALTER TABLE sessions ALTER sender TYPE text COLLATE "default"', "sessions.sender"),
    "a key that is missing": ("ALTER TABLE sessions DROP CONSTRAINT pk_sessions", "primary key"),
    "a column that may be NULL": ("ALTER TABLE start_pending ALTER body DROP NOT NULL", "start_pending.body"),
    "repositories that outlive their approval": (
        "ALTER TABLE pending_approval_repo DROP CONSTRAINT fk_pending_approval_repo_job_id_pending_approval",
        "does not refer to pending_approval",
    ),
    "a table of our name that is not ours": ("ALTER TABLE start_pending RENAME job_id TO id", "other columns"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_taken_over_is_named_and_left_as_it_was(reason: str, empty_server_url: str) -> None:
    """MG-10 (b): nothing is stamped that later writes would fail on, or that would hold two rows for one key."""
    statement, named = REFUSED[reason]
    url = run(by_the_models(empty_server_url), statement)
    before = state_of(url)

    with Database.open(url) as database, pytest.raises(CannotAdopt, match=named):
        adopt(database, metadata)

    assert state_of(url) == before


# --- the command line ------------------------------------------------------------------------------------------------


def test_an_operator_works_with_a_server_as_with_a_file(
    server_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foundation section 6: everything on a server, and nobody is promised a backup that is not made."""
    monkeypatch.setenv("AGENT_DB_URL", server_url)
    with Database.open(server_url) as database:
        filled(database)

    def say(*arguments: str) -> tuple[int, str]:
        code = command(list(arguments))
        return code, "".join(capsys.readouterr())

    said: dict[str, tuple[int, Any]] = {
        "sessions": say("sessions"),
        "approvals": say("approvals"),
        "status": say("status"),
        "refused": say("downgrade", "0001"),
        "down": say("downgrade", "0001", "--force"),
        "behind": say("status"),
        "up": say("upgrade"),
        "again": say("upgrade"),
    }

    assert {name: code for name, (code, _) in said.items()} == {
        "sessions": 0, "approvals": 0, "status": 0, "refused": 1, "down": 0, "behind": 3, "up": 0, "again": 0,
    }  # fmt: skip
    assert "alice@bot.example" in said["sessions"][1]
    assert "job-2" in said["approvals"][1]
    assert "PostgreSQL" in said["status"][1]
    assert "pending_approval_repo: 2 rows" in said["refused"][1]
    assert "nothing to do" in said["again"][1]
    assert not any("backup" in text for _, text in said.values())
