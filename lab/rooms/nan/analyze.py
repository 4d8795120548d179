"""Evidence -> tables: one row an experiment, come what may, and the rows behind each of its numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lab.rooms.nan import verdict as words
from lab.rooms.nan.evidence import Evidence
from lab.rooms.nan.nixnan.logs import Log
from lab.rooms.nan.nixnan.sass import memory_nan_lines
from lab.rooms.nan.verdict import LINKS, Chain

EXPERIMENTS = [
    "rank",
    "experiment",
    "status",
    "verdict",
    "nan",
    "inf",
    "bad_leaves",
    "bad_logit_steps",
    "first_producer",
    "cause",
    "confidence",
    "sass_integrity",
    "sass_lines",
    "sass_sites",
    "sass_nan_lines",
    "half_nan_unique",
    "half_nan_repeats",
    "float_nan_unique",
    "float_nan_repeats",
    "half_subnormal_unique",
    "half_subnormal_repeats",
    "memory_nan_lines",
    "same_text",
    "characters",
    "kl_mean",
    "top1_agreement",
    "watch_prefill_percent",
    "watch_decode_percent",
    "reason",
    "result_file",
    "log_files",
]
CHAIN = ["experiment", *(f"{link}{part}" for link in LINKS for part in ("", "_evidence"))]
APPLIED = [
    "experiment",
    "status",
    "what",
    "expected",
    "count",
    "values_changed",
    "logits_moved",
    "dtypes",
    "attention",
    "quant",
    "device",
    "skipped_quant",
]
BIRTHS = ["experiment", "step", "phase", "place", "module", "how", "leaf"]
LAYERS = [
    "experiment",
    "layer",
    "phase",
    "nan",
    "posinf",
    "neginf",
    "subnormal",
    "absmax",
    "numel",
    "dtype",
    "headroom",
    "first_bad_step",
]
KERNELS = ["experiment", "phase", "kernel", "launches", "baseline_launches"]
FUNCTIONS = ["experiment", "function", "category", "lines", "nan_lines", "nan_sites", "twin_of"]
WHOLE = ("rank", "nan", "inf", "_leaves", "_steps", "_lines", "_sites", "_unique", "_repeats", "characters")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)(?:\.|$)")
COUNTED = ("nan", "posinf", "neginf", "subnormal")


@dataclass
class NanTables:
    """DataFrames with the columns at the top of this module; `sass` has further ones by name, as lab.rooms.nan.nixnan.sass makes them."""

    experiments: pd.DataFrame
    chain: pd.DataFrame
    applied: pd.DataFrame
    births: pd.DataFrame
    layers: pd.DataFrame
    kernels: pd.DataFrame
    functions: pd.DataFrame
    evidence: list[Evidence] = field(default_factory=list)
    chains: dict[str, Chain] = field(default_factory=dict)
    causes: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def baseline(self) -> Evidence | None:
        return baseline_of(self.evidence)


def analyze(evidence: Sequence[Evidence]) -> NanTables:
    """Tables of all experiments. Nothing is left out: what cannot be read is in `problems` and in its row."""
    base = baseline_of(evidence)
    chains = {one.label: words.chain(one, base) for one in evidence}
    verdicts = {one.label: words.verdict(one, chains[one.label]) for one in evidence}
    problems: list[str] = []
    causes = {}
    for one in evidence:
        found = words.cause(one, _calls(one, problems))
        if found:
            causes[one.label] = found
    ranked = words.ranks(evidence, verdicts)
    rows = [_row(one, verdicts[one.label], ranked, causes.get(one.label), base) for one in evidence]
    frame = pd.DataFrame(rows, columns=EXPERIMENTS)
    whole = [name for name in EXPERIMENTS if name.endswith(WHOLE)]
    frame[whole] = frame[whole].astype("Int64")
    return NanTables(
        experiments=_by_rank(frame),
        chain=_chain_frame(chains),
        applied=_applied(evidence),
        births=_births(evidence),
        layers=_layers(evidence, problems),
        kernels=_kernels(evidence, base),
        functions=_functions(evidence),
        evidence=list(evidence),
        chains=chains,
        causes=causes,
        problems=problems,
    )


def baseline_of(evidence: Sequence[Evidence]) -> Evidence | None:
    return next((one for one in evidence if one.experiment == "baseline"), None)


def _by_rank(frame: pd.DataFrame) -> pd.DataFrame:
    """Ranked first, the rest after; equals in the order in which they came."""
    made: pd.DataFrame = frame.sort_values("rank", kind="stable", na_position="last").reset_index(drop=True)
    return made


def _row(
    one: Evidence,
    verdict: str,
    ranked: dict[str, int],
    cause: tuple[str, str, str] | None,
    base: Evidence | None,
) -> dict[str, Any]:
    totals, first = words.python_totals(one), (one.watch or {}).get("first")
    text, base_text = words.text_of(one), words.text_of(base)
    return {
        "rank": ranked.get(one.label),
        "experiment": one.label,
        "status": one.status,
        "verdict": verdict,
        "nan": _whole(totals.get("nan")),
        "inf": _whole(totals["posinf"] + totals["neginf"]) if totals else None,
        "bad_leaves": words.bad_leaves(one) if one.watch else None,
        "bad_logit_steps": len(one.result["logits"]["bad_steps"])
        if one.result and "logits" in one.result
        else None,
        "first_producer": first["place"] if first else "",
        "cause": cause[0] if cause else "",
        "confidence": cause[1] if cause else "",
        **_sass(one),
        "same_text": ""
        if text is None or base_text is None or one is base
        else "yes"
        if text == base_text
        else "no",
        "characters": len(text) if text is not None else None,
        **_quality(one),
        **_cost(one),
        "reason": one.reason or one.log_error,
        "result_file": one.result_file,
        "log_files": ", ".join(one.log_files),
    }


def _sass(one: Evidence) -> dict[str, Any]:
    """nixnan's numbers; half is f16 and bf16 together, as the tool prints bf16 apart only since August 2025."""
    if one.log is None:
        return {"sass_integrity": "unreadable" if one.log_files else ""}
    half, single = words.reported(one, ("f16", "bf16"), "NaN"), words.reported(one, ("f32",), "NaN")
    tiny = words.reported(one, ("f16", "bf16"), "subnormal")
    return {
        "sass_integrity": one.log.integrity,
        "sass_lines": one.log.error_lines,
        "sass_sites": one.log.site_count,
        "sass_nan_lines": words.kind_lines(one, "NaN"),
        "memory_nan_lines": memory_nan_lines(one.log),
        **_pair("half_nan", half),
        **_pair("float_nan", single),
        **_pair("half_subnormal", tiny),
    }


