"""Who and what: the rules for roles, senders, job ids and other keys, decided before SQL.

Pure functions that know nothing else of ours, because every area and every entry applies the same ones. Each
returns the text as it is stored, or raises `InvalidIdentifier` or `InvalidRole` naming the field.
"""

from __future__ import annotations

import re

from agentstate.errors import InvalidIdentifier, InvalidRole

MAX_IDENTIFIER_LENGTH = 512
"""Characters. PostgreSQL refuses index rows over 2,704 bytes, so a longer key would work on one engine only (PG-04)."""

_ROLE = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# NUL ends a text in SQLite's functions and is refused by PostgreSQL; lone surrogates are not UTF-8 (VA-01, VA-02).
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# What people wrote may hold characters that command a terminal, or turn the direction of its text.
UNSAFE_TO_SHOW = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def identifier(value: object, field: str) -> str:
    """Return a key unchanged once it is known to be storable as one.

    `value` must be text of 1 to 512 characters that is not all blanks and holds no NUL and no lone surrogate. It is
    compared code point by code point: nothing is folded or normalised.
    """
    if not isinstance(value, str):
        raise InvalidIdentifier(field, f"must be text, not {type(value).__name__}")
    if not value or value.isspace():
        raise InvalidIdentifier(field, "must not be empty")
    if len(value) > MAX_IDENTIFIER_LENGTH:
        raise InvalidIdentifier(field, f"has {len(value)} characters; at most {MAX_IDENTIFIER_LENGTH} are allowed")
    found = UNSTORABLE.search(value)
    if found:
        raise InvalidIdentifier(field, f"holds U+{ord(found[0]):04X} at character {found.start() + 1}")
    return value


def valid_role(value: object, field: str = "role") -> str:
    """Return the role's name unchanged: a lower-case letter, then at most 63 of a-z, 0-9, _ and -.

    Names that differ by case or blanks are refused rather than merged: the role is the only thing that separates
    two roles in one file (ID-03).
    """
    if not isinstance(value, str) or not _ROLE.fullmatch(value):
        raise InvalidRole(field, f"{value!r} is not a role: use 1 to 64 of a-z, 0-9, _ and -, a letter first")
    return value


def normalise_sender(value: object, field: str = "sender") -> str:
    """Return the one form of a sender under which a person is remembered, whatever device they write from.

    Text with an `@` is an address: it is cut at the first `/` after the `@` (what follows names a device: `a@b/c@d`
    is `a@b`), surrounding blanks go, and it is lower-cased with Python's `str.lower` (so `ß` stays and `İ` becomes
    two characters; nothing else is folded). Any other text keeps its case and loses only surrounding blanks.
    Sources: roles-and-approvals section 2, ID-01, ID-02.
    """
    if not isinstance(value, str):
        raise InvalidIdentifier(field, f"must be text, not {type(value).__name__}")
    text = value.strip()
    at = text.find("@")
    if at >= 0:
        resource = text.find("/", at)
        if resource >= 0:
            text = text[:resource]
        text = text.strip().lower()
    return identifier(text, field)


def valid_job_id(value: object, field: str = "job_id") -> str:
    """Return the job id unchanged: an identifier that can also be the name of one file in a queue directory.

    So it holds no `/` and is neither `.` nor `..`.
    """
    text = identifier(value, field)
    if "/" in text or text in (".", ".."):
        raise InvalidIdentifier(field, f"{text!r} cannot name a file in a queue: no '/', and not '.' or '..'")
    return text
