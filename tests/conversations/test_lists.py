"""The list of conversations: literal filters, pages that neither lose nor repeat a row, one statement without bodies.

VA-07 (the bench's part): how long 1,000 conversations take is measured by the benchmarks; here, that no body is read.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentstate.conversations import history, workflows
from agentstate.conversations.models import Conversation
from agentstate.conversations.records import ConversationInfo
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.repositories.line import CONVERSATIONS
from agentstate.conversations.views import list_conversations
from agentstate.db.database import Database
from agentstate.errors import InvalidCursor, InvalidValue
from builders import LATER, MAIN, NOON, a_conversation, a_turn, sql
from conversation_helpers import statements
from naughty import NAUGHTY

FORMER = datetime.fromisoformat("2026-11-01T00:00:00Z")


def store(database: Database, keys: Iterable[str], label: str = "", **columns: Any) -> None:
    """Insert conversations as one statement, made and used at NOON unless columns say otherwise."""
    row = {"created_at": NOON, "updated_at": NOON, "label": label, **columns}
    with database.write() as work:
        work.connection.execute(CONVERSATIONS.insert(), [{"key": key, **row} for key in keys])


def listed(database: Database, **filters: Any) -> list[ConversationInfo]:
    """Return the rows of one page."""
    with database.read() as work:
        return list(list_conversations(work, **filters).items)


def keys(database: Database, **filters: Any) -> list[str]:
    """Return the keys of one page."""
    return [info.key for info in listed(database, **filters)]


def walked(database: Database, **filters: Any) -> list[str]:
    """Return the keys of all pages."""
    found: list[str] = []
    cursor: str | None = None
    for _ in range(2_000):
        with database.read() as work:
            page = list_conversations(work, cursor=cursor, **filters)
        found += [info.key for info in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the list does not end")


# --- filters ---

NEAR_MISSES = ["prod_db", "prodXdb", "PROD_db", "100%", "100x", "100", "a\\b", "a\\\\b", "aXb", "Job-1", "job-2", "Jo"]


PREFIXES = {
    "prod_": ["prod_db"],
    "100%": ["100%"],
    "a\\": ["a\\\\b", "a\\b"],
    "a\\b": ["a\\b"],
    "Job": ["Job-1"],
    "%": [],
    "_": [],
}
PARTS = {
    "prod_": ["prod_db"],
    "0%": ["100%"],
    "\\b": ["a\\\\b", "a\\b"],
    "ob": ["Job-1", "job-2"],
    "Job": ["Job-1"],
    "%": ["100%"],
    "_": ["PROD_db", "prod_db"],
}


def test_a_prefix_means_its_letters(database: Database) -> None:
    """ID-05, ID-06: % and _ matched other sessions' keys, and one engine took capitals for small letters."""
    store(database, NEAR_MISSES)

    found = {prefix: keys(database, prefix=prefix, sort="key") for prefix in PREFIXES}

    assert found == PREFIXES


@pytest.mark.parametrize("place", ["key", "label"])
def test_a_search_means_its_letters_in_key_and_label(database: Database, place: str) -> None:
    """ID-05, ID-06: the same rows on both engines."""
    for number, name in enumerate(NEAR_MISSES):
        store(database, *([[name]] if place == "key" else [[f"key {number}"], name]))

    found = {part: sorted(getattr(info, place) for info in listed(database, contains=part)) for part in PARTS}

    assert found == PARTS


def test_a_prefix_ends_where_code_points_do(database: Database) -> None:
    """The next code point may be none (surrogates), or there may be no next one."""
    families = {
        "a": ["a", "az", "a\ud7fe", "a\ud7ff", "a\ud7ffz", "a\ue000", "a\U0010fffe", "a\U0010ffff", "a\U0010ffffz"],
        "b": ["b"],
        "é": ["é", "é2"],
        "\U0010ffff": ["\U0010ffff", "\U0010ffffz"],
        "": ["A", "e\u0301", "e", "ê", "ä", "\U0010fffe", "\uffff"],
    }
    made = [key for family in families.values() for key in family]
    store(database, made)
    prefixes = [*filter(None, families), "a\ud7ff", "a\ue000", "a\U0010ffff", "e", "e\u0301", "z"]

    found = {prefix: keys(database, prefix=prefix, sort="key") for prefix in prefixes}

    assert found == {prefix: sorted(key for key in made if key.startswith(prefix)) for prefix in prefixes}


