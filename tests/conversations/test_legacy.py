"""One list of messages per key, as the original's callers know it: nothing is written early, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentstate.conversations import history, workflows
from agentstate.conversations import messages as stored_text
from agentstate.conversations.legacy import LegacySessions
from agentstate.conversations.models import TurnKind
from agentstate.conversations.records import Message
from agentstate.conversations.repositories import Turns
from agentstate.db.database import Database
from agentstate.errors import (
    ConversationEnded,
    ConversationNotFound,
    DatabaseBusy,
    EmptySummary,
    InvalidIdentifier,
    InvalidMessage,
    InvalidValue,
    SaveFailed,
    TurnTooLarge,
)
from agentstate.settings import Settings
from builders import LATER, MAIN, NOON, a_conversation, a_turn, said
from conversation_helpers import Injected, everything, failing_commit, statements, texts
from db_helpers import can_write, holding


def turns(database: Database, key: str = MAIN) -> list[list[object]]:
    """Return the contents of the messages of each own visible turn."""
    with database.read() as work:
        return [[message["content"] for message in turn.messages] for turn in Turns(work).list_turns(key)]


def contents(found: list[Message]) -> list[object]:
    """Return what the messages say."""
    return [message["content"] for message in found]


@pytest.fixture
def sessions(database: Database) -> LegacySessions:
    """An instance on each kind of database in turn, all of them empty."""
    return LegacySessions(database)


# --- the original's way of working -----------------------------------------------------------------------------------


def test_every_save_stores_what_is_new_as_one_turn(sessions: LegacySessions, database: Database) -> None:
    """Section 11: few writes is the purpose, and a new instance reads the same."""
    sessions.add_message(MAIN, "user", "one")
    sessions.add_full_message(MAIN, {"role": "assistant", "content": "two", "x_vendor": {"n": 2**70}})
    before = turns(database)
    sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "three")
    sessions.save(MAIN)

    found = LegacySessions(database).get_history(MAIN)
    assert before == []
    assert turns(database) == [["one", "two"], ["three"]]
    assert found == sessions.get_history(MAIN)
    assert found[1] == {"role": "assistant", "content": "two", "x_vendor": {"n": 2**70}}


def test_a_save_after_set_history_stores_exactly_that(sessions: LegacySessions, database: Database) -> None:
    """Section 11: with what was added since, and nothing of what was unsaved before."""
    sessions.add_message(MAIN, "user", "one")
    sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "never saved")

    sessions.set_history(MAIN, [said("new"), said("list")])
    sessions.add_message(MAIN, "user", "and more")
    before = sessions.get_history(MAIN)
    sessions.save(MAIN)

    assert contents(before) == ["new", "list", "and more"]
    assert turns(database) == [["new", "list", "and more"]]
    assert sessions.get_history(MAIN) == LegacySessions(database).get_history(MAIN) == before


def test_set_history_to_nothing_forgets_everything(sessions: LegacySessions, database: Database) -> None:
    """Section 11: the original's `/clear`; the next turn does not take an old seq."""
    sessions.add_message(MAIN, "user", "one")
    sessions.save(MAIN)

    sessions.set_history(MAIN, [])
    sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "two")
    sessions.save(MAIN)

    assert contents(sessions.get_history(MAIN)) == ["two"]
    with database.read() as work:
        assert [turn.seq for turn in Turns(work).list_turns(MAIN)] == [2]


def test_get_or_create_makes_what_is_missing_and_returns_what_is_there(
    sessions: LegacySessions, database: Database
) -> None:
    """Section 11: twice is once, and the answer holds the unsaved messages and the effective summary."""
    made = sessions.get_or_create(MAIN)
    sessions.add_message(MAIN, "user", "unsaved")
    sessions.set_summary(MAIN, "what was")
    with database.write(now=LATER.replace(year=2200)) as work:
        a_turn(work, text="by another")

    found = sessions.get_or_create(MAIN)

    assert (made.key, made.messages, made.summary) == (MAIN, [], "")
    assert made.created == made.updated
    assert (contents(found.messages), found.summary) == (["by another", "unsaved"], "what was")
    assert (found.created, found.updated) == (made.created, LATER.replace(year=2200))


