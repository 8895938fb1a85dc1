"""The builder: nothing runs before the first yes, nothing is committed before the second, nothing is ever lost."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from codex_helpers import ALICE, BOB, Codex, commits, git, has_ended, is_clean, push_stash, stashes, wait_for

REQUEST = "notes: a line"
DECISIONS = ("/annehmen", "/ablehnen", "/freigeben", "/verwerfen")


def waiting_start(codex: Codex, job_id: str = "job-1", sender: str = ALICE, body: str = REQUEST) -> None:
    codex.say("builder", job_id, sender, body)


def waiting_release(codex: Codex, job_id: str = "job-1", sender: str = ALICE, body: str = REQUEST) -> None:
    waiting_start(codex, job_id, sender, body)
    codex.say("builder", f"accept-{job_id}", sender, f"/annehmen {job_id}")
    assert (job_id,) in codex.rows("pending_approval", "job_id"), codex.reply("builder", f"{job_id}.job")


def text(repo: Path) -> str:
    return (repo / "notes").read_text()


# --- the first yes ---------------------------------------------------------------------------------------------------


def test_a_request_waits_and_nothing_runs(codex: Codex) -> None:
    """Seed 000: a builder that edits at once would edit for anybody who can write to it."""
    reply = codex.say("builder", "job-1", "Alice@Bot.Example/phone", REQUEST)

    assert "/annehmen job-1" in reply
    assert codex.rows("start_pending", "job_id, sender, body") == [("job-1", ALICE, REQUEST)]
    assert all(is_clean(repo) for repo in codex.repos)


def test_accepting_puts_the_job_file_and_the_next_start_runs_it(codex: Codex) -> None:
    """Section 6: each start handles one file; the job file appears in the builder's queue and starts it again."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen job-1")

    codex.start("builder")
    accepted = codex.files("builder", "inbox")
    codex.start("builder")

    assert accepted == ["job-1"]
    assert codex.files("builder", "processing") == []
    assert codex.rows("start_pending") == []
    assert codex.rows("pending_approval", "job_id, requested_by, commit_message") == [
        ("job-1", ALICE, "Add a line to notes")
    ]


def test_rejecting_forgets_the_request(codex: Codex) -> None:
    """Seed 000: /ablehnen."""
    waiting_start(codex)

    reply = codex.say("builder", "m-1", ALICE, "/ablehnen job-1")

    assert "Rejected job-1" in reply
    assert codex.rows("start_pending") == []
    assert codex.files("builder", "processing") == []


@pytest.mark.parametrize("command", DECISIONS)
def test_somebody_elses_case_is_not_ones_own_to_decide(codex: Codex, command: str) -> None:
    """AP-05: with a shared or guessed id somebody else's record was resolved."""
    waiting_release(codex, "released")
    waiting_start(codex, "started")
    job_id = "started" if command in DECISIONS[:2] else "released"
    before = [codex.rows(table) for table in ("start_pending", "pending_approval", "pending_approval_repo")]

    reply = codex.say("builder", "m-1", BOB, f"{command} {job_id}")

    assert reply == f"{job_id} is not yours to decide; nothing was changed."
    assert before == [codex.rows(table) for table in ("start_pending", "pending_approval", "pending_approval_repo")]
    assert codex.stash_lists() == [["On main: [agentstate:released] Add a line to notes"]] * 2


@pytest.mark.parametrize("command", DECISIONS)
def test_a_device_of_the_same_person_may_decide_and_case_does_not_matter(codex: Codex, command: str) -> None:
    """AP-05, ID-01: identity is compared after normalisation."""
    if command in DECISIONS[:2]:
        waiting_start(codex)
    else:
        waiting_release(codex)

    codex.say("builder", "m-1", "ALICE@bot.example/tablet", f"{command.upper()}   job-1  ")

    assert "not yours" not in (codex.reply("builder", "m-1") or "")
    assert codex.rows("start_pending") == []


