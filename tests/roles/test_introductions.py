"""Who has been greeted."""

from __future__ import annotations

from agentstate.db.database import Database
from agentstate.roles import views, workflows
from agentstate.roles.records import IntroductionRecord
from agentstate.roles.repositories import Introductions
from builders import LATER, NOON, an_introduction


def test_only_the_first_mark_is_true_and_its_time_stays(database: Database) -> None:
    """ID-04: the first contact never changes; when the mark was last asked for does."""
    with database.write(now=NOON) as work:
        first = Introductions(work).mark("worker", "alice@bot.example")
    with database.write(now=LATER) as work:
        second = Introductions(work).mark("worker", "Alice@Bot.Example/tablet")

    with database.read() as work:
        found = views.introductions(work)
    assert (first, second) == (True, False)
    assert found == [IntroductionRecord("worker", "alice@bot.example", NOON, LATER)]


def test_the_notice_stands_before_the_first_reply_only(database: Database) -> None:
    """ID-04: the notice is shown at least once, until the mark is set."""
    with database.write() as work:
        before = workflows.add_first_reply_notice(work, "worker", "a@b", "Hello", "I am a machine.")
        again = workflows.add_first_reply_notice(work, "worker", "a@b", "Hello", "I am a machine.")
        an_introduction(work, sender="a@b")
        after = workflows.add_first_reply_notice(work, "worker", "a@b/phone", "Hello", "I am a machine.")

    assert before == again == "I am a machine.\n\nHello"
    assert after == "Hello"


def test_a_forgotten_introduction_counts_as_first_contact_again(database: Database) -> None:
    """An operator can show the notice once more."""
    with database.write() as work:
        an_introduction(work)
        an_introduction(work, role="builder")

    with database.write() as work:
        answers = [Introductions(work).forget("worker", "alice@bot.example") for _ in range(2)]

    with database.write() as work:
        assert answers == [True, False]
        assert Introductions(work).exists("builder", "alice@bot.example")
        assert Introductions(work).mark("worker", "alice@bot.example")
