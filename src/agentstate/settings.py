"""The one reader of the environment: which database, how to wait for it and write to it, and how long rows are kept."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote

from agentstate.errors import DatabaseNotConfigured, InvalidSetting

JOURNAL_MODES = ("wal", "delete", "truncate", "persist")
SYNCHRONOUS_LEVELS = ("full", "normal", "extra")
_KEEP = "AGENT_KEEP_"
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SQLITE_URL_PREFIXES = ("sqlite:///", "sqlite+pysqlite:///")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a database is opened.

    `busy_timeout` is in seconds. `journal_mode` None means: WAL, except on a network or shared file system, where it
    is DELETE. `synchronous` is SQLite's durability level. The last three are PostgreSQL's: `statement_timeout` is in
    seconds (0: none), at most `pool_size` connections are open in this process, and `pooler` is "transaction" behind a
    pooler, such as PgBouncer, that hands out server connections per transaction.
    """

    busy_timeout: float = 30.0
    journal_mode: str | None = None
    synchronous: str = "full"
    statement_timeout: float = 0.0
    pool_size: int = 5
    pooler: str | None = None


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that the environment asks for, defaults where it is silent.

    `environ` stands in for the process's environment. Raises `InvalidSetting` naming the variable.
    """
    variables = os.environ if environ is None else environ
    return Settings(
        busy_timeout=_seconds(variables, "AGENT_DB_BUSY_TIMEOUT", 30.0),
        journal_mode=_choice(variables, "AGENT_DB_JOURNAL_MODE", JOURNAL_MODES, None),
        synchronous=_choice(variables, "AGENT_DB_SYNCHRONOUS", SYNCHRONOUS_LEVELS, "full") or "full",
        statement_timeout=_seconds(variables, "AGENT_DB_STATEMENT_TIMEOUT", 0.0),
        pool_size=_count(variables, "AGENT_DB_POOL_SIZE", 5),
        pooler=_choice(variables, "AGENT_DB_POOLER", ("transaction",), None),
    )


def configured_target(environ: Mapping[str, str] | None = None) -> str:
    """Return the database that the environment names: the URL of AGENT_DB_URL, else the path of AGENT_DB_PATH.

    An empty variable counts as not set. Raises `DatabaseNotConfigured` when neither is set, and `InvalidSetting`
    when both are set and do not name the same file: guessing would split one memory into two.
    """
    variables = os.environ if environ is None else environ
    path, url = variables.get("AGENT_DB_PATH", ""), variables.get("AGENT_DB_URL", "")
    if path and url and not _same_file(path, url):
        raise InvalidSetting("AGENT_DB_PATH and AGENT_DB_URL", "both are set and name different databases; unset one")
    if not path and not url:
        raise DatabaseNotConfigured
    if not url and re.match(r"\s*(?:postgres|sqlite)\w*(?:\+\w+)?:/", path, re.IGNORECASE):
        raise InvalidSetting("AGENT_DB_PATH", "it holds a URL and not a path: set AGENT_DB_URL instead")
    return url or os.path.abspath(path)  # a path, whatever it looks like


def configured_ages(policies: Collection[str], environ: Mapping[str, str] | None = None) -> dict[str, timedelta | None]:
    """Return how long rows are kept where the environment says so: by policy, None for `never` deleting any.

    `AGENT_KEEP_CONVERSATIONS` is for the policy `conversations`: 30d, 12h, 30m or 90s, or `never`. An empty variable
    counts as not set. Raises `InvalidSetting` for another value, and for a variable of a policy that there is not: a
    typing error in it would delete what somebody wanted to keep.
    """
    variables = os.environ if environ is None else environ
    ages: dict[str, timedelta | None] = {}
    for name, text in variables.items():
        if name.startswith(_KEEP) and text:
            policy = name.removeprefix(_KEEP).lower()
            if policy not in policies:
                known = ", ".join(f"{_KEEP}{policy.upper()}" for policy in policies)
                raise InvalidSetting(name, f"there is no such setting; there is {known}")
            ages[policy] = _age(name, text)
    return ages


def debug_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a person asked to see tracebacks at the command line (AGENTSTATE_DEBUG set to anything)."""
    return bool((os.environ if environ is None else environ).get("AGENTSTATE_DEBUG"))


def child_environment(without: Collection[str] = (), **extra: str) -> dict[str, str]:
    """Return the environment to hand on to a child process: this one's, less some variables, plus others."""
    return {name: value for name, value in os.environ.items() if name not in without} | extra


def _same_file(path: str, url: str) -> bool:
    for prefix in _SQLITE_URL_PREFIXES:
        if url.startswith(prefix):
            return os.path.realpath(unquote(url.removeprefix(prefix))) == os.path.realpath(path)
    return False


def _age(name: str, text: str) -> timedelta | None:
    if text.lower() == "never":
        return None
    found = re.fullmatch(r"([0-9]{1,9})([dhms])", text.lower(), re.ASCII)
    if found is None:
        raise InvalidSetting(name, f"{text!r} is no length of time: write 30d, 12h, 30m or 90s, or never")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    # SQLite counts milliseconds in 32 bits.
    if not 0 <= seconds <= 2_000_000:
        raise InvalidSetting(name, f"{text!r} is not a number of seconds between 0 and 2000000")
    return seconds


def _count(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000:
        raise InvalidSetting(name, f"{text!r} is not a number of connections between 1 and 1000")
    return int(text)


def _choice(variables: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str | None) -> str | None:
    text = variables.get(name, "")
    if not text:
        return default
    if text.lower() not in allowed:
        raise InvalidSetting(name, f"{text!r} is not one of {', '.join(allowed)}")
    return text.lower()
