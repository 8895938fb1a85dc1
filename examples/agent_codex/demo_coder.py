"""A stand-in for a coding agent, for the demo and the tests: it does to every repository what the request says.

    FILE: TEXT        appends the line TEXT to FILE, one such line for each edit

It keeps the contract of job.py: the repositories in AGENT_REPOS, -- REQUEST in, the commit message out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(request: str) -> None:
    """Edit the repositories."""
    edits = [line.split(": ", 1) for line in request.splitlines() if ": " in line]
    for repo in map(Path, os.environ["AGENT_REPOS"].split(os.pathsep)):
        for name, text in edits:
            with open(repo / name, "a", encoding="utf-8") as file:
                file.write(text + "\n")
    print(f"Add a line to {' and '.join(name for name, _ in edits)}" if edits else "")


if __name__ == "__main__":
    main(sys.argv[-1])