def test_without_an_id_a_command_means_the_one_open_case_of_its_sender(codex: Codex) -> None:
    """Section 6; a case of somebody else does not count."""
    waiting_start(codex, "job-1", ALICE)
    waiting_start(codex, "job-2", BOB)

    codex.say("builder", "m-1", ALICE, "/annehmen")
    codex.say("builder", "m-2", ALICE, "/verwerfen")

    assert codex.rows("start_pending", "job_id") == [("job-2",)]
    assert codex.rows("pending_approval") == []


def test_without_an_id_several_open_cases_are_listed_and_none_is_decided(codex: Codex) -> None:
    """Section 6: a command never guesses which one is meant."""
    for job_id in ("job-1", "job-2"):
        waiting_start(codex, job_id, ALICE, f"{REQUEST} for {job_id}\nand more")

    reply = codex.say("builder", "m-1", ALICE, "/annehmen").splitlines()

    assert reply[1:] == [f"/annehmen {job_id} — notes: a line for {job_id}" for job_id in ("job-1", "job-2")]
    assert len(codex.rows("start_pending")) == 2


@pytest.mark.parametrize("command", DECISIONS)
@pytest.mark.parametrize("job_id", ["", " job-1"])
def test_a_decision_about_nothing_says_so(codex: Codex, command: str, job_id: str) -> None:
    """A second click, or a typing error."""
    reply = codex.say("builder", "m-1", ALICE, command + job_id)

    assert reply.startswith("No job")


@pytest.mark.parametrize("body", ["/hilfe", "/neu", "", " "])
def test_what_is_neither_a_request_nor_a_decision_is_answered_with_help(codex: Codex, body: str) -> None:
    """An unknown command must not become a request that somebody then accepts."""
    reply = codex.say("builder", "m-1", ALICE, body)

    assert "/freigeben ID" in reply
    assert codex.rows("start_pending") == []


@pytest.mark.parametrize("job_id", ["job 1 [x]", ".*+()[]%_\\", "Über-日本-🐟", "a]b"])
def test_ids_of_any_characters_go_all_the_way(codex: Codex, job_id: str) -> None:
    """AP-07: the id names a file, a marker, a trailer and a row."""
    waiting_release(codex, job_id)

    reply = codex.say("builder", "m-1", ALICE, f"/freigeben {job_id}")

    assert reply.startswith(f"Released {job_id}:")
    assert [commits(repo) for repo in codex.repos] == [2, 2]
    assert codex.stash_lists() == [[], []]


def test_a_request_with_the_id_of_an_open_job_is_refused(waiting: Codex) -> None:
    """AP-10: the open case keeps its meaning."""

    reply = waiting.say("builder", "job-1", ALICE, "something else")

    assert "is taken" in reply
    assert waiting.rows("start_pending") == []


def test_a_command_that_has_the_jobs_own_id_loses_no_job(codex: Codex) -> None:
    """Both would be the same queue file."""
    waiting_start(codex)
    refused = codex.say("builder", "job-1", ALICE, "/annehmen job-1")

    codex.say("builder", "m-1", ALICE, "/annehmen job-1")

    assert "cannot run now" in refused
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]


# --- the job ---------------------------------------------------------------------------------------------------------


def test_a_jobs_changes_are_stashed_and_recorded_with_their_commits(codex: Codex) -> None:
    """AP-06: what is recorded is the stash's commit, never its position; new files belong to the change."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")

    recorded = codex.rows("pending_approval_repo", "repo_dir, stash_commit")
    assert recorded == [(str(repo), git(repo, "rev-parse", "stash@{0}")) for repo in codex.repos]
    assert all(is_clean(repo) and text(repo) == "first\n" for repo in codex.repos)


def test_only_changed_repositories_wait_for_a_release(codex: Codex) -> None:
    """AP-08: a repository without a change has no stash, and none is looked for there."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes")

    waiting_release(codex)

    assert codex.rows("pending_approval_repo", "repo_dir") == [(str(codex.repos[0]),)]


