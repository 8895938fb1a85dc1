"""A cold start: a whole process that loads one session.

It stands beside a process that only imports sqlalchemy.orm, which ours cannot do without, and beside one that does
the same SELECT with sqlite3. All of them find their modules compiled, as an installed package's are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from agentstate import adapter
from agentstate.db.database import Database

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Operation

ROUNDS = 40

OURS = 'from agentstate import adapter; assert adapter.load_session("worker", "alice@bot.example") == "s-1"'
IMPORT = "import sqlalchemy.orm"
SELECT = """
import os, sqlite3
connection = sqlite3.connect(os.environ["AGENT_DB_PATH"], timeout=30, isolation_level=None)
connection.execute("PRAGMA foreign_keys = ON")
connection.execute("PRAGMA synchronous = FULL")
connection.execute("BEGIN")
sql = "SELECT session_id FROM sessions WHERE role = ? AND sender = ?"
found = connection.execute(sql, ("worker", "alice@bot.example")).fetchone()
connection.execute("ROLLBACK")
assert found == ("s-1",)
"""


def process(code: str) -> None:
    """Run the code in a Python process of its own and wait for its end."""
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)


def operations(bench: Bench) -> list[Operation]:
    """Return the two comparisons, on one database that nobody else has open."""
    with Database.open(bench.database()) as database:
        adapter.save_session("worker", "alice@bot.example", "s-1", database=database)
    # The first run of each compiles, into the directory that goes away again and not beside the sources.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(bench.directory / "compiled")

    def ours() -> None:
        process(OURS)

    return [
        ("load one session, beside importing sqlalchemy.orm", ours, lambda: process(IMPORT)),
        ("load one session, beside sqlite3", ours, lambda: process(SELECT)),
    ]
