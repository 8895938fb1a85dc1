"""URLs: every odd character of a password works and never appears, and each obstacle has an error of its own."""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote
from uuid import uuid4

import pytest
from psycopg import sql

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.postgresql import without_password
from agentstate.db.schema import upgrade, upgrade_script
from agentstate.errors import AgentStateError, DatabaseMissing, DatabaseUnavailable, InvalidValue
from agentstate.settings import Settings
from builders import ROOT, agentstate, finished, python
from migration_helpers import alembic
from postgres_server import PASSWORD, Server, free_port

SECRET = "p@ss%w:rd/é?#&=+ \\'\"[]{}%40;,|日"
"""Everything that has broken a URL, and what would be decoded twice."""


@pytest.fixture
def secret_url(server: Server, server_url: str) -> Iterator[str]:
    """The URL of the test's database for a user whose password has every odd character in it."""
    name, database = f"user_{uuid4().hex}", server_url.rpartition("/")[2]
    statement = sql.SQL("CREATE USER {} SUPERUSER PASSWORD {}").format(sql.Identifier(name), sql.Literal(SECRET))
    server.execute(statement.as_string())
    yield f"postgresql://{name}:{quote(SECRET, safe='')}@127.0.0.1:{server.port}/{database}"
    server.psql(f"DROP OWNED BY {name}; DROP USER {name}", database)


def everything_said(url: str, logged: io.StringIO) -> str:
    """Return all that a program could show: results, representations, tracebacks and logs of calls that fail too."""
    said = [repr(Settings())]
    with Database.open(url, settings=Settings(busy_timeout=1)) as database:
        said += [
            repr(database),
            database.name,
            database.url_without_password,
            repr(database._engine),
            str(upgrade(database)),
        ]
        said += [repr(database._engine.url), upgrade_script(dialect="postgresql")]
        for statement in ("SELEKT", "SELECT 1/0", "INSERT INTO sessions VALUES (NULL, NULL, NULL, NULL)"):
            try:
                with database.write() as work:
                    work.connection.exec_driver_sql(statement)
            except AgentStateError as error:
                said += [repr(error), repr(error.args), "".join(traceback.format_exception(error))]
    return "\n".join([*said, logged.getvalue()])


def test_a_password_of_any_characters_works_and_is_never_said(secret_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MG-06: a `%` crashed the migrations, `***` was used as the password, and logs told it to everybody."""
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    try:
        said = everything_said(secret_url, logged)
    finally:
        logging.getLogger().removeHandler(handler)

    assert "psycopg" in said  # the tracebacks are there
    assert [form for form in (SECRET, quote(SECRET), quote(SECRET, safe="")) if form in said] == []


def test_the_commands_work_with_such_a_password_and_never_say_it(secret_url: str) -> None:
    """MG-06: upgrade, current, stamp, offline mode and status, ours and Alembic's own."""
    done = [
        agentstate(*arguments, AGENT_DB_URL=secret_url, AGENTSTATE_DEBUG="1")
        for arguments in (["downgrade", "0001"], ["upgrade", "--sql"], ["upgrade"], ["status"], ["status", "--json"])
    ]
    theirs = [
        alembic(*arguments, root=ROOT, AGENT_DB_URL=secret_url)
        for arguments in (["downgrade", "0001"], ["current"], ["stamp", "0001"], ["upgrade", "head"], ["check"])
    ]
    theirs.append(alembic("-x", f"database={secret_url}", "upgrade", "head", root=ROOT))
    failed = agentstate("downgrade", "0009", AGENT_DB_URL=secret_url, AGENTSTATE_DEBUG="1")

    assert [result.returncode for result in [*done, *theirs]] == [0] * 11, [
        result.stderr for result in [*done, *theirs]
    ]
    assert theirs[1].stdout.split() == ["0001"]
    said = "".join(result.stdout + result.stderr for result in [*done, *theirs, failed])
    assert [form for form in (SECRET, quote(SECRET), quote(SECRET, safe="")) if form in said] == []


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://agent:{PASSWORD}@127.0.0.1/db",
        "postgresql://agent:hunter@2@127.0.0.1/db",
        "postgresql://agent:hunter/2@127.0.0.1/db",
        "postgresql://agent:hunter?2/x@127.0.0.1/db",
        "postgresql://agent:hunter%2@127.0.0.1/db",
        "postgresql://127.0.0.1/db?PASSWORD=hunter2",
        "postgresql://127.0.0.1/db?password=hunter@2",
        "postgresql+asyncpg://agent:hunter2@127.0.0.1/db",
        "postgresql://agent:hunter2@127.0.0.1:port/db",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    """MG-06: libpq takes the end of an unescaped password for the host and names it in its messages."""
    with pytest.raises(InvalidValue) as caught:
        Database.open(url, settings=Settings(busy_timeout=1))

    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    shown = said.replace(url, "")  # a traceback quotes the line of this test, not the value
    assert caught.value.field == "database"
    assert "hunter" not in shown
    assert "ss%w" not in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p?x=1@h/d", "postgresql://u@h/d"),
        ("postgresql://u:p#x@h:1,h2:2/d?sslmode=require", "postgresql://u@h:1,h2:2/d?sslmode=require"),
        ("postgresql://h/d?user=u&password=p%40x&sslpassword=y", "postgresql://h/d?user=u"),
        ("postgresql://h/d?%70assword=x", "postgresql://h/d"),
        ("postgresql://:p@h/d", "postgresql://@h/d"),
        ("postgresql:///d?host=/run/postgresql", "postgresql:///d?host=/run/postgresql"),
        ("postgresql://u:p@[::1]:5432/d", "postgresql://u@[::1]:5432/d"),
    ],
)
def test_the_shown_url_is_the_given_one_without_the_password(url: str, shown: str) -> None:
    """MG-06: everything else stays, since an operator has to see which host and database it is."""
    assert without_password(url) == shown


