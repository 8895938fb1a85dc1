"""Connections as the server sees them: how many, for how long, what they wait for and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import DatabaseBusy, DatabaseReadOnly, DatabaseUnavailable
from agentstate.settings import Settings
from builders import a_session, an_approval, filled, finished, python
from postgres_server import Server, free_port

ONESHOT = """
import sys
from agentstate import adapter
from agentstate.adapter.handles import open_database
target = sys.argv[1]
for number in range(5):
    adapter.save_session("worker", f"sender-{number}", "s-1", database=target)
    assert adapter.load_session("worker", f"sender-{number}", database=target) == "s-1"
with open_database(target).read() as work:
    print(work.connection.exec_driver_sql(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agentstate'"
    ).scalar_one())
"""


@contextmanager
def holding(url: str, *statements: str) -> Iterator[None]:
    """Let another program run the statements in a transaction that stays open until the block ends.

    It ends by itself after a while, so that whoever waits for ever is found out.
    """
    with psycopg.connect(url, options="-c idle_in_transaction_session_timeout=20s") as outsider:
        for statement in statements:
            outsider.execute(statement)
        yield
        outsider.rollback()


def process_of(database: Database) -> int:
    """Return the server process that a unit works with."""
    with database.read() as work:
        return int(work.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


# --- how many, and for how long --------------------------------------------------------------------------------------


def test_a_oneshot_script_keeps_one_connection(server_url: str) -> None:
    """Foundation section 6: a script of ten calls that connects ten times pays for nine of them."""
    assert finished(python(ONESHOT, server_url)) == "1\n"


def test_connections_carry_a_name_that_an_operator_knows(server: Server, server_url: str) -> None:
    """Foundation section 6: pg_stat_activity with no name leaves the operator to guess whose lock it is."""
    with Database.open(server_url) as ours, Database.open(f"{server_url}?application_name=builder") as named:
        process_of(ours)
        process_of(named)

        assert [state for _, state in server.clients()] == ["idle"]
        assert [state for _, state in server.clients("builder")] == ["idle"]


def test_nothing_is_held_open_while_a_model_answers(server: Server, server_url: str) -> None:
    """PG-01: a unit held over the model call was killed for idling; two writers got in with a pool of one."""
    server.psql(
        f"ALTER DATABASE {server_url.rpartition('/')[2]} SET idle_in_transaction_session_timeout = '1s'",
    )
    with Database.open(server_url, settings=Settings(pool_size=1)) as database:
        states: list[list[str]] = []

        def turn(number: int) -> None:
            adapter.load_session("worker", f"sender-{number}", database=database)
            states.append([state for _, state in server.clients()])  # the model thinks
            adapter.save_session("worker", f"sender-{number}", "s-1", database=database)

        for number in range(3):
            turn(number)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(turn, range(10, 30)))

        assert states[:3] == [["idle"]] * 3
        assert {len(state) for state in states} == {1}
        with database.read() as work:
            assert work.connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 23


def test_threads_never_open_more_connections_than_the_setting_says(server: Server, server_url: str) -> None:
    """CN-03: sixteen threads wait for two connections, and each of them gets its turn."""
    with Database.open(server_url, settings=Settings(pool_size=2)) as database:
        counts: list[int] = []

        def work(number: int) -> None:
            adapter.save_session("worker", f"sender-{number}", "s-1", database=database)
            if number % 8 == 0:
                counts.append(len(server.clients()))

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(64)))

        assert max(counts) <= 2
        with database.read() as unit:
            assert unit.connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 64


CALLS: dict[str, Callable[[Database], Any]] = {
    "read": lambda database: adapter.load_session("worker", "alice", database=database),
    "write": lambda database: adapter.save_session("worker", "alice", "s-1", database=database),
    "revision": lambda database: database.revision(),
    "upgrade": upgrade,
}


@pytest.mark.parametrize("call", CALLS)
def test_waiting_too_long_for_a_connection_is_busy_and_not_an_error_of_sqlalchemy(server_url: str, call: str) -> None:
    """LK-08: all connections in use is a lock like any other; the same call works when one is free again."""
    with Database.open(server_url, settings=Settings(busy_timeout=0.05, pool_size=1)) as database:
        with database.read(), pytest.raises(DatabaseBusy) as caught:
            CALLS[call](database)
        CALLS[call](database)

    assert (caught.value.database, caught.value.seconds) == (database.name, 0.05)


# --- what they wait for ----------------------------------------------------------------------------------------------

LOCKS: dict[str, tuple[str, Callable[[Database], Any]]] = {
    "a row": (
        "SELECT * FROM start_pending FOR UPDATE",
        lambda work: adapter.delete_start_pending("job-1", database=work),
    ),
    "a row that is being written": (
        "INSERT INTO sessions VALUES ('worker', 'bob', 's-2', now())",
        lambda work: adapter.save_session("worker", "bob", "s-1", database=work),
    ),
    "a table": ("LOCK TABLE sessions", lambda work: adapter.load_session("worker", "alice@bot.example", database=work)),
    "a change of the schema": ("SELECT pg_advisory_xact_lock(x'6167656E74'::bigint)", upgrade),
}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("seconds", [0.05, 0.0001, 0])
def test_a_lock_held_by_somebody_else_is_busy_and_the_connection_goes_on(
    server_url: str, lock: str, seconds: float
) -> None:
    """PG-07, LK-08: LockNotAvailable came out raw. To the server 0 means for ever; to us it means not at all."""
    statement, call = LOCKS[lock]
    with Database.open(server_url, settings=Settings(busy_timeout=60)) as database:
        filled(database)
    with Database.open(server_url, settings=Settings(busy_timeout=seconds, pool_size=1)) as database:
        before = process_of(database)

        with holding(server_url, statement), pytest.raises(DatabaseBusy) as caught:
            call(database)
        call(database)

        assert (caught.value.database, caught.value.seconds) == (database.name, seconds)
        assert process_of(database) == before


def test_a_statement_that_takes_too_long_is_busy_and_the_connection_goes_on(server_url: str) -> None:
    """PG-07: nothing of the unit is stored, and the seconds are those of the setting that ended it."""
    with Database.open(server_url, settings=Settings(statement_timeout=0.05, pool_size=1)) as database:
        before = process_of(database)

        with pytest.raises(DatabaseBusy) as caught, database.write() as work:
            a_session(work)
            work.connection.exec_driver_sql("SELECT pg_sleep(60)")

        assert caught.value.seconds == 0.05
        assert adapter.load_session("worker", "alice@bot.example", database=database) is None
        assert process_of(database) == before


# --- what they may do, and what they leave behind --------------------------------------------------------------------


def test_a_reading_unit_is_kept_from_writing_by_the_server_itself(server: Server, server_database: Database) -> None:
    """UP-05: a statement that writes fails, whichever it is, instead of being rolled back unnoticed."""
    before = process_of(server_database)

    for statement in ("DELETE FROM sessions", "CREATE TABLE x (id int)", "SELECT nextval('x')", "TRUNCATE sessions"):
        if "nextval" in statement:
            server.psql("CREATE SEQUENCE x", server_database.name.rpartition("/")[2])
        with pytest.raises(DatabaseReadOnly), server_database.read() as work:
            work.connection.exec_driver_sql(statement)

    assert process_of(server_database) == before


def test_a_read_only_handle_refuses_before_it_asks_the_server(server: Server, server_url: str) -> None:
    """UP-05: "ro" cannot write by construction, migrations included, and reads everything."""
    with Database.open(server_url) as database:
        filled(database)
    with Database.open(server_url, "ro") as database:
        with pytest.raises(DatabaseReadOnly, match="primary"):
            adapter.save_session("worker", "alice", "s-2", database=database)
        with pytest.raises(DatabaseReadOnly):
            upgrade(database)

        assert server.clients() == [(process, "idle") for process, _ in server.clients()]
        assert adapter.load_session("worker", "alice@bot.example", database=database) == "s-1"


def test_a_reading_unit_sees_one_moment(server_database: Database) -> None:
    """As on SQLite: a list and its details, read one after the other, belong together."""
    with server_database.read() as reader:
        before = reader.connection.exec_driver_sql("SELECT count(*) FROM pending_approval").scalar_one()
        with server_database.write() as work:
            an_approval(work)
        after = reader.connection.exec_driver_sql("SELECT count(*) FROM pending_approval").scalar_one()

    assert (before, after) == (0, 0)
    assert len(adapter.list_pending_approvals(database=server_database)) == 1


@pytest.mark.parametrize("pooler", [None, "transaction"])
def test_a_unit_leaves_nothing_in_the_session(server_url: str, pooler: str | None) -> None:
    """PG-03: behind a pooler the next transaction on this connection is another program's."""
    settings = Settings(busy_timeout=7, statement_timeout=9, pool_size=1, pooler=pooler)
    with Database.open(server_url, settings=settings) as database:
        with database.write() as work:
            inside = [work.connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in SESSION]
        for number in range(20):
            adapter.save_start_pending(f"job-{number}", "alice", "alice", "please", database=database)
        upgrade(database)

        driver = database._engine.raw_connection().driver_connection
        assert driver is not None
        outside = [driver.execute(f"SHOW {name}").fetchone()[0] for name in SESSION]
        prepared = driver.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0]
        locks = driver.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()[0]

    assert inside == ["7s", "9s", "read committed", "off"]
    assert outside == ["0", "0", "read committed", "off"]
    assert (prepared > 0, locks) == (pooler is None, 0)


SESSION = ("lock_timeout", "statement_timeout", "transaction_isolation", "transaction_read_only")


# --- several hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attributes", ["", "?target_session_attrs=read-write", "?target_session_attrs=primary"])
def test_of_several_hosts_the_one_that_answers_is_used(server: Server, server_url: str, attributes: str) -> None:
    """Foundation section 6: the URL goes to libpq as it is, hosts that are down included."""
    name = server_url.rpartition("/")[2]
    url = server.url(name).replace("@127.0.0.1:", f"@127.0.0.1:{free_port()},127.0.0.1:") + attributes

    with Database.open(url) as database:
        adapter.save_session("worker", "alice", "s-1", database=database)

    assert server.rows("SELECT sender FROM sessions", name) == [("alice",)]


def test_when_no_host_will_do_each_of_them_is_named(server: Server, server_url: str) -> None:
    """Nobody is a standby here: the operator has to see that it was asked for, and that the other host is down."""
    down = free_port()
    url = server_url.replace("@127.0.0.1:", f"@127.0.0.1:{down},127.0.0.1:") + "?target_session_attrs=standby"

    with pytest.raises(DatabaseUnavailable) as caught:
        Database.open(url)

    assert str(down) in caught.value.reason
    assert "standby" in caught.value.reason
