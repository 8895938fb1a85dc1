"""What can go wrong with conversations and their turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentstate.errors.base import AgentStateError, Conflict, InvalidValue, NotFound


class ConversationNotFound(NotFound):
    """There is no conversation of that key."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"there is no conversation {self.key!r}; 'agentstate conversations --json' lists the keys"


class TurnNotFound(NotFound):
    """There is no turn of that id: it never was, or it has been compacted away."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id

    def __str__(self) -> str:
        return f"there is no turn {self.turn_id!r}: never stored, or compacted away; look into its conversation"


class TurnUnreadable(AgentStateError):
    """A stored turn is not what this program writes: its messages or its meta do not decode."""

    def __init__(self, conversation_key: str, seq: int, turn_id: str) -> None:
        super().__init__(conversation_key, seq, turn_id)
        self.conversation_key = conversation_key
        self.seq = seq
        self.turn_id = turn_id

    def __str__(self) -> str:
        return (
            f"turn {self.seq} of conversation {self.conversation_key!r} cannot be read; "
            f"look at it with SELECT messages, meta FROM turns WHERE id = '{self.turn_id}', and repair its JSON"
        )


class SaveFailed(AgentStateError):
    """Some conversations could not be saved; they stay unsaved in memory. `failures` maps each key to its error."""

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        super().__init__(dict(failures))
        self.failures = dict(failures)

    def __str__(self) -> str:
        shown = ", ".join(f"{key}: {error}" for key, error in list(self.failures.items())[:5])
        return f"{len(self.failures)} of the conversations could not be saved and stay in memory ({shown}); try again"


class NotASessionStore(AgentStateError):
    """The file is not a database of the original program's sessions."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} cannot be imported: {self.reason}; name a directory of session files or a session database"


class ConversationExists(Conflict):
    """The key is taken."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"there is a conversation {self.key!r} already; use another key"


class ConversationEnded(Conflict):
    """The conversation has ended and takes no more turns."""

    def __init__(self, key: str, status: str) -> None:
        super().__init__(key, status)
        self.key = key
        self.status = status

    def __str__(self) -> str:
        return (
            f"conversation {self.key!r} has ended ({self.status}) and takes no more turns; "
            "set its status to 'active' to go on with it"
        )


class ConversationHasChildren(Conflict):
    """The conversation cannot be deleted: `inheriting` are branches that need its turns, `running` are at work."""

    def __init__(self, key: str, inheriting: Sequence[str], running: Sequence[str]) -> None:
        super().__init__(key, tuple(inheriting), tuple(running))
        self.key = key
        self.inheriting = tuple(inheriting)
        self.running = tuple(running)

    def __str__(self) -> str:
        branches = f"{_some(self.inheriting)} continue it" if self.inheriting else ""
        if self.running:
            at_work = f"still at work below it: {_some(self.running)}"
            reasons = " and ".join(filter(None, [at_work, branches]))
            return (
                f"conversation {self.key!r} cannot be deleted: {reasons}; set the status of what is at work to its end"
            )
        return (
            f"conversation {self.key!r} cannot be deleted: {branches}; "
            "use children='keep' to give them what they need of it, or children='cascade' to delete them too"
        )


class ConversationChanged(Conflict):
    """Somebody else wrote to the conversation meanwhile: `expected` was seen, `actual` is stored."""

    def __init__(self, key: str, expected: object, actual: object) -> None:
        super().__init__(key, expected, actual)
        self.key = key
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return (
            f"conversation {self.key!r} was changed by somebody else meanwhile "
            f"(expected {self.expected!r}, found {self.actual!r}); look at it again and decide again"
        )


class StaleCompaction(ConversationChanged):
    """Somebody compacted the conversation since the snapshot that was summarised."""

    def __str__(self) -> str:
        if isinstance(self.actual, int):
            what = f"is compacted up to turn {self.actual} already, which does not go with {self.expected!r}"
        else:
            what = f"has another summary, {_short(self.actual)}, than {_short(self.expected)}"
        return f"conversation {self.key!r} {what}; look at it again, and summarise what is there now"


class TurnConflict(Conflict):
    """The turn's id is taken by a turn with other content, or in another conversation (`conversation_key`)."""

    def __init__(self, turn_id: str, conversation_key: str) -> None:
        super().__init__(turn_id, conversation_key)
        self.turn_id = turn_id
        self.conversation_key = conversation_key

    def __str__(self) -> str:
        return (
            f"turn id {self.turn_id!r} is taken by another turn of conversation {self.conversation_key!r}; "
            "use a new id for a new turn"
        )


