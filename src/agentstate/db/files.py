"""What lies at the path of an SQLite database, told apart before SQLite opens it.

Only names, sizes and permissions are looked at. The file is never opened and closed by ordinary calls: closing any
descriptor of it drops the locks that SQLite holds on it in this process (FS-11).
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from agentstate.db.unfinished import abandoned, waiting_to_replace
from agentstate.errors import (
    DatabaseEmpty,
    DatabaseMissing,
    DatabaseUnavailable,
    InvalidValue,
    NotADatabase,
)

Mode = Literal["rw", "rwc", "ro"]
log = logging.getLogger("agentstate")

SIDECARS = ("-wal", "-shm", "-journal")
_SHARED_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "afs", "vboxsf", "prl_fs"}
_SHARED_FUSE = (
    "sshfs",
    "s3fs",
    "nfs",
    "cifs",
    "smb",
    "9p",
    "virtiofs",
    "rclone",
    "gvfsd-fuse",
    "glusterfs",
    "grpcfuse",
)


def resolve(path: str | Path) -> str:
    """Return the absolute path of the file meant, with links of an existing file or directory followed once.

    A link whose target is missing is not followed: `check` refuses it, because it may have been planted (FS-12).
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidValue("database", "must be the path of a file, as text without NUL")
    absolute = os.path.abspath(text)
    if os.path.exists(absolute):
        return os.path.realpath(absolute)
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def check(path: str, mode: Mode) -> os.stat_result | None:
    """Return the file's status, or None when there is none and `mode` may create it.

    Raises `DatabaseMissing`, `DatabaseEmpty`, `DatabaseUnavailable` (naming the obstacle, the path and the user) or
    `NotADatabase`. A FIFO is told by its status and so cannot make anybody wait.
    """
    directory = os.path.dirname(path)
    refuse_links(path)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        left_behind = mode == "rwc" and has_wal(path)
        if left_behind and os.path.exists(path):
            return check(path, mode)  # somebody creates it at this moment
        if left_behind:
            reason = f"it is gone, but its newest rows are still in {path}-wal: put it back, or move that file away"
            raise DatabaseUnavailable(path, reason) from None
        _check_absent(path, directory, mode)
        return None
    except (PermissionError, NotADirectoryError, OSError) as error:
        raise DatabaseUnavailable(path, f"{error.strerror} (as user {_me()})") from None
    if not stat.S_ISREG(found.st_mode):
        raise NotADatabase(path, f"it is a {_kind(found.st_mode)}")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise DatabaseUnavailable(path, f"the file belongs to {_name(found.st_uid)} and {_me()} may not read it")
    if mode != "ro":
        if not os.access(path, os.W_OK, effective_ids=True):
            _check_mount(path, path)
            raise DatabaseUnavailable(path, f"the file belongs to {_name(found.st_uid)} and {_me()} may not write it")
        _check_directory(path, directory)
    if found.st_size == 0:
        _check_empty(path, mode)
    if found.st_size == 1:
        raise NotADatabase(path, "it holds a single byte")  # which SQLite takes for an empty file, and overwrites
    return found


def create(path: str) -> bool:
    """Create the empty file, readable and writable for its owner only; return False if something is there already.

    A symbolic link at the path is not followed (FS-10, FS-12).
    """
    try:
        if sys.platform == "linux":
            # Not opened, even for a moment: another thread may have the new file open and locked already (FS-11).
            os.mknod(path, stat.S_IFREG | 0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        raise DatabaseUnavailable(path, f"{error.strerror} (as user {_me()})") from None
    return True


def refuse_links(path: str) -> None:
    """Raise `DatabaseUnavailable` when a file that SQLite keeps beside the database is a symbolic link (FS-12)."""
    for suffix in SIDECARS:
        if os.path.islink(path + suffix):
            raise DatabaseUnavailable(path, f"{path}{suffix} is a symbolic link, which is not followed; remove it")


def writable_directory(path: str) -> bool:
    """Return whether this user may create files beside the database, which WAL needs."""
    return os.access(os.path.dirname(path), os.W_OK | os.X_OK, effective_ids=True)


def check_replaceable(path: str) -> None:
    """Raise unless a new database may be put at the path, whatever file lies there now, if any.

    Raises `NotADatabase` for what is no file, and `DatabaseUnavailable` for a planted link and for a directory that is
    missing or that this user may not write to.
    """
    refuse_links(path)
    directory = os.path.dirname(path)
    if os.path.exists(path):
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind):
            raise NotADatabase(path, f"it is a {_kind(kind)}")
    _check_place(path, directory)
    _check_directory(path, directory)


def has_wal(path: str) -> bool:
    """Return whether a write-ahead log lies beside the database, without which newer rows would be missed."""
    return _size(path + "-wal") > 0


