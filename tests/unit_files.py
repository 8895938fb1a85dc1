"""What tests of systemd's unit files share: reading one, and what systemd itself says of some."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

Unit = dict[str, dict[str, list[str]]]

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def parsed(text: str) -> Unit:
    """Return a unit's sections, each with its settings, and every value that a setting is given."""
    unit: Unit = {}
    for line in text.replace("\\\n", "").splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = unit.setdefault(heading[1], {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return unit


def complaints(units: Mapping[str, str], place: Path) -> str:
    """Return what systemd has to say against the units, whose texts are given by name; "" when it has nothing.

    One command stands for all of them: whether they are installed on this machine is not asked.
    """
    assert ANALYZE is not None
    command = place / "command"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    for name, text in units.items():
        (place / name).write_text(re.sub(r"(?m)^(Exec\w+=)/\S+", rf"\1{command}", text))
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", *(place / name for name in units)],
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")
