"""The command line. Commands load when they are called: `lab --help` imports click and little else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import lab

if TYPE_CHECKING:
    from lab.survey import Options

    _IntsParam = click.ParamType[list[int]]
else:
    _IntsParam = click.ParamType  # generic only in newer click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# name -> (module:attribute, help line). Rooms' commands come from the registry in lab.rooms, repeated here by name only
# so that --help need not load it; a test holds the two together.
COMMANDS = {
    "run": ("lab.commands:run", "Run a room's experiment: plan, execute, analyse, report."),
    "sweep": ("lab.rooms.sweep.cli:sweep", "Sweep channels x threads of NCCL/RCCL, here and now."),
    "nan": (
        "lab.rooms.nan.group:nan",
        "Where NaN and Inf are born: analyse runs, read nixnan logs, compare.",
    ),
    "nixnan": ("lab.rooms.nan.cli:nixnan", "Watch every instruction with nixnan."),
    "semicrf": ("lab.rooms.semicrf.cli:semicrf", "Train, diagnose and check a streaming semi-Markov CRF."),
    "analyze": ("lab.commands:analyze", "Analyse a run, or a recording that lab did not make."),
    "gemm": (
        "lab.rooms.sweep.gemm.cli:gemm",
        "Why GEMM times vary: Excel reports, overlap, cause, merged traces.",
    ),
    "kernels": ("lab.rooms.kernels.group:kernels", "Every launch of a model: catalogue, chart, C++, audits."),
    "nsys": (
        "lab.rooms.nsys.group:nsys",
        "Read captures of nsys or torch.profiler: phases, reports, answers.",
    ),
    "runs": ("lab.commands:runs", "List, show, stop and clean up runs."),
    "images": ("lab.commands:images", "List, show, build and check images."),
    "doctor": ("lab.commands:doctor", "Say what this machine offers: GPUs, engine, packages, disk."),
}
ROOM_COMMANDS = ("sweep", "nan", "nixnan", "nsys", "kernels", "semicrf")
# Rooms whose experiment runs under `lab run` only: `lab NAME`, where there is one, reads what it recorded.
RUN_COMMANDS = {
    "nan": ("lab.rooms.nan.cli:nan", "Watch every module's outputs for NaN and Inf."),
    "nsys": ("lab.rooms.nsys.cli:nsys", "Profile Transformers, and answer where their GPU time goes."),
    "kernels": ("lab.rooms.kernels.cli:kernels", "Profile, replay and price every kernel a model launches."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads one when it is called."""

    def __init__(
        self, *args: Any, lazy: dict[str, tuple[str, str]], standalone_rooms: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy, self._standalone = lazy, standalone_rooms

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return None
        module, _, attribute = self._lazy[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if self._standalone and name in ROOM_COMMANDS and name not in RUN_COMMANDS:
            from lab.commands import standalone

            return standalone(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


class IntList(_IntsParam):
    """`28,42,56`: integers above zero without repeats."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        from lab.errors import UsageError
        from lab.rooms.sweep.config import parse_int_list

        try:
            return parse_int_list(value)
        except UsageError as error:
            self.fail(f"{error.what} ({error.fix})" if error.fix else error.what, param, ctx)


def with_options(*decorators: Decorator) -> Decorator:
    """Several options and arguments as one decorator, in the order of --help."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def options_of(ctx: click.Context) -> Options:
    """The run's options, whether the command was called under `lab run` or by itself."""
    from lab.survey import Options

    return ctx.obj if isinstance(ctx.obj, Options) else Options()


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    standalone_rooms=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(lab.__version__, prog_name="lab")
def cli() -> None:
    """What does my model do to this GPU, and can I trust its numbers?

    One command runs an experiment in the right container on the right GPUs, and comes back with a verdict, figures,
    tables and the raw evidence. Start with `lab doctor`, then `lab run sweep`.
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
        from lab.show import show_error

        code = show_error(error)
    except BrokenPipeError:
        from lab.show import die_quietly_on_closed_pipe

        die_quietly_on_closed_pipe()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _place_of(error: click.NoSuchOption) -> str:
    """Where an option belongs that was given after a subcommand and is one of a command above; else nothing."""
    below, above = error.ctx, error.ctx.parent if error.ctx else None
    while above is not None:
        if any(error.option_name in (*one.opts, *one.secondary_opts) for one in above.command.params):
            return f"It is an option of {above.command_path!r}: put it before {below.info_name!r}."  # type: ignore[union-attr]
        below, above = above, above.parent
    return ""


if __name__ == "__main__":
    main()