def test_what_is_unknown_is_empty_and_reading_it_makes_nothing(sessions: LegacySessions, database: Database) -> None:
    """Section 11: tolerant as the original, except where something was to be kept."""
    found = sessions.get_history(MAIN), sessions.get_summary(MAIN)
    sessions.truncate_history(MAIN, 0)
    sessions.mark_dirty(MAIN)
    sessions.save(MAIN)
    sessions.reload(MAIN)
    sessions.flush_dirty()
    sessions.close()

    assert found == ([], "")
    assert everything(database) == ([], [])
    with pytest.raises(ConversationNotFound):
        sessions.set_summary(MAIN, "of what?")
    with pytest.raises(ConversationNotFound):
        sessions.compact_old_turns(MAIN, 2, "of what?")


def test_a_summary_is_written_at_once(sessions: LegacySessions, database: Database) -> None:
    """Section 11: unlike messages."""
    sessions.get_or_create(MAIN)

    sessions.set_summary(MAIN, "what was")

    assert LegacySessions(database).get_summary(MAIN) == sessions.get_summary(MAIN) == "what was"


def test_truncating_keeps_the_last_messages_saved_or_not(sessions: LegacySessions, database: Database) -> None:
    """Section 11: and stores nothing before the next save."""
    for keep, kept in [(-1, []), (0, []), (1, ["c"]), (2, ["b", "c"]), (3, ["a", "b", "c"])]:
        key = f"keep {keep}"
        for text in ("a", "b"):
            sessions.add_message(key, "user", text)
        sessions.save(key)
        sessions.add_message(key, "user", "c")

        sessions.truncate_history(key, keep)
        found, stored = contents(sessions.get_history(key)), texts(database, key)
        sessions.save(key)

        assert (found, stored) == (kept, ["a", "b"])
        assert texts(database, key) == kept


def test_compaction_keeps_whole_turns_and_the_cache_equals_the_database(
    sessions: LegacySessions, database: Database
) -> None:
    """Section 11: the original cut the cache shorter than what it had stored; the last turn is saved by it here."""
    for sizes, keep, left in [((2, 3, 2), 2, 2), ((2, 3, 2), 5, 5), ((2, 3, 2), 10, 7), ((4,), 2, 4)]:
        key = f"{sizes} keep {keep}"
        for number, size in enumerate(sizes):
            sessions.flush_dirty()
            for count in range(size):
                sessions.add_message(key, "user", f"{number}-{count}")
        before = sessions.get_history(key)

        done = sessions.compact_old_turns(key, keep, "what was")

        assert sessions.get_history(key) == LegacySessions(database).get_history(key) == before[-left:]
        assert sessions.get_summary(key) == done.summary == "what was"
        assert done.turns == len(sizes) - len(turns(database, key))


def test_a_blank_summary_compacts_nothing(sessions: LegacySessions, database: Database) -> None:
    """SE-04: it would erase what it stands for; what was unsaved is stored all the same."""
    sessions.add_message(MAIN, "user", "one")

    with pytest.raises(EmptySummary):
        sessions.compact_old_turns(MAIN, 0, " ")

    assert turns(database) == [["one"]]


def test_the_graph_goes_past_the_cache(sessions: LegacySessions, database: Database) -> None:
    """Section 11: the original's handle for turns that are collected while a model thinks."""
    sessions.add_message(MAIN, "user", "unsaved")

    with sessions.graph().begin_turn(MAIN, TurnKind.REPORT) as turn:
        turn.add(said("direct"))
        turn.set_origin("subagent:scout-1")

    assert contents(sessions.graph().messages(MAIN)) == ["direct"]
    assert contents(sessions.get_history(MAIN)) == ["direct", "unsaved"]
    with pytest.raises(ConversationNotFound):
        sessions.graph().messages("unknown")


