"""The error tree: as it is drawn, whole after a journey between processes, and of use to who reads it."""

from __future__ import annotations

import inspect
import pickle
import re
from datetime import datetime
from typing import Any

import pytest

from agentstate import errors
from agentstate.errors import AgentStateError
from builders import NOON

# One value for each fact that an error can carry, by the name of its attribute.
FACTS: dict[str, Any] = {
    "job_id": "job-17",
    "repo_dir": "/srv/repo",
    "kind": "approval",
    "by": "builder@7",
    "at": NOON,
    "commit_sha": "abc1234",
    "database": "/var/lib/agent.db",
    "detail": "what SQLite said",
    "reason": "the reason why",
    "revision": "0002",
    "losses": {"pending_approval": 3, "start_pending": 1},
    "field": "session_id",
    "who": "bob@bot.example",
    "what": "decide this request",
    "marker": "agent-codex job-17",
    "refs": ("stash@{0}", "stash@{2}"),
    "seconds": 30.0,
    "found": "0001",
    "expected": "0003",
    "tables": ("books", "loans"),
    "hint": "it is the library's",
    "command": "pg_dump --format=custom",
    "key": "agent:ada:main",
    "conversation_key": "agent:ada:main",
    "turn_id": "turn-17",
    "seq": 17,
    "status": "completed",
    "inheriting": ("agent:ada:idea",),
    "running": ("subagent:scout-1",),
    "actual": "0004",
    "prefix": "agent:",
    "candidates": ("agent:ada:main", "agent:bob:main"),
    "path": "/srv/sessions.db",
    "failures": {"agent:ada:main": "disk full"},
    "size": 34_603_008,
    "limit": 33_554_432,
    "needed": 104_857_600,
    "free": 52_428_800,
    "role": "system",
}

# What a message need not repeat: a word that it spells out, and a marker that is in the detail.
SAID_OTHERWISE = {"AlreadyPending": {"kind"}}


def every_class() -> list[type[AgentStateError]]:
    """Return the root and all classes below it that are ours."""
    found: list[type[AgentStateError]] = []
    waiting: list[type[AgentStateError]] = [AgentStateError]
    while waiting:
        found.append(waiting.pop(0))
        waiting += [kind for kind in found[-1].__subclasses__() if kind.__module__.startswith("agentstate")]
    return found


CLASSES = every_class()
GROUPS = {"AgentStateError", "NotFound", "Conflict"}
CONCRETE = [kind for kind in CLASSES if kind.__name__ not in GROUPS]


def parameters(kind: type[AgentStateError]) -> list[str]:
    """Return the names of a class's facts, in the order in which it takes them."""
    return [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    ]


def an_error(kind: type[AgentStateError]) -> AgentStateError:
    """Make an error of that class."""
    return kind(*(FACTS[name] for name in parameters(kind)))


def drawn() -> dict[str, tuple[str | None, set[str]]]:
    """Return each class in the drawing of the module's docstring, with its parent and the attributes beside it."""
    found: dict[str, tuple[str | None, set[str]]] = {}
    above: list[str] = []
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        match = re.fullmatch(
            r"((?:    |│   |├── |└── )*)([A-Z]\w+)(?:  +([a-z_, ]+?))?(?:   +.*)?", line.removeprefix("    ")
        )
        if match is None or (not match[1] and match[2] != "AgentStateError"):
            continue
        depth = len(match[1]) // 4
        above[depth:] = [match[2]]
        found[match[2]] = (above[depth - 1] if depth else None, set(re.findall(r"\w+", match[3] or "")))
    return found


def test_the_tree_is_as_it_is_drawn() -> None:
    """Who catches an error reads the drawing, and not fifty classes."""
    ours = {kind.__name__: kind.__mro__[1].__name__ if kind is not AgentStateError else None for kind in CLASSES}

    assert {name: parent for name, (parent, _) in drawn().items()} == ours


