"""A sweep's analysis from folder to findings: the manifest together with the traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import plural, printable
from lab.errors import MissingError
from lab.recordings.gpu_state import GpuState, read_state
from lab.recordings.load import named_as_recording
from lab.report.figures import save
from lab.report.parts import Block, Figure, Files, Points, Section, Status, Table, title_of
from lab.report.provenance import provenance
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm import Places, Report, within
from lab.rooms.sweep.gemm.data import SweepData, read_sweep
from lab.rooms.sweep.gemm.merge import MergeOptions
from lab.rooms.sweep.gemm.session import num_workers, show_progress
from lab.rooms.sweep.gemm.steps import run_all
from lab.rooms.sweep.journal import expected_runs
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import find_configs
from lab.rooms.sweep.ranks.page import SPAN_CAPTION, step_picture, write_account
from lab.rooms.sweep.ranks.read import gpus_of, read_settings
from lab.rooms.sweep.ranks.tables import account_table
from lab.rooms.sweep.ranks.verdict import Settings, ranking
from lab.rooms.sweep.report import report
from lab.rooms.sweep.tables import run_name, shown
from lab.rooms.sweep.unprofiled import left_out, unprofiled_table


def analyse_sweep(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Read every trace below `folder`, write tables, figures and report.html into `out`.

    Traces of GPUs go through the whole GEMM pipeline, as in `lab gemm all`; its main findings join the page.
    """
    places = within(folder, out)
    data = _read(places, run, progress)
    pipeline = _run_pipeline(places, data, progress) if _on_gpu(data) else None
    explained = data.explained if pipeline else {}
    manifest = run.manifest if run else None
    steps = unprofiled_table(find_configs(folder, may_be_empty=True))
    write_csv(steps, out / "tables" / "unprofiled.csv")
    findings = report(
        data.tables,
        out=out,
        title=title_of("Sweep", folder.resolve().name),
        provenance=provenance(folder, manifest),
        kind=manifest.kind.value if manifest else "measured",
        further=[rank_section(explained, states_of(folder), out), gemm_section(pipeline, out)]
        if pipeline
        else (),
        ranks=explained,
        unprofiled=steps,
    )
    lacking = [*findings.lacking, *(text.rstrip(".") for text in left_out(steps))]
    lacking += [] if run else not_looked_at(folder)
    files = findings.files
    if pipeline:  # what only the pipeline found missing
        lacking += [text for text in pipeline.missing if text not in findings.lacking]
        files = [*files, *pipeline.files]
    return msgspec.structs.replace(findings, files=files, lacking=lacking)


def _read(places: Places, run: Run | None, progress: Callable[[str], None]) -> SweepData:
    """Read every trace; of GPUs with the workbook of each rank."""
    return read_sweep(
        places.sweep,
        workers=num_workers(),
        workbooks=places.analysis,
        gpu_only=True,
        planned=expected_runs(run),
        progress=show_progress(progress),
    )


def _on_gpu(data: SweepData) -> bool:
    """Whether a readable trace has GPU rows: one rank may lack them."""
    return "gpu" in set(data.tables.timeline["device"])


def _run_pipeline(places: Places, data: SweepData, progress: Callable[[str], None]) -> Report:
    progress("  GEMM pipeline: reports, variance, overlap, cause, plots, merged traces")
    return run_all(places, data, MergeOptions(workers=num_workers()))


