"""The file queue of one role: a directory for each state, a file for each message, the file's name the job's id.

    inbox/       what the chat bridge put there, and jobs that were accepted; a file in it starts the role
    processing/  what a process has taken
    failed/      what could not be understood or carried out; move it back to inbox/ to try again
    outbox/      replies, for the chat bridge to fetch

The builder's directories carry the prefix `builder-`. A file is complete as soon as it has its name (temporary file,
then rename). What lies in processing/ when a role starts was left by a killed process and comes first.

This module has the name of one in the standard library: run the scripts with `python -m`, see the package's docstring.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agentstate.errors import AgentStateError
from agentstate.identity import UNSTORABLE, normalise_sender, valid_job_id

MESSAGE = "message"
JOB = "job"
MAX_NAME_BYTES = 200
"""A file system allows 255; the rest is for what is added to an id in a directory of replies or failures."""


class AlreadyRunning(Exception):
    """Another process of the same role holds the lock."""


class Unreadable(Exception):
    """A queue file is not a message; it is in failed/ now."""


@dataclass(frozen=True, slots=True)
class Message:
    """One file of the queue.

    `sender` is whose request it is and `requested_by` who handed it in (mostly the same). `kind` is "message" for what
    a person wrote and "job" for a request that was accepted. `notes` is what a run writes down about its own progress,
    so that a run after a kill goes on from there.
    """

    id: str
    sender: str
    body: str
    requested_by: str
    kind: str = MESSAGE
    notes: Mapping[str, Any] = field(default_factory=dict)


class Queue:
    """The four directories of one role, made when they are missing."""

    def __init__(self, state_dir: Path, prefix: str = "") -> None:
        self.inbox = state_dir / f"{prefix}inbox"
        self.processing = state_dir / f"{prefix}processing"
        self.failed = state_dir / f"{prefix}failed"
        self.outbox = state_dir / f"{prefix}outbox"
        self._lock = state_dir / f"{prefix}lock"
        for directory in (self.inbox, self.processing, self.failed, self.outbox):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def only_one(self) -> Iterator[None]:
        """Hold the role's lock for the block; raises `AlreadyRunning` when another process has it.

        The operating system takes the lock back from a killed process, so whoever has it knows that no other run is
        alive: that is why claims of a dead predecessor may be taken over.
        """
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AlreadyRunning(f"another process holds {self._lock}; one at a time") from None
        try:
            yield
        finally:
            os.close(lock)

    # --- handing in ------------------------------------------------------------------------------------------------

    def put(self, message: Message) -> None:
        """Put a message into the inbox, complete or not at all."""
        _write(_file(self.inbox, message.id), _as_json(message))

    def put_once(self, job: Message) -> None:
        """Put an accepted job into the inbox; putting it twice is putting it once, also when it has begun to run.

        Raises `FileExistsError` when another message of that id is waiting or at work: it must not be overwritten.
        """
        if not self.holds(job):
            self.put(job)

    def holds(self, job: Message) -> bool:
        """Return whether the job waits or is at work; raises `FileExistsError` when another message of its id does."""
        found = [file for file in (_file(self.inbox, job.id), _file(self.processing, job.id)) if file.exists()]
        if any(replace(_read(file), notes={}) != job for file in found):  # a run that began has made notes in it
            raise FileExistsError(f"the id {job.id!r} is in use by another message")
        return bool(found)

    def reply(self, message: Message, text: str) -> None:
        """Put the reply to a message into the outbox; a second one replaces the first while it lies there.

        What became of a job is `ID.job.json`, beside the reply `ID.json` to the request it comes from.
        """
        content = json.dumps({"id": message.id, "to": message.sender, "body": storable(text)}, ensure_ascii=False)
        _write(self._reply_file(message), content)

    def has_reply(self, message: Message) -> bool:
        """Return whether a reply to the message still lies in the outbox."""
        return self._reply_file(message).exists()

    # --- working off -----------------------------------------------------------------------------------------------

    def claim(self) -> Message | None:
        """Take the message that a killed run left, else the oldest of the inbox; None when there is nothing to do.

        Raises `Unreadable` after moving a file that is not a message to failed/.
        """
        for left in _oldest_first(self.processing):
            return self._open(left)
        for file in _oldest_first(self.inbox):
            taken = self.processing / file.name
            with contextlib.suppress(FileNotFoundError):  # somebody took it out of the inbox by hand
                os.rename(file, taken)
                return self._open(taken)
        return None

    def note(self, message: Message, **notes: Any) -> Message:
        """Write down progress in the claimed file and return the message with it; it keeps its place in the order."""
        noted = replace(message, notes={**message.notes, **notes})
        file = _file(self.processing, message.id)
        _write(file, _as_json(noted), modified_ns=file.stat().st_mtime_ns)
        return noted

    def done(self, message: Message) -> None:
        """Forget a message that was dealt with."""
        _file(self.processing, message.id).unlink(missing_ok=True)

    def fail(self, message: Message) -> None:
        """Keep a message that could not be dealt with, in failed/."""
        self._fail(_file(self.processing, message.id))

    def give_back(self, message: Message) -> None:
        """Put a claimed message back into the inbox, notes and all, for the next start."""
        file, place = _file(self.processing, message.id), _file(self.inbox, message.id)
        if not place.exists():  # else it stays where it is, which the next start looks through first
            os.rename(file, place)

    def _reply_file(self, message: Message) -> Path:
        if message.kind == JOB:
            return _file(self.outbox, f"{message.id}.job")
        # So that no two replies have one name, whatever the bridge calls its messages.
        return _file(self.outbox, message.id + (".message" if message.id.endswith((".job", ".message")) else ""))

    def _open(self, file: Path) -> Message:
        try:
            return _read(file)
        except Unreadable:
            self._fail(file)
            raise

    def _fail(self, file: Path) -> None:
        place, number = self.failed / file.name, 1
        while place.exists():  # an earlier failure of the same id stays, too
            number += 1
            place = self.failed / f"{file.stem}.{number}.json"
        os.rename(file, place)


def storable(text: str) -> str:
    """Return the text with a replacement character for each NUL and lone surrogate, which cannot be stored."""
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _file(directory: Path, message_id: str) -> Path:
    return directory / f"{valid_job_id(message_id)}.json"


def _oldest_first(directory: Path) -> list[Path]:
    found = []
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # taken out by hand
            if file.suffix == ".json" and file.is_file():
                found.append((file.stat().st_mtime_ns, file))
    return [file for _, file in sorted(found)]


def _as_json(message: Message) -> str:
    return json.dumps(asdict(message), ensure_ascii=False, indent=1)


def _read(file: Path) -> Message:
    try:
        content = json.loads(file.read_text("utf-8"))
        message = Message(
            id=valid_job_id(content["id"], "id"),
            sender=content["sender"],
            body=content["body"],
            requested_by=content.get("requested_by", content["sender"]),
            kind=content.get("kind", MESSAGE),
            notes=content.get("notes", {}),
        )
        normalise_sender(message.sender)
        normalise_sender(message.requested_by, "requested_by")
        # Also in what normalising leaves out, because the reply is sent to all of it, and in the notes.
        unstorable = UNSTORABLE.search(message.sender + message.requested_by + message.body + _as_json(message))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, AgentStateError) as error:
        raise Unreadable(f"{file.name} is not a message: {type(error).__name__}: {error}") from error
    if message.id != file.stem or message.kind not in (MESSAGE, JOB) or not isinstance(message.notes, dict):
        raise Unreadable(f"{file.name} is not a message: its id is not its name, or its kind or notes are unknown")
    if len(os.fsencode(file.name)) > MAX_NAME_BYTES:
        raise Unreadable(f"{file.name} has too long a name")
    if unstorable:
        raise Unreadable(f"{file.name} is not a message: U+{ord(unstorable[0]):04X} is not text that can be stored")
    return message


def _write(file: Path, content: str, modified_ns: int | None = None) -> None:
    temporary = file.with_name(f".{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    if modified_ns is not None:
        os.utime(temporary, ns=(modified_ns, modified_ns))
    os.replace(temporary, file)
    # The row that this file follows is about to be deleted for good, so the name must outlive a power failure, too.
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
