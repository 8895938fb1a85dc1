"""A stand-in for an agent's command line, for the demo and the tests: it counts the messages of a session.

It keeps the contract of worker.py: [--session=ID] -- PROMPT in, one JSON object out. Its session id carries the count,
so it needs no memory of its own.
"""

from __future__ import annotations

import json
import sys


def main(arguments: list[str]) -> None:
    """Answer the prompt."""
    options, prompt = arguments[: arguments.index("--")], arguments[-1]
    session = options[0].removeprefix("--session=") if options else "session-0"
    count = int(session.removeprefix("session-")) + 1
    reply = f"This is message {count} of our conversation. You wrote: {prompt}"
    print(json.dumps({"reply": reply, "session_id": f"session-{count}"}))


if __name__ == "__main__":
    main(sys.argv[1:])
