"""An upgrade or downgrade that fails or is killed at any point leaves the database as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

import frozen
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade
from agentstate.errors import DatabaseBusy
from agentstate.settings import Settings
from builders import filled, finished, python, sql
from migration_helpers import REVISION_NUMBERS, beside, contents, locked, schema, shape, version

NEWEST = REVISION_NUMBERS[-1]
BELOW = dict(zip(REVISION_NUMBERS, ["base", *REVISION_NUMBERS], strict=False))
KILLS = 20


class Injected(Exception):
    """What goes wrong in these tests; no code of ours knows it."""


@contextmanager
def failing_after(operations: int | None) -> Iterator[list[str]]:
    """Raise once that many statements that change something have been executed; yield those that were."""
    done: list[str] = []

    def count(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.split(maxsplit=1)[0].upper() not in ("SELECT", "PRAGMA", "BEGIN"):
            done.append(statement)
            if len(done) == operations:
                raise Injected(statement)

    event.listen(Engine, "after_cursor_execute", count)
    try:
        yield done
    finally:
        event.remove(Engine, "after_cursor_execute", count)


def made(revision: str, path: Path) -> None:
    """Make the filled database of a revision; "base" is one that has been created and no more."""
    if revision == "base":
        with Database.open(path, "rwc"):
            pass
    else:
        frozen.load(revision, path)


def step(path: Path, revision: str, direction: str) -> None:
    with Database.open(path, "rwc") as database:
        if direction == "up":
            upgrade(database, revision)
        else:
            downgrade(database, BELOW[revision], force=True)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("revision", REVISION_NUMBERS)
def test_an_exception_after_any_operation_leaves_the_database_as_it_was(
    revision: str, direction: str, tmp_path: Path
) -> None:
    """MG-03, foundation acceptance 4: half a schema made every restart fail with "already exists"."""
    start = BELOW[revision] if direction == "up" else revision
    made(start, tmp_path / "rehearsal.db")
    with failing_after(None) as operations:
        step(tmp_path / "rehearsal.db", revision, direction)

    for number in range(1, len(operations) + 1):
        path = tmp_path / f"{number}.db"
        made(start, path)
        before = (contents(path), schema(path), version(path))
        old = shape(path)

        with failing_after(number), pytest.raises(Injected):
            step(path, revision, direction)
        after = (contents(path), schema(path), version(path))
        with Database.open(path, "rwc") as database:
            upgrade(database)

        assert after == before, operations[number - 1]
        assert contents(path, old) == before[0]
        assert version(path) == [NEWEST]
        assert not [name for name in schema(path) if "_alembic_tmp_" in name]
    assert len(operations) >= 3  # two changes of the schema and one of the version at the least


def test_an_exception_in_a_later_step_undoes_the_earlier_ones_too(path: Path) -> None:
    """MG-03: all steps or none; a stop half-way is a schema that no version of the code was written for."""
    frozen.load("0001", path)
    before = (contents(path), schema(path), version(path))
    with Database.open(path) as database:
        steps: list[str] = []

        def fail(revision: str) -> None:
            steps.append(revision)
            if revision == NEWEST:
                raise Injected

        with pytest.raises(Injected):
            upgrade(database, on_step=fail)
        after = (contents(path), schema(path), version(path))
        upgrade(database)

    assert steps == REVISION_NUMBERS[1:]
    assert after == before
    assert version(path) == [NEWEST]


def test_the_same_handle_goes_on_after_a_failed_upgrade(path: Path) -> None:
    """MG-01, LK-05: a failed change must give its lock back and leave foreign keys on."""
    frozen.load("0002", path)
    with Database.open(path) as database:
        with failing_after(2), pytest.raises(Injected):
            upgrade(database)
        sql(path, "DELETE FROM pending_approval_repo WHERE job_id = 'job-8'")
        upgrade(database)
        with database.write() as work:
            work.session.connection().exec_driver_sql("DELETE FROM pending_approval WHERE job_id = 'job-7'")

    assert sql(path, "SELECT * FROM pending_approval_repo") == []


def test_an_upgrade_that_cannot_get_the_lock_changes_nothing_and_works_later(path: Path) -> None:
    """MG-03, UP-04: a writer that stays longer than the busy timeout is named, with the seconds waited."""
    frozen.load("0001", path)
    before = (contents(path), schema(path), version(path))

    with Database.open(path, settings=Settings(busy_timeout=0.05)) as database:
        with locked(path), pytest.raises(DatabaseBusy) as caught:
            upgrade(database, backup=True)
        after, around = (contents(path), schema(path), version(path)), beside(path)
        upgrade(database)

    assert (caught.value.database, caught.value.seconds) == (str(path), 0.05)
    assert after == before
    assert not [name for name in around if "backup" in name]
    assert version(path) == [NEWEST]


KILLED = """
import os, random, signal, sys, time
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade
direction, target, *paths = sys.argv[1:]
chance = random.Random(len(paths))