def test_a_job_that_changes_nothing_leaves_no_case(codex: Codex) -> None:
    """AP-08: the stash push made nothing, the pop ran anyway and took the user's unrelated stash."""
    push_stash(codex.repos[0], "somebody's own")
    waiting_start(codex, body="just think")

    codex.say("builder", "m-1", ALICE, "/annehmen")

    assert "changed nothing" in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("pending_approval") == []
    assert stashes(codex.repos[0]) == ["On main: somebody's own"]


def test_the_request_is_the_commit_message_of_a_silent_coder(codex: Codex) -> None:
    """Any command can take the coder's place, also one that prints nothing."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes")
    waiting_release(codex, body="Please\nadd a line")

    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert git(codex.repos[0], "log", "-1", "--format=%B").startswith("Please\nadd a line\n\nAgentstate-Job: job-1\n")


def test_a_request_is_an_argument_and_never_an_option_or_a_command(codex: Codex) -> None:
    """Whoever may write a request must not be able to switch off the coder's safeguards."""
    codex.environment["AGENT_CODER"] = codex.script("coder", 'printf "%s|" "$@" > notes')

    waiting_release(codex, body="--yolo; $(touch x)")

    assert git(codex.repos[0], "show", "stash@{0}:notes") == "--|--yolo; $(touch x)|"


def test_a_repository_with_somebodys_changes_is_left_alone_and_the_job_waits_again(codex: Codex) -> None:
    """A person's uncommitted work must not end up in the job's stash."""
    waiting_start(codex)
    (codex.repos[1] / "mine").write_text("work in progress")
    codex.say("builder", "m-1", ALICE, "/annehmen")
    refused = codex.reply("builder", "job-1.job") or ""
    (codex.repos[1] / "mine").unlink()

    codex.say("builder", "m-2", ALICE, "/annehmen")

    assert f"{codex.repos[1]} has changes that are not committed (mine)" in refused
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]


@pytest.mark.parametrize(
    ("coder", "words"),
    [
        ("echo half > notes; echo more > fresh; echo no credit >&2; exit 4", "exit code 4\n  no credit"),
        ("echo half > notes; git -C . add notes; git commit -qm mine; exit 4", "exit code 4"),
        ("exec /nonexistent", "exit code"),
    ],
)
def test_a_failed_coder_leaves_the_repositories_as_they_were(codex: Codex, coder: str, words: str) -> None:
    """Half an edit must neither be released nor stand in the way of the next job; the job can be tried again."""
    codex.environment["AGENT_CODER"] = codex.script("coder", coder)
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")

    reply = codex.reply("builder", "job-1.job") or ""
    assert words in reply
    assert all(is_clean(repo) and commits(repo) == 1 and stashes(repo) == [] for repo in codex.repos)
    assert codex.rows("start_pending", "job_id, claimed_by") == [("job-1", None)]
    assert ("brings it back" in reply) == ("half" in coder)


@pytest.mark.parametrize(("name", "value"), [("AGENT_CODER", ""), ("AGENT_REPOS", ""), ("AGENT_REPOS", "/nonexistent")])
def test_a_builder_that_is_not_configured_says_so_and_the_job_waits(codex: Codex, name: str, value: str) -> None:
    """The yes was given; it must not be lost over a missing variable."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")

    code = codex.start("builder", **{name: value})

    assert code == 0
    assert (value or name) in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_commits_that_a_coder_makes_by_itself_wait_for_the_yes_as_well(codex: Codex) -> None:
    """Several coding agents commit what they did; that must not be a way around the approval."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "echo more >> notes; git commit -qam 'done it'")

    waiting_release(codex)
    before = (commits(codex.repos[0]), text(codex.repos[0]))
    codex.say("builder", "m-1", ALICE, "/freigeben")

    assert before == (1, "first\n")
    assert (commits(codex.repos[0]), text(codex.repos[0])) == (2, "first\nmore\n")


