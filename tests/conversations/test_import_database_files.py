"""The file of the original program's database: read whichever way it lies there, never changed, never mistaken."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from agentstate.conversations.importer_db import import_session_database
from agentstate.conversations.records import ImportEntry
from agentstate.conversations.repositories import Conversations
from agentstate.db.database import Database
from agentstate.db.schema import adopt, upgrade
from agentstate.errors import DatabaseCorrupt, DatabaseUnavailable, ForeignDatabase, NotASessionStore
from agentstate.metadata import metadata
from builders import MAIN, NOON, agentstate, finished, python, said, sql
from conversation_helpers import Injected, everything, statements, texts
from db_helpers import digests, holding, made
from migration_helpers import PHASE_1, state_of
from original_store import OriginalStore

NEWEST = "INSERT INTO turns (id, session_key, seq, messages, created_at) VALUES ('t', 'agent:ada:main', 2, ?, '')"
NEWEST = NEWEST.replace("?", """'[{"role":"user","content":"newest"}]'""")


@contextmanager
def running(path: Path, *statements: str) -> Iterator[None]:
    """Let the original run beside the import: another process has its database open."""
    with holding(path, *statements):
        yield


def at_rest(path: Path) -> AbstractContextManager[None]:
    """The original has ended well."""
    sql(path, NEWEST)
    return nullcontext()


def wal_at_rest(path: Path) -> AbstractContextManager[None]:
    """The original has ended well; its database is in WAL mode."""
    sql(path, "PRAGMA journal_mode = WAL")
    return at_rest(path)


def idle(path: Path) -> AbstractContextManager[None]:
    """The original runs, and writes nothing."""
    sql(path, NEWEST)
    return running(path, "SELECT * FROM sessions")


def writing_wal(path: Path) -> AbstractContextManager[None]:
    """The original runs, and its newest turn is in its log."""
    return running(path, "PRAGMA journal_mode = WAL", NEWEST)


def killed(path: Path) -> AbstractContextManager[None]:
    """The original was killed, and left its newest turn in its log."""
    with writing_wal(path):
        pass
    assert Path(f"{path}-shm").exists()
    return nullcontext()


def copied(path: Path) -> AbstractContextManager[None]:
    """Somebody copied the database and its log, but not what only running programs need."""
    killed(path)
    Path(f"{path}-shm").unlink()
    return nullcontext()


@pytest.mark.parametrize("left", [at_rest, wal_at_rest, idle, writing_wal, killed, copied], ids=lambda f: f.__name__)
def test_a_store_is_read_however_it_was_left_and_nothing_of_it_changes(
    left: Callable[[Path], AbstractContextManager[None]],
    tmp_path: Path,
    file_database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acceptance 30: a read-only connection left -wal and -shm behind; one without the log missed the newest rows."""
    path, scratch = tmp_path / "data" / "sessions.db", tmp_path / "scratch"
    path.parent.mkdir()
    scratch.mkdir()
    # Only what cannot be read in place is copied: the disk of a small machine may not hold it twice.
    monkeypatch.setattr(tempfile, "tempdir", str(scratch if left is copied else scratch / "missing"))
    with OriginalStore(path) as store:
        store.session(MAIN)
        store.turn(MAIN, 1, [said("oldest")])

    with left(path):
        before = digests(path)
        report = import_session_database(file_database, path)
        after = digests(path)

    assert report.imported == 1
    assert texts(file_database, MAIN) == ["oldest", "newest"]
    assert after.keys() == before.keys()
    shared_memory = {f"{path.name}-shm"}  # where running programs note who reads what
    assert {name for name in before if after[name] != before[name]} <= shared_memory
    assert list(scratch.iterdir()) == []


