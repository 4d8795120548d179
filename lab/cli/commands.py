"""`lab run` and `lab analyze`, and the options of `lab run` in the order of its --help."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lab.cli.registry import SECTIONS, run_commands
from lab.core.options import Options, SlurmOptions
from lab.core.plan import Experiment
from lab.driver.analysis import Sections, analyse
from lab.driver.drive import drive, resume
from lab.errors import UsageError, not_here
from lab.gpus.environment import parse_variable
from lab.terminal.console import Console
from lab.terminal.findings import REQUIRE, raise_for_findings, raise_unless_complete, show_findings
from lab.terminal.group import LazyGroup
from lab.terminal.options import ABOVE_ZERO, ONE_OR_MORE, PATH, WordList, as_json, out, quiet

COMMON = (
    click.Option(
        ["--image"],
        metavar="NAME|REF",
        help="Run in this image: cuda, pascal, rocm70, cpu, or any by reference. [default: here]",
    ),
    click.Option(
        ["--gpus"],
        default="all",
        show_default=True,
        help="all, none, a count, 0,2 or 0-3, 0:1 (MIG), UUIDs or CDI names.",
    ),
    click.Option(["-o", "--output-dir"], type=PATH, help="Run folder. [default: experiments/ROOM_TIME]"),
    click.Option(["-n", "--dry-run"], is_flag=True, help="Print exactly what would run, and run nothing."),
    click.Option(
        ["--resume", "resume_run"],
        type=PATH,
        metavar="RUN",
        help="Instead of an experiment: run what is missing or failed of this run, after following what "
        "still runs of it.",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Results (or the plan) as JSON on stdout."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Hide the steps' own output."),
)
FURTHER = (
    click.Option(
        ["--engine"],
        type=click.Choice(["local", "docker", "slurm"]),
        help="[default: docker with --image, else local]",
    ),
    click.Option(["-j", "--jobs"], type=ONE_OR_MORE, default=1, show_default=True, help="Steps at a time."),
    click.Option(["--timeout", "timeout_s"], type=ABOVE_ZERO, help="Time limit of a step, s."),
    click.Option(
        ["--stall-timeout", "stall_timeout_s"],
        type=ABOVE_ZERO,
        help="Stop a step that prints nothing for this long, s; ranks first dump what they wait for.",
    ),
    click.Option(
        ["--env"],
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set a variable for every step; NAME alone passes yours into containers. Repeatable.",
    ),
    click.Option(
        ["--mount", "mounts"],
        multiple=True,
        metavar="SRC[:DST[:ro]]",
        help="A folder or file of yours in containers, at its own path or DST. Repeatable.",
    ),
    click.Option(
        ["--vendor"],
        type=click.Choice(["nvidia", "amd", "none"]),
        help="Vendor of the GPUs, where no image says it.",
    ),
    click.Option(["--detach"], is_flag=True, help="Return at once; the run goes on: see lab runs logs."),
    click.Option(
        ["--wait/--no-wait"], default=True, help="Wait for GPUs that another process holds. [default: yes]"
    ),
    click.Option(
        ["--analysis"],
        type=click.Choice(["auto", "host", "none"]),
        default="auto",
        show_default=True,
        help="Where to analyse after the steps; auto: in the cpu image if they ran in containers, else here.",
    ),
    click.Option(
        ["--host-lab"],
        type=click.Choice(["auto", "mount", "refuse"]),
        default="auto",
        show_default=True,
        help="If the image holds a different lab: auto mounts a checkout, and refuses an installed one.",
    ),
)
SLURM = (
    click.Option(
        ["--sbatch", "extra"],
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of sbatch, such as partition=gpu, account=physics or mem=64G; repeatable.",
    ),
    click.Option(
        ["--time", "time_min"],
        type=ONE_OR_MORE,
        help="Time limit of a job, min. [default: the step's plus 10]",
    ),
    click.Option(
        ["--container"],
        type=click.Choice(["none", "docker", "pyxis", "apptainer"]),
        default="none",
        show_default=True,
        help="How a node runs --image; pyxis and apptainer, which were never run, with --experimental.",
    ),
    click.Option(["--experimental"], is_flag=True, help="Allow what was never run."),
)


def _show_slurm(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        formatter = ctx.make_formatter()
        _write_section(ctx, formatter, "With --engine slurm", SLURM)
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()


def _write_section(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Sequence[click.Parameter]
) -> None:
    with formatter.section(title):
        formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])


HELP_SLURM = click.Option(
    ["--help-slurm"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_slurm,
    help="Slurm's options.",
)


def _absolute(text: str) -> str:
    source, colon, target = text.partition(":")
    path = os.path.abspath(os.path.expanduser(source)) if source else ""
    return f"{path}{colon}{target}"


def make_options(as_json: bool = False, **flags: Any) -> Options:
    """The flags as values. Raises UsageError for an option of Slurm without --engine slurm."""
    flags["env"] = tuple(map(parse_variable, flags.get("env", ())))
    flags["mounts"] = tuple(map(_absolute, flags.get("mounts", ())))
    if flags["engine"] == "slurm":
        slurm = SlurmOptions(**{name: flags.pop(name) for name in SlurmOptions.__struct_fields__})
        return Options(json=as_json, slurm=slurm, **flags)
    for option in SLURM:
        value = flags[option.name] if option.name in Options.__struct_fields__ else flags.pop(option.name)
        if value not in (None, (), "none", False):
            raise UsageError(f"{option.opts[0]} is an option of the slurm engine", fix="add --engine slurm")
    return Options(json=as_json, **flags)


class RunGroup(LazyGroup):
    """The rooms' experiments, and what to type for an option of `lab run` after the experiment's name."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if any(error.option_name in (*param.opts, *param.secondary_opts) for param in self.params):
                typed = f"lab run {error.option_name} ... {ctx.invoked_subcommand}"
                raise click.UsageError(
                    f"{error.option_name} stands before the experiment: {typed}", error.ctx
                ) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Common options first; those of Slurm by --help-slurm."""
        further = [param for param in self.get_params(ctx) if param not in (*COMMON, *SLURM)]
        _write_section(ctx, formatter, "Options", COMMON)
        _write_section(ctx, formatter, "Further options", further)
        self.format_commands(ctx, formatter)


@click.pass_context
def _run(ctx: click.Context, /, resume_run: Path | None, **flags: Any) -> None:
    """Run a room's experiment: plan, execute, analyse, report.

    \b
    lab run sweep -c 28,42 -t 256 --ranks 2              here, in this environment
    lab run --image rocm70 sweep -c 28,42,56,70          in a container, on its GPUs
    lab run --dry-run --json --image cuda nixnan baseline
    lab run --resume experiments/sweep_20260101_120000   only what is missing or failed

    `lab run EXPERIMENT --help` shows an experiment's own options; those below stand before its name.
    """
    ctx.obj = make_options(**flags)
    if resume_run is not None:
        if ctx.invoked_subcommand:
            raise UsageError(
                "--resume reads its experiment from the run folder", fix=f"drop {ctx.invoked_subcommand!r}"
            )
        resume(resume_run, ctx.obj)
    elif not ctx.invoked_subcommand:
        raise UsageError(
            "name an experiment to run", fix=f"one of: {', '.join(run_commands())}, or --resume RUN"
        )


run = RunGroup(
    "run",
    callback=_run,
    params=[*COMMON, *FURTHER, *SLURM, HELP_SLURM],
    help=_run.__doc__,
    lazy=run_commands(),
    invoke_without_command=True,
)


@run.result_callback()
def _carry_out(experiment: Experiment | None, **_flags: Any) -> None:
    """A room's command decides what to run; running it is the driver's."""
    if experiment is not None:
        drive(experiment)


@click.command()
@click.argument("folder", metavar="RUN|FILE|FOLDER", type=click.Path(path_type=Path))
@out("Where tables, figures and page go. [default: the run; for a recording, experiments/NAME_analysis]")
@as_json("Findings")
@quiet()
@click.option(
    "--only",
    metavar="SECTIONS",
    type=WordList(tuple(SECTIONS)),
    help=f"Only these, each into a folder of its own: {','.join(SECTIONS)}.",
)
@REQUIRE
def analyze(
    folder: Path, out: Path | None, as_json: bool, quiet: bool, only: list[str] | None, require: str | None
) -> None:
    """Analyse a run, a recording (a FILE or FOLDER of any profiler), or a folder of recordings.

    A recording that lab did not make is never changed: its page goes to -o, or below experiments/. Exit code
    1 where anything that was asked for is missing.
    """
    if not folder.exists():
        raise not_here("no such file or folder", folder, "see `lab runs list`")
    sections = Sections({name: SECTIONS[name] for name in only}) if only else None
    findings = analyse(folder, out, Console(quiet=quiet), sections)
    show_findings(folder, findings, Options(json=as_json))
    raise_for_findings(findings, folder)
    if require == "complete":
        raise_unless_complete(findings.incomplete, folder)
