"""What the tests of stashes and of the example roles share: real repositories, and roles run as real processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
if str(EXAMPLES) not in sys.path:  # where the example roles are imported from, here and in the processes
    sys.path.insert(0, str(EXAMPLES))

ALICE, BOB = "alice@bot.example", "bob@bot.example"
REQUEST = "notes: a line"  # what the demo's coder appends to each repository
DECISIONS = ("/annehmen", "/ablehnen", "/freigeben", "/verwerfen")

# No user's or machine's git configuration takes part, and commits have an author without one.
GIT_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@bot.example",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@bot.example",
}

# Each start of a role is a process of its own, forked from a server that has imported everything (pytest, too, which
# every such process would import as its main module): 30 ms instead of 500.
_PROCESSES = multiprocessing.get_context("forkserver")
_PRELOADED = ("pytest", "agent_codex.builder", "agent_codex.worker", "agentstate.db.schema")
_AREAS = ("agentstate.roles.workflows", "agentstate.approvals.workflows")
_PROCESSES.set_forkserver_preload([*_PRELOADED, *_AREAS])


# --- repositories ----------------------------------------------------------------------------------------------------


def git(repo: Path, *arguments: str) -> str:
    """Run git there and return what it printed, without the blanks around it."""
    done = subprocess.run(
        ["git", "-C", str(repo), *arguments],
        env=os.environ | GIT_ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def make_repo(path: Path, **files: str) -> Path:
    """Make a repository with one commit."""
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main", "--template=")
    for name, text in (files or {"notes": "first\n"}).items():
        (path / name).write_text(text)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "first")
    return path


def push_stash(repo: Path, message: str, text: str = "changed\n") -> str:
    """Change a file, stash it under the message, and return the stash's commit id."""
    (repo / "notes").write_text(text)
    git(repo, "stash", "push", "--quiet", "--include-untracked", "--message", message)
    return git(repo, "rev-parse", "stash@{0}")


def stashes(repo: Path) -> list[str]:
    """Return the subjects of the repository's stash list, newest first."""
    return git(repo, "stash", "list", "--format=%gs").splitlines()


def text(repo: Path) -> str:
    """Return what is in the repository's file `notes`."""
    return (repo / "notes").read_text()


def commits(repo: Path) -> int:
    """Count the commits that HEAD reaches."""
    return int(git(repo, "rev-list", "--count", "HEAD"))


def is_clean(repo: Path) -> bool:
    """Return whether the working tree is what HEAD says, new files included."""
    return git(repo, "status", "--porcelain") == ""


# --- roles -----------------------------------------------------------------------------------------------------------