def run(path):
    with Database.open(path, "rwc") as database:
        if direction == "up":
            upgrade(database, backup=True)
        else:
            downgrade(database, target, force=True)

def forked(path):
    child = os.fork()
    if child == 0:
        run(path)
        os._exit(0)
    return child

rehearsal = paths.pop()
began = time.monotonic()
os.waitpid(forked(rehearsal), 0)
usual = time.monotonic() - began
for number, path in enumerate(paths):
    child = forked(path)
    time.sleep(1.3 * usual * chance.uniform(number, number + 1) / len(paths))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
"""


@pytest.mark.slow
@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
@pytest.mark.parametrize(("start", "direction", "target"), [("0001", "up", NEWEST), (NEWEST, "down", "0001")])
def test_a_kill_at_any_moment_leaves_the_old_schema_or_the_new_one(
    start: str, direction: str, target: str, journal_mode: str, tmp_path: Path
) -> None:
    """MG-03, foundation acceptance 4: 20 moments spread over the whole run, its backup and its commit included."""
    paths = [tmp_path / f"{number}.db" for number in range(KILLS + 1)]
    for path in paths:
        frozen.load(start, path, journal_mode=journal_mode)
    frozen.load("0001", tmp_path / "common.db")
    common = shape(tmp_path / "common.db")
    before = contents(paths[0])
    always = contents(paths[0], common)

    finished(python(KILLED, direction, target, *paths))
    left = [version(path) for path in paths]
    whole = {str(version(path)): schema(path) for path in paths}
    consistent = [schema(path) == whole[str(version(path))] for path in paths]
    kept = [contents(path) for path in paths if version(path) == [start]]
    for path in paths:
        with Database.open(path) as database:
            upgrade(database)
            with database.read():
                pass

    assert left[-1] == [target]  # nobody killed the rehearsal
    assert {tuple(found) for found in left} <= {(start,), (target,)}
    assert all(consistent)
    assert all(rows == before for rows in kept)
    assert all(contents(path, common) == always for path in paths)
    assert [version(path) for path in paths] == [[NEWEST]] * len(paths)
    assert {row for path in paths for row in sql(path, "PRAGMA integrity_check")} == {("ok",)}


@pytest.mark.slow
def test_a_kill_while_a_database_is_made_leaves_one_that_the_next_upgrade_makes(tmp_path: Path) -> None:
    """MG-03: at any moment between no file and head, and then it can be written."""
    paths = [tmp_path / f"{number}.db" for number in range(KILLS + 1)]

    finished(python(KILLED, "up", NEWEST, *paths))
    for path in paths:
        with Database.open(path, "rwc") as database:
            upgrade(database)
            filled(database)

    assert [version(path) for path in paths] == [[NEWEST]] * len(paths)
    assert all(contents(path) == contents(paths[0]) for path in paths)
