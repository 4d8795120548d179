"""The command line. Commands load when they are called: `lab --help` imports click and little else."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import click

import lab
from lab.cli.registry import commands
from lab.cli.removed import RootGroup

if TYPE_CHECKING:
    from lab.errors import LabError


EXTRAS = {
    "analysis": "numpy pandas openpyxl jinja2 matplotlib isal pyarrow",
    "host": "docker",
    "mcp": "mcp",
    "query": "duckdb",
    "serve": "starlette uvicorn",
    "slurm": "submitit",
    "workload": "torch transformers triton",
}


@click.group(
    cls=RootGroup,
    lazy=commands(),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(lab.__version__, prog_name="lab")
def cli() -> None:
    """What does my model do to this GPU, and can I trust its numbers?

    One command runs an experiment in the right container on the right GPUs, and comes back with a verdict,
    figures, tables and the raw evidence. Start with `lab doctor`, then `lab run sweep`; with a recording that
    you already have, with `lab analyze FILE`.
    """


def main(argv: list[str] | None = None) -> None:
    """Entry point: every error that lab understands ends in words and its own exit code."""
    from lab.errors import LabError

    try:
        code = cli.main(args=argv, prog_name="lab", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and (place := _place_of(error)):
            click.echo(place, err=True)
        code = error.exit_code
    except click.exceptions.Abort:
        click.echo("lab: interrupted", err=True)
        code = 130
    except LabError as error:
        from lab.driver.show import show_error

        code = show_error(error)
    except ModuleNotFoundError as error:
        from lab.driver.show import show_error

        code = show_error(_missing_package(error))
    except OSError as error:
        from lab.driver.show import show_error
        from lab.errors import path_error

        if error.filename is None:
            raise
        code = show_error(path_error(error))
    if argv is None:
        gc.freeze()  # the process ends here: a last search for garbage would take 20 ms
    sys.exit(code if isinstance(code, int) else 0)


def _missing_package(error: ModuleNotFoundError) -> LabError:
    """Names the command that installs a package of an extra. Raises `error` again for any other module."""
    from lab.errors import MissingError

    name = (error.name or "").split(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if name in packages.split()), None)
    if extra is None:
        raise error
    return MissingError(
        f"the Python package {name!r} is not installed here", fix=f"pip install 'lab[{extra}]'"
    )


def _place_of(error: click.NoSuchOption) -> str:
    """Where an option that was given after a subcommand belongs, if a command above it has that option."""
    below, above = error.ctx, error.ctx.parent if error.ctx else None
    while above is not None:
        if any(error.option_name in (*one.opts, *one.secondary_opts) for one in above.command.params):
            return f"It is an option of {above.command_path!r}: put it before {below.info_name!r}."  # type: ignore[union-attr]
        below, above = above, above.parent
    return ""


if __name__ == "__main__":
    main()
