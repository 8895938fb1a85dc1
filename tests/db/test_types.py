"""Column types: what is refused before SQL, and what comes back unchanged."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import MetaData, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agentstate.db.database import Database
from agentstate.db.types import CheckedText, Int64, JsonText, UnixSeconds, UtcText, json_text, parse_instant, utc_text
from agentstate.errors import InvalidValue, UnreadableValue
from builders import NOON, finished, python
from naughty import FREE_TEXT


class Scratch(DeclarativeBase):
    """Tables of this test alone, which no other test sees."""

    metadata = MetaData()


class Sample(Scratch):
    """A row with a column of every type."""

    __tablename__ = "sample"

    id: Mapped[int] = mapped_column(Int64("id"), primary_key=True)
    text: Mapped[str | None] = mapped_column(CheckedText("text", optional=True))
    at: Mapped[datetime | None] = mapped_column(UtcText("at"))
    seconds: Mapped[datetime | None] = mapped_column(UnixSeconds("seconds"))
    count: Mapped[int | None] = mapped_column(Int64("count"))
    meta: Mapped[Any] = mapped_column(JsonText("meta"), nullable=True)


@pytest.fixture
def samples(database: Database) -> Database:
    """A database with the table of this test."""
    with database.change_schema() as connection:
        Scratch.metadata.create_all(connection)
    return database


def stored(database: Database, column: str, row: int = 1) -> Any:
    """Return what really lies in the column."""
    with database.connect() as connection:
        return connection.exec_driver_sql(f"SELECT {column} FROM sample WHERE id = {row}").scalar_one()


def save(database: Database, **values: Any) -> None:
    """Insert row 1 in a unit of work of its own."""
    with database.write() as work:
        work.session.add(Sample(id=1, **values))


def load(database: Database) -> Sample:
    """Read row 1 in a unit of work of its own."""
    with database.read() as work:
        return work.session.scalars(select(Sample)).one()


# --- text ---


def test_text_of_any_kind_comes_back_unchanged(samples: Database) -> None:
    """VA-12: text was cut, folded or mangled on its way, and a look-up found other rows."""
    with samples.write() as work:
        work.session.add_all(Sample(id=number, text=text) for number, text in enumerate(FREE_TEXT))

    with samples.read() as work:
        found = [work.session.scalars(select(Sample.id).where(Sample.text == text)).all() for text in FREE_TEXT]
        read = work.session.scalars(select(Sample.text).order_by(Sample.id)).all()
    assert read == FREE_TEXT
    assert found == [[number] for number in range(len(FREE_TEXT))]


@pytest.mark.parametrize("text", ["W\x00s", "hi \ud83d", "\udcff"])
def test_text_that_one_engine_cannot_hold_is_refused_by_name(samples: Database, text: str) -> None:
    """VA-01, VA-02: NUL and lone surrogates died in one driver or the other, and the caller's data with them."""
    with pytest.raises(InvalidValue) as caught:
        save(samples, text=text)

    assert caught.value.field == "text"
    save(samples, text="the next call works")
    assert load(samples).text == "the next call works"


# --- instants ---


def test_an_instant_is_stored_as_24_characters_and_comes_back_aware(samples: Database) -> None:
    """TM-01, TM-03: mixed precision sorted wrongly as text, and the zone was dropped."""
    pacific = timezone(timedelta(hours=-8))

    save(samples, at=datetime(2026, 11, 29, 13, 30, 45, 999_999, pacific))

    text = "2026-11-29T21:30:45.999Z"
    assert stored(samples, "at") == (text if samples.backend == "sqlite" else datetime.fromisoformat(text))
    assert load(samples).at == datetime(2026, 11, 29, 21, 30, 45, 999_000, UTC)


def test_a_range_with_bounds_in_another_zone_selects_the_same_rows(samples: Database) -> None:
    """TM-01, TM-03: x.000 sorted after x.500 when fractions were cut off."""
    with samples.write() as work:
        work.session.add_all([Sample(id=1, at=NOON), Sample(id=2, at=NOON + timedelta(milliseconds=500))])
    cutoff = (NOON + timedelta(milliseconds=250)).astimezone(timezone(timedelta(hours=9)))

    with samples.read() as work:
        older = work.session.scalars(select(Sample.id).where(Sample.at < cutoff)).all()

    assert older == [1]


