"""Stashes are found again by marker and by commit: the right entry, None, or an error; never another entry."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agentstate.approvals.stash import find_stash_by_commit, find_stash_commit, find_stash_ref, marker_for
from agentstate.errors import AmbiguousStash, InvalidIdentifier, InvalidValue, StashError
from codex_helpers import git, make_repo, push_stash

AWKWARD_IDS = [
    ".*+()[]%_\\",
    "two  blanks and\ttab",
    "[agentstate:job-1]",
    "job-1] [agentstate:job-2",
    "line\nbreak",
    "-rf",
    "%41",
    "Über 日本 🐟",
    '\'; rm -rf "$HOME" #',
]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repo(tmp_path / "a repo with blanks")


# --- by marker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", ["job-1", "job-10"])
def test_job_1_is_never_found_in_job_10(repo: Path, newest: str) -> None:
    """AP-07: an id searched as a piece of text would act on the longer id."""
    other = {"job-1": "job-10", "job-10": "job-1"}[newest]
    push_stash(repo, marker_for(other), "other\n")
    push_stash(repo, marker_for(newest), "newest\n")

    refs = {job: find_stash_ref(repo, marker_for(job)) for job in (newest, other, "job-", "job", "ob-1", "1")}

    assert refs == {newest: "stash@{0}", other: "stash@{1}", "job-": None, "job": None, "ob-1": None, "1": None}


def test_ids_of_any_characters_each_find_their_own_stash(repo: Path) -> None:
    """AP-07: pattern characters, blanks that git folds, delimiters of the marker itself, and text of any script."""
    made = {job: push_stash(repo, f"{marker_for(job)} work", f"{n}\n") for n, job in enumerate(AWKWARD_IDS)}

    found = {job: find_stash_commit(repo, marker_for(job)) for job in AWKWARD_IDS}

    assert found == made


def test_ids_that_differ_only_by_blanks_have_markers_of_their_own(repo: Path) -> None:
    """AP-07: git folds runs of blanks in a stash's subject; two ids must not become one by that."""
    push_stash(repo, marker_for("job  1"))

    assert find_stash_ref(repo, marker_for("job 1")) is None
    assert find_stash_ref(repo, marker_for("job  1")) == "stash@{0}"


def test_the_longest_id_fits_into_a_stash_message(repo: Path) -> None:
    """AP-07: 512 characters of four bytes each make a marker of several kilobytes."""
    job = "🐟" * 512
    push_stash(repo, marker_for(job))

    assert find_stash_ref(repo, marker_for(job)) == "stash@{0}"
    assert find_stash_ref(repo, marker_for(job[:-1])) is None


@pytest.mark.parametrize("job_id", ["", " ", "a/b", "..", "nul\0"])
def test_what_is_no_job_id_has_no_marker(job_id: str) -> None:
    """The marker of an empty id would be part of every message."""
    with pytest.raises(InvalidIdentifier):
        marker_for(job_id)


@pytest.mark.parametrize("marker", ["codex .*+()[]%_\\ job", "two  blanks", "plain"])
def test_a_marker_of_the_callers_own_is_literal_text(repo: Path, marker: str) -> None:
    """AP-07: scripts that have a marker of their own keep it, and nothing in it is a pattern."""
    push_stash(repo, "codex xx+()[]%_\\ job", "1\n")
    push_stash(repo, f"{marker} and what was done", "2\n")
    push_stash(repo, f"{marker}er", "3\n")

    assert find_stash_ref(repo, marker) == "stash@{1}"


def test_a_marker_quoted_in_another_message_does_not_hide_the_right_stash(repo: Path) -> None:
    """AP-07: a person mentions the job in a stash of their own, in a branch's subject, or as git would write it."""
    marker = marker_for("job-1")
    right = push_stash(repo, f"{marker} tidy up", "right\n")
    push_stash(repo, f"before {marker} lands", "quoted\n")
    push_stash(repo, f"On main: {marker} tidy up", "quoted as git writes it\n")

    assert find_stash_commit(repo, marker) == right
    assert find_stash_ref(repo, marker) == "stash@{2}"


def test_a_marker_that_is_only_quoted_is_not_found(repo: Path) -> None:
    """AP-07, AP-08: when the job's own stash is gone, the stash that mentions it is not its replacement."""
    marker = marker_for("job-1")
    push_stash(repo, f"before {marker} lands")
    git(repo, "commit", "--quiet", "--allow-empty", "--message", f"{marker} in a commit's subject")
    (repo / "notes").write_text("without a message\n")
    git(repo, "stash")

    assert find_stash_ref(repo, marker) is None


def test_two_stashes_of_one_job_are_an_error_that_names_both(repo: Path) -> None:
    """AP-07: which of them is meant is not ours to guess."""
    marker = marker_for("job-1")
    push_stash(repo, marker, "1\n")
    push_stash(repo, "between", "2\n")
    push_stash(repo, f"{marker} again", "3\n")

    with pytest.raises(AmbiguousStash) as caught:
        find_stash_ref(repo, marker)

    assert caught.value.refs == ("stash@{0}", "stash@{2}")
    assert caught.value.repo_dir == str(repo)
    assert marker in str(caught.value)


def test_a_stash_made_on_a_detached_head_is_found(repo: Path) -> None:
    """git writes `On (no branch):` there, with a blank in it."""
    git(repo, "checkout", "--quiet", "--detach")
    push_stash(repo, marker_for("job-1"))

    assert find_stash_ref(repo, marker_for("job-1")) == "stash@{0}"


def test_an_entry_stored_without_a_branch_is_found(repo: Path) -> None:
    """`git stash store` keeps the message as it is given: how an entry is put back by hand."""
    commit = push_stash(repo, marker_for("job-1"))
    git(repo, "stash", "drop")
    git(repo, "stash", "store", "--message", marker_for("job-1"), commit)

    assert find_stash_commit(repo, marker_for("job-1")) == commit