@dataclass
class Codex:
    """A state directory with an upgraded agent.db, two repositories, and the two roles over them."""

    state: Path
    repos: tuple[Path, Path]
    environment: dict[str, str] = field(default_factory=dict)
    stderr: str = ""

    @classmethod
    def make(cls, place: Path, upgraded: Path) -> Codex:
        """Make one below `place`, with a copy of the database file `upgraded`."""
        state, repos = place / "state", (make_repo(place / "one"), make_repo(place / "two"))
        state.mkdir()
        shutil.copy(upgraded, state / "agent.db")
        stand_ins = {"AGENT_COMMAND": "agent_codex.demo_agent", "AGENT_CODER": "agent_codex.demo_coder"}
        environment = {
            **GIT_ENVIRONMENT,
            **{name: shlex.join([sys.executable, "-S", "-m", module]) for name, module in stand_ins.items()},
            "PYTHONPATH": str(EXAMPLES),
            "AGENT_STATE_DIR": str(state),
            "AGENT_DB_PATH": str(state / "agent.db"),
            "AGENT_REPOS": os.pathsep.join(map(str, repos)),
            "AGENT_NOTICE": "",
        }
        return cls(state, repos, environment)

    def copy(self, place: Path) -> Codex:
        """Copy everything to another place, the paths in the environment and in the database with it."""
        old, new = str(self.state.parent), str(place)
        shutil.copytree(old, new)
        environment = {name: value.replace(old, new) for name, value in self.environment.items()}
        copied = Codex(place / "state", (place / "one", place / "two"), environment)
        copied.change(f"UPDATE pending_approval_repo SET repo_dir = replace(repo_dir, '{old}', '{new}')")
        return copied

    def put(self, role: str, message_id: str, sender: str, body: str, **more: Any) -> None:
        """Put a message into the role's inbox, as a chat bridge does."""
        from agent_codex.queue import Message, Queue

        Queue(self.state, prefix_of(role)).put(Message(message_id, sender, body, sender, **more))

    def start(self, role: str, **environment: str) -> int:
        """Start the role once, as a process of its own, and return its exit code (negative: the signal)."""
        return self.join(self.begin(role, **environment))

    def begin(self, role: str, **environment: str) -> BaseProcess:
        """Start the role and return its process."""
        err = str(self.state.parent / "stderr")
        process = _PROCESSES.Process(target=_role_process, args=(role, self.environment | environment, err))
        process.start()
        return process

    def join(self, process: BaseProcess) -> int:
        """Wait for a role that was begun and return its exit code (negative: the signal)."""
        process.join(30)
        code = process.exitcode
        assert code is not None, "the role does not end"
        process.close()
        self.stderr = (self.state.parent / "stderr").read_text()
        return code

    def say(self, role: str, message_id: str, sender: str, body: str) -> str:
        """Send a message, have the role deal with everything, and return the reply to it."""
        self.put(role, message_id, sender, body)
        self.work_off(role)
        reply = self.reply(role, message_id)
        assert reply is not None, self.stderr
        return reply

    def path_of(self, role: str, directory: str, message_id: str) -> Path:
        """Return the path of a message's file in one of the role's directories."""
        return self.state / f"{prefix_of(role)}{directory}" / f"{message_id}.json"

    def work_off(self, role: str) -> None:
        """Start the role until its queue is empty."""
        while self.files(role, "inbox") or self.files(role, "processing"):
            assert self.start(role) in (0, 1), self.stderr

    def reply(self, role: str, message_id: str) -> str | None:
        """Return the text of the reply in the outbox, or None."""
        file = self.path_of(role, "outbox", message_id)
        return json.loads(file.read_text())["body"] if file.exists() else None

    def files(self, role: str, directory: str) -> list[str]:
        """Return the ids of the files in one of the role's directories."""
        return sorted(file.stem for file in self.path_of(role, directory, "").parent.glob("*.json"))

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        """Return the rows of a table, as an operator reads them with sqlite3."""
        with closing(sqlite3.connect(self.state / "agent.db")) as connection:
            return connection.execute(f"SELECT {columns} FROM {table} ORDER BY rowid").fetchall()

    def change(self, statement: str) -> None:
        """Change the database by hand, as an operator might."""
        with closing(sqlite3.connect(self.state / "agent.db")) as connection, connection:
            connection.execute(statement)

    def unfinished(self) -> list[tuple[str, str]]:
        """Return kind and job of what `adapter.unfinished` lists, asked twice to see that asking changes nothing."""
        answers = self.state.parent / "unfinished"
        process = _PROCESSES.Process(target=_ask_unfinished, args=(self.environment, str(answers)))
        process.start()
        process.join()
        process.close()
        first, second = json.loads(answers.read_text())
        assert first == second
        return [(kind, job_id) for kind, job_id in first]

    def script(self, name: str, text: str) -> str:
        """Write a shell script and return the command line that runs it, for AGENT_COMMAND or AGENT_CODER."""
        file = self.state.parent / name
        file.write_text(text)
        return shlex.join(["sh", "-eu", str(file)])

    def stash_lists(self) -> list[list[str]]:
        """Return the stash lists of the repositories."""
        return [stashes(repo) for repo in self.repos]


def waiting_start(codex: Codex, job_id: str = "job-1", sender: str = ALICE, body: str = REQUEST) -> None:
    """Make a request that waits for its start."""
    codex.say("builder", job_id, sender, body)


def waiting_release(codex: Codex, job_id: str = "job-1", sender: str = ALICE, body: str = REQUEST) -> None:
    """Make a job whose changes wait for their release."""
    waiting_start(codex, job_id, sender, body)
    codex.say("builder", f"accept-{job_id}", sender, f"/annehmen {job_id}")
    assert (job_id,) in codex.rows("pending_approval", "job_id"), codex.reply("builder", f"{job_id}.job")


def upgraded_database(path: Path) -> Path:
    """Make a database at head, in a process of its own so that no connection stays open here."""
    process = _PROCESSES.Process(target=_upgrade, args=(str(path),))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    return path


def has_ended(pid: int, within: float = 10) -> bool:
    """Return whether a process ends within some seconds; one that nobody has collected yet has ended."""
    for _ in range(int(within * 100)):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def wait_for(file: Path) -> str:
    """Return the text of a file as soon as there is some."""
    for _ in range(2000):
        if file.exists() and file.read_text().endswith("\n"):
            return file.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{file} does not appear")


def prefix_of(role: str) -> str:
    """Return what the role's directories start with."""
    return "builder-" if role == "builder" else ""


def _upgrade(path: str) -> None:
    from agentstate.db import schema
    from agentstate.db.database import Database

    with Database.open(path, "rwc") as database:
        schema.upgrade(database)


def _ask_unfinished(environment: dict[str, str], answers: str) -> None:
    from agentstate import adapter

    os.environ.update(environment)
    asked = [[(found.kind, found.job_id) for found in adapter.unfinished()] for _ in range(2)]
    Path(answers).write_text(json.dumps(asked))


def _role_process(role: str, environment: dict[str, str], stderr: str) -> None:
    os.environ.update(environment)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    module = __import__(f"agent_codex.{role}", fromlist=["main"])
    sys.exit(module.main())
