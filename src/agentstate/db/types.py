"""Column types: what a value must be to be stored, decided when it is bound and so before SQL.

Every type is given the name of its field, which a refused value's error carries. All are TEXT or INTEGER in SQLite
and, where that differs, the natural type in PostgreSQL; `alembic revision --autogenerate` writes the stored type.
Some have no column yet: they are the house's, and their rules are tested here once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TIMESTAMP, TypeDecorator, TypeEngine

from agentstate.errors import InvalidValue, UnreadableValue
from agentstate.identity import UNSTORABLE, identifier

_SURROGATE = re.compile("[\ud800-\udfff]")


def plain_text(value: object, field: str) -> str:
    """Return a text unchanged if both engines can hold it: any text without NUL and lone surrogates (VA-01, VA-02)."""
    if not isinstance(value, str):
        raise InvalidValue(field, f"must be text, not {type(value).__name__}")
    found = UNSTORABLE.search(value)
    if found:
        raise InvalidValue(
            field, f"holds U+{ord(found[0]):04X} at character {found.start() + 1}, which cannot be stored"
        )
    return value


def opaque_text(value: object, field: str) -> str:
    """Return a text unchanged if it is storable and not empty."""
    text = plain_text(value, field)
    if not text:
        raise InvalidValue(field, "must not be empty")
    return text


class CheckedText(TypeDecorator[str]):
    """TEXT whose values pass a check that returns the stored form or raises naming the field.

    `check` is called as `check(value, field)`; an `optional` field may be None. Bound values in WHERE clauses pass it
    too, so that a sender is looked up in the form in which it was stored.
    """

    impl = Text
    cache_ok = True

    def __init__(self, field: str, check: Callable[[object, str], str] = plain_text, *, optional: bool = False) -> None:
        super().__init__()
        self.field = field
        self.check = check
        self.optional = optional

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Check the value; None is NULL where the field is optional, and no value where it is not."""
        return None if value is None and self.optional else self.check(value, self.field)


class Identifier(CheckedText):
    """TEXT for keys, compared code point by code point on both engines (`COLLATE "C"` on PostgreSQL)."""

    cache_ok = True

    def __init__(self, field: str, check: Callable[[object, str], str] = identifier, *, optional: bool = False) -> None:
        super().__init__(field, check, optional=optional)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Use the byte order as collation where the engine would apply a language's."""
        # Not through type_descriptor: psycopg's own string type would make a VARCHAR of it.
        return Text(collation="C") if dialect.name == "postgresql" else Text()


class UtcText(TypeDecorator[datetime]):
    """An instant as fixed-width UTC text with milliseconds, `2026-11-29T11:00:00.000Z`; TIMESTAMPTZ on PostgreSQL.

    Fixed width, so that comparing texts compares instants (TM-03). A naive datetime is refused (TM-02). Reading also
    understands what other hands wrote: ISO text with or without fraction or zone (taken as UTC), and epoch seconds.
    """

    impl = Text
    cache_ok = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Store a real instant where the engine has one."""
        return dialect.type_descriptor(TIMESTAMP(timezone=True) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return the stored form, cut to milliseconds."""
        if value is None:
            return None
        instant = aware(value, self.field)
        if dialect.name == "postgresql":
            return instant.replace(microsecond=instant.microsecond // 1000 * 1000)
        return utc_text(instant)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return an aware UTC datetime; raises `UnreadableValue` for what is no time."""
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return parse_instant(value, self.field)


class UnixSeconds(TypeDecorator[datetime]):
    """An instant as whole seconds since 1970 (INTEGER, BIGINT on PostgreSQL); fractions are cut."""

    impl = BigInteger
    cache_ok = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Use SQLite's one integer type by its own name."""
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Return whole seconds."""
        return None if value is None else int(aware(value, self.field).timestamp() // 1)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return an aware UTC datetime; raises `UnreadableValue` for what is no time."""
        return None if value is None else parse_instant(value, self.field)


class Int64(TypeDecorator[int]):
    """An integer of 64 bits; anything else is refused before the driver can fail on it (VA-04)."""

    impl = BigInteger
    cache_ok = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Use SQLite's one integer type by its own name."""
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else BigInteger())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        """Check type and range; None stays NULL."""
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidValue(self.field, f"must be a whole number, not {type(value).__name__}")
        if not -(2**63) <= value < 2**63:
            raise InvalidValue(self.field, f"{value} does not fit 64 bits")
        return value


