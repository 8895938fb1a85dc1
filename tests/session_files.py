"""What tests of importing and exporting share: session files, and what is stored of them, byte for byte."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

from agentstate.conversations.importer import import_sessions
from agentstate.conversations.models import Conversation
from agentstate.conversations.records import ImportEntry, TurnRecord
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.db.database import Database
from builders import NOON, said

CREATED = "2026-02-11T09:12:33.123456789+09:00"
UPDATED = "2026-02-11T09:15:02.1+09:00"


def a_document(key: str = "telegram:12345", *contents: str, **fields: Any) -> dict[str, Any]:
    """Make a session file's document: messages of user and assistant in turn, and times."""
    times = {"created": CREATED, "updated": UPDATED}
    spoken = zip(contents or ("hello", "good day"), cycle(("user", "assistant")))
    return {"key": key, "messages": [said(text, role) for text, role in spoken], **times, **fields}


def put(directory: Path, name: str, content: dict[str, Any] | list[Any] | bytes) -> Path:
    """Write a file, a document as the original wrote it: indented, non-ASCII raw."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False, indent=2).encode()
    path.write_bytes(data)
    return path


def brought(database: Database, directory: Path, **options: Any) -> dict[str, ImportEntry]:
    """Import the directory at NOON and return the entries by the names of their files."""
    report = import_sessions(database, directory, now=NOON, **options)
    assert len({entry.source for entry in report.entries}) == len(report.entries)
    return {entry.source: entry for entry in report.entries}


def outcomes(entries: dict[str, ImportEntry]) -> dict[str, str]:
    """Return what became of each file."""
    return {name: entry.outcome for name, entry in entries.items()}


def names(directory: Path) -> list[str]:
    """Return the names of everything in the directory."""
    return sorted(entry.name for entry in directory.iterdir())


def row(database: Database, key: str) -> Conversation:
    """Return the conversation's row."""
    with database.read() as work:
        return Conversations(work).get(key)


def turns(database: Database, key: str) -> list[TurnRecord]:
    """Return the conversation's own turns."""
    with database.read() as work:
        return Turns(work).list_turns(key)


def stored_text(database: Database, key: str) -> str:
    """Return the messages that the conversation sees as one list, byte for byte as they are stored."""
    with database.read() as work:
        return f"[{','.join(text[1:-1] for text in Turns(work).walk_texts(key) if text != '[]')}]"


def compact(messages: list[Any]) -> str:
    """Return the compact re-encoding of messages that hold no lone surrogates."""
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":"))
