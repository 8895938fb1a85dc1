"""What a server is set to does not change what is stored and read."""

from __future__ import annotations

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.errors import InvalidValue
from builders import NOON, a_start, finished, python
from postgres_server import Server


@pytest.mark.parametrize(
    "setting",
    [
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Tokyo'",
        "client_encoding = 'LATIN1'",
        "standard_conforming_strings = off",
    ],
)
def test_the_settings_of_a_database_do_not_change_values(server: Server, server_url: str, setting: str) -> None:
    """TM-01, VA-12: an instant was read in the server's zone, or not at all, and text in its code page."""
    name = server_url.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} SET {setting}")

    with Database.open(server_url) as database:
        with database.write(now=NOON) as work:
            a_start(work, body="田 😀 \\ ' \\n")
        found = adapter.load_start_pending("job-1", database=database)

    assert found is not None
    assert (found.created_at, found.body) == (NOON, "田 😀 \\ ' \\n")


ZONES = """
import sys
from datetime import UTC, datetime
from agentstate import adapter
from agentstate.approvals import workflows
from agentstate.db.database import Database
from agentstate.errors import InvalidValue
noon = datetime.fromisoformat("2026-11-29T13:00:00+01:00")
with Database.open(sys.argv[1]) as database:
    with database.write(now=noon) as work:
        workflows.save_start_pending(work, "job-1", "alice", "alice", "please")
    try:
        with database.write(now=datetime(2026, 11, 29, 12)):
            pass
    except InvalidValue as error:
        print(error.field)
    print(adapter.load_start_pending("job-1", database=database).created_at.isoformat())
"""


def test_the_zones_of_process_and_session_change_no_instant(server: Server, server_url: str) -> None:
    """TM-01, TM-02: a time without a zone meant another instant in Tokyo than in New York; it is refused."""
    said = finished(python(ZONES, server_url, TZ="Asia/Tokyo", PGTZ="America/New_York", PGDATESTYLE="German"))

    assert said.split() == ["now", "2026-11-29T12:00:00+00:00"]
    name = server_url.rpartition("/")[2]
    assert server.rows("SELECT extract(epoch FROM created_at)::bigint FROM start_pending", name) == [(1795953600,)]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_keeps_texts_or_refuses_them(server: Server, encoding: str) -> None:
    """VA-12: texts came back as bytes from the one, and as an error of the driver from the other."""
    name = f"encoded_{encoding.lower()}"
    server.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    try:
        with Database.open(server.url(name)) as database:
            upgrade(database)
            adapter.save_session("worker", "alice", "größer", database=database)
            if encoding == "LATIN1":
                with pytest.raises(InvalidValue, match="UTF8"):
                    adapter.save_session("worker", "alice", "大きい 🐟", database=database)
            else:
                adapter.save_session("builder", "alice", "大きい 🐟", database=database)

            assert adapter.load_session("worker", "alice", database=database) == "größer"
            assert adapter.load_session("builder", "alice", database=database) == (
                None if encoding == "LATIN1" else "大きい 🐟"
            )
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")
