"""How connections are prepared: pragmas, journal modes, and file systems on which WAL is not safe.

FS-01: a real network or shared mount is not at hand; its entry in the kernel's list of mounts is given instead.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from agentstate.db import engine, files
from agentstate.db.database import Database
from agentstate.errors import ConstraintViolated, DatabaseUnavailable
from agentstate.settings import JOURNAL_MODES, Settings
from builders import a_session, an_approval, filled
from db_helpers import asked, holding, made
from migration_helpers import locked


def pragmas_of_eight(database: Database, pragma: str) -> list[object]:
    """Return a pragma's value on eight connections that are in use at once, more than the pool keeps."""
    with ExitStack() as stack:
        connections = [stack.enter_context(database.connect()) for _ in range(8)]
        assert len({id(connection.connection.driver_connection) for connection in connections}) == 8
        return [connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() for connection in connections]


@pytest.mark.parametrize("journal_mode", JOURNAL_MODES)
def test_every_connection_of_the_pool_is_prepared(path: Path, journal_mode: str) -> None:
    """CN-05: set once, or in a URL that the driver ignores, other connections ran without keys and timeouts."""
    settings = Settings(busy_timeout=12.5, journal_mode=journal_mode, synchronous="extra")
    made(path, settings=settings)

    with Database.open(path, settings=settings) as database:
        assert pragmas_of_eight(database, "foreign_keys") == [1] * 8
        assert pragmas_of_eight(database, "busy_timeout") == [12500] * 8
        assert pragmas_of_eight(database, "synchronous") == [3] * 8
        assert pragmas_of_eight(database, "journal_mode") == [journal_mode] * 8


def test_without_settings_a_connection_is_durable_and_patient(path: Path) -> None:
    """CN-05: the defaults are the ones that lose nothing."""
    made(path)

    with Database.open(path) as database:
        assert pragmas_of_eight(database, "synchronous") == [2] * 8
        assert pragmas_of_eight(database, "busy_timeout") == [30000] * 8
        assert pragmas_of_eight(database, "journal_mode") == ["wal"] * 8


def test_foreign_keys_hold_in_every_unit_of_work(file_database: Database) -> None:
    """CN-05: switched on inside a transaction they are off, and 21 declared cascades did nothing."""
    with file_database.write() as work:
        an_approval(work)

    with pytest.raises(ConstraintViolated, match="FOREIGN KEY"), file_database.write() as work:
        work.session.connection().exec_driver_sql("UPDATE pending_approval SET job_id = 'other'")


@pytest.mark.parametrize("fails", [False, True])
def test_foreign_keys_are_back_after_a_change_of_the_schema(file_database: Database, fails: bool) -> None:
    """CN-05: a change of the schema switches them off on its connection, which then serves others."""
    with suppress(ConstraintViolated), file_database.change_schema() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 0
        if fails:
            connection.exec_driver_sql("INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES ('none', '/')")

    assert pragmas_of_eight(file_database, "foreign_keys") == [1] * 8
    assert asked(Path(file_database.name), "SELECT count(*) FROM pending_approval_repo") == 0


def test_a_new_file_can_give_space_back(path: Path) -> None:
    """FS-14: only a file made so can be made smaller without being rewritten whole."""
    made(path)

    assert asked(path, "PRAGMA auto_vacuum") == 2


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_the_configured_mode_stays(path: Path, journal_mode: str) -> None:
    """FS-01: what was configured once is what other programs find."""
    settings = Settings(journal_mode=journal_mode)
    made(path, settings=settings)

    for _ in range(2):
        with Database.open(path, settings=settings) as database, database.write() as work:
            a_session(work)

        assert asked(path, "PRAGMA journal_mode") == journal_mode


@pytest.mark.parametrize("before", JOURNAL_MODES)
@pytest.mark.parametrize("after", JOURNAL_MODES)
def test_a_database_changes_its_mode_when_it_is_first_used(path: Path, before: str, after: str) -> None:
    """FS-01: a database that is moved to another file system gets the mode for it, with its rows."""
    made(path, settings=Settings(journal_mode=before))
    with Database.open(path, settings=Settings(journal_mode=before)) as database:
        filled(database)

    with Database.open(path, settings=Settings(journal_mode=after)) as database:
        with database.read() as work:
            count = work.session.connection().exec_driver_sql("SELECT count(*) FROM sessions").scalar()

        assert count == 2
        assert pragmas_of_eight(database, "journal_mode") == [after] * 8


