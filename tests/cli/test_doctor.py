"""`agentstate doctor`: what a person, a pipe and a script get. What is found is in tests/test_doctor.py."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentstate.cli.main import run
from builders import agentstate, sql
from db_helpers import holding, made


@pytest.fixture
def healthy(path: Path) -> Path:
    """A closed database in which nothing is found."""
    return made(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int) -> str:
    """Run the command in this process and return what it printed; nothing goes to stderr."""
    assert run(["doctor", *map(str, arguments)]) == code
    output, error = capsys.readouterr()
    assert error == ""
    return output


def test_a_pipe_gets_one_line_per_finding_and_none_for_nothing(
    healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A timer mails what is printed, and mails nothing when nothing is."""
    nothing = shown(capsys, "--database", healthy, code=0)
    healthy.chmod(0o640)
    healthy.parent.chmod(0o750)

    lines = shown(capsys, "--database", healthy, code=1).splitlines()

    assert nothing == ""
    assert [line.split("\t")[:3] for line in lines] == [
        ["warning", "permissions", "open to their group: agent.db (0640)"],
        ["note", "directory", f"others may look into {healthy.parent} (mode 0750)"],
    ]
    assert lines[0].split("\t")[3] == f"chmod 600 {healthy}"


def test_a_person_gets_what_and_below_it_what_to_do(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command to copy must not be broken by the columns of a table."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    nothing = shown(capsys, "--database", healthy, code=0)
    healthy.chmod(0o640)

    text = shown(capsys, "--database", healthy, code=1)

    assert nothing == f"{healthy}: nothing found in 19 checks\n"
    assert text == f"warning: open to their group: agent.db (0640)\n    chmod 600 {healthy}\n"


def test_a_script_gets_everything_as_json(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was not looked at must not pass for good."""
    nothing = json.loads(shown(capsys, "--database", healthy, "--json", code=0))
    healthy.chmod(0o640)

    report = json.loads(shown(capsys, "--database", healthy, "--json", code=1))

    assert (nothing["database"], nothing["findings"], len(nothing["checked"])) == (str(healthy), [], 19)
    assert report["findings"] == [
        {
            "check": "permissions",
            "severity": "warning",
            "what": "open to their group: agent.db (0640)",
            "do": f"chmod 600 {healthy}",
        }
    ]
    assert report["checked"] == nothing["checked"]


def half(path: Path) -> None:
    """Cut a database to half its size."""
    os.truncate(path, path.stat().st_size // 8192 * 4096)


def noise(path: Path) -> None:
    """Overwrite a page in the middle, which opening does not read."""
    ((page,),) = sql(path, "SELECT rootpage FROM sqlite_master WHERE name = 'turns'")
    content = path.read_bytes()
    start = (int(str(page)) - 1) * 4096
    path.write_bytes(content[:start] + b"\xff" * 4096 + content[start + 4096 :])


def another_program(path: Path) -> None:
    """Put another program's database in its place."""
    path.unlink()
    path.touch(0o600)
    sql(path, "CREATE TABLE songs (title TEXT)")


STATES: dict[str, tuple[Callable[[Path], object], int]] = {
    "half": (half, 6),
    "noise": (noise, 6),
    "zeros": (lambda path: path.write_bytes(bytes(8192)), 6),
    "another program's": (another_program, 5),
    "missing": (Path.unlink, 7),
    "empty": (lambda path: path.write_bytes(b""), 7),
    "unversioned": (lambda path: sql(path, "DROP TABLE alembic_version"), 1),
    "ahead": (lambda path: sql(path, "UPDATE alembic_version SET version_num = 'r999'"), 1),
    "behind": (lambda path: sql(path, "UPDATE alembic_version SET version_num = '0003'"), 1),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("flag", ["--json", None])
def test_what_cannot_be_used_has_the_exit_code_of_its_kind(
    healthy: Path, state: str, flag: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """FS-06: a service that restarts for ever on a damaged file must be told so by a code of its own."""
    change, code = STATES[state]
    change(healthy)

    output = shown(capsys, "--database", healthy, *([flag] if flag else []), code=code)

    assert json.loads(output)["findings"] if flag else output.startswith("error\t")


def test_a_locked_database_is_told_after_the_busy_timeout(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LK-08: exit code 9 says that trying again may help."""
    monkeypatch.setenv("AGENT_DB_BUSY_TIMEOUT", "0.05")
    with closing(sqlite3.connect(healthy)) as connection:
        connection.execute("PRAGMA journal_mode = delete")

    with holding(healthy, "BEGIN EXCLUSIVE"):
        output = shown(capsys, "--database", healthy, code=9)

    assert output.startswith(f"error\topen\t{healthy} is busy with others\twaited 0.05 s")


def test_wrong_settings_are_wrong_usage(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be looked at before somebody has said what."""
    none = shown(capsys, code=2)
    monkeypatch.setenv("AGENT_DB_PATH", str(healthy))
    monkeypatch.setenv("AGENT_DB_URL", "sqlite:////srv/other.db")

    both = shown(capsys, "--json", code=2)

    assert none.startswith("error\tsettings\tno database is configured")
    assert json.loads(both)["database"] is None


def test_a_name_cannot_command_the_terminal(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of a row may hold escape sequences, and a line stays a line."""
    with closing(sqlite3.connect(healthy)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = version_num")
        connection.execute(
            "INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES (?, ?)", ("\x1b[2Jgone\nsecond", "/srv")
        )
        connection.commit()

    piped = shown(capsys, "--database", healthy, code=1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    seen = shown(capsys, "--database", healthy, code=1)

    assert "\\x1b[2Jgone\\nsecond" in piped
    assert "\\x1b[2Jgone\\nsecond" in seen
    assert piped.count("\n") == 1


def test_the_command_is_run_as_it_is_typed(healthy: Path) -> None:
    """Without a traceback and with the configured database."""
    healthy.parent.chmod(0o755)

    done = agentstate("doctor", AGENT_DB_PATH=str(healthy))

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("note\tdirectory\t")
