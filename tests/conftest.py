"""Fixtures that every test may use: databases of each kind, units of work at a fixed time, real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentstate.metadata  # noqa: F401  (maps every area, so that a database in memory has every table)
from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.settings import Settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the settings of the machine it runs on, or a database that another test opened."""
    for name in [name for name in os.environ if name.startswith("AGENT")]:
        monkeypatch.delenv(name)
    yield
    for database in adapter._opened.values():
        database.close()
    adapter._opened.clear()


@pytest.fixture
def settings() -> Settings:
    """Settings that wait for a lock long enough for a slow machine."""
    return Settings(busy_timeout=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's database file is; there is none yet."""
    return tmp_path / "agent.db"


@pytest.fixture
def file_database(path: Path, settings: Settings) -> Iterator[Database]:
    """A database in a file, at head."""
    with Database.open(path, "rwc", settings=settings) as database:
        upgrade(database)
        yield database


@pytest.fixture(params=["memory", "file"])
def database(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Database]:
    """Each kind of database in turn, at head: every area's test runs on all of them."""
    if request.param == "file":
        yield request.getfixturevalue("file_database")
        return
    with Database.memory(settings=settings) as found:
        yield found
