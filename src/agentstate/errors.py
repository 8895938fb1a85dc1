"""Every error that agentstate raises, in one tree; it imports nothing of ours.

    AgentStateError
    ├── NotFound
    │   ├── StartNotFound             job_id
    │   ├── ApprovalNotFound          job_id
    │   └── RepoNotFound              job_id, repo_dir
    ├── Conflict
    │   ├── AlreadyPending            job_id, kind
    │   ├── AlreadyClaimed            job_id, by, at
    │   ├── StartStillPending         job_id
    │   ├── DuplicateRepo             job_id, repo_dir
    │   ├── AlreadyReleased           job_id, repo_dir, commit_sha
    │   ├── ConstraintViolated        database, detail
    │   ├── DowngradeLosesData        revision, losses
    │   └── CannotAdopt               database, reason
    ├── InvalidValue                  field, reason          refused before SQL
    │   ├── InvalidIdentifier
    │   ├── InvalidRole
    │   ├── InvalidSetting
    │   ├── NothingToApprove
    │   └── TooLarge
    ├── Forbidden                     who, what
    ├── StashError                    repo_dir, detail
    │   └── AmbiguousStash            repo_dir, marker, refs
    └── DatabaseError                 database
        ├── DatabaseNotConfigured
        ├── DatabaseMissing
        ├── DatabaseEmpty
        ├── DatabaseUnavailable       reason
        ├── NotADatabase              reason
        ├── DatabaseCorrupt           detail
        ├── DatabaseBusy              seconds
        ├── DatabaseFull
        ├── DatabaseReadOnly
        ├── UnreadableValue           field, detail
        ├── SchemaBehind              found, expected
        ├── SchemaAhead               found, expected
        ├── SchemaUnversioned         expected
        └── ForeignDatabase           tables

A class is named after the fact, carries it in attributes, and its message tells a person what to do. The facts
are also the exception's `args`, so that errors survive pickling between processes. `database` is a path or a URL
without its password.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime


class AgentStateError(Exception):
    """Root of the tree: catching it catches everything that agentstate raises on purpose."""


# --- not found -------------------------------------------------------------------------------------------------------


class NotFound(AgentStateError):
    """The thing asked for is not there."""


class StartNotFound(NotFound):
    """No job of that id waits for its start."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"no job {self.job_id!r} waits for its start; 'agentstate approvals' lists what is open"


class ApprovalNotFound(NotFound):
    """No job of that id waits for its release."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"no job {self.job_id!r} waits for its release; 'agentstate approvals' lists what is open"


class RepoNotFound(NotFound):
    """The pending approval has no such repository."""

    def __init__(self, job_id: str, repo_dir: str) -> None:
        super().__init__(job_id, repo_dir)
        self.job_id = job_id
        self.repo_dir = repo_dir

    def __str__(self) -> str:
        return (
            f"job {self.job_id!r} has no repository {self.repo_dir!r}; "
            f"'agentstate approvals show {self.job_id}' lists its repositories"
        )


# --- conflicts -------------------------------------------------------------------------------------------------------


class Conflict(AgentStateError):
    """What is asked contradicts what is stored; nothing was changed."""


class AlreadyPending(Conflict):
    """The job id is taken by a record with other content.

    `kind` is "start" or "approval": which of the two records holds the id.
    """

    def __init__(self, job_id: str, kind: str) -> None:
        super().__init__(job_id, kind)
        self.job_id = job_id
        self.kind = kind

    def __str__(self) -> str:
        waiting = "its start" if self.kind == "start" else "its release"
        return (
            f"job {self.job_id!r} already waits for {waiting} with other content; "
            "use a new job id, or have the open one decided first"
        )


class AlreadyClaimed(Conflict):
    """Somebody else is carrying out a decision about this job: `by` whom and since when (`at`, UTC)."""

    def __init__(self, job_id: str, by: str, at: datetime) -> None:
        super().__init__(job_id, by, at)
        self.job_id = job_id
        self.by = by
        self.at = at

    def __str__(self) -> str:
        since = self.at.strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"job {self.job_id!r} is being decided by {self.by!r} since {since}; "
            "wait for it, or take the claim over when you know that it is stale"
        )


class StartStillPending(Conflict):
    """A job that still waits for its start cannot wait for its release."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} still waits for its start; accept or reject it before asking for its release"


