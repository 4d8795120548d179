"""`lab run` and `lab analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.cli.options import BOTH, EARLIER, KNOBS, PLACE, SLURM, make_options
from lab.cli.registry import run_commands
from lab.core.options import Options
from lab.core.plan import Experiment
from lab.driver.analysis import analyse
from lab.driver.drive import drive, resume
from lab.errors import UsageError, not_here
from lab.terminal.click_types import with_options
from lab.terminal.console import Console
from lab.terminal.findings import raise_for_findings, show_findings
from lab.terminal.integrity import REQUIRE, raise_unless_complete
from lab.terminal.lazy import LazyGroup
from lab.terminal.options import as_json, out, quiet


class RunGroup(LazyGroup):
    """Rooms' experiments; with --repeat-both the words are a program that `lab check` runs on both sides."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        both = ctx.params.get("repeat_both")
        if not both:
            return super().resolve_command(ctx, args)
        from lab.compare.cli import check

        words = [*both, "--max-slowdown", ctx.params["max_slowdown"]]
        words += ["-o", str(ctx.params["output_dir"])] if ctx.params.get("output_dir") else []
        words += ["--json"] if ctx.params.get("as_json") else []
        return "check", check, [*words, "--", *args]


def _run(
    ctx: click.Context,
    /,
    resume_run: Path | None,
    attach_run: Path | None,
    repeat_both: tuple[str, str] | None,
    max_slowdown: str,
    **flags: Any,
) -> None:
    """Run a room's experiment: plan, execute, analyse, report.

    \b
    lab run sweep -c 28,42 -t 256 --ranks 2              here, in this environment
    lab run --image rocm70 sweep -c 28,42,56,70          in a container, on its GPUs
    lab run --dry-run --json --image cuda nixnan baseline
    lab run --resume experiments/sweep_20260101_120000   only what is missing or failed
    lab run --attach experiments/sweep_20260101_120000   its containers outlived a killed driver
    lab run --repeat-both main HEAD -o gate -- python train.py --trace {out}   is HEAD slower? (lab check)
    """
    ctx.obj = make_options(**flags)
    if repeat_both:
        _only_repeat(ctx, flags)
        return
    earlier = resume_run or attach_run
    if resume_run and attach_run:
        raise UsageError(
            "--resume and --attach both name a run",
            fix="--resume alone also follows containers that still run",
        )
    if earlier is not None:
        if ctx.invoked_subcommand:
            raise UsageError(
                "--resume and --attach read their experiment from the run folder",
                fix=f"drop {ctx.invoked_subcommand!r}",
            )
        resume(earlier, ctx.obj, attach=attach_run is not None)
    elif not ctx.invoked_subcommand:
        raise UsageError(
            "name an experiment to run", fix=f"one of: {', '.join(run_commands())}, or --resume RUN"
        )


def _only_repeat(ctx: click.Context, flags: dict[str, Any]) -> None:
    """Raises UsageError for --repeat-both without a program, or with what belongs to an experiment."""
    if not ctx.invoked_subcommand:
        raise UsageError(
            "no program to run on both sides",
            fix="lab run --repeat-both BASE HEAD -o OUT -- python train.py --trace {out}",
        )
    theirs = ("output_dir", "as_json")
    given = [
        name
        for name in flags
        if name not in theirs and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"--{given[0].replace('_', '-')} does not go with --repeat-both",
            fix="the sides are git revisions, folders, or image:NAME",
        )


run = click.group("run", cls=RunGroup, lazy=run_commands(), invoke_without_command=True)(
    click.pass_context(with_options(*PLACE, *KNOBS, *SLURM, *EARLIER, *BOTH)(_run))
)


@run.result_callback()
def _carry_out(made: Experiment | None, **_flags: Any) -> None:
    """A room's command decides what to run; running it is the driver's."""
    if made is not None:
        drive(made)


@click.command()
@click.argument("folder", metavar="RUN|FILE|FOLDER", type=click.Path(path_type=Path))
@out("Where tables, figures and page go. [default: the run; for a recording, experiments/NAME_analysis]")
@as_json("Findings")
@quiet()
@REQUIRE
def analyze(folder: Path, out: Path | None, as_json: bool, quiet: bool, require: str | None) -> None:
    """Analyse a run, a recording (a FILE or FOLDER of any profiler), or a folder of recordings.

    A recording that lab did not make is never changed: its page goes to -o, or below experiments/.
    """
    if not folder.exists():
        raise not_here("no such file or folder", folder, "see `lab runs list`")
    findings = analyse(folder, out, Console(quiet=quiet))
    show_findings(folder, findings, Options(json=as_json))
    raise_for_findings(findings, folder)
    if require == "complete":
        raise_unless_complete(findings.incomplete, folder)
