"""The environment: which database, and how to wait for it and write to it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from agentstate import adapter
from agentstate.errors import DatabaseBusy, DatabaseNotConfigured, InvalidSetting
from agentstate.settings import Settings, configured_ages, configured_target, debug_wanted, read_settings
from builders import agentstate
from db_helpers import asked, holding, made

SENDER = "alice@bot.example"


def test_a_silent_environment_gives_the_defaults() -> None:
    """The defaults are the patient and the durable ones; WAL or not depends on the file system."""
    assert read_settings({}) == Settings(busy_timeout=30.0, journal_mode=None, synchronous="full")
    assert read_settings({"AGENT_DB_BUSY_TIMEOUT": "", "AGENT_DB_JOURNAL_MODE": ""}) == Settings()


def test_every_setting_is_read() -> None:
    """What is set is what is used, in any case of letters."""
    found = read_settings(
        {"AGENT_DB_BUSY_TIMEOUT": "2.5", "AGENT_DB_JOURNAL_MODE": "DELETE", "AGENT_DB_SYNCHRONOUS": "Extra"}
    )

    assert found == Settings(busy_timeout=2.5, journal_mode="delete", synchronous="extra")


@pytest.mark.parametrize("mode", ["wal", "delete", "truncate", "persist"])
@pytest.mark.parametrize("level", ["full", "normal", "extra"])
def test_every_documented_value_is_understood(mode: str, level: str) -> None:
    """The list in the manual is the list in the code."""
    found = read_settings({"AGENT_DB_JOURNAL_MODE": mode, "AGENT_DB_SYNCHRONOUS": level})

    assert (found.journal_mode, found.synchronous) == (mode, level)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AGENT_DB_BUSY_TIMEOUT", "soon"),
        ("AGENT_DB_BUSY_TIMEOUT", "-1"),
        ("AGENT_DB_BUSY_TIMEOUT", "nan"),
        ("AGENT_DB_BUSY_TIMEOUT", "inf"),
        ("AGENT_DB_BUSY_TIMEOUT", "3000000"),
        ("AGENT_DB_BUSY_TIMEOUT", "30s"),
        ("AGENT_DB_JOURNAL_MODE", "off"),
        ("AGENT_DB_JOURNAL_MODE", "memory"),
        ("AGENT_DB_JOURNAL_MODE", " wal"),
        ("AGENT_DB_SYNCHRONOUS", "off"),
        ("AGENT_DB_SYNCHRONOUS", "1"),
    ],
)
def test_a_value_that_is_not_understood_names_its_variable(variable: str, value: str) -> None:
    """A typing error that falls back to a default is found after the first loss."""
    with pytest.raises(InvalidSetting) as caught:
        read_settings({variable: value})

    assert caught.value.field == variable
    assert str(caught.value).startswith(f"{variable}: {value!r} is not ")


def test_a_timeout_of_zero_is_allowed() -> None:
    """Not to wait at all is a choice."""
    assert read_settings({"AGENT_DB_BUSY_TIMEOUT": "0"}).busy_timeout == 0


def test_without_a_database_the_variables_are_named() -> None:
    """Guessing a path would start a second, empty memory."""
    for environment in ({}, {"AGENT_DB_PATH": "", "AGENT_DB_URL": ""}):
        with pytest.raises(DatabaseNotConfigured, match=r"AGENT_DB_PATH .* AGENT_DB_URL"):
            configured_target(environment)


def test_either_variable_names_the_database() -> None:
    """A path for people, a URL for programs."""
    assert configured_target({"AGENT_DB_PATH": "/srv/agent.db"}) == "/srv/agent.db"
    assert configured_target({"AGENT_DB_URL": "sqlite:////srv/agent.db"}) == "sqlite:////srv/agent.db"


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/srv/agent.db", "sqlite:////srv/agent.db"),
        ("/srv/agent.db", "sqlite+pysqlite:////srv/agent.db"),
        ("/srv/./x/../agent.db", "sqlite:////srv/agent.db"),
        ("agent.db", "sqlite:///agent.db"),
    ],
)
def test_two_names_of_one_database_are_one(path: str, url: str) -> None:
    """A service that sets both, to the same, is not a mistake."""
    assert configured_target({"AGENT_DB_PATH": path, "AGENT_DB_URL": url}) == url


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////srv/other.db",
        "sqlite:///agent.db",
        "postgresql+psycopg://agent:secret@db.example/agent",
        "nonsense",
    ],
)
def test_two_databases_at_once_are_refused_without_a_password(url: str) -> None:
    """Whichever of the two were taken, half of the programs would write into the other."""
    with pytest.raises(InvalidSetting) as caught:
        configured_target({"AGENT_DB_PATH": "/srv/agent.db", "AGENT_DB_URL": url})

    assert caught.value.field == "AGENT_DB_PATH and AGENT_DB_URL"
    assert "secret" not in f"{caught.value} {caught.value!r}"


def test_debugging_is_asked_for_with_anything() -> None:
    """AGENTSTATE_DEBUG=1 and AGENTSTATE_DEBUG=yes are the same; empty is not set."""
    assert [debug_wanted({"AGENTSTATE_DEBUG": value}) for value in ("1", "0", "")] == [True, True, False]
    assert not debug_wanted({})


@pytest.mark.parametrize("variable", ["AGENT_DB_PATH", "AGENT_DB_URL"])
def test_the_adapter_uses_the_environments_database(path: Path, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts name no database: the unit that starts them does."""
    made(path)
    monkeypatch.setenv(variable, str(path) if variable == "AGENT_DB_PATH" else f"sqlite:///{path}")

    adapter.save_session("worker", SENDER, "s-1")

    assert asked(path, "SELECT session_id FROM sessions") == "s-1"