class JsonObject(dict[str, Any]):
    """A JSON object that remembers the text it was read from, so that a change in place is noticed (VA-11)."""

    __slots__ = ("text",)
    text: str


class JsonArray(list[Any]):
    """A JSON array that remembers the text it was read from."""

    __slots__ = ("text",)
    text: str


class JsonText(TypeDecorator[Any]):
    """A JSON value as compact TEXT on both engines, so that documents come back byte for byte (VA-05).

    Non-ASCII is kept raw, a pair of surrogates being the character it stands for; NUL and lone surrogates are escaped
    and round-trip exactly; NaN, Infinity and what JSON does not know are refused with their path; None is SQL NULL,
    never the text `null` (VA-10). Objects and arrays changed in place are saved when the unit of work commits.
    """

    impl = Text
    cache_ok = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Return the stored text."""
        return None if value is None else json_text(value, self.field)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value; raises `UnreadableValue` for what is not JSON."""
        if value is None:
            return None
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UnreadableValue("", self.field, f"not JSON ({error})") from None
        if isinstance(found, dict):
            found = JsonObject(found)
            found.text = value
        elif isinstance(found, list):
            found = JsonArray(found)
            found.text = value
        return found

    @staticmethod
    def changed_in_place(value: object) -> bool:
        """Return whether a value that was read has been changed since."""
        if not isinstance(value, JsonObject | JsonArray) or not hasattr(value, "text"):
            return False
        return _dumps(value) != _dumps(json.loads(value.text))


def json_text(value: object, field: str) -> str:
    """Return the value as compact JSON; raises `InvalidValue` naming the path of what JSON cannot hold (VA-03)."""
    try:
        text = _dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        path, reason = _culprit(value, field) or (field, str(error))
        raise InvalidValue(path, reason) from None
    # Raw non-ASCII is kept, but a lone surrogate is not UTF-8: it is written as its escape (VA-02).
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _culprit(value: object, path: str) -> tuple[str, str] | None:
    """Return path and reason of the first value that JSON cannot hold, by looking at one level after the other."""
    level: list[tuple[str, object]] = [(path, value)]
    for _ in range(1_000):
        below: list[tuple[str, object]] = []
        for at, item in level:
            if isinstance(item, dict):
                below += [(f"{at}.{key}", entry) for key, entry in item.items()]
            elif isinstance(item, list | tuple):
                below += [(f"{at}[{index}]", entry) for index, entry in enumerate(item)]
            elif isinstance(item, float) and item - item != 0:
                return at, f"{item} is not a JSON number"
            elif item is not None and not isinstance(item, str | int | float):
                return at, f"a {type(item).__name__} is not a JSON value"
        if not below:
            return None
        level = below
    return path, "is nested too deeply, or contains itself"


def aware(value: object, field: str) -> datetime:
    """Return the instant in UTC; raises `InvalidValue` for anything but an aware datetime (TM-02)."""
    if not isinstance(value, datetime):
        raise InvalidValue(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidValue(field, "has no time zone: use an aware datetime, such as datetime.now(UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidValue(field, "lies outside the years 1 to 9999 in UTC") from None


def utc_text(instant: datetime) -> str:
    """Return the 24-character stored form of an aware UTC datetime."""
    return instant.isoformat(timespec="milliseconds")[:23] + "Z"


def parse_instant(value: object, field: str) -> datetime:
    """Return the instant that a stored value means, as aware UTC.

    Understood are ISO 8601 text with any fraction and offset (without one: UTC) and seconds since 1970, as a number
    or as its text. Raises `UnreadableValue` for anything else.
    """
    try:
        if isinstance(value, str) and not re.fullmatch(r"\s*[+-]?\d{9,}(\.\d*)?\s*", value):
            found = datetime.fromisoformat(value.strip())
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        if isinstance(value, str | int | float):
            return datetime.fromtimestamp(float(value), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise UnreadableValue("", field, f"{value!r} is not a time")
