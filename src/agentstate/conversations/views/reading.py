"""What is shown of conversations: a page of the list, the graph, and one of them."""

from __future__ import annotations

from agentstate.conversations.records import ConversationDetail, ConversationPage
from agentstate.conversations.repositories import Conversations, Turns
from agentstate.conversations.repositories.lists import Wanted
from agentstate.conversations.views.drawing import Edge, Graph
from agentstate.db.uow import UnitOfWork
from agentstate.errors import AmbiguousKey, ConversationNotFound
from agentstate.identity import identifier

MAX_CANDIDATES = 10


def list_conversations(
    work: UnitOfWork,
    *,
    prefix: str | None = None,
    contains: str | None = None,
    parent: str | None = None,
    roots: bool = False,
    status: str | None = None,
    sort: str = "created",
    descending: bool = False,
    limit: int = 100,
    cursor: str | None = None,
) -> ConversationPage:
    """Return one page of the conversations that fit every filter given, in a total order.

    `prefix` is the beginning of the key, `contains` a part of key or label; both are literal. `parent` shows the direct
    children of one conversation, `roots` those without a parent. `sort` is "key", "created" or "updated"; `limit` 1 to
    1000. `cursor` is the `next_cursor` of the page before: what is made meanwhile neither shifts nor repeats the rest.
    One statement, which reads no turn's body. A row that cannot be read is left out and named in a warning (VA-08).

    Raises `InvalidValue` naming the field, and `InvalidCursor`.
    """
    wanted = Wanted(
        prefix=prefix,
        contains=contains,
        parent=parent,
        roots=roots,
        status=status,
        sort=sort,
        descending=descending,
        limit=limit,
        cursor=cursor,
    )
    return Conversations(work).list_page(wanted)


def conversation_graph(work: UnitOfWork, root: str | None = None) -> Graph:
    """Return all conversations with the forks between them, or `root` and all below it; raises `ConversationNotFound`.

    A fork from a conversation that is not among them (only raw SQL, or a row that cannot be read) is left out.
    """
    conversations = Conversations(work)
    if root is not None and not conversations.exists(identifier(root, "root")):
        raise ConversationNotFound(root)
    nodes = conversations.list_tree(root)
    keys = {info.key for info in nodes}
    edges = [Edge(info.parent_key, info.key, info.fork_turn_id) for info in nodes if info.parent_key in keys]
    return Graph(tuple(nodes), tuple(edges))


def show(work: UnitOfWork, key: str, last: int | None = None) -> ConversationDetail:
    """Return one conversation with its lineage and the turns that it sees (or the newest `last`), without bodies.

    Raises `ConversationNotFound`, and `UnreadableValue` where a list leaves the row out.
    """
    conversations = Conversations(work)
    info = conversations.find_info(identifier(key, "key"))
    if info is None:
        raise ConversationNotFound(key)
    turns = Turns(work).list_history_info(key, last)
    return ConversationDetail(info, tuple(conversations.list_lineage(key)), tuple(turns))


def resolve_key(work: UnitOfWork, text: str) -> str:
    """Return the key that a person means: exactly this one, or else the only one that begins so (ID-07).

    For commands that only look: one that writes never guesses. Raises `ConversationNotFound`, and `AmbiguousKey` with
    the first ten candidates.
    """
    found = Conversations(work).list_keys(identifier(text, "key"), MAX_CANDIDATES + 1)
    if not found:
        raise ConversationNotFound(text)
    if found[0] == text or len(found) == 1:  # nothing that begins with a text comes before the text itself
        return found[0]
    raise AmbiguousKey(text, found[:MAX_CANDIDATES])