def test_a_coder_that_leaves_another_branch_is_reported(codex: Codex) -> None:
    """Its change would be committed to a branch that nobody chose; a branch is not moved by us."""
    codex.environment["AGENT_CODER"] = codex.script("coder", "git checkout -q -b own")
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")

    assert "was left on refs/heads/own" in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_what_the_coder_leaves_running_ends_with_it(codex: Codex) -> None:
    """A process in the background would edit the files after they were stashed, and keep its output open for ever."""
    pid = codex.state.parent / "pid"
    codex.environment["AGENT_CODER"] = codex.script("coder", f'sleep 600 & echo $! > "{pid}"; echo more >> notes')

    waiting_release(codex)

    assert has_ended(int(pid.read_text()))


def test_a_job_file_put_again_by_hand_finds_its_stash(codex: Codex) -> None:
    """AP-11: killed after the stash was made; no edit is lost, none is made twice, even if the notes are gone."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")
    codex.start("builder", AGENT_CODEX_KILL_AT="stashed")
    codex.path_of("builder", "processing", "job-1").unlink()
    before = codex.stash_lists()
    git(codex.repos[1], "reset", "--quiet", "--hard")  # killed before the second was stashed: a person tidied up

    codex.put("builder", "job-1", ALICE, REQUEST, kind="job")
    codex.work_off("builder")

    assert before == [["On main: [agentstate:job-1] Add a line to notes"], []]
    assert codex.stash_lists() == before
    assert codex.rows("pending_approval_repo", "repo_dir") == [(str(codex.repos[0]),)]


def test_a_job_runs_although_a_killed_accept_left_its_row(codex: Codex) -> None:
    """AP-11: the job file is the yes; with its row still there the approval could not be saved."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder", AGENT_CODEX_KILL_AT="job file put")
    codex.path_of("builder", "processing", "m-1").unlink()

    codex.work_off("builder")

    assert codex.rows("start_pending") == []
    assert codex.rows("pending_approval", "job_id") == [("job-1",)]


def test_a_stash_that_git_was_killed_over_is_not_stashed_twice(codex: Codex) -> None:
    """AP-11: a power failure between git's storing the stash and its cleaning the files."""
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")
    codex.start("builder", AGENT_CODEX_KILL_AT="stashed")
    git(codex.repos[0], "stash", "apply")

    codex.work_off("builder")

    assert [len(entries) for entries in codex.stash_lists()] == [1, 1]
    assert all(is_clean(repo) for repo in codex.repos)
    assert "brings it back" in (codex.reply("builder", "job-1.job") or "")


def test_two_stashes_of_one_job_are_a_persons_to_sort_out(codex: Codex) -> None:
    """AP-07: ambiguous is an error in the reply, and the job can go on once it is not."""
    waiting_start(codex)
    for n in (1, 2):
        push_stash(codex.repos[0], f"[agentstate:job-1] {n}", f"{n}\n")

    codex.say("builder", "m-1", ALICE, "/annehmen")

    assert "2 stashes carry the marker" in (codex.reply("builder", "job-1.job") or "")
    assert codex.rows("start_pending", "job_id") == [("job-1",)]


def test_a_change_that_git_cannot_stash_keeps_its_place(codex: Codex) -> None:
    """The edit is there; once the obstacle is gone the job goes on from it, without the coder."""
    lock = codex.repos[0] / ".git" / "index.lock"
    codex.environment["AGENT_CODER"] = codex.script("coder", f'echo more >> notes; echo > "{lock}"')
    waiting_start(codex)

    codex.say("builder", "m-1", ALICE, "/annehmen")
    refused = codex.reply("builder", "job-1.job") or ""
    lock.unlink()
    codex.environment["AGENT_CODER"] = "false"
    os.rename(codex.path_of("builder", "failed", "job-1"), codex.path_of("builder", "inbox", "job-1"))
    codex.work_off("builder")

    assert "edited but not stashed" in refused
    assert codex.rows("pending_approval_repo", "repo_dir") == [(str(codex.repos[0]),)]


