"""The worker: one message, one answer, the right session; each start is a process of its own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from codex_helpers import ALICE, BOB, Codex, has_ended, wait_for

NOTICE = "I remember you."


def logging_agent(codex: Codex, answer: str) -> Path:
    """Configure an agent that writes its arguments to a file, one line each start, and gives this answer."""
    log = codex.state.parent / "asked"
    reply = codex.state.parent / "answer"
    reply.write_text(answer)
    codex.environment["AGENT_COMMAND"] = codex.script("agent", f'echo "$*" >> "{log}"\ncat "{reply}"\n')
    return log


# --- a conversation --------------------------------------------------------------------------------------------------


def test_the_first_reply_carries_the_notice_and_the_second_does_not(codex: Codex) -> None:
    """ID-04: people are told once that they write to a machine."""
    codex.environment["AGENT_NOTICE"] = NOTICE

    replies = [codex.say("worker", f"m-{n}", ALICE, "hello").splitlines() for n in (1, 2)]

    assert replies[0] == [NOTICE, "", "This is message 1 of our conversation. You wrote: hello"]
    assert replies[1] == ["This is message 2 of our conversation. You wrote: hello"]


def test_each_sender_continues_a_session_of_their_own_from_any_device(codex: Codex) -> None:
    """ID-01: a session belongs to a person, not to a phone."""
    codex.say("worker", "m-1", "Alice@Bot.Example/phone", "hello")
    codex.say("worker", "m-2", BOB, "hello")
    codex.say("worker", "m-3", "alice@bot.example/laptop", "again")

    assert codex.rows("sessions", "role, sender, session_id") == [
        ("worker", ALICE, "session-2"),
        ("worker", BOB, "session-1"),
    ]


def test_neu_starts_a_new_session_and_greets_nobody_again(codex: Codex) -> None:
    """Section 3: /neu deletes the session and keeps the introduction."""
    codex.environment["AGENT_NOTICE"] = NOTICE
    codex.say("worker", "m-1", ALICE, "hello")

    codex.say("worker", "m-2", ALICE, " /NEU ")

    assert codex.rows("sessions") == []
    assert codex.say("worker", "m-3", ALICE, "hello").startswith("This is message 1 ")


def test_a_session_of_the_builder_is_not_the_workers(codex: Codex) -> None:
    """ID-03: the role is the only thing that separates two roles in one file."""
    codex.say("worker", "m-1", ALICE, "hello")
    codex.change("INSERT INTO sessions SELECT 'builder', sender, 'secret', updated_at FROM sessions")

    codex.say("worker", "m-2", ALICE, "/neu")

    assert codex.rows("sessions", "role, session_id") == [("builder", "secret")]


@pytest.mark.parametrize("command", ["/annehmen job-1", "/ablehnen", "/Freigeben job-1", "/verwerfen\njob-1"])
def test_the_builders_commands_are_refused(codex: Codex, command: str) -> None:
    """AP-05: the worker decides nothing, and the agent does not get to hear decisions either."""
    log = logging_agent(codex, "{}")

    reply = codex.say("worker", "m-1", ALICE, command)

    assert "for the builder" in reply
    assert not log.exists()


# --- the agent command -----------------------------------------------------------------------------------------------


def test_the_agent_gets_the_session_and_the_prompt_as_arguments(codex: Codex) -> None:
    """The contract of AGENT_COMMAND, which whoever wraps a provider's program relies on."""
    log = logging_agent(codex, json.dumps({"reply": "yes", "session_id": "abc def"}))

    codex.say("worker", "m-1", ALICE, "hello")
    codex.say("worker", "m-2", ALICE, "--dangerous $(id) 'x'")

    assert log.read_text().splitlines() == ["-- hello", "--session=abc def -- --dangerous $(id) 'x'"]


