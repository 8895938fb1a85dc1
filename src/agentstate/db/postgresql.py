"""PostgreSQL: connections, what is said around a transaction, and the server's errors as ours.

psycopg 3 is loaded only here, when a URL of PostgreSQL is opened. The URL is handed to libpq as it is, so that
everything libpq understands works: several hosts, `target_session_attrs=read-write`, certificates, a service.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from math import ceil
from types import ModuleType
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext

from agentstate.db import forks
from agentstate.db.engine import SCHEMA, WRITES
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
    UnreadableValue,
)
from agentstate.settings import Settings

_URL = re.compile(r"^postgres(?:ql)?(?:\+psycopg)?://")
_MISSING = re.compile(r'database ".*" does not exist', re.DOTALL)
_NO_DATETIME = re.compile(r"timestamp too (large|small)|can't parse timestamp")
_PORT = re.compile(r"(^|\]|^[^:\[\]]+)(:\d*)?$")
_FAILURE = "agentstate_failure"

SCHEMA_LOCK = 0x6167656E74
"""The advisory lock ("agent") that a change of the schema holds alone, and that units share: without it, an upgrade and
a unit that want two tables in different orders would wait for each other (PG-02). It ends with the transaction, so that
it also works behind a pooler (PG-03)."""

CONNECT_TIMEOUT = 10
"""Seconds to wait for one host, unless the URL says `connect_timeout`; libpq itself would wait for ever."""


def without_password(url: str) -> str:
    """Return the URL as it may be shown: without a password, in whichever place it stood.

    Raises `InvalidValue` where it cannot be told what belongs to the password: libpq would take the end of
    `p@ss` for the host, and name it in its messages (MG-06).
    """
    scheme, _, rest = url.partition("://")
    # As libpq looks for it: what stands before the first @ is user and password, unless a / comes first.
    end = re.search("[@/]", rest)
    credentials, at, place = rest.partition("@") if end and end[0] == "@" else ("", "", rest)
    if "@" in place:
        raise InvalidValue(
            "database",
            "in a URL of PostgreSQL, user and password are percent-encoded (@ is %40, / is %2F, ? is %3F, % is %25), "
            "and so is every other @",
        )
    place, question, query = place.partition("?")
    if any(not _PORT.search(host) for host in place.partition("/")[0].split(",")):
        raise InvalidValue("database", "in a URL of PostgreSQL, what follows a host and : is its port, a number")
    pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if not _is_secret(name)]
    parameters = question + urlencode(pairs, safe=",:/") if pairs else ""
    return f"{scheme}://{credentials.partition(':')[0]}{at}{place}{parameters}"


def dump_command(url: str, file: str) -> str:
    """Return the shell command, without a password, that backs the database up to a file of its owner alone."""
    return f"(umask 077; pg_dump --format=custom --file={shlex.quote(file)} --dbname={_address(url)})"


def restore_command(url: str, file: str) -> str:
    """Return the shell command, without a password, that restores such a backup, all of it or nothing."""
    options = "--clean --if-exists --no-owner --single-transaction"
    return f"pg_restore {options} --dbname={_address(url)} {shlex.quote(file)}"


def _address(url: str) -> str:
    return shlex.quote(_URL.sub("postgresql://", without_password(url), count=1))


def with_events(engine: Engine, url: str, settings: Settings, missing: Callable[[str], AgentStateError]) -> Engine:
    """Return the engine, made to connect to the server or servers that the URL names, and to speak as units do.

    The engine asks a connection whether it is alive before using it, so that the first call after a restart works
    (PG-06); a new connection looks for the host that fits `target_session_attrs` anew, so that callers follow a
    promoted standby. `missing` makes the error for a table or column that is not there.
    """
    driver = load_driver()
    name = without_password(url)
    owner = os.getpid()
    conninfo = _URL.sub("postgresql://", url, count=1)
    try:
        given = driver.conninfo.conninfo_to_dict(conninfo)
    except driver.Error:
        raise InvalidValue("database", f"{name} cannot be read as a URL of PostgreSQL") from None
    # UTF-8 whatever the server or PGCLIENTENCODING says: texts come as texts from a database of encoding SQL_ASCII too.
    defaults: dict[str, Any] = {
        "application_name": "agentstate",
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_TIMEOUT,
    }
    options = {key: value for key, value in defaults.items() if key not in given}
    if settings.pooler:
        # A transaction pooler hands the next transaction another server connection, which knows no statement of ours.
        options["prepare_threshold"] = None

    def connect(dialect: Any, record: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        connection = driver.connect(conninfo, **options, **parameters)
        forks.cut_off_in_children(connection)
        return connection

    def begin(connection: Connection) -> None:
        connection.info.pop(_FAILURE, None)
        connection.exec_driver_sql(_opening(settings, connection.get_execution_options()))

    def commit(connection: Connection) -> None:
        """Raise what went wrong before instead: the server answers COMMIT after a failure with a silent rollback."""
        found: Any = connection.connection.driver_connection
        if found.info.transaction_status == driver.pq.TransactionStatus.INERROR:
            raise connection.info.get(_FAILURE) or DatabaseUnavailable(name, "an earlier statement of this unit failed")

    def translate(context: ExceptionContext) -> BaseException | None:
        """Return our own error in place of the driver's; one of ours that a type raised comes out as it was."""
        original = context.original_exception
        if isinstance(original, AgentStateError):
            return original
        if not isinstance(original, driver.Error) or context.is_pre_ping:
            return None  # the pool asked whether the connection is alive, and connects anew if it is not
        if os.getpid() != owner:
            return forks.refusal(name)
        ours = translate_postgresql(original, name, settings, missing)
        connection = context.connection
        if connection is None:
            return ours
        if original.sqlstate == "25P02":  # the transaction is over: what matters is why
            return cast(AgentStateError, connection.info.get(_FAILURE, ours))
        if original.sqlstate == "25006" and connection.get_execution_options().get(WRITES, False):
            # The host has become a standby since we connected: the next call looks for the new primary.
            context.is_disconnect = True
        if not context.is_disconnect:
            connection.info[_FAILURE] = ours
        return ours

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", begin)
    event.listen(engine, "commit", commit)
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
    if code in ("53100", "53400"):
        return DatabaseFull(database)
    if code == "3D000" or (not code and _MISSING.search(detail)):  # a refused connection has words and no code
        return DatabaseMissing(database)
    if code in ("42P01", "42703"):
        return missing(detail)
    if code in ("22021", "22P05"):
        return InvalidValue("value", f"the database's encoding cannot hold it ({detail}); use one of encoding UTF8")
    if code in ("54000", "22001"):
        return TooLarge("value", "it is larger than the database can hold in one field or row")
    if code.startswith("23"):
        return ConstraintViolated(database, detail)
    if code in ("XX001", "XX002"):
        return DatabaseCorrupt(database, detail)
    if not code and _NO_DATETIME.match(detail):  # psycopg's own words: `infinity`, or a year that Python does not have
        return UnreadableValue(database, "(an instant)", detail)
    return DatabaseUnavailable(database, detail)


