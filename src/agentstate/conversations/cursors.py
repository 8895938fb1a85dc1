"""Cursors: where a list goes on, as one opaque word.

It holds the list's order and the last row's place in it, so that rows which come or go between two pages neither shift
nor repeat the others.
"""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode

from agentstate.errors import InvalidCursor, InvalidValue


def encode_cursor(sort: str, descending: bool, value: str, key: str) -> str:
    """Return the cursor that asks for what comes after the row of that sort value and key, both as they are stored."""
    text = json.dumps([sort, _direction(descending), value, key], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: object, sort: str, descending: bool) -> tuple[str, str]:
    """Return sort value and key from a cursor; raises `InvalidCursor` if it is damaged or of another order."""
    if not isinstance(cursor, str):
        raise InvalidValue("cursor", f"must be text, not {type(cursor).__name__}")
    try:
        # Strictly: the usual decoder skips what is not base64, and a damaged cursor would mean another place.
        found = json.loads(b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise InvalidCursor from None
    match found:
        case [str() as its_sort, str() as direction, str() as value, str() as key]:
            if (its_sort, direction) == (sort, _direction(descending)):
                return value, key
    raise InvalidCursor


def _direction(descending: bool) -> str:
    return "desc" if descending else "asc"