# --- one error for each obstacle -------------------------------------------------------------------------------------


def test_each_obstacle_has_its_error(server: Server, server_url: str) -> None:
    """Foundation section 8: what an operator does next differs for each of them."""
    name = server_url.rpartition("/")[2]
    obstacles = {
        "wrong password": server_url.replace("@127", "x@127"),
        "no such user": server_url.replace("agent:", "nobody:"),
        "no such database": f"{server_url}_not",
        "no server": server_url.replace(f":{server.port}/", f":{free_port()}/"),
        "no such host": server_url.replace("127.0.0.1", "nowhere.invalid"),
        "no certificate": f"{server_url}?sslmode=require",
    }

    found = {}
    for obstacle, url in obstacles.items():
        with pytest.raises((DatabaseMissing, DatabaseUnavailable)) as caught:
            Database.open(url)
        found[obstacle] = caught.value

    assert {obstacle for obstacle, error in found.items() if isinstance(error, DatabaseMissing)} == {"no such database"}
    assert "CREATE DATABASE" in str(found["no such database"])
    assert "password authentication failed" in str(found["wrong password"])
    assert "password authentication failed" in str(found["no such user"])
    assert "refused" in str(found["no server"])
    assert "nowhere.invalid" in str(found["no such host"])
    assert "SSL" in str(found["no certificate"])
    assert all(name in error.database and "x@" not in error.database for error in found.values())


def test_the_command_ends_with_the_code_of_the_obstacle(server: Server, server_url: str) -> None:
    """Foundation section 4: 7 for a database that is not there, 9 for one that cannot be reached just now."""
    missing = agentstate("status", AGENT_DB_URL=f"{server_url}_not")
    script = agentstate("upgrade", "--sql", AGENT_DB_URL=f"{server_url}_not")
    down = agentstate("status", "--json", AGENT_DB_URL=server_url.replace(f":{server.port}/", f":{free_port()}/"))
    unreadable = agentstate("status", AGENT_DB_URL="postgresql://agent:hunter@2@127.0.0.1/db")

    assert (missing.returncode, script.returncode, down.returncode, unreadable.returncode) == (7, 0, 9, 2)
    assert [len(result.stderr.splitlines()) for result in (missing, down, unreadable)] == [1, 0, 1]
    assert "TIMESTAMP WITH TIME ZONE" in script.stdout


@pytest.mark.parametrize(
    "missing", [["psycopg"], ["psycopg_c", "psycopg_binary", "psycopg.pq.pq_ctypes"]], ids=["driver", "libpq"]
)
def test_a_driver_that_is_not_installed_is_named_with_what_to_install(missing: list[str]) -> None:
    """`pip install agentstate-db` alone brings no driver; ModuleNotFoundError says nothing of the extra."""
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1:] or name in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from agentstate import adapter
from agentstate.errors import InvalidValue
try:
    adapter.load_session("worker", "alice", database="postgresql://agent:hunter2@127.0.0.1/db")
except InvalidValue as error:
    print(error)
"""

    said = finished(python(code, *missing))

    assert "pip install 'agentstate-db[postgres]'" in said
    assert "hunter2" not in said


def test_an_error_in_opening_leaves_nothing_open(server: Server, server_url: str) -> None:
    """A program that tries again every second must not use up the server's connections."""
    for _ in range(3):
        with suppress(AgentStateError):
            adapter.load_session("worker", "alice", database=f"{server_url}?options=-c%20search_path%3Dnowhere")

    assert len(server.clients()) <= 1