@pytest.mark.parametrize("name", sorted(drawn()))
def test_the_attributes_are_as_they_are_drawn(name: str) -> None:
    """The drawing lists what a class adds to the one above it."""
    kind = getattr(errors, name)
    parent, written = drawn()[name]
    inherited: set[str] = set()
    while parent is not None:
        parent, more = drawn()[parent]
        inherited |= more

    has = set(vars(an_error(kind))) if name not in GROUPS else set()

    assert written <= has
    assert has <= written | inherited


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_is_public_and_explained(kind: type[AgentStateError]) -> None:
    """`from agentstate.errors import …` is the one path, whatever file a class is in."""
    assert getattr(errors, kind.__name__) is kind
    assert kind.__name__ in errors.__all__
    assert kind.__doc__
    assert "__doc__" in vars(kind)


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_with_its_facts(kind: type[AgentStateError]) -> None:
    """An error that cannot be unpickled breaks the pool of processes it comes from, instead of being reported."""
    error = an_error(kind)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(error, protocol))

        assert type(found) is kind
        assert vars(found) == vars(error)
        assert str(found) == str(error)
        assert found.args == error.args


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_an_error_carries_what_it_was_given(kind: type[AgentStateError]) -> None:
    """Programs read attributes; who parses a message breaks when it gets better."""
    error = an_error(kind)

    for name in set(parameters(kind)) - {"marker"}:
        assert getattr(error, name) == FACTS[name]


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)
def test_a_message_names_its_facts_in_one_line(kind: type[AgentStateError]) -> None:
    """'database is locked' named neither the database nor anything to do."""
    message = str(an_error(kind))

    assert message
    assert "\n" not in message
    assert not message.endswith(".")  # so that it can be put into another sentence
    for name in set(parameters(kind)) - SAID_OTHERWISE.get(kind.__name__, set()):
        for text in spoken(FACTS[name]):
            assert text in message


def spoken(fact: Any) -> list[str]:
    """Return how a message may name a fact: the parts that have to be in it."""
    if isinstance(fact, dict):
        return [f"{name}: {count}" for name, count in fact.items()]
    if isinstance(fact, tuple):
        return list(fact)
    if isinstance(fact, datetime):
        return [fact.strftime("%Y-%m-%d %H:%M")]
    return [f"{fact:g}"] if isinstance(fact, float) else [str(fact)]


# Errors whose reason or detail, given where they are raised, says what is wrong with what the caller can change.
SELF_EXPLAINING = {"InvalidValue", "InvalidIdentifier", "InvalidRole", "InvalidSetting", "NothingToApprove", "TooLarge"}
SELF_EXPLAINING |= {"InvalidMessage", "EmptyTurn", "EmptySummary", "InvalidCursor"}
DESCRIBING = {"StashError", "DatabaseUnavailable", "DatabaseError", "CannotAdopt", "ConstraintViolated", "Forbidden"}


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CONCRETE if kind.__name__ not in SELF_EXPLAINING | DESCRIBING],
    ids=lambda kind: kind.__name__,
)
def test_a_message_says_what_to_do(kind: type[AgentStateError]) -> None:
    """The person who reads it at night knows the next step, and need not know the code."""
    first, separator, advice = re.split(r"(; |: )", str(an_error(kind)), maxsplit=1)

    assert first
    assert separator
    assert re.search(
        r"'agentstate |\b(use|accept|name|wait|look|drop|set|restore|remove|check|stop|try|free|open|correct|install|"
        r"point|run|force)\b",
        advice,
    )


def test_the_kind_of_the_waiting_record_is_spelled_out() -> None:
    """'kind: start' is for programs; a person reads what the job waits for."""
    assert "waits for its start" in str(errors.AlreadyPending("job-1", "start"))
    assert "waits for its release" in str(errors.AlreadyPending("job-1", "approval"))


def test_a_schema_that_is_not_there_is_not_called_none() -> None:
    """A new file is not 'at schema revision None'."""
    assert "has no schema yet" in str(errors.SchemaBehind("/var/lib/agent.db", None, "0003"))


def test_many_tables_of_a_stranger_are_not_all_listed() -> None:
    """The first few tell whose database it is; the attribute has them all."""
    error = errors.ForeignDatabase("/var/lib/other.db", [f"table_{number}" for number in range(50)])

    assert len(error.tables) == 50
    assert "table_4" in str(error)
    assert "table_5" not in str(error)


def test_facts_are_copied_and_cannot_be_changed_from_outside() -> None:
    """The list that the caller goes on using is not the error's, here or in another process."""
    losses, tables, refs = {"sessions": 1}, ["books"], ["stash@{0}"]
    lost = errors.DowngradeLosesData("0001", losses)
    foreign = errors.ForeignDatabase("/x", tables)
    ambiguous = errors.AmbiguousStash("/r", "m", refs)

    losses["sessions"] = 2
    tables.append("loans")
    refs.append("stash@{1}")

    for error in (lost, pickle.loads(pickle.dumps(lost))):
        assert error.losses == {"sessions": 1}
    for error in (foreign, pickle.loads(pickle.dumps(foreign))):
        assert error.tables == ("books",)
    for error in (ambiguous, pickle.loads(pickle.dumps(ambiguous))):
        assert error.refs == ("stash@{0}",)


def test_a_value_of_a_database_without_a_name_is_still_placed() -> None:
    """The types that read values do not know which database they are in."""
    assert str(errors.UnreadableValue("", "seen_at", "'x' is not a time")).startswith("the database holds a value in")
