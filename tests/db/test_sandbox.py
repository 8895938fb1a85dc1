"""A service's sandbox: what it has to leave writable, shown by mounts as systemd's ProtectSystem=strict makes them.

A directory is bound read-only in a mount namespace of the process alone, and what ReadWritePaths= would list is bound
writable again. Needs a user who may do that: root, or one who may have a user namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentstate.settings import Settings
from builders import ROOT, sql
from db_helpers import made

# The sandbox, then the arguments: the read-only directory, and the writable path in it.
_SANDBOXED = f"""
import os, subprocess, sqlite3, sys
sys.path[:0] = [{str(ROOT / "src")!r}]
place, writable, code, *sys.argv[1:] = sys.argv[1:]
mounts = [["--bind", place, place], ["--bind", writable, writable], ["-o", "remount,bind,ro", place]]
if any(subprocess.run(["mount", *mount], capture_output=True).returncode for mount in mounts):
    sys.exit(77)
exec(code)
"""

SAVE = """
from agentstate import adapter, errors
try:
    adapter.save_session("worker", "alice@bot.example", "s-2", database=sys.argv[1])
    print("saved")
except errors.AgentStateError as error:
    print(type(error).__name__, error)
"""

UPGRADE = """
from agentstate.cli.main import run
print(run(["upgrade", "--database", sys.argv[1]]))
"""

# What SQLite itself says, without agentstate.
SQLITE_ALONE = """
connection = sqlite3.connect(sys.argv[1])
for statement in ("SELECT count(*) FROM sessions", "DELETE FROM sessions"):
    try:
        connection.execute(statement).fetchall()
        connection.commit()
        print("done")
    except sqlite3.OperationalError as error:
        print(error.sqlite_errorname)
"""


def sandboxed(code: str, place: Path, writable: Path, *arguments: Path) -> tuple[list[str], str]:
    """Run the code where `place` is read-only except for `writable`; return the lines it printed, and its errors."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    namespace = ["unshare", *as_root, "--mount", "--propagation", "private"]
    script = [sys.executable, "-c", _SANDBOXED, str(place), str(writable), code, *map(str, arguments)]
    try:
        done = subprocess.run([*namespace, *script], capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip("a sandbox needs 'unshare'")
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip("a sandbox needs a user who may have mounts of his own")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("mode", "read", "write"),
    [
        ("wal", "SQLITE_CANTOPEN", "SQLITE_CANTOPEN"),
        ("delete", "done", "SQLITE_CANTOPEN"),
        ("truncate", "done", "SQLITE_IOERR_WRITE"),
        ("persist", "done", "SQLITE_IOERR_WRITE"),
    ],
)
def test_sqlite_cannot_write_a_file_in_a_read_only_directory(tmp_path: Path, mode: str, read: str, write: str) -> None:
    """The question that was left open: no journal mode is content with the file, and WAL cannot even read."""
    path = made(tmp_path / "agent.db", settings=Settings(journal_mode=mode))

    answers, _ = sandboxed(SQLITE_ALONE, tmp_path, path, path)

    assert answers == [read, write]


def test_a_role_that_may_write_only_the_file_is_told_to_ask_for_the_directory(tmp_path: Path) -> None:
    """FS-03: 'unable to open database file' was all that was said of a file whose permissions were right."""
    path = made(tmp_path / "agent.db")

    (answer,), _ = sandboxed(SAVE, tmp_path, path, path)

    assert answer.startswith(f"DatabaseUnavailable cannot use {path}: {tmp_path} is mounted read-only")
    assert f"list the directory {tmp_path}, not the file, in ReadWritePaths=" in answer
    assert [entry.name for entry in tmp_path.iterdir()] == ["agent.db"]


def test_a_role_that_may_write_the_directory_works(tmp_path: Path) -> None:
    """The other half of the answer: the directory is enough, with everything around it read-only."""
    state = tmp_path / "state"
    state.mkdir()

    lines, errors = sandboxed(UPGRADE + SAVE, tmp_path, state, state / "agent.db")

    assert lines[-2:] == ["0", "saved"], errors
    assert sql(state / "agent.db", "SELECT session_id FROM sessions") == [("s-2",)]


def test_an_upgrade_outside_the_writable_paths_says_so_and_makes_nothing(tmp_path: Path) -> None:
    """FS-03: AGENT_DB_PATH outside the sandbox's paths, at the command line: path, user and remedy in one line."""
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    elsewhere.mkdir()

    lines, errors = sandboxed(UPGRADE, tmp_path, state, elsewhere / "agent.db")

    assert lines == ["9"]
    assert errors.startswith(f"agentstate: cannot use {elsewhere}/agent.db: {elsewhere} is mounted read-only")
    assert errors.count("\n") == 1
    assert "which runs as " in errors
    assert f"list the directory {elsewhere}, not the file, in ReadWritePaths=" in errors
    assert list(elsewhere.iterdir()) == []