def test_a_branch_shows_what_it_inherits_and_replaces_only_its_own_view(
    sessions: LegacySessions, database: Database
) -> None:
    """Section 5: the parent's history is part of the list, and stays the parent's."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=2)
        workflows.fork(work, MAIN, "branch", inherit=True)
    sessions.add_message("branch", "user", "own")
    sessions.save("branch")
    seen = contents(sessions.get_history("branch"))

    sessions.set_history("branch", [said("instead")])
    sessions.save("branch")

    assert seen == ["1", "2", "own"]
    assert contents(sessions.get_history("branch")) == ["instead"]
    assert texts(database, MAIN) == ["1", "2"]


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_messages_are_added_without_a_statement_and_saved_with_few(
    sessions: LegacySessions, database: Database
) -> None:
    """Section 11: a write-behind cache; reading costs one statement, and no body but the last is read again."""
    with database.write(now=NOON) as work:
        a_conversation(work, turns=5)
    sessions.get_history(MAIN)

    with statements(database) as adding:
        sessions.add_message(MAIN, "user", "one")
        sessions.mark_dirty(MAIN)
        sessions.set_history(MAIN, [said("x")])
        sessions.reload("another")
    with statements(database) as saving:
        sessions.add_message(MAIN, "user", "two")
        sessions.save(MAIN)
        sessions.save(MAIN)
    with statements(database) as reading:
        sessions.get_history(MAIN)

    assert adding == []
    assert 0 < len([text for text in saving if text.startswith(("INSERT", "UPDATE", "DELETE"))]) <= 4
    assert len(reading) == 1


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_refused_message_changes_nothing(sessions: LegacySessions, database: Database) -> None:
    """LK-05: it is refused where it is added, not at a save minutes later that takes others down with it."""
    circular: list[Any] = []
    circular.append(circular)
    sessions.add_message(MAIN, "user", "one")
    bad: list[Callable[[], None]] = [
        lambda: sessions.add_full_message(MAIN, {"role": "user", "content": object()}),
        lambda: sessions.add_full_message(MAIN, {"content": "whose?"}),
        lambda: sessions.add_message(MAIN, "", "whose?"),
        lambda: sessions.set_history(MAIN, [said("good"), {"role": "user", "content": float("inf")}]),
        lambda: sessions.set_history(MAIN, [{"role": "user", "content": circular}]),
    ]

    paths = []
    for call in bad:
        with pytest.raises(InvalidMessage) as caught:
            call()
        paths.append(caught.value.path)
    sessions.save(MAIN)

    assert paths == ["message.content", "message.role", "message.role", "messages[1].content", "messages[0]"]
    assert turns(database) == [["one"]]


def test_bad_keys_and_numbers_are_refused(sessions: LegacySessions) -> None:
    """A mistaken number must not be taken for another, or a key for none."""
    calls: list[tuple[type[InvalidValue], Callable[[], object]]] = [
        (InvalidIdentifier, lambda: sessions.get_or_create("")),
        (InvalidIdentifier, lambda: sessions.add_message("\0", "user", "x")),
        (InvalidIdentifier, lambda: sessions.get_history("")),
        (InvalidIdentifier, lambda: sessions.set_history("", [])),
        (InvalidIdentifier, lambda: sessions.get_summary("")),
        (InvalidIdentifier, lambda: sessions.set_summary("", "x")),
        (InvalidIdentifier, lambda: sessions.truncate_history("", 1)),
        (InvalidIdentifier, lambda: sessions.mark_dirty("")),
        (InvalidIdentifier, lambda: sessions.save("")),
        (InvalidIdentifier, lambda: sessions.reload("")),
        (InvalidIdentifier, lambda: sessions.advance_stored("", 1)),
        (InvalidIdentifier, lambda: sessions.compact_old_turns("", 1, "x")),
        (InvalidValue, lambda: sessions.truncate_history(MAIN, True)),
        (InvalidValue, lambda: sessions.truncate_history(MAIN, 1.0)),  # type: ignore[arg-type]
        (InvalidValue, lambda: sessions.advance_stored(MAIN, -1)),
        (InvalidValue, lambda: sessions.advance_stored(MAIN, "1")),  # type: ignore[arg-type]
        (InvalidValue, lambda: sessions.compact_old_turns(MAIN, -1, "x")),
    ]
    sessions.get_or_create(MAIN)

    for error, call in calls:
        with pytest.raises(error):
            call()


def test_lists_and_messages_are_copies_in_both_directions(sessions: LegacySessions) -> None:
    """Section 11: a caller that edits what it got, or gave, must not edit what is stored."""
    message: dict[str, Any] = {"role": "user", "content": [{"text": "one"}]}
    replacement: list[dict[str, Any]] = [{"role": "user", "content": ["x"]}]
    sessions.add_full_message(MAIN, message)
    message["content"][0]["text"] = "changed"

    got = sessions.get_history(MAIN)
    got[0]["content"][0]["text"] = "changed"
    got.clear()
    session = sessions.get_or_create(MAIN)
    session.messages[0]["role"] = "system"
    first = sessions.get_history(MAIN)
    sessions.set_history(MAIN, replacement)
    replacement[0]["content"].append("y")

    assert first == [{"role": "user", "content": [{"text": "one"}]}]
    assert sessions.get_history(MAIN) == [{"role": "user", "content": ["x"]}]


# --- nothing is lost -------------------------------------------------------------------------------------------------


def test_a_flush_saves_what_nobody_marked_and_keeps_what_failed(sessions: LegacySessions, database: Database) -> None:
    """Section 11: the original logged the error and dropped the mark; the others must not suffer either."""
    for key in ("good", "ended", "too"):
        sessions.add_message(key, "user", "one")
    with database.write() as work:
        workflows.set_status(work, "ended", "completed")

    with pytest.raises(SaveFailed) as caught:
        sessions.flush_dirty()
    with pytest.raises(SaveFailed) as again:
        sessions.close()
    kept = contents(sessions.get_history("ended"))
    with database.write() as work:
        workflows.set_status(work, "ended", "active")
    sessions.close()
    sessions.close()

    assert list(caught.value.failures) == list(again.value.failures) == ["ended"]
    assert isinstance(caught.value.failures["ended"], ConversationEnded)
    assert kept == ["one"]
    assert [turns(database, key) for key in ("good", "ended", "too")] == [[["one"]]] * 3


def test_a_flush_on_a_locked_database_keeps_everything_for_later(file_database: Database, path: Path) -> None:
    """LK-09: a lock held by another process costs nothing but time; what was added meanwhile joins the same turn."""
    with Database.open(path, settings=Settings(busy_timeout=0.05)) as impatient:
        sessions = LegacySessions(impatient)
        for key in ("a", "b"):
            sessions.add_message(key, "user", "one")
        with holding(path, "BEGIN IMMEDIATE"):
            with pytest.raises(SaveFailed) as caught:
                sessions.flush_dirty()
            sessions.add_message("a", "user", "two")
            seen = contents(sessions.get_history("a"))
        sessions.flush_dirty()

    assert [type(error) for error in caught.value.failures.values()] == [DatabaseBusy, DatabaseBusy]
    assert seen == ["one", "two"]
    assert (turns(file_database, "a"), turns(file_database, "b")) == ([["one", "two"]], [["one"]])
    assert can_write(path)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("then", ["nothing", "a look", "a flush"])
def test_a_save_of_unknown_fate_is_stored_once_and_what_came_later_after_it(
    sessions: LegacySessions, database: Database, stored: bool, then: str
) -> None:
    """LK-09: the turn may be there already; its messages are tried again as they were, under the same id."""
    sessions.add_message(MAIN, "user", "one")

    with failing_commit(database, stored=stored), pytest.raises(Injected):
        sessions.save(MAIN)
    if then == "a look":
        assert contents(sessions.get_history(MAIN)) == ["one"]
    if then == "a flush":
        sessions.flush_dirty()
        assert turns(database) == [["one"]]
    sessions.add_message(MAIN, "user", "two")
    sessions.flush_dirty()

    assert turns(database) == [["one"], ["two"]]
    assert contents(sessions.get_history(MAIN)) == ["one", "two"]


@pytest.mark.parametrize("stored", [False, True])
def test_a_replacement_of_unknown_fate_is_stored_once(
    sessions: LegacySessions, database: Database, stored: bool
) -> None:
    """LK-09: the same for `set_history`: its own first try is not somebody else's write."""
    sessions.add_message(MAIN, "user", "one")
    sessions.save(MAIN)
    sessions.set_history(MAIN, [said("new")])

    with failing_commit(database, stored=stored), pytest.raises(Injected):
        sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "two")
    seen = contents(sessions.get_history(MAIN))
    sessions.save(MAIN)

    assert seen == ["new", "two"]
    assert turns(database) == [["new"], ["two"]]