def gemm_findings(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Run the GEMM pipeline alone. Raises MissingError where no trace has a GEMM on a GPU."""
    places = within(folder, out)
    data = _read(places, run, progress)
    if not _on_gpu(data):
        raise MissingError(
            "no trace here has GPU work, so it has no GEMMs to look at",
            location=folder,
            fix="record on a GPU, with its kernels traced and record_shapes=True",
        )
    pipeline = _run_pipeline(places, data, progress)
    folders = [path for path in (places.analysis, places.merged) if path.exists()]
    return _section_findings(pipeline, folders, data.incomplete)


def rank_findings(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Account for every rank, as `lab ranks` does. Raises MissingError where only one rank was recorded."""
    settings = read_settings(folder, workers=min(2, num_workers()), progress=show_progress(progress))
    if all(len(setting.account.ranks) == 1 and setting.world_size <= 1 for setting in settings):
        raise MissingError(
            "one rank alone: nothing waits for it",
            location=folder,
            fix="name the folder that holds a recording of each rank",
        )
    account = write_account(settings, out / "ranks", source=folder)
    pages = [path for path in account.files if path.suffix == ".html"]
    return _section_findings(account, pages, account.missing)


def _section_findings(report: Report, written: Sequence[Path], incomplete: list[str]) -> Findings:
    missing = list(dict.fromkeys(report.missing))
    lines = [*(f"- {text}" for text in report.findings), *(f"wrote {path}" for path in written)]
    status: Status = "warn" if missing else "ok"
    terminal = "\n".join(lines)
    return Findings(report.findings, status, report.files, terminal, lacking=missing, incomplete=incomplete)


def not_looked_at(folder: Path) -> list[str]:
    """Recordings beside the traces that are of another format, and so of no sweep."""
    beside = sorted(folder.iterdir()) if folder.is_dir() else []
    foreign = [path for path in beside if path.is_file() and named_as_recording(path)]
    return [
        f"{printable(path.name)} is not looked at: a sweep is made of Kineto traces (analyze it by itself)"
        for path in foreign
        if not path.name.endswith((".json", ".json.gz"))
    ]


def states_of(folder: Path) -> dict[Key, GpuState]:
    """The state of the GPUs beside each run, where it was sampled."""
    configs = find_configs(folder, may_be_empty=True)
    return {config.key: state for config in configs if (state := read_state(config.path)) is not None}


def rank_section(settings: Settings, states: Mapping[Key, GpuState], out: Path) -> Section:
    """Settings as measured and without waiting; the account of the setting whose ranks wait longest."""
    gpus = pd.DataFrame(
        {**key._asdict(), **row}
        for key, explained in settings.items()
        for row in gpus_of(explained.account, states.get(key))
    )
    frames = [account_table(explained).assign(**key._asdict()) for key, explained in settings.items()]
    ranks = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    tables = {
        "ranking": (ranking(settings), "Settings as measured, and with waiting for late ranks taken out"),
        "gpu_clocks": (gpus, "Clocks, power and temperature beside each run"),
        "ranks": (ranks, "Every rank and step, ns; the parts sum to the step"),
    }
    blocks: list[Block] = []
    for name, (table, caption) in tables.items():
        if name != "gpu_clocks" or len(table):
            write_csv(table, out / "tables" / f"{name}.csv")
        if len(table):
            open_rows = 24 if name == "ranking" else 0
            blocks.append(Table(shown(table), caption, f"tables/{name}.csv", open_rows=open_rows))
    waits = {key: sum(wait.ns for wait in explained.account.waits) for key, explained in settings.items()}
    if waits:
        worst = max(waits, key=lambda key: waits[key])
        explained = settings[worst]
        for step in explained.account.together.steps[:1]:
            name = f"ranks_step_{step}"
            svg = save(partial(step_picture, explained, step), out / "figures", name)
            step_name = f"{run_name(worst)}, step {step}"
            blocks.insert(
                1, Figure(svg, f"{step_name}. {SPAN_CAPTION}", f"figures/{name}.png", "tables/ranks.csv")
            )
    return Section("Which rank makes the others wait", blocks)


def gemm_section(pipeline: Report, out: Path) -> Section:
    """What the pipeline found, and its files: tables by name, the many others by folder."""
    tables = [(str(path.relative_to(out)), "") for path in pipeline.files if path.suffix == ".csv"]
    folders = Counter(path.parent for path in pipeline.files if path.suffix != ".csv")
    entries = [
        (f"{path.relative_to(out)}/", plural(count, "file")) for path, count in sorted(folders.items())
    ]
    sentences = [f"{finding[:1].upper()}{finding[1:]}." for finding in pipeline.findings]
    links = Files("Tables, Excel reports, plots and merged traces", [*tables, *entries])
    return Section("Why GEMM times vary", [Points(sentences), links])
