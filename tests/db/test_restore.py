"""The way back from a backup: exactly what it holds, whatever lies in its place, and nothing lost when cut off."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentstate import adapter
from agentstate.db.backup import write_backup
from agentstate.db.database import Database
from agentstate.db.files import Mode
from agentstate.db.openers import openers
from agentstate.db.restore import Restored
from agentstate.db.restore import restore as restore_file
from agentstate.db.schema import upgrade
from agentstate.errors import (
    BackupDamaged,
    BackupMissing,
    DatabaseError,
    DatabaseInUse,
    DatabaseUnavailable,
    InvalidValue,
    NotADatabase,
)
from agentstate.metadata import metadata
from agentstate.settings import Settings
from builders import a_session, finished, python, sql
from db_helpers import (
    AS_ROOT,
    NOBODY,
    as_nobody,
    asked,
    can_write,
    common_ground,
    digests,
    holding,
    made,
    on_small_disk,
    permissions,
)

EARLIER, LATER = 3, 4

WRITE_AND_DIE = """
import os, signal, sys
from agentstate import adapter
for number in range(int(sys.argv[2])):
    adapter.save_session("worker", f"late-{number}@bot.example", "s-1", database=sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `agent.db`, a backup of it in `backups`, and in `newer` what a killed writer left of it."""
    place = tmp_path_factory.mktemp("prepared")
    path = place / "agent.db"
    (place / "backups").mkdir()
    (place / "newer").mkdir()
    made(path)
    with Database.open(path) as database, database.write() as work:
        for number in range(EARLIER):
            a_session(work, sender=f"early-{number}@bot.example")
    write_backup(str(path), str(place / "backups" / "snapshot.db"), Settings())
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()  # which reading made
    shutil.copyfile(path, place / "newer" / "agent.db")
    python(WRITE_AND_DIE, place / "newer" / "agent.db", str(LATER)).communicate()
    return place


@pytest.fixture
def snapshot(prepared: Path, path: Path, tmp_path: Path) -> Path:
    """A backup of the database at `path` with three sessions, after which nothing else was done."""
    shutil.copyfile(prepared / "agent.db", path)
    path.chmod(0o600)
    shutil.copytree(prepared / "backups", tmp_path / "backups")
    return tmp_path / "backups" / "snapshot.db"


@pytest.fixture
def newer(prepared: Path, path: Path, snapshot: Path) -> Path:
    """The database at `path`, after a process has written four more sessions and was killed: they are in its log."""
    shutil.copytree(prepared / "newer", path.parent, dirs_exist_ok=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    return path


def restored(snapshot: Path, path: Path, **options: Any) -> Restored:
    """Restore the backup."""
    return restore_file(snapshot, path, metadata, Settings(), **options)


def count(path: Path) -> int:
    """Return the number of sessions that another program finds."""
    return int(str(asked(path, "SELECT count(*) FROM sessions")))


def beside(path: Path) -> list[str]:
    """Return what lies in the database's directory, names of kept files without their time."""
    names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    return sorted(name[:18] + name[18:].partition("Z")[2] if ".replaced-" in name else name for name in names)


KEPT = ["agent.db.replaced-", "agent.db.replaced--shm", "agent.db.replaced--wal"]


def test_a_restored_database_holds_exactly_what_its_backup_holds(snapshot: Path, newer: Path) -> None:
    """FS-09: the log of the killed writer stayed, and SQLite replayed it into the restored file."""
    done = restored(snapshot, newer)

    assert beside(newer) == ["agent.db", *KEPT]
    assert count(newer) == EARLIER
    assert (done.database, done.backup.file, done.open_in) == (str(newer), str(snapshot), ())
    assert [os.path.exists(name) for name in done.kept] == [True] * 3


def test_what_was_there_is_kept_with_its_newest_rows(snapshot: Path, newer: Path) -> None:
    """FS-06: files that belong together are moved together, and none of their bytes changes; so there is a way back."""
    before = {name: digest for name, digest in digests(newer).items() if name != "backups"}

    done = restored(snapshot, newer)
    kept = {
        name.replace(Path(done.kept[0]).name, "agent.db"): digests(newer)[name]
        for name in map(os.path.basename, done.kept)
    }
    back = restored(Path(done.kept[0]), newer)

    assert kept == before
    assert back.backup.rows["sessions"] == EARLIER + LATER
    assert count(newer) == EARLIER + LATER


def test_the_backup_is_left_as_it_was(snapshot: Path, newer: Path) -> None:
    """It may be the only one, and is needed again."""
    before = (digests(snapshot), snapshot.stat().st_mtime_ns)

    restored(snapshot, newer)

    assert (digests(snapshot), snapshot.stat().st_mtime_ns) == before


def test_a_restored_database_is_used_as_any_other(snapshot: Path, newer: Path) -> None:
    """It is in no special mode, its owner's alone, and is written to as before."""
    restored(snapshot, newer)

    adapter.save_session("worker", "bob@bot.example", "s-9", database=newer)

    assert permissions(newer)["agent.db"] == "0o600"
    assert count(newer) == EARLIER + 1
    assert asked(newer, "PRAGMA auto_vacuum") == 2
    assert asked(newer, "PRAGMA journal_mode") == "wal"


def cut(path: Path) -> None:
    """Take half of the file away."""
    os.truncate(path, path.stat().st_size // 8192 * 4096)


STATES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: list(map(os.unlink, path.parent.glob("agent.db*"))),
    "missing, with a log": os.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "a byte": lambda path: path.write_bytes(b"x"),
    "cut": cut,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_text("{}" * 4096),
    "nobody's to read": lambda path: path.chmod(0),
    "with a journal": lambda path: Path(f"{path}-journal").write_bytes(b"rows that were"),
}


@pytest.mark.parametrize("state", STATES)
def test_a_database_in_any_state_is_replaced(snapshot: Path, newer: Path, state: str) -> None:
    """FS-05, FS-06, FS-07: these are the days on which people restore; what there is of it is kept, byte by byte."""
    STATES[state](newer)
    mode = newer.stat().st_mode if newer.exists() else 0
    if mode and not mode & 0o400 and not AS_ROOT:
        newer.chmod(0o600)  # who may not read it cannot be told who uses it
    before = sorted(digest for name, digest in digests(newer).items() if name.startswith("agent.db"))

    done = restored(snapshot, newer)

    assert count(newer) == EARLIER
    assert sorted(digests(newer)[os.path.basename(name)] for name in done.kept) == before
    assert [name for name in beside(newer) if ".replaced-" not in name] == ["agent.db"]


@contextmanager
def nothing_changed(path: Path) -> Any:
    """Fail if anything in the database's directory is different after the block."""
    before = digests(path)
    yield
    assert digests(path) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_damaged_backup_is_not_restored(snapshot: Path, newer: Path, force: bool) -> None:
    """FS-08: force means others' open files, and never a backup that nobody should want."""
    content = bytearray(snapshot.read_bytes())
    content[content.index(b"early-1")] ^= 1
    snapshot.write_bytes(content)

    with nothing_changed(newer), pytest.raises(BackupDamaged):
        restored(snapshot, newer, force=force)


def test_a_backup_that_is_not_there_is_missed_before_anything_is_done(snapshot: Path, newer: Path) -> None:
    """FS-03: the database was moved away first."""
    with nothing_changed(newer), pytest.raises(BackupMissing, match="check the path"):
        restored(snapshot.with_name("typing-error.db"), newer)


def test_a_database_is_not_restored_from_itself(snapshot: Path, newer: Path) -> None:
    """By no name that it has."""
    link = newer.parent / "link.db"
    link.symlink_to(newer)

    with nothing_changed(newer), pytest.raises(InvalidValue, match="the database itself"):
        restored(link, newer)


# --- in use ---

HOLD = {
    "reading": ("BEGIN", "SELECT count(*) FROM sessions"),
    "writing": ("BEGIN IMMEDIATE",),
    "idle": ("SELECT count(*) FROM sessions",),
    "just opened": (),
}


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
@pytest.mark.parametrize("doing", HOLD)
def test_a_database_that_others_have_open_is_not_replaced(
    snapshot: Path, path: Path, journal_mode: str, doing: str
) -> None:
    """FS-09: a process that went on with the replaced file lost what it wrote; one that only waits holds no lock."""
    assert asked(path, f"PRAGMA journal_mode = {journal_mode}") == journal_mode
    copied: list[int] = []

    with holding(path, *HOLD[doing]) as holder, pytest.raises(DatabaseInUse, match="--force") as caught:
        restored(snapshot, path, on_progress=lambda done, total: copied.append(done))

    assert copied == []  # so nothing was moved, even for a moment
    assert f"(pid {holder.pid})" in caught.value.by
    assert [name for name in beside(path) if "replaced" in name or "restoring" in name] == []


def test_this_process_counts_as_well(snapshot: Path, path: Path) -> None:
    """FS-11: asking who has the file open must not cost this process its lock either."""
    with Database.open(path) as database, database.write() as work:
        a_session(work)
        with pytest.raises(DatabaseInUse, match=rf"this process \({os.getpid()}\)"):
            restored(snapshot, path)
        assert not can_write(path)

    assert count(path) == EARLIER + 1


def test_who_comes_at_the_last_moment_is_seen_too(snapshot: Path, newer: Path) -> None:
    """Copying takes its time; a timer started a role just then, and what it wrote was lost."""
    came: list[object] = []
    log = Path(f"{newer}-wal").read_bytes()

    def comes(done: int, total: int) -> None:
        if not came:
            came.append(holder.__enter__())

    holder = holding(newer, "SELECT count(*) FROM sessions")
    try:
        with pytest.raises(DatabaseInUse, match=r"\(pid"):
            restored(snapshot, newer, on_progress=comes)
        assert Path(f"{newer}-wal").read_bytes() == log
    finally:
        holder.__exit__(None, None, None)

    assert beside(newer) == ["agent.db", "agent.db-shm", "agent.db-wal"]
    assert count(newer) == EARLIER + LATER


WITH_A_DATABASE = """
import sys
from agentstate import adapter
adapter.load_session("worker", "early-0@bot.example", database=sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
adapter.save_session("worker", "bob@bot.example", "s-9", database=sys.argv[1])
"""


def test_a_forced_restore_is_noticed_by_our_own_processes(snapshot: Path, newer: Path) -> None:
    """Who uses agentstate goes on with the restored database at its next call, and nothing is lost."""
    user = subprocess.Popen(
        [sys.executable, "-c", WITH_A_DATABASE, str(newer)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    assert user.stdout.readline() == "open\n"

    done = restored(snapshot, newer, force=True)
    user.communicate("\n")

    assert done.open_in[0].endswith(f"(pid {user.pid})")
    assert user.returncode == 0
    assert count(newer) == EARLIER + 1


def test_a_forced_restore_is_safe_from_who_still_has_the_former_file(snapshot: Path, newer: Path) -> None:
    """FS-09: SQLite deletes a log by its name when the last user closes the database, and this one is another's."""
    with closing(sqlite3.connect(newer, isolation_level=None)) as outsider:
        outsider.execute("INSERT INTO sessions VALUES ('worker', 'zed', 's', '2026-11-29T11:00:00.000Z')")

        done = restored(snapshot, newer, force=True)
        with Database.open(newer) as database, database.write() as work:
            a_session(work, sender="bob@bot.example")
            outsider.execute("INSERT INTO sessions VALUES ('worker', 'zoe', 's', '2026-11-29T11:00:00.000Z')")
            outsider.close()

    assert f"this process ({os.getpid()})" in done.open_in
    assert count(newer) == EARLIER + 1
    assert asked(newer, "PRAGMA integrity_check") == "ok"
    assert count(Path(done.kept[0])) == EARLIER + LATER + 2


RESTORE = """
sys.exit(main.run(["restore", sys.argv[1], "--database", sys.argv[2], *sys.argv[3:]]))
"""


@pytest.mark.skipif(not AS_ROOT, reason="two users are needed to see one that cannot see the other")
def test_a_process_of_another_user_is_known_by_its_lock(snapshot: Path, path: Path) -> None:
    """Its open files are its own business; in mode WAL it keeps a lock on the database for as long as it is open."""
    with common_ground() as place:
        for file in (snapshot, path):
            shutil.copyfile(file, place / file.name)
            os.chown(place / file.name, NOBODY, -1)
        place.chmod(0o777)
        with holding(place / path.name, "SELECT count(*) FROM sessions"):
            process = as_nobody(RESTORE, place / snapshot.name, place / path.name)
            _, error = process.communicate(timeout=60)

        assert process.returncode == 9
        assert "is open in a process that this user cannot see" in error


def test_a_file_that_cannot_be_asked_about_is_not_replaced_unless_forced(snapshot: Path, path: Path) -> None:
    """Not knowing is no reason to go on."""
    with common_ground() as place:
        copy, mine = place / snapshot.name, place / path.name
        shutil.copyfile(snapshot, copy)
        shutil.copyfile(path, mine)
        copy.chmod(0o644)
        mine.chmod(0o600 if AS_ROOT else 0)
        place.chmod(0o777)

        plain, forced = (as_nobody(RESTORE, copy, mine, *extra).communicate(timeout=60) for extra in ((), ("--force",)))

        assert "whether others have it open cannot be told: Permission denied" in plain[1]
        assert "is now what" in forced[0]


def test_a_closed_database_is_open_in_nobody(path: Path) -> None:
    """And asking leaves it so."""
    made(path)

    with nothing_changed(path):
        assert openers(str(path)) == []


# --- cut off ---

# Each run restores in a directory of its own, in a process that is killed, or told of an error by the system, at its
# n-th change of a name or opened file; the directory's name is n. Ends at the first run that needs fewer.
AT_EACH_STEP = """
import os, shutil, signal, sys
from agentstate.db.restore import restore
from agentstate.errors import AgentStateError
from agentstate.metadata import metadata
from agentstate.settings import Settings
how, snapshot, template, place = sys.argv[1:]
at = 0
while True:
    at += 1
    here = os.path.join(place, str(at))
    shutil.copytree(template, here)
    child = os.fork()
    if child == 0:
        steps = 0
        def count(event, arguments):
            global steps
            if event in ("open", "os.rename", "os.link", "os.remove", "os.chown") and here in str(arguments):
                steps += 1
                if steps == at and how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if steps == at:
                    raise OSError(5, "the disk is broken")
        sys.addaudithook(count)
        try:
            restore(snapshot, os.path.join(here, "agent.db"), metadata, Settings())
        except AgentStateError as error:
            print(at, type(error).__name__, error, flush=True)
        os._exit(0 if steps < at else 1)
    if os.waitpid(child, 0)[1] == 0:
        break
print("done", at)
"""


def at_each_step(how: str, snapshot: Path, newer: Path, tmp_path: Path) -> tuple[list[Path], list[str]]:
    """Run it; return the databases of the runs that were cut off, and what the runs printed."""
    template, place = tmp_path / "template", tmp_path / "runs"
    template.mkdir()
    for suffix in ("", "-wal", "-shm"):
        os.rename(f"{newer}{suffix}", template / f"agent.db{suffix}")
    place.mkdir()
    printed = finished(python(AT_EACH_STEP, how, snapshot, template, place)).splitlines()
    runs = int(printed[-1].removeprefix("done "))
    return [place / str(number) / "agent.db" for number in range(1, runs)], printed[:-1]


@pytest.mark.slow
def test_whoever_kills_it_leaves_the_one_database_or_the_other(snapshot: Path, newer: Path, tmp_path: Path) -> None:
    """FS-09: killed between two steps, a restore left the new file beside the old log, or the old one without it."""
    runs, _ = at_each_step("killed", snapshot, newer, tmp_path)
    assert len(runs) >= 8

    seen = set()
    for path in runs:
        kept = list(path.parent.glob("agent.db.replaced-*Z"))
        if path.exists():
            state = "old" if not kept else "new"
            assert count(path) == (EARLIER + LATER if state == "old" else EARLIER)
        else:
            state = "between"
            with pytest.raises(DatabaseUnavailable, match=r"run 'agentstate restore' again|newest rows are still"):
                Database.open(path, "rwc")
            waiting = list(path.parent.glob("agent.db.restoring-*"))
            assert len(waiting) == 1
            shutil.copyfile(waiting[0], path.parent / "waiting")
            assert count(path.parent / "waiting") == EARLIER
        if kept:
            assert count(kept[0]) == EARLIER + LATER
        seen.add(state)

        restored(snapshot, path)
        assert count(path) == EARLIER
        assert [name for name in beside(path) if "restoring" in name or "partial" in name] == []

    assert seen == {"old", "between", "new"}


@pytest.mark.slow
def test_whatever_fails_is_undone(snapshot: Path, newer: Path, tmp_path: Path) -> None:
    """An error in the middle left the service without a database, which it had had before."""
    runs, printed = at_each_step("failing", snapshot, newer, tmp_path)
    template = digests(tmp_path / "template" / "agent.db")

    failed = {line.split()[0] for line in printed}
    assert {line.split()[1] for line in printed} == {"DatabaseUnavailable"}
    assert len(failed) >= 6
    replaced = {line.split()[0] for line in printed if "it was replaced" in line}
    assert len(replaced) == 1
    for path in runs:
        if path.parent.name in failed - replaced:
            assert digests(path) == template
        else:
            assert count(path) == EARLIER


@pytest.mark.parametrize(
    ("call", "words"), [(1, "Input/output"), (2, "not replaced: Input"), (3, "it was replaced, and")]
)
def test_a_disk_that_fails_to_keep_it_is_told(
    snapshot: Path, newer: Path, monkeypatch: pytest.MonkeyPatch, call: int, words: str
) -> None:
    """FS-04: an error of fsync comes late, and whether the database is the former or the restored one must be said."""
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(5, "Input/output error")

    before = digests(newer)
    with monkeypatch.context() as patched, pytest.raises(DatabaseUnavailable, match=words):
        patched.setattr(os, "fsync", fsync)
        restored(snapshot, newer)

    assert count(newer) == EARLIER if call == 3 else digests(newer) == before


def test_an_interrupted_restore_is_not_taken_for_a_new_installation(snapshot: Path, path: Path) -> None:
    """FS-05: the next start made an empty database, and every role had forgotten everything."""
    waiting = Path(f"{path}.restoring-{os.uname().nodename}-{os.getpid()}")
    os.rename(path, waiting)

    modes: tuple[Mode, ...] = ("rw", "rwc", "ro")
    for mode in modes:
        with pytest.raises(DatabaseUnavailable, match=f"whole and waits in {waiting}"):
            Database.open(path, mode)

    assert beside(path) == [waiting.name]
    os.rename(waiting, path)
    with Database.open(path) as database:
        assert upgrade(database).ran == ()


def test_a_file_system_without_hard_links_will_do(snapshot: Path, newer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT and some shared folders know none."""

    def no_link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    done = restored(snapshot, newer)

    assert count(newer) == EARLIER
    assert beside(newer) == ["agent.db", *KEPT]
    assert count(Path(done.kept[0])) == EARLIER + LATER


NO_ROOM = """
import json, shutil
from pathlib import Path
from agentstate.db.restore import restore
from agentstate.errors import AgentStateError
from agentstate.metadata import metadata
from agentstate.settings import Settings
shutil.copyfile(sys.argv[2], "agent.db")
try:
    restore(sys.argv[1], "agent.db", metadata, Settings())
except AgentStateError as error:
    print(type(error).__name__)
print(json.dumps([Path("agent.db").read_bytes() == Path(sys.argv[2]).read_bytes(), sorted(os.listdir())]))
grow("2m")
restore(sys.argv[1], "agent.db", metadata, Settings())
print(len(os.listdir()))
"""


def test_a_full_disk_leaves_the_database_as_it_was(snapshot: Path, path: Path, tmp_path: Path) -> None:
    """FS-04: there was room for the old database or the new one, and in the end for half of each."""
    error, state, files = on_small_disk(NO_ROOM, tmp_path / "disk", "150k", snapshot, path)

    assert error == "DatabaseFull"
    assert json.loads(state) == [True, ["agent.db"]]
    assert files == "2"


# --- where it is put ---


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
@pytest.mark.parametrize("present", [True, False])
def test_what_root_restores_belongs_to_who_used_it(snapshot: Path, path: Path, present: bool) -> None:
    """FS-03: after a restore at night the service could not open its own database."""
    os.chown(path, NOBODY, NOBODY)
    os.chown(path.parent, NOBODY, NOBODY)
    if not present:
        path.unlink()

    restored(snapshot, path)

    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (NOBODY, NOBODY, 0o600)


def test_a_database_behind_a_link_is_replaced_where_it_is(snapshot: Path, newer: Path, tmp_path: Path) -> None:
    """FS-12: an operator's own link stays, and all who use the file by its other name find the restored one."""
    link = tmp_path / "link" / "current.db"
    link.parent.mkdir()
    link.symlink_to(newer)

    done = restored(snapshot, link)

    assert done.database == str(newer)
    assert link.is_symlink()
    assert count(newer) == EARLIER
    assert sorted(entry.name for entry in link.parent.iterdir()) == ["current.db"]


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_a_planted_link_is_not_followed(snapshot: Path, path: Path, tmp_path: Path, suffix: str) -> None:
    """FS-12: who may write to the directory could have another file overwritten or moved."""
    victim = tmp_path / "victim"
    if not suffix:
        path.unlink()
    else:
        victim.write_text("precious")
    Path(f"{path}{suffix}").symlink_to(victim)

    with nothing_changed(path), pytest.raises(DatabaseUnavailable, match="symbolic link"):
        restored(snapshot, path)


def test_a_link_where_the_new_file_is_made_is_not_followed(snapshot: Path, path: Path, tmp_path: Path) -> None:
    """FS-12: names of temporary files can be guessed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    here = f"{os.uname().nodename}-{os.getpid()}"
    Path(f"{path}.partial-{here}").symlink_to(victim)

    with pytest.raises(DatabaseUnavailable, match="in the way"):
        restored(snapshot, path)
    Path(f"{path}.partial-{here}").unlink()
    Path(f"{path}.restoring-{here}").symlink_to(victim)
    restored(snapshot, path)

    assert victim.read_text() == "precious"
    assert count(path) == EARLIER


@pytest.mark.parametrize(
    ("kind", "error"), [("directory", NotADatabase), ("fifo", NotADatabase), ("no place", DatabaseUnavailable)]
)
def test_a_place_that_cannot_be_is_refused(
    snapshot: Path, tmp_path: Path, kind: str, error: type[DatabaseError]
) -> None:
    """FS-07: a typing error moved a directory aside."""
    place = tmp_path / "place"
    if kind == "directory":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place = place / "agent.db"

    with nothing_changed(tmp_path / "any"), pytest.raises(error):
        restored(snapshot, place)


def test_a_server_is_no_file(snapshot: Path) -> None:
    """Its own tools restore it; the refusal does not repeat what may hold a password."""
    with pytest.raises(InvalidValue) as caught:
        restore_file(snapshot, "postgresql://joe:secret@host/name", metadata, Settings())

    assert "secret" not in str(caught.value)


def test_an_older_backup_is_restored_as_it_is(path: Path, tmp_path: Path) -> None:
    """MG-03: going back after an upgrade means the older schema too, which the next upgrade brings up again."""
    made(path, to="0001")
    sql(path, "INSERT INTO sessions VALUES ('worker', 'alice', 's-1', '2026-11-29T11:00:00.000Z')")
    with Database.open(path) as database:
        kept = upgrade(database, backup=True).backup
    assert kept is not None

    done = restored(Path(kept), path)

    assert (done.backup.revision, done.backup.schema) == ("0001", "behind")
    assert asked(path, "SELECT version_num FROM alembic_version") == "0001"
    with Database.open(path) as database:
        assert upgrade(database).found == "0001"
    assert count(path) == 1


def test_of_those_who_restore_at_once_none_replaces_what_another_restored(tmp_path: Path) -> None:
    """FS-09: each moved the database aside and put its own there: the last one took the others' place, unseen."""
    (tmp_path / "live").mkdir(mode=0o700)
    live, backup = made(tmp_path / "live" / "agent.db"), tmp_path / "backup.db"
    write_backup(str(live), str(backup), Settings())
    code = (
        "import sys\n"
        "from agentstate.db.restore import restore\n"
        "from agentstate.errors import DatabaseUnavailable, DatabaseInUse\n"
        "from agentstate.metadata import metadata\n"
        "from agentstate.settings import Settings\n"
        "try:\n"
        "    restore(sys.argv[1], sys.argv[2], metadata, Settings())\n"
        "    print(1)\n"
        "except (DatabaseUnavailable, DatabaseInUse):\n"
        "    print(0)\n"
    )

    restored = sum(int(finished(process)) for process in [python(code, backup, live) for _ in range(5)])

    databases = [entry.name for entry in live.parent.iterdir() if not entry.name.endswith(("-wal", "-shm"))]
    assert restored >= 1
    assert len(databases) == 1 + restored, databases  # every one that was there is still there
