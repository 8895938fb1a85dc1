"""The open databases that the adapter's functions work on, one handle for each target, and what a fork does to them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agentstate._lazy import LazyModule
from agentstate.errors import InvalidValue
from agentstate.settings import Settings, configured_target, read_settings

if TYPE_CHECKING:
    from agentstate.db import database as _db
    from agentstate.db.database import Database
else:
    _db = LazyModule("agentstate.db.database")

Target: TypeAlias = "str | Path | Database | None"

_opened: dict[tuple[str, Settings], Database] = {}
_opening = threading.Lock()


def open_database(target: Target) -> Database:
    """Return the open database that a target means, opened at its first use and kept for the life of the process.

    A path or a URL means another handle under other settings; None is the configured one. A `Database` is returned as
    it is. Raises `InvalidValue` for what is none of these, and what `Database.open` raises.
    """
    if target is not None and not isinstance(target, str | Path):
        if not isinstance(target, _db.Database):
            raise InvalidValue("database", f"must be a path, a URL or a Database, not {type(target).__name__}")
        if target.in_memory:
            import agentstate.metadata  # noqa: F401  (a unit in memory has the tables of the areas known when it begins)
        return target
    settings = read_settings()
    name = os.fspath(configured_target() if target is None else target)
    # A relative path means another file after chdir().
    key = (name if "://" in name else os.path.abspath(name), settings)
    found = _opened.get(key)
    if found is None:
        with _opening:
            found = _opened.get(key)
            if found is None:
                found = _opened[key] = _db.Database.open(name, "rw", settings=settings)
    return found


def _renew_lock() -> None:
    """Give a child process a lock of its own: who held it in the parent does not exist in the child (CN-01)."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
