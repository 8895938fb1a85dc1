"""A pending approval of three repositories: saved, loaded and deleted, each in a transaction of its own."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from agentstate import adapter

if TYPE_CHECKING:
    from benchmarks.bench import Bench, Operation

ROUNDS = 500
REPOS = ["/srv/one", "/srv/three", "/srv/two"]
WHO = "alice@bot.example"
MESSAGE = "Add a licence"

FIND_START = "SELECT job_id FROM start_pending WHERE job_id = ?"
ADD = (
    "INSERT INTO pending_approval (job_id, requested_by, commit_message, created_at, claimed_at, claimed_by) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING job_id"
)
ADD_REPO = "INSERT INTO pending_approval_repo (job_id, repo_dir, stash_commit) VALUES (?, ?, ?)"
FIND = (
    "SELECT job_id, requested_by, commit_message, created_at, claimed_at, claimed_by "
    "FROM pending_approval WHERE job_id = ?"
)
REPOS_OF = (
    "SELECT job_id, repo_dir, stash_commit, done_at, commit_sha "
    "FROM pending_approval_repo WHERE job_id = ? ORDER BY repo_dir"
)
DELETE = "DELETE FROM pending_approval WHERE job_id = ? RETURNING job_id"


def operations(bench: Bench) -> list[Operation]:
    """Return the operations, on two databases of which each holds one other approval."""
    bench.database()
    floor = bench.floor()

    def save(job: str) -> None:
        adapter.save_pending_approval(job, WHO, MESSAGE, REPOS)

    def floor_save(job: str) -> None:
        with floor.writing():
            floor.execute(FIND_START, (job,)).fetchone()
            floor.execute(ADD, (job, WHO, MESSAGE, floor.now(), None, None)).fetchone()
            floor.executemany(ADD_REPO, [(job, repo, None) for repo in REPOS])

    def load(job: str) -> list[str]:
        found = adapter.load_pending_approval(job)
        return [] if found is None else [repo.repo_dir for repo in found.repos]

    def floor_load(job: str) -> list[str]:
        with floor.reading():
            floor.execute(FIND, (job,)).fetchone()
            return [row[1] for row in floor.execute(REPOS_OF, (job,)).fetchall()]

    def floor_delete(job: str) -> bool:
        with floor.writing():
            return floor.execute(DELETE, (job,)).fetchone() is not None

    ours_jobs, floor_jobs = count(), count()

    def round_trip() -> object:
        job = f"job-{next(ours_jobs)}"
        save(job)
        return load(job), adapter.delete_pending_approval(job)

    def floor_round_trip() -> object:
        job = f"job-{next(floor_jobs)}"
        floor_save(job)
        return floor_load(job), floor_delete(job)

    save("waiting")
    floor_save("waiting")
    return [
        ("save, load and delete", round_trip, floor_round_trip),
        ("load_pending_approval", lambda: load("waiting"), lambda: floor_load("waiting")),
    ]