@pytest.mark.parametrize("field", ["at", "seconds"])
def test_a_naive_datetime_is_refused_by_name(samples: Database, field: str) -> None:
    """TM-02: it meant another instant on every machine."""
    with pytest.raises(InvalidValue, match=f"{field}: has no time zone"):
        save(samples, **{field: datetime(2026, 11, 29, 12)})  # noqa: DTZ001


def test_something_else_than_a_datetime_is_refused_by_name(samples: Database) -> None:
    """A text that looks like a time is not one."""
    with pytest.raises(InvalidValue, match="at: must be a datetime, not str"):
        save(samples, at="2026-11-29T12:00:00Z")


def test_the_zone_of_the_process_does_not_matter() -> None:
    """TM-02: the same instant is stored under TZ=Asia/Tokyo and elsewhere."""
    code = (
        "from datetime import UTC, datetime\n"
        "from agentstate.db.types import parse_instant, utc_text\n"
        "print(utc_text(datetime(2026, 11, 29, 12, tzinfo=UTC)), parse_instant('2026-11-29 12:00:00', 'at'))"
    )

    answers = {finished(python(code, TZ=zone)) for zone in ("Asia/Tokyo", "America/New_York", "UTC")}

    assert answers == {"2026-11-29T12:00:00.000Z 2026-11-29 12:00:00+00:00\n"}


@pytest.mark.parametrize(
    "written",
    [
        "2026-11-29T12:00:00.000Z",
        "2026-11-29T12:00:00Z",
        "2026-11-29 12:00:00",
        "2026-11-29T12:00:00.000000",
        "2026-11-29T13:00:00+01:00",
        " 2026-11-29T12:00 ",
        1795953600,
        1795953600.0,
        "1795953600",
        "1795953600.0",
    ],
)
def test_times_that_other_hands_wrote_are_understood(written: object) -> None:
    """Hand-made databases hold ISO text of every precision, SQLite's own form and epoch seconds."""
    assert parse_instant(written, "at") == NOON


@pytest.mark.parametrize("written", ["yesterday", "", "2026-13-01", b"2026", 1e300, "9" * 30])
def test_what_is_no_time_says_so(written: object) -> None:
    """A value that is no time must not become one."""
    with pytest.raises(UnreadableValue) as caught:
        parse_instant(written, "at")

    assert caught.value.field == "at"


def test_the_stored_form_has_24_characters_for_every_year() -> None:
    """TM-03: fixed width is what makes texts compare as instants."""
    assert {len(utc_text(datetime(year, 1, 1, tzinfo=UTC))) for year in (1, 999, 1970, 9999)} == {24}


def test_unix_seconds_are_whole_and_rounded_down(samples: Database) -> None:
    """TM-03: one integer per instant, also before 1970."""
    save(samples, seconds=datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC))

    assert stored(samples, "seconds") == -1
    assert load(samples).seconds == datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)


# --- integers ---


@pytest.mark.parametrize("count", [0, 3_000_000_000, 2**63 - 1, -(2**63)])
def test_an_integer_of_64_bits_comes_back(samples: Database, count: int) -> None:
    """VA-04: counters outgrow 32 bits."""
    save(samples, count=count)

    assert load(samples).count == count


@pytest.mark.parametrize("count", [2**63, -(2**63) - 1, 1.0, "1", True])
def test_an_integer_that_does_not_fit_is_refused_by_name(samples: Database, count: object) -> None:
    """VA-04: the driver raised OverflowError in the middle of a write."""
    with pytest.raises(InvalidValue) as caught:
        save(samples, count=count)

    assert caught.value.field == "count"


# --- JSON ---


@pytest.mark.parametrize(
    "document",
    [
        {"b": 1, "a": [1, 2.5, None, True, "ü 田 😀"], "": {}},
        {"n": 2**53 + 1, "m": 2**70, "f": 1e20},
        {"text": "W\x00s\x00l", "half": "hi \ud83d", "pair": "\U0001f600"},
        [],
        {},
        "text",
        0,
        False,
    ],
)
def test_a_json_document_comes_back_exactly(samples: Database, document: object) -> None:
    """VA-01, VA-02, VA-04: NUL, lone surrogates and big integers survive inside JSON."""
    save(samples, meta=document)

    assert load(samples).meta == document
    assert stored(samples, "json_valid(meta)" if samples.backend == "sqlite" else "meta::json IS NOT NULL")
    stored(samples, "meta").encode()


