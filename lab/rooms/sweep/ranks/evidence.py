"""`lab ranks import`: what nccl-tests, NCCL Inspector and RAS say, alone or beside a recording."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lab.errors import StepFailed, needs
from lab.rooms.sweep.gemm.options import JSON
from lab.terminal.options import out, with_options

# A transfer in the recording that takes so many times as long as alone is said.
NOTABLE = 1.2
ALONE = "alone"


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--with",
    "folder",
    type=click.Path(path_type=Path, exists=True),
    help="Compare with the transfers of this recording (a folder of ranks, a sweep, a run).",
)
@out("A table per kind of file. [default: none is written]")
@with_options(JSON)
def import_evidence(files: tuple[Path, ...], folder: Path | None, out: Path | None, as_json: bool) -> None:
    """Read nccl-tests' JSON, NCCL Inspector's dumps or RAS' answers, told from their content.

    FILES are files or folders. nccl-tests says how fast collectives are alone, Inspector who waits without a
    trace, RAS who has launched less. Two answers of RAS, some seconds apart, tell a hang from being behind.
    Exit code 1: something is missing (a rank's file, a second answer, results that were wrong).
    """
    from lab.core.words import first_few
    from lab.recordings.nccl import read_evidence

    evidence = read_evidence(files)
    beside, unknown = _beside(folder, evidence) if folder else ([], [])
    written = _write(evidence, out) if out else []
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(_document(evidence, beside, written)).decode())
    else:
        for kind_evidence in evidence:
            for sentence in kind_evidence.sentences:
                click.echo(f"- {kind_evidence.kind}: {sentence}.")
        for row in beside:
            click.echo(f"- {row['text']}.")
        for path in written:
            click.echo(f"wrote {path}")
    missing = [
        f"{kind_evidence.kind}: {text}" for kind_evidence in evidence for text in kind_evidence.missing
    ]
    if folder and not beside:
        missing.append(
            "no collective of the recording has a kind, size and number of ranks that was measured"
        )
    elif unknown:
        missing.append(f"not compared, because not measured: {first_few(unknown, 3, between='; ')}")
    if missing:
        raise StepFailed(
            "the evidence is incomplete:\n" + "\n".join(f"  {line}" for line in missing),
            fix="the rest is told; add what is missing and repeat the command",
        )


def alone_us(speeds: Mapping[tuple[str, int, int], float], kind: str, num_bytes: int, ranks: int) -> float:
    """The measured time of a size, between neighbouring sizes by powers; NaN outside of them."""
    sizes = sorted(size for name, size, count in speeds if (name, count) == (kind, ranks))
    above = next((size for size in sizes if size >= num_bytes), None)
    if above is None or num_bytes < sizes[0]:
        return math.nan
    if above == num_bytes:
        return speeds[kind, above, ranks]
    below = sizes[sizes.index(above) - 1]
    low, high = speeds[kind, below, ranks], speeds[kind, above, ranks]
    share = math.log(num_bytes / below) / math.log(above / below)
    return float(low * (high / low) ** share) if low > 0 and high > 0 else math.nan


def _beside(folder: Path, evidence: Sequence[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per class of the recording that was measured alone, and the classes that were not."""
    with needs("analysis"):
        from lab.rooms.sweep.ranks.read import read_settings
    from lab.recordings.ranks.costs import costs_of
    from lab.rooms.sweep.names import size_text

    rows, unknown = [], []
    for setting in read_settings(folder):
        for name, cost in costs_of(setting.explained).items():
            alone, best = _best(evidence, name.kind, name.num_bytes, name.num_ranks)
            class_text = (
                f"{setting.name}: {name.kind} of {size_text(name.num_bytes)} over {name.num_ranks} ranks"
            )
            if math.isnan(alone) or not cost.latency_us > 0:
                unknown.append(class_text)
                continue
            ratio = cost.latency_us / alone
            allowed = "the fabric allows" if best == ALONE else "it was there"
            judged = f": slower than {allowed}" if ratio > NOTABLE else ""
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
                    f"{alone:.0f} us "
                    f"{best} ({ratio:.2f} times){judged}",
                }
            )
    return rows, unknown


def _best(evidence: Sequence[Any], kind: str, num_bytes: int, ranks: int) -> tuple[float, str]:
    """The time of nccl-tests, or else the least that Inspector saw, which is none of a collective alone."""
    for kind_evidence in evidence:  # nccl-tests come first
        if not math.isnan(us := alone_us(kind_evidence.speeds, kind, num_bytes, ranks)) and us > 0:
            return us, ALONE if kind_evidence.kind == "nccl-tests" else "at best under NCCL Inspector"
    return math.nan, ""


def _write(evidence: Sequence[Any], out: Path) -> list[Path]:
    with needs("analysis"):
        import pandas as pd
    from lab.report.tables import write_csv

    return [
        write_csv(
            pd.DataFrame(kind_evidence.rows),
            out / f"{kind_evidence.kind.lower().replace(' ', '_').replace('-', '_')}.csv",
        )
        for kind_evidence in evidence
        if kind_evidence.rows
    ]


def _document(evidence: Sequence[Any], beside: list[dict[str, Any]], written: list[Path]) -> dict[str, Any]:
    return {
        "evidence": [
            {
                "kind": kind_evidence.kind,
                "sentences": kind_evidence.sentences,
                "late_ranks": [{"rank": rank, "ms": ms} for rank, ms in kind_evidence.late_ranks],
                "rows": kind_evidence.rows,
                "lacking": kind_evidence.missing,
            }
            for kind_evidence in evidence
        ],
        "beside": beside,
        "files": [str(path) for path in written],
    }