def _opening(settings: Settings, options: Mapping[str, Any]) -> str:
    """Return what is said first in a transaction; all of it ends with the transaction, for poolers' sake (PG-03)."""
    # A reading unit sees one snapshot, as on SQLite, and cannot write by construction. A writing one does not insist on
    # READ WRITE: a role that may only read, and a standby, answer its first statement that writes.
    kind = "READ COMMITTED" if options.get(WRITES, False) else "REPEATABLE READ READ ONLY"
    lock = {"use": "pg_advisory_xact_lock_shared", "change": "pg_advisory_xact_lock"}.get(options.get(SCHEMA) or "")
    return (
        f"SET TRANSACTION ISOLATION LEVEL {kind}; "
        # To the server, 0 is no timeout at all.
        f"SET LOCAL lock_timeout = {ceil(settings.busy_timeout * 1000) or 1}; "
        f"SET LOCAL statement_timeout = {ceil(settings.statement_timeout * 1000)}; "
        # psycopg reads instants in this form alone, whatever the database's own setting.
        "SET LOCAL datestyle = ISO"
    ) + (f"; SELECT {lock}({SCHEMA_LOCK})" if lock else "")


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in ("passw", "secret"))


def load_driver() -> ModuleType:
    """Import psycopg; raises `InvalidValue` that says what to install if it is not there."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        reason = "the driver is not installed: pip install 'agentstate-db[postgres]'"
        raise InvalidValue("database", f"a URL of PostgreSQL was given, and {reason}") from None
    return psycopg
