"""What a file is said to be that somebody wants to restore: read whole, named for what it is, and left alone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.db import seal
from agentstate.db.backup import write_backup
from agentstate.db.database import Database
from agentstate.db.schema import downgrade
from agentstate.db.verify import Verification, verify_file
from agentstate.errors import (
    BackupDamaged,
    BackupEmpty,
    BackupMissing,
    DatabaseError,
    DatabaseUnavailable,
    ForeignBackup,
    InvalidValue,
    NotABackup,
)
from agentstate.metadata import metadata
from agentstate.settings import Settings
from builders import a_session, filled, finished, python, sql
from db_helpers import NOBODY, as_nobody, asked, can_write, common_ground, digests, holding, made

ROWS = {
    "conversations": 2,
    "introductions": 1,
    "pending_approval": 1,
    "sessions": 2,
    "start_pending": 1,
    "pending_approval_repo": 2,
    "turns": 2,
}

WRITE_AND_DIE = """
import os, signal, sys
from agentstate import adapter
for number in range(int(sys.argv[2])):
    adapter.save_session("worker", f"late-{number}@bot.example", "s-1", database=sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""

VERIFY = """
from agentstate.db.verify import verify_file
from agentstate.metadata import metadata
print(sum(verify_file(sys.argv[1], metadata, Settings()).rows.values()))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a closed database that has rows in every table, and with a backup of it."""
    place = tmp_path_factory.mktemp("prepared")
    made(place / "agent.db")
    with Database.open(place / "agent.db") as database:
        filled(database)
    write_backup(str(place / "agent.db"), str(place / "backup.db"), Settings())
    return place


@pytest.fixture
def source(prepared: Path, tmp_path: Path) -> Path:
    """The database, alone in its directory."""
    (tmp_path / "live").mkdir()
    return Path(shutil.copyfile(prepared / "agent.db", tmp_path / "live" / "agent.db"))


@pytest.fixture
def backup(prepared: Path, tmp_path: Path) -> Path:
    """The backup, alone in its directory."""
    (tmp_path / "backups").mkdir()
    return Path(shutil.copyfile(prepared / "backup.db", tmp_path / "backups" / "backup.db"))


@pytest.fixture
def plain(source: Path, tmp_path: Path) -> Path:
    """A copy of the file by other means, in mode WAL and without a seal, alone in its directory."""
    file = tmp_path / "plain" / "copy.db"
    file.parent.mkdir()
    shutil.copyfile(source, file)
    return file


def verified(file: Path) -> Verification:
    """Verify the file."""
    return verify_file(file, metadata, Settings())


def untouched(file: Path) -> tuple[dict[str, str], list[int]]:
    """Return what verifying must not change: everything in the directory, and when it was changed."""
    entries = sorted(file.parent.iterdir())
    return digests(file), [entry.stat().st_mtime_ns for entry in [file.parent, *entries]]


def test_a_good_backup_is_told_with_all_that_it_holds(backup: Path) -> None:
    """FS-08: 'verified' was said of files that nobody had read."""
    before = untouched(backup)

    found = verified(backup)

    assert found == Verification(str(backup), backup.stat().st_size, "0004", "at head", "intact", ROWS)
    assert untouched(backup) == before


def test_a_copy_by_other_means_is_read_and_left_as_it_was(plain: Path) -> None:
    """FS-08: a file in mode WAL is one that SQLite makes a log beside, just to read it."""
    before = untouched(plain)

    found = verified(plain)

    assert (found.seal, found.rows) == ("none", ROWS)
    assert untouched(plain) == before


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_database_that_others_write_to_is_read_and_left_to_them(path: Path, journal_mode: str) -> None:
    """FS-11: verifying the live database is a mistake that must not cost anything; its newest rows are in its log."""
    settings = Settings(busy_timeout=60, journal_mode=journal_mode)
    made(path, settings=settings)
    with Database.open(path, settings=settings) as database:
        filled(database)

        with database.write() as work:
            a_session(work, sender="bob@bot.example")
            found = verified(path)
            assert not can_write(path)
            assert found.rows == ROWS

        assert verified(path).rows == ROWS | {"sessions": 3}


@pytest.mark.parametrize("unsealed", [False, True])
def test_every_flipped_byte_is_noticed(backup: Path, unsealed: bool) -> None:
    """FS-06: SQLite itself notices few: a text that says something else is as good to it as the one before."""
    content = backup.read_bytes()
    size = content.rindex(b"\nagentstate backup") if unsealed else len(content)
    first = content.index(b"please add a licence")

    missed = []
    for at in [*range(100), *range(100, size, 97), *range(first, first + 20), *range(len(content) - 96, size)]:
        backup.write_bytes(content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
        if seal.state(str(backup)) not in ("broken", "cut"):
            missed.append(at)

    assert missed == []


@pytest.mark.parametrize("place", ["text", "header", "seal"])
def test_a_flipped_byte_is_named_damage(backup: Path, place: str) -> None:
    """FS-06: with what to do, and an exit code of its own, whatever it is in."""
    content = bytearray(backup.read_bytes())
    at = {"text": content.index(b"please add a licence"), "header": 16, "seal": len(content) - 50}[place]
    content[at] ^= 0x20
    backup.write_bytes(content)
    before = untouched(backup)

    with pytest.raises(BackupDamaged, match="use another backup") as caught:
        verified(backup)

    assert caught.value.database == str(backup)
    assert untouched(backup) == before


def test_a_backup_that_was_written_to_is_not_called_damaged(backup: Path) -> None:
    """An operator corrects a row in a copy: that is no flipped byte, and no longer what was sealed either."""
    sql(backup, "UPDATE sessions SET session_id = 's-9'")

    found = verified(backup)

    assert (found.seal, found.rows) == ("written since", ROWS)


@pytest.mark.parametrize(("damage", "words"), [("page", "malformed"), ("index", "missing from index")])
def test_what_does_not_fit_together_is_noticed_without_a_seal(plain: Path, damage: str, words: str) -> None:
    """FS-06: SQLite's own check finds it in a file of whatever origin, also where every row can be read."""
    content = plain.read_bytes()
    at = content.index(b"job-1")
    page = int(str(asked(plain, "SELECT rootpage FROM sqlite_master WHERE name = 'start_pending'")))
    for suffix in ("-wal", "-shm"):
        Path(f"{plain}{suffix}").unlink(missing_ok=True)
    if damage == "page":
        plain.write_bytes(content[: (page - 1) * 4096] + b"\xff" * 4096 + content[page * 4096 :])
    else:  # a key that the table has and its index has not
        plain.write_bytes(content[:at] + b"job-7" + content[at + 5 :])

    with pytest.raises(BackupDamaged, match=words):
        verified(plain)


@pytest.mark.parametrize("at", [16, 47, 522, 733, 1577])
def test_a_damaged_header_or_schema_is_noticed_without_a_seal(plain: Path, at: int) -> None:
    """FS-06: SQLite, its driver and SQLAlchemy each have another word for it, and some are no words of theirs."""
    content = bytearray(plain.read_bytes())
    content[at] ^= 0x80
    plain.write_bytes(content)

    with pytest.raises((BackupDamaged, NotABackup)):
        verified(plain)


@pytest.mark.parametrize("cut", [-1, -95, -100, -4096, -4096 - 95, "half"])
def test_a_cut_file_is_named_damaged(backup: Path, cut: int | str) -> None:
    """FS-08: a copy over a full disk or a broken line ends anywhere; without its seal alone nothing is lost."""
    size = backup.stat().st_size
    os.truncate(backup, size // 2 if cut == "half" else size + int(cut))

    if cut == -95:
        assert verified(backup).seal == "none"
    else:
        with pytest.raises(BackupDamaged):
            verified(backup)


def test_what_is_no_backup_is_named_for_what_it_is(tmp_path: Path) -> None:
    """FS-07: each says what it is, none hangs, and none is changed."""
    kinds: dict[str, type[DatabaseError]] = {
        "missing": BackupMissing,
        "empty": BackupEmpty,
        "no tables": BackupEmpty,
        "a byte": NotABackup,
        "zeros": NotABackup,
        "json": NotABackup,
        "directory": NotABackup,
        "fifo": NotABackup,
        "songs": ForeignBackup,
    }
    (tmp_path / "empty").touch()
    sql(tmp_path / "no tables", "PRAGMA user_version = 1")
    (tmp_path / "a byte").write_bytes(b"x")
    (tmp_path / "zeros").write_bytes(bytes(8192))
    (tmp_path / "json").write_text(json.dumps({"sessions": ["x" * 5000]}))
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    sql(tmp_path / "songs", "CREATE TABLE songs (title TEXT)")
    before = digests(tmp_path / "any")

    found = {}
    for name in kinds:
        with pytest.raises(DatabaseError, match=r"check the path|use another backup") as caught:
            verified(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        found[name] = type(caught.value)

    assert found == kinds
    assert digests(tmp_path / "any") == before


def test_an_older_and_a_newer_schema_are_good_backups(source: Path, tmp_path: Path) -> None:
    """MG-03: the copy that an upgrade keeps is older, and one to which the program is taken back may be newer."""
    older, newer, hand = (tmp_path / name for name in ("older", "newer", "hand"))
    with Database.open(source) as database:
        downgrade(database, "0002", force=True)
    write_backup(str(source), str(older), Settings())
    sql(source, "UPDATE alembic_version SET version_num = 'r999'")
    write_backup(str(source), str(newer), Settings())
    sql(source, "DROP TABLE alembic_version")
    write_backup(str(source), str(hand), Settings())

    found = [verified(file) for file in (older, newer, hand)]

    assert [(each.revision, each.schema) for each in found] == [
        ("0002", "behind"),
        ("r999", "ahead"),
        (None, "unversioned"),
    ]
    assert all(each.rows["sessions"] == 2 and "turns" not in each.rows for each in found)


def test_references_that_lead_nowhere_are_damage(source: Path, tmp_path: Path) -> None:
    """A backup of such a database restores the damage, and nobody knows since when it is there."""
    sql(source, "DELETE FROM pending_approval")  # another program's connection, without foreign keys
    write_backup(str(source), str(tmp_path / "backup"), Settings())

    with pytest.raises(BackupDamaged, match="2 of pending_approval_repo"):
        verified(tmp_path / "backup")


@pytest.mark.parametrize("lost", ["DROP TABLE turns", "ALTER TABLE start_pending DROP COLUMN claimed_at"])
def test_a_schema_that_is_not_what_its_version_says_is_damage(source: Path, tmp_path: Path, lost: str) -> None:
    """It was restored, and every role failed at its first statement."""
    sql(source, lost)
    write_backup(str(source), str(tmp_path / "backup"), Settings())

    with pytest.raises(BackupDamaged, match=f"it lacks {'turns' if 'turns' in lost else 'start_pending'}"):
        verified(tmp_path / "backup")


def test_the_log_beside_a_file_is_read_as_part_of_it(source: Path) -> None:
    """FS-09: what a killed process left is a database with its newest rows in its log."""
    python(WRITE_AND_DIE, source, "3").communicate()
    before = untouched(source)

    found = verified(source)

    assert found.rows["sessions"] == 5
    assert untouched(source) == before


def test_a_file_whose_log_cannot_be_read_is_not_called_good(source: Path, tmp_path: Path) -> None:
    """FS-08: of a copy of both files the log is half; without a place for SQLite's index it cannot be read."""
    python(WRITE_AND_DIE, source, "3").communicate()
    copy = tmp_path / "copied" / "agent.db"
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{source}{suffix}", f"{copy}{suffix}")
    before = untouched(copy)

    with pytest.raises(DatabaseUnavailable, match=f"its newest rows are in {copy}-wal"):
        verified(copy)

    assert untouched(copy) == before


def test_a_write_that_was_cut_off_is_not_called_good(path: Path) -> None:
    """FS-04: half of a transaction is in the file, and what it was before lies in the journal beside it."""
    made(path, settings=Settings(journal_mode="delete"))
    spill = ("PRAGMA cache_size = 1", "BEGIN", f"INSERT INTO sessions VALUES ('r', '{'x' * 90_000}', 's', 't')")
    with holding(path, *spill):
        pass  # killed while its transaction is half in the file
    before = untouched(path)

    with pytest.raises(DatabaseUnavailable, match="cut off in the middle"):
        verified(path)

    assert untouched(path) == before


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory that every user may look into."""
    with common_ground() as place:
        yield place


def test_a_user_who_may_only_read_can_verify(source: Path, ground: Path) -> None:
    """FS-02: backups are kept where nobody may write; a copy in mode WAL is read there too."""
    write_backup(str(source), str(ground / "backup.db"), Settings())
    shutil.copyfile(source, ground / "plain.db")
    for file in ground.iterdir():
        os.chown(file, NOBODY, -1) if os.geteuid() == 0 else None
        file.chmod(0o400)
    ground.chmod(0o555)

    answers = [finished(as_nobody(VERIFY, ground / name)) for name in ("backup.db", "plain.db")]

    assert answers == ["11\n", "11\n"]
    assert sorted(entry.name for entry in ground.iterdir()) == ["backup.db", "plain.db"]


def test_a_file_that_may_not_be_read_says_so(backup: Path) -> None:
    """FS-03: 'no such backup' and 'not yours' are two things."""
    with common_ground() as place:
        file = place / "backup.db"
        shutil.copyfile(backup, file)
        file.chmod(0o600 if os.geteuid() == 0 else 0)
        code = (
            VERIFY.replace("print(", "try:\n    print(").rstrip()
            + "\nexcept AgentStateError as error:\n    print(error)\n"
        )

        answer = finished(as_nobody(code, file))

    assert "may not read it" in answer


def test_an_address_of_a_server_is_not_a_file() -> None:
    """MG-06: the refusal does not repeat what may hold a password."""
    with pytest.raises(InvalidValue) as caught:
        verify_file("postgresql://joe:secret@host/name", metadata, Settings())

    assert "secret" not in str(caught.value)


def test_verifying_takes_no_lock_from_this_process(file_database: Database, path: Path) -> None:
    """FS-11: the file was read and closed in the process that was writing, and a second writer got in."""
    filled(file_database)
    with closing(sqlite3.connect(path, isolation_level=None)) as ours:
        ours.execute("BEGIN IMMEDIATE")

        verified(path)

        assert not can_write(path)
    assert adapter.load_session("worker", "alice@bot.example", database=file_database) == "s-1"
