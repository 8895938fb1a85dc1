"""The doctor finds what is wrong, says what to do, and changes nothing.

FS-01: no shared mount is at hand; the kernel's list of mounts is stood in for. FS-02, FS-03: what other users see is in
tests/db/test_looking.py. What the command line makes of a report is in tests/cli/test_doctor.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import frozen
from agentstate.approvals import stash
from agentstate.approvals import workflows as approvals
from agentstate.approvals.records import RepoChange
from agentstate.approvals.stash import marker_for
from agentstate.conversations import workflows as conversations
from agentstate.db import files
from agentstate.db.backup import write_backup
from agentstate.db.database import Database
from agentstate.db.health.log import log_state
from agentstate.db.state import HEAD, REVISIONS
from agentstate.doctor import Report, examine
from agentstate.errors import DatabaseCorrupt, ForeignDatabase
from agentstate.settings import Settings
from builders import MAIN, NOON, a_conversation, a_session, a_start, a_turn, an_approval, python, sql
from codex_helpers import git, make_repo, push_stash
from db_helpers import can_write, digests, holding, made, on_small_disk, permissions

ON_FILE = [
    *("settings", "permissions", "directory", "writable", "free space", "leftovers", "copied backup"),
    *("open", "schema", "integrity"),
    *("journal mode", "file system", "log", "space", "orphans", "rows", "conversations", "approvals", "stashes"),
]


@pytest.fixture
def healthy(path: Path) -> Path:
    """A closed database with rows in every table, none of which is a reason for a finding."""
    made(path)
    with Database.open(path) as database, database.write(now=NOON) as work:
        a_session(work)
        a_start(work)
        a_conversation(work, turns=2)
        conversations.fork(work, MAIN, "branch", inherit=True)
        a_turn(work, "branch", turn_id="turn-of-branch")
    return path


def checks(report: Report) -> list[tuple[str, str]]:
    """Return severity and check of every finding, in order."""
    return [(found.severity, found.check) for found in report.findings]


def only(path: Path | str, check: str, severity: str) -> tuple[str, str]:
    """Examine the database, whose one finding must be this one; return what it says, and what to do."""
    report = examine(str(path), now=NOON)
    assert checks(report) == [(severity, check)], report.findings
    return report.findings[0].what, report.findings[0].do


def broken(path: Path, *statements: str) -> Path:
    """Run statements as a program does that knows no foreign keys, and return the path."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


# --- nothing is found, and nothing is changed ------------------------------------------------------------------------


