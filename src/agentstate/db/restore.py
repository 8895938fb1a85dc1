"""Putting a backup in the place of a database, so that whoever is killed in between has the one or the other whole.

The former database is moved and never changed: it may be damaged, and it may hold the newest rows. Its sidecars go with
it, because SQLite would replay a log that stays into the restored database (FS-09). In what order, says `_replace`.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import MetaData

from agentstate.clock import pause
from agentstate.db import files, targets
from agentstate.db.backup import OnProgress, copy_pages, moment, new_file, sync
from agentstate.db.health.looking import Look, look
from agentstate.db.openers import openers
from agentstate.db.unfinished import abandoned, unfinished, waiting_to_replace
from agentstate.db.verify import Verification, verify_file
from agentstate.errors import DatabaseInUse, DatabaseUnavailable, InvalidValue
from agentstate.settings import Settings


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: the database, what the backup held, where the former database and its sidecars are now.

    `kept` is empty if there was nothing at the path. `open_in` names the processes that still have the former database
    open, which only a forced restore leaves.
    """

    database: str
    backup: Verification
    kept: tuple[str, ...]
    open_in: tuple[str, ...]


def restore(
    file: str | Path,
    target: str | Path,
    metadata: MetaData,
    settings: Settings,
    *,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Restored:
    """Verify the backup `file` and put a copy of it in the place of the database at `target`, a path or URL of SQLite.

    What lies there, in whatever state, is kept beside it under a dated name, together with its sidecars. The new file
    has mode 0600; made by root it belongs to the former one's owner, or that of the directory if there was none.

    Raises what `verify_file` raises, `DatabaseInUse` while others have the database open (`agentstate.db.openers` says
    how that is known) unless `force`, and `NotADatabase`, `DatabaseUnavailable` or `DatabaseFull` for the place; the
    database is then as it was. Killed at any moment, it leaves the former database or the restored one whole at the
    path, or nothing there and both beside it; opening the path then says so, and the next restore finds its way.
    """
    if targets.is_server(target):
        raise InvalidValue("database", "a backup is restored to a file")
    path = files.resolve(targets.file_path(target))
    files.check_replaceable(path)
    found = verify_file(file, metadata, settings)
    if os.path.exists(path) and os.path.samefile(found.file, path):
        raise InvalidValue("file", f"{found.file} is the database itself")
    if not force:
        _refuse_if_open(path, path)
    files.remove_stale_partials(path)
    fresh = _copied(found.file, path, settings, on_progress)
    open_in: list[str] = []
    if force and os.path.exists(path):
        with suppress(DatabaseUnavailable):
            open_in = openers(path)
    try:
        kept = _replace(path, fresh, force=force)
    except OSError as error:
        raise DatabaseUnavailable(path, f"it was not replaced: {error.strerror}") from error
    try:
        sync(os.path.dirname(path))
    except OSError as error:
        reason = f"it was replaced, and what was there is kept as {kept}, but the disk says: {error.strerror}"
        raise DatabaseUnavailable(path, reason) from error
    for leftover in waiting_to_replace(path):
        if abandoned(leftover, "restoring"):
            with suppress(OSError):
                os.unlink(leftover)
    return Restored(path, found, tuple(kept), tuple(open_in))


def _refuse_if_open(file: str, path: str) -> None:
    by = openers(file) if os.path.exists(file) else []
    if by:
        raise DatabaseInUse(path, ", ".join(by))


def _copied(backup: str, path: str, settings: Settings, on_progress: OnProgress | None) -> str:
    """Copy the backup to a whole file beside the path, on the disk when this returns, and return its name."""
    fresh = unfinished(path, "restoring")

    def copy(found: Look) -> str:
        with new_file(path, found.database) as partial:
            with found.database.connect() as connection:
                copy_pages(connection, partial, backup, on_progress)
            sync(partial)
            if os.geteuid() == 0:
                owner = os.stat(path if os.path.exists(path) else os.path.dirname(path))
                os.chown(partial, owner.st_uid, owner.st_gid, follow_symlinks=False)
            os.rename(partial, fresh)
        return fresh

    return look(backup, settings, copy)


def _replace(path: str, fresh: str, *, force: bool) -> list[str]:
    """Move what lies at the path aside and put `fresh` there; return the names that the former files have now.

    The sidecars get a second name first, so that the former database is whole under its new name at the moment when its
    file is moved. They leave the path only while there is no database: one beside its log's old place would open with
    its newest rows missing, and the restored one beside the log with the former one's. Whatever fails is undone.
    """
    kept = _new_name(path)
    try:
        for suffix in files.SIDECARS:
            _name_twice(path + suffix, kept + suffix)
        with suppress(FileNotFoundError):
            os.rename(path, kept)
            if not force:
                _refuse_if_open(kept, path)  # who came since the first look; from here on nobody can
        for suffix in files.SIDECARS:
            _move(path + suffix, kept + suffix)
        sync(os.path.dirname(path))
        _name_once(fresh, path)
    except FileExistsError:
        os.unlink(fresh)  # and nothing is put back: the old log beside the new database would be read into it
        reason = "somebody else has put a database there meanwhile, which stays; look at it before you restore again"
        raise DatabaseUnavailable(path, reason) from None
    except BaseException:
        if os.path.lexists(fresh):  # and otherwise it is there: an interrupt came with the last step
            if not (os.path.lexists(path) and os.path.samefile(fresh, path)):
                _put_back(path, kept)
            os.unlink(fresh)
        raise
    return [name for name in (kept + suffix for suffix in ("", *files.SIDECARS)) if os.path.lexists(name)]


def _new_name(path: str) -> str:
    while True:
        kept = f"{path}.replaced-{moment()}"
        if not any(os.path.lexists(kept + suffix) for suffix in ("", *files.SIDECARS)):
            return kept
        pause(0.001)


def _name_once(fresh: str, path: str) -> None:
    """Give `fresh` the name `path`; `FileExistsError` where somebody else has put something there meanwhile."""
    try:
        os.link(fresh, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        os.rename(fresh, path)  # a file system without hard links
    else:
        with suppress(OSError):  # it is in place; the next restore removes its other name
            os.unlink(fresh)


def _name_twice(old: str, new: str) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        # A file system without hard links, or a file that may not be linked: it is moved when the database has been.


def _move(old: str, new: str) -> None:
    if not os.path.lexists(old):
        return
    if os.path.lexists(new) and os.path.samefile(old, new):
        os.unlink(old)  # renaming one name of a file to another of it does nothing
    else:
        os.rename(old, new)


def _put_back(path: str, kept: str) -> None:
    for suffix in files.SIDECARS:
        if os.path.lexists(path + suffix):
            with suppress(FileNotFoundError):
                os.unlink(kept + suffix)
        elif os.path.lexists(kept + suffix):
            os.rename(kept + suffix, path + suffix)
    if os.path.lexists(kept) and not os.path.lexists(path):
        os.rename(kept, path)