@pytest.mark.parametrize("stored", [False, True])
def test_a_replacement_after_a_save_of_unknown_fate_is_no_conflict(
    sessions: LegacySessions, database: Database, stored: bool
) -> None:
    """LK-09: whether the earlier turn is there or not, the caller replaced what it knew to be its own."""
    sessions.add_message(MAIN, "user", "one")
    with failing_commit(database, stored=stored), pytest.raises(Injected):
        sessions.save(MAIN)

    sessions.set_history(MAIN, [said("new")])
    seen = contents(sessions.get_history(MAIN))
    sessions.save(MAIN)

    assert seen == ["new"]
    assert turns(database) == [["new"]]
    assert contents(sessions.get_history(MAIN)) == ["new"]


def test_a_conversation_that_others_deleted_keeps_its_unsaved_messages(
    sessions: LegacySessions, database: Database
) -> None:
    """SE-13: pruned in the middle of a talk: no message disappears, and the caller decides whether to go on."""
    sessions.add_message(MAIN, "user", "one")
    sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "two")
    with database.write() as work:
        workflows.delete_conversation(work, MAIN)

    with pytest.raises(ConversationNotFound):
        sessions.save(MAIN)
    seen = contents(sessions.get_history(MAIN))
    made = sessions.get_or_create(MAIN)
    sessions.save(MAIN)

    assert seen == contents(made.messages) == ["two"]
    assert turns(database) == [["two"]]