class TurnAlreadyCommitted(Conflict):
    """The turn is stored: nothing can be added to it or taken back."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id

    def __str__(self) -> str:
        return f"turn {self.turn_id!r} is stored already and stays as it is; use another turn for more"


class TurnDiscarded(Conflict):
    """The turn was given up: nothing of it is stored."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id

    def __str__(self) -> str:
        return f"turn {self.turn_id!r} was discarded and nothing of it is stored; use another turn"


class AmbiguousKey(Conflict):
    """The beginning fits several conversations; `candidates` are the first ten of their keys."""

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(prefix, tuple(candidates))
        self.prefix = prefix
        self.candidates = tuple(candidates)

    def __str__(self) -> str:
        return f"{self.prefix!r} is the beginning of several keys: {', '.join(self.candidates)}; name one in full"


class InvalidMessage(InvalidValue):
    """A message is not one, or holds what JSON cannot hold; `path` says where, such as `messages[2].meta.score`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path


class EmptyTurn(InvalidValue):
    """A turn needs at least one message."""

    def __init__(self, field: str = "messages", reason: str = "a turn needs at least one message") -> None:
        super().__init__(field, reason)


class TurnTooLarge(InvalidValue):
    """The turn's messages are larger than a turn may be; `size` and `limit` are bytes of stored text."""

    def __init__(self, size: int, limit: int) -> None:
        AgentStateError.__init__(self, size, limit)
        self.field = "messages"
        self.reason = (
            f"{size} bytes are more than the {limit} that one turn may hold; "
            "set the large part aside as a file, and keep its path and a preview in the message"
        )
        self.size = size
        self.limit = limit


class ReportRoleRefused(InvalidValue):
    """A report, question or plan must speak as a user, so that the conductor may doubt it."""

    def __init__(self, kind: str, role: str) -> None:
        AgentStateError.__init__(self, kind, role)
        self.field = "messages"
        self.reason = (
            f"a {kind} begins with a message of role 'user' and holds none of role 'system' or 'developer', "
            f"but this one has {role!r}; use 'user': what another agent says is a claim, not an instruction"
        )
        self.kind = kind
        self.role = role


class OriginMissing(InvalidValue):
    """A report, question or plan must say which conversation it comes from."""

    def __init__(self, kind: str) -> None:
        AgentStateError.__init__(self, kind)
        self.field = "origin_key"
        self.reason = f"a {kind} must name the conversation that it comes from: set origin_key"
        self.kind = kind


class EmptySummary(InvalidValue):
    """A blank summary would erase the history that it is to stand for."""

    def __init__(self, field: str = "summary", reason: str = "") -> None:
        super().__init__(field, reason or "a blank summary would erase what it stands for; nothing was compacted")


class InvalidCursor(InvalidValue):
    """The cursor is damaged, or belongs to a list in another order."""

    def __init__(self, field: str = "cursor", reason: str = "") -> None:
        super().__init__(field, reason or "it is damaged or belongs to a list in another order; start without one")


def _some(keys: Sequence[str]) -> str:
    shown = ", ".join(map(repr, keys[:5]))
    return shown if len(keys) <= 5 else f"{shown} and {len(keys) - 5} more"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
