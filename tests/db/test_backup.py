"""The copy that an upgrade makes first, or an operator: whole, alone, and its owner's.

What says that it is whole is tested in test_verify.py, the way back in test_restore.py, the commands in tests/cli.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentstate import adapter
from agentstate.db import backup, seal
from agentstate.db.backup import back_up, write_backup
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.db.unfinished import unfinished
from agentstate.errors import (
    BackupExists,
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseMissing,
    DatabaseUnavailable,
    ForeignDatabase,
    InvalidValue,
    NotADatabase,
    SchemaBehind,
)
from agentstate.settings import Settings
from builders import filled, finished, python, sql
from db_helpers import asked, digests, holding, made, on_small_disk, permissions
from migration_helpers import contents

WRITER = """
import sys
from agentstate import adapter
number = 0
while True:
    adapter.save_session("worker", f"sender-{number}", "x" * 200, database=sys.argv[1])
    number += 1
    if number == 50:
        print("writing", flush=True)
"""


@pytest.fixture
def umask() -> Iterator[None]:
    """The usual mask, under which files are readable for everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def source(path: Path) -> Path:
    """A closed database with a row in every table."""
    made(path)
    with Database.open(path) as database:
        filled(database)
    return path


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_copy_holds_what_was_committed_before_it_while_others_write(path: Path, journal_mode: str) -> None:
    """FS-08: copying the file of a live database missed its newest rows, and some copies could not be opened."""
    settings = Settings(busy_timeout=60, journal_mode=journal_mode)
    made(path, settings=settings)
    writer = python(WRITER, path, AGENT_DB_JOURNAL_MODE=journal_mode)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"

        for number in range(3):
            copy = path.parent / "copies" / f"{number}.db"
            copy.parent.mkdir(exist_ok=True)
            committed = int(str(asked_patiently(path, "SELECT count(*) FROM sessions")))
            write_backup(str(path), str(copy), settings)

            assert int(str(asked(copy, "SELECT count(*) FROM sessions"))) >= committed >= 50
            assert asked(copy, "PRAGMA integrity_check") == "ok"
    finally:
        writer.kill()
        writer.communicate()

    assert sorted(permissions(copy)) == ["0.db", "1.db", "2.db"]  # alone, without sidecars


def asked_patiently(path: Path, question: str) -> object:
    """Return the first value of a statement's answer, waiting for locks."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return connection.execute(question).fetchone()[0]


def test_a_copy_is_one_file_that_only_its_owner_reads(source: Path, umask: None) -> None:
    """FS-08, FS-10: a copy in WAL mode needs files beside it, and one made under the usual mask was everybody's."""
    copy = source.parent / "copy.db"

    with Database.open(source) as database:  # so that the newest rows are in the log
        adapter.save_session("worker", "bob@bot.example", "s-9", database=database)
        write_backup(str(source), str(copy), database.settings)

    assert permissions(source) == {"agent.db": "0o600", "copy.db": "0o600"}
    assert contents(copy) == contents(source)
    assert asked(copy, "PRAGMA journal_mode") == "delete"
    assert asked(copy, "PRAGMA auto_vacuum") == 2


COPIER = """
import sys
from agentstate.db.backup import write_backup
from agentstate.settings import Settings
write_backup(*sys.argv[1:], Settings())
"""


def test_a_killed_backup_leaves_at_most_what_the_next_one_removes(source: Path) -> None:
    """FS-08: what lies under the name of a backup is one, also when its making was killed (kill -9)."""
    with Database.open(source) as database:
        for number in range(20):
            adapter.save_start_pending(f"big-{number}", "alice", "alice", "x" * 1_000_000, database=database)
    copy = source.parent / "copy.db"
    copier = python(COPIER, source, copy)
    partial = Path(unfinished(str(copy), "partial").removesuffix(f"{os.getpid()}") + f"{copier.pid}")
    while copier.poll() is None and not (partial.exists() and partial.stat().st_size > 0):
        pass

    copier.kill()
    copier.communicate()
    whole = copy.exists() and asked(copy, "SELECT count(*) FROM start_pending") == 21
    assert whole or not copy.exists()
    copy.unlink(missing_ok=True)

    write_backup(str(source), f"{source}.another", Settings())
    assert asked(Path(f"{source}.another"), "SELECT count(*) FROM start_pending") == 21
    assert [name for name in digests(source) if "partial" in name] == []


