"""`lab ranks tuner`: from a sweep to a tuner's file, and whether it took effect."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.errors import StepFailed
from lab.rooms.sweep.gemm.session import RANKS, Session
from lab.terminal.options import PATH, print_json

if TYPE_CHECKING:
    from lab.recordings.ranks.costs import Class
    from lab.rooms.sweep.tuner.file import Row
    from lab.rooms.sweep.tuner.judge import Judged
    from lab.rooms.sweep.tuner.write import Proof


@click.command("tuner")
@click.argument("sweep", type=PATH)
@click.option(
    "--for", "library", type=click.Choice(["nccl", "rccl"]), required=True, help="Whose tuner reads the file."
)
@click.option(
    "--run",
    "run",
    type=PATH,
    help="A run under the file (`lab run sweep --tuner FILE`): prove its effect.",
)
@click.option("--file", "own_file", type=PATH, help="Prove this file, instead of the one written.")
@RANKS
def tuner(sweep: Path, library: str, run: Path | None, own_file: Path | None, **options: Any) -> None:
    """Write what a sweep proves to be best as the configuration of NCCL's tuner plugin or of RCCL's tuner.

    Per collective and message size: the channels, algorithm and protocol whose transfers and slowed GEMMs
    cost a step least, with waiting for late ranks taken out. What the repeats cannot tell apart is left at
    default, and said. Exit code 1: something that the judgement needs was not recorded, or an effect is not
    proven.
    """
    session = Session(sweep, **options)
    settings = session.settings(sweep)
    from lab.rooms.sweep.tuner.file import read_rows
    from lab.rooms.sweep.tuner.judge import judge, observe
    from lab.rooms.sweep.tuner.write import write_tuner

    runs = observe(settings)
    judged = judge(runs)
    files = write_tuner(runs, judged, library, session.rank_folder, source=sweep.resolve().name)
    missing = [f"{setting.name}: {text}" for setting in settings for text in setting.missing]
    proofs = _proofs(read_rows(own_file or files[0]), run, session) if run else None
    if session.as_json:
        print_json(_document(judged, files, proofs))
    else:
        _print(judged, files, proofs)
    if missing := [*missing, *_not_known(judged, proofs)]:
        raise StepFailed(
            "what to set is not known completely:\n" + "\n".join(f"  {line}" for line in missing),
            fix="what is written holds; the rest stays at the library's default",
        )


def _proofs(rows: list[Row], run: Path, session: Session) -> list[Proof]:
    """Prove the rows of a file by a run."""
    from lab.recordings.ranks.costs import classes_of
    from lab.rooms.sweep.effective import read_logs
    from lab.rooms.sweep.tuner.write import prove

    grids: dict[Class, Counter[int]] = {}
    for setting in session.settings(run):
        pairs = setting.account.together.pairs
        paired = pairs.instances.where(pairs.instances.collective_id >= 0)
        names = classes_of(pairs.collectives)
        for call, grid in zip(paired.collective_id.tolist(), paired.grid_x.tolist(), strict=True):
            grids.setdefault(names[call], Counter())[grid] += 1
    logs = sorted(path for path in run.rglob("*.log") if path.is_file())
    return prove(rows, grids, read_logs(logs))


def _print(judged: Judged, files: list[Path], proofs: list[Proof] | None) -> None:
    from lab.rooms.sweep.tuner.judge import class_text

    for decision in judged.decisions:
        effect = f"left at default: {decision.reason}"
        if row := decision.row:
            channels = f"{row.channels} channels, " if row.channels > 0 else ""
            source = " (algorithm and protocol told by the block size)" if decision.inferred else ""
            effect = f"{channels}{row.algorithm} {row.protocol}{source}: {decision.reason}"
        click.echo(f"- {class_text(decision.name)}: {effect}.")
    threads = "left at default" if judged.threads is None else f"{judged.threads} per block"
    click.echo(f"- Threads: {threads}: {judged.thread_reason}.")
    for proof in proofs or ():
        click.echo(f"- {proof.verdict}: {proof.text}.")
    for path in files:
        click.echo(f"wrote {path}")
    if proofs is None and any(decision.row for decision in judged.decisions):
        click.echo(f"To prove its effect: `lab run sweep --tuner {files[0]} ...`, then this with --run RUN.")


def _not_known(judged: Judged, proofs: list[Proof] | None) -> list[str]:
    """What keeps the answer from being complete."""
    from lab.rooms.sweep.tuner.judge import class_text
    from lab.rooms.sweep.tuner.write import TOOK_EFFECT

    unseen = [decision for decision in judged.decisions if not decision.looked]
    return [
        *judged.left_out,
        *(f"{class_text(decision.name)}: {decision.reason}" for decision in unseen),
        *([] if judged.decisions else ["the recording has no collectives"]),
        *(f"{proof.verdict}: {proof.text}" for proof in proofs or () if proof.verdict != TOOK_EFFECT),
        *(["no row is set, so there is nothing to prove"] if proofs == [] else []),
    ]


def _document(judged: Judged, files: list[Path], proofs: list[Proof] | None) -> dict[str, Any]:
    classes = [
        {
            "collective": decision.name.kind,
            "msg_bytes": decision.name.num_bytes,
            "ranks": decision.name.num_ranks,
            "set": decision.row,
            "reason": decision.reason,
            "looked": decision.looked,
            "inferred": decision.inferred,
        }
        for decision in judged.decisions
    ]
    return {
        "classes": classes,
        "threads": judged.threads,
        "threads_reason": judged.thread_reason,
        "left_out": list(judged.left_out),
        "proofs": proofs,
        "files": [str(path) for path in files],
    }
