"""`agentstate backup`, `verify` and `restore` as an operator types them: words, JSON, exit codes, and no password."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentstate.cli.main import run
from agentstate.db.database import Database
from agentstate.db.schema import downgrade
from builders import a_session, agentstate, filled, sql
from db_helpers import digests, holding, made
from postgres_server import PASSWORD

ROWS = {
    "conversations": 2,
    "introductions": 1,
    "pending_approval": 1,
    "sessions": 2,
    "start_pending": 1,
    "pending_approval_repo": 2,
    "turns": 2,
}


@pytest.fixture
def source(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed database with rows in every table, named by AGENT_DB_PATH."""
    made(path)
    with Database.open(path) as database:
        filled(database)
    monkeypatch.setenv("AGENT_DB_PATH", str(path))
    return path


@pytest.fixture
def copy(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A backup of it, made by the command."""
    assert run(["backup", str(tmp_path / "copy.db")]) == 0
    capsys.readouterr()
    return tmp_path / "copy.db"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    """Run a command and return what it printed."""
    assert run(list(map(str, arguments))) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    """Run a command with --json and return what it means."""
    return json.loads(shown(capsys, *arguments, "--json", code=code))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its one line."""
    code = run(list(map(str, arguments)))
    output, error = capsys.readouterr()
    assert output == ""
    assert error.count("\n") == 1
    return code, error


def test_backup_says_what_is_where(source: Path, tmp_path: Path) -> None:
    """And nothing else in a pipe: no progress, no colours."""
    file = tmp_path / "copy.db"

    done = agentstate("backup", file, "--database", source)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{source} is now in {file}: 0004 (conversations), {file.stat().st_size / 1024:.1f} KiB\n"
    assert sql(file, "SELECT count(*) FROM sessions") == [(2,)]


def test_backup_verifies_on_request(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FS-08: and says so only then."""
    text = shown(capsys, "backup", tmp_path / "one.db", "--verify")
    found = as_json(capsys, "backup", tmp_path / "two.db", "--verify")
    plain = as_json(capsys, "backup", tmp_path / "three.db")

    assert text.splitlines()[1] == "verified: it is whole, with 11 rows in 7 tables"
    assert found["backup"] | {"size": 0} == {
        "file": str(tmp_path / "two.db"),
        "database": str(source),
        "revision": "0004",
        "size": 0,
    }
    assert (found["verification"]["seal"], found["verification"]["rows"]) == ("intact", ROWS)
    assert plain["verification"] is None


def test_a_backup_that_cannot_be_restored_is_kept_and_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database whose references are broken is better copied than not; who asks is told."""
    sql(source, "DELETE FROM pending_approval")

    code = run(["backup", str(tmp_path / "copy.db"), "--verify"])

    output, error = capsys.readouterr()
    assert code == 6
    assert output.startswith(f"{source} is now in {tmp_path}/copy.db")
    assert "rows refer to others that do not exist: 2 of pending_approval_repo" in error


def test_a_backup_in_the_way_is_an_answer(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FS-12: 1, and yesterday's backup is left alone; a directory gets a dated name."""
    code, error = refused(capsys, "backup", copy)
    text = shown(capsys, "backup", copy.parent)

    assert code == 1
    assert f"{copy} is there already; choose another name" in error
    assert f" is now in {copy.parent}/agent.db.backup-0004-" in text


def test_verify_says_what_a_backup_holds(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, for a script too."""
    lines = dict(line.split("\t") for line in shown(capsys, "verify", copy).splitlines())

    assert lines["file"] == str(copy)
    assert lines["state"] == "whole: structure, references and schema are good"
    assert lines["seal"] == "every byte is as it was when the backup was made"
    assert lines["schema"] == "0004 (conversations), at head"
    assert {name: int(lines[f"rows in {name}"]) for name in ROWS} == ROWS
    assert as_json(capsys, "verify", copy) == {
        "file": str(copy),
        "size": copy.stat().st_size,
        "revision": "0004",
        "schema": "at head",
        "seal": "intact",
        "rows": ROWS,
    }


def test_verify_has_an_exit_code_for_each_kind_of_file(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FS-06, FS-07: 0 for what can be restored, of whatever revision; each other kind is told apart, and left alone."""
    place = tmp_path / "kinds"
    place.mkdir()
    kinds = ("old", "new", "hand", "songs", "flipped", "cut", "zeros", "json", "fifo", "empty", "missing")
    files = {name: place / name for name in kinds}
    for name in ("new", "flipped", "cut"):
        shown(capsys, "backup", files[name])
    sql(files["new"], "UPDATE alembic_version SET version_num = 'r999'")
    content = bytearray(files["flipped"].read_bytes())
    content[len(content) // 2] ^= 1
    files["flipped"].write_bytes(content)
    os.truncate(files["cut"], len(content) // 8192 * 4096)
    with Database.open(source) as database:
        downgrade(database, "0002", force=True)
    shown(capsys, "backup", files["old"])
    sql(files["hand"], "CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at TEXT)")
    sql(files["songs"], "CREATE TABLE songs (title TEXT)")
    files["zeros"].write_bytes(bytes(8192))
    files["json"].write_text('{"a": 1}' * 1000)
    os.mkfifo(files["fifo"])
    files["empty"].touch()
    before = digests(files["old"])

    codes, words = {}, {}
    for name, file in files.items():
        codes[name] = run(["verify", str(file)])
        output, error = capsys.readouterr()
        words[name] = output or error
        assert str(file) in words[name]

    assert codes == {
        **dict.fromkeys(("old", "new"), 0),
        **dict.fromkeys(("hand", "songs"), 5),
        **dict.fromkeys(("flipped", "cut", "zeros", "json", "fifo"), 6),
        **dict.fromkeys(("empty", "missing"), 7),
    }
    assert "once restored, run 'agentstate upgrade'" in words["old"]
    assert "use it with the agentstate that wrote it" in words["new"]
    assert "once restored, run 'agentstate adopt'" in words["hand"]
    assert digests(files["old"]) == before


def test_restore_says_what_was_put_where(copy: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And where the former database is, which nobody should have to look for."""
    sql(source, "DELETE FROM sessions")

    text = shown(capsys, "restore", copy)
    first, second = text.splitlines()

    assert first == f"{source} is now what {copy} holds: 0004 (conversations), 11 rows in 7 tables"
    assert second.startswith(f"what was there is kept as {source}.replaced-")
    assert sql(source, "SELECT count(*) FROM sessions") == [(2,)]
    assert sql(second.removeprefix("what was there is kept as "), "SELECT count(*) FROM sessions") == [(0,)]


def test_restore_says_if_an_upgrade_is_needed(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MG-03: the program is newer than the backup, and its next call would be refused."""
    with Database.open(source) as database:
        downgrade(database, "0002", force=True)
    shown(capsys, "backup", tmp_path / "older.db")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{source}{suffix}").unlink(missing_ok=True)

    text = shown(capsys, "restore", tmp_path / "older.db")
    found = as_json(capsys, "restore", tmp_path / "older.db", "--database", tmp_path / "other.db")

    assert (
        text.splitlines()[-1]
        == "the schema: older than this agentstate's 0004 (conversations): run 'agentstate upgrade'"
    )
    assert "is kept" not in text
    assert (found["database"], found["kept"], found["open_in"]) == (str(tmp_path / "other.db"), [], [])
    assert (found["backup"]["revision"], found["backup"]["schema"]) == ("0002", "behind")


def test_restore_refuses_a_database_in_use_unless_forced(
    copy: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """9: it may be free later; with --force the operator is told who has to be restarted."""
    with holding(source, "SELECT count(*) FROM sessions") as holder:
        code, error = refused(capsys, "restore", copy)
        facts = json.loads(refused(capsys, "restore", copy, "--json")[1])
        text = shown(capsys, "restore", copy, "--force")

    assert code == 9
    assert f"(pid {holder.pid}); stop that first" in error
    assert (facts["error"], facts["database"]) == ("DatabaseInUse", str(source))
    assert f"(pid {holder.pid})" in facts["by"]
    assert text.splitlines()[-1].startswith("still open in python")
    assert "restart that" in text


def test_restore_refuses_what_verify_refuses(copy: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FS-08: with the same exit code, and --force is no way around it."""
    os.truncate(copy, 8192)
    before = digests(source)

    assert refused(capsys, "restore", copy, "--force")[0] == refused(capsys, "verify", copy)[0] == 6
    assert refused(capsys, "restore", copy.with_name("none.db"))[0] == 7
    assert refused(capsys, "restore", source)[0] == 2
    assert digests(source) == before


def test_a_database_that_cannot_be_backed_up_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Foundation, section 4: a timer's mail says at once what is wrong."""
    files = {name: tmp_path / name for name in ("missing", "empty", "bare", "songs", "zeros")}
    files["empty"].touch()
    sql(files["bare"], "PRAGMA user_version = 1")
    sql(files["songs"], "CREATE TABLE songs (title TEXT)")
    files["zeros"].write_bytes(bytes(8192))

    found = {name: refused(capsys, "backup", tmp_path / "b", "--database", file)[0] for name, file in files.items()}

    assert found == {"missing": 7, "empty": 7, "bare": 3, "songs": 5, "zeros": 6}
    assert refused(capsys, "backup", tmp_path / "absent" / "b", "--database", made(tmp_path / "good"))[0] == 9
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("command", [["backup", "b"], ["verify", "copy.db"], ["restore", "copy.db"]])
def test_progress_is_shown_on_a_terminal(copy: Path, source: Path, command: list[str]) -> None:
    """A large database takes minutes, and what a script would read is apart from it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentstate.cli.main", *command],
        cwd=copy.parent,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65_536):
            seen += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    output, _ = process.communicate()

    assert process.returncode == 0
    assert {"backup": b"copying pages", "verify": b"verifying", "restore": b"copying pages"}[command[0]] in seen
    assert output.startswith(("file\t", str(source)))


# --- a server ---


def test_a_server_is_left_to_its_own_tools(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PG: 1, the command in full, no password in it, and it does what it is said to do."""
    if shutil.which("pg_dump") is None:
        pytest.skip("PG: pg_dump is not installed")
    with Database.open(server_url) as database, database.write() as work:
        a_session(work)
    file = tmp_path / "a backup"

    code, error = refused(capsys, "backup", file, "--database", server_url)
    facts = json.loads(refused(capsys, "restore", file, "--database", server_url, "--json")[1])
    dump = error.partition("; run: ")[2]
    for step in (dump, "then", facts["command"]):
        if step == "then":
            with Database.open(server_url) as database, database.write() as work:
                a_session(work, role="builder")
            continue
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        subprocess.run(["bash", "-c", step], env=environment, check=True, capture_output=True, timeout=60)

    assert (code, facts["error"]) == (1, "ServerDatabase")
    assert "pg_dump --format=custom" in dump
    assert facts["command"].startswith("pg_restore ")
    assert PASSWORD not in error + facts["command"] + facts["message"]
    assert file.stat().st_mode & 0o777 == 0o600
    with Database.open(server_url) as database, database.connect() as connection:
        assert connection.exec_driver_sql("SELECT role FROM sessions").scalars().all() == ["worker"]


def test_the_driver_of_a_url_is_not_for_the_servers_tools(capsys: pytest.CaptureFixture[str]) -> None:
    """libpq knows no postgresql+psycopg://; nobody is asked, so nothing need be there."""
    url = "postgresql+psycopg://joe:secret@host:5433/name?sslmode=require&password=hidden"

    commands = [refused(capsys, *words, "--database", url)[1] for words in (["backup", "d"], ["restore", "d"])]

    for command in commands:
        assert "postgresql://joe@host:5433/name?sslmode=require" in command.partition("; run: ")[2]
        assert "secret" not in command
        assert "hidden" not in command


def test_an_address_in_place_of_a_file_is_wrong_usage(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MG-06: and is not repeated."""
    url = "postgresql://joe:secret@host/name"

    for command in ("backup", "verify", "restore"):
        code, error = refused(capsys, command, url)
        assert (code, "secret" in error) == (2, False)