@pytest.mark.parametrize("stop", ["kill -9 $PPID", "kill -TERM $PPID"])
def test_a_run_ended_while_the_coder_edits_starts_the_edit_over(codex: Codex, stop: str) -> None:
    """AP-11, the incident of 30.07.2026: half an edit is put aside, the whole one is made, and made once."""
    once = codex.state.parent / "once"
    ended = f'test -e "{once}" || {{ echo > "{once}"; {stop}; sleep 1; }}'
    coder = f"echo one >> notes; echo > fresh; {ended}; echo two >> notes"
    codex.environment["AGENT_CODER"] = codex.script("coder", coder)
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")

    code = codex.start("builder")
    lies_in = [directory for directory in ("inbox", "processing") if codex.files("builder", directory)]
    codex.work_off("builder")

    assert (code, lies_in) in [(-signal.SIGKILL, ["processing"]), (-signal.SIGTERM, ["inbox"])]
    assert git(codex.repos[0], "show", "stash@{0}:notes") == "first\none\ntwo"
    assert len(stashes(codex.repos[0])) == 1
    assert "brings it back" in (codex.reply("builder", "job-1.job") or "")


def test_a_stop_while_the_coder_works_puts_the_job_back_and_ends_the_coder(codex: Codex) -> None:
    """AP-11: a switch sends SIGTERM to a builder job; nothing is orphaned, nothing goes on editing."""
    begun = codex.state.parent / "begun"
    codex.environment["AGENT_CODER"] = codex.script("coder", f'sleep 600 & echo $! > "{begun}"; wait')
    waiting_start(codex)
    codex.put("builder", "m-1", ALICE, "/annehmen")
    codex.start("builder")

    process = codex.begin("builder")
    coders_child = int(wait_for(begun))
    os.kill(process.pid or 0, signal.SIGTERM)
    code = codex.join(process)

    assert code == -signal.SIGTERM
    assert codex.files("builder", "inbox") == ["job-1"]
    assert has_ended(coders_child)


# --- the second yes --------------------------------------------------------------------------------------------------


def test_a_release_commits_each_repository_and_leaves_nothing(codex: Codex) -> None:
    """Seed 000: /freigeben; the row is there until the end and never after."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")

    reply = codex.say("builder", "m-1", ALICE, "/freigeben").splitlines()

    heads = [git(repo, "rev-parse", "HEAD") for repo in codex.repos]
    assert reply[1:] == [f"  {repo}: commit {sha[:12]}" for repo, sha in zip(codex.repos, heads, strict=True)]
    assert [git(repo, "show", "--format=", "--name-only") for repo in codex.repos] == ["fresh\nnotes"] * 2
    assert (codex.rows("pending_approval"), codex.rows("pending_approval_repo")) == ([], [])
    assert codex.stash_lists() == [[], []]
    assert all(is_clean(repo) for repo in codex.repos)


def test_a_discard_drops_the_jobs_stashes_and_no_other(codex: Codex) -> None:
    """AP-06: positions moved since; somebody's own stashes above and below stay."""
    push_stash(codex.repos[0], "older")
    waiting_release(codex)
    push_stash(codex.repos[0], "newer")

    reply = codex.say("builder", "m-1", ALICE, "/verwerfen job-1")

    assert reply.startswith("Discarded job-1:")
    assert codex.stash_lists() == [["On main: newer", "On main: older"], []]
    assert codex.rows("pending_approval") == []
    assert [commits(repo) for repo in codex.repos] == [1, 1]


def test_a_release_applies_the_jobs_stash_and_no_other(waiting: Codex) -> None:
    """AP-06: another stash was pushed, and the wrong work was restored."""
    push_stash(waiting.repos[0], "newer", "wrong\n")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert text(waiting.repos[0]) == "first\na line\n"
    assert waiting.stash_lists() == [["On main: newer"], []]


