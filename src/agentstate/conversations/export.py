"""A conversation as a file: in the form of session files, so that it can be brought in again elsewhere."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from agentstate.conversations.models import effective_summary
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.types import json_text, utc_text
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationNotFound, InvalidValue
from agentstate.identity import identifier

_MAX_NAME = 80


def export_conversation(work: UnitOfWork, key: str) -> dict[str, Any]:
    """Return everything that the conversation remembers: its history, inherited turns too, and its whole summary.

    `messages` is the history as one list, and `turns` says how it was divided; an importer that knows only session
    files understands the document without it. Raises `ConversationNotFound` and `TurnUnreadable`.
    """
    row = Conversations(work).find_row(identifier(key, "key"))
    found = None if row is None else Turns(work).read_history(key)
    if row is None or found is None:
        raise ConversationNotFound(key)
    return {
        "key": key,
        "messages": [message for turn in found.turns for message in turn.messages],
        "summary": effective_summary(found.inherited_summary, found.summary),
        "created": utc_text(row.created_at),
        "updated": utc_text(row.updated_at),
        "label": row.label,
        "status": found.status,
        "parent_key": row.parent_key,
        "next_seq": found.next_seq,
        "turns": [
            {
                "id": turn.id,
                "seq": turn.seq,
                "kind": int(turn.kind),
                "message_count": len(turn.messages),
                "author": turn.author,
                "origin_key": turn.origin_key,
                "summary": turn.summary,
                "created_at": utc_text(turn.created_at),
                "meta": turn.meta,
            }
            for turn in found.turns
        ],
    }


def export_text(document: dict[str, Any]) -> str:
    """Return the document as JSON with each message and each turn on a line of its own, byte for byte as stored.

    Lone surrogates are escaped, so that the text is valid UTF-8 (VA-02).
    """
    fields = (f"{json_text(name, name)}:{_value_text(value, name)}" for name, value in document.items())
    return "{" + ",\n".join(fields) + "}\n"


def export_file_name(key: str) -> str:
    """Return the name of a conversation's export: harmless whatever the key holds, and another one for every key."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", key)[:_MAX_NAME]
    return f"{readable}-{sha256(key.encode()).hexdigest()[:8]}.json"


def write_export(document: dict[str, Any], output: str | os.PathLike[str]) -> Path:
    """Write an exported conversation to a file that only its owner may read, and return where it is.

    `output` is a directory that exists, in which the file is named by the key (IM-11), or the file itself. The file
    appears under its name when it is whole, and replaces an earlier one. Raises `InvalidValue`, with nothing left
    behind, when it cannot be written, or when a symbolic link, a directory or another thing has its name (FS-12).
    """
    path = Path(output)
    if os.path.isdir(path):
        path = path / export_file_name(document["key"])
    data = export_text(document).encode()
    try:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise InvalidValue("output", f"{path} is there and no regular file; remove it, or choose another name")
        _write_whole(path, data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue("output", f"{path} cannot be written: {reason}") from None
    return path


def _write_whole(path: Path, data: bytes) -> None:
    # Made by us alone, mode 0600, and never through a link that somebody has put there.
    descriptor, partial = tempfile.mkstemp(prefix=".export-", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _value_text(value: Any, name: str) -> str:
    if not isinstance(value, list) or not value:
        return json_text(value, name)
    return "[\n" + ",\n".join(json_text(entry, name) for entry in value) + "\n]"
