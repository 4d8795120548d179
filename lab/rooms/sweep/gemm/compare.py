"""Sweeps side by side on one page: what changed per configuration, whether it can be chance, what else differs.

Repeats of a run are what a significance can be claimed from; ranks of one run share its luck, so the interval
over ranks says only how alike the ranks are. The first sweep is the base that the others are compared to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import lab
from lab.core.manifest import Manifest
from lab.core.provenance import lab_identity
from lab.core.run import Run
from lab.errors import LabError, UsageError
from lab.recordings.cache import load_trace
from lab.recordings.pool import map_traces
from lab.recordings.tables import TraceMeta
from lab.report.figures import SERIES
from lab.report.page import Card, Chart, Page, Prose, Section, Series, Table, write_page
from lab.report.tables import Heading, write_csv
from lab.rooms.sweep.analyze import RankFigures, SweepTables, figures_of, put_together
from lab.rooms.sweep.findings import expected_rows
from lab.rooms.sweep.gemm.tables import Report
from lab.rooms.sweep.layout import TraceFile, find_configs
from lab.rooms.sweep.verdict import GEMM_SHAPE, SETTING, absent, shape_name, short_name
from lab.stats.effects import median_ratio_ci, permutation_p

PAGE = "sweep_comparison.html"
QUESTION = "What changed between these sweeps, can it be chance, and what else is different about them?"
METRICS = {
    "total_time_ms": "total time, ms",
    "computation_time_ms": "computation, ms",
    "exposed_comm_time_ms": "exposed communication, ms",
    "idle_time_ms": "idle, ms",
    "total_comm_time_ms": "communication in all, ms",
}
SIGNIFICANT = 0.05
FEWEST_RANKS = 3
PILLS = {
    "faster": "ok",
    "slower": "fail",
    "no difference shown": "unknown",
    "one run each": "warn",
    "too few repeats": "warn",
    "not in both": "unknown",
    "differs": "warn",
    "same": "unknown",
}
FOOTNOTES = (
    "A change is the later sweep's median over the base's, minus one: above zero is slower. Every figure of a "
    "repeat is the median over its complete ranks.",
    "faster and slower are said only if a permutation test over repeats finds p < 0.05 after Holm's correction "
    "for the number of configurations compared. With one run each, no test exists.",
    "The interval is a 95 % bootstrap interval of the ratio of medians over ranks (and repeats). Ranks of one "
    "run wait for each other and share its clocks, so it shows the spread within runs, not between them.",
    "GEMMs are matched by launching operator, sizes, dtype and transposition, never by kernel name.",
)


@dataclass(frozen=True)
class Sweep:
    """One sweep as it is compared: its tables, and what is known of where it was recorded."""

    label: str
    folder: Path
    tables: SweepTables
    environment: dict[str, str]


def compare(
    folders: Sequence[Path],
    out: Path,
    *,
    labels: Sequence[str] = (),
    workers: int = 2,
    progress: Callable[[int, int, Path], None] | None = None,
) -> Report:
    """Write `out/sweep_comparison.html` and its tables for two or more sweeps (or folders of ranks).

    labels name the sweeps on the page. Raises UsageError for fewer than two sweeps or labels that do not fit,
    MissingError where a folder holds no traces.
    """
    if len(folders) < 2:
        raise UsageError("a comparison needs at least two sweeps", fix="lab gemm compare A B [C...]")
    names = _labels(folders, labels)
    sweeps = [
        read_for_comparison(folder, name, out / ".cache" / "traces", workers, progress)
        for folder, name in zip(folders, names, strict=True)
    ]
    base, others = sweeps[0], sweeps[1:]
    configs = pd.concat([config_changes(base, other) for other in others], ignore_index=True)
    gemm = pd.concat([gemm_changes(base, other) for other in others], ignore_index=True)
    environment = environments(sweeps)
    tables = {"configurations": configs, "gemm": gemm, "environment": environment, "ranks": _by_rank(sweeps)}
    files = [write_csv(table, out / "comparison" / f"{name}.csv") for name, table in tables.items()]
    lacking = [f"{one.label}: {sentence}" for one in sweeps for sentence in absent(one.tables.configs)]
    verdict = _verdict(configs, gemm, environment, base, others)
    page = Page(
        title=" · ".join(names),
        question=QUESTION,
        verdict=[*verdict, *lacking],
        status=_status(configs, lacking),
        cards=_cards(configs, environment),
        sections=_sections(sweeps, configs, gemm, environment),
        provenance=_provenance(sweeps),
        footnotes=FOOTNOTES,
        room="gemm compare",
    )
    files.append(write_page(page, out / PAGE))
    problems = [f"{one.label}: {what}" for one in sweeps for what in one.tables.problems["what"]]
    return Report(files=files, lacking=lacking, problems=problems, findings=verdict)


def config_changes(base: Sweep, other: Sweep) -> pd.DataFrame:
    """One row per configuration of either sweep: medians, change, interval over ranks, p over repeats."""
    rows = []
    sides = [_totals(one.tables) for one in (base, other)]
    for setting in sorted(set(sides[0]) | set(sides[1])):
        before, after = (side.get(setting, _NO_TOTALS) for side in sides)
        rows.append(
            {
                "base": base.label,
                "other": other.label,
                "threads": setting[0],
                "channel": setting[1],
                "repeats_base": len(before.repeats),
                "repeats_other": len(after.repeats),
                "total_base_ms": _median(before.repeats),
                "total_other_ms": _median(after.repeats),
                "change_percent": _change(_median(before.repeats), _median(after.repeats)),
                **_interval(before.ranks, after.ranks),
                "p_value": _p(before.repeats, after.repeats),
            }
        )
    frame: pd.DataFrame = pd.DataFrame(rows)
    frame["p_holm"] = holm(frame["p_value"].to_numpy(dtype=float))
    frame["judgement"] = [_judge(row) for row in frame.itertuples()]
    return frame


def gemm_changes(base: Sweep, other: Sweep) -> pd.DataFrame:
    """One row per configuration and GEMM shape of both sweeps, most time changed first."""
    key = [*SETTING, *GEMM_SHAPE]
    groups = [dict(list(one.tables.gemm.groupby(key, dropna=False))) for one in (base, other)]
    rows = []
    for shape in sorted(set(groups[0]) & set(groups[1]), key=str):
        before, after = (group[shape] for group in groups)
        old_us, new_us = float(before["median_us"].median()), float(after["median_us"].median())
        per_rank = after["n"].sum() / len(after)
        rows.append(
            {
                "base": base.label,
                "other": other.label,
                **dict(zip(key, shape, strict=True)),
                "gemm": shape_name(shape[len(SETTING) :]),
                "n_base": int(before["n"].sum()),
                "n_other": int(after["n"].sum()),
                "median_base_us": old_us,
                "median_other_us": new_us,
                "change_percent": _change(old_us, new_us),
                "changed_us": (new_us - old_us) * per_rank,
                **_interval(before["median_us"].to_numpy(), after["median_us"].to_numpy()),
            }
        )
    columns = [
        "base",
        "other",
        *key,
        "gemm",
        "n_base",
        "n_other",
        "median_base_us",
        "median_other_us",
        "change_percent",
        "changed_us",
        "ci_low_percent",
        "ci_high_percent",
    ]
    frame = pd.DataFrame(rows, columns=columns)
    order = frame["changed_us"].abs().sort_values(ascending=False, kind="stable").index
    ordered: pd.DataFrame = frame.loc[order].reset_index(drop=True)
    return ordered


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's step-down correction of (n,) p-values; NaN stays NaN and does not count.

    Source: Holm, A simple sequentially rejective multiple test procedure (1979).
    """
    corrected = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * factors)) if len(order) else []
    return corrected