def shared_mount(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """Return the mount point (and its kind) when the path lies on a network or shared file system, else None.

    WAL needs memory shared between all users of the file, which such mounts do not give (FS-01). `mounts` is where the
    kernel lists its mounts; where it does not, the answer is None.
    """
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:
        return None
    best, kind = "", ""
    for line in lines:
        before, separator, after = line.partition(" - ")
        if not separator:
            continue
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    shared = kind in _SHARED_FILE_SYSTEMS or (kind.startswith("fuse") and kind.rpartition(".")[2] in _SHARED_FUSE)
    return f"{best} ({kind})" if shared else None


def backups_beside(path: str) -> list[str]:
    """Return the backups that upgrades left beside the database, oldest first."""
    directory, name = os.path.split(path)
    try:
        return sorted(
            os.path.join(directory, entry)
            for entry in os.listdir(directory)
            if entry.startswith(f"{name}.backup-") and ".partial-" not in entry
        )
    except OSError:
        return []


def remove_stale_partials(path: str) -> None:
    """Delete the unfinished backups beside the file whose processes are gone: each is a whole copy in size.

    Those of other databases too, because a backup that was killed may have had another name than the next one.
    """
    directory = os.path.dirname(path) or "."
    try:
        entries = os.listdir(directory)
    except OSError:
        return  # whoever wants to write there is told
    for entry in entries:
        if abandoned(entry, "partial"):
            with suppress(OSError):
                os.unlink(os.path.join(directory, entry))


def beside(path: str) -> list[str]:
    """Return the database's file and everything beside it that is named after it, sidecars and backups included."""
    directory, name = os.path.split(path)
    try:
        entries = os.listdir(directory)
    except OSError:
        return [path, *(path + suffix for suffix in SIDECARS)]  # a directory may be closed to its readers
    return sorted(
        os.path.join(directory, entry) for entry in entries if re.match(rf"{re.escape(name)}([-.]|\Z)", entry)
    )


def unfinished_copies(path: str) -> list[str]:
    """Return what lies beside the database of copies that were being made by processes that are gone."""
    return [name for name in beside(path) if abandoned(name, "partial", "restoring")]


def _check_place(path: str, directory: str) -> None:
    if os.path.islink(path):
        raise DatabaseUnavailable(path, "it is a symbolic link to nothing, which is not followed; remove it")
    if not os.path.isdir(directory):
        raise DatabaseUnavailable(path, f"the directory {directory} does not exist (looked for it as user {_me()})")


def _check_absent(path: str, directory: str, mode: Mode) -> None:
    _check_place(path, directory)
    if waiting := waiting_to_replace(path):
        raise DatabaseUnavailable(
            path,
            "a restore of it is under way, or was cut off in the middle: if so, run 'agentstate restore' again; "
            f"the restored database is whole and waits in {waiting[-1]}",
        )
    if mode != "rwc":
        raise DatabaseMissing(path)
    _check_directory(path, directory)


def _check_directory(path: str, directory: str) -> None:
    if not writable_directory(path):
        _check_mount(path, directory)
        owner = _name(os.stat(directory).st_uid)
        raise DatabaseUnavailable(
            path,
            f"the directory {directory} belongs to {owner} and {_me()} may not write to it; "
            "SQLite keeps its journal beside the database",
        )


def _check_mount(path: str, place: str) -> None:
    """Raise `DatabaseUnavailable` where nobody may write, whatever the permissions say: outside a sandbox (FS-03)."""
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        raise DatabaseUnavailable(
            path,
            f"{place} is mounted read-only for this process, which runs as {_me()}; where a sandbox does that "
            f"(systemd: ProtectSystem=), list the directory {os.path.dirname(path)}, not the file, in ReadWritePaths=",
        )


def _check_empty(path: str, mode: Mode) -> None:
    if mode != "rwc":
        raise DatabaseEmpty(path)
    # A process that creates the file at this moment leaves it empty until its first page is written, and a log lies
    # beside it only after that: hence size, log, size. Before that there is a journal, which says that it is the first.
    held_data = _size(path + "-wal") > 0 or _journal_of_data(path) or bool(backups_beside(path))
    if held_data and _size(path) == 0:
        raise DatabaseEmpty(path)
    log.warning("%s exists and is empty; a new database is made in it", path)


def _journal_of_data(path: str) -> bool:
    """Return whether a rollback journal lies beside the database that is not of the transaction which creates it.

    Its header says how many pages there were before; zeros are a header that was used up. SQLite keeps no locks on a
    journal, so that it can be read.
    """
    try:
        with open(path + "-journal", "rb") as journal:
            header = journal.read(28)
    except OSError:
        return False
    pages_before, sector_size = header[16:20], header[20:24]
    return bool(header) and not (pages_before == bytes(4) and any(sector_size))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISFIFO(mode):
        return "FIFO"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _me() -> str:
    return _name(os.geteuid())
