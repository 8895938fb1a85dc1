"""What a caller means by a database: a file's path, a URL of SQLite, or a URL of PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote

from agentstate.errors import InvalidValue

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)?://(.*)", re.DOTALL)


def is_server(target: object) -> bool:
    """Return whether the target is a URL of PostgreSQL."""
    return isinstance(target, str) and target.startswith(("postgresql:", "postgresql+", "postgres:"))


def file_path(target: str | Path) -> str | Path:
    """Return the path of the file that the target names, given as such or as `sqlite:////absolute` or `sqlite:///relative`.

    In a URL `%20` is a blank, and parameters are refused: the settings say how a file is opened. Raises `InvalidValue`.
    """
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
    return f"sqlite:///{quote(path)}"
