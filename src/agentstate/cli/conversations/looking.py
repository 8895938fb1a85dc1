"""Commands that only look at conversations: list, graph, show."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from agentstate.cli.output import (
    database_option,
    echo,
    json_option,
    plain,
    print_fields,
    print_json,
    print_rows,
    say,
    target,
)
from agentstate.clock import utc_now
from agentstate.conversations import history, views
from agentstate.conversations.models import TurnKind
from agentstate.conversations.records import ConversationDetail, Message, ProviderView, TurnInfo, TurnRecord
from agentstate.conversations.repositories import Turns
from agentstate.conversations.repositories.lists import MAX_LIMIT, SORTS
from agentstate.db.database import Database


@click.command("list", short_help="List conversations (the default).")
@click.option("--prefix", metavar="P", help="Only keys that begin with P, letter by letter.")
@click.option("--contains", metavar="T", help="Only those with T in key or label, letter by letter.")
@click.option("--parent", metavar="KEY", help="Only those forked from KEY.")
@click.option("--roots", is_flag=True, help="Only those forked from none.")
@click.option("--status", metavar="S", help="Only those of this status.")
@click.option("--sort", type=click.Choice(SORTS), default="created", show_default=True, help="What to sort by.")
@click.option("--desc", "descending", is_flag=True, help="Backwards.")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=100, show_default=True, help="How many at most.")
@click.option("--cursor", metavar="C", help="Go on after the list that printed this cursor.")
@database_option
@json_option
def list_command(database: str | None, as_json: bool, **filters: Any) -> None:
    """List conversations: name, status, time since the last use, turns, and where each was forked.

    When there are more than --limit, the last line, on stderr, says which --cursor goes on.
    """
    if filters["roots"] and filters["parent"] is not None:
        raise click.UsageError("--roots and --parent exclude each other: a root has no parent")
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        page = views.list_conversations(work, **filters)
    if as_json:
        print_json({"conversations": page.items, "next_cursor": page.next_cursor})
        return
    echo(views.conversation_list(page.items, utc_now()))
    if page.next_cursor is not None:
        echo(f"agentstate: there are more: --cursor {page.next_cursor}", err=True)


@click.command("graph", short_help="Draw the tree of forks.")
@click.option("--root", metavar="KEY", help="Only this conversation and those below it.")
@database_option
@json_option
def graph_command(root: str | None, database: str | None, as_json: bool) -> None:
    """Draw the tree of conversations: ✓ completed, ✗ failed or canceled, ● any other; from= is the last turn inherited.

    With --json: nodes and edges, as the original program gave them out.
    """
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        graph = views.conversation_graph(work, None if root is None else views.resolve_key(work, root))
    if as_json:
        print_json(graph.as_dict())
    else:
        echo(views.conversation_tree(graph, encoding=sys.stdout.encoding))


@click.command("show", short_help="Show one conversation with its history.")
@click.argument("key")
@click.option("--last", metavar="N", type=click.IntRange(0), help="Only the newest N turns.")
@click.option("--messages", "with_messages", is_flag=True, help="The messages of each turn, too.")
@click.option("--provider", "as_provider", is_flag=True, help="Instead, the messages as a model may be sent them.")
@database_option
@json_option
def show_command(
    key: str, last: int | None, with_messages: bool, as_provider: bool, database: str | None, as_json: bool
) -> None:
    """Show a conversation, and the turns that it sees, inherited ones too: one line for each.

    KEY may be the beginning of a key, if only one key begins so.
    """
    if as_provider and (last is not None or with_messages):
        raise click.UsageError("--provider shows all that a model is sent: neither --last nor --messages goes with it")
    with Database.open(target(database), "ro") as opened, opened.read() as work:
        key = views.resolve_key(work, key)
        if as_provider:
            view = history.provider_messages(work, key)
        else:
            detail = views.show(work, key, last)
            records = Turns(work).list_history(key, last=last) if with_messages else []
    if as_provider:
        _print_provider_view(view, as_json)
    elif as_json:
        print_json(_document(detail, records))
    else:
        _print_detail(detail, records, with_messages)


def _document(detail: ConversationDetail, records: list[TurnRecord]) -> dict[str, Any]:
    turns = [plain(turn) for turn in detail.turns]
    for turn, record in zip(turns, records, strict=False):
        turn |= {"meta": record.meta, "messages": record.messages}
    return {"conversation": plain(detail.conversation) | {"lineage": detail.lineage}, "turns": turns}


def _print_detail(detail: ConversationDetail, records: list[TurnRecord], with_messages: bool) -> None:
    info = detail.conversation
    pairs: list[tuple[str, object]] = [
        ("conversation", info.key),
        ("label", views.one_line(info.label)),
        ("status", info.status),
        ("parent", info.parent_key),
        ("forked at turn", info.fork_turn_id),
        ("inherits from", " < ".join(detail.lineage[1:])),
        ("inherited up to", info.inherited_seq),
        ("compacted up to", info.compacted_seq or None),
        ("created", info.created_at),
        ("last used", info.updated_at),
        ("imported", info.imported_at),
        ("own turns", info.turn_count),
        ("inherited summary", info.inherited_summary),
        ("summary", info.summary),
    ]
    print_fields((name, value) for name, value in pairs if value not in (None, ""))
    echo()
    if not with_messages:
        columns = ("Seq", "Kind", "Messages", "Time", "Author", "Origin")
        print_rows(columns, [_row(turn) for turn in detail.turns], empty="no turns")
        return
    for turn, record in zip(detail.turns, records, strict=True):
        seq, kind, count, time, author, origin = (str(plain(value)) for value in _row(turn))
        say(f"{seq}  {kind}  {count} message{'' if count == '1' else 's'}  {time}  {author}  {origin}".rstrip())
        _print_messages(record.messages)


def _row(turn: TurnInfo) -> tuple[object, ...]:
    kind = turn.kind.name.lower().replace("_", " ") if isinstance(turn.kind, TurnKind) else turn.kind
    origin = f"{turn.origin_key or ''}{' (gone)' if turn.origin_gone else ''}"
    return turn.seq, kind, turn.message_count, turn.created_at, turn.author, origin


def _print_provider_view(view: ProviderView, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    _print_messages(view.messages)
    repairs = view.repairs
    say(
        f"repairs: {repairs.total} (orphan results left out: {repairs.orphan_results}, results moved: "
        f"{repairs.moved_results}, calls answered as aborted: {repairs.aborted_calls}, "
        f"calls left out: {repairs.dropped_calls})"
    )


def _print_messages(messages: Iterable[Message]) -> None:
    """Print each message's role and text, and what else it holds as JSON."""
    for message in messages:
        content = message.get("content")
        lines = content.splitlines() if isinstance(content, str) else []
        say(f"    {message.get('role')}: {lines[0] if lines else ''}".rstrip())
        for line in lines[1:]:
            say(f"        {line}")
        used = {"role", "content"} if isinstance(content, str) else {"role"}
        rest = {name: value for name, value in message.items() if name not in used and value is not None}
        if rest:
            say(f"        {json.dumps(rest, ensure_ascii=False)}")


COMMANDS = (list_command, graph_command, show_command)