def environments(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """What is known of each sweep's surroundings, one row per fact; what differs comes first."""
    facts = list(dict.fromkeys(name for one in sweeps for name in one.environment))
    rows = []
    for fact in facts:
        values = [one.environment.get(fact, "not recorded") for one in sweeps]
        row = dict(zip([one.label for one in sweeps], values, strict=True))
        rows.append({"what": fact, **row, "state": "same" if len(set(values)) == 1 else "differs"})
    frame = pd.DataFrame(rows, columns=["what", *[one.label for one in sweeps], "state"])
    ordered: pd.DataFrame = frame.sort_values("state", kind="stable", ignore_index=True)
    return ordered


def read_for_comparison(
    folder: Path,
    label: str,
    cache: Path,
    workers: int,
    progress: Callable[[int, int, Path], None] | None = None,
) -> Sweep:
    """Tables and surroundings of one sweep, each trace read once through the cache."""
    run = Run.open(folder) if Run.is_run(folder) else None
    expected = expected_rows(run)
    configs = find_configs(folder)
    jobs = [(number, trace) for number, config in enumerate(configs) for trace in config.traces]
    tell = None if progress is None else lambda done, total, job: progress(done, total, job[1].path)
    results = map_traces(partial(_read, cache), jobs, workers=workers, progress=tell)
    read: list[list[RankFigures]] = [[] for _ in configs]
    metas: list[TraceMeta] = []
    for (number, trace), result in zip(jobs, results, strict=True):
        if isinstance(result, LabError):
            rank = -1 if trace.rank is None else trace.rank
            read[number].append(RankFigures(trace.path, rank, error=(result.what, result.fix or "")))
        else:
            read[number].append(result[0])
            metas.append(result[1])
    tables = put_together(folder, configs, read, expected)
    return Sweep(label, folder, tables, _environment(run.manifest if run else None, metas, tables))


def _read(cache: Path, job: tuple[int, TraceFile]) -> tuple[RankFigures, TraceMeta]:
    trace = load_trace(job[1].path, cache=cache)
    return figures_of(job[1], trace), trace.meta


def _environment(
    manifest: Manifest | None, metas: Sequence[TraceMeta], tables: SweepTables
) -> dict[str, str]:
    """From the traces what every recording tells, from the manifest what lab wrote down."""

    def told(name: str) -> str:
        values = {str(value) for meta in metas if (value := getattr(meta, name)) not in (None, "", ())}
        return ", ".join(sorted(values)) or "not recorded"

    devices = {f"{len(meta.devices)} × {meta.devices[0]}" for meta in metas if meta.devices}
    facts = {"GPUs (trace)": ", ".join(sorted(devices)) or "none"}
    names = {
        "vendor": "vendor",
        "ranks": "world_size",
        "backend": "backend",
        "torch": "torch_version",
        "NCCL or RCCL": "nccl_version",
        "CUDA runtime": "cuda_version",
        "HIP runtime": "hip_version",
    }
    facts |= {f"{words} (trace)": told(name) for words, name in names.items()}
    steps = sorted(set(tables.timeline["steps"]))
    facts["profiled steps (trace)"] = ", ".join(map(str, steps)) or "none"
    return facts | (
        _from_manifest(manifest) if manifest else {"manifest": "none: lab did not make this recording"}
    )


def _from_manifest(manifest: Manifest) -> dict[str, str]:
    gpus = manifest.gpus
    facts = {
        "manifest": "there",
        "engine": manifest.engine,
        "image": manifest.image.ref if manifest.image else "none",
        "lab": f"{manifest.lab.version} {manifest.lab.commit or ''}".strip(),
        "driver": ", ".join(sorted({gpu.driver or "unknown" for gpu in gpus})) or "none",
        "highest SM clock, MHz": ", ".join(sorted({f"{gpu.max_sm_mhz}" for gpu in gpus})) or "none",
        "power limit, W": ", ".join(sorted({f"{gpu.power_limit_w}" for gpu in gpus})) or "none",
    }
    for title, found in (
        ("host", manifest.host),
        ("version", manifest.versions),
        ("env", manifest.env),
        ("config", manifest.config),
    ):
        facts |= {f"{title} {name}": str(value) for name, value in found.items()}
    return facts


@dataclass(frozen=True)
class _Totals:
    """Total times of one configuration in ms: per complete repeat, and per rank of these."""

    repeats: np.ndarray
    ranks: np.ndarray


_NO_TOTALS = _Totals(np.empty(0), np.empty(0))


def _totals(tables: SweepTables) -> dict[tuple[int, int], _Totals]:
    complete = tables.configs[(tables.configs["status"] == "ok") & tables.configs["total_time_ms"].notna()]
    by_rank = tables.timeline.merge(complete[[*SETTING, "repeat"]], on=[*SETTING, "repeat"])
    ranks = {key: rows["total_time_ms"].to_numpy() for key, rows in by_rank.groupby(SETTING)}
    return {
        key: _Totals(rows["total_time_ms"].to_numpy(), ranks.get(key, np.empty(0)))
        for key, rows in complete.groupby(SETTING)
    }


def _interval(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    enough = min(len(before), len(after)) >= FEWEST_RANKS
    low, high = median_ratio_ci(before, after) if enough else (math.nan, math.nan)
    return {"ci_low_percent": 100 * (low - 1), "ci_high_percent": 100 * (high - 1)}


def _p(before: np.ndarray, after: np.ndarray) -> float:
    if min(len(before), len(after)) < 2:
        return math.nan
    treated = np.repeat([False, True], [len(before), len(after)])
    return permutation_p(np.concatenate([before, after]), treated, np.zeros(len(treated), dtype=int))


def _judge(row: Any) -> str:
    fewest = min(row.repeats_base, row.repeats_other)
    if fewest == 0:
        return "not in both"
    if fewest == 1:
        return "one run each"
    if 2 / math.comb(row.repeats_base + row.repeats_other, row.repeats_base) > SIGNIFICANT:
        return "too few repeats"  # not even the clearest difference could reach significance
    if row.p_holm >= SIGNIFICANT:
        return "no difference shown"
    return "slower" if row.change_percent > 0 else "faster"


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _change(before: float, after: float) -> float:
    return 100 * (after / before - 1) if before else math.nan


def _labels(folders: Sequence[Path], labels: Sequence[str]) -> list[str]:
    if labels and len(labels) != len(folders):
        raise UsageError(f"{len(labels)} labels for {len(folders)} sweeps", fix="give one --label for each")
    names = list(labels) or [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{chr(ord('A') + at)} {name}" for at, name in enumerate(names)]
    return names


def _verdict(
    configs: pd.DataFrame, gemm: pd.DataFrame, environment: pd.DataFrame, base: Sweep, others: Sequence[Sweep]
) -> list[str]:
    sentences = []
    for other in others:
        rows = configs[(configs["other"] == other.label) & configs["change_percent"].notna()]
        sentences.append(_headline(rows, base.label, other.label))
        sentences += _gemm_sentence(gemm[gemm["other"] == other.label], base.label, other.label)
    steps = environment[environment["what"] == "profiled steps (trace)"]
    if (steps["state"] == "differs").any():
        sentences.insert(
            0, "The sweeps profiled different numbers of steps: their total times do not compare."
        )
    differs = environment.loc[environment["state"] == "differs", "what"]
    if len(differs):
        more = f" and {len(differs) - 6} more" if len(differs) > 6 else ""
        sentences.append(f"What else differs: {', '.join(differs[:6])}{more}.")
    else:
        sentences.append("Nothing that was recorded about their surroundings differs.")
    return sentences


def _headline(rows: pd.DataFrame, base: str, other: str) -> str:
    if rows.empty:
        return f"{base} and {other} have no complete configuration in common."
    proven = rows[rows["judgement"].isin(["faster", "slower"])]
    if len(proven):
        parts = [
            f"{_name(row)} {row.judgement} by {abs(row.change_percent):.1f} %" for row in proven.itertuples()
        ]
        return f"{other} against {base}: {', '.join(parts)}; the other {len(rows) - len(proven)} show no difference."
    low, high = rows["change_percent"].min(), rows["change_percent"].max()
    span = (
        f"total time changes by {low:+.1f} %"
        if low == high
        else f"total time changes by {low:+.1f} to {high:+.1f} %"
    )
    why = {
        "one run each": "with one run each this may be chance, and nothing can be claimed",
        "too few repeats": "the repeats are too few for any test to reach significance",
        "no difference shown": "within the spread of the repeats",
    }
    return (
        f"{other} against {base}: {span} over {len(rows)} configurations; {why[rows['judgement'].mode()[0]]}."
    )


def _gemm_sentence(gemm: pd.DataFrame, base: str, other: str) -> list[str]:
    clear = gemm[(gemm["ci_low_percent"] > 0) | (gemm["ci_high_percent"] < 0)]
    if clear.empty:
        return []
    top = next(clear.itertuples())
    return [
        f"Of {len(gemm)} GEMM shapes × configurations, {len(clear)} differ over ranks between {other} and {base}; "
        f"most time: {top.gemm} at {_name(top)}, {top.median_base_us:.0f} → {top.median_other_us:.0f} µs "
        f"({top.change_percent:+.0f} %)."
    ]


def _status(configs: pd.DataFrame, lacking: Sequence[str]) -> Any:
    if configs["change_percent"].isna().all():
        return "fail"
    shown = configs["judgement"].isin(["faster", "slower", "no difference shown"]).all()
    return "ok" if shown and not lacking else "warn"


def _cards(configs: pd.DataFrame, environment: pd.DataFrame) -> list[Card]:
    source = "comparison/configurations.csv"
    both = configs["change_percent"].dropna()
    cards = [Card("Configurations in both", f"{len(both)} of {len(configs)}", source)]
    if len(both):
        low, high = both.min(), both.max()
        value = f"{low:+.1f}" if len(both) == 1 else f"{low:+.1f} to {high:+.1f}"
        cards.insert(0, Card("Change of total time", value, source, "%", "medians, all configurations"))
    proven = int(configs["judgement"].isin(["faster", "slower"]).sum())
    differs = int((environment["state"] == "differs").sum())
    return [
        *cards,
        Card(
            "Shown by repeats", f"{proven} of {len(configs)}", source, note="p < 0.05 after Holm's correction"
        ),
        Card("Surroundings that differ", f"{differs} of {len(environment)}", "comparison/environment.csv"),
    ]


def _sections(
    sweeps: Sequence[Sweep], configs: pd.DataFrame, gemm: pd.DataFrame, environment: pd.DataFrame
) -> list[Section]:
    source = "comparison/configurations.csv"
    shown = configs.drop(columns=SETTING).dropna(axis="columns", how="all")
    shown.insert(2, "configuration", [_name(row) for row in configs.itertuples()])
    changes = Table(shown, "Total time by configuration", source, pills=PILLS, open_rows=40)
    facts = Table(
        environment,
        "What is recorded of each sweep's surroundings, what differs first",
        "comparison/environment.csv",
        headings={one.label: Heading(one.label, "") for one in sweeps},
        pills=PILLS,
        open_rows=60,
    )
    return [
        Section("By configuration", [_config_chart(sweeps), changes]),
        Section("GEMMs", _gemm_blocks(gemm, sweeps)),
        Section("Surroundings", [facts]),
    ]


def _config_chart(sweeps: Sequence[Sweep]) -> Chart:
    """Per configuration and sweep the median with the range over ranks, and each rank beside it."""
    settings = sorted(
        {tuple(key) for one in sweeps for key in one.tables.configs[SETTING].to_numpy().tolist()}
    )
    series = []
    for at, one in enumerate(sweeps):
        place = (at - (len(sweeps) - 1) / 2) * 0.5 / max(1, len(sweeps) - 1)
        points = [_metric_points(one, settings, metric, place) for metric in METRICS]
        series.append(Series(one.label, SERIES[at % len(SERIES)], points))
    names = [short_name(*setting) for setting in settings]
    caption = (
        "Large dots are medians over ranks with the range from the fastest to the slowest; small dots are ranks. "
        "Drag to zoom, double click to see all, choose what is shown above."
    )
    return Chart(
        "configurations",
        "configuration",
        list(METRICS.values()),
        series,
        caption,
        "comparison/ranks.csv",
        names=names,
    )


def _metric_points(
    sweep: Sweep, settings: Sequence[tuple[int, int]], metric: str, place: float
) -> list[tuple[Any, ...]]:
    points: list[tuple[Any, ...]] = []
    groups = dict(list(sweep.tables.timeline.groupby(SETTING)))
    for at, setting in enumerate(settings):
        rows = groups.get(setting)
        if rows is None:
            continue
        values = rows[metric]
        name = f"{sweep.label}, {short_name(*setting)}"
        for value, rank, repeat in zip(values, rows["rank"], rows["repeat"], strict=True):
            tip = f"{name}\nrank {rank}, repeat {repeat}: {value:.2f} ms"
            points.append((round(at + place + 0.08, 4), round(float(value), 4), tip))
        low, middle, high = float(values.min()), float(values.median()), float(values.max())
        tip = f"{name}\nmedian {middle:.2f} ms over {len(values)} ranks\n{low:.2f} to {high:.2f} ms"
        points.append((round(at + place, 4), round(middle, 4), tip, round(low, 4), round(high, 4)))
    return points


def _gemm_blocks(gemm: pd.DataFrame, sweeps: Sequence[Sweep]) -> list[Any]:
    if gemm.empty:
        return [Prose("The sweeps have no GEMM shape in common, or none could be linked to its operator.")]
    series = []
    for at, (other, rows) in enumerate(gemm.groupby("other", sort=False), start=1):
        points = [
            (
                row.median_base_us,
                row.median_other_us,
                f"{row.gemm}\n{_name(row)}\n{row.median_base_us:.1f} → {row.median_other_us:.1f} µs ({row.change_percent:+.1f} %)",
            )
            for row in rows.itertuples()
        ]
        series.append(Series(str(other), SERIES[at % len(SERIES)], [points]))
    caption = (
        "Median time of every GEMM shape and configuration in both sweeps; above the dashed line is slower."
    )
    chart = Chart(
        "gemm",
        f"{sweeps[0].label}: median µs",
        ["median in the other sweep, µs"],
        series,
        caption,
        "comparison/gemm.csv",
        diagonal=True,
    )
    shown = gemm[
        [
            "other",
            "gemm",
            "n_base",
            "n_other",
            "median_base_us",
            "median_other_us",
            "change_percent",
            "ci_low_percent",
            "ci_high_percent",
            "changed_us",
        ]
    ].copy()
    shown.insert(1, "configuration", [_name(row) for row in gemm.itertuples()])
    return [chart, Table(shown, "GEMMs, most time changed per rank first", "comparison/gemm.csv")]


def _by_rank(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    parts = [one.tables.timeline.assign(sweep=one.label) for one in sweeps]
    frame: pd.DataFrame = pd.concat(parts, ignore_index=True)
    ordered: pd.DataFrame = frame[["sweep", *[name for name in frame if name != "sweep"]]]
    return ordered


def _provenance(sweeps: Sequence[Sweep]) -> dict[str, dict[str, str]]:
    identity = lab_identity()
    found = {
        one.label: {"folder": str(one.folder), "traces read": str(len(one.tables.timeline))} for one in sweeps
    }
    return found | {"Analysed by": {"lab": lab.__version__, "commit": identity.commit or "unknown"}}


def _name(row: Any) -> str:
    return short_name(int(row.threads), int(row.channel))
