"""Where a run may end: between two steps, never inside one.

A role calls `step` after everything that changes the world. There a SIGTERM that came in the meantime takes effect,
so no git command and no transaction is cut off in the middle; and there the tests kill the process, to prove that the
same command, given again, finishes what the killed run began.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from agentstate.approvals.stash import REPOSITORY_VARIABLES
from agentstate.settings import child_environment

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """The process was asked to end; `signum` is the signal that asked."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class CommandFailed(Exception):
    """A configured command could not be started or ended with an error; the text is for a person."""


@dataclass
class _Run:
    steps: int = 0
    signum: int | None = None
    child: int | None = None


_run = _Run()


def step(name: str) -> None:
    """Mark the end of one step; raises `Stopped` when the process was asked to end.

    For tests and the demo: AGENT_CODEX_KILL_AT, the number of a step or its name, makes the process kill itself there
    with SIGKILL. Unset, it does nothing.
    """
    _run.steps += 1
    if os.environ.get("AGENT_CODEX_KILL_AT") in (name, str(_run.steps)):
        os.kill(os.getpid(), signal.SIGKILL)
    if _run.signum is not None:
        raise Stopped(_run.signum)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the block at its next step; the handlers that were there come back after it."""
    global _run
    _run = _Run()
    before = {signum: signal.signal(signum, _on_stop) for signum in _STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _on_stop(signum: int, _frame: FrameType | None) -> None:
    again = _run.signum is not None
    _run.signum = signum
    if _run.child is not None:
        _signal_group(_run.child, signal.SIGKILL if again else signal.SIGTERM)


def run_command(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a configured command that may take long, and return what it printed.

    It gets a process group of its own: a stop ends all of it, and what it leaves running in the background ends with
    it, so that nothing edits a repository after we have looked. `environment` is added to ours, less what a git hook
    that we may run in has set. Raises `CommandFailed`
    with its last words when it cannot be started or ends with an error, `Stopped` when the process was asked to end.
    """
    # Files and not pipes: a background process that keeps a pipe open would make us wait for it.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=child_environment(REPOSITORY_VARIABLES, **(environment or {})),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailed(f"{command[0]} did not start: {error.strerror or error}") from error
        _run.child = process.pid
        if _run.signum is not None:  # it came before there was a child to tell
            _signal_group(process.pid, signal.SIGTERM)
        # Wait without reaping: until `wait` below, the group's number cannot become somebody else's.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _run.child = None
        _signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        if _run.signum is not None:
            raise Stopped(_run.signum)
        out.seek(0)
        err.seek(0)
        if code != 0:
            words = err.read().decode("utf-8", "replace").strip().splitlines()[-3:]
            raise CommandFailed(f"{command[0]} ended with exit code {code}" + "".join(f"\n  {word}" for word in words))
        return out.read().decode("utf-8", "replace")


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)
