"""The command line. Commands load when they are called: `lab --help` imports click and little else."""

from __future__ import annotations

import gc
import shlex
import sys
from typing import TYPE_CHECKING

import click

import lab
from lab.cli.registry import EXTRAS, commands, removed
from lab.terminal.group import LazyGroup

if TYPE_CHECKING:
    from lab.errors import LabError


class RootGroup(LazyGroup):
    """The commands of `lab`, and a usage error for each removed one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for a removed command, with the new command line for its arguments."""
        for path, replacement in removed().items():
            words = path.split()
            if args[: len(words)] == words and not ctx.resilient_parsing:
                # By hand, not by str.format: an argument may hold braces, such as {out}.
                command_line = replacement.replace("{args}", shlex.join(args[len(words) :])).rstrip()
                # Without a context, so that click prints this line without the usage of `lab` above it.
                raise click.UsageError(f"`lab {path}` was removed; type: {command_line}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=RootGroup,
    lazy=commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(lab.__version__, prog_name="lab")
def cli() -> None:
    """What does my model do to this GPU, and can I trust its numbers?

    One command runs an experiment in the right container on the right GPUs, and comes back with a verdict,
    figures, tables and the raw evidence. Start with `lab doctor`, then `lab run sweep`; with a recording that
    you already have, with `lab analyze FILE`.
    """


def main(argv: list[str] | None = None) -> None:
    """Run a command line; each error of lab is printed and has its own exit code."""
    from lab.errors import LabError

    try:
        code = cli.main(args=argv, prog_name="lab", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Abort:
        click.echo("lab: interrupted", err=True)
        code = 130
    except (LabError, ModuleNotFoundError, OSError) as error:
        from lab.driver.show import show_error

        code = show_error(_as_lab_error(error))
    if argv is None:
        gc.freeze()  # the process ends here: a last search for garbage would take 20 ms
    sys.exit(code if isinstance(code, int) else 0)


def _as_lab_error(error: LabError | ModuleNotFoundError | OSError) -> LabError:
    """Name the command that installs a package of an extra. Raises `error` again if it is a bug of lab."""
    from lab.errors import LabError, not_installed, path_error

    if isinstance(error, LabError):
        return error
    if isinstance(error, OSError):
        if error.filename is None:
            raise error
        return path_error(error)
    name = (error.name or "").split(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if name in packages.split()), None)
    if extra is None:
        raise error
    return not_installed(name, extra)


if __name__ == "__main__":
    main()
