"""The whole life of two agent roles in a minute: real scripts, real git repositories, real processes, a real kill -9.

    make demo          or, with `examples` on PYTHONPATH:          python -m agent_codex.demo

Every step says what happens, shows what a person sees, and checks it; the first difference ends the demo with exit
code 1. It works in a temporary directory and removes it. Nothing of yours is read or changed: no agent.db, no
repository, no git configuration.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.markup import escape

import agentstate
from agent_codex.queue import Message, Queue
from agent_codex.worker import NOTICE

ALICE = "alice@bot.example"

console = Console(highlight=False, soft_wrap=True)


class Differs(Exception):
    """What happened is not what should have happened."""


class Demo:
    """One run of the demo in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.state = place / "state"
        self.database = self.state / "agent.db"
        self.repos = [place / "website", place / "server"]
        self.queues = {"worker": Queue(self.state), "builder": Queue(self.state, "builder-")}
        self.messages = 0
        code = [str(Path(__file__).parents[1]), str(Path(agentstate.__file__).parents[1])]
        stand_in = [sys.executable, "-S", "-m"]  # the two stand-ins need no installed packages: start them quickly
        self.environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(code),
            "AGENT_STATE_DIR": str(self.state),
            "AGENT_DB_PATH": str(self.database),
            "AGENT_COMMAND": shlex.join([*stand_in, "agent_codex.demo_agent"]),
            "AGENT_CODER": shlex.join([*stand_in, "agent_codex.demo_coder"]),
            "AGENT_REPOS": os.pathsep.join(map(str, self.repos)),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Demo",
            "GIT_AUTHOR_EMAIL": "demo@bot.example",
            "GIT_COMMITTER_NAME": "Demo",
            "GIT_COMMITTER_EMAIL": "demo@bot.example",
        }

    # --- what happens ----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Play all scenes."""
        self.prepare()
        self.talk_to_the_worker()
        self.build_and_release()
        self.say_no()
        self.survive_a_kill()

    def prepare(self) -> None:
        """Make the database and the repositories."""
        scene("A state directory, two git repositories, and one command that makes the database")
        for repo in self.repos:
            repo.mkdir()
            (repo / "README").write_text(f"The {repo.name}.\n")
            self.git(repo, "init", "--quiet", "--initial-branch=main", "--template=")
            self.git(repo, "add", "--all")
            self.git(repo, "commit", "--quiet", "--message", f"The {repo.name}")
        self.agentstate("upgrade")
        check(self.database.exists(), "agent.db is there")

    def talk_to_the_worker(self) -> None:
        """First contact, a conversation that goes on, and a new one."""
        scene("The worker remembers: whom it has greeted, and which session a person continues")
        reply = self.say("worker", "What is the capital of France?")
        check(reply.startswith(NOTICE) and "message 1 of" in reply, "the first reply says whom one is talking to")
        reply = self.say("worker", "And how big is it?", device="/phone")
        check(NOTICE not in reply and "message 2 of" in reply, "the second, from another device, continues the session")
        self.say("worker", "/neu")
        reply = self.say("worker", "Something else.")
        check(NOTICE not in reply and "message 1 of" in reply, "/neu starts a new session and greets nobody twice")
        rows = self.select("SELECT role, sender, session_id FROM sessions")
        check(rows == [("worker", ALICE, "session-1")], "one row says where to continue")

    def build_and_release(self) -> None:
        """A request, the first yes, the edit, the second yes."""
        scene("The builder asks before it starts, and again before it commits")
        job = self.request("README: Written with care.")
        check(self.is_untouched(), "nothing runs before a person says yes")
        self.say("builder", f"/annehmen {job}")
        check(self.files("builder-inbox") == [job], "the accepted job lies in the queue, for the next start to run")
        self.run_job(job)
        rows = self.select("SELECT * FROM pending_approval")
        check([row[0] for row in rows] == [job], "the open case can be seen with plain SQL, as long as it is open")
        check(self.is_untouched(), "the edits of both repositories wait in git stashes, the files are as they were")
        self.say("builder", "/freigeben")
        self.show_logs()
        check([self.commits(repo) for repo in self.repos] == [2, 2], "each repository has one new commit")
        check(self.select("SELECT * FROM pending_approval") == [], "and the case is closed")
        check(self.stashes() == ["", ""], "no stash is left")

    def say_no(self) -> None:
        """A request that is rejected, and an edit that is discarded."""
        scene("A person may also say no: before the start, or after seeing the change")
        rejected = self.request("README: Rewrite everything.")
        self.say("builder", f"/ablehnen {rejected}")
        check(self.select("SELECT * FROM start_pending") == [], "a rejected request is forgotten, nothing ran")
        discarded = self.request("README: All rights reserved.")
        self.say("builder", f"/annehmen {discarded}")
        self.run_job(discarded)
        self.say("builder", f"/verwerfen {discarded}")
        check(self.stashes() == ["", ""], "the discarded edits are gone")
        check([self.commits(repo) for repo in self.repos] == [2, 2], "and nothing was committed")

    def survive_a_kill(self) -> None:
        """A release that is killed half way, and the same command again."""
        scene("A builder is killed in the middle of a release")
        job = self.request("README: Contact: hello@bot.example")
        self.say("builder", "/annehmen")
        self.run_job(job)
        self.put("builder", "/freigeben")
        code = self.start("builder", AGENT_CODEX_KILL_AT="committed")
        tell("[bold red]kill -9[/] hits the builder right after its first commit.")
        check(code == -signal.SIGKILL, "the process is dead")
        done = sorted(self.commits(repo) for repo in self.repos)
        check(done == [2, 3], "one repository is committed, the other is not")
        listed = self.agentstate("approvals", "unfinished")
        check(len(listed.splitlines()) == 1 and job in listed, "an operator sees what is unfinished")
        tell("The next start finds the same command in the queue, and finishes it:")
        self.start("builder")
        self.show_reply("builder")
        check([self.commits(repo) for repo in self.repos] == [3, 3], "both are committed, and none twice")
        check(self.stashes() == ["", ""], "no stash is left")
        check(self.select("SELECT * FROM pending_approval") == [], "and no row")
        check(not any(map(self.files, ("builder-inbox", "builder-processing", "builder-failed"))), "and no queue file")

    # --- how it is done --------------------------------------------------------------------------------------------

    def say(self, role: str, body: str, device: str = "") -> str:
        """Send a message, start the role once, and return the reply."""
        self.put(role, body, device)
        code = self.start(role)
        check(code == 0, f"the {role} ends well", quiet=True)
        return self.show_reply(role)

    def put(self, role: str, body: str, device: str = "") -> str:
        """Put a message into the role's inbox, as a chat bridge does, and return its id."""
        self.messages += 1
        message_id = f"{role}-{self.messages}"
        console.print(f"  [bold cyan]alice{device} → {role}[/]  {escape(body)}")
        self.queues[role].put(Message(message_id, ALICE + device, body, ALICE))
        return message_id

    def request(self, body: str) -> str:
        """Ask the builder for something and return the job's id."""
        self.say("builder", body)
        return f"builder-{self.messages}"

    def run_job(self, job: str) -> None:
        """Start the builder for an accepted job."""
        tell("The builder starts again, finds the job, and lets the coder edit:")
        check(self.start("builder") == 0, "the job runs", quiet=True)
        self.show_reply("builder", f"{job}.job")

    def start(self, role: str, **environment: str) -> int:
        """Start the role once, as its service does, and return its exit code."""
        command = [sys.executable, "-m", f"agent_codex.{role}"]
        done = subprocess.run(command, env=self.environment | environment, check=False)
        return done.returncode

    def show_reply(self, role: str, name: str = "") -> str:
        """Print and return the reply to the last message, or the one of that name."""
        file = self.queues[role].outbox / f"{name or f'{role}-{self.messages}'}.json"
        check(file.exists(), f"the {role} replies", quiet=True)
        reply = str(json.loads(file.read_text())["body"])
        label = f"{role} → alice"
        for line in reply.splitlines():
            console.print(f"  [bold green]{label:{len(label)}}[/]  {escape(line)}")
            label = " " * len(label)
        return reply

    def select(self, statement: str) -> list[tuple[object, ...]]:
        """Show the statement's rows as an operator sees them, and return them."""
        if shutil.which("sqlite3"):
            output = self.run("sqlite3", "-header", "-column", str(self.database), statement)
            self.show(f"sqlite3 agent.db '{statement}'", output or "(no rows)")
        with closing(sqlite3.connect(self.database)) as connection:
            rows = connection.execute(statement).fetchall()
        if not shutil.which("sqlite3"):
            lines = [" | ".join(map(str, row)) for row in rows]
            self.show(f"agent.db: {statement}", "\n".join(lines) or "(no rows)")
        return rows

    def agentstate(self, *arguments: str) -> str:
        """Run the command line, show and return what it prints."""
        output = self.run(sys.executable, "-m", "agentstate.cli.main", *arguments)
        self.show(f"agentstate {' '.join(arguments)}", output)
        return output

    def show(self, command: str, output: str) -> None:
        """Print a command and what it said."""
        console.print(f"  [bold]$ {escape(command)}[/]")
        for line in output.rstrip().splitlines():
            console.print(f"    [dim]{escape(line)}[/]")

    def show_logs(self) -> None:
        """Print the history of both repositories."""
        for repo in self.repos:
            self.show(f"git -C {repo.name} log --oneline", self.git(repo, "log", "--oneline"))

    def run(self, *command: str) -> str:
        """Run a command and return what it printed; it must succeed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, encoding="utf-8", check=False)
        check(done.returncode == 0, f"{' '.join(command[:4])} … works: {done.stderr.strip()}", quiet=True)
        return done.stdout

    def git(self, repo: Path, *arguments: str) -> str:
        """Run git in a repository and return what it printed."""
        return self.run("git", "-C", str(repo), *arguments)

    def commits(self, repo: Path) -> int:
        """Count a repository's commits."""
        return int(self.git(repo, "rev-list", "--count", "HEAD"))

    def stashes(self) -> list[str]:
        """Return both stash lists."""
        return [self.git(repo, "stash", "list") for repo in self.repos]

    def is_untouched(self) -> bool:
        """Return whether the files of both repositories are what their last commits say."""
        return all(self.git(repo, "status", "--porcelain") == "" for repo in self.repos)

    def files(self, directory: str) -> list[str]:
        """Return the ids of the files in a directory of the queue."""
        return sorted(file.stem for file in (self.state / directory).glob("*.json"))


def scene(title: str) -> None:
    """Print a heading."""
    console.print(f"\n[bold]{escape(title)}[/]")


def tell(text: str) -> None:
    """Print a sentence."""
    console.print(f"  {text}")


def check(holds: bool, claim: str, quiet: bool = False) -> None:
    """Print that a claim holds, or end the demo."""
    if not holds:
        raise Differs(claim)
    if not quiet:
        console.print(f"  [green]✓[/] {escape(claim)}")


def main() -> int:
    """Play the demo and return the exit code: 0 when all was as it should be."""
    console.print("[bold]agentstate[/]: what AI agents must remember, in one SQL home")
    with tempfile.TemporaryDirectory(prefix="agentstate-demo-") as place:
        try:
            Demo(Path(place)).play()
        except (Differs, OSError) as difference:
            console.print(f"  [bold red]✗ this does not hold:[/] {escape(str(difference))}")
            return 1
    console.print("\n[bold green]All of it as it should be.[/] The scripts are in examples/agent_codex/: copy them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
