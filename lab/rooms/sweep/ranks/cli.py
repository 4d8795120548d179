"""`lab ranks`: the account of a folder of ranks, hangs, tuner files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from lab.errors import BadDataError, LabError, StepFailed, UsageError
from lab.rooms.sweep.gemm.options import JSON
from lab.rooms.sweep.ranks.evidence import import_evidence
from lab.rooms.sweep.ranks.reading import READING, Reading
from lab.rooms.sweep.tuner.cli import tuner
from lab.terminal.group import Group

DEFAULT = "account"


class _Ranks(Group):
    """A group whose first argument may be a folder: that is `lab ranks account FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Ranks)
def ranks() -> None:
    """Which rank makes the others wait, why, and what a repair gives.

    lab ranks FOLDER explains every step of a folder of rank traces, of a sweep, or of a run of lab.
    """


@ranks.command(DEFAULT)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--ranks",
    "pattern",
    metavar="REGEX",
    help="Traces by their path below FOLDER; the first group is the rank, as in 'node0/gpu(\\d+)/'.",
)
@READING
def account(folder: Path, pattern: str | None, **options: Any) -> None:
    """Account for every step of every rank: work, launches, waiting for whom and why, transfer, contention.

    With --json nothing is written, unless --out is given.
    """
    asked = Reading(**options)
    target = asked.target(folder)
    writes = not asked.as_json or asked.out is not None
    settings = asked.settings(folder, ranks=_regex(pattern))
    files: list[Path] = []
    if writes:
        from lab.rooms.sweep.ranks.page import write_account

        files = write_account(settings, target, source=folder).files
    _show(settings, files, as_json=asked.as_json)


@ranks.command("hang")
@click.argument("folder", type=click.Path(path_type=Path))
@JSON
def hang(folder: Path, as_json: bool) -> None:
    """Say who a stalled job waits for, from its ranks' flight-recorder dumps (pickle or JSON, any names).

    Python stacks beside them (rank1.stack.txt) are shown for ranks that never came. The exit code is 0
    whatever the verdict, 1 where dumps are missing or nothing can be told, 5 where one cannot be read.
    """
    from lab.recordings.flight import read_dumps, verdict_of

    unread: dict[int, LabError] = {}
    verdict = verdict_of(read_dumps(folder, unread), unread.keys())
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(_verdict_json(verdict)).decode())
    else:
        click.echo(f"{verdict.kind.replace('_', ' ')}: {verdict.text}")
    if unread:
        raise BadDataError(
            "dumps that cannot be read:\n"
            + "\n".join(f"  {Path(str(e.location)).name}: {e.problem}" for e in unread.values()),
            location=folder,
            fix="the verdict rests on the others; dump these ranks again, or take the files away",
        )
    if verdict.kind == "unknown" or verdict.missing:
        raise StepFailed(
            f"the dumps do not tell everything: {verdict.text}",
            location=folder,
            fix="dump every rank; a rank that leaves no dump is dead or was not asked",
        )


ranks.add_command(tuner)
ranks.add_command(import_evidence)


def _verdict_json(verdict: Any) -> dict[str, Any]:
    return {
        "class": verdict.kind,
        "ranks": list(verdict.ranks),
        "group": verdict.group,
        "seq": verdict.seq,
        "collective": verdict.collective,
        "frame": verdict.frame,
        "text": verdict.text,
        "missing": list(verdict.missing),
    }


def _show(settings: Any, files: list[Path], *, as_json: bool) -> None:
    from lab.rooms.sweep.ranks.tables import as_json as encoded
    from lab.rooms.sweep.ranks.words import sentences

    missing = [f"{setting.name}: {text}" for setting in settings for text in setting.missing]
    if as_json:
        import msgspec

        parts = [
            {
                "threads": setting.config.threads,
                "channels": setting.config.channels,
                **({"algorithm": setting.config.algorithm} if setting.config.algorithm else {}),
                **({"protocol": setting.config.protocol} if setting.config.protocol else {}),
                "repeat": setting.config.repeat,
                **encoded(setting.explained),
                "lacking": setting.missing,
                "gpus": setting.gpus,
                "problems": [*setting.problems, *setting.account.together.pairs.problems],
            }
            for setting in settings
        ]
        document = parts[0] if len(parts) == 1 else {"settings": parts}
        click.echo(msgspec.json.encode({**document, "files": [str(path) for path in files]}).decode())
    else:
        for setting in settings:
            if len(settings) > 1:
                click.echo(f"{setting.name}:")
            for sentence in sentences(setting):
                click.echo(f"- {sentence}")
            for problem in setting.problems[:8]:
                click.echo(f"note: {problem}")
        for path in files:
            if path.suffix == ".html" or len(files) <= 12:
                click.echo(f"wrote {path}")
    if missing:
        raise StepFailed(
            "the account is incomplete:\n" + "\n".join(f"  {line}" for line in missing),
            fix="the rest is accounted for; add what is missing and repeat the command",
        )


def _regex(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--ranks {pattern!r} is not a valid regular expression: {error}") from error
