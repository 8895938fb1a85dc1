"""A database in memory: one connection that all threads share, and that lives as long as its handle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import DatabaseBusy
from agentstate.settings import Settings
from builders import finished, python

SENDER = "alice@bot.example"


def session_of(database: Database) -> str | None:
    """Return Alice's session."""
    return adapter.load_session("worker", SENDER, database=database)


@pytest.mark.parametrize("outer", ["write", "read"])
def test_a_unit_inside_another_one_in_memory_gives_up(outer: str) -> None:
    """A database in memory has one connection, which is in use: an error after the timeout, and not a dead wait."""
    with Database.memory(settings=Settings(busy_timeout=0.05)) as database:
        with getattr(database, outer)(), pytest.raises(DatabaseBusy, match="in memory") as caught, database.read():
            pass

        assert caught.value.seconds == 0.05
        assert session_of(database) is None


def test_a_database_in_memory_is_there_for_other_threads() -> None:
    """CN-02: every thread but the first met 'no such table'."""
    with Database.memory() as database, ThreadPoolExecutor(1) as thread:
        adapter.save_session("worker", SENDER, "s-1", database=database)

        assert thread.submit(session_of, database).result() == "s-1"


def test_a_database_in_memory_has_its_tables_at_the_first_call() -> None:
    """A script's first call on it came before its area was loaded, and was told to upgrade what has no file."""
    code = (
        "from agentstate import adapter\n"
        "from agentstate.db.database import Database\n"
        "with Database.memory() as database:\n"
        "    adapter.save_session('worker', 'alice', 's-1', database=database)\n"
        "    print(adapter.load_session('worker', 'alice', database=database))\n"
    )

    assert finished(python(code)) == "s-1\n"


def test_a_database_in_memory_is_gone_when_closed_and_can_be_used_again() -> None:
    """A handle that is closed opens anew; in memory that is a new database, with its tables."""
    with Database.memory() as database:
        adapter.save_session("worker", SENDER, "s-1", database=database)
        database.close()

        assert session_of(database) is None
        assert database.path is None
        assert repr(database) == "<Database the database in memory rw>"
