"""The doctor on a server: what the server is, and what its rows have wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from agentstate.conversations import workflows as conversations
from agentstate.db.database import Database
from agentstate.db.schema import downgrade, upgrade
from agentstate.doctor import Report, examine
from agentstate.errors import DatabaseMissing, DatabaseUnavailable, InvalidValue
from builders import MAIN, NOON, a_conversation, a_session, a_start, a_turn
from postgres_server import Server

ON_SERVER = ("settings", "open", "schema", "server", "orphans", "rows", "conversations", "approvals", "stashes")


@pytest.fixture
def healthy(server_url: str) -> str:
    """The URL of a database with rows in every area, none of which is a reason for a finding."""
    with Database.open(server_url) as database, database.write(now=NOON) as work:
        a_session(work)
        a_start(work)
        a_conversation(work, turns=2)
        conversations.fork(work, MAIN, "branch", inherit=True)
        a_turn(work, "branch")
    return server_url


@pytest.fixture
def latin_1(server: Server) -> Iterator[str]:
    """The URL of a database of another encoding, at head."""
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with Database.open(server.url("latin")) as database:
        upgrade(database)
    yield server.url("latin")
    server.execute("DROP DATABASE latin WITH (FORCE)")


def checks(report: Report) -> list[tuple[str, str]]:
    """Return severity and check of every finding, in order."""
    return [(found.severity, found.check) for found in report.findings]


def broken(url: str, *statements: str) -> None:
    """Run statements as a superuser does who has switched foreign keys off."""
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            connection.execute(statement)


def only(url: str, check: str, severity: str) -> str:
    """Examine the database, whose one finding must be this one; return what it says."""
    report = examine(url, now=NOON)
    assert checks(report) == [(severity, check)], report.findings
    return report.findings[0].what


def test_nothing_is_found_in_a_healthy_database(healthy: str) -> None:
    """A doctor that always finds something is not asked twice; the URL is shown without its password."""
    report = examine(healthy)

    assert (report.findings, report.checked, report.error) == ((), ON_SERVER, None)
    assert report.database.startswith("postgresql://agent@127.0.0.1:")


@pytest.mark.parametrize(
    ("statement", "check", "severity", "says"),
    [
        (
            "UPDATE turns SET conversation_key = 'gone' WHERE seq = 1",
            "orphans",
            "warning",
            "1 row of turns belongs to no row of conversations: conversation_key gone",
        ),
        ("UPDATE sessions SET updated_at = 'infinity'", "rows", "error", "updated_at: 'infinity' is not a time"),
        ("UPDATE turns SET messages = '[{' WHERE seq = 1", "rows", "error", "messages: not JSON"),
        ("UPDATE turns SET meta = '[]' WHERE seq = 1", "rows", "error", "meta: not an object"),
        (
            f"DELETE FROM turns WHERE conversation_key = '{MAIN}'; DELETE FROM conversations WHERE key = '{MAIN}'; "
            "UPDATE conversations SET parent_key = NULL",
            "conversations",
            "error",
            "1 branch has lost the conversation that its history is in: branch",
        ),
        (
            f"UPDATE conversations SET next_seq = 3 WHERE key = '{MAIN}'",
            "conversations",
            "error",
            "next_seq is not above the highest seq: agent:ada:main",
        ),
        (
            "UPDATE start_pending SET claimed_at = '2026-11-29T09:00:00Z', claimed_by = 'builder'",
            "approvals",
            "warning",
            "the start of job-1 was begun 3 hours ago by 'builder' and is not finished",
        ),
        (
            "ALTER TABLE turns DROP CONSTRAINT ck_turns_seq; UPDATE turns SET seq = -1 WHERE seq = 1",
            "rows",
            "error",
            "1 row breaks the rule of turns that seq >= 1: ",
        ),
        ("DROP TABLE introductions", "schema", "error", "and yet without introductions"),
    ],
)
def test_what_only_other_programs_do_is_found(
    healthy: str, statement: str, check: str, severity: str, says: str
) -> None:
    """VA-08: the same as in a file, although a server refuses more of it."""
    broken(healthy, *statement.split("; "))

    assert says in only(healthy, check, severity)


def test_an_older_schema_is_examined_as_far_as_it_goes(healthy: str) -> None:
    """A doctor is asked before an upgrade, too."""
    with Database.open(healthy) as database:
        downgrade(database, "0002", force=True)

    report = examine(healthy, now=NOON)

    assert checks(report) == [("error", "schema")]
    assert {"orphans", "rows", "approvals"} <= {*report.checked}
    assert "conversations" not in report.checked


def test_a_server_that_only_reads_is_told(healthy: str) -> None:
    """Every write fails, and the setting may be in the server, the database or the role."""
    broken(healthy, f"ALTER DATABASE {healthy.rpartition('/')[2]} SET default_transaction_read_only = on")

    assert "only read there" in only(healthy, "server", "warning")


def test_an_encoding_that_cannot_hold_every_text_is_told(latin_1: str) -> None:
    """VA-02: the first agent who writes Japanese gets an error."""
    assert only(latin_1, "server", "warning") == "its encoding is LATIN1, which cannot hold every text"


def test_what_cannot_be_reached_is_a_finding(server: Server) -> None:
    """PG-06, MG-06: in the same form as everything else, and without the password."""
    away = "postgresql://agent:secret@127.0.0.1:1/agent"
    mistyped = "postgresql://agent:se/cr@et@127.0.0.1/agent"

    reports = [examine(url) for url in (server.url("absent"), away, mistyped)]

    assert [type(report.error) for report in reports] == [DatabaseMissing, DatabaseUnavailable, InvalidValue]
    assert [checks(report) for report in reports] == [[("error", "open")], [("error", "open")], [("error", "settings")]]
    assert reports[1].database == "postgresql://agent@127.0.0.1:1/agent"
    assert "secret" not in str(reports)
    assert "cr@et" not in str(reports)
