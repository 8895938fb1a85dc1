"""Upgrade and downgrade as a caller sees them: what is reported, what is refused, what is backed up first."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

import frozen
from agentstate.db.database import Database
from agentstate.db.schema import at_head, downgrade, upgrade
from agentstate.errors import DatabaseReadOnly, DowngradeLosesData, InvalidValue
from builders import NOON, ROOT, a_session, agentstate, filled, sql
from migration_helpers import REVISION_NUMBERS, beside, contents, schema, shape, state_of, version

NEWEST = REVISION_NUMBERS[-1]

# --- what is reported ------------------------------------------------------------------------------------------------


def test_an_upgrade_says_where_it_began_and_ended_and_what_it_ran(path: Path) -> None:
    """An operator wants to know what happened to the database, step by step, and that a second time does nothing."""
    steps: list[str] = []
    with Database.open(path, "rwc") as database:
        first = upgrade(database, "0001", on_step=steps.append)
        rest = upgrade(database, on_step=steps.append)
        again = upgrade(database, on_step=steps.append)
        head = at_head(database)

    assert (first.found, first.reached, first.ran) == (None, "0001", ("0001",))
    assert (rest.found, rest.reached, rest.ran) == ("0001", NEWEST, tuple(REVISION_NUMBERS[1:]))
    assert (again.found, again.reached, again.ran) == (NEWEST, NEWEST, ())
    assert steps == REVISION_NUMBERS
    assert head


def test_a_handle_that_is_open_sees_the_upgrade_and_the_way_back(file_database: Database) -> None:
    """The state of the schema is remembered per handle; a change through the same handle must not leave it stale."""
    with file_database.write(now=NOON) as work:
        a_session(work)

    downgrade(file_database, "0002")
    below = at_head(file_database)
    upgrade(file_database)
    with file_database.write(now=NOON) as work:
        a_session(work, session_id="s-9")

    assert not below
    assert at_head(file_database)


@pytest.mark.parametrize(("to", "reason"), [("0001", "older"), ("0004711", "not known"), ("", "not known")])
def test_an_upgrade_to_an_older_or_unknown_revision_is_refused(
    file_database: Database, path: Path, to: str, reason: str
) -> None:
    """A mistyped revision must neither go back nor be taken for head."""
    before = schema(path)

    with pytest.raises(InvalidValue, match=reason):
        upgrade(file_database, to)

    assert (schema(path), version(path)) == (before, [NEWEST])


@pytest.mark.parametrize(("to", "reason"), [("0003", "newer"), ("0004711", "not known")])
def test_a_downgrade_to_a_newer_or_unknown_revision_is_refused(path: Path, to: str, reason: str) -> None:
    """Going "back" to something newer is an upgrade, which may need a backup."""
    frozen.load("0002", path)
    before = contents(path)

    with Database.open(path) as database, pytest.raises(InvalidValue, match=reason):
        downgrade(database, to)

    assert (contents(path), version(path)) == (before, ["0002"])


def test_a_read_only_handle_changes_no_schema(path: Path) -> None:
    """UP-05: "ro" cannot write by construction, migrations included."""
    frozen.load("0002", path)
    before = state_of(path)

    with Database.open(path, "ro") as database:
        with pytest.raises(DatabaseReadOnly):
            upgrade(database)
        with pytest.raises(DatabaseReadOnly):
            downgrade(database, "0001", force=True)

    assert state_of(path) == before


# --- going back ------------------------------------------------------------------------------------------------------

LOSSES = [
    ("0004", "0003", {"conversations": 5, "turns": 9}),
    ("0003", "0002", {"start_pending": 1, "pending_approval": 1, "pending_approval_repo": 1}),
    ("0003", "0001", {"start_pending": 2, "pending_approval": 2, "pending_approval_repo": 3}),
    ("0002", "0001", {"start_pending": 3, "pending_approval": 3, "pending_approval_repo": 4}),
    ("0001", "base", {"sessions": 5, "introductions": 4}),
]


@pytest.mark.parametrize(("found", "to", "losses"), LOSSES)
def test_a_downgrade_that_would_lose_data_is_refused_with_the_number_of_rows(
    found: str, to: str, losses: dict[str, int], path: Path
) -> None:
    """MG-14: one step back used to drop a column with live data and say nothing."""
    frozen.load(found, path)
    before = contents(path)

    with Database.open(path) as database, pytest.raises(DowngradeLosesData) as caught:
        downgrade(database, to, backup=True)

    assert caught.value.losses == losses
    assert all(f"{table}: {rows} row" in str(caught.value) for table, rows in losses.items())
    assert (contents(path), version(path)) == (before, [found])
    assert beside(path) == ["agent.db"]


def test_a_forced_downgrade_keeps_a_copy_of_what_it_drops(path: Path) -> None:
    """MG-14: forced by mistake is forced; the backup beside the database still has the rows."""
    frozen.load("0003", path)
    before = contents(path)

    with Database.open(path) as database:
        change = downgrade(database, "0002", force=True, backup=True)

    assert change.backup is not None
    assert contents(change.backup) == before
    assert version(path) == ["0002"]


def test_a_downgrade_over_nothing_but_defaults_needs_no_force(path: Path) -> None:
    """MG-14: rows without a value in the columns that go are not lost by it."""
    frozen.load("0002", path)
    before = contents(path)

    with Database.open(path) as database:
        upgrade(database)
        change = downgrade(database, "0002")
        same = downgrade(database, "0002")

    assert (change.found, change.reached, change.ran) == (NEWEST, "0002", tuple(REVISION_NUMBERS[:1:-1]))
    assert same.ran == ()
    assert contents(path) == before


# --- the backup before it --------------------------------------------------------------------------------------------


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """The umask under which new files are readable for everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_the_command_backs_a_filled_database_up_before_it_upgrades(path: Path) -> None:
    """The copy is named with the revision it holds, readable for its owner only, and complete without any sidecar."""
    frozen.load("0001", path, journal_mode="wal")
    before = contents(path)

    done = agentstate("upgrade", AGENT_DB_PATH=str(path))

    assert done.returncode == 0, done.stderr
    (backup,) = [entry for entry in path.parent.iterdir() if "backup" in entry.name]
    assert backup.name.startswith("agent.db.backup-0001-")
    assert f"backup: {backup}" in done.stdout
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    alone = path.parent / "elsewhere" / "copy.db"
    alone.parent.mkdir()
    backup.rename(alone)
    assert (contents(alone), version(alone)) == (before, ["0001"])
    assert sql(alone, "PRAGMA journal_mode") == [("delete",)]
    assert sql(alone, "PRAGMA integrity_check") == [("ok",)]
    assert contents(path, shape(alone)) == before


