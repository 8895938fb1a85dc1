"""`make demo` is what a newcomer sees first: it must work everywhere and must notice when something is not so."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from codex_helpers import EXAMPLES


def play(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Play the demo with nothing in the environment but this, its output going into a pipe."""
    code = os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-m", "agent_codex.demo"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": code, "TMPDIR": str(tmp_path)} | environment,
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.slow
def test_the_demo_tells_the_whole_story_without_a_home_and_leaves_nothing(tmp_path: Path) -> None:
    """Section 6: a machine without HOME, without a git configuration and without a terminal."""
    done = play(tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "SELECT * FROM pending_approval" in done.stdout
    assert "kill -9" in done.stdout
    assert done.stdout.count("✓") >= 20
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_with_an_error_at_the_first_difference(tmp_path: Path) -> None:
    """A demo that cannot fail shows nothing: here git does not do what it should."""
    shim = tmp_path / "bin" / "git"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho git is broken >&2; exit 1\n")
    shim.chmod(stat.S_IRWXU)

    done = play(tmp_path, PATH=str(shim.parent))

    assert done.returncode == 1
    assert "git is broken" in done.stdout
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [shim.parent])
