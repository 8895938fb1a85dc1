"""Statements and queries on waiting requests and waiting releases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from sqlalchemy import (
    Insert,
    Row,
    Select,
    Table,
    Text,
    Update,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy import cast as sql_cast

from agentstate.approvals.models import PendingApproval, PendingApprovalRepo, StartPending
from agentstate.approvals.records import RepoChange
from agentstate.db.compat import readable, readable_rows, readable_select
from agentstate.db.repository import Repository, insert_for

_STARTS = cast(Table, StartPending.__table__)
_APPROVALS = cast(Table, PendingApproval.__table__)
_REPOS = cast(Table, PendingApprovalRepo.__table__)


@cache
def _add(table: Table, dialect: str) -> Insert:
    insert = insert_for(dialect)(table)
    return insert.on_conflict_do_nothing().returning(table.c.job_id)


@cache
def _delete(table: Table) -> Any:
    return delete(table).where(table.c.job_id == bindparam("job_id")).returning(table.c.job_id)


@cache
def _claim(table: Table) -> Update:
    """Claim a row that nobody claims, or whose claim is not younger than `stale_before`.

    One statement decides: of those who race for it, the database lets one win.
    """
    return (
        update(table)
        .where(
            table.c.job_id == bindparam("its_job_id"),
            or_(
                table.c.claimed_at.is_(None),
                table.c.claimed_at <= bindparam("stale_before", type_=table.c.claimed_at.type),
            ),
        )
        .returning(table.c.job_id)
    )


@cache
def _exists(table: Table) -> Select[Any]:
    return select(table.c.job_id).where(table.c.job_id == bindparam("job_id"))


@cache
def _find(table: Table, *, lock: bool = False) -> Select[Any]:
    statement = select(table).where(table.c.job_id == bindparam("job_id"))
    return statement.with_for_update() if lock else statement


_REPOS_OF = _find(_REPOS).order_by(_REPOS.c.repo_dir)
_ADD_REPOS = _REPOS.insert()


class _Claimable(Repository):
    """What the two kinds of waiting jobs have in common: an id, and a claim on it."""

    __slots__ = ()
    _table: Table

    def _insert(self, values: dict[str, Any]) -> bool:
        connection = self.connection
        return connection.execute(_add(self._table, connection.dialect.name), values).first() is not None

    def _list_all(self, name: str) -> set[str]:
        """Return every value of a column; raises `UnreadableValue` for one that is no text."""
        # Cast, since other hands may have stored bytes, which would be equal to no text.
        return set(self.connection.execute(select(sql_cast(self._table.c[name], Text).label(name))).scalars())

    def reserve(self, job_id: str) -> None:
        """Keep others from saving anything under the job id until the unit ends, also where there is no row yet.

        SQLite's single writer does that by itself.
        """
        if self.connection.dialect.name == "postgresql":
            key = literal(job_id, self._table.c.job_id.type)
            self.connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))

    def exists(self, job_id: str) -> bool:
        """Return whether the job waits here."""
        return self.connection.execute(_exists(self._table), {"job_id": job_id}).first() is not None

    def find(self, job_id: str, *, lock: bool = False) -> Row[Any] | None:
        """Return the job's row, or None; `lock` keeps others from changing it until the unit ends."""
        statement = readable_select(_find(self._table, lock=lock), self._table, self._work)
        return self.connection.execute(statement, {"job_id": job_id}).first()

    def claim(self, job_id: str, by: str, stale_before: datetime | None) -> bool:
        """Claim the job for `by`; return whether that succeeded.

        A claim made at or before `stale_before` (None: no claim) is taken over.
        """
        values = {"its_job_id": job_id, "claimed_at": self.now, "claimed_by": by, "stale_before": stale_before}
        return self.connection.execute(_claim(self._table), values).first() is not None

    def delete(self, job_id: str) -> bool:
        """Delete the job's row, and what belongs to it; return whether there was one."""
        return self.connection.execute(_delete(self._table), {"job_id": job_id}).first() is not None