@pytest.mark.parametrize("answer", ['{"reply": "yes"}', '{"reply": "yes", "session_id": null}'])
def test_an_answer_without_a_session_ends_the_session(codex: Codex, answer: str) -> None:
    """A provider that has forgotten a session must not be asked to continue it for ever."""
    codex.say("worker", "m-1", ALICE, "hello")
    logging_agent(codex, answer)

    reply = codex.say("worker", "m-2", ALICE, "hello")

    assert (reply, codex.rows("sessions")) == ("yes", [])


@pytest.mark.parametrize("session", ["\ud800", "s\0", ""])
def test_a_session_that_cannot_be_stored_counts_as_none(codex: Codex, session: str) -> None:
    """VA-01, VA-02: it ended the worker with a traceback, and the answer was lost over it."""
    codex.say("worker", "m-1", ALICE, "hello")
    logging_agent(codex, json.dumps({"reply": "yes", "session_id": session}))

    reply = codex.say("worker", "m-2", ALICE, "hello")

    assert (reply, codex.rows("sessions")) == ("yes", [])
    assert codex.files("worker", "failed") == []


@pytest.mark.parametrize(
    ("said", "sent"), [("hi \ud83d!", "hi \N{REPLACEMENT CHARACTER}!"), ("a\0b", "a\N{REPLACEMENT CHARACTER}b")]
)
def test_an_answer_with_broken_characters_is_sent_without_them(codex: Codex, said: str, sent: str) -> None:
    """VA-02: an agent whose output was cut within an emoji is still to be read."""
    logging_agent(codex, json.dumps({"reply": said, "session_id": "s"}))

    reply = codex.say("worker", "m-1", ALICE, "hello")

    assert reply == sent
    assert codex.rows("sessions", "session_id") == [("s",)]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "AGENT_COMMAND is not set"),
        ("/nonexistent/agent", "did not start"),
        ("sh -c 'echo out of credit >&2; exit 3'", "exit code 3\n  out of credit"),
        ("sh -c 'kill -9 $$'", "exit code -9"),
        ("echo hello", "did not print"),
        ("echo [1]", "did not print"),
        ('echo \'{"session_id": "a"}\'', "did not print"),
        ('sh -c \'echo "{\\"reply\\": 7}"\'', "is not text"),
        ('sh -c \'echo "{\\"reply\\": \\"a\\", \\"session_id\\": 7}"\'', "is not text"),
    ],
)
def test_an_agent_that_gives_no_answer_is_reported_and_the_message_kept(codex: Codex, command: str, words: str) -> None:
    """Nothing is lost: the person reads why, the operator finds the message, the session stays."""
    codex.say("worker", "m-1", ALICE, "hello")
    codex.environment["AGENT_COMMAND"] = command
    codex.put("worker", "m-2", ALICE, "hello?")

    code = codex.start("worker")

    assert code == 1
    assert words in (codex.reply("worker", "m-2") or "")
    assert codex.files("worker", "failed") == ["m-2"]
    assert codex.rows("sessions", "session_id") == [("session-1",)]
    assert "Traceback" not in codex.stderr


def test_an_empty_message_is_answered_without_the_agent(codex: Codex) -> None:
    """Bridges deliver reactions and receipts as messages without text."""
    assert codex.say("worker", "m-1", ALICE, " \n") == "Your message is empty."


# --- kills, stops and what surrounds a role --------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_step_the_message_is_answered_and_the_agent_asked_once(tmp_path: Path, upgraded: Path) -> None:
    """AP-11, ID-04: an answer that was given is not asked for again, and the notice is shown at least once."""
    killed, step = True, 0
    while killed:
        step += 1
        codex = Codex.make(tmp_path / str(step), upgraded)
        codex.environment["AGENT_NOTICE"] = NOTICE
        log = logging_agent(codex, json.dumps({"reply": "yes", "session_id": "s-1"}))
        codex.put("worker", "m-1", ALICE, "hello")

        killed = codex.start("worker", AGENT_CODEX_KILL_AT=str(step)) == -signal.SIGKILL
        codex.work_off("worker")

        assert codex.reply("worker", "m-1") in (f"{NOTICE}\n\nyes", "yes")
        assert log.read_text() == "-- hello\n"
        assert codex.rows("sessions", "session_id") == [("s-1",)]
        assert codex.rows("introductions", "sender") == [(ALICE,)]
        assert codex.files("worker", "failed") == []
    assert step == 5