def test_a_repository_without_stashes_has_none(repo: Path) -> None:
    """AP-08: nothing was stashed is an answer, not an error."""
    assert find_stash_ref(repo, marker_for("job-1")) is None
    assert find_stash_by_commit(repo, "0" * 40) is None


@pytest.mark.parametrize("marker", ["", " ", "\n"])
def test_an_empty_marker_is_refused(repo: Path, marker: str) -> None:
    """Every message starts with nothing."""
    push_stash(repo, "somebody's work")

    with pytest.raises(InvalidValue, match="marker"):
        find_stash_ref(repo, marker)


# --- by commit -------------------------------------------------------------------------------------------------------


def test_a_stash_is_found_by_commit_after_others_were_pushed(repo: Path) -> None:
    """AP-06: stash@{0} was remembered, another stash was pushed, and the wrong work was restored."""
    commit = push_stash(repo, marker_for("job-1"), "1\n")
    push_stash(repo, "second", "2\n")
    push_stash(repo, "third", "3\n")

    ref = find_stash_by_commit(repo, commit)

    assert ref == "stash@{2}"
    assert git(repo, "rev-parse", ref) == commit


def test_a_dropped_stash_is_gone_and_no_other_entry_takes_its_place(repo: Path) -> None:
    """AP-06: the entry that moves up to the old position is another one."""
    push_stash(repo, "older", "1\n")
    commit = push_stash(repo, marker_for("job-1"), "2\n")
    git(repo, "stash", "drop", "stash@{0}")

    assert find_stash_by_commit(repo, commit) is None


@pytest.mark.parametrize("change", [lambda full: full[:12], str.upper, lambda full: "stash@{0}", lambda full: ""])
def test_a_commit_that_is_not_a_full_id_is_refused(repo: Path, change: Callable[[str], str]) -> None:
    """AP-04, AP-06: an abbreviation can come to mean another commit, a position always does."""
    commit = push_stash(repo, marker_for("job-1"))

    with pytest.raises(InvalidValue, match="full commit id"):
        find_stash_by_commit(repo, change(commit))


# --- git and its surroundings ----------------------------------------------------------------------------------------


def test_a_directory_that_is_no_repository_is_an_error_in_gits_words(tmp_path: Path) -> None:
    """Section 5: a person who gave the wrong path sees what git said about it."""
    with pytest.raises(StashError, match="not a git repository") as caught:
        find_stash_ref(tmp_path, marker_for("job-1"))

    assert caught.value.repo_dir == str(tmp_path)


@pytest.mark.parametrize("name", ["missing", "nul\0byte"])
def test_a_directory_that_does_not_exist_is_an_error(tmp_path: Path, name: str) -> None:
    """Never an answer about some other directory."""
    with pytest.raises(StashError):
        find_stash_ref(tmp_path / name, marker_for("job-1"))


def test_an_empty_path_is_not_the_current_directory(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`git -C ''` answers about wherever the process happens to stand."""
    push_stash(repo, marker_for("job-1"))
    monkeypatch.chdir(repo)

    with pytest.raises(StashError, match="no repository was named"):
        find_stash_ref("", marker_for("job-1"))


def test_a_missing_git_is_an_error_that_says_so(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 5: a service whose PATH lacks git."""
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(StashError, match="git did not run"):
        find_stash_ref(repo, marker_for("job-1"))


def test_a_git_that_fails_without_words_is_still_an_error(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence must not read as 'no stash'."""
    shim = tmp_path / "bin" / "git"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 3\n")
    shim.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(shim.parent))

    with pytest.raises(StashError, match="exit code 3"):
        find_stash_ref(repo, marker_for("job-1"))


def test_the_repositorys_configuration_does_not_change_the_answer(repo: Path) -> None:
    """Dates instead of positions, colours, signatures, another encoding and an alias must not reach the parser."""
    commit = push_stash(repo, marker_for("job-ü"), "1\n")
    push_stash(repo, "newer", "2\n")
    hostile = {
        "log.date": "iso",
        "log.showSignature": "true",
        "log.diffMerges": "separate",
        "color.ui": "always",
        "color.diff": "always",
        "format.pretty": "oneline",
        "stash.showPatch": "true",
        "stash.showStat": "true",
        "i18n.logOutputEncoding": "UTF-16",
        "core.pager": "false",
        "pager.stash": "true",
        "alias.stash": "!false",
        "gpg.program": "/nonexistent",
    }
    for name, value in hostile.items():
        git(repo, "config", name, value)

    assert find_stash_ref(repo, marker_for("job-ü")) == "stash@{1}"
    assert find_stash_by_commit(repo, commit) == "stash@{1}"


def test_a_caller_inside_another_repositorys_hook_gets_the_right_repository(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git exports GIT_DIR to hooks, and GIT_DIR wins over the directory that is asked about."""
    other = make_repo(tmp_path / "other")
    push_stash(other, marker_for("job-1"))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))

    assert find_stash_ref(repo, marker_for("job-1")) is None


def test_looking_leaves_the_repository_untouched(repo: Path) -> None:
    """Section 5: a question changes nothing, not even the index, while a person is at work there."""
    commit = push_stash(repo, marker_for("job-1"))
    (repo / "notes").write_text("a person's work in progress\n")
    before = _snapshot(repo)

    find_stash_ref(repo, marker_for("job-1"))
    find_stash_by_commit(repo, commit)

    assert _snapshot(repo) == before


def _snapshot(repo: Path) -> dict[str, tuple[int, bytes]]:
    files = (Path(folder) / name for folder, _, names in os.walk(repo) for name in names)
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