def test_what_others_are_making_in_the_same_directory_is_left_alone(source: Path) -> None:
    """FS-08: several machines keep their backups in one directory, and know nothing of each other's processes."""
    dead = finished(python("import os; print(os.getpid())")).strip()
    theirs = source.parent / f"agent.db.partial-elsewhere-{dead}"
    living = Path(unfinished(f"{source.parent}/other.db", "partial"))
    theirs.write_bytes(b"x")
    living.write_bytes(b"x")

    write_backup(str(source), f"{source}.copy", Settings())

    assert theirs.exists()
    assert living.exists()


def test_the_original_is_not_changed(source: Path) -> None:
    """A backup that checkpoints or marks its original is no backup of it."""
    before = digests(source)["agent.db"]

    write_backup(str(source), f"{source}.copy", Settings())

    assert digests(source)["agent.db"] == before


def test_an_upgrade_keeps_what_it_started_from(path: Path, umask: None) -> None:
    """MG-03: going back needs a copy made before the first change, and named after the revision it has."""
    made(path, to="0001")
    sql(path, "INSERT INTO sessions VALUES ('worker', 'alice', 's-1', '2026-11-29T11:00:00.000Z')")

    with Database.open(path) as database:
        change = upgrade(database, backup=True)

    assert change.backup is not None
    copy = Path(change.backup)
    assert copy.name.startswith("agent.db.backup-0001-")
    assert copy.parent == path.parent
    assert permissions(path)[copy.name] == "0o600"
    assert asked(copy, "SELECT version_num FROM alembic_version") == "0001"
    assert asked(copy, "SELECT session_id FROM sessions") == "s-1"
    with Database.open(copy, "ro") as database, database.read():
        assert database.revision() == "0001"


def test_an_upgrade_of_an_empty_database_keeps_no_copy(path: Path) -> None:
    """What has no rows need not be kept."""
    made(path, to="0001")

    with Database.open(path) as database:
        assert upgrade(database, backup=True).backup is None

    assert sorted(digests(path)) == ["agent.db"]


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_what_lies_at_the_destination_is_not_replaced(source: Path, tmp_path: Path, kind: str) -> None:
    """FS-12: yesterday's backup, or the target of a planted link, was overwritten."""
    copy, victim = tmp_path / "copy.db", tmp_path / "victim"
    if kind == "file":
        copy.write_text("yesterday's")
    elif kind == "link":
        copy.symlink_to(victim)
    else:
        copy.mkdir()
    before = digests(source)

    with pytest.raises(BackupExists, match="choose another name") as caught:
        write_backup(str(source), str(copy), Settings())

    assert caught.value.database == str(copy)
    assert digests(source) == before


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
@pytest.mark.parametrize("content", [b"precious", b""])
def test_a_link_at_the_temporary_file_is_not_followed(
    source: Path, tmp_path: Path, suffix: str, content: bytes
) -> None:
    """FS-12: the name of a temporary file can be guessed, and the victim of a link there was overwritten."""
    victim = tmp_path / "victim"
    victim.write_bytes(content)
    victim.chmod(0o640)
    copy = tmp_path / "copy.db"
    Path(unfinished(str(copy), "partial") + suffix).symlink_to(victim)

    with pytest.raises(DatabaseUnavailable, match="remove it"):
        write_backup(str(source), str(copy), Settings())

    assert victim.read_bytes() == content
    assert victim.stat().st_mode & 0o777 == 0o640
    assert not copy.exists()


