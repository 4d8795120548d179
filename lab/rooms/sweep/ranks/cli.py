"""`lab ranks`: the account of a folder of ranks, hangs, and what nccl-tests measured."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.errors import BadDataError, LabError, StepFailed, UsageError, needs
from lab.rooms.sweep.gemm.session import JSON, RANKS, Session, raise_for_missing
from lab.rooms.sweep.tuner.cli import tuner
from lab.terminal.group import Group
from lab.terminal.options import PATH, out, print_json

if TYPE_CHECKING:
    from lab.rooms.sweep.ranks.read import Setting

DEFAULT = "account"
MOST_PROBLEMS, MOST_FILES = 8, 12
# A transfer in the recording that takes so many times as long as alone is said.
NOTABLE = 1.2


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


ranks.add_command(tuner)


@ranks.command(DEFAULT)
@click.argument("folder", type=PATH)
@click.option(
    "--ranks",
    "pattern",
    metavar="REGEX",
    help="Traces by their path below FOLDER; the first group is the rank, as in 'node0/gpu(\\d+)/'.",
)
@RANKS
def account(folder: Path, pattern: str | None, **options: Any) -> None:
    """Account for every step of every rank: work, launches, waiting for whom and why, transfer, contention.

    With --json nothing is written, unless --out is given.
    """
    session = Session(folder, **options)
    try:
        regex = None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--ranks {pattern!r} is not a valid regular expression: {error}") from error
    settings = session.settings(folder, ranks=regex)
    files: list[Path] = []
    if session.out is not None or not session.as_json:
        from lab.rooms.sweep.ranks.page import write_account

        files = write_account(settings, session.rank_folder, source=folder).files
    if session.as_json:
        documents = [_document(setting) for setting in settings]
        document = documents[0] if len(documents) == 1 else {"settings": documents}
        print_json({**document, "files": [str(path) for path in files]})
    else:
        _print(settings, files)
    missing = [f"{setting.name}: {text}" for setting in settings for text in setting.missing]
    raise_for_missing(missing, "account")


def _document(setting: Setting) -> dict[str, Any]:
    """One setting as scripts read it (docs/ranks.md)."""
    from lab.rooms.sweep.ranks.tables import as_json

    config = setting.config
    return {
        "threads": config.threads,
        "channels": config.channels,
        **{name: word for name in ("algorithm", "protocol") if (word := getattr(config, name))},
        "repeat": config.repeat,
        **as_json(setting.explained),
        "lacking": setting.missing,
        "gpus": setting.gpus,
        "problems": [*setting.problems, *setting.account.together.pairs.problems],
    }


def _print(settings: Sequence[Setting], files: Sequence[Path]) -> None:
    from lab.rooms.sweep.ranks.words import sentences

    for setting in settings:
        if len(settings) > 1:
            click.echo(f"{setting.name}:")
        for sentence in sentences(setting):
            click.echo(f"- {sentence}")
        for problem in setting.problems[:MOST_PROBLEMS]:
            click.echo(f"note: {problem}")
    for path in files:
        if path.suffix == ".html" or len(files) <= MOST_FILES:
            click.echo(f"wrote {path}")


@ranks.command("hang")
@click.argument("folder", type=PATH)
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
        names = ("ranks", "group", "seq", "collective", "frame", "text", "missing")
        print_json({"class": verdict.kind, **{name: getattr(verdict, name) for name in names}})
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


@ranks.command("import")
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option(
    "--with",
    "folder",
    type=click.Path(path_type=Path, exists=True),
    help="Compare with the transfers of this recording (a folder of ranks, a sweep, a run).",
)
@out("Where nccl_tests.csv goes. [default: it is not written]")
@JSON
def import_evidence(files: tuple[Path, ...], folder: Path | None, out: Path | None, as_json: bool) -> None:
    """Read what nccl-tests or rccl-tests measured: how fast collectives are alone.

    FILES are files or folders. Exit code 1: results were wrong, or a size was not measured.
    """
    from lab.core.words import first_few
    from lab.recordings.nccl import read_evidence

    evidence = read_evidence(files)
    beside, unknown = _beside(folder, evidence.speeds) if folder else ([], [])
    written: list[Path] = []
    if out and evidence.rows:
        with needs("analysis"):
            import pandas as pd
        from lab.report.tables import write_csv

        written = [write_csv(pd.DataFrame(evidence.rows), out / "nccl_tests.csv")]
    if as_json:
        document = {
            "sentences": evidence.sentences,
            "rows": evidence.rows,
            "lacking": evidence.missing,
            "beside": beside,
            "files": [str(path) for path in written],
        }
        print_json(document)
    else:
        for sentence in evidence.sentences:
            click.echo(f"- {sentence}.")
        for row in beside:
            click.echo(f"- {row['text']}.")
        for path in written:
            click.echo(f"wrote {path}")
    missing = list(evidence.missing)
    if folder and not beside:
        missing.append(
            "no collective of the recording has a kind, size and number of ranks that was measured"
        )
    elif unknown:
        missing.append(f"not compared, because not measured: {first_few(unknown, 3, between='; ')}")
    raise_for_missing(missing, "evidence")


def alone_us(speeds: Mapping[tuple[str, int, int], float], kind: str, num_bytes: int, ranks: int) -> float:
    """The measured time of a size, between neighbouring sizes by powers; NaN outside of them."""
    import numpy as np

    times = sorted((size, us) for (name, size, count), us in speeds.items() if (name, count) == (kind, ranks))
    if not times or not times[0][0] <= num_bytes <= times[-1][0]:
        return math.nan
    sizes, times_us = np.log(np.array(times, dtype=float)).T
    return float(np.exp(np.interp(math.log(num_bytes), sizes, times_us)))


def _beside(
    folder: Path, speeds: Mapping[tuple[str, int, int], float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per class of the recording that was measured alone, and the classes that were not."""
    with needs("analysis"):
        from lab.rooms.sweep.ranks.read import read_settings
    from lab.recordings.ranks.costs import costs_of
    from lab.rooms.sweep.tables import size_text

    rows, unknown = [], []
    for setting in read_settings(folder):
        for name, cost in costs_of(setting.explained).items():
            alone = alone_us(speeds, name.kind, name.num_bytes, name.num_ranks)
            class_text = (
                f"{setting.name}: {name.kind} of {size_text(name.num_bytes)} over {name.num_ranks} ranks"
            )
            if not alone > 0 or not cost.latency_us > 0:
                unknown.append(class_text)
                continue
            ratio = cost.latency_us / alone
            judged = ": slower than the fabric allows" if ratio > NOTABLE else ""
            rows.append(
                {
                    "setting": setting.name,
                    "collective": name.kind,
                    "msg_bytes": name.num_bytes,
                    "ranks": name.num_ranks,
                    "transfer_us": cost.latency_us,
                    "alone_us": alone,
                    "ratio": ratio,
                    "text": f"{class_text} takes {cost.latency_us:.0f} us after the last arrival, "
                    f"{alone:.0f} us alone ({ratio:.2f} times){judged}",
                }
            )
    return rows, unknown
