"""What lies beside a database, or is no longer there."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade
from agentstate.errors import DatabaseEmpty, DatabaseUnavailable, SchemaBehind
from builders import a_session, agentstate, filled, finished, python, sql

WRITE_AND_DIE = """
import os, signal, sys
from agentstate import adapter
adapter.save_session("worker", "alice@bot.example", "only in the log", database=sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_log_whose_database_is_gone_is_not_deleted(path: Path) -> None:
    """FS-05: a new database in its place would throw the newest rows away, without a word."""
    with Database.open(path, "rwc") as database:
        upgrade(database)
    python(WRITE_AND_DIE, path).communicate()
    log = Path(f"{path}-wal")
    kept = log.read_bytes()
    saved = path.read_bytes()
    path.unlink()

    with pytest.raises(DatabaseUnavailable, match="newest rows are still in"):
        Database.open(path, "rwc")
    refused = agentstate("upgrade", AGENT_DB_PATH=str(path))

    assert kept
    assert (refused.returncode, path.exists(), log.read_bytes()) == (9, False, kept)
    path.write_bytes(saved)
    assert adapter.load_session("worker", "alice@bot.example", database=path) == "only in the log"


def test_a_database_emptied_while_it_is_open_is_noticed(file_database: Database, path: Path) -> None:
    """FS-05: the running process went on as if nothing had happened, the next one refused to start."""
    with file_database.write() as work:
        a_session(work)

    os.truncate(path, 0)

    with pytest.raises(DatabaseEmpty), file_database.write() as work:
        a_session(work)


def test_a_schema_taken_back_by_somebody_else_is_told_as_such(file_database: Database, path: Path) -> None:
    """A handle that had seen the schema at head kept saying that it is."""
    with file_database.read() as work:
        assert work.now
    with Database.open(path) as other:
        downgrade(other, "base", force=True)

    with pytest.raises(DatabaseUnavailable, match="changed meanwhile"), file_database.write() as work:
        a_session(work)
    with pytest.raises(SchemaBehind), file_database.write() as work:
        a_session(work)


def test_an_unfinished_backup_of_a_dead_process_is_removed(file_database: Database, path: Path) -> None:
    """A service that was killed while it backed up left a whole copy per try, until the disk was full."""
    filled(file_database)
    downgrade(file_database, "0002", force=True)
    dead = finished(python("import os; print(os.getpid())")).strip()
    of = f"{path}.backup-0002-x.partial-{os.uname().nodename}"
    stale = [Path(f"{of}-{dead}{suffix}") for suffix in ("", "-journal")]
    alive = Path(f"{of}-{os.getpid()}")
    other = Path(f"{path}.partial-{dead}")  # of another program
    for file in [*stale, alive, other]:
        file.write_bytes(b"x")

    upgrade(file_database, backup=True)

    assert [file.exists() for file in [*stale, alive, other]] == [False, False, True, True]


def test_a_backup_is_made_where_there_are_no_hard_links(
    file_database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared folders and FAT know none; an upgrade would be refused there for ever."""
    filled(file_database)
    downgrade(file_database, "0002", force=True)

    def no_link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    change = upgrade(file_database, backup=True)

    assert change.backup is not None
    assert sql(change.backup, "SELECT count(*) FROM pending_approval") == [(1,)]
    with closing(sqlite3.connect(change.backup)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