class DuplicateRepo(Conflict):
    """One approval names the same repository twice (after its path was normalised)."""

    def __init__(self, job_id: str, repo_dir: str) -> None:
        super().__init__(job_id, repo_dir)
        self.job_id = job_id
        self.repo_dir = repo_dir

    def __str__(self) -> str:
        return f"job {self.job_id!r} names repository {self.repo_dir!r} twice; name each repository once"


class AlreadyReleased(Conflict):
    """The repository's release is finished, as another commit than the one given now."""

    def __init__(self, job_id: str, repo_dir: str, commit_sha: str) -> None:
        super().__init__(job_id, repo_dir, commit_sha)
        self.job_id = job_id
        self.repo_dir = repo_dir
        self.commit_sha = commit_sha

    def __str__(self) -> str:
        return (
            f"repository {self.repo_dir!r} of job {self.job_id!r} is already released as commit {self.commit_sha}; "
            "look at its git log before committing again"
        )


class ConstraintViolated(Conflict):
    """The database refused a row that breaks one of its constraints; the transaction was rolled back."""

    def __init__(self, database: str, detail: str) -> None:
        super().__init__(database, detail)
        self.database = database
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.database} refused the change: {self.detail}; nothing was written"


class DowngradeLosesData(Conflict):
    """Going back to `revision` would delete data; `losses` maps a table to the number of rows concerned."""

    def __init__(self, revision: str, losses: Mapping[str, int]) -> None:
        super().__init__(revision, losses)
        self.revision = revision
        self.losses = dict(losses)

    def __str__(self) -> str:
        what = ", ".join(f"{table}: {rows} row{'' if rows == 1 else 's'}" for table, rows in self.losses.items())
        return f"going back to {self.revision} would lose data ({what}); nothing was changed; force it to lose them"


class CannotAdopt(Conflict):
    """The database cannot be taken over as it is; it was left untouched."""

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.database = database
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.database} cannot be adopted: {self.reason}; it was left as it was"


# --- refused before SQL ----------------------------------------------------------------------------------------------


class InvalidValue(AgentStateError):
    """A value was refused before anything was written: `field` names it, `reason` says why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class InvalidIdentifier(InvalidValue):
    """A key is empty, too long, or holds what a key cannot hold."""


class InvalidRole(InvalidValue):
    """A role's name is a lower-case word: letters, digits, - and _, at most 64, a letter first."""


class InvalidSetting(InvalidValue):
    """An environment variable holds a value that agentstate does not understand."""


class NothingToApprove(InvalidValue):
    """A pending approval needs at least one repository."""


class TooLarge(InvalidValue):
    """The value is larger than the database can hold."""


class Forbidden(AgentStateError):
    """`who` may not do this: the request is somebody else's. Nothing was changed."""

    def __init__(self, who: str, what: str) -> None:
        super().__init__(who, what)
        self.who = who
        self.what = what

    def __str__(self) -> str:
        return f"{self.who!r} may not {self.what}; only the one whose request it is may"


# --- stashes ---------------------------------------------------------------------------------------------------------


class StashError(AgentStateError):
    """git could not answer a question about a repository's stashes; `detail` is git's own words."""

    def __init__(self, repo_dir: str, detail: str) -> None:
        super().__init__(repo_dir, detail)
        self.repo_dir = repo_dir
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.repo_dir}: {self.detail}"


class AmbiguousStash(StashError):
    """More than one stash carries the marker; `refs` lists them."""

    def __init__(self, repo_dir: str, marker: str, refs: Sequence[str]) -> None:
        AgentStateError.__init__(self, repo_dir, marker, refs)
        self.repo_dir = repo_dir
        self.marker = marker
        self.refs = tuple(refs)
        self.detail = f"{len(self.refs)} stashes carry the marker {marker!r}: {', '.join(self.refs)}"

    def __str__(self) -> str:
        return f"{self.repo_dir}: {self.detail}; drop the ones that are not meant"


# --- the database ----------------------------------------------------------------------------------------------------


class DatabaseError(AgentStateError):
    """Something about the database as a whole; `database` is its path, or its URL without the password."""

    def __init__(self, database: str, *facts: object) -> None:
        super().__init__(database, *facts)
        self.database = database