def test_json_is_compact_and_keeps_non_ascii_and_key_order(samples: Database) -> None:
    """VA-05: documents must come back byte for byte, so that hashes still match."""
    save(samples, meta={"ü": [1, {"b": None, "a": "田"}]})

    assert stored(samples, "meta") == '{"ü":[1,{"b":null,"a":"田"}]}'


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"score": math.nan}, "meta.score"),
        ({"a": [1, {"b": math.inf}]}, "meta.a[1].b"),
        ([-math.inf], "meta[0]"),
        ({"a": object()}, "meta.a"),
        ({"when": NOON}, "meta.when"),
        ({1, 2}, "meta"),
    ],
)
def test_what_json_does_not_know_is_refused_with_its_path(samples: Database, document: object, where: str) -> None:
    """VA-03: one undefined metric was stored as invalid JSON, or lost the whole run."""
    with pytest.raises(InvalidValue) as caught:
        save(samples, meta=document)

    assert caught.value.field == where
    save(samples, meta={"score": 1})


def test_a_document_that_contains_itself_is_refused(samples: Database) -> None:
    """A cycle must not hang or crash the writer."""
    document: dict[str, Any] = {}
    document["self"] = document

    with pytest.raises(InvalidValue, match="meta"):
        save(samples, meta=document)


def test_a_document_nested_too_deeply_is_refused() -> None:
    """A recursion error is not an answer."""
    document: Any = []
    for _ in range(100_000):
        document = [document]

    with pytest.raises(InvalidValue, match="nested too deeply"):
        json_text(document, "meta")


def test_none_is_sql_null_at_insert_and_by_update(samples: Database) -> None:
    """VA-10: the text 'null' was stored, and IS NULL missed the row."""
    save(samples, meta=None)
    with samples.write() as work:
        work.session.add(Sample(id=2, meta={"a": 1}))
    with samples.write() as work:
        work.session.get_one(Sample, 2).meta = None

    with samples.read() as work:
        found = work.session.scalars(select(Sample.id).where(Sample.meta.is_(None)).order_by(Sample.id)).all()

    assert found == [1, 2]


def test_a_change_in_place_is_saved(samples: Database) -> None:
    """VA-11: a nested key was changed and committed, and no UPDATE was issued."""
    save(samples, meta={"a": {"b": 0}, "list": [[]]})

    with samples.write() as work:
        row = work.session.get_one(Sample, 1)
        row.meta["a"]["b"] = 1
        row.meta["list"][0].append("x")

    assert load(samples).meta == {"a": {"b": 1}, "list": [["x"]]}


def test_a_document_that_was_only_read_keeps_its_bytes(samples: Database) -> None:
    """VA-05: another program's spacing must survive a unit of work that merely looked at the row."""
    with samples.change_schema() as connection:
        connection.exec_driver_sql("""INSERT INTO sample (id, meta) VALUES (1, '{ "a" : 1.0 }')""")

    with samples.write() as work:
        row = work.session.get_one(Sample, 1)
        row.text = "changed beside it"
        assert row.meta == {"a": 1}

    assert stored(samples, "meta") == '{ "a" : 1.0 }'
    assert json.loads(stored(samples, "meta")) == {"a": 1.0}


def test_a_document_that_is_not_json_is_named(samples: Database) -> None:
    """VA-08: what another tool broke must be said, not crash as a ValueError."""
    with samples.change_schema() as connection:
        connection.exec_driver_sql("INSERT INTO sample (id, meta) VALUES (1, '{broken')")

    with pytest.raises(UnreadableValue) as caught:
        load(samples)

    assert caught.value.field == "meta"


def test_no_adapter_is_registered_for_the_whole_process() -> None:
    """TM-04: a process-wide adapter changes what other users of sqlite3 store."""
    code = (
        "import sqlite3\n"
        "adapters, converters = dict(sqlite3.adapters), dict(sqlite3.converters)\n"
        "import agentstate.metadata\n"
        "from agentstate.db.database import Database\n"
        "with Database.memory() as database, database.write() as work:\n"
        "    pass\n"
        "print(sqlite3.adapters == adapters, sqlite3.converters == converters)"
    )

    assert finished(python(code)) == "True True\n"
