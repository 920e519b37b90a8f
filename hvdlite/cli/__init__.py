"""The commands ``hvdlite VERB`` and ``hvdliterun``. One verb a file: the file's name is the verb, its ``command`` what it does."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from .. import __version__
from ..errors import HvdliteError, SettingError


def main() -> NoReturn:
    """The command ``hvdlite``."""
    _finish(_Verbs(), "hvdlite", sys.argv[1:])


def run() -> NoReturn:
    """The command ``hvdliterun``: the verb ``run``."""
    _finish(_verb("run"), "hvdliterun", sys.argv[1:])


class _Verbs(click.Group):
    """Lists this folder; a verb is imported when it is needed."""

    def __init__(self) -> None:
        version = click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="print the version and stop")
        super().__init__(name="hvdlite", help="Data-parallel training with gradient compression.", params=[version])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _verb(cmd_name) if cmd_name in self.list_commands(ctx) else None


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"hvdlite {__version__}")
        ctx.exit()


def _verb(name: str) -> click.Command:
    command = importlib.import_module(f"{__name__}.{name}").command
    assert isinstance(command, click.Command), f"{name} has no command"
    return command


def _finish(command: click.Command, name: str, arguments: Sequence[str]) -> NoReturn:
    """Run a command; one line and no traceback for what the user can mend."""
    try:
        code = command.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"{name}: {error.format_message()}", err=True)
        sys.exit(2)
    except HvdliteError as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingError) else 1)
    except click.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
