"""`lab ranks import`: what nccl-tests and rccl-tests measured, alone or beside a recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lab.errors import StepFailed, needs
from lab.rooms.sweep.gemm.options import JSON
from lab.terminal.options import out, with_options

# A transfer in the recording that takes so many times as long as alone is said.
NOTABLE = 1.2


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--with",
    "folder",
    type=click.Path(path_type=Path, exists=True),
    help="Compare with the transfers of this recording (a folder of ranks, a sweep, a run).",
)
@out("Where nccl_tests.csv goes. [default: it is not written]")
@with_options(JSON)
def import_evidence(files: tuple[Path, ...], folder: Path | None, out: Path | None, as_json: bool) -> None:
    """Read what nccl-tests or rccl-tests measured: how fast collectives are alone.

    FILES are files or folders. Exit code 1: results were wrong, or a size was not measured.
    """
    from lab.core.words import first_few
    from lab.recordings.nccl import read_evidence

    evidence = read_evidence(files)
    beside, unknown = _beside(folder, evidence.speeds) if folder else ([], [])
    written = _write(evidence.rows, out) if out and evidence.rows else []
    if as_json:
        import msgspec

        document = {
            "sentences": evidence.sentences,
            "rows": evidence.rows,
            "lacking": evidence.missing,
            "beside": beside,
            "files": [str(path) for path in written],
        }
        click.echo(msgspec.json.encode(document).decode())
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
    if missing:
        raise StepFailed(
            "the evidence is incomplete:\n" + "\n".join(f"  {line}" for line in missing),
            fix="add what is missing and repeat the command",
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


def _beside(
    folder: Path, speeds: Mapping[tuple[str, int, int], float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per class of the recording that was measured alone, and the classes that were not."""
    with needs("analysis"):
        from lab.rooms.sweep.ranks.read import read_settings
    from lab.recordings.ranks.costs import costs_of
    from lab.rooms.sweep.names import size_text

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


def _write(rows: list[dict[str, Any]], out: Path) -> list[Path]:
    with needs("analysis"):
        import pandas as pd
    from lab.report.tables import write_csv

    return [write_csv(pd.DataFrame(rows), out / "nccl_tests.csv")]
