"""Databases that cannot be taken over whole are refused by name and left as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentstate.db.database import Database
from agentstate.db.files import Mode
from agentstate.db.schema import adopt, upgrade
from agentstate.errors import AgentStateError, CannotAdopt, DatabaseReadOnly, ForeignDatabase, SchemaUnversioned
from agentstate.metadata import metadata
from builders import agentstate, filled, sql
from migration_helpers import PHASE_1, beside, made, phase_1, state_of


def refusal(path: Path, *, dry_run: bool = False) -> str:
    """Try to adopt the database, see that it is as it was, and return the reason."""
    before, around = state_of(path), beside(path)
    with Database.open(path) as database, pytest.raises(CannotAdopt) as caught:
        adopt(database, metadata, dry_run=dry_run)
    assert state_of(path) == before
    assert beside(path) == around
    return str(caught.value)


BAD_ROWS = [
    (("worker", "alice@bot.example", "s", "yesterday"), ["updated_at", "'yesterday' is not a time"]),
    (("worker", "alice@bot.example", "s", 1772435709000), ["updated_at", "1772435709000 is not a time"]),
    (("worker", "alice@bot.example", "s", None), ["updated_at", "missing"]),
    (("worker", "alice@bot.example", None, 0), ["session_id", "missing"]),
    (("worker", "alice@bot.example", "", 0), ["session_id", "empty"]),
    (("worker", "alice@bot.example", b"\xff\x00", 0), ["session_id", "bytes"]),
    (("Worker", "alice@bot.example", "s", 0), ["role", "'Worker'"]),
    (("worker", " ", "s", 0), ["sender", "empty"]),
    (("worker", "alice@bot.example", "nul\0", 0), ["session_id", "U+0000"]),
]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("row", "named"), BAD_ROWS, ids=[", ".join(named) for _, named in BAD_ROWS])
def test_a_row_that_cannot_be_kept_is_named_and_nothing_is_changed(
    row: tuple[object, ...], named: list[str], dry_run: bool, path: Path
) -> None:
    """roles-and-approvals acceptance 11: after 500 good rows, with the table, the key and the column of the bad one."""
    good = [("sessions", ("builder", f"{number}@bot.example", "s", 1772435709)) for number in range(501)]
    made(path, PHASE_1, *good, ("sessions", row))

    reason = refusal(path, dry_run=dry_run)

    assert all(word in reason for word in ["table sessions", repr(row[0]), repr(row[1]), *named])


def test_text_that_is_not_utf_8_is_named_by_row_and_column(path: Path) -> None:
    """VA-08: the driver cannot even fetch it, so the whole table could not be looked at."""
    made(path, PHASE_1, ("sessions", ("worker", "alice@bot.example", "s", 0)))
    sql(path, "INSERT INTO sessions VALUES ('worker', 'bob@bot.example', CAST(x'ff41' AS TEXT), 0)")

    reason = refusal(path)

    assert "'bob@bot.example': session_id is not UTF-8" in reason


def test_a_turn_that_is_not_json_is_named_by_row_and_column(path: Path) -> None:
    """A body that nobody can read would be carried along unnoticed; what is JSON comes over byte for byte."""
    with Database.open(path, "rwc") as database:
        upgrade(database)
        filled(database)
    sql(path, "DROP TABLE alembic_version")
    sql(path, "UPDATE turns SET messages = '[{' WHERE id = 'turn-2'")

    reason = refusal(path)

    assert "in table turns the row with id 'turn-2': messages not JSON" in reason


def test_two_spellings_of_one_sender_are_refused_by_name(path: Path) -> None:
    """ID-01: one of the two sessions would have to go, and which one is not for a program to guess."""
    made(
        path,
        PHASE_1,
        ("sessions", ("worker", "Alice@Bot.Example/phone", "s-1", 0)),
        ("sessions", ("worker", "alice@bot.example", "s-2", 0)),
    )

    reason = refusal(path)

    assert "'alice@bot.example'" in reason
    assert "several spellings of one sender" in reason


UNFIT = [
    ("ALTER TABLE sessions ADD COLUMN model TEXT", "table sessions has columns that would be lost: model"),
    ("ALTER TABLE sessions DROP COLUMN updated_at", "column sessions.updated_at is missing"),
    ("CREATE TABLE start_pending (id INTEGER)", "its table start_pending has other columns"),
    (
        "CREATE TABLE pending_approval_repo AS SELECT 'job-1' AS job_id, '/srv/one' AS repo_dir",
        "rows of pending_approval_repo refer to rows that do not exist",
    ),
]


@pytest.mark.parametrize(("change", "named"), UNFIT, ids=[named for _, named in UNFIT])
def test_what_cannot_be_kept_or_guessed_is_refused_by_name(change: str, named: str, path: Path) -> None:
    """MG-10 (b): nothing is stamped and nothing is added when one thing does not fit."""
    phase_1(path)
    sql(path, change)

    reason = refusal(path)

    assert named in reason


@pytest.mark.parametrize(
    ("script", "error"),
    [("CREATE TABLE users (id INTEGER)", ForeignDatabase), ("VACUUM", CannotAdopt)],
    ids=["another program's", "nothing"],
)
def test_there_is_nothing_to_adopt_where_nothing_is_ours(script: str, error: type[AgentStateError], path: Path) -> None:
    """Adopting the wrong file would put our tables into another program's database."""
    made(path, f"PRAGMA user_version = 1; {script};")
    before = state_of(path)

    with Database.open(path) as database, pytest.raises(error):
        adopt(database, metadata)

    assert state_of(path) == before


@pytest.mark.parametrize("mode", ["rw", "rwc", "ro"])
def test_an_ordinary_open_says_what_to_do(mode: Mode, path: Path) -> None:
    """roles-and-approvals acceptance 11: neither written nor read by guesswork, and the message names the command."""
    phase_1(path)
    before = state_of(path)

    with Database.open(path, mode) as database:
        with pytest.raises(SchemaUnversioned, match="agentstate adopt --dry-run"), database.read():
            pass
        with pytest.raises(DatabaseReadOnly if mode == "ro" else SchemaUnversioned), database.write():
            pass

    assert state_of(path) == before


def test_the_upgrade_command_says_what_to_do(path: Path) -> None:
    """roles-and-approvals acceptance 11: it runs before every start, so its one line is what an operator sees first."""
    phase_1(path)
    before = state_of(path)

    refused = agentstate("upgrade", AGENT_DB_PATH=str(path))

    assert (refused.returncode, refused.stdout) == (5, "")
    assert "agentstate adopt --dry-run" in refused.stderr
    assert state_of(path) == before
