"""An import that is interrupted, by a fault of the database or a kill, and run again: each session in exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentstate.conversations.importer import import_sessions
from agentstate.conversations.records import ImportEntry
from agentstate.db.database import Database
from agentstate.errors import ConstraintViolated, DatabaseBusy, DatabaseError, DatabaseFull
from agentstate.settings import Settings
from builders import ROOT, finished, python
from conversation_helpers import everything, texts
from db_helpers import asked, holding, made
from session_files import a_document, brought, compact, names, outcomes, put, stored_text


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A directory of three session files."""
    directory = tmp_path / "sessions"
    for name in ("a", "b", "c"):
        put(directory, f"{name}.json", a_document(name, f"1 of {name}", f"2 of {name}", f"3 of {name}"))
    return directory


REFUSE = {
    "sqlite": [
        "CREATE TRIGGER refuse BEFORE INSERT ON turns WHEN NEW.conversation_key = 'b' AND NEW.seq = 2 "
        "BEGIN SELECT RAISE(ABORT, 'refused'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON turns FOR EACH ROW "
        "WHEN (NEW.conversation_key = 'b' AND NEW.seq = 2) EXECUTE FUNCTION refuse()",
    ],
}


@contextmanager
def refusing_turns(database: Database) -> Iterator[None]:
    """Let the database refuse the second turn of conversation b until the block ends."""
    with database.write() as work:
        for statement in REFUSE[database.backend]:
            work.connection.exec_driver_sql(statement)
    yield
    with database.write() as work:
        work.connection.exec_driver_sql(f"DROP TRIGGER refuse{' ON turns' if database.backend == 'postgresql' else ''}")


def assert_all_there(database: Database, inbox: Path) -> None:
    """Every file is in exactly once, and has its new name."""
    assert {key: texts(database, key) for key in "abc"} == {
        key: [f"{number} of {key}" for number in (1, 2, 3)] for key in "abc"
    }
    assert names(inbox) == ["a.json.migrated", "b.json.migrated", "c.json.migrated"]


def test_a_fault_at_a_turn_leaves_nothing_of_its_file(database: Database, inbox: Path) -> None:
    """IM-01: the row was made, a turn failed, and the next start renamed the file, whose messages were nowhere."""
    seen: list[ImportEntry] = []

    with refusing_turns(database), pytest.raises((ConstraintViolated, DatabaseError), match="refused"):
        import_sessions(database, inbox, on_progress=seen.append)

    assert [(entry.source, entry.renamed) for entry in seen] == [("a.json", True)]
    assert [row[0] for row in everything(database)[0]] == ["a"]
    assert names(inbox) == ["a.json.migrated", "b.json", "c.json"]

    second = brought(database, inbox)

    assert outcomes(second) == {"b.json": "imported", "c.json": "imported"}
    assert_all_there(database, inbox)


def test_a_full_disk_ends_the_import_and_the_rest_comes_later(path: Path, inbox: Path) -> None:
    """FS-04: counted as a failure of its file, a full disk would fail every file behind it too."""
    made(path)
    put(inbox, "b.json", a_document("b", "1 of b", "2 of b", "3 of b", unknown="x"))
    put(inbox, "b1.json", a_document("large", "x" * 1_000_000))

    with Database.open(path, settings=Settings()) as database:
        with database.connect() as connection:
            pages = int(str(asked(path, "PRAGMA page_count"))) + 10
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DatabaseFull):
            import_sessions(database, inbox)
        left = names(inbox)
        with database.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")

        second = brought(database, inbox)

        assert left == ["a.json.migrated", "b.json.migrated", "b1.json", "c.json"]
        assert outcomes(second) == {"b1.json": "imported", "c.json": "imported"}
        assert texts(database, "large") == ["x" * 1_000_000]


def test_a_locked_database_leaves_every_file_in_place(path: Path, inbox: Path) -> None:
    """LK-08: an import beside a long transaction says what it waited for, and is repeated."""
    made(path)
    with Database.open(path, settings=Settings(busy_timeout=0)) as database:
        with holding(path, "BEGIN IMMEDIATE"), pytest.raises(DatabaseBusy):
            import_sessions(database, inbox)
        left = names(inbox)

        second = brought(database, inbox)

        assert left == ["a.json", "b.json", "c.json"]
        assert set(outcomes(second).values()) == {"imported"}
        assert_all_there(database, inbox)


# One process that makes a child for each round and lets it kill itself at one of the calls that an import makes: any
# call of any function, Python's, SQLite's or the operating system's.
KILLS = """
import os, random, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import agentstate.metadata
from agentstate.conversations.importer import import_sessions
from agentstate.db.database import Database
from session_files import a_document, put

target, place, rounds = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])

def run(directory, last=None):
    seen = 0
    def count(frame, event, argument):
        nonlocal seen
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
    with Database.open(target) as database:
        sys.setprofile(count)
        import_sessions(database, directory)
        sys.setprofile(None)
    return seen

def filled(number):
    directory = place / str(number)
    for name in ("a", "b", "c"):
        contents = [f"{number} {name} {message}" for message in range(9)]
        put(directory, f"{name}.json", a_document(f"{number}:{name}", *contents))
    return directory

run(filled(-1))  # what is made once has been made
calls = run(filled(-2))
moments = random.Random(7)
for number in range(rounds):
    directory = filled(number)
    last = moments.randrange(1, calls * 19 // 20)  # behind it the database is only closed
    child = os.fork()
    if not child:
        run(directory, last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    print(sum(path.suffix == ".json" for path in directory.iterdir()), flush=True)
    run(directory)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounds"), [("file", 20), ("postgresql", 6)])
def test_killed_at_any_moment_and_run_again_each_session_is_there_once(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, rounds: int
) -> None:
    """IM-03: a killed import left sessions half present, or doubled them when it ran again."""
    target = request.getfixturevalue("server_url") if kind == "postgresql" else made(tmp_path / "agent.db")

    lines = finished(python(KILLS, ROOT / "tests", target, tmp_path, str(rounds))).splitlines()

    assert len(lines) == rounds
    assert len(set(lines)) > 1  # the moments are spread over the files
    with Database.open(target) as database:
        conversations, _ = everything(database)
        assert len(conversations) == 3 * (rounds + 2)
        for number in range(rounds):
            for name in ("a", "b", "c"):
                document = a_document(f"{number}:{name}", *(f"{number} {name} {message}" for message in range(9)))
                assert stored_text(database, f"{number}:{name}") == compact(document["messages"])
    for number in range(rounds):
        # A process killed between taking a name and renaming leaves an empty file of that name.
        files = [path for path in (tmp_path / str(number)).iterdir() if path.stat().st_size]
        assert sorted(path.name.partition(".migrated")[0] for path in files) == ["a.json", "b.json", "c.json"]
        assert all(".migrated" in path.name for path in files)
