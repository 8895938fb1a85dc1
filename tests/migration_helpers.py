"""What tests of the schema look at: every row, the schema in one normal form, bytes on disk, and races."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agentstate.db.state import REVISIONS, VERSION_TABLE
from builders import finished, python, sql

REVISION_NUMBERS = list(REVISIONS)

Shape = dict[str, list[str]]
Rows = dict[str, list[tuple[object, ...]]]
Schema = dict[str, list[str]]


# What the first scripts wrote: no version, times as each of them happened to print them.
PHASE_1 = """
CREATE TABLE sessions (role TEXT, sender TEXT, session_id TEXT, updated_at, PRIMARY KEY (role, sender));
CREATE TABLE introductions (role TEXT, sender TEXT, introduced_at, updated_at, PRIMARY KEY (role, sender));
"""
TIMES: list[tuple[object, str]] = [
    ("2026-03-02 07:15:09", "2026-03-02T07:15:09.000Z"),
    ("2026-03-02 07:15:09.5", "2026-03-02T07:15:09.500Z"),
    ("2026-03-02T07:15:09", "2026-03-02T07:15:09.000Z"),
    ("2026-03-02T07:15:09.123456", "2026-03-02T07:15:09.123Z"),
    ("2026-03-02T07:15:09Z", "2026-03-02T07:15:09.000Z"),
    ("2026-03-02T07:15:09.250+00:00", "2026-03-02T07:15:09.250Z"),
    ("2026-03-02T09:15:09+02:00", "2026-03-02T07:15:09.000Z"),
    ("2026-03-02", "2026-03-02T00:00:00.000Z"),
    (1772435709, "2026-03-02T07:15:09.000Z"),
    (1772435709.5, "2026-03-02T07:15:09.500Z"),
    ("1772435709", "2026-03-02T07:15:09.000Z"),
    ("1772435709.25", "2026-03-02T07:15:09.250Z"),
]


def made(path: Path, script: str, *rows: tuple[str, tuple[object, ...]]) -> None:
    """Make a database as another program would: a script, and rows as (table, values)."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
        for table, values in rows:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        connection.commit()


def phase_1(path: Path) -> None:
    """Make a Phase 1 database by hand, with a row for each form of time and awkward text."""
    rows: list[tuple[str, tuple[object, ...]]] = []
    for number, (time, _) in enumerate(TIMES):
        rows.append(("sessions", ("worker", f"user{number}@bot.example", f"s-{number}\n'日本' 🐟", time)))
        rows.append(("introductions", ("builder", f"Telegram:{number}", time, time)))
    made(path, PHASE_1, *rows)


def shape(path: str | Path) -> Shape:
    """Return the columns of every table but the version's."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            name: [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')] for name in _tables(connection)
        }


def contents(path: str | Path, known: Shape | None = None) -> Rows:
    """Return every row of every table but the version's, as another program sees them, in a fixed order.

    `known` limits it to the tables and columns of an earlier shape: what an upgrade may not change.
    """
    found: Rows = {}
    with closing(sqlite3.connect(path)) as connection:
        for name, columns in (shape(path) if known is None else known).items():
            wanted = ", ".join(f'"{column}"' for column in columns)
            found[name] = sorted(connection.execute(f'SELECT {wanted} FROM "{name}"').fetchall(), key=repr)
    return found


def version(path: str | Path) -> list[str]:
    """Return the rows of the version table, or none when there is no such table."""
    if not sql(path, "SELECT name FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)):
        return []
    return [str(row[0]) for row in sql(path, f"SELECT version_num FROM {VERSION_TABLE}")]


def schema(path: str | Path) -> Schema:
    """Return the schema of a file in its normal form."""
    return normalised(sql(path, "SELECT type, name, sql FROM sqlite_master"))


def normalised(master: list[tuple[object, ...]]) -> Schema:
    """Return the rows (type, name, sql) of sqlite_master so that equal schemas are equal.

    Of a table: its definitions (columns with type, default and NOT NULL; keys, UNIQUE, CHECK, references with ON
    DELETE) and its options, each in one spelling, sorted, since ADD COLUMN puts its text elsewhere than CREATE TABLE.
    """
    found: Schema = {}
    for kind, name, text in master:
        if text is None or str(name).startswith("sqlite_") or name == VERSION_TABLE:
            continue
        words = re.sub(r"\s+", " ", re.sub(r'["`\[\]]', "", str(text))).strip()
        words = words.replace("DEFAULT ('')", "DEFAULT ''")  # as Alembic writes it where it generates a revision
        if kind == "table":
            inside, options = words[words.index("(") + 1 : words.rindex(")")], words[words.rindex(")") + 1 :]
            found[f"table {name}"] = [*sorted(_definitions(inside)), options.strip()]
        else:
            found[f"{kind} {name}"] = [words]
    return found


def state_of(path: str | Path) -> tuple[str, int, str]:
    """Return what may not change when a database is left alone: its bytes, its time of change, its journal mode."""
    content = Path(path).read_bytes()
    # The two bytes at 18 say whether the file is in WAL mode; asking SQLite would itself touch the sidecars.
    mode = "wal" if content[18:20] == b"\x02\x02" else "delete"
    return hashlib.sha256(content).hexdigest(), os.stat(path).st_mtime_ns, mode


def beside(path: Path) -> list[str]:
    """Return the names of everything in the database's directory."""
    return sorted(entry.name for entry in path.parent.iterdir())


def together(count: int, code: str, *arguments: str | Path) -> list[str]:
    """Let several processes call the code's function `work` at one moment; return what each returned, sorted.

    They are forked from one that has run the rest of the code, its imports, so that they start close together.
    """
    release = f"""
import os, sys, traceback
gate, release = os.pipe()
children = []
for _ in range({count}):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(release)
        os.read(gate, 1)  # returns when the last one that could write is closed
        try:
            os.write(1, f"{{work()}}\\n".encode())
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
os.close(release)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""
    return sorted(finished(python(code + release, *arguments)).splitlines())


@contextmanager
def locked(path: str | Path, *, seconds: float = 3600) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the write lock: that many seconds, or until the block is left."""
    code = (
        "import sqlite3, sys, time\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True)\n"
        "time.sleep(float(sys.argv[2]))\n"
        "connection.execute('COMMIT')\n"
    )
    holder = python(code, path, str(seconds))
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def alembic(*arguments: str | Path, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Alembic's own command in a checkout, as a developer does."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AGENT")}
    return subprocess.run(
        [sys.executable, "-m", "alembic", *map(str, arguments)],
        cwd=root,
        env={**variables, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [row[0] for row in rows if not row[0].startswith("sqlite_") and row[0] != VERSION_TABLE]


def _definitions(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses or quotes."""
    found, depth, quoted, start = [], 0, False, 0
    for at, letter in enumerate(text):
        if letter == "'":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                found.append(text[start:at])
                start = at + 1
    found.append(text[start:])
    return [re.sub(r" ?([(),]) ?", r"\1", definition.strip()) for definition in found]