def test_the_switch_to_wal_waits_for_a_writer(path: Path) -> None:
    """LK-06: the switch fails at once while somebody writes, whatever the timeout, and 3 of 6 clients died of it."""
    made(path, settings=Settings(journal_mode="delete"))

    with (
        Database.open(path, settings=Settings(busy_timeout=60)) as database,
        locked(path, seconds=0.3),
        database.write() as work,
    ):
        a_session(work)

        assert work.session.connection().exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_database_that_others_have_open_stays_in_wal(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FS-01: leaving WAL needs the database for oneself; it is reported, and the work is done all the same."""
    made(path)

    with (
        holding(path, "SELECT * FROM sessions"),
        Database.open(path, settings=Settings(busy_timeout=60, journal_mode="delete")) as database,
        database.write() as work,
    ):
        a_session(work)

    assert f"{path}: journal mode delete was asked for, the database stays in wal" in caplog.text
    assert asked(path, "SELECT count(*) FROM sessions") == 1


def test_a_mode_that_the_file_system_refuses_is_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FS-01: the PRAGMA answers with another mode than asked for, and nobody looked at the answer."""
    made(path, settings=Settings(journal_mode="delete"))

    # SQLite's own way of working without shared memory, as on a file system that has none.
    with closing(sqlite3.connect(f"file:{path}?vfs=unix-dotfile", uri=True)) as connection:
        engine.ensure_journal_mode(connection, str(path), Settings(journal_mode="wal"))

    assert f"{path}: journal mode wal was asked for, the database stays in delete" in caplog.text


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "virtiofs"])
def test_wal_is_not_the_default_where_memory_is_not_shared(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FS-01: WAL on a shared file system ended in zero-filled pages and locks that nobody held."""
    made(path)  # before it was moved there
    monkeypatch.setattr(files, "shared_mount", lambda path: f"/mnt/share ({kind})")

    with caplog.at_level(logging.WARNING, "agentstate"), Database.open(path) as database, database.write() as work:
        a_session(work)
    made(path.with_name("new.db"))

    assert f"{path} lies on /mnt/share ({kind})" in caplog.text
    assert asked(path, "PRAGMA journal_mode") == "delete"
    assert asked(path.with_name("new.db"), "PRAGMA journal_mode") == "delete"


def test_wal_is_used_there_when_somebody_asks_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FS-01: who knows the mount better says so, and is not warned each time."""
    monkeypatch.setattr(files, "shared_mount", lambda path: "/mnt/share (virtiofs)")

    made(path, settings=Settings(journal_mode="wal"))

    assert asked(path, "PRAGMA journal_mode") == "wal"
    assert caplog.text == ""


MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /srv/nfs rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /srv/nfs/local rw - tmpfs tmpfs rw
32 22 0:42 / /srv/my\\040share rw - cifs //server/share rw
33 22 0:43 / /home/a/remote rw - fuse.sshfs a@server: rw
34 22 0:44 / /run/user/1000/gvfs rw - fuse.gvfsd-fuse gvfsd-fuse rw
35 22 0:45 / /windows rw - fuseblk /dev/sda1 rw
36 22 0:46 / /host rw - 9p share rw,trans=virtio
37 22 0:47 / /host rw - virtiofs share rw
a line of a kernel yet to come
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/var/lib/agent.db", None),
        ("/srv/nfs/agent.db", "/srv/nfs (nfs4)"),
        ("/srv/nfs2/agent.db", None),
        ("/srv/nfs/local/agent.db", None),
        ("/srv/my share/agent.db", "/srv/my share (cifs)"),
        ("/home/a/remote/agent.db", "/home/a/remote (fuse.sshfs)"),
        ("/run/user/1000/gvfs/agent.db", "/run/user/1000/gvfs (fuse.gvfsd-fuse)"),
        ("/windows/agent.db", None),
        ("/host/agent.db", "/host (virtiofs)"),
    ],
)
def test_the_mount_of_a_path_is_the_innermost_and_newest(tmp_path: Path, path: str, mount: str | None) -> None:
    """FS-01: what the kernel lists decides, spaces and stacked mounts included."""
    (tmp_path / "mounts").write_text(MOUNTS, encoding="utf-8")

    assert files.shared_mount(path, str(tmp_path / "mounts")) == mount


def test_a_kernel_without_a_list_of_mounts_is_trusted(tmp_path: Path) -> None:
    """FS-01: where nothing is known, nothing is claimed."""
    assert files.shared_mount("/srv/agent.db", str(tmp_path / "absent")) is None


def test_an_sqlite_that_is_too_old_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A syntax error near RETURNING told nobody that the library of the system was the reason."""
    monkeypatch.setattr(engine, "MINIMUM_SQLITE", (99, 0, 0))

    with pytest.raises(DatabaseUnavailable, match=f"SQLite {sqlite3.sqlite_version} is too old"):
        Database.open(path, "rwc")
