"""What a caller means by a database: a file's path, a URL of SQLite, or a URL of PostgreSQL."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from agentstate.errors import InvalidValue

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)?://(.*)", re.DOTALL)


_SERVER = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_ALMOST_SERVER = re.compile(
    r"\s*(?:postgres\w*(?:\+\w+)?(?::/|//)|(?:host|hostaddr|port|dbname|user|password|service)\s*=)", re.IGNORECASE
)


def is_server(target: object) -> bool:
    """Return whether the target is a URL of PostgreSQL."""
    return isinstance(target, str) and _SERVER.match(target) is not None


def refuse_mistyped_server(target: object) -> None:
    """Raise `InvalidValue` for what was meant as a server's address and is not its URL; it may hold a password.

    Taken for a path it would be named in messages, or become a file.
    """
    if isinstance(target, str) and not is_server(target) and _ALMOST_SERVER.match(target):
        raise InvalidValue("database", "a server is named by a URL: postgresql://user@host/name, in AGENT_DB_URL")


def file_path(target: str | Path) -> str | Path:
    """Return the path of the file that the target names, given as such or as `sqlite:////absolute` or `sqlite:///relative`.

    In a URL `%20` is a blank, and parameters are refused: the settings say how a file is opened. Raises `InvalidValue`.
    """
    refuse_mistyped_server(target)
    url = _URL.match(target) if isinstance(target, str) else None
    if url is None:
        return target
    engine, rest = (url[1] or "").partition("+")[0], url[2]
    if engine != "sqlite":
        raise InvalidValue("database", f"a URL of {engine or 'nothing'} is not supported, only sqlite and postgresql")
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or path in ("", ":memory:") or "?" in rest:
        raise InvalidValue(
            "database",
            "a URL of SQLite names a file and nothing else: sqlite:////absolute/path or sqlite:///relative, ? as %3F",
        )
    return path


def file_url(path: str) -> str:
    """Return the URL of an SQLite file."""
    return f"sqlite:///{quote(os.fsencode(path))}"