def test_naughty_strings_are_found_by_their_letters(database: Database) -> None:
    """VA-12: user-supplied names mismatched, or found rows of others."""
    store(database, NAUGHTY)
    store(database, [f"labelled {number}" for number in range(len(NAUGHTY))])
    with database.write() as work:
        for number, naughty in enumerate(NAUGHTY):
            workflows.set_label(work, f"labelled {number}", naughty)

    with database.read() as work:
        for number, naughty in enumerate(NAUGHTY):
            by_key = [info.key for info in list_conversations(work, prefix=naughty).items]
            by_label = [
                info.label for info in list_conversations(work, prefix=f"labelled {number}", contains=naughty).items
            ]

            assert sorted(by_key) == sorted(
                key
                for key in [*NAUGHTY, *(f"labelled {number}" for number in range(len(NAUGHTY)))]
                if key.startswith(naughty)
            )
            assert naughty in by_label


def test_filters_combine(database: Database) -> None:
    """Each narrows what the others leave."""
    store(database, ["a", "b"])
    store(database, ["a:1", "a:2", "b:1"], "try", parent_key="a")
    store(database, ["a:3"], "other", parent_key="a", status="completed")

    assert keys(database, roots=True) == ["a", "b"]
    assert keys(database, parent="a") == ["a:1", "a:2", "a:3", "b:1"]
    assert keys(database, parent="a", prefix="a") == ["a:1", "a:2", "a:3"]
    assert keys(database, parent="a", prefix="a", contains="try") == ["a:1", "a:2"]
    assert keys(database, parent="a", status="completed") == ["a:3"]
    assert keys(database, status="completed", roots=True) == []
    assert keys(database, parent="nobody") == []
    assert keys(database, prefix="", contains="") == ["a", "a:1", "a:2", "a:3", "b", "b:1"]


SORTS_REFUSED: list[Any] = [
    "created_at; drop table sessions",
    "(select 1)",
    "messages.body",
    "CREATED_AT",
    "Created",
    "",
    None,
    [],
]
LIMITS_REFUSED = [0, -1, 1_001, "10", 1.0, True, None, 2**70]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("sort", {"sort": sort}) for sort in SORTS_REFUSED),
    *(("limit", {"limit": limit}) for limit in LIMITS_REFUSED),
    ("roots", {"parent": "a", "roots": True}),
    ("prefix", {"prefix": 5}),
    ("prefix", {"prefix": b"a"}),
    ("prefix", {"prefix": "a\x00"}),
    ("contains", {"contains": "\ud83d"}),
    ("contains", {"contains": ["a"]}),
    ("parent", {"parent": ""}),
    ("parent", {"parent": 1}),
    ("status", {"status": "  "}),
    ("roots", {"roots": 1}),
    ("descending", {"descending": "yes"}),
    ("cursor", {"cursor": 5}),
]


def test_what_makes_no_sense_is_refused_by_its_name(database: Database) -> None:
    """ID-08: a sort field from the caller went into ORDER BY. Nothing is asked of the database."""
    found = []

    with database.read() as work, statements(database) as log:
        for _, filters in REFUSED:
            with pytest.raises(InvalidValue) as caught:
                list_conversations(work, **filters)
            found.append((caught.value.field, filters))

    assert found == REFUSED
    assert log == []


# --- pages ---


def test_a_thousand_conversations_of_one_instant_are_each_met_once(database: Database) -> None:
    """TM-06: within one timestamp unit the order was unstable, and rows were shown twice or not at all."""
    made = [f"k{number * 7_919 % 1_000:03}" for number in range(1_000)]
    store(database, made)

    assert walked(database, limit=10) == sorted(made)


def test_pages_in_every_order_make_the_whole_list(database: Database) -> None:
    """Whatever the order is by, the key decides between equals."""
    for number in range(45):
        moment = timedelta(milliseconds=number * 7 % 5)
        store(database, [f"k{number * 11 % 45:02}"], created_at=NOON + moment, updated_at=NOON - moment)
    orders: dict[str, Callable[[ConversationInfo], Any]] = {
        "key": lambda info: info.key,
        "created": lambda info: (info.created_at, info.key),
        "updated": lambda info: (info.updated_at, info.key),
    }

    rows = listed(database, limit=1_000)
    for sort, order in orders.items():
        for descending in (False, True):
            expected = [info.key for info in sorted(rows, key=order, reverse=descending)]

            assert walked(database, sort=sort, descending=descending, limit=4) == expected
            assert keys(database, sort=sort, descending=descending) == expected


def test_rows_that_come_and_go_between_pages_move_no_other(database: Database) -> None:
    """A page counted from the start shifts with every row that is added before it."""
    store(database, [f"k{number:02}" for number in range(20)])
    with database.read() as work:
        first = list_conversations(work, limit=10)
    store(database, ["earlier"], created_at=FORMER)
    store(database, ["k05a"])
    with database.write() as work:
        Conversations(work).delete("k09")  # the row that the cursor was made of
        second = list_conversations(work, limit=100, cursor=first.next_cursor)

    assert [info.key for info in second.items] == [f"k{number:02}" for number in range(10, 20)]
    assert second.next_cursor is None


