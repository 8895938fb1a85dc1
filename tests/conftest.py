"""Fixtures that every test may use: databases of each kind, units of work at a fixed time, real processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from hypothesis import settings as hypothesis_settings

import agentstate.metadata  # noqa: F401  (maps every area, so that a database in memory has every table)
from agentstate.adapter import handles
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.settings import Settings
from postgres_server import REQUIRE, Server, need_binaries

# The same examples in every run and on every machine: a red test is red again, and a slow machine makes none.
hypothesis_settings.register_profile("house", derandomize=True, database=None, deadline=None, max_examples=100)
# Other examples each time, and many: `make soak`.
hypothesis_settings.register_profile("soak", database=None, deadline=None, max_examples=10_000)
hypothesis_settings.load_profile("house")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the settings of the machine it runs on, or a database that another test opened."""
    for name in [name for name in os.environ if name.startswith("AGENT") and name != REQUIRE]:
        monkeypatch.delenv(name)
    yield
    for database in handles._opened.values():
        database.close()
    handles._opened.clear()


@pytest.fixture
def settings() -> Settings:
    """Settings that wait for a lock long enough for a slow machine."""
    return Settings(busy_timeout=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's database file is; there is none yet."""
    return tmp_path / "agent.db"


@pytest.fixture(scope="session")
def file_at_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at head, closed, to be copied: upgrading takes longer than most tests."""
    made = tmp_path_factory.mktemp("at_head") / "agent.db"
    with Database.open(made, "rwc", settings=Settings()) as database:
        upgrade(database)
    return made


@pytest.fixture
def file_database(path: Path, settings: Settings, file_at_head: Path) -> Iterator[Database]:
    """A database in a file, at head.

    It does not wait for the disk at each commit: what a killed process leaves does not depend on that.
    """
    shutil.copy(file_at_head, path)
    with Database.open(path, "rwc", settings=replace(settings, synchronous="normal")) as database:
        yield database


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A private PostgreSQL server with a template at head; without the binaries, its tests are skipped or fail."""
    need_binaries()
    found = Server()
    try:
        found.create()
        found.start()
        found.execute("CREATE DATABASE at_head")
        with Database.open(found.url("at_head"), settings=Settings()) as template:
            upgrade(template)
        yield found
    finally:
        found.remove()


@pytest.fixture(scope="session")
def spare_databases(server: Server) -> tuple[list[str], object]:
    """Databases that tests are finished with and that are as good as new, and how one like that looks."""
    return [], server.fingerprint("at_head")


@pytest.fixture
def server_url(server: Server, spare_databases: tuple[list[str], object]) -> Iterator[str]:
    """The URL of a database of this test's own on the server, at head.

    Making one takes longer than most tests: one in which only rows were changed is emptied and used again.
    """
    spare, as_new = spare_databases
    if spare:
        name = spare.pop()
    else:
        name = f"test_{uuid4().hex}"
        server.execute(f"CREATE DATABASE {name} TEMPLATE at_head STRATEGY FILE_COPY")
    yield server.url(name)
    try:
        server.empty(name)
        reusable = server.fingerprint(name) == as_new
    except psycopg.Error:
        reusable = False
    if reusable:
        spare.append(name)
    else:
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def empty_server_url(server: Server) -> Iterator[str]:
    """The URL of an empty database of this test's own on the server."""
    name = f"test_{uuid4().hex}"
    server.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def server_database(server_url: str, settings: Settings) -> Iterator[Database]:
    """A database on the server, at head."""
    with Database.open(server_url, settings=settings) as found:
        yield found


@pytest.fixture(params=["memory", "file", "postgresql"])
def database(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Database]:
    """Each kind of database in turn, at head: every area's test runs on all of them."""
    if request.param != "memory":
        yield request.getfixturevalue("file_database" if request.param == "file" else "server_database")
        return
    with Database.memory(settings=settings) as found:
        yield found
