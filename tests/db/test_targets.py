"""What a caller means by a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentstate.db.database import Database
from agentstate.db.schema import upgrade
from agentstate.db.targets import file_path, file_url, is_server
from agentstate.errors import InvalidValue
from agentstate.settings import configured_target


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/srv/agent.db", "/srv/agent.db"),
        ("agent.db", "agent.db"),
        ("sqlite:////srv/agent.db", "/srv/agent.db"),
        ("sqlite:///agent.db", "agent.db"),
        ("sqlite+pysqlite:////srv/agent.db", "/srv/agent.db"),
        ("sqlite:////srv/a%20b%3F%25.db", "/srv/a b?%.db"),
        ("/tmp/a://b.db", "/tmp/a://b.db"),
        ("/srv/user=alice/agent.db", "/srv/user=alice/agent.db"),
        ("postgres/agent.db", "postgres/agent.db"),
    ],
)
def test_a_target_names_one_file(target: str, path: str) -> None:
    """CN-06: in a URL %20 is a blank; a path is taken as it is."""
    assert file_path(target) == path


@pytest.mark.parametrize(
    "target",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/agent.db",
        "sqlite:////x.db?mode=ro",
        "mysql://h/d",
        "://x",
    ],
)
def test_a_url_that_names_no_file_is_refused(target: str) -> None:
    """A parameter that is dropped silently would open the file in another way than was asked for."""
    with pytest.raises(InvalidValue, match="database: a URL of"):
        file_path(target)


def test_a_url_of_an_odd_path_leads_back_to_it(tmp_path: Path) -> None:
    """CN-06: what `status` prints can be used."""
    path = tmp_path / "a?b#c %41 ü" / "state.db"
    path.parent.mkdir()

    with Database.open(path, "rwc") as database:
        upgrade(database)
        url = database.url_without_password
    with Database.open(url) as again:
        found = again.path

    assert found == str(path)
    assert file_url(found) == url
    assert list(tmp_path.iterdir()) == [path.parent]


def test_servers_are_told_by_their_scheme() -> None:
    """Everything else is a file or refused."""
    urls = ["postgresql://h/d", "postgresql+psycopg://h/d", "postgres://h/d"]

    assert [is_server(url) for url in [*urls, "sqlite:///x", "/postgresql://x", Path("postgresql:")]] == [
        *[True] * 3,
        *[False] * 3,
    ]


def test_the_path_variable_always_holds_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENT_DB_PATH=a://b.db is an odd name, and still a name."""
    monkeypatch.chdir(tmp_path)

    found = configured_target({"AGENT_DB_PATH": "a://b.db"})

    assert found == str(tmp_path / "a:/b.db")


def test_a_path_and_a_url_of_one_file_agree_through_a_link(tmp_path: Path) -> None:
    """The state directory is often a link; both variables still name one memory."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    url = f"sqlite:///{tmp_path}/real/agent.db"

    assert configured_target({"AGENT_DB_PATH": f"{tmp_path}/link/agent.db", "AGENT_DB_URL": url}) == url
