"""What both roles have in common: one start, one message, and an answer whatever happens.

Exit codes: 0 the message was dealt with, or there was none; 1 it lies in failed/; 75 try again later, it is back in
the inbox; 78 the role is not configured. A stop by signal puts the message back and ends the process by that signal.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_codex.queue import AlreadyRunning, Message, Queue, Unreadable
from agent_codex.steps import Stopped, step, stoppable
from agentstate import adapter
from agentstate.errors import AgentStateError, DatabaseError, InvalidSetting

DONE, FAILED, TRY_AGAIN, NOT_CONFIGURED = 0, 1, os.EX_TEMPFAIL, os.EX_CONFIG

BUILDER_COMMANDS = ("/annehmen", "/ablehnen", "/freigeben", "/verwerfen")


class Refused(Exception):
    """What was asked cannot be done now; the text tells the person why and what to do. The message is dealt with."""


class Failed(Exception):
    """What was asked went wrong; the text tells the person, and the message is kept in failed/ for the operator."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment configures, see README.md."""

    state_dir: Path
    command: tuple[str, ...]
    coder: tuple[str, ...]
    repos: tuple[Path, ...]
    notice: str


@dataclass(frozen=True, slots=True)
class Role:
    """The running role: its name in agent.db, its queue and its settings."""

    name: str
    queue: Queue
    settings: Settings

    def reply(self, message: Message, text: str) -> None:
        """Send the reply, after the notice on first contact.

        Marked only once the reply is out: a kill in between shows the notice twice rather than never.
        """
        notice = self.settings.notice
        if notice:
            text = adapter.add_first_reply_notice(self.name, message.sender, text, notice)
        self.queue.reply(message, text)
        step("replied")
        adapter.mark_introduced(self.name, message.sender)
        step("introduced")


def read_settings(environ: Mapping[str, str], default_notice: str) -> Settings:
    """Return the settings; raises `InvalidSetting` naming the variable that is missing or wrong."""
    state_dir = environ.get("AGENT_STATE_DIR", "")
    if not state_dir:
        raise InvalidSetting("AGENT_STATE_DIR", "is not set: the directory that holds the queues")
    repos = [Path(os.path.abspath(repo)) for repo in environ.get("AGENT_REPOS", "").split(os.pathsep) if repo]
    return Settings(
        state_dir=Path(state_dir),
        command=_command(environ, "AGENT_COMMAND"),
        coder=_command(environ, "AGENT_CODER"),
        repos=tuple(dict.fromkeys(repos)),
        notice=environ.get("AGENT_NOTICE", default_notice),
    )


def _command(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(environ.get(name, "")))
    except ValueError as error:
        raise InvalidSetting(name, f"is not a command line: {error}") from error


def run(name: str, prefix: str, default_notice: str, handle: Callable[[Role, Message], None]) -> int:
    """Deal with one message of the role's queue and return the exit code."""
    try:
        settings = read_settings(os.environ, default_notice)
        queue = Queue(settings.state_dir, prefix)
        with queue.only_one(), stoppable():
            message = queue.claim()
            return DONE if message is None else _deal_with(Role(name, queue, settings), message, handle)
    except InvalidSetting as error:
        return _say(name, error, NOT_CONFIGURED)
    except Unreadable as error:
        return _say(name, error, FAILED)
    except (AlreadyRunning, OSError) as error:
        return _say(name, error, TRY_AGAIN)


def _deal_with(role: Role, message: Message, handle: Callable[[Role, Message], None]) -> int:
    queue = role.queue
    try:
        try:
            handle(role, message)
        except (DatabaseError, InvalidSetting):  # nobody's message is at fault
            raise
        except (Refused, AgentStateError) as error:
            role.reply(message, str(error))
        except Failed as error:
            role.reply(message, str(error))
            queue.fail(message)
            return _say(role.name, error, FAILED)
        queue.done(message)
        return DONE
    except Stopped as stop:
        queue.give_back(message)
        signal.signal(stop.signum, signal.SIG_DFL)
        os.kill(os.getpid(), stop.signum)
        raise  # the signal is on its way
    except (DatabaseError, InvalidSetting, OSError) as error:
        queue.give_back(message)
        return _say(role.name, error, TRY_AGAIN)
    except BaseException:  # a mistake in this program: keep the message out of the next start's way, and show it
        queue.fail(message)
        raise


def _say(name: str, error: Exception, code: int) -> int:
    print(f"{name}: {error}", file=sys.stderr)
    return code