def test_the_adapter_waits_as_long_as_the_environment_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting read once at import would not be the one of the unit that runs now."""
    made(path)
    monkeypatch.setenv("AGENT_DB_PATH", str(path))
    monkeypatch.setenv("AGENT_DB_BUSY_TIMEOUT", "0.05")

    with holding(path, "BEGIN IMMEDIATE"), pytest.raises(DatabaseBusy) as caught:
        adapter.save_session("worker", SENDER, "s-1")

    assert caught.value.seconds == 0.05


def test_the_adapter_without_a_database_says_which_variable_to_set() -> None:
    """The first thing that every newcomer meets."""
    with pytest.raises(DatabaseNotConfigured, match="set AGENT_DB_PATH"):
        adapter.load_session("worker", SENDER)


def test_the_command_line_names_a_bad_setting_in_one_line(path: Path) -> None:
    """A person at a terminal gets the variable's name, and no traceback."""
    found = agentstate("status", AGENT_DB_PATH=str(path), AGENT_DB_JOURNAL_MODE="wall")

    assert found.returncode == 2
    assert found.stderr.startswith("agentstate: AGENT_DB_JOURNAL_MODE: 'wall' is not one of ")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("90m", timedelta(minutes=90)),
        ("0s", timedelta(0)),
        ("7D", timedelta(days=7)),
        ("never", None),
        ("Never", None),
    ],
)
def test_how_long_rows_are_kept_is_a_number_and_a_unit(text: str, age: timedelta | None) -> None:
    """A number alone would be days to one and seconds to another."""
    assert configured_ages(["events", "turn_stats"], {"AGENT_KEEP_TURN_STATS": text}) == {"turn_stats": age}


def test_no_setting_keeps_rows_as_long_as_the_policy_says() -> None:
    """What is not set is not in the answer; an empty variable counts as not set."""
    assert configured_ages(["events"], {"AGENT_KEEP_EVENTS": "", "AGENT_DB_PATH": "x", "AGENT_KEEPER": "y"}) == {}


@pytest.mark.parametrize("text", ["7", "d", "-7d", "7 d", "1.5h", "7w", "7d,", "\u0667d", "1234567890d", "0", "none"])
def test_an_age_that_is_not_understood_names_its_variable(text: str) -> None:
    """A typing error that falls back to a default is found after the first loss."""
    with pytest.raises(InvalidSetting, match=r"AGENT_KEEP_EVENTS: .* is no length of time"):
        configured_ages(["events"], {"AGENT_KEEP_EVENTS": text})


def test_a_setting_for_what_there_is_not_is_refused() -> None:
    """AGENT_KEEP_EVENT=never would keep nothing, and nobody would notice before the rows are gone."""
    with pytest.raises(InvalidSetting, match="AGENT_KEEP_EVENT: there is no such setting; there is AGENT_KEEP_EVENTS"):
        configured_ages(["events"], {"AGENT_KEEP_EVENT": "never"})
