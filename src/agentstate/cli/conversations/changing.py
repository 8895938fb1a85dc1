"""Commands that change one conversation, named by its whole key: fork, compact, status, delete."""

from __future__ import annotations

from typing import IO, get_args

import click

from agentstate.cli import exits
from agentstate.cli.output import database_option, json_option, print_json, say, target
from agentstate.conversations import history, workflows
from agentstate.conversations.models import short_key
from agentstate.conversations.records import Compaction
from agentstate.conversations.repositories import Conversations
from agentstate.conversations.workflows.deletion import Children
from agentstate.db.database import Database
from agentstate.db.uow import UnitOfWork
from agentstate.errors import ConversationNotFound, EmptySummary, InvalidValue, StaleCompaction


@click.command("fork", short_help="Fork a conversation, to go on from here in another one.")
@click.argument("key")
@click.argument("label", nargs=-1)
@click.option("--key", "child", metavar="CHILD", help="The new key. Without it: KEY:fork:<UTC second>.")
@click.option(
    "--empty",
    is_flag=True,
    help="Start empty instead of with the history so far, and count as at work until its status says it has ended.",
)
@database_option
@json_option
def fork_command(
    key: str, label: tuple[str, ...], child: str | None, empty: bool, database: str | None, as_json: bool
) -> None:
    """Fork the conversation KEY: a branch sees its history so far, and nothing that is said in it later.

    LABEL, any number of words, is the branch's name for people; 'fork' if there is none.
    """
    name = " ".join(label) or "fork"
    with Database.open(target(database)) as opened, opened.write() as work:
        if child is None:
            made = workflows.fork_to_free_key(work, key, label=name, inherit=not empty)
        else:
            made = workflows.fork(work, key, child, label=name, inherit=not empty)
        facts = {
            "parent": made.parent_key,
            "child": made.key,
            "fork_turn_id": made.fork_turn_id,
            "inherited_seq": made.inherited_seq,
        }
    if as_json:
        print_json(facts)
        return
    say("Forked conversation")
    say(f"  parent: {short_key(key)}")
    say(f"  child:  {facts['child']}")


@click.command("compact", short_help="Hide old turns behind a summary.")
@click.argument("key")
@click.option("--up-to", "up_to", metavar="SEQ", type=int, help="The last turn to hide.")
@click.option("--keep-last", metavar="N", type=click.IntRange(0), help="Hide all but the newest N messages.")
@click.option("--summary", metavar="TEXT", help="What stands for the hidden turns from now on.")
@click.option("--summary-file", metavar="FILE", type=click.File("rb"), help="A file (UTF-8) with it; - is stdin.")
@click.option("--expect", metavar="SEQ", type=int, help="Up to where it is compacted now; refused if it is not.")
@database_option
@json_option
def compact_command(
    key: str,
    up_to: int | None,
    keep_last: int | None,
    summary: str | None,
    summary_file: IO[bytes] | None,
    expect: int | None,
    database: str | None,
    as_json: bool,
) -> int:
    """Hide the old turns of KEY behind a summary; no tool call is parted from its result.

    An earlier summary is carried on before the new one, unless the new one holds it. Exit 1, with nothing changed, if
    nothing can be hidden.
    """
    if (up_to is None) == (keep_last is None):
        raise click.UsageError("one of --up-to SEQ and --keep-last N is needed, and not both")
    if (summary is None) == (summary_file is None):
        raise click.UsageError("one of --summary TEXT and --summary-file FILE is needed, and not both")
    text = _read(summary_file) if summary_file is not None else summary or ""
    with Database.open(target(database)) as opened, opened.write() as work:
        if up_to is not None:
            done = history.compact(work, key, up_to, text, expected_compacted_seq=expect)
        else:
            done = _keep_last(work, key, keep_last or 0, text, expect)
    if as_json:
        print_json({name: getattr(done, name) for name in ("key", "requested_seq", "up_to_seq", "turns", "deleted")})
    elif done.turns:
        turns = "1 turn" if done.turns == 1 else f"{done.turns} turns"
        say(f"compacted {key} up to turn {done.up_to_seq}: {turns} hidden, {done.deleted} deleted")
    else:
        say(f"agentstate: nothing of {key} can be compacted so far; nothing was changed", err=True)
    return 0 if done.turns else exits.NO


def _keep_last(work: UnitOfWork, key: str, keep: int, summary: str, expect: int | None) -> Compaction:
    """Compact all but the newest messages; unlike `compact_old_turns`, store no summary that stands for nothing."""
    if not summary.strip():
        raise EmptySummary
    plan = history.plan_compaction(work, key, keep)
    if plan is not None:
        before = plan.expected_compacted_seq if expect is None else expect
        return history.compact(work, key, plan.up_to_seq, summary, expected_compacted_seq=before)
    row = Conversations(work).get(key)
    if expect not in (None, row.compacted_seq):
        raise StaleCompaction(key, expect, row.compacted_seq)
    return Compaction(key, row.compacted_seq, row.compacted_seq, 0, 0, "")


def _read(file: IO[bytes]) -> str:
    try:
        return file.read().decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidValue("summary", f"{file.name} is not UTF-8 (at byte {error.start})") from None


@click.command("status", short_help="Set the status of a conversation.")
@click.argument("key")
@click.argument("value")
@database_option
@json_option
def status_command(key: str, value: str, database: str | None, as_json: bool) -> None:
    """Set the status of KEY to VALUE, whatever it is now.

    completed, failed, canceled and archived end a conversation: it takes no more turns. active goes on with it.
    """
    with Database.open(target(database)) as opened, opened.write() as work:
        workflows.set_status(work, key, value)
    if as_json:
        print_json({"key": key, "status": value})
    else:
        say(f"{key} is {value}")


@click.command("delete", short_help="Delete a conversation with its turns.")
@click.argument("key")
@click.option(
    "--children",
    type=click.Choice(get_args(Children)),
    default="refuse",
    show_default=True,
    help="What about branches of it: delete nothing, give them what they inherit, or delete all below it, too.",
)
@database_option
@json_option
def delete_command(key: str, children: Children, database: str | None, as_json: bool) -> None:
    """Delete the conversation KEY with its turns; refused while anything below it is at work.

    Conversations of sub-agents that were forked from it stay, as roots.
    """
    with Database.open(target(database)) as opened, opened.write() as work:
        done = workflows.delete_conversation(work, key, children=children)
    if not done:
        raise ConversationNotFound(key)
    if as_json:
        print_json(done)
        return
    for gone in done.deleted:
        say(f"deleted {gone}")
    for root in done.detached:
        say(f"{root} is a root now")


COMMANDS = (fork_command, compact_command, status_command, delete_command)