def test_a_message_for_a_conversation_known_to_be_gone_makes_it_anew(
    sessions: LegacySessions, database: Database
) -> None:
    """Section 11: 'creates it if missing', also for the second time: after a read, a failed save, a replacement."""
    for key in ("read", "saved", "replaced"):
        sessions.add_message(key, "user", "one")
        sessions.save(key)
        with database.write() as work:
            workflows.delete_conversation(work, key)
    sessions.set_history("replaced", [said("two")])
    sessions.add_message("saved", "user", "two")
    gone = [sessions.get_history("read"), sessions.get_history("replaced")]
    with pytest.raises(ConversationNotFound):
        sessions.save("saved")

    for key in ("read", "saved", "replaced"):
        sessions.add_message(key, "user", "three")
    sessions.flush_dirty()

    assert gone == [[], [said("two")]]
    assert turns(database, "read") == [["three"]]
    assert turns(database, "saved") == turns(database, "replaced") == [["two", "three"]]


def test_a_conversation_that_others_made_anew_is_not_mixed_with_the_old_one(
    sessions: LegacySessions, database: Database
) -> None:
    """SE-13: after a prune somebody else began again under the key, and said more than was known before."""
    for text in ("old one", "old two"):
        sessions.add_message(MAIN, "user", text)
        sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "unsaved")

    with database.write() as work:
        workflows.delete_conversation(work, MAIN)
        a_conversation(work, turns=4)

    assert contents(sessions.get_history(MAIN)) == ["1", "2", "3", "4", "unsaved"]


def test_more_than_one_turn_may_hold_is_saved_as_several(
    sessions: LegacySessions, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VA-07: a list that grew between two flushes would otherwise stay unsaved for ever."""
    monkeypatch.setattr(stored_text, "MAX_TURN_BYTES", 200)
    for number in range(9):
        sessions.add_message(MAIN, "user", f"{number}" * 30)
    with pytest.raises(TurnTooLarge):
        sessions.add_message(MAIN, "user", "x" * 200)
    with pytest.raises(TurnTooLarge):
        sessions.set_history(MAIN, sessions.get_history(MAIN))

    sessions.save(MAIN)

    found = turns(database)
    assert [text for turn in found for text in turn] == [f"{number}" * 30 for number in range(9)]
    assert {len(turn) for turn in found} == {1, 2}
    assert contents(sessions.get_history(MAIN)) == texts(database, MAIN)


def test_reloading_forgets_what_is_unsaved(sessions: LegacySessions, database: Database) -> None:
    """Section 11: the caller's way to give up; nothing of it is written later."""
    sessions.add_message(MAIN, "user", "one")
    sessions.save(MAIN)
    sessions.set_history(MAIN, [said("unwanted")])

    sessions.reload(MAIN)
    sessions.close()

    assert contents(sessions.get_history(MAIN)) == ["one"]
    assert turns(database) == [["one"]]


def test_sixteen_threads_share_one_instance(sessions: LegacySessions, database: Database) -> None:
    """CN-03: parallel tasks swallowed each other's errors and saw an empty history."""
    keys = ["a", "b"]
    for key in keys:
        sessions.add_message(key, "user", "first")
        sessions.save(key)
    empty: list[str] = []

    def work(number: int) -> None:
        for count in range(50):
            key = keys[(number + count) % 2]
            if count % 5 == 0:
                sessions.save(key)
            elif count % 5 == 1:
                empty.extend([] if sessions.get_history(key) else [key])
            else:
                sessions.add_message(key, "user", f"{number}-{count}")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    sessions.close()

    expected = [f"{number}-{count}" for number in range(16) for count in range(50) if count % 5 > 1]
    found = [texts(database, key) for key in keys]
    assert empty == []
    assert sorted(str(text) for said_here in found for text in said_here if text != "first") == sorted(expected)
    assert [contents(sessions.get_history(key)) for key in keys] == found


def test_what_others_compacted_is_gone_from_the_list(sessions: LegacySessions, database: Database) -> None:
    """SE-05: the cache follows the database in that too, and keeps what is unsaved."""
    for text in ("one", "two", "three"):
        sessions.add_message(MAIN, "user", text)
        sessions.save(MAIN)
    sessions.add_message(MAIN, "user", "unsaved")

    with database.write() as work:
        history.compact(work, MAIN, 2, "what was")

    assert contents(sessions.get_history(MAIN)) == ["three", "unsaved"]
    assert sessions.get_summary(MAIN) == "what was"