def test_a_stash_pushed_at_the_moment_of_the_drop_is_not_dropped(waiting: Codex, tmp_path: Path) -> None:
    """AP-06: git drops by position, and a person's push moves positions between looking and dropping."""
    repo, once, shim = waiting.repos[0], tmp_path / "once", tmp_path / "bin" / "git"
    real = git(repo, "--exec-path") + "/git"
    shim.parent.mkdir()
    shim.write_text(f"""#!/bin/sh
        case "$*" in *"{repo} "*"stash drop"*)
            if ! test -e "{once}"; then
                echo precious > "{repo}/notes"
                {real} -C "{repo}" stash push -q -m precious
                echo > "{once}"
            fi
        esac
        exec {real} "$@"
    """)
    shim.chmod(stat.S_IRWXU)
    waiting.environment["PATH"] = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"

    waiting.say("builder", "m-1", ALICE, "/verwerfen")

    assert waiting.stash_lists() == [["On main: precious"], []]
    assert git(repo, "show", "stash@{0}:notes") == "precious"


def test_a_release_over_somebodys_changes_is_refused_until_they_are_gone(waiting: Codex) -> None:
    """A person's work in progress is neither overwritten nor committed; not one repository is released before."""
    (waiting.repos[1] / "notes").write_text("mine\n")
    refused = waiting.say("builder", "m-1", ALICE, "/freigeben")
    untouched = (text(waiting.repos[1]), [commits(repo) for repo in waiting.repos])
    git(waiting.repos[1], "checkout", "notes")

    waiting.say("builder", "m-2", ALICE, "/freigeben")

    assert f"{waiting.repos[1]} has changes that are not committed (notes)" in refused
    assert untouched == ("mine\n", [1, 1])
    assert [commits(repo) for repo in waiting.repos] == [2, 2]


def test_a_change_that_conflicts_leaves_the_repository_and_the_case_as_they_were(codex: Codex) -> None:
    """The stash is kept; after the person put it right the same command goes on, also with the other repository."""
    waiting_release(codex, body="notes: a line\nfresh: a new file")
    (codex.repos[1] / "notes").write_text("rewritten\n")
    git(codex.repos[1], "commit", "-qam", "meanwhile")
    refused = codex.say("builder", "m-1", ALICE, "/freigeben")
    after = (is_clean(codex.repos[1]), text(codex.repos[1]), len(stashes(codex.repos[1])), commits(codex.repos[0]))
    done = codex.rows("pending_approval_repo", "done_at IS NOT NULL")
    git(codex.repos[1], "revert", "--no-edit", "HEAD")

    codex.say("builder", "m-2", ALICE, "/freigeben")

    assert f"does not fit {codex.repos[1]} (it conflicts in notes)" in refused
    assert after == (True, "rewritten\n", 1, 2)
    assert done == [(1,), (0,)]
    assert [commits(repo) for repo in codex.repos] == [2, 4]
    assert codex.stash_lists() == [[], []]
    assert codex.rows("pending_approval") == []


def test_a_change_that_does_not_fit_can_be_discarded(waiting: Codex) -> None:
    """Else the refused release would hold the case for ever."""
    for repo in waiting.repos:
        (repo / "notes").write_text("rewritten\n")
        git(repo, "commit", "-qam", "meanwhile")
    waiting.say("builder", "m-1", ALICE, "/freigeben")

    waiting.say("builder", "m-2", ALICE, "/verwerfen")

    assert waiting.rows("pending_approval") == []
    assert waiting.stash_lists() == [[], []]
    assert all(is_clean(repo) and text(repo) == "rewritten\n" for repo in waiting.repos)


