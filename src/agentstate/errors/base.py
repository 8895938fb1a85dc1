"""The root of the tree and the branches that every area shares."""

from __future__ import annotations


class AgentStateError(Exception):
    """Root of the tree: catching it catches everything that agentstate raises on purpose."""


class NotFound(AgentStateError):
    """The thing asked for is not there."""


class Conflict(AgentStateError):
    """What is asked contradicts what is stored; nothing was changed."""


class InvalidValue(AgentStateError):
    """A value was refused before anything was written: `field` names it, `reason` says why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class InvalidIdentifier(InvalidValue):
    """A key is empty, too long, or holds what a key cannot hold."""


class InvalidRole(InvalidValue):
    """A role's name is a lower-case word: letters, digits, - and _, at most 64, a letter first."""


class InvalidSetting(InvalidValue):
    """An environment variable holds a value that agentstate does not understand."""


class TooLarge(InvalidValue):
    """The value is larger than the database can hold."""


class Forbidden(AgentStateError):
    """`who` may not do this: the request is somebody else's. Nothing was changed."""

    def __init__(self, who: str, what: str) -> None:
        super().__init__(who, what)
        self.who = who
        self.what = what

    def __str__(self) -> str:
        return f"{self.who!r} may not {self.what}; only the one whose request it is may"
