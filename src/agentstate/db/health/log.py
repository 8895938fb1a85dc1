"""The write-ahead log: how large it is, and who keeps it from being put back into the database (FS-13)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from agentstate.db import outside
from agentstate.db.health import shm
from agentstate.db.health.findings import Finding, size, some
from agentstate.errors import DatabaseUnavailable

LARGE = 64 * 2**20
"""Bytes. SQLite puts the log back at 1,000 pages, so that it gets this large only when something is in the way."""

HELD_UP = 1_000
"""Pages: when as many were written since a reader began, SQLite has tried to put the log back, and could not."""


@dataclass(frozen=True, slots=True)
class LogState:
    """Pages in the log, how many of them the database has already, and who reads: (process id, pages when it began)."""

    pages: int
    put_back: int
    readers: tuple[tuple[int, int], ...]


def log_size(path: str, page_size: int) -> list[Finding]:
    """Return the readers that hold the log up, and whether it is large.

    Nothing is put back to find out: that would write to the database. Who reads is told on 64-bit Linux only.
    """
    try:
        length = os.stat(f"{path}-wal").st_size
    except OSError:
        return []
    if length < HELD_UP * page_size:
        return []
    state = log_state(path)
    findings = []
    held_up = [reader for reader in state.readers if state.pages - reader[1] > HELD_UP] if state else []
    if state is not None and held_up:
        behind = size((state.pages - min(pages for _, pages in held_up)) * page_size)
        who = some([f"process {process}" if process else "a process out of sight" for process, _ in held_up])
        what = f"{who} has been reading while {behind} were written, which must stay in {os.path.basename(path)}-wal"
        do = "end that process, or let it read in pieces: the log can only be put back after it"
        findings.append(Finding("log", "warning", what, do))
    if length > LARGE:
        rest = "" if state is None else f", {size((state.pages - state.put_back) * page_size)} of it only there"
        do = "'agentstate maintain' puts it back and shortens it" + (", once nobody holds it up" if held_up else "")
        findings.append(Finding("log", "warning", f"{path}-wal has {size(length)}{rest}", do))
    return findings


def log_state(path: str) -> LogState | None:
    """Return what the log's memory file says; None where it cannot be told."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    try:
        found = outside.ask(shm.__file__, f"{path}-shm")
    except DatabaseUnavailable:
        return None  # not readable for this user, or another SQLite's
    readers = tuple((process, pages) for process, pages in found["readers"])
    return LogState(found["frames"], found["backfilled"], readers)
