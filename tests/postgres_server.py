"""A private PostgreSQL server for the tests, from the binaries that are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

REQUIRE = "AGENTSTATE_REQUIRE_POSTGRES"
PASSWORD = "p@ss%w:rd/é"
"""With everything in it that has broken a URL (MG-06)."""


def binaries() -> Path | None:
    """Return the directory of the server's binaries, the newest that is installed, or None."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name.split(".")[0]))
    found = shutil.which("initdb")
    places += [Path(found).resolve().parent] if found else []
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def need_binaries() -> None:
    """Skip the test where no server is installed; fail it where one is required."""
    import pytest  # the benchmarks start a server too, and need no pytest for it

    if binaries() is None:
        reason = "no PostgreSQL server is installed: apt-get install postgresql"
        pytest.fail(reason) if os.environ.get(REQUIRE) else pytest.skip(reason)


def free_port() -> int:
    """Return a port on loopback that nobody uses at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


_FINGERPRINT = """
SELECT (SELECT string_agg(concat_ws(' ', relname, attname, atttypid, attnotnull, attacl), ', ' ORDER BY relname, attnum)
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
        WHERE relnamespace = 'public'::regnamespace AND NOT attisdropped),
       (SELECT string_agg(concat_ws(' ', relname, relkind, relowner, relacl), ', ' ORDER BY relname)
        FROM pg_class WHERE relnamespace = 'public'::regnamespace),
       (SELECT concat_ws(' ', datacl, datallowconn, datconnlimit) FROM pg_database WHERE datname = current_database()),
       (SELECT count(*) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
        WHERE datname = current_database()),
       (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal),
       (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
       (SELECT count(*) FROM pg_constraint WHERE connamespace = 'public'::regnamespace),
       (SELECT count(*) FROM pg_statistic JOIN pg_class c ON c.oid = starelid
        WHERE relnamespace = 'public'::regnamespace),
       (SELECT bool_or(pg_relation_size(oid) > 1000000) FROM pg_class WHERE relnamespace = 'public'::regnamespace),
       (SELECT string_agg(version_num, ', ') FROM alembic_version)
"""

_DELETE_ALL = """
DO $$
DECLARE name text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
END $$
"""


class Server:
    """One server: its data in a temporary folder, on loopback, run as user postgres when the tests run as root.

    `durable` keeps fsync on, for the tests that are about durability.
    """

    def __init__(self, *, durable: bool = False, settings: Sequence[str] = ()) -> None:
        found = binaries()
        assert found is not None
        self.bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="agentstate-pg-"))
        self.data = self.folder / "data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: psycopg.Connection | None = None
        self.options = [] if durable else ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        self.options += settings
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam("postgres").pw_uid, -1)

    def create(self) -> None:
        """Make a new cluster whose one user has a password."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        secret.chmod(0o644)
        self.run(
            "initdb", "-D", str(self.data), "-U", "agent", "--pwfile", str(secret), "-A", "scram-sha-256",
            "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions",
        )  # fmt: skip
        secret.unlink()

    def copy_from(self, primary: Server) -> None:
        """Make, in place of a new cluster, a copy of a running server that follows it once it is started."""
        self.run(
            "pg_basebackup", "-D", str(self.data), "-d", primary.url(), "--write-recovery-conf", "--wal-method=stream",
            "--checkpoint=fast", "--no-sync",
        )  # fmt: skip

    def wait_for_standby(self) -> None:
        """Commit only what a standby has on its disk too, from now on; returns when one follows."""
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")
        while self.rows("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            time.sleep(0.02)

    def promote(self) -> None:
        """Make a standby the primary."""
        self.execute("SELECT pg_promote()")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=60", *self.options]
        flags = [part for option in options for part in ("-c", option)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, "-p", str(self.port), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self.user,
            )
        for _ in range(600):
            ready = subprocess.run(
                [self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
            ).returncode
            if ready == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError((self.folder / "log").read_text(encoding="utf-8"))

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends its sessions, SIGKILL is a crash of the postmaster."""
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)
            self.process = None

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.folder)

    def restart(self) -> None:
        """Stop the server, which ends every connection, and start it again."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill the server and every process of it at once, so that nobody says goodbye."""
        assert self.process is not None
        main = self.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
        for process in [main, *map(int, children)]:
            os.kill(process, signal.SIGKILL)
        if self.connection is not None:
            self.connection.close()
        self.process.wait(timeout=60)
        self.process = None

    def url(self, database: str = "postgres", *, others: Sequence[Server] = ()) -> str:
        """Return the URL of one of its databases, password and all; `others` are further hosts to try."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in [self, *others])
        return f"postgresql://agent:{quote(PASSWORD, safe='')}@{hosts}/{database}"

    def rows(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as another program would, on a connection of its own, and return its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def fingerprint(self, database: str) -> object:
        """Return what tells a database like the template from one in which a test changed more than rows.

        That is its tables, columns, rights, settings, triggers and statistics, its revision, and whether it has grown.
        """
        return self.rows(_FINGERPRINT, database)

    def empty(self, database: str) -> None:
        """End every connection to a database and delete all its rows but the revision's."""
        self.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database}'")
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(_DELETE_ALL)

    def clients(self, name: str = "agentstate") -> list[tuple[int, str]]:
        """Return process id and state of the connections of that application name, as the server sees them."""
        return self.rows(f"SELECT pid, state FROM pg_stat_activity WHERE application_name = '{name}' ORDER BY pid")

    def terminate_clients(self) -> None:
        """End the connections of agentstate as an administrator does, and wait until they are gone."""
        for process, _ in self.clients():
            self.execute(f"SELECT pg_terminate_backend({process}, 10000)")

    def execute(self, statement: str) -> None:
        """Run a statement in the database postgres, over a connection that is kept."""
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(self.url(), autocommit=True)
        self.connection.execute(statement)

    def psql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as another program would, and return what it prints."""
        done = subprocess.run(
            [
                self.bin / "psql",
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                self.url(database),
                "-c",
                statement,
            ],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs as the server's user."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            user=self.user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @property
    def user(self) -> str | None:
        """The user to run as: the server refuses to run as root."""
        return "postgres" if os.geteuid() == 0 else None