def test_the_command_makes_no_backup_of_a_database_without_rows(path: Path) -> None:
    """A copy of nothing only teaches people to ignore the copies."""
    new = agentstate("upgrade", "--to", "0001", AGENT_DB_PATH=str(path))
    empty = agentstate("upgrade", AGENT_DB_PATH=str(path))

    assert (new.returncode, empty.returncode) == (0, 0)
    assert not [name for name in beside(path) if "backup" in name]
    assert version(path) == [NEWEST]


def test_the_command_makes_no_backup_when_there_is_nothing_to_do_or_none_is_wanted(path: Path) -> None:
    """It runs before every start of a role: a copy each time would fill the disk."""
    frozen.load("0002", path)

    without = agentstate("upgrade", "--no-backup", "--json", AGENT_DB_PATH=str(path))
    again = agentstate("upgrade", AGENT_DB_PATH=str(path))

    change = json.loads(without.stdout)["change"]
    assert change == {"found": "0002", "reached": NEWEST, "ran": REVISION_NUMBERS[2:], "backup": None}
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert not [name for name in beside(path) if "backup" in name]


# --- what is around it -----------------------------------------------------------------------------------------------


def test_a_path_of_awkward_characters_is_upgraded_and_backed_up_where_it_is(tmp_path: Path) -> None:
    """CN-06, MG-06: `?`, `#` and `%` in a path used to open another file or to crash the migrations' configuration."""
    directory = tmp_path / "a?b#c %41 ü"
    directory.mkdir()
    path = directory / "state.db"

    with Database.open(path, "rwc") as database:
        upgrade(database, "0001")
        sql(path, "INSERT INTO sessions VALUES ('worker', 'alice@bot.example', 's-1', '2026-11-29T12:00:00.000Z')")
        change = upgrade(database, backup=True)

    assert change.backup is not None
    assert Path(change.backup).parent == directory
    assert version(change.backup) == ["0001"]
    assert version(path) == [NEWEST]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [directory.name]


@pytest.mark.parametrize("way", ["upgrade", "alembic"])
def test_migrating_leaves_the_hosts_logging_alone(
    way: str, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MG-11: migrations that configured logging silenced the program that ran them for the rest of its life."""
    root, ours = logging.getLogger(), logging.getLogger("host.worker")
    caplog.set_level(logging.INFO, "host.worker")
    before = (root.level, list(root.handlers), logging.root.manager.disable, ours.level, ours.disabled)
    monkeypatch.setenv("AGENT_DB_PATH", str(path))

    if way == "upgrade":
        with Database.open(path, "rwc") as database:
            upgrade(database)
            filled(database)
            downgrade(database, "0001", force=True, backup=True)
    else:
        command.upgrade(Config(ROOT / "alembic.ini"), "head")
    ours.info("still here")

    assert (root.level, list(root.handlers), logging.root.manager.disable, ours.level, ours.disabled) == before
    assert [record.getMessage() for record in caplog.records if record.name == "host.worker"] == ["still here"]
    assert version(path) != []
