"""What lies at the path, told apart before anything is written to it.

FS-06 and FS-10: `doctor`, and moving a damaged database aside on command, are tested where those commands are; so are
exports and spill files, and directories (nothing makes one yet). FS-13 and FS-14 are in test_space.py, FS-09
belongs to `restore`. What users without rights meet (FS-02, FS-03) is in test_other_users.py.
"""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentstate.db.backup import write_backup
from agentstate.db.database import Database
from agentstate.db.files import Mode
from agentstate.db.schema import upgrade
from agentstate.errors import DatabaseCorrupt, DatabaseEmpty, DatabaseMissing, DatabaseUnavailable, NotADatabase
from agentstate.settings import Settings
from builders import NOON, a_session, a_start, agentstate, filled, finished, python, sql
from db_helpers import asked, digests, made, permissions

MODES: tuple[Mode, ...] = ("rw", "rwc", "ro")


@pytest.fixture
def umask() -> Iterator[None]:
    """The usual mask, under which files are readable for everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def large(path: Path) -> Path:
    """A closed database of many pages."""
    made(path)
    with Database.open(path) as database, database.write(now=NOON) as work:
        for number in range(200):
            a_start(work, f"job-{number}", body="x" * 1000)
    return path


@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_a_missing_file_is_not_made_by_accident(path: Path, mode: Mode) -> None:
    """A typing error in AGENT_DB_PATH gave every role an empty memory."""
    with pytest.raises(DatabaseMissing, match="agentstate upgrade") as caught:
        Database.open(path, mode)

    assert caught.value.database == str(path)
    assert list(path.parent.iterdir()) == []


def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    """FS-03: 'unable to open database file' said neither which file nor what was wrong with it."""
    path = tmp_path / "absent" / "agent.db"

    for mode in MODES:
        with pytest.raises(DatabaseUnavailable, match=f"directory {path.parent} does not exist") as caught:
            Database.open(path, mode)
        assert f"uid {os.geteuid()}" in str(caught.value)

    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    """FS-03: the same for a path through a file."""
    (tmp_path / "file").write_text("text")

    with pytest.raises(DatabaseUnavailable, match="Not a directory"):
        Database.open(tmp_path / "file" / "agent.db", "rwc")


WRONG: dict[str, Callable[[Path], object]] = {
    "JSON": lambda path: path.write_text('{"sessions": [1, 2, 3]}'),
    "one letter": lambda path: path.write_text("x"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "many zeros": lambda path: path.write_bytes(bytes(144 * 1024)),
    "text of many pages": lambda path: path.write_text("SQLite format 3" * 2000),
    "directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", WRONG)
def test_what_is_no_database_is_refused_and_left_alone(path: Path, content: str, mode: Mode) -> None:
    """FS-07: an all-zero file was opened as a new database, and every session vanished."""
    WRONG[content](path)
    before = digests(path)

    with pytest.raises(NotADatabase) as caught:
        Database.open(path, mode)

    assert caught.value.database == str(path)
    assert digests(path) == before


@pytest.mark.parametrize("mode", MODES)
def test_a_fifo_makes_nobody_wait(path: Path, mode: Mode) -> None:
    """FS-07: opening a FIFO waits for somebody at its other end, for ever."""
    os.mkfifo(path)

    code = (
        "import sys\n"
        "from agentstate.db.database import Database\n"
        "try:\n"
        "    Database.open(*sys.argv[1:])\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )

    assert finished(python(code, path, mode), timeout=30).startswith(
        f"NotADatabase {path} is not a database: it is a F"
    )


def test_sockets_and_devices_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-07: what else a path may lead to."""
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("socket")

        with pytest.raises(NotADatabase, match="it is a socket"):
            Database.open("socket")
    with pytest.raises(NotADatabase, match="it is a device"):
        Database.open("/dev/null")


@pytest.mark.parametrize("mode", MODES)
def test_half_a_database_is_damaged_and_left_alone(large: Path, mode: Mode) -> None:
    """FS-06: an automatic 'recovery' threw data away several times a day."""
    os.truncate(large, large.stat().st_size // 8192 * 4096)
    before = digests(large)

    with pytest.raises(DatabaseCorrupt, match="restore a backup") as caught:
        Database.open(large, mode)

    assert caught.value.database == str(large)
    # Reading a database in WAL mode leaves an empty log beside it, without a byte.
    assert {name: digest for name, digest in digests(large).items() if mode != "ro" or name == large.name} == before
    assert agentstate("status", "--database", large).returncode == 6


def test_damage_inside_is_told_by_whoever_reads_it(large: Path) -> None:
    """FS-06: a page that a crash filled with zeros is not noticed when the database is opened."""
    page = int(str(asked(large, "SELECT rootpage FROM sqlite_master WHERE name = 'start_pending'")))
    with large.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))
    before = digests(large)

    with Database.open(large, "ro") as database, database.read() as work, pytest.raises(DatabaseCorrupt, match="malfo"):
        work.session.connection().exec_driver_sql("SELECT max(body) FROM start_pending")

    assert digests(large)[large.name] == before[large.name]


