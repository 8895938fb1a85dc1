"""The worker: answers one message by running the configured agent command, continuing the sender's session.

    AGENT_COMMAND... [--session=ID] -- PROMPT

It prints one JSON object: {"reply": TEXT, "session_id": ID}. The id is opaque, is saved for the sender and is given
back with the next message; leave it out, or give null, to start the next message afresh. An id that cannot be stored
(empty, or with NUL or half of a surrogate pair in it) counts as none. `/neu` forgets it.

Start it as `python -m agent_codex.worker`, see the package's docstring.
"""

from __future__ import annotations

import json
import sys

from agent_codex.queue import Message, storable
from agent_codex.role import BUILDER_COMMANDS, Failed, Refused, Role, run
from agent_codex.steps import CommandFailed, run_command, step
from agentstate import adapter

ROLE = "worker"
NOTICE = "I am an AI agent and I remember our conversation. /neu starts a new one."


def main() -> int:
    """Deal with one message of `inbox/` and return the exit code."""
    return run(ROLE, "", NOTICE, handle)


def handle(role: Role, message: Message) -> None:
    """Answer one message: a command, or whatever the agent says to it."""
    words = message.body.split(maxsplit=1)
    if not words:
        raise Refused("Your message is empty.")
    command = words[0].lower()
    if command == "/neu":
        adapter.reset_session(ROLE, message.sender)
        step("session reset")
        role.reply(message, "A new conversation: your next message starts from nothing.")
    elif command in BUILDER_COMMANDS:
        raise Refused(f"{command} is for the builder; write it to the builder, I decide nothing.")
    else:
        converse(role, message)


def converse(role: Role, message: Message) -> None:
    """Run the agent, save its session, and reply.

    The agent's answer is noted in the queue file first: a run after a kill sends it instead of asking again.
    """
    if "reply" not in message.notes:
        session = adapter.load_session(ROLE, message.sender)
        reply, new_session = ask(role.settings.command, session, message.body)
        message = role.queue.note(message, reply=reply, session=new_session)
        step("answered")
    if message.notes["session"] is None:
        adapter.reset_session(ROLE, message.sender)
    else:
        adapter.save_session(ROLE, message.sender, message.notes["session"])
    step("session saved")
    role.reply(message, message.notes["reply"])


def ask(command: tuple[str, ...], session: str | None, prompt: str) -> tuple[str, str | None]:
    """Return what the agent replied and the session to continue, or raise `Failed` with a text for the person."""
    if not command:
        raise Failed("No agent is configured: AGENT_COMMAND is not set.")
    # `--` ends the options: a prompt that starts with a dash stays a prompt.
    resume = [] if session is None else [f"--session={session}"]
    try:
        answer = json.loads(run_command([*command, *resume, "--", prompt]))
        reply, new_session = answer["reply"], answer.get("session_id")
    except CommandFailed as error:
        raise Failed(f"The agent gave no answer: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failed('The agent gave no answer: it did not print {"reply": ..., "session_id": ...}.') from error
    if not isinstance(reply, str) or not isinstance(new_session, str | None):
        raise Failed("The agent gave no answer: its reply or its session_id is not text.")
    if not new_session or storable(new_session) != new_session:
        new_session = None
    return storable(reply), new_session


if __name__ == "__main__":
    sys.exit(main())