def test_a_release_that_has_committed_something_cannot_be_discarded(waiting: Codex) -> None:
    """Half of an approved change would be in, the other half gone."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="committed")
    waiting.path_of("builder", "processing", "m-1").unlink()

    reply = waiting.say("builder", "m-2", ALICE, "/verwerfen")

    assert "is being decided already: /freigeben alice@bot.example since" in reply
    assert waiting.rows("pending_approval", "job_id") == [("job-1",)]
    assert [len(entries) for entries in waiting.stash_lists()] == [1, 1]


@pytest.mark.parametrize("command", DECISIONS)
def test_a_case_claimed_by_another_decision_is_left_to_it(codex: Codex, command: str) -> None:
    """Section 3: a reject or discard of a claimed case by somebody else gets AlreadyClaimed."""
    table = "start_pending" if command in DECISIONS[:2] else "pending_approval"
    (waiting_start if table == "start_pending" else waiting_release)(codex)
    codex.change(f"UPDATE {table} SET claimed_by = 'operator', claimed_at = '2026-09-05T12:00:00.000Z'")
    before = codex.rows(table)

    reply = codex.say("builder", "m-1", ALICE, f"{command} job-1")

    assert "is being decided already: /operator since 2026-09-05 12:00 UTC" in reply
    assert codex.rows(table) == before


def test_a_stash_that_is_gone_commits_nothing_and_the_case_can_be_closed(codex: Codex) -> None:
    """AP-06, AP-08: the entry was dropped by hand; another entry does not take its place."""
    push_stash(codex.repos[0], "somebody's own", "wrong\n")
    waiting_release(codex)
    git(codex.repos[0], "stash", "drop", "stash@{0}")

    refused = codex.say("builder", "m-1", ALICE, "/freigeben")
    after = [commits(repo) for repo in codex.repos]
    closed = codex.say("builder", "m-2", ALICE, "/verwerfen")

    assert f"{codex.repos[0]}: no stash" in refused
    assert after == [1, 1]
    assert f"{codex.repos[0]}: no stash, nothing to drop" in closed
    assert codex.stash_lists() == [["On main: somebody's own"], []]
    assert codex.rows("pending_approval") == []


def test_a_case_without_repositories_reads_so_and_can_be_closed(codex: Codex) -> None:
    """AP-08: a record made by other hands with nothing stashed."""
    push_stash(codex.repos[0], "somebody's own")
    codex.change(
        "INSERT INTO pending_approval (job_id, requested_by, commit_message, created_at) "
        f"VALUES ('job-1', '{ALICE}', 'nothing', '2026-09-05T12:00:00.000Z')"
    )

    released = codex.say("builder", "m-1", ALICE, "/freigeben")
    discarded = codex.say("builder", "m-2", ALICE, "/verwerfen")

    assert ("no stash" in released, "no stash" in discarded) == (True, True)
    assert stashes(codex.repos[0]) == ["On main: somebody's own"]
    assert codex.rows("pending_approval") == []


def test_a_record_without_stash_commits_is_released_by_its_marker(waiting: Codex) -> None:
    """Seed 000: records from before the commit ids were kept."""
    waiting.change("UPDATE pending_approval_repo SET stash_commit = NULL")
    push_stash(waiting.repos[0], "quotes [agentstate:job-1] only", "wrong\n")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert [text(repo) for repo in waiting.repos] == ["first\na line\n"] * 2
    assert waiting.stash_lists() == [["On main: quotes [agentstate:job-1] only"], []]


def test_a_change_that_is_in_head_already_is_done_without_an_empty_commit(waiting: Codex) -> None:
    """Somebody made the same change by hand while the case waited."""
    (waiting.repos[0] / "notes").write_text("first\na line\n")
    git(waiting.repos[0], "commit", "-qam", "the same by hand")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert [commits(repo) for repo in waiting.repos] == [2, 2]
    assert waiting.rows("pending_approval") == []
    assert waiting.stash_lists() == [[], []]


def test_a_change_goes_on_top_of_what_was_committed_meanwhile(waiting: Codex) -> None:
    """A case may wait for days; other files have moved on."""
    (waiting.repos[0] / "other").write_text("meanwhile\n")
    git(waiting.repos[0], "add", "other")
    git(waiting.repos[0], "commit", "-qm", "meanwhile")

    waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert commits(waiting.repos[0]) == 3
    assert text(waiting.repos[0]) == "first\na line\n"


def test_an_old_commit_of_a_reused_job_id_is_not_taken_for_the_new_one(waiting: Codex) -> None:
    """AP-10: recognised by id alone, the second change would be dropped unreleased."""
    waiting.say("builder", "m-1", ALICE, "/freigeben")

    waiting_release(waiting, body="notes: another line")
    waiting.say("builder", "m-2", ALICE, "/freigeben")

    assert text(waiting.repos[0]) == "first\na line\nanother line\n"
    assert commits(waiting.repos[0]) == 3


def test_a_hook_that_refuses_the_commit_is_quoted_and_nothing_is_left_applied(waiting: Codex) -> None:
    """A repository's own rules hold for the builder, too."""
    hook = waiting.repos[0] / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\necho trailing blanks >&2; exit 1\n")
    hook.chmod(stat.S_IRWXU)

    refused = waiting.say("builder", "m-1", ALICE, "/freigeben")

    assert "trailing blanks" in refused
    assert is_clean(waiting.repos[0])
    assert [len(entries) for entries in waiting.stash_lists()] == [1, 1]
    assert waiting.rows("pending_approval", "job_id") == [("job-1",)]


