"""`lab ranks tuner`: from a sweep to a tuner's file, and whether it takes effect."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from lab.core.run import Run
from lab.errors import StepFailed, UsageError
from lab.rooms.sweep.ranks.reading import READING, Reading


@click.command("tuner")
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option(
    "--for", "library", type=click.Choice(["nccl", "rccl"]), required=True, help="Whose tuner reads the file."
)
@click.option(
    "--verify", is_flag=True, help="Run the sweep's step again under the file, and prove its effect."
)
@click.option("--plugin", metavar="PATH", help="[nccl] NCCL's tuner plugin, as the step sees its path.")
@click.option(
    "--run",
    "recorded",
    type=click.Path(path_type=Path),
    help="Prove by this run under the file, instead of starting one.",
)
@click.option(
    "--file", "own_file", type=click.Path(path_type=Path), help="Prove this file, instead of the one written."
)
@READING
def tuner(
    sweep: Path,
    library: str,
    verify: bool,
    plugin: str | None,
    recorded: Path | None,
    own_file: Path | None,
    **options: Any,
) -> None:
    """Write what a sweep proves to be best as the configuration of NCCL's tuner plugin or of RCCL's tuner.

    Per collective and message size: the channels, algorithm and protocol whose transfers and slowed GEMMs
    cost a step least, with waiting for late ranks taken out. What the repeats cannot tell apart is left at
    default, and said. Exit code 1: something that the judgement needs was not recorded, or an effect is not
    proven.
    """
    if library == "nccl" and verify and not recorded and not plugin:
        raise UsageError(
            "--verify needs the path of NCCL's tuner plugin",
            fix="build NVIDIA/nccl ext-tuner/example, and give --plugin PATH/libnccl-tuner-example.so",
        )
    asked = Reading(**options)
    missing, judged, files = _judged(sweep, library, asked)
    proofs: list[Any] | None = None
    if verify or recorded:
        file = own_file or files[0]
        recorded, proofs = _proven(sweep, file, recorded, plugin, judged.threads, asked)
    _show(judged, files, proofs, as_json=asked.as_json, missing=missing, times=_times(sweep, recorded))


def _judged(sweep: Path, library: str, asked: Reading) -> tuple[list[str], Any, list[Path]]:
    """What the sweep's account lacks, what it proves, and the files written, the tuner's first."""
    settings = asked.settings(sweep, keep_in=sweep)
    from lab.rooms.sweep.tuner.judge import judge
    from lab.rooms.sweep.tuner.observe import observe
    from lab.rooms.sweep.tuner.write import write_tuner

    runs = observe(settings)
    judged = judge(runs)
    files = write_tuner(runs, judged, library, asked.target(sweep), source=sweep.resolve().name)
    return [f"{setting.name}: {text}" for setting in settings for text in setting.missing], judged, files


def _proven(
    sweep: Path, file: Path, run: Path | None, plugin: str | None, threads: int | None, asked: Reading
) -> tuple[Path | None, list[Any]]:
    """The run under the file, a new one where none is given, and what it proves: [] without rows."""
    from lab.rooms.sweep.tuner.file import read_rows

    rows = read_rows(file)
    if rows and run is None:
        run = _run_again(sweep, file, plugin, threads, asked.console)
    if not rows or run is None:
        return run, []
    return run, _proofs(rows, asked.settings(run, keep_in=sweep), run)


def _run_again(sweep: Path, file: Path, plugin: str | None, threads: int | None, console: Any) -> Path:
    """The folder of a new run of the sweep's step under the file. Raises UsageError for a foreign sweep."""
    if not Run.is_run(sweep):
        raise UsageError(
            "--verify runs a sweep of lab again, and this recording is another's",
            fix="run your job under the file, record it, and give --run FOLDER",
        )
    manifest = Run.open(sweep).manifest
    if manifest.engine not in ("local", "docker"):
        raise UsageError(
            f"--verify cannot start a run on the engine {manifest.engine}",
            fix="run `lab run ... sweep --tuner FILE` yourself, and give --run FOLDER",
        )
    target = sweep.parent / f"{sweep.resolve().name}_tuned_{time.strftime('%Y%m%d_%H%M%S')}"
    place = ["--image", manifest.image.name] if manifest.image else ["--engine", manifest.engine]
    command = [
        *(sys.executable, "-m", "lab", "run"),
        *place,
        "--analysis",
        "none",
        "-o",
        str(target),
        "sweep",
    ]
    command += ["--tuner", str(file), "-f", str(sweep / "train.yaml"), "-t", str(threads or 0)]
    command += ["--ranks", str(manifest.config["ranks"])] if manifest.config.get("ranks") else []
    command += ["--tuner-plugin", plugin] if plugin else []
    console.detail(f"running the sweep's step under {file.name}: {target}")
    process = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if process.returncode:
        raise StepFailed(
            f"the run under the tuner's file ended with exit code {process.returncode}: nothing is proven",
            location=target,
            fix="its run_output.log says why",
        )
    return target


