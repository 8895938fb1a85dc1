"""Several who write to one conversation: two instances with their caches, and turns that go past them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from agentstate.conversations import history
from agentstate.conversations.legacy import LegacySessions
from agentstate.conversations.models import TurnKind
from agentstate.conversations.records import Message
from agentstate.conversations.workflows import append, create, delete_conversation
from agentstate.db.database import Database
from agentstate.errors import ConversationChanged, InvalidValue
from builders import MAIN, NOON, a_conversation, a_turn, finished, python, said
from conversation_helpers import Injected, everything, failing_commit, statements, texts

REPORT: Message = {"role": "user", "content": "JWT is enough.", "x_vendor": [1, {"n": None}]}

OTHER_PROCESS = """
import sys
from agentstate.conversations.legacy import LegacySessions
from agentstate.db.database import Database
with Database.open(sys.argv[1]) as database:
    sessions = LegacySessions(database)
    for number in range(20):
        sessions.add_message("agent:ada:main", "user", f"{sys.argv[2]}-{number}")
        sessions.save("agent:ada:main")
    print(len(sessions.get_history("agent:ada:main")))
"""


def contents(found: list[Message]) -> list[Any]:
    """Return what the messages say."""
    return [message["content"] for message in found]


def append_directly(sessions: LegacySessions, *messages: Message, key: str = MAIN) -> None:
    """Store a report as the original's conductor does, past the cache."""
    with sessions.graph().begin_turn(key, TurnKind.REPORT) as turn:
        turn.set_origin("subagent:scout-1")
        for message in messages:
            turn.add(message)


@pytest.fixture
def two(database: Database) -> tuple[LegacySessions, LegacySessions]:
    """Two instances that have both seen one conversation of one message."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=1)
    found = LegacySessions(database), LegacySessions(database)
    for sessions in found:
        assert contents(sessions.get_history(MAIN)) == ["1"]
    return found


# --- two instances ---------------------------------------------------------------------------------------------------


def test_what_both_append_is_kept(two: tuple[LegacySessions, LegacySessions], database: Database) -> None:
    """LK-04: the last save rewrote the whole history; here each adds a turn, and sees the other's by itself."""
    a, b = two
    a.add_message(MAIN, "user", "a1")
    b.add_message(MAIN, "user", "b1")

    a.save(MAIN)
    seen = contents(b.get_history(MAIN))
    b.save(MAIN)

    assert seen == ["1", "a1", "b1"]
    assert contents(a.get_history(MAIN)) == contents(b.get_history(MAIN)) == texts(database, MAIN) == ["1", "a1", "b1"]


def test_two_processes_append_without_losing_one(file_database: Database) -> None:
    """LK-04: the same with real processes, each with a cache of its own."""
    with file_database.write(now=NOON) as work:
        a_conversation(work)

    writers = [python(OTHER_PROCESS, str(file_database.path), name) for name in ("a", "b")]
    seen = [int(finished(writer)) for writer in writers]

    expected = {f"{name}-{number}" for name in ("a", "b") for number in range(20)}
    found = texts(file_database, MAIN)
    assert (len(found), set(found)) == (40, expected)
    assert max(seen) == 40


