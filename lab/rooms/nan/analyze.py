"""Evidence -> tables: one row per experiment in any case, and the rows behind each of its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lab.rooms.nan.cause import Cause, cause_of
from lab.rooms.nan.evidence import (
    LARGEST,
    Evidence,
    bad_leaves,
    baseline_of,
    reported,
    text_of,
)
from lab.rooms.nan.nixnan.grammar import category, shown
from lab.rooms.nan.nixnan.log import memory_nan_lines, nan_sites, totals
from lab.rooms.nan.verdict import Chain, chain_of, ranks, verdict_of

LINKS = ("instruction", "stored", "module", "logits", "text")
CHAIN = ["experiment", *(f"{link}{part}" for link in LINKS for part in ("", "_evidence"))]
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)(?:\.|$)")
INFINITE = ("posinf", "neginf")
COUNTED = ("nan", "posinf", "neginf", "subnormal")


def _names(text: str) -> list[str]:
    return text.split()


EXPERIMENTS = _names("""
    rank experiment status verdict nan inf bad_leaves bad_logit_steps first_producer cause confidence
    sass_integrity sass_lines sass_sites sass_nan_lines half_nan_unique half_nan_repeats float_nan_unique
    float_nan_repeats half_subnormal_unique half_subnormal_repeats memory_nan_lines
    same_text characters
    reason result_file log_files
""")
TEXTS = _names("""
    experiment status verdict first_producer cause confidence sass_integrity same_text reason result_file
    log_files
""")
APPLIED = _names("""
    experiment status what expected count values_changed logits_moved
    dtypes attention quant device skipped_quant
""")
BIRTHS = _names("experiment step phase place module how leaf")
LAYERS = _names("""
    experiment layer phase nan posinf neginf subnormal absmax numel dtype headroom first_bad_step
""")
FUNCTIONS = _names("experiment function category lines nan_lines nan_sites twin_of")

# What the page's ranking, the terminal and the page's table of instructions show of EXPERIMENTS.
# As many as a page of 1,280 pixels holds; the others follow below.
RANKING = _names("""
    rank experiment status verdict bad_leaves bad_logit_steps first_producer cause
""")
OUTPUTS = _names("""
    experiment nan inf confidence same_text characters reason
""")
TERMINAL = _names("""
    rank experiment status verdict bad_leaves bad_logit_steps sass_nan_lines first_producer
""")
SASS = _names("""
    experiment sass_integrity sass_lines sass_sites sass_nan_lines half_nan_unique half_nan_repeats
    float_nan_unique float_nan_repeats half_subnormal_unique half_subnormal_repeats memory_nan_lines