def _proofs(rows: Any, settings: Any, run: Path) -> list[Any]:
    from lab.recordings.ranks.costs import Class
    from lab.rooms.sweep.tuner.logs import read_logs
    from lab.rooms.sweep.tuner.verify import prove

    grids: dict[Class, Counter[int]] = {}
    for setting in settings:
        pairs = setting.account.together.pairs
        calls, rows_of = pairs.collectives, pairs.instances
        paired = rows_of.where(rows_of.collective_id >= 0)
        keys = zip(calls.kind.tolist(), calls.msg_bytes.tolist(), calls.group_size.tolist(), strict=True)
        names = [Class(*key) for key in keys]
        for call, grid in zip(paired.collective_id.tolist(), paired.grid_x.tolist(), strict=True):
            grids.setdefault(names[call], Counter())[grid] += 1
    logs = sorted(path for path in run.rglob("*.log") if path.is_file())
    return prove(rows, grids, read_logs(logs))


def _times(sweep: Path, run: Path | None) -> str | None:
    """The unprofiled step under the file beside the sweep's, where both have metrics."""
    from lab.rooms.sweep.layout import configs_of
    from lab.rooms.sweep.names import long_name
    from lab.rooms.sweep.tables import SETTING
    from lab.rooms.sweep.unprofiled import unprofiled_table

    if run is None:
        return None
    tuned, base = (unprofiled_table(configs_of(folder, may_be_empty=True)) for folder in (run, sweep))
    tuned, base = (table.dropna(subset=["unprofiled_ms"]) for table in (tuned, base))
    if tuned.empty or base.empty:
        return None
    means = base.groupby(SETTING)["unprofiled_ms"].mean().sort_values()
    best, worst = long_name(*means.index[0]), long_name(*means.index[-1])
    return (
        f"Without the profiler a step takes {tuned['unprofiled_ms'].mean():.2f} ms under the file; in the "
        f"sweep {means.iloc[0]:.2f} ms ({best}) to {means.iloc[-1]:.2f} ms ({worst}). "
        "One run beside others of another time is no comparison: sweep both for that."
    )


def _show(
    judged: Any,
    files: list[Path],
    proofs: list[Any] | None,
    *,
    as_json: bool,
    missing: list[str],
    times: str | None,
) -> None:
    from lab.rooms.sweep.tuner.judge import class_text
    from lab.rooms.sweep.tuner.verify import TOOK_EFFECT

    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(_document(judged, files, proofs)).decode())
    else:
        for decision in judged.decisions:
            source = " (algorithm and protocol told by the block size)" if decision.inferred else ""
            effect = (
                f"{_channels(decision.row)}{decision.row.algorithm} {decision.row.protocol}{source}: "
                f"{decision.reason}"
                if decision.row
                else f"left at default: {decision.reason}"
            )
            click.echo(f"- {class_text(decision.name)}: {effect}.")
        threads = "left at default" if judged.threads is None else f"{judged.threads} per block"
        click.echo(f"- Threads: {threads}: {judged.thread_reason}.")
        for proof in proofs or ():
            click.echo(f"- {proof.verdict}: {proof.text}.")
        if times:
            click.echo(f"- {times}")
        for path in files:
            click.echo(f"wrote {path}")
    missing = [
        *missing,
        *judged.left_out,
        *(
            f"{class_text(decision.name)}: {decision.reason}"
            for decision in judged.decisions
            if not decision.looked
        ),
        *([] if judged.decisions else ["the recording has no collectives"]),
        *(f"{proof.verdict}: {proof.text}" for proof in proofs or () if proof.verdict != TOOK_EFFECT),
        *(["no row is set, so there is nothing to prove"] if proofs == [] else []),
    ]
    if missing:
        raise StepFailed(
            "what to set is not known completely:\n" + "\n".join(f"  {line}" for line in missing),
            fix="what is written holds; the rest stays at the library's default",
        )


def _channels(row: Any) -> str:
    """`28 channels, `; nothing where the row keeps the library's number."""
    return f"{row.channels} channels, " if row.channels > 0 else ""


def _document(judged: Any, files: list[Path], proofs: list[Any] | None) -> dict[str, Any]:
    from lab.rooms.sweep.tuner.write import row_json

    classes = [
        {
            "collective": decision.name.kind,
            "msg_bytes": decision.name.num_bytes,
            "ranks": decision.name.num_ranks,
            "set": row_json(decision.row) if decision.row else None,
            "reason": decision.reason,
            "looked": decision.looked,
            "inferred": decision.inferred,
            "settings": [
                {
                    "threads": knobs.threads,
                    "channels": knobs.channel,
                    "algorithm": knobs.algorithm,
                    "protocol": knobs.protocol,
                    "cost_ms": round(decision.cost.means[index], 6) if decision.cost else None,
                    "without_waiting_ms": round(decision.least_cost.means[index], 6)
                    if decision.least_cost
                    else None,
                    "may_be_best": index in decision.cost.candidates if decision.cost else None,
                }
                for index, knobs in enumerate(decision.settings)
            ],
        }
        for decision in judged.decisions
    ]
    return {
        "classes": classes,
        "threads": judged.threads,
        "threads_reason": judged.thread_reason,
        "left_out": list(judged.left_out),
        "proofs": None
        if proofs is None
        else [
            {"row": row_json(decision.row), "verdict": decision.verdict, "text": decision.text}
            for decision in proofs
        ],
        "files": [str(path) for path in files],
    }
