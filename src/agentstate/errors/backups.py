"""Errors of backups: what cannot be one, what is in its way, and what must not be replaced by one."""

from __future__ import annotations

from agentstate.errors.base import Conflict
from agentstate.errors.database import (
    DatabaseCorrupt,
    DatabaseEmpty,
    DatabaseError,
    DatabaseMissing,
    ForeignDatabase,
    NotADatabase,
)


class BackupExists(Conflict):
    """Something lies where the backup is to be made, a link that leads nowhere included; it was not touched."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self.database = database

    def __str__(self) -> str:
        return f"{self.database} is there already; choose another name, or name a directory to get a dated one"


class DatabaseInUse(DatabaseError):
    """The database was not replaced, because others have it open: `by` says which processes."""

    def __init__(self, database: str, by: str) -> None:
        super().__init__(database, by)
        self.by = by

    def __str__(self) -> str:
        return (
            f"{self.database} is open in {self.by}; stop that first, or use --force: "
            "whoever has it open then keeps the former database, and what they write there is not in the restored one"
        )


class ServerDatabase(DatabaseError):
    """The database is on a server, whose own tools back it up and restore it: `command` is the one to run."""

    def __init__(self, database: str, command: str) -> None:
        super().__init__(database, command)
        self.command = command

    def __str__(self) -> str:
        return f"{self.database} is on a server, whose own tools do this; run: {self.command}"


class BackupMissing(DatabaseMissing):
    """There is no backup at the path."""

    def __str__(self) -> str:
        return f"there is no backup at {self.database}; check the path"


class BackupEmpty(DatabaseEmpty):
    """The file holds nothing: no byte, or not one table."""

    def __str__(self) -> str:
        return f"{self.database} is empty, so there is nothing to restore; use another backup"


class NotABackup(NotADatabase):
    """What lies at the path is not an SQLite database."""

    def __str__(self) -> str:
        return f"{self.database} is no backup: {self.reason}; check the path, or use another backup"


class BackupDamaged(DatabaseCorrupt):
    """The backup is not what it was when it was made, or its rows contradict each other; `detail` says how."""

    def __str__(self) -> str:
        return f"{self.database} is damaged and not to be restored ({self.detail}); keep it, and use another backup"


class ForeignBackup(ForeignDatabase):
    """The file is another program's database."""

    def __str__(self) -> str:
        some = ", ".join(self.tables[:5])
        advice = "check the path" + (f"; {self.hint}" if self.hint else "")
        return f"{self.database} is another program's database and no backup (tables: {some}); {advice}"
