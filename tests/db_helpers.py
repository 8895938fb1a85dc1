"""What tests of files, locks and processes share: outsiders that hold locks, other users, and bytes on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.settings import Settings
from builders import ROOT, python

NOBODY = 65534
AS_ROOT = os.geteuid() == 0

# Everything the code may import is loaded before the process gives up its rights: the interpreter may be root's alone.
_AS_NOBODY = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import db_helpers, agentstate.cli.main as main, agentstate.metadata
from importlib import import_module
for name in sorted(set(main.COMMANDS.values())):
    import_module(name)
from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import AgentStateError
from agentstate.settings import Settings
with Database.memory() as memory, memory.write() as work:
    pass
root = os.geteuid() == 0
if root:
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, 0)
try:
    exec(sys.argv.pop(1))
finally:
    if root:
        os.setresuid(0, 0, 0)
"""


def made(path: Path, *, to: str = "head", settings: Settings | None = None) -> Path:
    """Make a database at a revision and close it; return its path."""
    with Database.open(path, "rwc", settings=settings or Settings(busy_timeout=60)) as database:
        upgrade(database, to)
    return path


def digests(path: Path) -> dict[str, str]:
    """Return name and SHA-256 of everything in the database's directory that is a file; nobody may have it open."""
    return {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else "not a file"
        for entry in sorted(path.parent.iterdir())
    }


def permissions(path: Path) -> dict[str, str]:
    """Return name and permissions of every file in the database's directory."""
    return {entry.name: oct(entry.stat().st_mode & 0o777) for entry in sorted(path.parent.iterdir())}


@contextmanager
def holding(path: Path, *statements: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process, without agentstate, run the statements and keep its connection open until the block ends."""
    code = (
        "import sqlite3, sys, time\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for statement in sys.argv[2:]:\n"
        "    connection.execute(statement).fetchall()\n"
        "print('holding', flush=True)\n"
        "time.sleep(3600)\n"
    )
    holder = python(code, path, *statements)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def can_write(path: Path) -> bool:
    """Return whether another process gets the write lock at once, without waiting; it gives it back."""
    code = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
        "try:\n"
        "    connection.execute('BEGIN IMMEDIATE')\n"
        "    connection.execute('ROLLBACK')\n"
        "    print('yes')\n"
        "except sqlite3.OperationalError as error:\n"
        "    print(error.sqlite_errorname)\n"
        "connection.close()\n"
    )
    process = python(code, path)
    output, errors = process.communicate(timeout=60)
    assert output in ("yes\n", "SQLITE_BUSY\n"), errors
    return output == "yes\n"


def asked(path: Path, question: str) -> object:
    """Return the first value of a statement's answer, as another program gets it without waiting."""
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        return connection.execute(question).fetchone()[0]


def as_nobody(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a process that runs the code as a user without rights; run as such a user, as the same one.

    `adapter`, `main` (the command line), `Database`, `Settings` and `AgentStateError` are imported already.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _AS_NOBODY, code, *map(str, arguments)],
        env={name: value for name, value in os.environ.items() if not name.startswith("AGENT")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def common_ground() -> Iterator[Path]:
    """Give a directory that every user may look into, which pytest's own are not."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    try:
        yield place
    finally:
        for directory in (entry for entry in place.rglob("*") if entry.is_dir()):
            directory.chmod(0o700)
        shutil.rmtree(place)


_ON_SMALL_DISK = """
import os, subprocess, sys
place, size, code = sys.argv[1:4]
del sys.argv[1:4]
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "none", place], capture_output=True).returncode:
    sys.exit(77)
os.chdir(place)
def grow(size):
    subprocess.run(["mount", "-o", "remount,size=" + size, place], check=True)
exec(code)
"""


def on_small_disk(code: str, place: Path, size: str, *arguments: str | Path) -> list[str]:
    """Run the code in a file system of that size, which is its directory and which only it can see; return its lines.

    The code may call `grow(size)`. The test is skipped when this user may not mount anything.
    """
    place.mkdir(exist_ok=True)
    namespace = ["unshare", "--mount", "--propagation", "private"]
    script = [sys.executable, "-c", _ON_SMALL_DISK, str(place), size, code, *map(str, arguments)]
    try:
        process = subprocess.run([*namespace, *script], capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip("FS-04: a full disk needs 'unshare'")
    if process.returncode == 77 or process.stderr.startswith("unshare:"):
        pytest.skip("FS-04: a full disk needs a user who may mount a file system")
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()