def test_a_store_that_has_to_be_copied_and_cannot_be_is_left_alone(
    tmp_path: Path, file_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FS-04: a full disk, or no place, for temporary files is named, and nothing is half there."""
    path = tmp_path / "sessions.db"
    with OriginalStore(path) as store:
        store.session(MAIN)
    copied(path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    with pytest.raises(DatabaseUnavailable, match="No such file"):
        import_session_database(file_database, path)

    assert everything(file_database) == ([], [])


def test_any_path_names_exactly_its_file(tmp_path: Path, file_database: Database) -> None:
    """CN-06: '?', '#' and '%' in a path named another file."""
    path = tmp_path / "what? #1 100%41 ü.db"
    with OriginalStore(path) as store:
        store.session(MAIN)

    report = import_session_database(file_database, path)

    assert [(entry.source, entry.outcome) for entry in report.entries] == [(path.name, "imported")]


def test_a_file_name_that_is_not_utf_8_can_be_remembered(tmp_path: Path, file_database: Database) -> None:
    """VA-02: the name goes into a text column."""
    path = Path(os.fsdecode(os.fsencode(tmp_path / "sess") + b"\xff.db"))
    with OriginalStore(path) as store:
        store.session(MAIN)

    report = import_session_database(file_database, path)

    assert report.imported == 1
    with file_database.read() as work:
        row = Conversations(work).find_row(MAIN)
    assert row is not None
    assert row.imported_from.startswith("sess\ufffd.db#")


def test_a_program_in_the_middle_of_writing_is_not_disturbed(tmp_path: Path, file_database: Database) -> None:
    """LK-01: half a transaction must not come in, and a reader's lock would make the original lose a turn."""
    path = tmp_path / "sessions.db"
    with OriginalStore(path) as store:
        store.session(MAIN)

    with running(path, "BEGIN IMMEDIATE", NEWEST), pytest.raises(DatabaseUnavailable, match="-journal is there"):
        import_session_database(file_database, path)

    assert everything(file_database) == ([], [])


@pytest.mark.parametrize("left", [at_rest, copied], ids=lambda f: f.__name__)
def test_a_store_that_changes_meanwhile_is_not_read_on(
    left: Callable[[Path], AbstractContextManager[None]], tmp_path: Path, file_database: Database
) -> None:
    """Without locks a change makes a tree of two halves; what was whole by then stays, and the same call goes on."""
    path = tmp_path / "sessions.db"
    with OriginalStore(path) as store:
        store.session("a")
        store.session("b")
    left(path)

    def interfere(_: ImportEntry) -> None:
        sql(path, "UPDATE sessions SET label = 'x' WHERE key = 'b'")

    with pytest.raises(DatabaseUnavailable, match="stop it, then import once more"):
        import_session_database(file_database, path, on_progress=interfere)

    assert [row[0] for row in everything(file_database)[0]] == ["a"]
    report = import_session_database(file_database, path)
    assert (report.imported, report.already) == (1, 1)


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_a_planted_link_beside_the_store_is_not_followed(suffix: str, tmp_path: Path, file_database: Database) -> None:
    """FS-12: what lies beside the file may be anybody's."""
    path, victim = tmp_path / "sessions.db", tmp_path / "victim"
    with OriginalStore(path) as store:
        store.session(MAIN)
    victim.write_text("precious")
    os.symlink(victim, f"{path}{suffix}")

    with pytest.raises(DatabaseUnavailable, match="symbolic link"):
        import_session_database(file_database, path)

    assert victim.read_text() == "precious"


def missing(path: Path) -> None:
    """There is nothing."""


def empty(path: Path) -> None:
    path.touch()


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def no_database(path: Path) -> None:
    path.write_text('{"key": "telegram:1", "messages": []}\n' * 100)


def our_own(path: Path) -> None:
    made(path)


def our_first(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(PHASE_1)


def another_program(path: Path) -> None:
    sql(path, "CREATE TABLE books (title TEXT)")


def without_turns(path: Path) -> None:
    OriginalStore(path).close()
    sql(path, "DROP TABLE turns")


def other_columns(path: Path) -> None:
    OriginalStore(path).close()
    sql(path, "ALTER TABLE turns RENAME COLUMN origin_key TO origin")


def without_rowid(path: Path) -> None:
    OriginalStore(path).close()
    (script,) = sql(path, "SELECT sql FROM sqlite_master WHERE name = 'turns'")[0]
    sql(path, "DROP TABLE turns")
    sql(path, f"{script} WITHOUT ROWID")
    sql(path, "INSERT INTO sessions (key, created_at, updated_at) VALUES ('k', '', '')")


NO_STORES: dict[Callable[[Path], None], str] = {
    missing: "there is no such file",
    empty: "it is empty",
    directory: "it is a directory",
    fifo: "it is a FIFO",
    no_database: "file is not a database",
    our_own: "agentstate's own",
    our_first: "agentstate's own",
    another_program: "it has no table sessions",
    without_turns: "it has no table turns",
    other_columns: "its table turns has no column origin_key",
    without_rowid: "no such column: rowid",
}


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "for good"])
@pytest.mark.parametrize("make", NO_STORES, ids=lambda f: f.__name__)
def test_what_is_no_session_store_is_refused_with_the_reason(
    make: Callable[[Path], None], dry_run: bool, tmp_path: Path, file_database: Database
) -> None:
    """Section 12: the wrong file is told by what it is, and neither it nor the database is touched."""
    path = tmp_path / "data" / "sessions.db"
    path.parent.mkdir()
    make(path)
    before = digests(path)

    with pytest.raises(NotASessionStore) as caught:
        import_session_database(file_database, path, dry_run=dry_run)

    assert caught.value.path == str(path)
    assert NO_STORES[make] in caught.value.reason
    assert digests(path) == before
    assert everything(file_database) == ([], [])


