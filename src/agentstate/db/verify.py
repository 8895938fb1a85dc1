"""Whether a file can be restored: it is read whole, compared with its seal, and left as it was."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, MetaData

from agentstate.db import files, outside, seal, state, targets
from agentstate.db.health.engines import columns
from agentstate.db.health.looking import Look, look
from agentstate.errors import (
    BackupDamaged,
    BackupEmpty,
    BackupMissing,
    DatabaseCorrupt,
    DatabaseEmpty,
    DatabaseError,
    DatabaseMissing,
    ForeignBackup,
    ForeignDatabase,
    InvalidValue,
    NotABackup,
    NotADatabase,
    SchemaUnversioned,
    UnreadableValue,
)
from agentstate.settings import Settings

SchemaState = Literal["at head", "behind", "ahead", "unversioned"]

_MOST_PROBLEMS = 3

_AS_BACKUP: dict[type[DatabaseError], type[DatabaseError]] = {
    DatabaseMissing: BackupMissing,
    DatabaseEmpty: BackupEmpty,
    NotADatabase: NotABackup,
    DatabaseCorrupt: BackupDamaged,
    ForeignDatabase: ForeignBackup,
}


@dataclass(frozen=True, slots=True)
class Verification:
    """What a file holds that was read whole and found good.

    `size` is in bytes, `revision` is None where our tables have no version. `seal` is "intact" for a backup that is
    byte by byte what it was when it was made; "written since" or "none" mean that only its structure could be checked.
    `rows` counts the rows of each of our tables.
    """

    file: str
    size: int
    revision: str | None
    schema: SchemaState
    seal: seal.State
    rows: dict[str, int]


def verify_file(file: str | Path, metadata: MetaData, settings: Settings) -> Verification:
    """Read the whole file and return what it holds; no byte of it changes, and nothing appears beside it.

    `metadata` holds the tables of all areas (`agentstate.metadata.metadata`). SQLite checks the structure and every
    index, the seal every byte, and references must lead somewhere. An older or newer schema is fine: after a restore it
    is upgraded, or read by the newer program. A log that lies beside the file is read as part of it.

    Raises `BackupMissing`, `BackupEmpty`, `NotABackup`, `BackupDamaged`, `ForeignBackup`, or `DatabaseUnavailable` for
    a file that this user cannot read, or not without writing beside it.
    """
    if targets.is_server(file):
        raise InvalidValue("file", "it is a server's address, and a backup is a file")
    path = files.resolve(targets.file_path(file))
    with _named_as_backup(path):
        files.check(path, "ro")
        sealed: seal.State = outside.ask(seal.__file__, path, seal.state)
        if sealed == "broken":
            raise DatabaseCorrupt(path, "bytes of it have changed since it was made: its checksum differs")
        if sealed == "cut":
            raise DatabaseCorrupt(path, "it ends within a page, so its end is missing, or something was added to it")

        def inspect_it(found: Look) -> Verification:
            with found.database.connect() as connection:
                _check_structure(connection, path)
                revision, schema = _schema(connection, metadata, path)
                rows = _rows(connection, metadata)
            return Verification(path, os.stat(path).st_size, revision, schema, sealed, rows)

        return look(path, settings, inspect_it)


@contextmanager
def _named_as_backup(path: str) -> Iterator[None]:
    try:
        yield
    except UnreadableValue as error:
        raise BackupDamaged(path, error.detail) from error
    except UnicodeDecodeError as error:
        raise BackupDamaged(path, "a name in its schema is no text") from error
    except DatabaseError as error:
        named = _AS_BACKUP.get(type(error))
        if named is None:
            raise
        raise named(*error.args) from error


def _check_structure(connection: Connection, path: str) -> None:
    lines = connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_PROBLEMS})").scalars().all()
    if lines != ["ok"]:
        raise DatabaseCorrupt(path, "; ".join(" ".join(str(line).split()) for line in lines))
    broken = Counter(str(row[0]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
    if broken:
        where = ", ".join(f"{count} of {table}" for table, count in sorted(broken.items()))
        raise DatabaseCorrupt(path, f"rows refer to others that do not exist: {where}")


def _schema(connection: Connection, metadata: MetaData, path: str) -> tuple[str | None, SchemaState]:
    try:
        revision = state.schema_revision(connection, path)
    except SchemaUnversioned:
        return None, "unversioned"
    if revision is None:
        raise DatabaseEmpty(path)
    if revision != state.HEAD:
        return revision, "behind" if revision in state.REVISIONS else "ahead"
    present = columns(connection, metadata)
    lost = [
        table.name
        for table in metadata.sorted_tables
        if not {column.name for column in table.columns} <= present.get(table.name, set())
    ]
    if lost:
        raise DatabaseCorrupt(path, f"its schema is {revision}, and yet it lacks {', '.join(lost)} or columns of it")
    return revision, "at head"


def _rows(connection: Connection, metadata: MetaData) -> dict[str, int]:
    present = columns(connection, metadata)
    names = [table.name for table in metadata.sorted_tables if table.name in present]
    return {name: int(connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one()) for name in names}
