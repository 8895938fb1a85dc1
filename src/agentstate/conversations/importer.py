"""Session files are brought in, each exactly once, whenever the process is killed (IM-01, IM-03)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from agentstate.conversations.incoming import Planned, bring_in, would_bring_in
from agentstate.conversations.records import ImportEntry, ImportReport
from agentstate.conversations.session_file import SessionFile, Unusable, parse_session, printable_name
from agentstate.db.database import Database
from agentstate.errors import InvalidValue

MAX_FILE_BYTES = 256 * 1024 * 1024
"""A larger file is not read."""


def import_sessions(
    database: Database,
    directory: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    rename: bool = True,
    now: datetime | None = None,
    on_progress: Callable[[ImportEntry], None] | None = None,
) -> ImportReport:
    """Bring in the session files of a directory, in the order of their names, and report what became of each.

    Each `*.json` in it is one transaction. Only after its commit it is renamed to `<name>.json.migrated` (`.migrated.1`
    and so on if that is taken), unless `rename` is False; a rename that fails is reported, and the next run finds the
    conversation stored (IM-02). What cannot be read, or is stored differently under the same key, stays in place.
    Links are not followed and directories not entered; a missing directory is an empty one.

    `reason` in an entry is a code, and where more is known `: ` and that: `unreadable`, `empty_file`, `not_utf8`,
    `not_json`, `not_an_object`, `not_a_regular_file`, `not_a_session`, `duplicate_key`, `bad_key`, `bad_message`,
    `bad_number`, `too_large` where it failed, `symlink`, `metadata`, `index`, `gone` where it was skipped. A dry run
    says the same and touches neither database nor directory. `now` (aware; None: the current time) is when they were
    imported. `on_progress` is given each entry as it happens.

    Raises what the database raises (full, busy, behind …): then everything before the file it happened at is stored
    and renamed, nothing of that file is, and the same call later goes on from there. Raises `InvalidValue` for what
    is no directory that can be listed.
    """
    planned = Planned() if dry_run else None
    entries = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        entry = _import(database, path, name, now, planned, rename=rename)
        entries.append(entry)
        if on_progress is not None:
            on_progress(entry)
    return ImportReport(tuple(entries), dry_run)


def _names(directory: str | os.PathLike[str]) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidValue("directory", f"{os.fspath(directory)!r} cannot be listed: {error}") from None


def _import(
    database: Database, path: str, name: str, now: datetime | None, planned: Planned | None, *, rename: bool
) -> ImportEntry:
    """Bring in one file; with `planned`, the memory of a dry run, only say what would become of it."""
    try:
        data, status = _read(path)
        session = parse_session(data, name, status.st_mtime)
        del data
    except Unusable as error:
        return ImportEntry(printable_name(name), None, error.outcome, error.reason)

    if planned is not None:
        with database.read(now=now) as work:
            brought = would_bring_in(work, session.incoming, planned)
    else:
        with database.write(now=now) as work:
            brought = bring_in(work, session.incoming)
    settled = planned is None and brought.outcome != "conflict"
    renamed = _rename(path, status) if rename and settled else None
    return _entry(name, session, brought.outcome, session.flags + brought.flags, renamed)


def _entry(name: str, session: SessionFile, outcome: str, flags: tuple[str, ...], renamed: bool | None) -> ImportEntry:
    return ImportEntry(
        printable_name(name),
        session.incoming.key,
        outcome,
        "another conversation is stored under its key" if outcome == "conflict" else "",
        len(session.incoming.turns),
        session.messages,
        flags,
        session.repairs.orphan_results,
        session.repairs.aborted_calls,
        renamed,
    )


def _read(path: str) -> tuple[bytes, os.stat_result]:
    """Return a regular file's bytes, and its status from before they were read."""
    try:
        kind = os.lstat(path).st_mode
        if stat.S_ISLNK(kind):
            raise Unusable("skipped", "symlink")
        if not stat.S_ISREG(kind):
            raise Unusable("failed", "not_a_regular_file")
        # Not waiting: whatever has taken the file's place since we looked may be a FIFO that nobody writes to.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            data = b"" if status.st_size > MAX_FILE_BYTES else file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise Unusable("skipped", "gone") from None
    except OSError as error:
        raise Unusable("failed", f"unreadable: {error.strerror}") from None
    if max(status.st_size, len(data)) > MAX_FILE_BYTES:
        raise Unusable("failed", f"too_large: more than {MAX_FILE_BYTES} bytes")
    return data, status


def _rename(path: str, status: os.stat_result) -> bool | None:
    """Give the file the name of one that was brought in; return whether that worked, None if it is gone.

    A file that was written to since it was read keeps its name: what is new in it has not been brought in.
    """
    taken: str | None = None
    try:
        if _identity(os.lstat(path)) != _identity(status):
            return False
        taken = _take_free_name(path)
        os.rename(path, taken)
        return True
    except OSError as error:
        if taken is not None:
            with suppress(OSError):
                os.unlink(taken)
        return None if isinstance(error, FileNotFoundError) else False


def _take_free_name(path: str) -> str:
    """Make an empty file under the first free name, which is ours from then on: a rename would replace another's."""
    number = 0
    while True:
        name = f"{path}.migrated.{number}" if number else f"{path}.migrated"
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            return name
        except FileExistsError:
            number += 1


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
