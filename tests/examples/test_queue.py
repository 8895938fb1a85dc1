"""The file queue: a message is complete, in one place, and never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_codex.queue import JOB, AlreadyRunning, Message, Queue, Unreadable
from agentstate.errors import InvalidIdentifier
from codex_helpers import ALICE, EXAMPLES


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path / "state")


def message(message_id: str = "m-1", body: str = "hello", kind: str = "message") -> Message:
    return Message(message_id, ALICE, body, ALICE, kind)


def place(queue: Queue, message_id: str) -> list[str]:
    """Return the directories that hold a file of this name."""
    directories = (queue.inbox, queue.processing, queue.failed)
    return [directory.name for directory in directories if (directory / f"{message_id}.json").exists()]


def test_a_message_goes_from_the_inbox_through_processing_to_nowhere(queue: Queue) -> None:
    """Section 6: claiming is a rename, so at any moment the file is in exactly one directory."""
    queue.put(message())
    at_first = place(queue, "m-1")

    claimed = queue.claim()
    meanwhile = place(queue, "m-1")
    queue.done(message())

    assert claimed == message()
    assert (at_first, meanwhile, place(queue, "m-1")) == (["inbox"], ["processing"], [])
    assert queue.claim() is None


@pytest.mark.parametrize("body", ["", "two\nlines", '日本 🐟 "quotes" \'', "x" * 1_000_000])
@pytest.mark.parametrize("message_id", ["m-1", "a b", "..x", ".hidden", "x.json", "$(id)", "ü🐟", "-"])
def test_ids_and_bodies_of_any_kind_come_back_unchanged(queue: Queue, message_id: str, body: str) -> None:
    """The file's name is the job id, and the id is the caller's."""
    queue.put(message(message_id, body))

    assert queue.claim() == message(message_id, body)


def test_a_file_written_by_another_program_needs_three_fields(queue: Queue) -> None:
    """Section 6: JSON with `id`, `sender`, `body`; the rest is ours."""
    (queue.inbox / "m-1.json").write_text(json.dumps({"id": "m-1", "sender": "Alice@Bot.Example/phone", "body": "hi"}))

    claimed = queue.claim()

    assert claimed == Message("m-1", "Alice@Bot.Example/phone", "hi", "Alice@Bot.Example/phone")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"id": "other", "sender": "a", "body": "b"}',
        b'{"id": "m-1", "sender": "", "body": "b"}',
        b'{"id": "m-1", "sender": 7, "body": "b"}',
        b'{"id": "m-1", "sender": "a", "body": null}',
        b'{"id": "m-1", "sender": "a", "body": "\\u0000"}',
        b'{"id": "m-1", "sender": "a", "body": "\\ud800"}',
        b'{"id": "m-1", "sender": "a@b/\\ud800", "body": "b"}',
        b'{"id": "m-1", "sender": "a", "requested_by": "a@b/\\u0000", "body": "b"}',
        b'{"id": "m-1", "sender": "a", "body": "b", "notes": {"reply": "\\ud800"}}',
        b'{"id": "m-1", "sender": "a", "body": "b", "kind": "order"}',
        b'{"id": "m-1", "sender": "a", "body": "b", "notes": 7}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_message_is_kept_in_failed(queue: Queue, content: bytes) -> None:
    """One bad file must neither be lost nor stand in the way of the next."""
    (queue.inbox / "m-1.json").write_bytes(content)
    queue.put(message("m-2"))

    with pytest.raises(Unreadable, match=r"m-1\.json"):
        queue.claim()

    assert place(queue, "m-1") == ["failed"]
    assert (queue.failed / "m-1.json").read_bytes() == content
    assert queue.claim() == message("m-2")


def test_a_name_without_room_for_more_is_kept_in_failed(queue: Queue) -> None:
    """Its reply or its second failure could not be named."""
    queue.put(message("x" * 230))

    with pytest.raises(Unreadable, match="too long"):
        queue.claim()

    assert len(list(queue.failed.iterdir())) == 1


def test_an_id_that_cannot_be_a_file_name_is_refused(queue: Queue) -> None:
    """A path separator in an id would put the file somewhere else."""
    with pytest.raises(InvalidIdentifier):
        queue.put(message("../inbox/x"))


def test_the_oldest_message_comes_first(queue: Queue) -> None:
    """A decision must not overtake the request it is about, whatever the ids are."""
    for age, message_id in enumerate(["z", "a", "m"]):
        queue.put(message(message_id))
        os.utime(queue.inbox / f"{message_id}.json", ns=(age, age))

    claimed = []
    while found := queue.claim():
        claimed.append(found.id)
        queue.done(found)

    assert claimed == ["z", "a", "m"]


def test_what_a_killed_run_had_claimed_comes_before_the_inbox(queue: Queue) -> None:
    """AP-11: the incident of 30.07.2026: a killed builder's record lay orphaned in processing."""
    queue.put(message("first"))
    queue.claim()
    queue.put(message("second"))
    os.utime(queue.inbox / "second.json", ns=(0, 0))

    again = Queue(queue.inbox.parent).claim()

    assert again == message("first")


def test_a_message_given_back_is_in_the_inbox_with_its_notes(queue: Queue) -> None:
    """AP-11: a SIGTERM puts the claimed file back; what the run wrote down about its progress stays."""
    queue.put(message())
    claimed = queue.claim()
    assert claimed
    queue.give_back(queue.note(claimed, stage="edited"))

    assert place(queue, "m-1") == ["inbox"]
    again = queue.claim()
    assert again
    assert again.notes == {"stage": "edited"}