""")


@dataclass
class NanTables:
    """DataFrames with the columns of lab.rooms.nan.analyze, and what the sentences need beside them."""

    experiments: pd.DataFrame
    chain: pd.DataFrame
    applied: pd.DataFrame
    births: pd.DataFrame
    layers: pd.DataFrame
    functions: pd.DataFrame
    evidence: list[Evidence] = field(default_factory=list)
    chains: dict[str, Chain] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def baseline(self) -> Evidence | None:
        return baseline_of(self.evidence)


def analyze(evidence: Sequence[Evidence]) -> NanTables:
    """Tables of all experiments. Nothing is left out: what cannot be read is in `problems` and in its row."""
    base, problems = baseline_of(evidence), list[str]()

    def read(experiment: Evidence, name: str) -> pd.DataFrame | None:
        return _csv(experiment, name, problems)

    chains = {experiment.label: chain_of(experiment, base) for experiment in evidence}
    verdicts = {experiment.label: verdict_of(experiment, chains[experiment.label]) for experiment in evidence}
    causes = {}
    for experiment in evidence:
        if experiment.birth and (cause := cause_of(experiment, read(experiment, "calls.csv"))):
            causes[experiment.label] = cause
    return NanTables(
        experiments=experiments_table(evidence, chains, verdicts, causes),
        chain=_chain_table(chains),
        applied=_applied_table(evidence),
        births=_births_table(evidence),
        layers=layers_table(evidence, read),
        functions=_functions_table(evidence),
        evidence=list(evidence),
        chains=chains,
        causes=causes,
        problems=problems,
    )


def _csv(experiment: Evidence, name: str, problems: list[str]) -> pd.DataFrame | None:
    path = (experiment.folder or Path()) / name
    try:
        return pd.read_csv(path, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' parser and empty-file errors are ValueErrors
        problems.append(f"{experiment.label}: {name} cannot be read: {error}")
        return None


def _frame(rows: Iterable[Any], columns: Sequence[str]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(list(rows), columns=list(columns))
    return frame


def _chain_table(chains: Mapping[str, Chain]) -> pd.DataFrame:
    return _frame(
        (
            [label, *(word for link in LINKS for word in getattr(chain, link))]
            for label, chain in chains.items()
        ),
        CHAIN,
    )


def _applied_table(evidence: Sequence[Evidence]) -> pd.DataFrame:
    """What was asked of the model beside what it shows: requested is not effective."""
    rows = []
    for experiment in evidence:
        if not (effective := experiment.effective):
            continue
        result = experiment.result or {}
        proof = result.get("applied") or {"what": result["asked"]}
        row = {
            **{name: proof.get(name) for name in APPLIED},
            "experiment": experiment.label,
            "status": proof.get("status") or ("twin" if result.get("skipped_quant") else "loaded as asked"),
            "dtypes": ", ".join(effective["dtypes"]),
            "attention": effective["attention"],
            "quant": effective["quant"],
            "device": f"{effective['device']} ({effective['device_name']})",
            "skipped_quant": result.get("skipped_quant", ""),
        }
        rows.append(row)
    integers = dict.fromkeys(("expected", "count", "values_changed"), "Int64")
    table: pd.DataFrame = _frame(rows, APPLIED).astype(integers)
    return table


def _births_table(evidence: Sequence[Evidence]) -> pd.DataFrame:
    births = ((experiment, birth) for experiment in evidence for birth in experiment.watch.get("births", ()))
    return _frame(
        ((experiment.label, *(birth[name] for name in BIRTHS[1:])) for experiment, birth in births), BIRTHS
    )


def _functions_table(evidence: Sequence[Evidence]) -> pd.DataFrame:
    rows = []
    for label, log in ((experiment.label, experiment.log) for experiment in evidence if experiment.log):
        sites = nan_sites(log)
        for name, lines in sorted(log.functions.items(), key=lambda item: -item[1]):
            twin = shown(log.twins[name]) if name in log.twins else ""
            counts = lines, log.function_kinds[name, "NaN"], sites.get(name, 0)
            rows.append((label, shown(name), category(name), *counts, twin))
    return _frame(rows, FUNCTIONS)


def experiments_table(
    evidence: Sequence[Evidence],
    chains: Mapping[str, Chain],
    verdicts: Mapping[str, str],
    causes: Mapping[str, Cause],
) -> pd.DataFrame:
    """Ranked experiments first, the others after them; equals in the order in which they came."""
    ranked, same = ranks(evidence, verdicts), {"yes": "no", "no": "yes", "?": ""}
    rows = [
        {
            "rank": ranked.get(experiment.label),
            "experiment": experiment.label,
            "status": experiment.status,
            "verdict": verdicts[experiment.label],
            **_modules(experiment, causes.get(experiment.label)),
            **_instructions(experiment),
            "same_text": same[chains[experiment.label].text[0]],
            "characters": None if (text := text_of(experiment)) is None else len(text),
            "reason": experiment.reason or experiment.log_error,
            "result_file": experiment.result_file,
            "log_files": ", ".join(experiment.log_files),
        }
        for experiment in evidence
    ]
    numbers = dict.fromkeys([name for name in EXPERIMENTS if name not in TEXTS], "Int64")
    frame = _frame(rows, EXPERIMENTS).astype(numbers)
    table: pd.DataFrame = frame.sort_values("rank", kind="stable", na_position="last").reset_index(drop=True)
    return table


def _modules(experiment: Evidence, cause: Cause | None) -> dict[str, Any]:
    """NaN and infinities over distinct output tensors of all forwards, and where the first was born."""
    steps, published, logits = experiment.watch.get("steps"), experiment.counts, experiment.logits
    sums = {"nan": published.get("nan"), "inf": published.get("inf")}
    if steps is not None:
        nan, inf = (sum(step[kind] for step in steps for kind in kinds) for kinds in (("nan",), INFINITE))
        sums = {"nan": int(nan), "inf": int(inf), "bad_leaves": bad_leaves(experiment)}
    return {
        **sums,
        "bad_logit_steps": len(logits["bad_steps"]) if logits else None,
        "first_producer": experiment.birth.get("place", ""),
        "cause": cause.text if cause else "",
        "confidence": cause.confidence if cause else "",
    }


def _instructions(experiment: Evidence) -> dict[str, Any]:
    """nixnan's numbers. Half is f16 and bf16 together: the tool prints bf16 apart only since August 2025."""
    if experiment.log is None:
        return {"sass_integrity": "unreadable" if experiment.log_files else ""}
    row: dict[str, Any] = {
        "sass_integrity": experiment.log.integrity,
        "sass_lines": experiment.log.error_lines,
        "sass_sites": experiment.log.site_count,
        "sass_nan_lines": totals(experiment.log)["NaN"],
        "memory_nan_lines": memory_nan_lines(experiment.log),
    }
    for name, types in {"half": ("f16", "bf16"), "float": ("f32",)}.items():
        for kind in ("NaN", "subnormal"):
            unique, repeats = reported(experiment, types, kind) or (None, None)
            column = f"{name}_{kind.lower()}"
            row |= {f"{column}_unique": unique, f"{column}_repeats": repeats}
    return row