def _pair(name: str, cell: tuple[int, int] | None) -> dict[str, int | None]:
    return {f"{name}_unique": cell[0] if cell else None, f"{name}_repeats": cell[1] if cell else None}


def _quality(one: Evidence) -> dict[str, Any]:
    told = (one.result or {}).get("quality") or {}
    return {"kl_mean": told.get("kl_mean"), "top1_agreement": told.get("top1_agreement")}


def _cost(one: Evidence) -> dict[str, Any]:
    told = (one.result or {}).get("timing") or {}
    return {
        f"watch_{phase}_percent": told.get(phase, {}).get("overhead_percent")
        for phase in ("prefill", "decode")
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _chain_frame(chains: dict[str, Chain]) -> pd.DataFrame:
    rows = []
    for label, links in chains.items():
        row: dict[str, str] = {"experiment": label}
        for link in LINKS:
            row[link], row[f"{link}_evidence"] = getattr(links, link)
        rows.append(row)
    made: pd.DataFrame = pd.DataFrame(rows, columns=CHAIN)
    return made


def _applied(evidence: Sequence[Evidence]) -> pd.DataFrame:
    """What was asked of the model beside what it shows: requested is not effective."""
    rows = []
    for one in evidence:
        result = one.result or {}
        effective, proof = result.get("effective") or {}, result.get("applied") or {}
        if not effective:
            continue
        rows.append(
            {
                "experiment": one.label,
                "status": proof.get("status")
                or ("twin" if result.get("skipped_quant") else "loaded as asked"),
                "what": proof.get("what", result["asked"]),
                "expected": proof.get("expected"),
                "count": proof.get("count"),
                "values_changed": proof.get("values_changed"),
                "logits_moved": proof.get("logits_moved"),
                "dtypes": ", ".join(effective["dtypes"]),
                "attention": effective["attention"],
                "quant": effective["quant"],
                "device": f"{effective['device']} ({effective['device_name']})",
                "skipped_quant": result.get("skipped_quant", ""),
            }
        )
    frame = pd.DataFrame(rows, columns=APPLIED)
    made: pd.DataFrame = frame.astype({"expected": "Int64", "count": "Int64", "values_changed": "Int64"})
    return made


def _births(evidence: Sequence[Evidence]) -> pd.DataFrame:
    rows = [
        {"experiment": one.label, **{name: birth[name] for name in BIRTHS[1:]}}
        for one in evidence
        for birth in (one.watch or {}).get("births", ())
    ]
    made: pd.DataFrame = pd.DataFrame(rows, columns=BIRTHS)
    return made


def _calls(one: Evidence, problems: list[str]) -> pd.DataFrame | None:
    return _csv(one, "calls.csv", problems) if (one.watch or {}).get("first") else None


def _csv(one: Evidence, name: str, problems: list[str]) -> pd.DataFrame | None:
    path = (one.folder or Path()) / name
    try:
        return pd.read_csv(path, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' parser and empty-file errors are ValueErrors
        problems.append(f"{one.label}: {name} cannot be read: {error}")
        return None


def _layers(evidence: Sequence[Evidence], problems: list[str]) -> pd.DataFrame:
    """Outputs of all modules, summed by layer; headroom is the largest magnitude as a share of the type's largest."""
    parts = []
    for one in evidence:
        modules = _modules(one, problems)
        if modules is None or modules.empty:
            continue
        out = modules[modules["side"] == "out"].assign(layer=modules["module"].map(layer_of))
        limit = out["dtype"].map(words.LARGEST).astype(float)
        out["headroom"] = (out["absmax"] / limit).where(out["absmax"] > 0)  # nothing finite: not known
        for kind in COUNTED:
            out[kind] = out[kind].clip(lower=0)
        grouped = out.groupby(["layer", "phase"], sort=False)
        part = grouped.agg(
            {
                **dict.fromkeys(COUNTED, "sum"),
                "absmax": "max",
                "numel": "sum",
                "dtype": "first",
                "headroom": "max",
                "first_bad_step": _first_bad,
            }
        ).reset_index()
        parts.append(part.assign(experiment=one.label))
    made: pd.DataFrame = (
        pd.concat(parts)[LAYERS].reset_index(drop=True) if parts else pd.DataFrame([], columns=LAYERS)
    )
    return made


def _modules(one: Evidence, problems: list[str]) -> pd.DataFrame | None:
    published = (one.result or {}).get("published")
    if published:
        rows = [
            {
                "module": name,
                "side": "out",
                "phase": "last call",
                "dtype": "",
                "numel": 0,
                "nan": nans,
                "posinf": infs,
                "neginf": 0,
                "subnormal": 0,
                "absmax": float("nan"),
                "first_bad_step": -1,
            }
            for name, (nans, infs) in published["rows"].items()
        ]
        made: pd.DataFrame = pd.DataFrame(rows)
        return made
    return _csv(one, "modules.csv", problems) if one.watch else None


def layer_of(module: str) -> str:
    """`layer 12` for a module of that layer, else the module's last name."""
    match = LAYER.search(module)
    return f"layer {match[1]}" if match else module.rsplit(".", 1)[-1] or "(the model)"


def _first_bad(steps: pd.Series) -> int:
    bad = steps[steps >= 0]
    return int(bad.min()) if len(bad) else -1


def _kernels(evidence: Sequence[Evidence], base: Evidence | None) -> pd.DataFrame:
    """Kernels whose launches differ from the baseline's: which other code an experiment really ran."""
    reference = (base.result or {}).get("kernels") if base else None
    rows = []
    for one in evidence:
        for phase, names in ((one.result or {}).get("kernels") or {}).items():
            known = (reference or {}).get(phase, {})
            for name in sorted({*names, *known}):
                if one is base or names.get(name, 0) != known.get(name, 0):
                    rows.append((one.label, phase, name, names.get(name, 0), known.get(name, 0)))
    made: pd.DataFrame = pd.DataFrame(rows, columns=KERNELS)
    return made


def _functions(evidence: Sequence[Evidence]) -> pd.DataFrame:
    from lab.rooms.nan.nixnan.categories import category, shown

    rows = []
    for one in evidence:
        if one.log is None:
            continue
        sites = nan_sites(one.log)
        for name, lines in sorted(one.log.functions.items(), key=lambda item: -item[1]):
            nans = one.log.function_kinds.get(name, {}).get("NaN", 0)
            twin = one.log.twins.get(name, "")
            rows.append(
                (
                    one.label,
                    shown(name),
                    category(name),
                    lines,
                    nans,
                    sites.get(name, 0),
                    shown(twin) if twin else "",
                )
            )
    made: pd.DataFrame = pd.DataFrame(rows, columns=FUNCTIONS)
    return made


def nan_sites(log: Log) -> dict[str, int]:
    """Function -> sites where a NaN was seen, among the sites that are listed."""
    found: dict[str, int] = {}
    for site in log.sites:
        if site.kinds.get("NaN"):
            found[site.function] = found.get(site.function, 0) + 1
    return found
