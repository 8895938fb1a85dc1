"""Migrations on a server: the same line of revisions, with every row, whole or not at all, and by many at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, event

from agentstate.db.base import Base
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade, upgrade_script
from agentstate.errors import DatabaseBusy, DowngradeLosesData
from agentstate.settings import Settings
from builders import ROOT, agentstate, python
from migration_helpers import REVISION_NUMBERS, alembic, together
from postgres_schema import contents, filled_at, schema, shape, state_of, version
from postgres_server import Server

# MG-02 names partial indexes, CHECKs and triggers: no area has any yet; the catalog that is compared includes them.
# MG-07's "data steps show as comments": no revision has a data step.

NEWEST = REVISION_NUMBERS[-1]
BELOW = dict(zip(REVISION_NUMBERS, ["base", *REVISION_NUMBERS], strict=False))

UPGRADE = """
import sys
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.settings import Settings

def work():
    with Database.open(sys.argv[1], settings=Settings(busy_timeout=60)) as database:
        return " ".join(upgrade(database, backup=True).ran)
"""

STOPPED = """
import sys, time
from agentstate.db.database import Database
from agentstate.db.schema import upgrade

def stop(revision):
    if revision == sys.argv[2]:
        print("stopped", flush=True)
        time.sleep(3600)

with Database.open(sys.argv[1]) as database:
    upgrade(database, on_step=stop)
