"""The exit codes of every command, and which error ends in which."""

from __future__ import annotations

from agentstate import errors

NO = 1
USAGE = 2
BEHIND = 3
AHEAD = 4
UNVERSIONED = 5
CORRUPT = 6
MISSING = 7
PARTLY = 8
TRY_AGAIN = 9

# The first class that fits decides.
_BY_ERROR: tuple[tuple[type[errors.AgentStateError], int], ...] = (
    (errors.SchemaBehind, BEHIND),
    (errors.SchemaAhead, AHEAD),
    (errors.SchemaUnversioned, UNVERSIONED),
    (errors.ForeignDatabase, UNVERSIONED),
    (errors.DatabaseCorrupt, CORRUPT),
    (errors.NotADatabase, CORRUPT),
    (errors.UnreadableValue, CORRUPT),
    (errors.DatabaseMissing, MISSING),
    (errors.DatabaseEmpty, MISSING),
    (errors.DatabaseNotConfigured, USAGE),
    (errors.DatabaseError, TRY_AGAIN),
    (errors.InvalidValue, USAGE),
)


def exit_code(error: errors.AgentStateError) -> int:
    """Return the exit code that tells a script what kind of error it was; 1 for what is not listed."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), NO)
