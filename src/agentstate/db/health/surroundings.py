"""What lies around a database file: who may read it, where it is, how much room there is, and what was left behind.

Like `db/files.py`, this looks at names, sizes and permissions only, and opens nothing itself (FS-11).
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable

from agentstate.db import files, outside, seal
from agentstate.db.health.findings import Finding, Severity, counted, size, some
from agentstate.errors import DatabaseUnavailable

LEAST_FREE = 64 * 2**20
"""Bytes: with less than this on the disk, the next writes are about to fail."""


def permissions(path: str) -> list[Finding]:
    """Return who else may open the database and what lies beside it under its name: sidecars, backups (FS-10)."""
    modes = {}
    for name in files.beside(path):
        found = _status(name)
        if found is not None and stat.S_ISREG(found.st_mode):
            modes[name] = stat.S_IMODE(found.st_mode)
    everybody = {name: mode for name, mode in modes.items() if mode & 0o007}
    group = {name: mode for name, mode in modes.items() if mode & 0o070 and name not in everybody}
    findings = []
    if everybody:
        findings.append(
            Finding("permissions", "error", f"open to everybody: {_with_modes(everybody)}", _chmod(everybody))
        )
    if group:
        findings.append(Finding("permissions", "warning", f"open to their group: {_with_modes(group)}", _chmod(group)))
    return findings


def directory(path: str) -> list[Finding]:
    """Return who else may put files beside the database, or replace it, or see what is there."""
    place = os.path.dirname(path)
    mode = stat.S_IMODE(os.stat(place).st_mode)
    close = f"chmod 700 {shlex.quote(place)}, if it is the database's own; otherwise give the database one of its own"
    if mode & 0o002:
        severity: Severity = "warning" if mode & stat.S_ISVTX else "error"
        what = f"everybody may put files into {place} (mode {mode:04o}), where the database and its log are"
        do = "give the database a directory of its own, with mode 0700" if mode & stat.S_ISVTX else close
        return [Finding("directory", severity, what, do)]
    if mode & 0o020:
        return [
            Finding("directory", "warning", f"the group of {place} may replace the database (mode {mode:04o})", close)
        ]
    if mode & 0o055:
        return [Finding("directory", "note", f"others may look into {place} (mode {mode:04o})", close)]
    return []


def writable(path: str) -> list[Finding]:
    """Return what keeps this user from writing to the database, the directory included."""
    try:
        files.check(path, "rw")
    except DatabaseUnavailable as error:
        do = "if this is the user who writes, let that user write there; otherwise ask as the user of the service"
        return [Finding("writable", "warning", error.reason, do)]
    return []


def file_system(path: str, journal_mode: str) -> list[Finding]:
    """Return what is wrong with the file system: on a shared one WAL loses data, and locks often fail (FS-01)."""
    mount = files.shared_mount(path)
    if mount is None:
        return []
    what = f"the database lies on {mount}"
    if journal_mode == "wal":
        do = "stop all its users and move it to a local disk, or set AGENT_DB_JOURNAL_MODE=delete and start one of them"
        return [Finding("file system", "error", f"{what} in journal mode WAL, which damages it there", do)]
    do = "move it to a local disk; if it must stay there, let it be used from one machine only"
    return [Finding("file system", "note", f"{what}, where locks between machines cannot be relied upon", do)]


def free_space(path: str) -> list[Finding]:
    """Return whether the disk is about to be full, or has less room than a second copy of the database needs."""
    disk = os.statvfs(os.path.dirname(path))
    free = disk.f_bavail * disk.f_frsize
    needed = sum(found.st_size for found in map(_status, (path, f"{path}-wal")) if found is not None)
    if free < LEAST_FREE:
        return [
            Finding(
                "free space", "error", f"{size(free)} are free on the disk; writes are about to fail", _make_room(path)
            )
        ]
    if free < needed:
        what = f"{size(free)} are free on the disk and the database has {size(needed)}: there is no room for a backup"
        return [Finding("free space", "warning", f"{what}, nor to rewrite it", _make_room(path))]
    return []


def leftovers(path: str) -> list[Finding]:
    """Return the unfinished copies beside the database whose processes are gone: each may be a whole one in size."""
    found = files.unfinished_copies(path)
    if not found:
        return []
    names = some([os.path.basename(name) for name in found])
    what = f"{counted(len(found), 'file', 'files')} of copies that were never finished: {names}"
    return [Finding("leftovers", "note", what, f"rm {' '.join(map(shlex.quote, found))}")]


def copied_backup(path: str) -> list[Finding]:
    """Return whether a backup was copied over the database while the log of the old one stayed beside it (FS-09).

    Nothing inside tells: SQLite takes the log for the file's own. But a log is younger than its file until it is
    written back, and a file with a backup's seal has had nothing written back.
    """
    log, here = _status(f"{path}-wal"), _status(path)
    if log is None or here is None or not log.st_size or log.st_mtime_ns >= here.st_mtime_ns:
        return []
    if outside.ask(seal.__file__, path, seal.state) != "intact":
        return []
    what = f"it is a backup, copied here while {path}-wal, the log of the database before it, was still there"
    do = "stop its users and put the backup in place by 'agentstate restore', which moves that log aside"
    return [Finding("copied backup", "error", f"{what}: what is read is a mixture of both", do)]


CHECKS: dict[str, Callable[[str], list[Finding]]] = {
    "permissions": permissions,
    "directory": directory,
    "writable": writable,
    "free space": free_space,
    "leftovers": leftovers,
    "copied backup": copied_backup,
}
"""Those that need a file at the path, and nothing else."""


def _make_room(path: str) -> str:
    backups = files.backups_beside(path)
    moving = (
        f"move old backups away ({some(list(map(os.path.basename, backups)))})" if backups else "make room on the disk"
    )
    return f"{moving}; 'agentstate maintain' drops what is old"


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None  # gone meanwhile


def _with_modes(modes: dict[str, int]) -> str:
    return some([f"{os.path.basename(name)} ({mode:04o})" for name, mode in modes.items()])


def _chmod(names: dict[str, int]) -> str:
    return f"chmod 600 {' '.join(map(shlex.quote, names))}"