def test_a_copy_that_appears_meanwhile_is_not_replaced(source: Path) -> None:
    """FS-12: two timers made the same backup, and the slower one replaced what the other had reported."""
    copy = source.parent / "copy.db"

    def appears(done: int, total: int) -> None:
        copy.write_text("the other's")

    with Database.open(source, "ro") as database, pytest.raises(BackupExists):
        back_up(database, str(copy), on_progress=appears)

    assert copy.read_text() == "the other's"
    assert sorted(name for name in digests(source) if "partial" in name) == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_directory_gets_a_file_of_a_dated_name(source: Path, tmp_path: Path, linked: bool) -> None:
    """A timer names the place once, and each backup tells which database and revision it is of; a link is followed."""
    place = tmp_path / "backups"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)

    with Database.open(source, "ro") as database:
        first, second = (back_up(database, str(tmp_path / "link" if linked else place)) for _ in range(2))

    assert sorted(os.listdir(place)) == sorted(os.path.basename(made.file) for made in (first, second))
    assert os.path.basename(first.file).startswith("agent.db.backup-0004-2")
    assert (first.database, first.revision, first.size) == (str(source), "0004", os.stat(first.file).st_size)
    assert contents(first.file) == contents(source)


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_copy_is_of_one_moment(path: Path, journal_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-08: a large copy that began anew with each write of others had no end."""
    monkeypatch.setattr(backup, "_STEP", 1)
    settings = Settings(journal_mode=journal_mode)
    made(path, settings=settings)
    writes: list[bool] = []

    def writes_meanwhile(done: int, total: int) -> None:
        if len(writes) < 5:
            writes.append(sqlite_writes(path, len(writes)))

    with Database.open(path, "ro", settings=settings) as database:
        back_up(database, f"{path}.copy", on_progress=writes_meanwhile)

    assert writes == [journal_mode == "wal"] * 5  # in another mode a reader keeps writers out
    assert asked(Path(f"{path}.copy"), "SELECT count(*) FROM sessions") == 0
    assert asked(Path(f"{path}.copy"), "PRAGMA integrity_check") == "ok"


def test_who_stops_it_leaves_nothing(source: Path) -> None:
    """Second thoughts come while a large file is copied; Ctrl-C is heard between two steps."""

    def stops(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with Database.open(source, "ro") as database, pytest.raises(KeyboardInterrupt):
        back_up(database, f"{source}.copy", on_progress=stops)

    assert [name for name in digests(source) if "copy" in name] == []


def sqlite_writes(path: Path, number: int) -> bool:
    """Return whether another connection could write a session at this moment."""
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        try:
            connection.execute("INSERT INTO sessions VALUES ('worker', ?, 's', 't')", [f"sender-{number}"])
            connection.commit()
        except sqlite3.OperationalError:
            return False
    return True


def test_progress_counts_the_pages(source: Path) -> None:
    """A large database takes minutes."""
    seen: list[tuple[int, int]] = []

    with Database.open(source, "ro") as database:
        back_up(database, f"{source}.copy", on_progress=lambda done, total: seen.append((done, total)))

    assert seen[-1] == (int(str(asked(source, "PRAGMA page_count"))),) * 2


def test_tables_without_a_version_are_copied_too(path: Path) -> None:
    """Before it is taken over, a database made by hand is worth a copy."""
    sql(path, "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at TEXT)")

    with Database.open(path, "ro") as database:
        made_of = back_up(database, str(path.parent))

    assert made_of.revision is None
    assert os.path.basename(made_of.file).startswith("agent.db.backup-unversioned-")


@pytest.mark.parametrize(
    ("script", "error"),
    [("CREATE TABLE songs (title TEXT)", ForeignDatabase), ("PRAGMA user_version = 1", SchemaBehind)],
)
def test_what_is_not_worth_a_backup_is_refused(path: Path, script: str, error: type[DatabaseError]) -> None:
    """A wrong AGENT_DB_PATH was noticed on the day when a backup was needed."""
    sql(path, script)

    with Database.open(path, "ro") as database, pytest.raises(error):
        back_up(database, f"{path}.copy")

    assert not Path(f"{path}.copy").exists()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_backup_is_not_made_where_sqlite_keeps_its_own(source: Path, suffix: str) -> None:
    """SQLite takes such a file for its own, and deletes it."""
    for name in ("agent.db-wal", "agent.db-shm"):
        (source.parent / name).unlink(missing_ok=True)

    with Database.open(source, "ro") as database, pytest.raises((InvalidValue, BackupExists)):
        back_up(database, f"{source}{suffix}")


@pytest.mark.parametrize("address", ["postgresql://joe:secret@host/name", "postgres//joe:secret@host/name"])
def test_a_server_is_no_place_for_a_backup(source: Path, address: str) -> None:
    """The address, password and all, became the name of a file."""
    with Database.open(source, "ro") as database, pytest.raises(InvalidValue) as caught:
        back_up(database, address)

    assert "secret" not in str(caught.value)
    assert not [name for name in os.listdir() if "postgres" in name]


def test_a_database_in_memory_has_no_file_to_copy() -> None:
    """It lives as long as its process."""
    with Database.memory() as database, pytest.raises(InvalidValue, match="not a file"):
        back_up(database, "copy.db")


def test_a_copy_ends_in_a_seal_that_sqlite_does_not_mind(source: Path) -> None:
    """FS-08: a backup is a database as any other: it can be opened, read and written to by any program."""
    copy = source.parent / "copy.db"
    write_backup(str(source), str(copy), Settings())

    assert copy.read_bytes().splitlines()[-1].startswith(b"agentstate backup 1 ")
    assert seal.state(str(copy)) == "intact"
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
    sql(copy, f"{numbers} INSERT INTO introductions SELECT 'worker', 'b' || i, 't', 't' FROM n")
    assert asked(copy, "PRAGMA integrity_check") == "ok"


def test_a_missing_directory_is_named(source: Path, tmp_path: Path) -> None:
    """FS-03: the destination is the operator's typing error as often as the source."""
    with pytest.raises(DatabaseUnavailable, match=f"{tmp_path}/absent/copy.db.*No such file or directory"):
        write_backup(str(source), f"{tmp_path}/absent/copy.db", Settings())


@pytest.mark.parametrize("damage", ["page", "index"])
def test_a_damaged_original_is_not_copied(source: Path, damage: str) -> None:
    """FS-06: a copy of a damaged database was reported as a good one."""
    content = source.read_bytes()
    if damage == "page":
        page = int(str(asked(source, "SELECT rootpage FROM sqlite_master WHERE name = 'start_pending'")))
        source.write_bytes(content[: (page - 1) * 4096] + b"\xff" * 4096 + content[page * 4096 :])
    else:  # a key that the table has and its index has not: everything can be read, and not everything is found
        at = content.index(b"job-1")
        source.write_bytes(content[:at] + b"job-7" + content[at + 5 :])

    with pytest.raises(DatabaseCorrupt) as caught:
        write_backup(str(source), f"{source}.copy", Settings())

    assert caught.value.database == str(source)
    assert not Path(f"{source}.copy").exists()
    assert [name for name in digests(source) if "partial" in name] == []


@pytest.mark.parametrize(
    ("content", "error"), [(None, DatabaseMissing), (b"text" * 2000, NotADatabase), ("half", DatabaseCorrupt)]
)
def test_an_original_that_is_none_is_named(source: Path, content: Any, error: type[DatabaseError]) -> None:
    """FS-07: the error names the original, and not the copy."""
    if content is None:
        source.unlink()
    elif content == "half":
        os.truncate(source, source.stat().st_size // 8192 * 4096)
    else:
        source.write_bytes(content)

    with pytest.raises(error) as caught:
        write_backup(str(source), f"{source}.copy", Settings())

    assert caught.value.database == str(source)
    assert not Path(f"{source}.copy").exists()


def test_a_locked_original_is_waited_for_and_then_named(path: Path) -> None:
    """LK-08: a copy that cannot be begun says so after the timeout, and leaves nothing."""
    settings = Settings(busy_timeout=0.1, journal_mode="delete")
    made(path, settings=settings)

    with holding(path, "BEGIN EXCLUSIVE"), pytest.raises(DatabaseBusy) as caught:
        write_backup(str(path), f"{path}.copy", settings)

    assert caught.value.database == str(path)
    assert sorted(digests(path)) == ["agent.db"]


NO_ROOM = """
from pathlib import Path
from agentstate.db.backup import write_backup
from agentstate.errors import DatabaseFull
from agentstate.settings import Settings
try:
    write_backup(sys.argv[1], "copy.db", Settings())
except DatabaseFull as error:
    print(error.database)
print([entry.name for entry in Path().iterdir()])
"""

NO_ROOM_TO_UPGRADE = """
import sqlite3
from pathlib import Path
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import DatabaseFull
from agentstate.settings import Settings
settings = Settings(journal_mode="delete")  # the log of WAL would need room of its own
with Database.open("agent.db", "rwc", settings=settings) as database:
    upgrade(database, "0001")
with sqlite3.connect("agent.db") as connection:
    connection.execute("INSERT INTO sessions VALUES ('worker', 'alice', ?, '2026-11-29T11:00:00.000Z')", ["x" * 600000])
connection.close()
with Database.open("agent.db", settings=settings) as database:
    try:
        upgrade(database, backup=True)
    except DatabaseFull as error:
        print("backup" in error.database)
    print(database.revision())
print([entry.name for entry in Path().iterdir()])
"""


def test_a_full_disk_leaves_no_half_copy(source: Path, tmp_path: Path) -> None:
    """FS-04: what a failed backup had written took the last space, and looked like a backup."""
    with Database.open(source) as database:
        adapter.save_start_pending("job-9", "alice", "alice", "x" * 500_000, database=database)

    assert on_small_disk(NO_ROOM, tmp_path / "disk", "100k", source) == ["copy.db", "[]"]


def test_an_upgrade_without_room_for_its_copy_changes_nothing(tmp_path: Path) -> None:
    """FS-04: going on without the copy is not what was asked for."""
    found = on_small_disk(NO_ROOM_TO_UPGRADE, tmp_path / "disk", "1m")

    assert found == ["True", "0001", "['agent.db']"]
