"""What a server is set to does not change what is stored and read."""

from __future__ import annotations

import pytest

from agentstate import adapter
from agentstate.db.database import Database
from builders import NOON, a_start
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
