"""What can go wrong with the database as a whole, and with its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentstate.errors.base import AgentStateError, Conflict


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
        super().__init__(revision, dict(losses))
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


class TargetNotEmpty(Conflict):
    """A copy goes into a database without rows; `tables` of this one have some. It was left untouched."""

    def __init__(self, database: str, tables: Sequence[str]) -> None:
        super().__init__(database, tuple(tables))
        self.database = database
        self.tables = tuple(tables)

    def __str__(self) -> str:
        return f"{self.database} has rows already ({', '.join(self.tables)}); name a database that was just created"


class CopyDiffers(Conflict):
    """What was written and read back is not what was copied; the copy was rolled back. `detail` says where."""

    def __init__(self, database: str, detail: str) -> None:
        super().__init__(database, detail)
        self.database = database
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"the copy in {self.database} differs from its source: {self.detail}; nothing was kept; "
            "look for a trigger on that table"
        )


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
    """There is no file at the path, and the mode used does not create one; or the server has no such database."""

    def __str__(self) -> str:
        if "://" in self.database:
            return f"there is no database at {self.database}; create it on the server first (CREATE DATABASE)"
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
        return f"{self.database} is busy with others; waited {self.seconds:g} s and wrote nothing; try again"


class DatabaseFull(DatabaseError):
    """The disk, or the database's own size limit, is full; nothing of the transaction was written."""

    def __str__(self) -> str:
        return f"{self.database} is full: free space on its disk (or lift its size limit), then try again"


class NoRoomToRewrite(DatabaseFull):
    """Rewriting the file takes `needed` bytes of free disk, and only `free` are there; nothing was changed."""

    def __init__(self, database: str, needed: int, free: int) -> None:
        super().__init__(database, needed, free)
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        return (
            f"rewriting {self.database} needs {self.needed} bytes of free disk, and {self.free} are free; "
            "nothing was changed; free some, then try again"
        )


class DatabaseReadOnly(DatabaseError):
    """A write was tried on a database that was opened read-only, or that cannot be written."""

    def __str__(self) -> str:
        if "://" in self.database:
            return f"{self.database} is read-only here: open it in mode 'rw', write in write(), and to the primary"
        return f"{self.database} is read-only here: use database.write() in mode 'rw', as a user who may write to it"


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
    """The database belongs to another program: `tables` are some of its tables. It was not touched.

    `hint` says more about a program that is known, and is empty otherwise.
    """

    def __init__(self, database: str, tables: Sequence[str], hint: str = "") -> None:
        super().__init__(database, tuple(tables), hint)
        self.tables = tuple(tables)
        self.hint = hint

    def __str__(self) -> str:
        some = ", ".join(self.tables[:5])
        advice = "point AGENT_DB_PATH at a file of its own" + (f"; {self.hint}" if self.hint else "")
        return f"{self.database} belongs to another program (tables: {some}); {advice}"