def test_the_last_page_may_be_full(database: Database) -> None:
    """A cursor that leads to nothing makes a caller ask once too often."""
    store(database, ["a", "b", "c", "d"])

    with database.read() as work:
        page = list_conversations(work, limit=4)

    assert len(page.items) == 4
    assert page.next_cursor is None


def a_cursor(database: Database, **filters: Any) -> str:
    """Return the cursor after the first of three conversations."""
    store(database, ["a", "b", "c"])
    with database.read() as work:
        cursor = list_conversations(work, limit=1, **filters).next_cursor
    assert cursor is not None
    return cursor


def encoded(value: Any) -> str:
    """Return a value in the form of a cursor."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


DAMAGED: list[Callable[[str], str]] = [
    lambda cursor: cursor[:-3],
    lambda cursor: cursor[3:],
    lambda cursor: cursor + "x",
    lambda cursor: f"{cursor[:5]}!{cursor[5:]}",
    lambda cursor: f"{cursor} ",
    lambda _: "",
    lambda _: "ünicode",
    lambda _: encoded([]),
    lambda _: encoded({"sort": "created"}),
    lambda _: encoded(["created", "asc", 5, "a"]),
    lambda _: encoded(["created", "asc", "2026-11-29T12:00:00.000Z"]),
    lambda _: encoded(["created", "asc", "2026-11-29T12:00:00.000Z", "\ud83d"]),
    lambda _: encoded(["created", "sideways", "2026-11-29T12:00:00.000Z", "a"]),
]


def test_a_damaged_cursor_is_refused(database: Database) -> None:
    """Taken as far as it could be read, it would mean another place, and rows in between would never be seen."""
    cursor = a_cursor(database)

    with database.read() as work:
        for damage in DAMAGED:
            with pytest.raises(InvalidCursor):
                list_conversations(work, cursor=damage(cursor))

        assert [info.key for info in list_conversations(work, cursor=cursor).items] == ["b", "c"]


def test_a_cursor_of_another_order_is_refused(database: Database) -> None:
    """Its place means nothing there."""
    cursor = a_cursor(database)
    others: list[dict[str, Any]] = [{"sort": "updated"}, {"sort": "key"}, {"descending": True}]

    with database.read() as work:
        for other in others:
            with pytest.raises(InvalidCursor):
                list_conversations(work, cursor=cursor, **other)


def test_a_cursor_whose_time_is_none_is_refused_before_the_server_sees_it(server_database: Database) -> None:
    """The server would refuse it only when the statement runs, and the unit of work would be lost."""
    store(server_database, ["a", "b"])

    with server_database.read() as work:
        for value in ("yesterday", "2026-11-29T12:00:00", "infinite", "", "2026-W01-1"):
            with pytest.raises(InvalidCursor):
                list_conversations(work, cursor=encoded(["created", "asc", value, "a"]))

        assert len(list_conversations(work).items) == 2


# --- counts and cost ---


def test_turns_are_counted_as_the_conversation_shows_them(database: Database) -> None:
    """Own turns with fork points, without what is compacted and without what is inherited."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=5)
        workflows.fork(work, MAIN, "branch", inherit=True)
        a_turn(work, "branch")
        a_conversation(work, "empty")
    with database.write(now=LATER) as work:
        history.compact(work, MAIN, 4, "what was")

    with database.read() as work:
        counts = {info.key: info.turn_count for info in list_conversations(work).items}
        own = {key: Turns(work).count(key) for key in counts}

    assert counts == own == {MAIN: 2, "branch": 1, "empty": 0}


def test_a_list_is_one_statement_that_reads_no_body(database: Database) -> None:
    """VA-07: lists that loaded every tool output took minutes."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=3)

    with database.read() as work, statements(database) as log:
        list_conversations(work, prefix="agent", contains="main", status="active", roots=True, sort="updated")

    assert len(log) == 1
    assert "messages" not in log[0]
    assert "turns.meta" not in log[0]


def test_turns_are_counted_in_the_index_and_for_the_page_only(file_database: Database) -> None:
    """A count that visits the rows walks every body's pages; one for rows that are not shown does so for nothing."""
    with file_database.write(now=NOON) as work:
        for number in range(30):
            a_conversation(work, f"k{number:02}", turns=2)

    with file_database.read() as work, statements(file_database) as log:
        list_conversations(work, limit=3)
        # What the statement does, with any values in the places of its parameters.
        plan = [
            row[3] for row in work.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {log[0]}", (4,) * log[0].count("?"))
        ]

    counting = [step for step in plan if " turns " in f"{step} "]
    assert len(counting) == 1
    assert "COVERING INDEX" in counting[0]
    assert any("CO-ROUTINE page" in step or "MATERIALIZE page" in step for step in plan)


