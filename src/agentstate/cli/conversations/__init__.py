"""`agentstate conversations`: what was said, where it forked, and what becomes of it."""

from __future__ import annotations

import click

from agentstate.cli.conversations import changing, looking, moving
from agentstate.cli.output import WithDefault


@click.group(cls=WithDefault)
def conversations() -> None:
    """List conversations, look at one, fork, compact or delete it, or bring in old ones.

    'graph --root', 'show' and 'export' also take the beginning of a key; commands that change a conversation take its
    whole key.

    \b
    Exit codes: 0 done · 1 no such conversation, refused by what is stored or by a value, or nothing compacted ·
    2 wrong usage · 3 to 7 and 9 as for every command · 8 done in part: 'import' left a conflict or failure
    """


for _command in (*looking.COMMANDS, *changing.COMMANDS, *moving.COMMANDS):
    conversations.add_command(_command)
