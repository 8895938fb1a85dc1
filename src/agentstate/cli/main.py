"""The command `agentstate`: finds the command group, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import Any

import click

from agentstate import errors
from agentstate.cli import exits
from agentstate.cli.output import print_json_error, say
from agentstate.settings import debug_wanted

COMMANDS = {
    "adopt": "agentstate.cli.schema",
    "approvals": "agentstate.cli.approvals",
    "backup": "agentstate.cli.backups",
    "conversations": "agentstate.cli.conversations",
    "copy": "agentstate.cli.copy",
    "doctor": "agentstate.cli.doctor",
    "downgrade": "agentstate.cli.schema",
    "introductions": "agentstate.cli.roles",
    "maintain": "agentstate.cli.maintain",
    "restore": "agentstate.cli.backups",
    "sessions": "agentstate.cli.roles",
    "status": "agentstate.cli.status",
    "upgrade": "agentstate.cli.schema",
    "verify": "agentstate.cli.backups",
}


class LazyCommands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="agentstate-db", prog_name="agentstate")
def cli() -> None:
    """The durable memory of AI-agent roles: look at it, upgrade it, tidy it.

    Commands work on the database that AGENT_DB_PATH (a file) or AGENT_DB_URL names, or --database.

    \b
    Exit codes: 0 done · 1 not there, or the answer is no · 2 wrong usage · 3 schema behind · 4 schema ahead ·
    5 no schema version, or another program's · 6 corrupt · 7 missing · 8 done in part · 9 busy, full or out of reach
    """


class RowsLeftOut(logging.Handler):
    """Shows the library's warnings on stderr and remembers whether a row had to be left out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.any = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        self.any = self.any or getattr(record, "row_left_out", False)
        say(f"agentstate: {record.getMessage()}", err=True)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code; what went wrong is one line on stderr, JSON if that was asked for.

    The JSON is one object: `error`, the name of the error's class, `message`, and the error's attributes.
    """
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    group = next((word for word in words if not word.startswith("-")), "")
    warnings = RowsLeftOut()
    logger = logging.getLogger("agentstate")
    logger.addHandler(warnings)
    # What SQLAlchemy says of a connection that an interrupt has closed is no news to a person.
    logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())

    def failed(error: BaseException, message: str, hint: str = "", facts: Mapping[str, object] | None = None) -> None:
        if as_json:
            print_json_error(type(error).__name__, message, facts or {})
        else:
            say(f"agentstate: {' '.join(message.split())}{hint}", err=True)

    try:
        result: Any = cli.main(words, prog_name="agentstate", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        return code or (exits.PARTLY if warnings.any else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return exits.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "agentstate"
        failed(error, error.format_message().rstrip("."), f"; '{command} --help' shows how")
        return exits.USAGE
    except click.Abort as error:
        failed(error, "stopped")
        return 130
    except errors.AgentStateError as error:
        if debug_wanted():
            raise
        failed(error, str(error), facts=vars(error))
        return exits.exit_code(error, group)
    except OSError as error:
        # The output could not be written: a full disk behind a redirection.
        if debug_wanted():
            raise
        what = "the output could not be written" if error.filename is None else str(error.filename)
        failed(error, f"{what}: {error.strerror or error}")
        return exits.TRY_AGAIN
    except SystemExit:
        # click's way out when the reader has seen enough, as in `agentstate sessions | head`.
        return 0
    finally:
        logger.removeHandler(warnings)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    # A parent may have closed them; what is not there is read as empty, and written to nobody.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115  (open until the process ends)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (likewise)
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (likewise)
    if isinstance(sys.stdout, TextIOWrapper):
        # Names hold what they like, also on a terminal whose encoding lacks it.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run())


if __name__ == "__main__":
    main()