# --- rows that others damaged ---

DAMAGE = {
    "a label of other bytes": "label = CAST(x'ff41' AS TEXT)",
    "a status of other bytes": "status = CAST(x'e9' AS TEXT)",
    "no time": "created_at = 'yesterday'",
    "a time of other bytes": "created_at = CAST(x'ff41' AS TEXT)",
    "a time as a blob": "created_at = x'323032362d'",
    "no number": "inherited_seq = 'many', summary = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_rows_that_cannot_be_read_are_named_and_the_others_listed(
    file_database: Database, path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """VA-08: one row of another program's hid the other 99, or ended the pages before them."""
    store(file_database, [f"k{number:02}" for number in range(30)])
    sql(path, f"UPDATE conversations SET {change} WHERE key IN ('k05', 'k06', 'k29')")
    readable = [f"k{number:02}" for number in range(30) if number not in (5, 6, 29)]

    with caplog.at_level(logging.WARNING, "agentstate"):
        found = [
            walked(file_database, limit=limit, descending=descending)
            for limit in (1, 7, 1_000)
            for descending in (False, True)
        ]

    assert [sorted(keys) for keys in found] == [readable] * 6
    assert {message.partition(" is left out")[0] for message in caplog.messages} == {
        f"conversations: the row with key='{key}'" for key in ("k05", "k06", "k29")
    }
    assert all(getattr(record, "row_left_out", False) for record in caplog.records)


@pytest.mark.parametrize("sort", ["key", "created"])
def test_a_key_that_is_not_utf_8_ends_no_list(
    file_database: Database, path: Path, sort: str, caplog: pytest.LogCaptureFixture
) -> None:
    """VA-08: the place after such a row is told in bytes."""
    store(file_database, ["a", "b", "c"])
    sql(path, "UPDATE conversations SET key = CAST(x'62ff' AS TEXT) WHERE key = 'b'")

    with caplog.at_level(logging.WARNING, "agentstate"):
        found = walked(file_database, sort=sort, limit=1)

    assert found == ["a", "c"]
    assert "key='b\\\\xff'" in caplog.messages[0]


def test_pages_walk_over_times_in_every_form(file_database: Database, path: Path) -> None:
    """TM-04: the order is that of the stored text, and a cursor made of the instant would miss rows."""
    forms = ["2026-11-29 12:00:00", "2026-11-29 12:00:00.000000+00:00", "1795953600", "2026-11-29T12:00:00Z"]
    store(file_database, ["0", "1", "2", "3", "4"])
    for number, form in enumerate(forms):
        sql(path, "UPDATE conversations SET created_at = ? WHERE key = ?", (form, str(number)))

    found = walked(file_database, limit=1)

    assert sorted(found) == ["0", "1", "2", "3", "4"]
    assert {info.created_at for info in listed(file_database)} == {NOON}


def test_times_that_python_has_not_are_named_on_a_server_too(
    server_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """VA-08: `infinity`, set by hand, made the whole list unreadable."""
    store(server_database, ["a", "b", "c", "d"], "back\\slash")
    with server_database.write() as work:
        work.connection.execute(text("UPDATE conversations SET created_at = 'infinity' WHERE key = 'b'"))
        work.connection.execute(text("UPDATE conversations SET created_at = '-infinity' WHERE key = 'c'"))

    with caplog.at_level(logging.WARNING, "agentstate"):
        found = [walked(server_database, limit=limit) for limit in (1, 2, 1_000)]
        labels = {info.label for info in listed(server_database)}

    assert found == [["a", "d"]] * 3
    assert labels == {"back\\slash"}
    assert {message.partition(" is left out")[0] for message in caplog.messages} == {
        "conversations: the row with key='b'",
        "conversations: the row with key='c'",
    }


def test_every_column_is_in_the_list_but_two(database: Database) -> None:
    """Section 9: `next_seq` and `imported_from` are for writers."""
    with database.write(now=NOON) as work:
        a_conversation(work, MAIN, turns=2)
        workflows.set_label(work, MAIN, "Ada")
        workflows.set_summary(work, MAIN, "so far")
    with database.write(now=LATER) as work:
        made = workflows.fork(work, MAIN, "agent:ada:main:2", label="again", inherit=True)
        point = made.fork_turn_id

    (parent, child) = listed(database)

    assert parent == ConversationInfo(
        MAIN, "main", None, None, "active", "Ada", "so far", NOON, LATER, 0, None, None, None, 3
    )
    assert child == ConversationInfo(
        "agent:ada:main:2", "main:2", MAIN, point, "active", "again", "", LATER, LATER, 0, 3, "so far", None, 0
    )
    assert {column.key for column in Conversation.__table__.columns} - set(ConversationInfo.__slots__) == {
        "next_seq",
        "imported_from",
    }
