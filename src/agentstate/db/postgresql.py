"""PostgreSQL: connections, what is said around a transaction, and the server's errors as ours.

psycopg 3 is loaded only here, when a URL of PostgreSQL is opened. The URL is handed to libpq as it is, so that
everything libpq understands works: several hosts, `target_session_attrs=read-write`, certificates, a service.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext

from agentstate.errors import (
    AgentStateError,
    ConstraintViolated,
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseUnavailable,
    InvalidValue,
    TooLarge,
)
from agentstate.settings import Settings

_URL = re.compile(r"^postgres(?:ql)?(?:\+psycopg)?://")
_SECRETS = ("password", "sslpassword")

CONNECT_TIMEOUT = 10
"""Seconds to wait for one host, unless the URL says `connect_timeout`; libpq itself would wait for ever."""


def without_password(url: str) -> str:
    """Return the URL as it may be shown: without a password, in whichever place it stood."""
    head, question, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    credentials, at, place = rest.rpartition("@")
    pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name not in _SECRETS]
    parameters = question + urlencode(pairs, safe=",:/") if pairs else ""
    return f"{scheme}://{credentials.partition(':')[0]}{at}{place}{parameters}"


def with_events(
    engine: Engine, url: str, settings: Settings, missing: Callable[[str], AgentStateError], writes_option: str
) -> Engine:
    """Return the engine, made to connect to the server or servers that the URL names, and to speak as units do.

    The engine asks a connection whether it is alive before using it, so that the first call after a restart works
    (PG-06); a new connection looks for the host that fits `target_session_attrs` anew, so that callers follow a
    promoted standby. `missing` makes the error for a table or column that is not there, `writes_option` is the
    execution option that says whether a transaction writes.
    """
    driver = _driver()
    name = without_password(url)
    conninfo = _URL.sub("postgresql://", url, count=1)
    try:
        given = driver.conninfo.conninfo_to_dict(conninfo)
    except driver.Error:
        raise InvalidValue("database", f"{name} cannot be read as a URL of PostgreSQL") from None
    defaults: dict[str, Any] = {"application_name": "agentstate", "connect_timeout": CONNECT_TIMEOUT}
    options = {key: value for key, value in defaults.items() if key not in given}
    if settings.pooler:
        # A transaction pooler hands the next transaction another server connection, which knows no statement of ours.
        options["prepare_threshold"] = None

    def connect(dialect: Any, record: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        return driver.connect(conninfo, **options, **parameters)

    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(writes_option, False)
        connection.exec_driver_sql(_opening(settings, writes=writes))

    def translate(context: ExceptionContext) -> BaseException | None:
        """Return our own error in place of the driver's; one of ours that a type raised comes out as it was."""
        original = context.original_exception
        if isinstance(original, AgentStateError):
            return original
        if not isinstance(original, driver.Error):
            return None
        if original.sqlstate == "25006":
            # The host has become a standby since we connected: the next call looks for the new primary.
            context.is_disconnect = True
        return translate_postgresql(original, name, settings, missing)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", begin)
    event.listen(engine, "handle_error", translate)
    return engine


def translate_postgresql(
    error: Any, database: str, settings: Settings, missing: Callable[[str], AgentStateError]
) -> AgentStateError:
    """Return our error for one of psycopg, told apart by SQLSTATE; the server's words are kept."""
    code = error.sqlstate or ""
    detail = " ".join(str(error).split())
    if code in ("55P03", "40P01", "40001"):  # lock not available, deadlock, serialization failure
        return DatabaseBusy(database, settings.busy_timeout)
    if code == "57014":  # statement timeout
        return DatabaseBusy(database, settings.statement_timeout)
    if code == "25006":
        return DatabaseReadOnly(database)
    if code in ("53100", "54P01"):
        return DatabaseFull(database)
    if code == "3D000":
        return DatabaseMissing(database)
    if code in ("42P01", "42703"):
        return missing(detail)
    if code in ("54000", "22001"):
        return TooLarge("value", "it is larger than the database can hold in one field or row")
    if code.startswith("23"):
        return ConstraintViolated(database, detail)
    if code.startswith("XX"):
        return DatabaseCorrupt(database, detail)
    return DatabaseUnavailable(database, detail)


def _opening(settings: Settings, *, writes: bool) -> str:
    """Return what is said first in a transaction; all of it ends with the transaction, for poolers' sake (PG-03)."""
    # A reading unit sees one snapshot, as on SQLite, and cannot write by construction.
    kind = "READ COMMITTED READ WRITE" if writes else "REPEATABLE READ READ ONLY"
    return (
        f"SET TRANSACTION ISOLATION LEVEL {kind}; "
        f"SET LOCAL lock_timeout = {round(settings.busy_timeout * 1000)}; "
        f"SET LOCAL statement_timeout = {round(settings.statement_timeout * 1000)}"
    )


def _driver() -> ModuleType:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        reason = "the driver is not installed: pip install 'agentstate-db[postgres]'"
        raise InvalidValue("database", f"a URL of PostgreSQL was given, and {reason}") from None
    return psycopg