def test_giving_back_does_not_overwrite_a_new_message_of_the_same_id(queue: Queue) -> None:
    """Nothing is lost, even when the bridge uses an id twice."""
    queue.put(message(body="old"))
    claimed = queue.claim()
    assert claimed
    queue.put(message(body="new"))

    queue.give_back(claimed)

    bodies = []
    while found := queue.claim():
        bodies.append(found.body)
        queue.done(found)
    assert bodies == ["old", "new"]


def test_notes_do_not_change_a_messages_place_in_the_order(queue: Queue) -> None:
    """Else a command that was killed would come after the job it started."""
    for age, message_id in enumerate(["command", "job"]):
        queue.put(message(message_id))
        os.utime(queue.inbox / f"{message_id}.json", ns=(age, age))
    command = queue.claim()
    assert command

    queue.note(command, job="job")
    os.rename(queue.inbox / "job.json", queue.processing / "job.json")

    again = queue.claim()
    assert again
    assert again.id == "command"


def test_a_job_that_is_put_twice_is_there_once_and_keeps_its_notes(queue: Queue) -> None:
    """Section 3, exactly once: /annehmen killed after the file was put does it again."""
    queue.put_once(message("job-1", kind=JOB))
    queue.put_once(message("job-1", kind=JOB))
    claimed = queue.claim()
    assert claimed
    queue.note(claimed, stage="edited")

    queue.put_once(message("job-1", kind=JOB))

    assert place(queue, "job-1") == ["processing"]
    again = queue.claim()
    assert again
    assert again.notes == {"stage": "edited"}


def test_a_job_does_not_overwrite_another_message_of_its_id(queue: Queue) -> None:
    """The message that accepts job-1 may itself be called job-1; then its file is not the job's."""
    queue.put(message("job-1", "/annehmen job-1"))
    queue.claim()

    with pytest.raises(FileExistsError, match="in use"):
        queue.put_once(message("job-1", kind=JOB))

    assert queue.claim() == message("job-1", "/annehmen job-1")


def test_a_second_failure_of_one_id_keeps_the_first(queue: Queue) -> None:
    """failed/ is where an operator looks for what was lost."""
    for body in ("one", "two", "three"):
        queue.put(message(body=body))
        claimed = queue.claim()
        assert claimed
        queue.fail(claimed)

    bodies = {file.name: json.loads(file.read_text())["body"] for file in queue.failed.iterdir()}
    assert bodies == {"m-1.json": "one", "m-1.2.json": "two", "m-1.3.json": "three"}


def test_directories_and_half_written_files_are_not_messages(queue: Queue) -> None:
    """A path unit's glob and a person's tidying leave other things there."""
    (queue.inbox / "folder.json").mkdir()
    (queue.inbox / ".1234.tmp").write_text('{"id": ')
    (queue.inbox / "dangling.json").symlink_to("/nonexistent")

    assert queue.claim() is None


def test_a_reply_says_to_whom_and_to_what_and_a_jobs_result_stands_beside_it(queue: Queue) -> None:
    """A bridge that fetches late must get both: that the request was noted, and what became of it."""
    queue.reply(message("job-1"), "Noted.")
    queue.reply(message("job-1", kind=JOB), "Done.")

    replies = {file.name: json.loads(file.read_text()) for file in queue.outbox.iterdir()}
    assert replies == {
        "job-1.json": {"id": "job-1", "to": ALICE, "body": "Noted."},
        "job-1.job.json": {"id": "job-1", "to": ALICE, "body": "Done."},
    }


def test_replies_never_share_a_name_whatever_the_ids_are(queue: Queue) -> None:
    """A message called job-1.job replaced what became of job-1, which nobody got to read then."""
    ids = ["job-1", "job-1.job", "job-1.message", "job-1.job.message", "job-1.message.job", "job-1.job.job"]

    for message_id in ids:
        queue.reply(message(message_id), "Noted.")
        queue.reply(message(message_id, kind=JOB), "Done.")

    replies = [json.loads(file.read_text()) for file in queue.outbox.iterdir()]
    assert sorted((reply["id"], reply["body"]) for reply in replies) == sorted(
        (message_id, body) for message_id in ids for body in ("Noted.", "Done.")
    )


@pytest.mark.parametrize("character", ["\ud83d", "\0"])
def test_a_reply_with_a_broken_character_goes_out_all_the_same(queue: Queue, character: str) -> None:
    """VA-02: a file's name in git's words may be of any bytes; the person is to read the rest."""
    queue.reply(message(), f"before {character} after")

    reply = json.loads((queue.outbox / "m-1.json").read_text())
    assert reply["body"] == "before \N{REPLACEMENT CHARACTER} after"


def test_only_one_process_of_a_role_runs_at_a_time(queue: Queue) -> None:
    """Who holds the lock may take over a predecessor's claims, so two must never hold it."""
    with queue.only_one(), pytest.raises(AlreadyRunning, match="lock"), Queue(queue.inbox.parent).only_one():
        pass

    with queue.only_one():
        pass


def test_the_lock_of_a_killed_process_is_free_again(queue: Queue) -> None:
    """AP-11: a lock that outlives its holder would need a person to remove it."""
    script = (
        "import os, pathlib, sys; from agent_codex.queue import Queue\n"
        "with Queue(pathlib.Path(sys.argv[1])).only_one(): os.kill(os.getpid(), 9)"
    )
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", script, str(queue.inbox.parent)]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": f"{EXAMPLES}{os.pathsep}{path}"}, check=False)

    with queue.only_one():
        assert killed.returncode == -9


def test_the_queues_directories_are_for_their_owner_only(queue: Queue) -> None:
    """They hold what people wrote."""
    modes = {directory.stat().st_mode & 0o777 for directory in (queue.inbox, queue.processing, queue.outbox)}

    assert modes == {0o700}
