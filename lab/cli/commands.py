"""`lab run` and `lab analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.cli.options import COMMON, FURTHER, SLURM, make_options
from lab.cli.registry import SECTIONS, run_commands
from lab.core.options import Options
from lab.core.plan import Experiment
from lab.driver.analysis import Sections, analyse
from lab.driver.drive import drive, resume
from lab.errors import UsageError, not_here
from lab.terminal.console import Console
from lab.terminal.findings import REQUIRE, raise_for_findings, raise_unless_complete, show_findings
from lab.terminal.group import LazyGroup
from lab.terminal.options import WordList, as_json, out, quiet


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
        """Common options first, those of Slurm last."""
        further = [param for param in self.get_params(ctx) if param not in (*COMMON, *SLURM)]
        for title, params in (
            ("Options", COMMON),
            ("Further options", further),
            ("With --engine slurm", SLURM),
        ):
            with formatter.section(title):
                formatter.write_dl([record for param in params if (record := param.get_help_record(ctx))])
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
    params=[*COMMON, *FURTHER, *SLURM],
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
