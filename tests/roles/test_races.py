"""Many at once, as real threads and processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.roles import views
from agentstate.roles.repositories import Introductions
from builders import finished, python, sql

MARK = """
import sys
from concurrent.futures import ThreadPoolExecutor
from agentstate import adapter
path = sys.argv[1]
with ThreadPoolExecutor(10) as pool:
    answers = list(pool.map(lambda _: adapter.mark_introduced("worker", "alice@bot.example", database=path), range(10)))
print(sum(answers), len(answers))
"""

SAVE = """
import sys
from agentstate import adapter
path, number = sys.argv[1:]
for turn in range(100):
    role = ("worker", "builder")[turn % 2]
    adapter.save_session(role, f"sender-{number}-{turn}", f"s-{turn}", database=path)
"""


def test_exactly_one_of_many_marks_the_first_contact(file_database: Database, path: Path) -> None:
    """ID-04: two first messages at once showed the notice twice, or never."""
    processes = [python(MARK, path) for _ in range(2)]

    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(lambda _: adapter.mark_introduced("worker", "alice@bot.example", database=path), range(20))
        )
    counts = [list(map(int, finished(process).split())) for process in processes]

    assert sum(answers) + sum(count for count, _ in counts) == 1
    assert len(answers) + sum(asked for _, asked in counts) == 40


def test_threads_share_one_handle_and_one_of_them_marks(database: Database) -> None:
    """CN-02, CN-03: the same on a shared connection in memory."""

    def mark(_: int) -> bool:
        with database.write() as work:
            return Introductions(work).mark("worker", "alice@bot.example")

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(mark, range(20)))

    assert sum(answers) == 1


def test_eight_processes_save_eight_hundred_sessions(file_database: Database, path: Path) -> None:
    """LK-01: concurrent writers died of 'database is locked' at once."""
    processes = [python(SAVE, path, str(number)) for number in range(8)]

    for process in processes:
        finished(process)

    with file_database.read() as work:
        assert len(views.sessions(work)) == 800
    assert sql(path, "SELECT role, count(*) FROM sessions GROUP BY role") == [("builder", 400), ("worker", 400)]