ReadTable = Callable[[Evidence, str], "pd.DataFrame | None"]


def layers_table(evidence: Sequence[Evidence], read: ReadTable) -> pd.DataFrame:
    """Headroom is the largest magnitude as a share of the type's largest number."""
    parts = []
    for experiment in evidence:
        modules = _module_rows(experiment, read)
        if modules is not None and not modules.empty:
            parts.append(_by_layer(modules).assign(experiment=experiment.label))
    if not parts:
        return _frame([], LAYERS)
    table: pd.DataFrame = pd.concat(parts)[LAYERS].reset_index(drop=True)
    return table


def layer_of(module: str) -> str:
    """`layer 12` for a module of that layer, else the module's last name."""
    match = LAYER.search(module)
    return f"layer {match[1]}" if match else module.rsplit(".", 1)[-1] or "(the model)"


def _by_layer(modules: pd.DataFrame) -> pd.DataFrame:
    out = modules[modules["side"] == "out"].assign(layer=modules["module"].map(layer_of))
    limit = out["dtype"].map(LARGEST).astype(float)
    out["headroom"] = (out["absmax"] / limit).where(out["absmax"] > 0)  # unknown where nothing is finite
    out[list(COUNTED)] = out[list(COUNTED)].clip(lower=0)
    figures: dict[str, Any] = dict.fromkeys((*COUNTED, "numel"), "sum")
    figures |= {"absmax": "max", "headroom": "max", "dtype": "first", "first_bad_step": _first_bad}
    table: pd.DataFrame = out.groupby(["layer", "phase"], sort=False).agg(figures).reset_index()
    return table


def _module_rows(experiment: Evidence, read: ReadTable) -> pd.DataFrame | None:
    if not experiment.counts:
        return read(experiment, "modules.csv") if experiment.watch else None
    rows = [(name, *counts) for name, counts in experiment.counts["rows"].items()]
    unknown = dict.fromkeys(("numel", "neginf", "subnormal"), 0)
    table: pd.DataFrame = _frame(rows, ["module", "nan", "posinf"]).assign(
        side="out", phase="last call", dtype="", absmax=float("nan"), first_bad_step=-1, **unknown
    )
    return table


def _first_bad(steps: pd.Series) -> int:
    bad = steps[steps >= 0]
    return int(bad.min()) if len(bad) else -1
