"""`agentstate sessions` and `agentstate introductions`: who continues what, and who has been greeted."""

from __future__ import annotations

import click

from agentstate.cli import exits
from agentstate.cli.output import WithDefault, database_option, json_option, print_json, print_rows, say, target
from agentstate.db.database import Database
from agentstate.identity import normalise_sender
from agentstate.roles import views
from agentstate.roles.repositories import Introductions, RoleSessions


@click.group(cls=WithDefault)
def sessions() -> None:
    """List which provider session each sender continues, or reset one."""


@sessions.command("list")
@database_option
@json_option
def list_sessions(database: str | None, as_json: bool) -> None:
    """List the sessions, the one saved last first."""
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        found = views.sessions(work)
    if as_json:
        print_json(found)
        return
    rows = [(row.role, row.sender, row.session_id, row.updated_at) for row in found]
    print_rows(("Role", "Sender", "Session", "Saved"), rows, empty="no sessions")


@sessions.command("reset")
@click.argument("role")
@click.argument("sender")
@database_option
def reset_session(role: str, sender: str, database: str | None) -> int:
    """Forget the session of SENDER with ROLE, as /neu does; the introduction stays. Exit 1 if there was none."""
    with Database.open(target(database)) as opened, opened.write() as work:
        done = RoleSessions(work).delete(role, sender)
    return _answer(
        done, f"{role} has no session with {normalise_sender(sender)}", "the next message starts a new session"
    )


@click.group(cls=WithDefault)
def introductions() -> None:
    """List whom each role has greeted, or forget one."""


@introductions.command("list")
@database_option
@json_option
def list_introductions(database: str | None, as_json: bool) -> None:
    """List the introductions, the newest first contact first."""
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        found = views.introductions(work)
    if as_json:
        print_json(found)
        return
    rows = [(row.role, row.sender, row.introduced_at, row.updated_at) for row in found]
    print_rows(("Role", "Sender", "First contact", "Last mark"), rows, empty="no introductions")


@introductions.command("forget")
@click.argument("role")
@click.argument("sender")
@database_option
def forget_introduction(role: str, sender: str, database: str | None) -> int:
    """Forget that ROLE greeted SENDER, so that the next contact shows the notice again. Exit 1 if it had not."""
    with Database.open(target(database)) as opened, opened.write() as work:
        done = Introductions(work).forget(role, sender)
    return _answer(done, f"{role} has not greeted {normalise_sender(sender)}", "the next contact counts as the first")


def _answer(done: bool, no: str, yes: str) -> int:
    say(yes if done else f"agentstate: {no}", err=not done)
    return 0 if done else exits.NO