@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_an_empty_file_is_not_a_new_database(path: Path, mode: Mode) -> None:
    """FS-05: a crash emptied the file, and the restart took it for a fresh one."""
    path.touch()

    with pytest.raises(DatabaseEmpty, match="restore a backup"):
        Database.open(path, mode)

    assert path.stat().st_size == 0


@pytest.mark.parametrize("beside", ["-wal", "-journal", ".backup-0001-20261129T110000.000Z"])
def test_an_emptied_file_with_remains_beside_it_is_not_made_anew(path: Path, beside: str) -> None:
    """FS-05: the first write into it would have made the loss permanent."""
    path.touch()
    Path(f"{path}{beside}").write_bytes(b"rows that were")
    before = digests(path)

    with pytest.raises(DatabaseEmpty):
        Database.open(path, "rwc")

    assert digests(path) == before


def test_an_empty_file_is_used_with_a_warning_when_asked_for(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FS-05: `touch` before the first start is a habit, and harmless; an empty log beside it is no remains."""
    path.touch()
    Path(f"{path}-wal").touch()

    with caplog.at_level(logging.WARNING, "agentstate"), Database.open(path, "rwc") as database:
        upgrade(database)

    assert f"{path} exists and is empty" in caplog.text
    assert asked(path, "SELECT count(*) FROM sessions") == 0


def test_a_new_database_is_its_owners_alone(path: Path, umask: None) -> None:
    """FS-10: under the usual mask everybody on the machine could read the transcripts."""
    with Database.open(path, "rwc") as database:
        upgrade(database, "0001")
        sql(path, "INSERT INTO sessions VALUES ('worker', 'a', 's', '2026-11-29T11:00:00.000Z')")
        upgrade(database, backup=True)
        with database.write() as work:
            a_session(work)

            found = permissions(path)

    assert {name.removeprefix(path.name)[:7] for name in found} == {"", "-wal", "-shm", ".backup"}
    assert set(found.values()) == {"0o600"}


def test_the_rollback_journal_is_its_owners_alone(path: Path, umask: None) -> None:
    """FS-10: without WAL the old pages lie in another file."""
    settings = Settings(journal_mode="delete")
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database, database.write() as work:
        a_session(work)
        found = permissions(path)

    assert found == {"agent.db": "0o600", "agent.db-journal": "0o600"}


def test_a_link_to_nothing_is_not_followed(path: Path, tmp_path: Path) -> None:
    """FS-12: who may write to the directory could have a file made anywhere."""
    victim = tmp_path / "victim"
    path.symlink_to(victim)

    for mode in MODES:
        with pytest.raises(DatabaseUnavailable, match="symbolic link"):
            Database.open(path, mode)

    assert not victim.exists()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("present", [True, False])
def test_a_link_beside_the_database_is_not_followed(path: Path, tmp_path: Path, suffix: str, present: bool) -> None:
    """FS-12: SQLite itself follows a link planted where it keeps its log."""
    if present:
        made(path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o640)
    Path(f"{path}{suffix}").symlink_to(victim)
    before = digests(path)

    for mode in MODES if present else ("rwc",):
        with pytest.raises(DatabaseUnavailable, match=f"{suffix} is a symbolic link"):
            Database.open(path, mode)

    assert digests(path) == before
    assert victim.stat().st_mode & 0o777 == 0o640


def test_a_link_to_something_else_leaves_it_alone(path: Path, tmp_path: Path) -> None:
    """FS-12: the target of a planted link was chmod-ed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o640)
    path.symlink_to(victim)

    for mode in MODES:
        with pytest.raises(NotADatabase):
            Database.open(path, mode)

    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("linked", ["file", "directory"])
def test_an_existing_database_behind_a_link_is_used(tmp_path: Path, linked: str) -> None:
    """FS-12: an operator's own link is resolved once, so that all users of the file agree on its sidecars."""
    real = tmp_path / "real" / "agent.db"
    real.parent.mkdir()
    made(real)
    link = tmp_path / "link"
    link.symlink_to(real if linked == "file" else real.parent)

    with Database.open(link if linked == "file" else link / "agent.db") as database, database.write() as work:
        a_session(work)
        beside = sorted(entry.name for entry in real.parent.iterdir())

    assert database.path == str(real)
    assert beside == ["agent.db", "agent.db-shm", "agent.db-wal"]
    assert asked(real, "SELECT count(*) FROM sessions") == 1


@pytest.mark.parametrize("name", ["a?b#c %41 ü", "state.db?mode=ro", "file:x", "%2e%2e", "a'b\"c;d", "\udcff\udcfe"])
@pytest.mark.parametrize("kind", [str, Path])
def test_exactly_the_named_file_is_opened(tmp_path: Path, name: str, kind: type[str] | type[Path]) -> None:
    """CN-06: `/tmp/a?b.db` opened `/tmp/a`, silently."""
    path = tmp_path / name / f"{name}.db"
    path.parent.mkdir()

    with Database.open(kind(path), "rwc") as database:
        upgrade(database)
        filled(database)
        write_backup(str(path), f"{path}.copy", database.settings)

    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, f"{path.name}.copy"]
    for file in (path, f"{path}.copy"):
        with closing(sqlite3.connect(os.fsencode(file))) as connection:
            assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (2,)