class DatabaseNotConfigured(DatabaseError):
    """No database was named, neither by the caller nor by the environment."""

    def __init__(self) -> None:
        AgentStateError.__init__(self)
        self.database = ""

    def __str__(self) -> str:
        return "no database is configured: set AGENT_DB_PATH to the SQLite file, or AGENT_DB_URL to a database URL"


class DatabaseMissing(DatabaseError):
    """There is no file at the path, and the mode used does not create one."""

    def __str__(self) -> str:
        return f"there is no database at {self.database}; 'agentstate upgrade' creates it"


class DatabaseEmpty(DatabaseError):
    """The file exists and has no bytes: a fresh one, or one that a crash emptied (FS-05)."""

    def __str__(self) -> str:
        return (
            f"{self.database} exists but is empty: if it held data, restore a backup; "
            "if it is new, remove it and let 'agentstate upgrade' create it"
        )


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached or opened; `reason` says which obstacle it is."""

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use {self.database}: {self.reason}"


class NotADatabase(DatabaseError):
    """What lies at the path is not an SQLite database; it was not touched."""

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.database} is not a database: {self.reason}; check the path, or restore a backup"


class DatabaseCorrupt(DatabaseError):
    """The database is damaged; `detail` is the database's own words. Nothing is repaired by itself (FS-06)."""

    def __init__(self, database: str, detail: str) -> None:
        super().__init__(database, detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.database} is damaged ({self.detail}); stop its users, keep the file, and restore a backup"


class DatabaseBusy(DatabaseError):
    """Somebody else held the lock for longer than the busy timeout of `seconds`; nothing was written."""

    def __init__(self, database: str, seconds: float) -> None:
        super().__init__(database, seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"{self.database} is locked by another writer; waited {self.seconds:g} s and wrote nothing; try again"


class DatabaseFull(DatabaseError):
    """The disk, or the database's own size limit, is full; nothing of the transaction was written."""

    def __str__(self) -> str:
        return f"{self.database} is full: free space on its disk (or lift its size limit), then try again"


class DatabaseReadOnly(DatabaseError):
    """A write was tried on a database that was opened read-only, or that cannot be written."""

    def __str__(self) -> str:
        return f"{self.database} is read-only here: open it in mode 'rw' as a user who may write to its directory"


class UnreadableValue(DatabaseError):
    """A stored value of column `field` cannot be read, because another program wrote it (VA-08)."""

    def __init__(self, database: str, field: str, detail: str) -> None:
        super().__init__(database, field, detail)
        self.field = field
        self.detail = detail

    def __str__(self) -> str:
        where = self.database or "the database"
        return f"{where} holds a value in column {self.field} that cannot be read: {self.detail}; correct or delete it"


class SchemaBehind(DatabaseError):
    """The schema is older than this code: `found` (None: no schema yet) instead of `expected`."""

    def __init__(self, database: str, found: str | None, expected: str) -> None:
        super().__init__(database, found, expected)
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        state = "has no schema yet" if self.found is None else f"is at schema revision {self.found}"
        return f"{self.database} {state}, this version of agentstate needs {self.expected}; run 'agentstate upgrade'"


class SchemaAhead(DatabaseError):
    """The schema was made by a newer agentstate: `found` instead of `expected`; older code never writes it (UP-01)."""

    def __init__(self, database: str, found: str, expected: str) -> None:
        super().__init__(database, found, expected)
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.database} is at schema revision {self.found}, which this version of agentstate does not know "
            f"(it knows {self.expected}); install the version that wrote it, or restore an older backup"
        )


class SchemaUnversioned(DatabaseError):
    """The database has our tables but no version row: made by hand or by an earlier program."""

    def __init__(self, database: str, expected: str) -> None:
        super().__init__(database, expected)
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.database} has agentstate's tables but no schema version (expected {self.expected}); "
            "'agentstate adopt --dry-run' shows how it would be taken over, 'agentstate adopt' does it"
        )


class ForeignDatabase(DatabaseError):
    """The database belongs to another program: `tables` are some of its tables. It was not touched."""

    def __init__(self, database: str, tables: Sequence[str]) -> None:
        super().__init__(database, tables)
        self.tables = tuple(tables)

    def __str__(self) -> str:
        some = ", ".join(self.tables[:5])
        return f"{self.database} belongs to another program (tables: {some}); point AGENT_DB_PATH at a file of its own"