def test_a_stale_replacement_conflicts_and_changes_nothing(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """LK-04: the caller decides about a list that it has not seen whole; `reload` shows it what is there."""
    a, b = two
    a.add_message(MAIN, "user", "a1")
    a.save(MAIN)
    b.set_history(MAIN, [said("instead")])
    b.add_message(MAIN, "user", "b1")
    before = everything(database)

    for _ in range(2):
        with pytest.raises(ConversationChanged) as caught:
            b.save(MAIN)
    after, kept = everything(database), contents(b.get_history(MAIN))
    b.reload(MAIN)

    assert (caught.value.key, caught.value.expected, caught.value.actual) == (MAIN, 2, 3)
    assert after == before
    assert kept == ["instead", "b1"]
    assert contents(b.get_history(MAIN)) == ["1", "a1"]


def test_a_replacement_does_not_hide_what_came_between_ones_own_saves(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """LK-04: saving does not mean having read what others saved a moment before."""
    a, b = two
    a.add_message(MAIN, "user", "a1")
    a.save(MAIN)
    b.add_message(MAIN, "user", "b1")
    b.save(MAIN)

    b.set_history(MAIN, [said("1"), said("b1")])
    with pytest.raises(ConversationChanged):
        b.save(MAIN)

    assert texts(database, MAIN) == ["1", "a1", "b1"]


@pytest.mark.parametrize("landed", [False, True])
def test_a_replacement_of_unknown_fate_hides_nothing_of_others(
    two: tuple[LegacySessions, LegacySessions], database: Database, landed: bool
) -> None:
    """LK-04, LK-09: looking at the list meanwhile does not make a replacement right that was made without it."""
    a, b = two
    a.set_history(MAIN, [said("new")])
    with failing_commit(database, stored=landed), pytest.raises(Injected):
        a.save(MAIN)
    b.add_message(MAIN, "user", "b1")
    b.save(MAIN)
    seen = contents(a.get_history(MAIN))

    if landed:
        a.save(MAIN)
    else:
        with pytest.raises(ConversationChanged):
            a.save(MAIN)

    assert seen == ["new"]
    assert texts(database, MAIN) == (["new", "b1"] if landed else ["1", "b1"])


def test_reading_anew_makes_a_replacement_right(two: tuple[LegacySessions, LegacySessions], database: Database) -> None:
    """LK-04: what was read may be replaced; and what is replaced by one is gone from the other's list."""
    a, b = two
    a.add_message(MAIN, "user", "a1")
    a.save(MAIN)

    b.set_history(MAIN, b.get_history(MAIN)[1:])
    b.save(MAIN)

    assert contents(a.get_history(MAIN)) == texts(database, MAIN) == ["a1"]


def test_truncating_decides_about_all_that_is_there(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """LK-04: it reads first, so that what others appended counts among the last n, and is not a conflict."""
    a, b = two
    a.add_message(MAIN, "user", "a1")
    a.save(MAIN)
    b.add_message(MAIN, "user", "b1")

    b.truncate_history(MAIN, 2)
    b.save(MAIN)

    assert texts(database, MAIN) == ["a1", "b1"]


def test_what_others_append_costs_one_statement(two: tuple[LegacySessions, LegacySessions], database: Database) -> None:
    """Section 11: turns of others appear by themselves, without the whole history being read again."""
    a, b = two
    a.add_message(MAIN, "user", "a1")
    a.save(MAIN)

    with statements(database) as log:
        seen = contents(b.get_history(MAIN))

    assert seen == ["1", "a1"]
    assert len(log) == 1


# --- turns that go past the cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before the append", "before the note", "after the note", "never"])
def test_what_was_appended_directly_occurs_once(database: Database, order: str) -> None:
    """Section 11: the original wrote such a message again, or cut another one off, by the order of the calls."""
    for unsaved, cached in product((False, True), repeat=2):
        key = f"{unsaved=} {cached=}"
        with database.write(now=NOON) as work:
            a_conversation(work, key, turns=2)
        sessions = LegacySessions(database)
        if cached:
            sessions.get_history(key)
        if unsaved:
            sessions.add_message(key, "user", "unsaved")

        if order == "before the append":
            sessions.add_full_message(key, REPORT)
        append_directly(sessions, REPORT, key=key)
        if order == "before the note":
            sessions.add_full_message(key, REPORT)
        sessions.advance_stored(key, 1)
        if order == "after the note":
            sessions.add_full_message(key, REPORT)
        seen = sessions.get_history(key)
        sessions.save(key)

        expected = [said("1"), said("2"), REPORT, *[said("unsaved")] * unsaved]
        assert seen == expected
        assert sessions.get_history(key) == LegacySessions(database).get_history(key) == expected


def test_report_and_answer_are_two_messages_of_one_turn(database: Database) -> None:
    """Section 13: n counts messages; one of them may be added before, and the other later."""
    sessions = LegacySessions(database)
    sessions.add_message(MAIN, "user", "ask scout-1")
    sessions.add_full_message(MAIN, REPORT)

    append_directly(sessions, REPORT, said("Then we use it.", "assistant"))
    sessions.advance_stored(MAIN, 2)
    sessions.add_message(MAIN, "assistant", "Then we use it.")
    sessions.save(MAIN)

    assert contents(sessions.get_history(MAIN)) == ["JWT is enough.", "Then we use it.", "ask scout-1"]


def test_more_than_was_appended_directly_is_refused_and_nothing_is_claimed_twice(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """Section 11: a wrong number would swallow a message later; what this instance saved itself is no direct append."""
    sessions = LegacySessions(database)
    sessions.add_message(MAIN, "user", "own")
    sessions.save(MAIN)
    append_directly(sessions, REPORT)
    sessions.advance_stored(MAIN, 1)
    sessions.advance_stored(MAIN, 0)

    with pytest.raises(InvalidValue, match=r"n\b.*2 messages"):
        sessions.advance_stored(MAIN, 2)
    sessions.advance_stored(MAIN, 1)
    with pytest.raises(InvalidValue):
        sessions.advance_stored(MAIN, 1)
    with pytest.raises(InvalidValue):
        sessions.advance_stored("unknown", 1)

    assert contents(sessions.get_history(MAIN)) == ["1", "own", "JWT is enough."]


def test_the_same_words_later_are_another_message(two: tuple[LegacySessions, LegacySessions]) -> None:
    """SE-11: a message that was noted and never added must not swallow the user's next "yes" for ever."""
    a, _ = two
    append_directly(a, said("yes"))
    a.advance_stored(MAIN, 1)
    a.add_message(MAIN, "user", "something else")
    a.save(MAIN)

    a.add_message(MAIN, "user", "yes")
    a.save(MAIN)

    assert contents(a.get_history(MAIN)) == ["1", "yes", "something else", "yes"]


def test_a_noted_message_is_awaited_once(two: tuple[LegacySessions, LegacySessions]) -> None:
    """SE-11: the first equal message is the stored one, the second is the user's own."""
    a, _ = two
    append_directly(a, said("yes"))
    a.advance_stored(MAIN, 1)

    a.add_message(MAIN, "user", "yes")
    a.add_message(MAIN, "user", "yes")

    assert contents(a.get_history(MAIN)) == ["1", "yes", "yes"]


def test_a_replacement_awaits_nothing(two: tuple[LegacySessions, LegacySessions], database: Database) -> None:
    """LK-04: it hides the noted message, so that an equal one added afterwards is all there is of it."""
    a, _ = two
    append_directly(a, REPORT)
    a.advance_stored(MAIN, 1)

    a.set_history(MAIN, [said("new")])
    a.add_full_message(MAIN, REPORT)
    a.save(MAIN)

    assert texts(database, MAIN) == ["new", "JWT is enough."]


def test_ones_own_turn_behind_anothers_is_no_direct_append(two: tuple[LegacySessions, LegacySessions]) -> None:
    """Section 11: only what others wrote can be noted, whichever order the turns got."""
    a, b = two
    b.add_message(MAIN, "user", "b1")
    b.save(MAIN)
    a.add_message(MAIN, "user", "a1")
    a.save(MAIN)

    with pytest.raises(InvalidValue):
        a.advance_stored(MAIN, 3)
    a.advance_stored(MAIN, 2)

    assert contents(a.get_history(MAIN)) == ["1", "b1", "a1"]


def test_only_one_of_two_equal_unsaved_messages_is_the_stored_one(two: tuple[LegacySessions, LegacySessions]) -> None:
    """SE-11: the newest; an equal one that the user said before is the user's own."""
    a, _ = two
    for text in ("yes", "and", "yes"):
        a.add_message(MAIN, "user", text)

    append_directly(a, said("yes"))
    a.advance_stored(MAIN, 1)

    assert contents(a.get_history(MAIN)) == ["1", "yes", "yes", "and"]


def test_an_append_past_an_unsaved_replacement_is_a_conflict(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """LK-04: the replacement was made before the report; storing it would hide the report."""
    a, _ = two
    a.set_history(MAIN, [said("new")])
    append_directly(a, REPORT)

    with pytest.raises(ConversationChanged):
        a.advance_stored(MAIN, 1)

    assert texts(database, MAIN) == ["1", "JWT is enough."]
    assert contents(a.get_history(MAIN)) == ["new"]


def test_a_replacement_is_saved_before_what_it_replaced_is_counted(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """LK-04: a report that the caller had read is replaced with the rest, and a later equal one is not swallowed."""
    a, _ = two
    append_directly(a, REPORT)
    a.set_history(MAIN, [*a.get_history(MAIN), said("new")])
    a.advance_stored(MAIN, 0)
    before = texts(database, MAIN)

    a.advance_stored(MAIN, 1)
    a.add_full_message(MAIN, REPORT)
    a.save(MAIN)

    assert before == ["1", "JWT is enough."]
    assert texts(database, MAIN) == ["1", "JWT is enough.", "new", "JWT is enough."]


def test_a_compaction_in_between_loses_no_count(two: tuple[LegacySessions, LegacySessions], database: Database) -> None:
    """Section 11: what was claimed stays claimed, and what can still be is what is still there."""
    a, _ = two
    append_directly(a, said("first"))
    a.advance_stored(MAIN, 1)
    append_directly(a, said("second"))
    append_directly(a, said("third"))

    with database.write(now=NOON) as work:
        history.compact(work, MAIN, 1, "what was")
    a.advance_stored(MAIN, 2)

    assert contents(a.get_history(MAIN)) == ["first", "second", "third"]
    with pytest.raises(InvalidValue):
        a.advance_stored(MAIN, 1)


def test_an_unsaved_message_stays_when_others_append_the_same_words(
    two: tuple[LegacySessions, LegacySessions], database: Database
) -> None:
    """SE-11: only `advance_stored` says that two equal messages are one."""
    a, b = two
    a.add_message(MAIN, "user", "yes")
    b.add_message(MAIN, "user", "yes")
    b.save(MAIN)
    with database.write(now=NOON) as work:
        a_turn(work, text="yes")

    a.save(MAIN)

    assert texts(database, MAIN) == ["1", "yes", "yes", "yes"]


# --- any order of all of it ------------------------------------------------------------------------------------------


class Together(RuleBasedStateMachine):
    """Two instances and direct appends in any order; every message is unique, so that it can be counted.

    A turn's id tells that it is stored already until the turn is compacted away (section 4). So nobody replaces the
    history while the other does not know whether its last turn is in it.
    """

    def __init__(self) -> None:
        """Begin with an empty conversation."""
        super().__init__()
        self.database = Database.memory()
        with self.database.write(now=NOON) as work:
            a_conversation(work)
        self.sessions = [LegacySessions(self.database), LegacySessions(self.database)]
        self.unsaved: list[list[str]] = [[], []]
        self.replaced = [False, False]
        self.uncertain = [False, False]
        self.stored: set[str] = set()
        self.number = 0

    def teardown(self) -> None:
        """Save everything; nothing may be missing or there twice."""
        for which in range(2):
            self.save(which)
        found = texts(self.database, MAIN)
        assert len(found) == len(set(found))
        assert self.stored == set(found)
        self.database.close()

    def text(self) -> str:
        self.number += 1
        return str(self.number)

    @rule(which=st.integers(0, 1))
    def add(self, which: int) -> None:
        """Add a message."""
        text = self.text()
        self.sessions[which].add_message(MAIN, "user", text)
        self.unsaved[which].append(text)

    @rule(which=st.integers(0, 1))
    def save(self, which: int) -> None:
        """Save; a stale replacement is given up."""
        try:
            self.sessions[which].save(MAIN)
            self.stored |= set(self.unsaved[which])
        except ConversationChanged:
            assert self.replaced[which]
            self.sessions[which].reload(MAIN)
            self.stored = {str(text) for text in texts(self.database, MAIN)}
        self.unsaved[which], self.replaced[which], self.uncertain[which] = [], False, False

    @rule(which=st.integers(0, 1), landed=st.booleans())
    def save_with_a_fault(self, which: int, landed: bool) -> None:
        """Save with a COMMIT that fails, or that is done and fails then; what is unsaved stays so."""
        if self.replaced[1 - which]:
            return
        before = {str(text) for text in texts(self.database, MAIN)}
        with failing_commit(self.database, stored=landed):
            try:
                self.sessions[which].save(MAIN)  # an earlier try may have been met meanwhile: nothing is left to save
                self.stored |= set(self.unsaved[which])
                self.unsaved[which], self.replaced[which], self.uncertain[which] = [], False, False
            except Injected:
                self.uncertain[which] = True
            except ConversationChanged:
                assert self.replaced[which]
        assert before <= {str(text) for text in texts(self.database, MAIN)}

    @rule(which=st.integers(0, 1))
    def rewrite(self, which: int) -> None:
        """Put a list with the same messages in place of all."""
        if self.uncertain[1 - which]:
            return
        self.sessions[which].set_history(MAIN, self.sessions[which].get_history(MAIN))
        self.replaced[which] = True

    @rule(which=st.integers(0, 1), order=st.sampled_from(["before", "between", "after", "never"]))
    def append_directly(self, which: int, order: str) -> None:
        """Append a message past the cache and note it."""
        if self.replaced[which]:
            return
        sessions, text = self.sessions[which], self.text()
        if order == "before":
            sessions.add_message(MAIN, "user", text)
        append_directly(sessions, said(text))
        if order == "between":
            sessions.add_message(MAIN, "user", text)
        sessions.advance_stored(MAIN, 1)
        if order == "after":
            sessions.add_message(MAIN, "user", text)
        self.stored.add(text)

    @invariant()
    def nothing_is_missing_or_there_twice(self) -> None:
        """What is stored stays stored, and each list has each of its messages once."""
        found = texts(self.database, MAIN)
        assert len(found) == len(set(found))
        assert self.stored <= set(found)
        for which in range(2):
            seen = contents(self.sessions[which].get_history(MAIN))
            assert len(seen) == len(set(seen))
            assert set(self.unsaved[which]) <= set(seen)
            assert self.replaced[which] or set(found) <= set(seen)


def test_no_message_is_lost_or_doubled_in_any_order() -> None:
    """LK-04, LK-09, SE-11: saves that fail, replacements and direct appends of two instances, as they come."""
    run_state_machine_as_test(Together, settings=settings(max_examples=40, stateful_step_count=30))


def test_a_direct_turn_is_told_from_what_others_append_after_it(database: Database) -> None:
    """LK-04: `advance_stored` took the newest turn for the direct one: a report was doubled, or a message swallowed."""
    mine, theirs = said("report"), said("ok")
    sessions = LegacySessions(database)
    sessions.get_or_create("k")

    sessions.add_full_message("k", mine)
    with sessions.graph().begin_turn("k") as turn:
        turn.add(mine)
    with database.write() as work:
        append(work, "k", [theirs])
    sessions.advance_stored("k", 1)
    sessions.add_full_message("k", theirs)
    sessions.save("k")

    assert sessions.get_history("k") == [mine, theirs, theirs]
    with database.read() as work:
        assert history.messages(work, "k") == [mine, theirs, theirs]


def test_a_conversation_begun_anew_is_not_taken_for_the_old_one(database: Database) -> None:
    """LK-04: same key and same number of turns, and the cache overwrote what it had never seen."""
    sessions = LegacySessions(database)
    sessions.add_message("k", "user", "m1")
    sessions.save("k")
    with database.write() as work:
        delete_conversation(work, "k")
        create(work, "k")
        append(work, "k", [said("other")])

    sessions.add_message("k", "user", "m2")
    sessions.save("k")
    sessions.set_history("k", [said("mine")])
    with pytest.raises(ConversationChanged):
        sessions.save("k")
    sessions.reload("k")

    assert sessions.get_history("k") == [said("other"), said("m2")]