def test_killed_between_the_reply_and_the_mark_the_notice_is_shown_again(codex: Codex) -> None:
    """ID-04: the documented side is at least once."""
    codex.environment["AGENT_NOTICE"] = NOTICE
    codex.put("worker", "m-1", ALICE, "hello")

    codex.start("worker", AGENT_CODEX_KILL_AT="replied")
    first = codex.reply("worker", "m-1")
    codex.path_of("worker", "outbox", "m-1").unlink()
    codex.work_off("worker")

    assert codex.reply("worker", "m-1") == first
    assert (first or "").startswith(NOTICE)


def test_a_stop_while_the_agent_thinks_puts_the_message_back_and_ends_the_agent(codex: Codex) -> None:
    """AP-11: a service switch sends SIGTERM; the message waits for the next start, the agent does not go on alone."""
    begun = codex.state.parent / "begun"
    codex.environment["AGENT_COMMAND"] = codex.script("agent", f'sleep 600 & echo $! > "{begun}"; wait')
    codex.put("worker", "m-1", ALICE, "hello")

    process = codex.begin("worker")
    agents_child = int(wait_for(begun))
    os.kill(process.pid or 0, signal.SIGTERM)
    code = codex.join(process)

    assert code == -signal.SIGTERM
    assert codex.files("worker", "inbox") == ["m-1"]
    assert codex.files("worker", "processing") == []
    assert has_ended(agents_child)


@pytest.mark.parametrize("database", ["", "/nonexistent/agent.db"])
def test_without_a_usable_database_the_message_waits(codex: Codex, database: str) -> None:
    """An operator's mistake is nobody's message: it is said in one line, and nothing is lost."""
    codex.environment["AGENT_DB_PATH"] = database
    codex.put("worker", "m-1", ALICE, "/neu")

    code = codex.start("worker")

    assert code == os.EX_TEMPFAIL
    assert codex.files("worker", "inbox") == ["m-1"]
    assert len(codex.stderr.splitlines()) == 1


@pytest.mark.parametrize(("name", "value"), [("AGENT_STATE_DIR", ""), ("AGENT_COMMAND", "sh -c 'unclosed")])
def test_a_wrong_setting_is_named(codex: Codex, name: str, value: str) -> None:
    """One line for the journal instead of a traceback."""
    code = codex.start("worker", **{name: value})

    assert code == os.EX_CONFIG
    assert codex.stderr.startswith(f"worker: {name}: ")
    assert len(codex.stderr.splitlines()) == 1


def test_a_second_process_does_not_touch_the_queue(codex: Codex) -> None:
    """A claim may be taken over only because there is never a second process."""
    from agent_codex.queue import Queue

    codex.put("worker", "m-1", ALICE, "hello")

    with Queue(codex.state).only_one():
        code = codex.start("worker")

    assert code == os.EX_TEMPFAIL
    assert codex.files("worker", "inbox") == ["m-1"]


@pytest.mark.parametrize("content", ["{", json.dumps({"id": "m-1", "sender": f"{ALICE}/\ud800", "body": "hello"})])
def test_an_unreadable_file_ends_one_start_and_not_the_next(codex: Codex, content: str) -> None:
    """VA-02: it is said in one line, and the next message is answered although one file was not a message."""
    codex.put("worker", "m-2", ALICE, "hello")
    bad = codex.path_of("worker", "inbox", "m-1")
    bad.write_text(content)
    os.utime(bad, ns=(0, 0))

    first = (codex.start("worker"), len(codex.stderr.splitlines()))
    second = codex.start("worker")

    assert (first, second) == ((1, 1), 0)
    assert codex.files("worker", "failed") == ["m-1"]


def test_with_nothing_to_do_a_start_does_nothing(codex: Codex) -> None:
    """A path unit may start a role for a file that is gone already."""
    assert codex.start("worker") == 0
