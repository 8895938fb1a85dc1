"""Behind PgBouncer in transaction mode, where each transaction may meet another server connection."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import at_head, downgrade, upgrade
from agentstate.errors import DatabaseBusy, DatabaseUnavailable
from agentstate.settings import Settings
from builders import a_session, filled
from postgres_server import PASSWORD, Server, free_port

POOLED = Settings(busy_timeout=30, pool_size=8, pooler="transaction")

CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=agent
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
"""


class Bouncer:
    """A running PgBouncer that shares two server connections among all clients."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.server = server
        (folder / "users").write_text(f'"agent" "{PASSWORD}"\n', encoding="utf-8")
        (folder / "ini").write_text(
            CONFIGURATION.format(server=server.port, port=self.port, folder=folder), encoding="utf-8"
        )
        if server.user is not None:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, server.user)

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("pgbouncer")
        assert program is not None
        self.process = subprocess.Popen(
            [program, "-q", self.folder / "ini"], cwd=self.folder, user=self.server.user, stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=1).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None
        raise RuntimeError((self.folder / "log").read_text(encoding="utf-8"))

    def stop(self) -> None:
        """End it, and every connection through it."""
        self.process.kill()
        self.process.wait(timeout=30)

    def url(self, database: str) -> str:
        """Return the URL of a database through the pooler."""
        return self.server.url(database).replace(f":{self.server.port}/", f":{self.port}/")


@pytest.fixture
def bouncer(server: Server) -> Iterator[Bouncer]:
    """PgBouncer in front of the server; without it, the test is skipped."""
    if shutil.which("pgbouncer") is None:
        pytest.skip("PG-03: no PgBouncer is installed: apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="agentstate-bouncer-"))
    found = Bouncer(server, folder)
    found.start()
    yield found
    found.stop()
    shutil.rmtree(folder)


def test_many_clients_share_two_server_connections(bouncer: Bouncer, server_url: str) -> None:
    """PG-03: "prepared statement does not exist", "already exists": each statement met another connection."""
    url = bouncer.url(server_url.rpartition("/")[2])
    with Database.open(url, settings=POOLED) as one, Database.open(url, settings=POOLED) as two:

        def use(number: int) -> str | None:
            database = (one, two)[number % 2]
            adapter.save_session("worker", f"sender-{number}", "s-1", database=database)
            return adapter.load_session("worker", f"sender-{number}", database=database)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(use, range(240)))

        assert answers == ["s-1"] * 240


def test_without_the_setting_the_pooler_is_told_apart_as_the_cause(bouncer: Bouncer, server_url: str) -> None:
    """PG-03: a test that cannot fail would prove nothing of the setting; and what comes out is typed."""
    url = bouncer.url(server_url.rpartition("/")[2])
    with Database.open(url, settings=Settings(busy_timeout=30, pool_size=8)) as database:

        def use(number: int) -> None:
            adapter.save_session("worker", f"sender-{number}", "s-1", database=database)

        with pytest.raises(DatabaseUnavailable, match="prepared statement"), ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(200)))


def test_upgrades_through_the_pooler_still_exclude_each_other(bouncer: Bouncer, empty_server_url: str) -> None:
    """PG-03, MG-04: a session's advisory lock would stay on a server connection that somebody else gets next."""
    url = bouncer.url(empty_server_url.rpartition("/")[2])
    databases = [Database.open(url, settings=POOLED) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        ran = sorted(change.ran for change in pool.map(upgrade, databases))
    filled(databases[0])
    downgrade(databases[1], "0001", force=True)
    upgrade(databases[2])

    assert ran == [(), (), (), ("0001", "0002", "0003", "0004")]
    assert at_head(databases[3])
    for database in databases:
        database.close()


def test_a_unit_through_the_pooler_waits_and_gives_up_by_its_own_settings(bouncer: Bouncer, server_url: str) -> None:
    """PG-03: timeouts are the transaction's and not the session's, whose settings another client would inherit."""
    name = server_url.rpartition("/")[2]
    impatient = Settings(busy_timeout=0.05, pool_size=1, pooler="transaction")
    with Database.open(bouncer.url(name), settings=impatient) as database, Database.open(server_url) as direct:
        with direct.write() as work:
            a_session(work)
            with pytest.raises(DatabaseBusy):
                adapter.save_session("worker", "alice@bot.example", "s-2", database=database)
        with psycopg.connect(bouncer.url(name), prepare_threshold=None) as other:
            found = other.execute("SHOW lock_timeout").fetchone()

        assert found == ("0",)
        assert adapter.load_session("worker", "alice@bot.example", database=database) == "s-1"


def test_a_pooler_that_is_restarted_costs_nothing_between_units(bouncer: Bouncer, server_url: str) -> None:
    """PG-06: the ping finds the connection dead, whoever closed it."""
    with Database.open(bouncer.url(server_url.rpartition("/")[2]), settings=POOLED) as database:
        adapter.save_session("worker", "alice", "s-1", database=database)

        bouncer.stop()
        bouncer.start()

        assert adapter.load_session("worker", "alice", database=database) == "s-1"