def test_a_stop_during_a_commit_lets_git_finish_and_loses_nothing(waiting: Codex) -> None:
    """AP-11: git killed half way would leave a lock that a person has to remove."""
    hook = waiting.repos[0] / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text('#!/bin/sh\nkill -TERM $(cut -d " " -f 4 /proc/$PPID/stat); sleep 0.1\n')
    hook.chmod(stat.S_IRWXU)
    waiting.put("builder", "m-1", ALICE, "/freigeben")

    code = waiting.start("builder")
    after = (commits(waiting.repos[0]), waiting.files("builder", "inbox"))
    waiting.work_off("builder")

    assert code == -signal.SIGTERM
    assert after == (2, ["m-1"])
    assert [commits(repo) for repo in waiting.repos] == [2, 2]
    assert waiting.rows("pending_approval") == []


def test_a_commit_made_before_a_kill_is_recognised_under_newer_ones(waiting: Codex) -> None:
    """AP-11: looked for by its contents, the change would be applied to what a person has made of it since."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="committed")
    made = git(waiting.repos[0], "rev-parse", "HEAD")
    (waiting.repos[0] / "notes").write_text("a better line\n")
    git(waiting.repos[0], "commit", "-qam", "polished")

    waiting.work_off("builder")

    assert f"{waiting.repos[0]}: commit {made[:12]}" in (waiting.reply("builder", "m-1") or "")
    assert text(waiting.repos[0]) == "a better line\n"
    assert [commits(repo) for repo in waiting.repos] == [3, 2]


def test_what_a_person_wrote_over_an_interrupted_release_is_put_aside_and_named(waiting: Codex) -> None:
    """AP-11: the half-applied state is ours to finish; what else lies there by then is not ours to lose."""
    waiting.put("builder", "m-1", ALICE, "/freigeben")
    waiting.start("builder", AGENT_CODEX_KILL_AT="stash applied")
    (waiting.repos[0] / "notes").write_text("precious\n")

    waiting.work_off("builder")

    reply = waiting.reply("builder", "m-1") or ""
    aside = reply.split("git stash apply ")[1].split("'")[0]
    assert git(waiting.repos[0], "show", f"{aside}:notes") == "precious"
    assert text(waiting.repos[0]) == "first\na line\n"
    assert stashes(waiting.repos[0]) == []


def test_a_command_without_an_id_means_the_same_case_when_it_is_taken_up_again(codex: Codex) -> None:
    """AP-11: the case it meant is decided by now, and another one is the only open one."""
    waiting_release(codex, "job-1")
    codex.put("builder", "m-1", ALICE, "/verwerfen")
    codex.start("builder", AGENT_CODEX_KILL_AT="approval deleted")
    os.rename(codex.path_of("builder", "processing", "m-1"), codex.state / "held back")
    waiting_release(codex, "job-2")
    os.rename(codex.state / "held back", codex.path_of("builder", "processing", "m-1"))

    codex.work_off("builder")

    assert codex.rows("pending_approval", "job_id") == [("job-2",)]
    assert (codex.reply("builder", "m-1") or "").startswith("Discarded job-1:")