def test_a_damaged_store_is_called_damaged(tmp_path: Path, file_database: Database) -> None:
    """FS-06: nothing is repaired by itself, and what is whole comes in from a repaired copy."""
    path = tmp_path / "sessions.db"
    with OriginalStore(path) as store:
        store.session(MAIN)
        for seq in range(200):
            store.turn(MAIN, seq, [said("x" * 500)])
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))

    with pytest.raises(DatabaseCorrupt):
        import_session_database(file_database, path)

    assert everything(file_database) == ([], [])


def two_trees(path: Path) -> None:
    """Make a store of two trees."""
    with OriginalStore(path) as store:
        for tree in "ab":
            store.session(tree)
            store.session(f"{tree}-child", parent_key=tree)
            for key in (tree, f"{tree}-child"):
                for seq in range(1, 4):
                    store.turn(key, seq, [said(f"{key} {seq}")])


def test_a_fault_at_any_statement_leaves_whole_trees_only(tmp_path: Path, database: Database) -> None:
    """IM-01: the row was there, its turns were not, and the next start took it for done."""
    path = tmp_path / "sessions.db"
    two_trees(path)
    number = 0
    seen: set[int] = set()

    while True:
        number += 1
        try:
            with statements(database, fail_before=number):
                import_session_database(database, path, now=NOON)
        except Injected:
            conversations, turns = everything(database)
            assert len(turns) == 3 * len(conversations)
            seen.add(len(conversations))
        else:
            break

    assert seen == {0, 2}
    assert number > 10
    assert len(everything(database)[0]) == 4


IMPORTING = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from agentstate.conversations.importer_db import import_session_database
from agentstate.db.database import Database

target, source = sys.argv[1:]
for moment in range(2, 62, 3):
    child = os.fork()
    if child == 0:
        left = [moment]
        def count(*_):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        for name in ("after_cursor_execute", "commit"):
            event.listen(Engine, name, count)
        with Database.open(target) as database:
            import_session_database(database, source)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_an_import_that_is_killed_again_and_again_ends_complete(tmp_path: Path, file_database: Database) -> None:
    """IM-03: kill -9 at 20 moments left sessions half there, or doubled them."""
    source, target = tmp_path / "sessions.db", made(tmp_path / "killed.db")
    with OriginalStore(source) as store:
        for number in range(120):
            store.session(f"k{number:03}", parent_key=f"k{number - 1:03}" if number % 3 else "")
            for seq in range(1, 5):
                store.turn(f"k{number:03}", seq, [said(f"{number} {seq}")])
    import_session_database(file_database, source, now=NOON)

    ends = finished(python(IMPORTING, target, source)).split()
    with Database.open(target) as database:
        report = import_session_database(database, source, now=NOON)
        stored = everything(database)

    assert ends.count(str(-signal.SIGKILL)) == 20
    assert (report.imported + report.already, report.complete) == (120, True)
    conversations, turns = everything(file_database)
    assert without_import_time(stored[0]) == without_import_time(conversations)
    assert stored[1] == turns


def without_import_time(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return rows of conversations without when they were imported."""
    return [(*row[:-2], row[-1]) for row in rows]


def test_the_store_is_told_from_our_role_state_and_its_import_is_named(tmp_path: Path) -> None:
    """Section 12: its table sessions is not ours; who points AGENT_DB_PATH at it is told what to do instead."""
    path = tmp_path / "sessions.db"
    two_trees(path)
    before = state_of(path)

    with Database.open(path) as database:
        with pytest.raises(ForeignDatabase, match="agentstate conversations import") as adopting:
            adopt(database, metadata)
        with pytest.raises(ForeignDatabase, match="agentstate conversations import"):
            upgrade(database)
        with pytest.raises(ForeignDatabase, match="agentstate conversations import"), database.read():
            pass
    refused = agentstate("upgrade", AGENT_DB_PATH=str(path))

    assert adopting.value.tables == ("sessions", "turns")
    assert str(path) in adopting.value.hint
    assert "agentstate conversations import" in refused.stderr
    assert state_of(path) == before


def test_another_programs_database_is_not_called_a_session_store(tmp_path: Path) -> None:
    """Two tables of the same names are not enough."""
    path = tmp_path / "other.db"
    sql(path, "CREATE TABLE sessions (id INTEGER)")
    sql(path, "CREATE TABLE turns (session_key TEXT)")

    with Database.open(path) as database, pytest.raises(ForeignDatabase) as caught, database.read():
        pass

    assert caught.value.hint == ""
    assert "conversations import" not in str(caught.value)
