"""The server goes away: between two units, inside one, and at its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.errors import ConstraintViolated, DatabaseReadOnly, DatabaseUnavailable, SchemaBehind
from agentstate.roles.repositories import RoleSessions
from agentstate.settings import Settings
from builders import a_session, a_start, an_approval
from postgres_server import Server

DUPLICATES = "INSERT INTO sessions VALUES ('worker', 'x', 's-1', now()), ('worker', 'x', 's-1', now())"

OUTAGES = pytest.mark.parametrize("outage", [Server.restart, Server.terminate_clients], ids=["restart", "terminated"])


def stored(database: Database) -> list[str]:
    """Return the senders of all sessions."""
    with database.read() as work:
        return [row.sender for row in RoleSessions(work).list_by_recency()]


@OUTAGES
def test_the_first_call_after_an_outage_works(
    server: Server, server_database: Database, outage: Callable[[Server], None]
) -> None:
    """PG-06: idle connections died in the night, and each of the first calls in the morning failed."""
    adapter.save_session("worker", "before", "s-1", database=server_database)

    outage(server)
    adapter.save_session("worker", "after", "s-2", database=server_database)

    assert sorted(stored(server_database)) == ["after", "before"]


def test_every_idle_connection_of_a_pool_is_replaced_after_an_outage(server: Server, server_database: Database) -> None:
    """PG-06: one dead connection found is no reason to hand out the others."""
    with server_database.read(), server_database.read(), server_database.read():
        before = server.clients()

    server.restart()
    with server_database.read(), server_database.read(), server_database.read():
        after = server.clients()

    assert (len(before), len(after)) == (3, 3)
    assert not {process for process, _ in before} & {process for process, _ in after}


@OUTAGES
@pytest.mark.parametrize("moment", ["before a statement", "before the commit"])
def test_a_connection_lost_inside_a_unit_leaves_nothing_and_the_repeat_works(
    server: Server, server_database: Database, outage: Callable[[Server], None], moment: str
) -> None:
    """PG-06: a typed error, nothing half done, and the same call a second time stores it once."""

    def save(*, outage: Callable[[Server], None] | None) -> None:
        with server_database.write() as work:
            a_start(work, "job-1")
            an_approval(work, "job-2")
            if outage is not None:
                outage(server)
            if moment == "before a statement":
                a_session(work)

    with pytest.raises(DatabaseUnavailable) as caught:
        save(outage=outage)
    left = (adapter.list_start_pending(database=server_database), stored(server_database))
    save(outage=None)

    assert caught.value.database == server_database.name
    assert left == ([], [])
    assert len(adapter.list_start_pending(database=server_database)) == 1
    assert len(adapter.list_pending_approvals(database=server_database)) == 1


def test_a_lost_connection_does_not_hide_the_callers_own_exception(server: Server, server_database: Database) -> None:
    """FS-04's lesson: an error of the rollback took the place of the reason for it."""
    with pytest.raises(KeyError, match="the caller's"), server_database.write() as work:
        a_session(work)
        server.terminate_clients()
        raise KeyError("the caller's")

    assert stored(server_database) == []


def test_a_unit_whose_lost_connection_was_overlooked_does_not_end_well(
    server: Server, server_database: Database
) -> None:
    """PG-06: whoever swallows the error must not believe that the rest was stored."""
    with pytest.raises(DatabaseUnavailable, match="nothing of it was written"), server_database.write() as work:
        a_session(work)
        server.terminate_clients()
        with pytest.raises(DatabaseUnavailable):
            a_session(work, role="builder")

    assert stored(server_database) == []


@pytest.mark.parametrize("after", ["nothing", "another statement"])
def test_a_unit_whose_failed_statement_was_overlooked_does_not_end_well(server_database: Database, after: str) -> None:
    """CN-04: PostgreSQL answers COMMIT with a rollback then, and psycopg says nothing: the whole unit was gone."""
    with pytest.raises(ConstraintViolated, match="pk_sessions"), server_database.write() as work:
        a_session(work)
        with pytest.raises(ConstraintViolated):
            work.connection.exec_driver_sql(DUPLICATES)
        if after == "another statement":
            a_session(work, role="builder")

    assert stored(server_database) == []
    adapter.save_session("worker", "next", "s-1", database=server_database)
    assert stored(server_database) == ["next"]


def test_an_older_failure_is_not_told_of_a_later_unit(server_url: str) -> None:
    """CN-04: the one connection is used again; what failed in the unit before is over."""
    with Database.open(server_url, settings=Settings(pool_size=1)) as database:
        with pytest.raises(ConstraintViolated), database.write() as work:
            work.connection.exec_driver_sql(DUPLICATES)
        with pytest.raises(DatabaseUnavailable, match="syntax error"), database.write() as work:
            with pytest.raises(DatabaseUnavailable):
                work.connection.exec_driver_sql("SELEKT")
            work.connection.exec_driver_sql("SELECT 1")


def test_a_connection_that_sits_idle_in_a_unit_too_long_is_lost_like_any_other(
    server: Server, server_database: Database
) -> None:
    """PG-01: the server ends it, when it is told to; the caller gets the typed error and repeats."""
    with pytest.raises(DatabaseUnavailable, match="idle-in-transaction"), server_database.write() as work:
        work.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 50")
        while server.clients():
            pass
        a_session(work)

    assert stored(server_database) == []


def test_a_server_that_is_down_is_named_and_found_again(server: Server, server_database: Database) -> None:
    """PG-06: no host answers for a while; each call says so at once, and the first one after it works."""
    adapter.save_session("worker", "before", "s-1", database=server_database)

    server.stop()
    try:
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable, match="Connection refused") as caught:
                adapter.save_session("worker", "down", "s-1", database=server_database)
    finally:
        server.start()
    adapter.save_session("worker", "after", "s-1", database=server_database)

    assert caught.value.database == server_database.name
    assert sorted(stored(server_database)) == ["after", "before"]


def test_a_host_that_stopped_taking_writes_is_left_for_one_that_does(server: Server, server_url: str) -> None:
    """Foundation section 6: a connection to a host that became read-only would be refused for as long as it is kept."""
    alter = f"ALTER DATABASE {server_url.rpartition('/')[2]} SET default_transaction_read_only"
    server.execute(f"{alter} = on")
    with Database.open(server_url, settings=Settings(pool_size=1)) as database:
        with pytest.raises(DatabaseReadOnly):
            adapter.save_session("worker", "before", "s-1", database=database)

        server.execute(f"{alter} = off")
        with pytest.raises(DatabaseReadOnly), database.read() as work:
            a_session(work)
        adapter.save_session("worker", "after", "s-1", database=database)

        assert stored(database) == ["after"]


def test_a_table_that_goes_missing_is_told_apart_from_an_older_schema(
    server: Server, server_url: str, server_database: Database
) -> None:
    """UP-04's counterpart: "behind" would send the operator to an upgrade that does nothing."""
    adapter.save_session("worker", "before", "s-1", database=server_database)

    with Database.open(server_url) as second:
        server.psql("DROP TABLE pending_approval_repo; DROP TABLE pending_approval", server_url.rpartition("/")[2])
        with pytest.raises(DatabaseUnavailable, match="does not exist"):
            adapter.list_pending_approvals(database=server_database)
        server.psql("UPDATE alembic_version SET version_num = '0001'", server_url.rpartition("/")[2])
        with pytest.raises(SchemaBehind):
            adapter.list_pending_approvals(database=second)
