"""Which session a sender continues."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentstate.db.database import Database
from agentstate.errors import InvalidIdentifier, InvalidRole, InvalidValue
from agentstate.roles import views
from agentstate.roles.records import SessionRecord
from agentstate.roles.repositories import Introductions, RoleSessions
from builders import LATER, NOON, a_session, an_introduction
from naughty import NAUGHTY


def find(database: Database, role: str, sender: str) -> str | None:
    """Load a session in a unit of work of its own."""
    with database.read() as work:
        return RoleSessions(work).find(role, sender)


def test_a_saved_session_is_continued(database: Database) -> None:
    """The whole point: the next message goes on where the last one stopped."""
    with database.write() as work:
        a_session(work, session_id="s-1")

    assert find(database, "worker", "alice@bot.example") == "s-1"
    assert find(database, "worker", "bob@bot.example") is None


def test_saving_again_replaces_the_session_and_refreshes_its_time(database: Database) -> None:
    """One row per role and sender, with the time of the last save."""
    with database.write(now=NOON) as work:
        a_session(work, session_id="s-1")
    with database.write(now=LATER) as work:
        a_session(work, session_id="s-2")

    with database.read() as work:
        found = views.sessions(work)
    assert found == [SessionRecord("worker", "alice@bot.example", "s-2", LATER)]


def test_a_reset_deletes_the_session_and_keeps_the_introduction(database: Database) -> None:
    """/neu starts a new session, not a new acquaintance."""
    with database.write() as work:
        a_session(work)
        an_introduction(work)

    with database.write() as work:
        first, second = (RoleSessions(work).delete("worker", "alice@bot.example") for _ in range(2))

    assert (first, second) == (True, False)
    assert find(database, "worker", "alice@bot.example") is None
    with database.read() as work:
        assert Introductions(work).exists("worker", "alice@bot.example")


def test_worker_and_builder_never_share_a_row(database: Database) -> None:
    """ID-03: with one table for two roles, a reset in one leaked into the other."""
    with database.write() as work:
        a_session(work, role="worker", session_id="w")
        a_session(work, role="builder", session_id="b")
        an_introduction(work, role="builder")

    assert find(database, "worker", "alice@bot.example") == "w"
    assert find(database, "builder", "alice@bot.example") == "b"
    with database.write() as work:
        assert not Introductions(work).exists("worker", "alice@bot.example")
        assert RoleSessions(work).delete("worker", "alice@bot.example")
    assert find(database, "builder", "alice@bot.example") == "b"


def test_the_devices_of_one_person_continue_one_session(database: Database) -> None:
    """ID-01: every device started a session of its own."""
    with database.write() as work:
        a_session(work, sender="Alice@Bot.Example/phone", session_id="s-1")
        a_session(work, sender=" alice@bot.example ", session_id="s-2")
        a_session(work, sender="a@b/c@d", session_id="s-3")
        a_session(work, sender="Telegram:42", session_id="s-4")
        a_session(work, sender="telegram:42", session_id="s-5")

    with database.read() as work:
        found = {row.sender: row.session_id for row in views.sessions(work)}
    assert found == {"alice@bot.example": "s-2", "a@b": "s-3", "Telegram:42": "s-4", "telegram:42": "s-5"}


def test_sessions_are_listed_by_recency_and_then_by_name(database: Database) -> None:
    """TM-06: the order never depends on a time alone."""
    with database.write(now=NOON) as work:
        for sender in ("c", "a", "b"):
            a_session(work, sender=sender)
    with database.write(now=NOON + timedelta(milliseconds=1)) as work:
        a_session(work, sender="newest")

    with database.read() as work:
        order = [row.sender for row in RoleSessions(work).list_by_recency()]
    assert order == ["newest", "a", "b", "c"]


def test_every_storable_name_is_its_own_sender(database: Database) -> None:
    """VA-12: names were cut, folded or merged; NFC and NFD forms stay distinct."""
    senders = [name for name in NAUGHTY if "@" not in name and name == name.strip()]
    with database.write() as work:
        for number, sender in enumerate(senders):
            a_session(work, sender=sender, session_id=str(number))

    with database.read() as work:
        found = [RoleSessions(work).find("worker", sender) for sender in senders]
    assert found == [str(number) for number in range(len(senders))]


@pytest.mark.parametrize(
    ("role", "sender", "session_id", "kind", "field"),
    [
        ("Worker", "a", "s", InvalidRole, "role"),
        ("worker", " ", "s", InvalidIdentifier, "sender"),
        ("worker", "a\0", "s", InvalidIdentifier, "sender"),
        ("worker", "x" * 513, "s", InvalidIdentifier, "sender"),
        ("worker", "a", "", InvalidValue, "session_id"),
        ("worker", "a", "s\ud83d", InvalidValue, "session_id"),
        ("worker", "a", 7, InvalidValue, "session_id"),
    ],
)
def test_a_refused_value_is_named_and_the_next_call_works(
    database: Database, role: str, sender: str, session_id: str, kind: type[InvalidValue], field: str
) -> None:
    """VA-01, VA-09, CN-04: bad input never came back as a driver's error that stranded the handle."""
    with pytest.raises(kind) as caught, database.write() as work:
        RoleSessions(work).save(role, sender, session_id)

    assert caught.value.field == field
    with database.write() as work:
        a_session(work)
    with database.read() as work:
        assert len(views.sessions(work)) == 1
