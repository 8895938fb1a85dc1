"""Who is who: roles, senders, job ids and other keys."""

from __future__ import annotations

import pytest

from agentstate.errors import InvalidIdentifier, InvalidRole
from agentstate.identity import identifier, normalise_sender, valid_job_id, valid_role
from naughty import NAUGHTY


@pytest.mark.parametrize(
    ("written", "remembered"),
    [
        ("Alice@Bot.Example/phone", "alice@bot.example"),
        (" alice@bot.example ", "alice@bot.example"),
        ("alice@bot.example", "alice@bot.example"),
        ("a@b/c@d", "a@b"),
        ("a@b/c/d", "a@b"),
        ("a@b /phone", "a@b"),
        ("team/x@y/z", "team/x@y"),
        ("Telegram:42", "Telegram:42"),
        ("telegram:42", "telegram:42"),
        (" Telegram:42\n", "Telegram:42"),
        ("a/b", "a/b"),
        ("Straße@Köln.example", "straße@köln.example"),
        ("İ@x", "i̇@x"),
    ],
)
def test_a_sender_is_one_person_whatever_the_device(written: str, remembered: str) -> None:
    """ID-01, ID-02: full addresses were compared with bare ones, so bans and sessions were missed."""
    found = normalise_sender(written)

    assert found == remembered
    assert normalise_sender(found) == found


@pytest.mark.parametrize("empty", ["", " ", "\n\t", "/"[:0]])
def test_an_empty_sender_is_refused(empty: str) -> None:
    """VA-12: empty and blank keys are refused by one rule."""
    with pytest.raises(InvalidIdentifier) as caught:
        normalise_sender(empty)

    assert caught.value.field == "sender"


@pytest.mark.parametrize("value", [None, 5, b"alice", ["alice"]])
def test_a_sender_that_is_no_text_is_refused_by_name(value: object) -> None:
    """A wrong type is the caller's mistake and says so, before SQL."""
    with pytest.raises(InvalidIdentifier, match="sender: must be text"):
        normalise_sender(value)


@pytest.mark.parametrize("role", ["worker", "builder", "a", "a-b_c9", "x" * 64])
def test_a_role_is_a_lower_case_word(role: str) -> None:
    """The names that roles have."""
    assert valid_role(role) == role


@pytest.mark.parametrize(
    "role", ["", "Worker", " worker", "worker ", "1a", "-a", "wörker", "x" * 65, "a\n", "a b", None, 7]
)
def test_a_role_that_is_not_a_lower_case_word_is_refused(role: object) -> None:
    """ID-03: names that differ by case or blanks must not become one role."""
    with pytest.raises(InvalidRole) as caught:
        valid_role(role)

    assert caught.value.field == "role"


@pytest.mark.parametrize("job_id", ["a/b", ".", "..", "", "  ", "a\0b", "\ud83d", "x" * 513])
def test_a_job_id_that_cannot_name_a_file_is_refused(job_id: str) -> None:
    """A job id names a queue file: a part of a path in it would write elsewhere."""
    with pytest.raises(InvalidIdentifier) as caught:
        valid_job_id(job_id)

    assert caught.value.field == "job_id"


@pytest.mark.parametrize("text", NAUGHTY)
def test_a_key_is_kept_to_the_letter(text: str) -> None:
    """VA-12: keys were cut, folded or merged."""
    assert identifier(text, "key") == text


def test_a_key_of_512_characters_is_accepted_and_one_more_refused() -> None:
    """VA-09, PG-04: a longer key worked on one engine and failed on the other."""
    assert identifier("田" * 512, "key") == "田" * 512

    with pytest.raises(InvalidIdentifier, match="key: has 513 characters; at most 512 are allowed"):
        identifier("田" * 513, "key")
    with pytest.raises(InvalidIdentifier, match="has 9000 characters"):
        identifier("x" * 9_000, "key")