"""


class Injected(Exception):
    """What goes wrong in these tests; no code of ours knows it."""


@pytest.fixture
def other_url(server: Server) -> Iterator[str]:
    """The URL of a second empty database."""
    name = f"test_{uuid4().hex}"
    server.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


# --- one line of revisions, with every row ---------------------------------------------------------------------------


def test_the_revisions_make_the_schema_of_the_models(server_url: str, other_url: str) -> None:
    """MG-02, MG-13, foundation acceptance 5: the catalogs are equal, and no type in them is of our making."""
    with Database.open(other_url) as database, database.change_schema() as connection:
        Base.metadata.create_all(connection)

    found = schema(server_url)

    assert found == schema(other_url)
    assert [row for row in found if row[0].startswith(("type", "function", "trigger"))] == []
    assert any("ON DELETE CASCADE" in str(row) for row in found)
    assert ("column sessions.updated_at", "timestamp with time zone", None, True, None, "", "") in found
    assert ("column sessions.sender", "text", "C", True, None, "", "") in found


@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_a_filled_database_reaches_head_in_one_transaction_with_every_row(
    revision: str, empty_server_url: str, server_url: str
) -> None:
    """MG-13, MG-12: all steps at once over rows; the later columns of old rows say NULL, and nothing else."""
    url = filled_at(empty_server_url, revision)
    before, old = contents(url), shape(url)

    with Database.open(url) as database:
        change = upgrade(database)

    assert change.ran == tuple(REVISION_NUMBERS[REVISION_NUMBERS.index(revision) + 1 :])
    assert (contents(url, old), schema(url), version(url)) == (before, schema(server_url), [NEWEST])
    new = {table: sorted(set(columns) - set(old.get(table, columns))) for table, columns in shape(url).items()}
    added = contents(url, {table: columns for table, columns in new.items() if columns})
    assert {value for rows in added.values() for row in rows for value in row} <= {None}


@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_every_step_goes_down_and_up_again_with_its_rows(revision: str, empty_server_url: str, other_url: str) -> None:
    """MG-01, MG-14: what both revisions know is the same before and after; a loss has to be forced."""
    url = filled_at(empty_server_url, revision)
    before, made = contents(url), schema(url)
    if revision != REVISION_NUMBERS[0]:
        filled_at(other_url, BELOW[revision])

    with Database.open(url) as database:
        with pytest.raises(DowngradeLosesData) as caught:
            downgrade(database, BELOW[revision])
        untouched = (contents(url), schema(url))
        downgrade(database, BELOW[revision], force=True)
        below, kept = schema(url), contents(url)
        known = shape(url)
        upgrade(database, revision)

    assert set(caught.value.losses) <= set(before)
    assert untouched == (before, made)
    assert below == (schema(other_url) if known else [])
    assert contents(url, known) == kept
    assert all(len(kept[table]) == len(before[table]) for table in kept)
    assert (schema(url), version(url)) == (made, [revision])


# --- whole or not at all ---------------------------------------------------------------------------------------------


@contextmanager
def failing_after(operations: int | None) -> Iterator[list[str]]:
    """Raise once that many statements that change something have been executed; yield those that were."""
    done: list[str] = []

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.split(maxsplit=1)[0].upper() not in ("SELECT", "SET", "SHOW"):
            done.append(statement)
            if len(done) == operations:
                raise Injected(statement)

    event.listen(Engine, "after_cursor_execute", executed)
    try:
        yield done
    finally:
        event.remove(Engine, "after_cursor_execute", executed)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_an_exception_after_any_statement_leaves_the_database_as_it_was(
    revision: str, direction: str, empty_server_url: str
) -> None:
    """MG-03, foundation acceptance 4: half a schema made every restart fail with "already exists"."""
    start, target = (BELOW[revision], revision) if direction == "up" else (revision, BELOW[revision])
    url = empty_server_url if start == "base" else filled_at(empty_server_url, start)
    before = state_of(url)

    def step(operations: int | None) -> list[str]:
        with Database.open(url) as database, failing_after(operations) as done:
            upgrade(database, target) if direction == "up" else downgrade(database, target, force=True)
        return done

    left = {}
    for number in count(1):
        try:
            done = step(number)
            break
        except Injected as error:
            left[str(error)] = state_of(url)

    assert list(left.values()) == [before] * len(left)
    assert len(done) == len(left) >= 3  # two changes of the schema and one of the version at the least
    assert version(url) == [target] * (target != "base")


@pytest.mark.parametrize("killed", ["the process", "the server"])
@pytest.mark.parametrize("moment", REVISION_NUMBERS[1:])
def test_a_kill_in_the_middle_leaves_the_old_schema_and_the_next_upgrade_works(
    server: Server, empty_server_url: str, moment: str, killed: str
) -> None:
    """MG-03: the lock goes with the transaction, so that nobody has to break it by hand."""
    url = filled_at(empty_server_url, "0001")
    before, old = state_of(url), shape(url)
    process = python(STOPPED, url, moment)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopped\n"

    if killed == "the server":
        server.crash()
        server.start()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while server.clients():
        pass  # the server notices that its client is gone
    after = state_of(url)
    with Database.open(url) as database:
        upgrade(database)

    assert after == before
    assert (contents(url, old), version(url)) == (before[1], [NEWEST])


# --- many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["empty", "0001"])
def test_six_processes_that_upgrade_at_once_all_succeed(start: str, empty_server_url: str, server_url: str) -> None:
    """MG-04, foundation acceptance 3: each step runs once, whoever does it; the others find it done."""
    url = empty_server_url if start == "empty" else filled_at(empty_server_url, start)
    before, old = contents(url), shape(url)

    ran = together(6, UPGRADE, url)

    expected = REVISION_NUMBERS if start == "empty" else REVISION_NUMBERS[1:]
    assert ran == [*[""] * 5, " ".join(expected)]
    assert (contents(url, old), schema(url), version(url)) == (before, schema(server_url), [NEWEST])


def test_an_upgrade_that_cannot_get_a_lock_changes_nothing_and_works_later(empty_server_url: str) -> None:
    """PG-07, MG-03: LockNotAvailable came out raw; an earlier step is undone with the one that had to wait."""
    url = filled_at(empty_server_url, "0001")
    before = state_of(url)

    with Database.open(url, settings=Settings(busy_timeout=0.05)) as database:
        for statement in ("LOCK TABLE alembic_version", "SELECT pg_advisory_xact_lock(x'6167656E74'::bigint)"):
            with psycopg.connect(url) as outsider:
                outsider.execute(statement)
                with pytest.raises(DatabaseBusy) as caught:
                    upgrade(database)
        after = state_of(url)
        upgrade(database)

    assert (caught.value.database, caught.value.seconds) == (database.name, 0.05)
    assert after == before
    assert version(url) == [NEWEST]


# --- SQL for review, and Alembic's own command -----------------------------------------------------------------------


@pytest.mark.parametrize("start", [None, *REVISION_NUMBERS[:-1]])
def test_sql_for_review_replayed_by_psql_gives_the_same_schema(
    server: Server, start: str | None, empty_server_url: str, server_url: str
) -> None:
    """MG-07: the printed script is what a DBA runs in place of us, so it has to end where we would."""
    url = empty_server_url if start is None else filled_at(empty_server_url, start)
    before, old = contents(url), shape(url)
    printed = agentstate("upgrade", "--sql", AGENT_DB_URL=url)

    server.psql(printed.stdout, url.rpartition("/")[2])

    assert printed.stdout == upgrade_script(start, dialect="postgresql")
    assert (contents(url, old), schema(url), version(url)) == (before, schema(server_url), [NEWEST])


def test_alembics_own_command_does_what_ours_does(empty_server_url: str, server_url: str) -> None:
    """MG-10 (c), foundation acceptance 5: `alembic check` is clean at head, and not when a column is missing."""
    done = alembic("upgrade", "head", root=ROOT, AGENT_DB_URL=empty_server_url)
    clean = alembic("check", root=ROOT, AGENT_DB_URL=empty_server_url)
    made = schema(empty_server_url)
    with psycopg.connect(empty_server_url) as connection:
        connection.execute("ALTER TABLE start_pending DROP COLUMN claimed_by")
    differs = alembic("check", root=ROOT, AGENT_DB_URL=empty_server_url)

    assert (done.returncode, clean.returncode) == (0, 0), done.stderr + clean.stderr
    assert "No new upgrade operations detected" in clean.stdout
    assert made == schema(server_url)
    assert differs.returncode != 0
    assert "claimed_by" in differs.stdout + differs.stderr