class StartsPending(_Claimable):
    """The requests that wait for their start."""

    __slots__ = ()
    _table = _STARTS

    def add(self, job_id: str, sender: str, requested_by: str, body: str) -> bool:
        """Insert the request; return False, changing nothing, if the job id is taken."""
        return self._insert(
            {
                "job_id": job_id,
                "sender": sender,
                "requested_by": requested_by,
                "body": body,
                "created_at": self.now,
                "claimed_at": None,
                "claimed_by": None,
            }
        )

    def list_oldest_first(self, sender: str | None = None) -> Sequence[StartPending]:
        """Return the waiting requests (of one sender, if given), oldest first, then by job id.

        A row that cannot be read is left out and named in a warning (VA-08).
        """
        start = readable(StartPending, self.session)
        statement = select(start).order_by(start.created_at, start.job_id)
        if sender is not None:
            statement = statement.where(start.sender == sender)
        return readable_rows(self.session, start, statement)

    def list_names(self) -> set[str]:
        """Return everybody who sent or made a waiting request; raises `UnreadableValue`."""
        return self._list_all("sender") | self._list_all("requested_by")


class PendingApprovals(_Claimable):
    """The finished jobs that wait for their release, and their repositories."""

    __slots__ = ()
    _table = _APPROVALS

    def add(self, job_id: str, requested_by: str, commit_message: str, repos: Iterable[RepoChange]) -> bool:
        """Insert the approval with its repositories; return False, changing nothing, if the job id is taken."""
        added = self._insert(
            {
                "job_id": job_id,
                "requested_by": requested_by,
                "commit_message": commit_message,
                "created_at": self.now,
                "claimed_at": None,
                "claimed_by": None,
            }
        )
        if added:
            rows = [{"job_id": job_id, "repo_dir": repo.repo_dir, "stash_commit": repo.stash_commit} for repo in repos]
            self.connection.execute(_ADD_REPOS, rows)
        return added

    def list_oldest_first(self) -> Sequence[PendingApproval]:
        """Return the open approvals, oldest first, then by job id.

        A row that cannot be read is left out and named in a warning (VA-08).
        """
        approval = readable(PendingApproval, self.session)
        statement = select(approval).order_by(approval.created_at, approval.job_id)
        return readable_rows(self.session, approval, statement)

    def list_names(self) -> set[str]:
        """Return everybody who asked for a job that waits for its release; raises `UnreadableValue`."""
        return self._list_all("requested_by")

    def repos_of(self, job_id: str) -> Sequence[Row[Any]]:
        """Return the approval's repositories, ordered by path."""
        statement = readable_select(_REPOS_OF, _REPOS, self._work)
        return self.connection.execute(statement, {"job_id": job_id}).all()

    def all_repos(self) -> Sequence[PendingApprovalRepo]:
        """Return the repositories of all approvals, ordered by job id and path.

        A row that cannot be read is left out and named in a warning (VA-08).
        """
        repo = readable(PendingApprovalRepo, self.session)
        return readable_rows(self.session, repo, select(repo).order_by(repo.job_id, repo.repo_dir))

    def mark_done(self, job_id: str, repo_dir: str, commit_sha: str) -> bool:
        """Note that the repository is released as that commit; return False, changing nothing, if one is noted."""
        statement = (
            update(_REPOS)
            .where(_REPOS.c.job_id == job_id, _REPOS.c.repo_dir == repo_dir, _REPOS.c.done_at.is_(None))
            .values(done_at=self.now, commit_sha=commit_sha)
            .returning(_REPOS.c.repo_dir)
        )
        return self.connection.execute(statement).first() is not None

    def find_repo(self, job_id: str, repo_dir: str) -> PendingApprovalRepo | None:
        """Return one repository of the approval, or None."""
        repo = readable(PendingApprovalRepo, self.session)
        statement = select(repo).where(repo.job_id == job_id, repo.repo_dir == repo_dir)
        return self.session.scalars(statement).first()
