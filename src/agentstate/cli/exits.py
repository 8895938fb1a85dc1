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
    (errors.TurnUnreadable, CORRUPT),
    (errors.DatabaseMissing, MISSING),
    (errors.DatabaseEmpty, MISSING),
    (errors.DatabaseNotConfigured, USAGE),
    (errors.ServerDatabase, NO),
    (errors.DatabaseError, TRY_AGAIN),
    (errors.InvalidValue, USAGE),
)


_VALUES_ARE_ANSWERS = frozenset({"conversations"})
"""Groups in which a refused value is an answer (no), not wrong usage: it often depends on what is stored."""


def exit_code(error: errors.AgentStateError, group: str = "") -> int:
    """Return the exit code that tells a script what kind of error it was; 1 for what is not listed.

    `group` is the first word of the command. A setting or a database that cannot be is wrong usage in all of them.
    """
    if group in _VALUES_ARE_ANSWERS and isinstance(error, errors.InvalidValue):
        return USAGE if isinstance(error, errors.InvalidSetting) or error.field == "database" else NO
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), NO)
