"""The doctor: looks at a database and everything around it, changes nothing, and says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from agentstate.approvals import checks as approvals
from agentstate.conversations import checks as conversations
from agentstate.db import files, state, targets
from agentstate.db.database import Database
from agentstate.db.health import engines, log, rows, surroundings
from agentstate.db.health.findings import Finding, of_error, worst_first
from agentstate.db.health.looking import Look, look
from agentstate.errors import AgentStateError, DatabaseCorrupt, DatabaseNotConfigured, ForeignDatabase, InvalidSetting
from agentstate.metadata import metadata
from agentstate.retention import POLICIES
from agentstate.settings import Settings, configured_ages, configured_target, read_settings

_PROBLEMS: dict[str, rows.Problem] = {"turns": conversations.turn_problem}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, worst first, and which checks were made: what is not in `checked` was not looked at.

    `database` is its path, or its URL without the password; empty when none could be named. `error` says why the
    database cannot be used at all: it is damaged, another program's, or cannot be opened.
    """

    database: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    error: AgentStateError | None


def examine(target: str | None = None, *, now: datetime | None = None) -> Report:
    """Look at the database at `target` (a path or URL; None: the configured one) and return what was found.

    Nothing is changed: no byte of the database or beside it, no file is made, and no lock of this process is dropped
    (FS-11). Every row is read, and on SQLite every page; that keeps writers waiting in the journal modes other than
    WAL. In a process that uses the database itself, keep its `Database` open meanwhile: while this reads what a killed
    process left, SQLite would let a new one only read. Ages are counted from `now` (aware; None: the current time).

    Raises nothing of ours: what is wrong with the settings, or with the database as a whole, is a finding too.
    """
    found = _Found()
    settings = _settings(found)
    name = ""
    try:
        wanted = _target(found, target)
        if targets.is_server(wanted):
            from agentstate.db.postgresql import without_password  # only whoever has a server loads what knows it

            name = without_password(wanted)
        else:
            name = files.resolve(targets.file_path(wanted))
            _around(found, name)
        inside = look(wanted, settings, lambda seen: _inside(seen, settings, now))
    except AgentStateError as error:
        found.findings.append(of_error("open" if name else "settings", error))
        return Report(name, worst_first(found.findings), tuple(found.checked), error)
    found.findings += inside.findings
    found.checked += ["open", *inside.checked]
    if "approvals" in inside.checked:
        found.check("stashes", lambda: approvals.lost_stashes(inside.stashes))
    return Report(name, worst_first(found.findings), tuple(found.checked), inside.error)


@dataclass(slots=True)
class _Found:
    """What was found so far."""

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    error: AgentStateError | None = None
    stashes: list[approvals.WaitingStash] = field(default_factory=list)

    def check(self, name: str, question: Callable[[], Iterable[Finding]]) -> None:
        """Add what the question finds; one that cannot be answered is a finding too, and the others go on."""
        try:
            self.findings += question()
            self.checked.append(name)
        except DatabaseCorrupt as error:
            if not isinstance(self.error, DatabaseCorrupt):  # one damage is in the way of many questions
                self.findings.append(of_error(name, error))
                self.error = error
        except AgentStateError as error:
            self.findings.append(of_error(name, error))
            if isinstance(error, ForeignDatabase):
                self.error = error

    def ask(self, database: Database, name: str, question: Callable[[Connection], Iterable[Finding]]) -> None:
        """Ask the database, in a transaction of its own: on a server, one in which a statement failed is over."""

        def answer() -> list[Finding]:
            with database.connect() as connection:
                return list(question(connection))

        self.check(name, answer)


def _settings(found: _Found) -> Settings:
    """Return the settings, or the defaults in place of what cannot be understood."""
    found.checked.append("settings")
    try:
        configured_ages([policy.name for policy in POLICIES])
    except InvalidSetting as error:
        found.findings.append(of_error("settings", error))
    try:
        return read_settings()
    except InvalidSetting as error:
        found.findings.append(of_error("settings", error))
        return Settings()


def _target(found: _Found, target: str | None) -> str:
    """Return what to look at; what the environment says about the database is judged although another one is named."""
    if target is None:
        return configured_target()
    try:
        configured_target()
    except DatabaseNotConfigured:
        pass
    except InvalidSetting as error:
        found.findings.append(of_error("settings", error))
    return target


def _around(found: _Found, path: str) -> None:
    """Look at the file from outside, if there is one."""
    files.check(path, "ro")
    for name, question in surroundings.CHECKS.items():
        found.check(name, partial(question, path))


def _inside(seen: Look, settings: Settings, now: datetime | None) -> _Found:
    """Ask the open database."""
    found = _Found()
    database, path = seen.database, seen.database.path
    schema = engines.Schema(None, {}, ())

    def look_at_schema(connection: Connection) -> Iterable[Finding]:
        nonlocal schema
        schema = engines.schema(database, connection, metadata)
        return schema.findings

    found.ask(database, "schema", look_at_schema)
    if isinstance(found.error, ForeignDatabase):
        return found  # what else is there is not ours to judge
    if path is None:
        found.ask(database, "server", engines.server)
    else:
        _inside_file(found, seen, path, settings)
    if schema.revision in state.REVISIONS:  # otherwise nobody here knows what its rows should be
        found.ask(database, "orphans", lambda connection: rows.orphans(connection, metadata, schema.columns))
        found.ask(database, "rows", lambda connection: rows.wrong(connection, metadata, schema.columns, _PROBLEMS))
        _inside_areas(found, database, schema.columns.keys(), now)
    return found


def _inside_file(found: _Found, seen: Look, path: str, settings: Settings) -> None:
    def journal_mode(connection: Connection) -> list[Finding]:
        return engines.unwanted_mode(seen.journal_mode(connection), path, settings)

    def file_system(connection: Connection) -> list[Finding]:
        return surroundings.file_system(path, seen.journal_mode(connection))

    found.ask(seen.database, "integrity", lambda connection: engines.integrity(connection, path))
    found.ask(seen.database, "journal mode", journal_mode)
    found.ask(seen.database, "file system", file_system)
    found.ask(seen.database, "log", lambda connection: log.log_size(path, engines.page_size(connection)))
    found.ask(seen.database, "space", engines.space)


def _inside_areas(found: _Found, database: Database, tables: Collection[str], now: datetime | None) -> None:
    def branches_and_seqs() -> list[Finding]:
        with database.read(now=now) as work:
            return [*conversations.branches_without_parent(work), *conversations.seqs_used_up(work)]

    def decisions() -> list[Finding]:
        with database.read(now=now) as work:
            found.stashes = approvals.waiting_stashes(work)
            return approvals.unfinished_decisions(work)

    if {"conversations", "turns"} <= {*tables}:
        found.check("conversations", branches_and_seqs)
    if {"start_pending", "pending_approval", "pending_approval_repo"} <= {*tables}:
        found.check("approvals", decisions)
