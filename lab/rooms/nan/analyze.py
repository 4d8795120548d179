"""Evidence -> tables: one row per experiment in any case, and the rows behind each of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from lab.rooms.nan.cause import Cause, cause_of
from lab.rooms.nan.columns import APPLIED, BIRTHS, CHAIN, FUNCTIONS, LINKS
from lab.rooms.nan.evidence import Evidence, baseline_of
from lab.rooms.nan.experiments import experiments_table
from lab.rooms.nan.layers import layers_table
from lab.rooms.nan.nixnan.categories import category, shown
from lab.rooms.nan.nixnan.sites import nan_sites
from lab.rooms.nan.verdict import Chain, chain_of, verdict_of


@dataclass
class NanTables:
    """DataFrames with the columns of lab.rooms.nan.columns, and what the sentences need beside them."""

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
        calls = read(experiment, "calls.csv") if (experiment.watch or {}).get("first") else None
        if cause := cause_of(experiment, calls):
            causes[experiment.label] = cause
    return NanTables(
        experiments=experiments_table(evidence, verdicts, causes),
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


def _chain_table(chains: Mapping[str, Chain]) -> pd.DataFrame:
    rows = []
    for label, chain in chains.items():
        row = {"experiment": label}
        for link in LINKS:
            row[link], row[f"{link}_evidence"] = getattr(chain, link)
        rows.append(row)
    table: pd.DataFrame = pd.DataFrame(rows, columns=CHAIN)
    return table


def _applied_table(evidence: Sequence[Evidence]) -> pd.DataFrame:
    """What was asked of the model beside what it shows: requested is not effective."""
    rows = []
    for experiment in evidence:
        result = experiment.result or {}
        effective, proof = result.get("effective") or {}, result.get("applied") or {}
        if not effective:
            continue
        as_loaded = "twin" if result.get("skipped_quant") else "loaded as asked"
        row = {
            "experiment": experiment.label,
            "status": proof.get("status") or as_loaded,
            "what": proof.get("what", result["asked"]),
            "dtypes": ", ".join(effective["dtypes"]),
            "attention": effective["attention"],
            "quant": effective["quant"],
            "device": f"{effective['device']} ({effective['device_name']})",
            "skipped_quant": result.get("skipped_quant", ""),
        }
        rows.append({**{name: proof.get(name) for name in APPLIED}, **row})
    frame = pd.DataFrame(rows, columns=APPLIED)
    table: pd.DataFrame = frame.astype({"expected": "Int64", "count": "Int64", "values_changed": "Int64"})
    return table


def _births_table(evidence: Sequence[Evidence]) -> pd.DataFrame:
    rows = [
        {"experiment": experiment.label, **{name: birth[name] for name in BIRTHS[1:]}}
        for experiment in evidence
        for birth in (experiment.watch or {}).get("births", ())
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=BIRTHS)
    return table


def _functions_table(evidence: Sequence[Evidence]) -> pd.DataFrame:
    rows = []
    for experiment in evidence:
        if experiment.log is None:
            continue
        sites = nan_sites(experiment.log)
        for name, lines in sorted(experiment.log.functions.items(), key=lambda item: -item[1]):
            nan_lines = experiment.log.function_kinds.get(name, {}).get("NaN", 0)
            twin = experiment.log.twins.get(name, "")
            twin_of = shown(twin) if twin else ""
            cells = (shown(name), category(name), lines, nan_lines, sites.get(name, 0), twin_of)
            rows.append((experiment.label, *cells))
    table: pd.DataFrame = pd.DataFrame(rows, columns=FUNCTIONS)
    return table
