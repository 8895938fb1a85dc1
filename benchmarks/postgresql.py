"""The same operations on a PostgreSQL server, beside the same statements on bare psycopg.

A private server on loopback with everything that makes it durable. Where none is installed there is nothing to measure.
"""

from __future__ import annotations

from contextlib import closing
from itertools import count, cycle
from typing import TYPE_CHECKING

from agentstate import adapter
from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from postgres_server import Server, binaries

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Operation

ROUNDS = 500
SENDERS = [f"{number}@bot.example" for number in range(100)]
REPOS = ["/srv/one", "/srv/three", "/srv/two"]

LOAD = "SELECT session_id FROM sessions WHERE role = %s AND sender = %s"
SAVE = (
    "INSERT INTO sessions (role, sender, session_id, updated_at) VALUES (%s, %s, %s, now()) "
    "ON CONFLICT (role, sender) DO UPDATE SET session_id = excluded.session_id, updated_at = excluded.updated_at"
)
MARK = (
    "INSERT INTO introductions (role, sender, introduced_at, updated_at) VALUES (%s, %s, now(), now()) "
    "ON CONFLICT DO NOTHING RETURNING role"
)
RESERVE = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
FIND_START = "SELECT job_id FROM start_pending WHERE job_id = %s"
ADD = (
    "INSERT INTO pending_approval (job_id, requested_by, commit_message, created_at) VALUES (%s, %s, %s, now()) "
    "ON CONFLICT DO NOTHING RETURNING job_id"
)
ADD_REPO = "INSERT INTO pending_approval_repo (job_id, repo_dir) VALUES (%s, %s)"
FIND = "SELECT * FROM pending_approval WHERE job_id = %s"
REPOS_OF = "SELECT job_id, repo_dir FROM pending_approval_repo WHERE job_id = %s ORDER BY repo_dir"
DELETE = "DELETE FROM pending_approval WHERE job_id = %s RETURNING job_id"


def operations(bench: Bench) -> list[Operation]:
    """Return the operations, on two databases of one server; none where no server is installed."""
    if binaries() is None:
        return []
    import psycopg

    server = Server(durable=True)
    bench.at_the_end(server.remove)
    server.create()
    server.start()
    for name in ("ours", "floor"):
        server.execute(f"CREATE DATABASE {name}")
        with Database.open(server.url(name)) as database:
            upgrade(database)
    ours = Database.open(server.url("ours"))
    floor = psycopg.connect(server.url("floor"))
    bench.at_the_end(floor.close)
    bench.at_the_end(ours.close)

    def load(sender: str) -> object:
        return adapter.load_session("worker", sender, database=ours)

    def floor_load(sender: str) -> object:
        with floor.transaction():
            row = floor.execute(LOAD, ("worker", sender)).fetchone()
            return row and row[0]

    def save(sender: str) -> None:
        adapter.save_session("worker", sender, "s-1", database=ours)

    def floor_save(sender: str) -> None:
        with floor.transaction():
            floor.execute(SAVE, ("worker", sender, "s-1"))

    def floor_mark(sender: str) -> bool:
        with floor.transaction():
            return floor.execute(MARK, ("worker", sender)).fetchone() is not None

    def round_trip(job: str) -> object:
        adapter.save_pending_approval(job, "alice", "message", REPOS, database=ours)
        found = adapter.load_pending_approval(job, database=ours)
        paths = [repo.repo_dir for repo in found.repos] if found else []
        return paths, adapter.delete_pending_approval(job, database=ours)

    def floor_round_trip(job: str) -> object:
        with floor.transaction():
            floor.execute(RESERVE, (job,))
            floor.execute(FIND_START, (job,)).fetchone()
            floor.execute(ADD, (job, "alice", "message")).fetchone()
            with closing(floor.cursor()) as cursor:
                cursor.executemany(ADD_REPO, [(job, repo) for repo in REPOS])
        with floor.transaction():
            floor.execute(FIND, (job,)).fetchone()
            paths = [row[1] for row in floor.execute(REPOS_OF, (job,)).fetchall()]
        with floor.transaction():
            return paths, floor.execute(DELETE, (job,)).fetchone() is not None

    for sender in SENDERS:
        save(sender)
        floor_save(sender)
    ours_known, floor_known = cycle(SENDERS), cycle(SENDERS)
    ours_new, floor_new, ours_jobs, floor_jobs = count(), count(), count(), count()
    return [
        ("load_session", lambda: load(next(ours_known)), lambda: floor_load(next(floor_known))),
        ("save_session", lambda: save(next(ours_known)), lambda: floor_save(next(floor_known))),
        (
            "mark_introduced, a new sender",
            lambda: adapter.mark_introduced("worker", f"new-{next(ours_new)}@bot.example", database=ours),
            lambda: floor_mark(f"new-{next(floor_new)}@bot.example"),
        ),
        (
            "save, load and delete an approval",
            lambda: round_trip(f"job-{next(ours_jobs)}"),
            lambda: floor_round_trip(f"job-{next(floor_jobs)}"),
        ),
    ]