@pytest.mark.parametrize("journal_mode", ["wal", "delete", "truncate", "persist"])
def test_nothing_is_found_in_a_healthy_database(
    healthy: Path, journal_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A doctor that always finds something is not asked twice."""
    monkeypatch.setenv("AGENT_DB_JOURNAL_MODE", journal_mode)
    sql(healthy, f"PRAGMA journal_mode = {journal_mode}")

    report = examine(str(healthy))

    assert report == Report(str(healthy), (), tuple(ON_FILE), None)


def killed(path: Path, *statements: str) -> None:
    """Let another process write, and kill it before it says goodbye."""
    with holding(path, *statements):
        pass


def killed_without(suffix: str) -> Callable[[Path], None]:
    """Return what kills a writer and then takes one file away that it left."""

    def left(path: Path) -> None:
        killed(path, WRITE)
        Path(f"{path}{suffix}").unlink()

    return left


def killed_in_the_middle(path: Path) -> None:
    """Kill a writer when a part of what it wrote is in the file, and only its journal knows what was there."""
    sql(path, "PRAGMA journal_mode = delete")
    killed(path, "PRAGMA cache_size = 1", "BEGIN", WRITE, "UPDATE turns SET author = hex(randomblob(50000))")


def only_read(path: Path) -> None:
    """Read it as most programs do, which leaves two files beside it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.execute("SELECT * FROM turns").fetchall()


def cut(path: Path) -> None:
    """Cut the file to half its size."""
    os.truncate(path, path.stat().st_size // 8192 * 4096)


def cut_beside_a_log(path: Path) -> None:
    """Cut the file of a writer that was killed."""
    killed(path, WRITE)
    cut(path)


WRITE = "UPDATE sessions SET session_id = 's-2'"
LEFT: dict[str, Callable[[Path], object]] = {
    "closed": lambda path: None,
    "closed, no log": lambda path: sql(path, "PRAGMA journal_mode = delete"),
    "killed": lambda path: killed(path, WRITE),
    "killed, no memory file": killed_without("-shm"),
    "killed, no log left": killed_without("-wal"),
    "killed in the middle": killed_in_the_middle,
    "only read since": only_read,
    "cut": cut,
    "cut beside a log": cut_beside_a_log,
    "flipped": lambda path: flip(path, "turns"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "text": lambda path: path.write_text('{"sessions": []}'),
    "empty": lambda path: path.write_bytes(b""),
    "ahead": lambda path: sql(path, "UPDATE alembic_version SET version_num = 'r999'"),
    "unversioned": lambda path: sql(path, "DROP TABLE alembic_version"),
}


def flip(path: Path, table: str) -> None:
    """Turn every bit of the page at which a table begins."""
    ((page,),) = sql(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")
    sql(path, "PRAGMA journal_mode = delete")
    content = bytearray(path.read_bytes())
    start = (int(str(page)) - 1) * 4096
    content[start : start + 4096] = bytes(byte ^ 0xFF for byte in content[start : start + 4096])
    path.write_bytes(content)


@pytest.mark.parametrize("left", LEFT)
def test_no_byte_and_no_file_is_different_afterwards(healthy: Path, left: str) -> None:
    """FS-06, FS-07, UP-01: looking at a file in mode WAL leaves two beside it, and one that was read is recovered."""
    LEFT[left](healthy)
    before = digests(healthy), healthy.stat().st_mtime_ns

    examine(str(healthy))

    assert (digests(healthy), healthy.stat().st_mtime_ns) == before


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_writer_at_work_is_neither_waited_for_nor_disturbed(
    healthy: Path, journal_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A doctor is asked when something hangs."""
    monkeypatch.setenv("AGENT_DB_JOURNAL_MODE", journal_mode)
    monkeypatch.setenv("AGENT_DB_BUSY_TIMEOUT", "0")
    sql(healthy, f"PRAGMA journal_mode = {journal_mode}")

    with holding(healthy, "BEGIN IMMEDIATE", WRITE):
        before = digests(healthy)
        report = examine(str(healthy))

        assert digests(healthy) == before
        assert not can_write(healthy)
    assert report.findings == ()


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_no_lock_of_this_process_is_dropped(healthy: Path, journal_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-11: opening and closing the live file drops every lock of the process, and a second writer got in."""
    monkeypatch.setenv("AGENT_DB_JOURNAL_MODE", journal_mode)
    sql(healthy, f"PRAGMA journal_mode = {journal_mode}")

    with Database.open(healthy) as database:
        with database.write() as work, ThreadPoolExecutor(1) as thread:
            a_start(work, "job-3")
            log = os.stat(f"{healthy}-wal").st_ino if journal_mode == "wal" else None

            report = thread.submit(examine, str(healthy)).result()

            assert not can_write(healthy)
            assert (os.stat(f"{healthy}-wal").st_ino if journal_mode == "wal" else None) == log
        assert report.findings == ()
        assert can_write(healthy)
        with database.write() as work:
            a_start(work, "job-4")


# --- the database as a whole -----------------------------------------------------------------------------------------


def test_a_database_cut_to_half_its_size_is_corrupt(healthy: Path) -> None:
    """FS-06: a service that restarts for ever on a damaged file must be told so by a check of its own."""
    cut(healthy)

    report = examine(str(healthy))

    assert checks(report) == [("error", "open")]
    assert isinstance(report.error, DatabaseCorrupt)
    assert report.findings[0].do == "stop its users, keep the file, and restore a backup"


def test_a_page_of_noise_is_found_by_reading_everything(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-06: a file that opens may be damaged where nobody looked; one damage is one finding."""
    monkeypatch.setenv("AGENT_DB_JOURNAL_MODE", "delete")
    flip(healthy, "turns")

    report = examine(str(healthy))

    assert checks(report) == [("error", "integrity")]
    assert isinstance(report.error, DatabaseCorrupt)
    assert {"schema", "journal mode", "space"} <= {*report.checked}
    assert {"integrity", "rows"}.isdisjoint(report.checked)


def test_an_index_that_lacks_a_row_is_found(healthy: Path) -> None:
    """FS-06: everything can be read, and not everything is found."""
    sql(healthy, "PRAGMA journal_mode = delete")
    content = healthy.read_bytes()
    at = content.index(b"alice@bot.example")
    healthy.write_bytes(content[:at] + b"elice@bot.example" + content[at + 17 :])

    report = examine(str(healthy))

    assert ("error", "integrity") in checks(report)
    assert isinstance(report.error, DatabaseCorrupt)


def test_an_empty_value_where_there_must_be_one_is_no_damage(healthy: Path) -> None:
    """A restore would lose what was written since; one row is to be corrected."""
    broken(
        healthy,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'commit_message TEXT NOT NULL', 'commit_message TEXT')",
        "UPDATE sqlite_master SET sql = replace(sql, 'body TEXT NOT NULL', 'body TEXT')",
    )
    broken(healthy, "UPDATE start_pending SET body = NULL")
    broken(
        healthy,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'body TEXT', 'body TEXT NOT NULL')",
    )

    what, _ = only(healthy, "integrity", "error")

    assert what == "rows break a rule of their table: NULL value in start_pending.body"
    assert examine(str(healthy)).error is None


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("missing", "DatabaseMissing", "there is no database at"),
        ("empty", "DatabaseEmpty", "exists but is empty"),
        ("text", "NotADatabase", "is not a database"),
        ("zeros", "NotADatabase", "is not a database"),
        ("directory", "NotADatabase", "it is a directory"),
        ("fifo", "NotADatabase", "it is a FIFO"),
        ("nowhere", "DatabaseUnavailable", "does not exist"),
    ],
)
def test_what_cannot_be_opened_is_a_finding(path: Path, kind: str, error: str, says: str) -> None:
    """FS-05, FS-07: whatever it is, it is told in the same form; a FIFO makes nobody wait."""
    contents = {"empty": b"", "text": b'{"sessions": []}' * 200, "zeros": bytes(8192)}
    if kind in contents:
        path.write_bytes(contents[kind])
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "nowhere":
        path = path.parent / "absent" / "agent.db"

    report = examine(str(path))

    assert type(report.error).__name__ == error
    assert [(found.severity, found.check) for found in report.findings if found.check == "open"] == [("error", "open")]
    assert says in next(found.what for found in report.findings if found.check == "open")
    assert all(found.do for found in report.findings)


def test_a_database_of_another_program_is_only_told_as_such(path: Path) -> None:
    """What its tables and rows mean is not ours to judge."""
    path.touch(0o600)
    sql(path, "CREATE TABLE songs (title TEXT)")

    what, do = only(path, "schema", "error")

    assert what == f"{path} belongs to another program (tables: songs)"
    assert do == "point AGENT_DB_PATH at a file of its own"
    assert isinstance(examine(str(path)).error, ForeignDatabase)


def test_a_schema_that_is_not_ours_today_is_told_with_what_to_do(healthy: Path) -> None:
    """UP-01: what a newer agentstate means by its rows is not judged."""
    sql(healthy, "UPDATE alembic_version SET version_num = 'r999'")
    ahead = only(healthy, "schema", "error")
    checked = examine(str(healthy)).checked
    sql(healthy, "DROP TABLE alembic_version")
    unversioned = only(healthy, "schema", "error")

    assert "r999" in ahead[0]
    assert "install the version that wrote it" in ahead[1]
    assert "integrity" in checked
    assert "rows" not in checked
    assert "has agentstate's tables but no schema version" in unversioned[0]
    assert "agentstate adopt" in unversioned[1]


@pytest.mark.parametrize("revision", list(REVISIONS))
def test_an_older_database_is_examined_as_far_as_it_goes(path: Path, revision: str) -> None:
    """A doctor is asked before an upgrade, too."""
    path.touch(0o600)
    frozen.load(revision, path, journal_mode="wal")

    report = examine(str(path), now=NOON)

    behind = [] if revision == HEAD else [("error", "schema")]
    assert [found for found in checks(report) if found[1] != "stashes"] == [
        *behind,
        *([("warning", "approvals")] * 2 if revision >= "0003" else []),
        ("note", "space"),
    ]
    assert {"orphans", "rows"} <= {*report.checked}
    assert ("conversations" in report.checked) is (revision >= "0004")


def test_a_table_that_somebody_dropped_is_missed(healthy: Path) -> None:
    """MG-10: stamped at head and yet not there: every call fails, and an upgrade has nothing to do."""
    broken(healthy, "DROP TABLE introductions", "ALTER TABLE sessions DROP COLUMN updated_at")

    what, do = only(healthy, "schema", "error")

    assert what == f"at revision {HEAD}, and yet without introductions, sessions.updated_at"
    assert "restore a backup" in do


def test_a_file_that_never_gets_smaller_is_told(path: Path) -> None:
    """FS-14: rows were deleted for years, and the file kept its size."""
    path.touch(0o600)
    sql(path, "PRAGMA journal_mode = wal")
    made(path)

    what, do = only(path, "space", "note")

    assert "auto_vacuum is off" in what
    assert "maintain --full" in do


def test_much_free_room_is_told(healthy: Path) -> None:
    """FS-14: maintenance that never runs is noticed by nobody until the disk is full."""
    with closing(sqlite3.connect(healthy)) as connection:
        connection.execute("CREATE TABLE room (content)")
        connection.executemany("INSERT INTO room VALUES (zeroblob(?))", [(2**20,)] * 20)
        connection.execute("DROP TABLE room")
        connection.commit()

    what, do = only(healthy, "space", "note")

    assert re.fullmatch(r"20\.\d MiB of the file's 20\.\d MiB hold nothing", what)
    assert do == "'agentstate maintain' gives them back"


# --- rows ------------------------------------------------------------------------------------------------------------

ORPHANS = {
    "turns": "UPDATE turns SET conversation_key = 'gone' WHERE conversation_key = 'branch'",
    "pending_approval_repo": "INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES ('gone', '/srv/one')",
    "conversations": "UPDATE conversations SET parent_key = 'gone', inherited_seq = NULL WHERE key = 'branch'",
}


@pytest.mark.parametrize("table", ORPHANS)
def test_rows_that_belong_to_nobody_are_told_and_the_advice_mends_it(healthy: Path, table: str) -> None:
    """Programs that do not switch foreign keys on leave them behind, and no list of ours shows them."""
    broken(healthy, ORPHANS[table])

    what, do = only(healthy, "orphans", "warning")

    assert what.startswith(f"1 row of {table} belongs to no row of ")
    assert what.endswith(" gone")
    broken(healthy, do.partition("let them go: ")[2])
    assert examine(str(healthy)).findings == ()


def test_many_orphans_are_counted_and_some_are_named(healthy: Path) -> None:
    """A person looks at three, and wants to know whether there are three or a million."""
    for number in range(5):
        broken(healthy, f"INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES ('job-{number}', '/srv')")

    what, _ = only(healthy, "orphans", "warning")

    assert what == "5 rows of pending_approval_repo belong to no row of pending_approval: job_id job-0, job-1, job-2"


UNREADABLE = {
    "Latin-1": ("UPDATE sessions SET session_id = CAST(x'ff41' AS TEXT)", "session_id: column session_id is not UTF-8"),
    "a key in Latin-1": ("UPDATE sessions SET sender = CAST(x'ff41' AS TEXT)", "sender: column sender is not UTF-8"),
    "no time": ("UPDATE start_pending SET created_at = 'yesterday'", "created_at: 'yesterday' is not a time"),
    "no number": ("UPDATE turns SET message_count = 'many' WHERE seq = 1", "message_count: column message_count holds"),
    "no JSON": ("UPDATE turns SET messages = '[{' WHERE seq = 1", "messages: not JSON"),
    "no messages": ("UPDATE turns SET messages = '[1]' WHERE seq = 1", "messages: not a list of messages"),
    "no list": ("UPDATE turns SET messages = '{}' WHERE seq = 1", "messages: not a list of messages"),
    "no object": ("UPDATE turns SET meta = '[]' WHERE seq = 1", "meta: not an object"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_row_that_cannot_be_read_is_named(healthy: Path, kind: str) -> None:
    """VA-08: lists leave it out and say so once; nobody who looks at the whole database is told."""
    statement, says = UNREADABLE[kind]
    broken(healthy, statement)

    what, do = only(healthy, "rows", "error")

    assert says in what
    assert re.match(r"1 row of (sessions|start_pending|turns) cannot be read: (role|job_id|id)=", what)
    assert "correct or delete it" in do


def test_a_row_that_breaks_a_rule_of_its_table_is_named(healthy: Path) -> None:
    """SQLite's own check looks at rules only where it may write."""
    broken(healthy, "PRAGMA ignore_check_constraints = ON", "UPDATE turns SET seq = -1 WHERE id = 'turn-of-branch'")

    what, _ = only(healthy, "rows", "error")

    assert what == "1 row breaks the rule of turns that seq >= 1: turn-of-branch"


def test_other_forms_of_a_time_are_no_finding(healthy: Path) -> None:
    """Epoch seconds and SQLite's own form are understood by every reader."""
    broken(healthy, "UPDATE sessions SET updated_at = 1795953600")
    broken(healthy, "UPDATE start_pending SET created_at = '2026-03-02 07:15:09'")

    assert examine(str(healthy)).findings == ()


def test_a_branch_without_its_parent_is_told(healthy: Path) -> None:
    """Half of what it shows is gone, and nothing says so."""
    broken(healthy, "PRAGMA foreign_keys = ON", f"DELETE FROM conversations WHERE key = '{MAIN}'")

    what, do = only(healthy, "conversations", "error")

    assert what == "1 branch has lost the conversation that its history is in: branch"
    assert "inherited_seq = NULL" in do


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE conversations SET next_seq = 3 WHERE key = '{MAIN}'",
        "UPDATE conversations SET next_seq = 3 WHERE key = 'branch'",
        "DELETE FROM turns WHERE id = 'turn-of-branch'; UPDATE conversations SET next_seq = 2 WHERE key = 'branch'",
    ],
    ids=["of its own", "of a branch", "of what it inherits"],
)
def test_a_next_seq_that_is_taken_is_told(healthy: Path, statement: str) -> None:
    """Every append fails, and the error speaks of a constraint."""
    broken(healthy, *statement.split("; "))

    what, _ = only(healthy, "conversations", "error")

    assert what.startswith("1 conversation takes no more turns, because next_seq is not above the highest seq: ")


# --- approvals -------------------------------------------------------------------------------------------------------


def test_a_decision_that_stands_still_is_told_with_its_age(healthy: Path) -> None:
    """What a killed builder leaves is seen by whoever asks for it, and nobody does."""
    with Database.open(healthy) as database, database.write(now=NOON - timedelta(hours=3)) as work:
        approvals.claim_start(work, "job-1", "annehmen alice@bot.example")

    what, do = only(healthy, "approvals", "warning")

    assert what == "the start of job-1 was begun 3 hours ago by 'annehmen alice@bot.example' and is not finished"
    assert "give the same command again" in do


@pytest.mark.parametrize(("age", "words"), [(11, "11 minutes"), (3 * 1440, "3 days")])
def test_the_age_of_a_decision_is_in_words(healthy: Path, age: int, words: str) -> None:
    """Minutes tell a slow push from a dead process, days a forgotten one."""
    with Database.open(healthy) as database, database.write(now=NOON - timedelta(minutes=age)) as work:
        approvals.claim_start(work, "job-1", "annehmen alice@bot.example")

    assert f"begun {words} ago" in only(healthy, "approvals", "warning")[0]


def test_a_decision_that_is_under_way_is_no_finding(healthy: Path) -> None:
    """At each moment somebody may be deciding."""
    with Database.open(healthy) as database, database.write(now=NOON - timedelta(minutes=10)) as work:
        approvals.claim_start(work, "job-1", "annehmen alice@bot.example")

    assert examine(str(healthy), now=NOON).findings == ()


def test_a_release_that_nobody_has_in_hand_is_told(healthy: Path, tmp_path: Path) -> None:
    """One repository is released and the other is not, and the claim is gone."""
    repos = [make_repo(tmp_path / name) for name in ("one", "two")]
    changes = [RepoChange(str(repo), push_stash(repo, marker_for("job-2"))) for repo in repos]
    with Database.open(healthy) as database, database.write(now=NOON) as work:
        an_approval(work, "job-2", repos=changes)
        approvals.mark_repo_done(work, "job-2", repos[0], "b" * 40)

    what, _ = only(healthy, "approvals", "warning")

    assert what == "the release of job-2 was begun, and nobody has it in hand, 1 of 2 repositories done"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit."""
    return make_repo(tmp_path / "a repo")


def waiting(path: Path, *repos: Path | RepoChange) -> Path:
    """Let job-2 wait for the release of changes in these repositories; return the database's path."""
    with Database.open(path) as database, database.write(now=NOON) as work:
        an_approval(work, "job-2", repos=[repo if isinstance(repo, RepoChange) else str(repo) for repo in repos])
    return path


def test_stashes_that_are_there_are_no_finding(healthy: Path, repo: Path, tmp_path: Path) -> None:
    """Found by commit, or by the marker where no commit was recorded; a released one may be gone."""
    other = make_repo(tmp_path / "other")
    push_stash(repo, marker_for("job-2"))
    waiting(healthy, repo, RepoChange(str(other), push_stash(other, "any message")), Path("/nonexistent"))
    with Database.open(healthy) as database, database.write(now=NOON) as work:
        approvals.claim_approval(work, "job-2", "freigeben alice@bot.example")
        approvals.mark_repo_done(work, "job-2", "/nonexistent", "b" * 40)

    assert examine(str(healthy), now=NOON).findings == ()


def test_a_stash_that_is_gone_is_told_and_the_advice_brings_it_back(healthy: Path, repo: Path) -> None:
    """AP-06: a person dropped it; the release would fail, and git still has the commit."""
    waiting(healthy, RepoChange(str(repo), push_stash(repo, "work")))
    git(repo, "stash", "drop")

    what, do = only(healthy, "stashes", "error")

    assert what == f"the change of job-2 is no longer in the stash of {repo}"
    assert "agentstate approvals drop job-2" in do
    git(repo, *shlex.split(do.partition(" (")[0])[3:])
    assert examine(str(healthy), now=NOON).findings == ()


def test_a_stash_known_by_its_marker_only_may_have_another_one(healthy: Path, repo: Path) -> None:
    """Scripts may have markers of their own, so that this is no more than likely."""
    push_stash(repo, marker_for("job-20"))

    what, do = only(waiting(healthy, repo), "stashes", "warning")

    assert what == f"no stash in {repo} has the marker of job-2"
    assert "git stash list" in do


def test_a_repository_that_is_gone_is_told(healthy: Path, tmp_path: Path) -> None:
    """With it, the finished work is gone."""
    what, do = only(waiting(healthy, tmp_path / "absent"), "stashes", "error")

    assert what == f"the repository {tmp_path / 'absent'} of job-2 is not there"
    assert "on the machine that holds it" in do


def test_two_stashes_of_one_job_are_told(healthy: Path, repo: Path) -> None:
    """AP-07: the release refuses to guess."""
    push_stash(repo, marker_for("job-2"), "1\n")
    push_stash(repo, marker_for("job-2"), "2\n")

    what, do = only(waiting(healthy, repo), "stashes", "error")

    assert "2 stashes carry the marker" in what
    assert do == "drop the ones that are not meant"


def test_a_repository_that_git_cannot_read_is_no_lost_stash(healthy: Path, tmp_path: Path) -> None:
    """Another user's repository, or a broken one: git's own words say which."""
    (tmp_path / "plain").mkdir()

    what, _ = only(waiting(healthy, tmp_path / "plain"), "stashes", "warning")

    assert "cannot be told" in what
    assert "not a git repository" in what


def test_a_git_that_never_answers_is_waited_for_no_longer(
    healthy: Path, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository on a dead share would hang the doctor, and the release."""
    shim = tmp_path / "bin" / "git"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexec sleep 3600\n")
    shim.chmod(0o700)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(stash, "GIT_SECONDS", 0.1)

    what, _ = only(waiting(healthy, repo), "stashes", "warning")

    assert "git did not answer within 0.1 s" in what


def test_without_git_one_note_says_so(healthy: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten jobs on a machine without git are one thing to know."""
    waiting(healthy, repo, Path("/nonexistent"))
    monkeypatch.setenv("PATH", "/nonexistent")

    what, _ = only(healthy, "stashes", "note")

    assert what == "git is not installed, so that stashes were not looked for"


# --- around the file -------------------------------------------------------------------------------------------------


def test_files_that_others_may_open_are_told_with_the_command(healthy: Path) -> None:
    """FS-10: a chmod of the main file alone left the log readable, where the newest rows are."""
    backup = Path(f"{healthy}.backup-0003-20261129T120000Z")
    for file, mode in ((healthy, 0o640), (backup, 0o602), (healthy.parent / "agent.db2", 0o666)):
        file.touch()
        file.chmod(mode)
    with holding(healthy, "PRAGMA user_version"):
        Path(f"{healthy}-wal").chmod(0o644)

        report = examine(str(healthy))

    assert [(found.severity, found.what) for found in report.findings] == [
        ("error", "open to everybody: agent.db-wal (0644), agent.db.backup-0003-20261129T120000Z (0602)"),
        ("warning", "open to their group: agent.db (0640), agent.db-shm (0640)"),
    ]
    for found in report.findings:
        assert subprocess.run(found.do, shell=True, check=False).returncode == 0
    assert permissions(healthy) == {
        "agent.db": "0o600",
        "agent.db-wal": "0o600",
        "agent.db-shm": "0o600",
        backup.name: "0o600",
        "agent.db2": "0o666",
    }


@pytest.mark.parametrize(
    ("mode", "severity", "says"),
    [
        (0o750, "note", "others may look into"),
        (0o705, "note", "others may look into"),
        (0o770, "warning", "may replace the database"),
        (0o707, "error", "everybody may put files into"),
        (0o1777, "warning", "everybody may put files into"),
    ],
)
def test_a_directory_that_is_not_its_owners_alone_is_told(healthy: Path, mode: int, severity: str, says: str) -> None:
    """FS-10, FS-12: who may write to the directory may put another database in place of this one."""
    healthy.parent.chmod(mode)

    what, do = only(healthy, "directory", severity)

    assert says in what
    assert "of its own" in do


@pytest.mark.parametrize(("journal_mode", "severity"), [("wal", "error"), ("delete", "note")])
def test_a_shared_file_system_is_told(
    healthy: Path, journal_mode: str, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FS-01: WAL on a share gave pages of zeros; other modes rely on locks that shares often do not have."""
    monkeypatch.setattr(files, "shared_mount", lambda path: "/srv/share (nfs4)")
    monkeypatch.setenv("AGENT_DB_JOURNAL_MODE", journal_mode)
    sql(healthy, f"PRAGMA journal_mode = {journal_mode}")

    what, do = only(healthy, "file system", severity)

    assert "/srv/share (nfs4)" in what
    assert "local disk" in do


@pytest.mark.parametrize(
    ("found", "wanted", "severity"),
    [("delete", "wal", "note"), ("wal", "delete", "warning"), ("wal", "persist", "warning")],
)
def test_another_journal_mode_than_the_wanted_one_is_told(
    healthy: Path, found: str, wanted: str, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FS-01: the setting was changed, and the database stayed as it was because somebody had it open."""
    monkeypatch.setenv("AGENT_DB_JOURNAL_MODE", wanted)
    sql(healthy, f"PRAGMA journal_mode = {found}")

    what, _ = only(healthy, "journal mode", severity)

    assert f"the journal mode is {found}, and {wanted} is wanted" in what


def test_the_reader_that_holds_the_log_up_is_named_by_its_process(healthy: Path) -> None:
    """FS-13: one reader kept open grew the log until the disk was full, and nobody knew which."""
    with holding(healthy, "BEGIN", "SELECT * FROM sessions") as reader:
        with closing(sqlite3.connect(healthy, isolation_level=None)) as writer:
            writer.execute("CREATE TABLE filler (content)")
            writer.executemany("INSERT INTO filler VALUES (zeroblob(?))", [(4_000_000,)] * 2)
            before = digests(healthy)
        what, do = only(healthy, "log", "warning")

        assert re.match(
            rf"process {reader.pid} has been reading while \d\.\d MiB were written, which must stay in", what
        )
        assert "end that process" in do
        assert digests(healthy) == before


def test_a_large_log_is_told_with_how_much_is_only_there(healthy: Path) -> None:
    """FS-13: the log does not get smaller by itself."""
    with holding(healthy, "BEGIN", "SELECT * FROM sessions") as reader:
        with closing(sqlite3.connect(healthy, isolation_level=None)) as writer:
            writer.execute("CREATE TABLE filler (content)")
            writer.executemany("INSERT INTO filler VALUES (zeroblob(?))", [(8 * 2**20,)] * 9)
        held_up = examine(str(healthy))
        with holding(healthy, "BEGIN", "SELECT * FROM sessions"):  # which has seen everything, and is in nobody's way
            reader.kill()
            reader.wait()

            what, do = only(healthy, "log", "warning")

    assert checks(held_up) == [("warning", "log")] * 2
    assert held_up.findings[1].do.endswith("once nobody holds it up")
    assert re.match(r".*agent\.db-wal has 7\d\.\d MiB, 7\d\.\d MiB of it only there$", what)
    assert do == "'agentstate maintain' puts it back and shortens it"


def test_a_reader_that_does_without_the_log_is_counted_from_where_it_stood(healthy: Path) -> None:
    """FS-13: one that began when the database had everything keeps what was written since from being put back."""
    reads = ("BEGIN", "SELECT * FROM sessions")
    with closing(sqlite3.connect(healthy, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE filler (content)")
        with holding(healthy, *reads) as first:
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            with holding(healthy, *reads) as second:
                before = log_state(str(healthy))
                writer.execute("INSERT INTO filler VALUES (zeroblob(1000000))")

                state = log_state(str(healthy))

    assert before is not None
    assert state is not None
    assert state.pages > before.pages == before.put_back == state.put_back
    assert dict(state.readers) == {first.pid: before.pages, second.pid: before.pages}


FREE_SPACE = """
import os, sqlite3
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.doctor import examine
os.chmod(".", 0o700)
path = os.path.abspath("agent.db")
with Database.open(path, "rwc") as database:
    upgrade(database)
def told():
    print([found.severity + " " + found.what for found in examine(path).findings if found.check == "free space"])
told()
grow("180m")
told()
connection = sqlite3.connect(path, isolation_level=None)
connection.execute("PRAGMA wal_autocheckpoint = 0")
connection.execute("CREATE TABLE filler (content)")
connection.executemany("INSERT INTO filler VALUES (zeroblob(?))", [(10 * 2**20,)] * 10)
told()
"""


def test_a_disk_that_is_about_to_be_full_is_told(tmp_path: Path) -> None:
    """FS-04: a disk that is full fails every write, and one without room for a copy fails the next upgrade."""
    small, roomy, no_copy = on_small_disk(FREE_SPACE, tmp_path / "small", "20m")

    assert re.match(r"\['error \d+\.\d MiB are free on the disk; writes are about to fail'\]", small)
    assert roomy == "[]"
    assert re.match(r"\['warning \d+\.\d MiB are free on the disk and the database has \d+\.\d MiB", no_copy)


def test_what_dead_processes_left_half_made_is_told(healthy: Path) -> None:
    """FS-08: each may be as large as the database, and stays for ever."""
    dead = python("")
    dead.communicate()
    here = os.uname().nodename
    ends = (f"backup-0003-x.partial-{here}-{dead.pid}", f"partial-{here}-{dead.pid}-journal")
    left = [Path(f"{healthy}.{end}") for end in ends]
    for file in [*left, Path(f"{healthy}.backup-0003-y.partial-{here}-{os.getpid()}")]:
        file.touch(0o600)

    what, do = only(healthy, "leftovers", "note")

    assert what == f"2 files of copies that were never finished: {left[0].name}, {left[1].name}"
    assert subprocess.run(do, shell=True, check=False).returncode == 0
    assert examine(str(healthy)).findings == ()


# --- settings --------------------------------------------------------------------------------------------------------


def test_two_databases_in_the_environment_are_a_finding(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing would split one memory into two; named by hand, it is looked at all the same."""
    monkeypatch.setenv("AGENT_DB_PATH", str(healthy))
    monkeypatch.setenv("AGENT_DB_URL", "sqlite:////srv/other.db")

    report = examine()

    assert checks(report) == [("error", "settings")]
    assert report.error is not None
    assert report.database == ""
    assert only(healthy, "settings", "error") == (report.findings[0].what, "unset one")


@pytest.mark.parametrize("name", ["AGENT_DB_BUSY_TIMEOUT", "AGENT_DB_JOURNAL_MODE", "AGENT_KEEP_CONVERSATIONS"])
def test_a_setting_that_cannot_be_understood_is_a_finding(
    healthy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other command refuses to start; the doctor goes on with the default."""
    monkeypatch.setenv(name, "often")

    what, _ = only(healthy, "settings", "error")

    assert what.startswith(f"{name}: 'often' is")
    assert examine(str(healthy)).error is None


def test_nothing_configured_is_a_finding() -> None:
    """The first thing that a service without its environment should be told."""
    report = examine()

    assert checks(report) == [("error", "settings")]
    assert report.findings[0].what.startswith("no database is configured")


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_worst_comes_first(healthy: Path) -> None:
    """A person reads from the top and stops."""
    healthy.parent.chmod(0o755)
    healthy.chmod(0o640)
    broken(healthy, ORPHANS["turns"], UNREADABLE["no JSON"][0])

    found = checks(examine(str(healthy)))

    assert found == [("error", "rows"), ("warning", "permissions"), ("warning", "orphans"), ("note", "directory")]


def test_a_backup_copied_beside_the_log_of_another_database_is_noticed(healthy: Path, tmp_path: Path) -> None:
    """FS-09: SQLite read the old log into the new file, and nobody was told."""
    backup = tmp_path / "elsewhere" / "backup.db"
    backup.parent.mkdir()
    write_backup(str(healthy), str(backup), Settings())
    killed(healthy, "BEGIN", "UPDATE sessions SET session_id = 'later'", "COMMIT")
    before = checks(examine(str(healthy)))

    shutil.copy(backup, healthy)
    os.utime(f"{healthy}-wal", ns=(0, healthy.stat().st_mtime_ns - 1))

    found = examine(str(healthy)).findings
    assert ("error", "copied backup") not in before
    assert [(one.severity, "agentstate restore" in one.do) for one in found if one.check == "copied backup"] == [
        ("error", True)
    ]
