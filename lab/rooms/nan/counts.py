"""Numbers of one experiment, read from its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from lab.rooms.nan.evidence import Evidence

HALF_MAX = 65504.0
LARGEST = {"float16": HALF_MAX, "bfloat16": 3.3895e38, "float32": 3.4028e38}


def kind_lines(experiment: Evidence, kind: str) -> int:
    """Lines of operations with this kind, all types."""
    if experiment.log is None:
        return 0
    return sum(kinds.get(kind, 0) for name, kinds in experiment.log.counts.items() if name != "memory")


def reported(experiment: Evidence, types: Sequence[str], kind: str) -> tuple[int, int] | None:
    """(unique, repeats) of nixnan's own report; None without a report."""
    if experiment.log is None or experiment.log.report is None:
        return None
    cells = [experiment.log.report.get(name, {}).get(kind) for name in types]
    counted_cells = [cell for cell in cells if cell]
    return sum(cell["unique"] for cell in counted_cells), sum(cell["repeats"] or 0 for cell in counted_cells)


def bad_leaves(experiment: Evidence) -> int:
    return sum(step["bad_leaves"] for step in (experiment.watch or {}).get("steps", ()))


def python_totals(experiment: Evidence) -> dict[str, float]:
    """NaN and infinities over distinct output tensors of all forwards."""
    if experiment.watch:
        steps = experiment.watch["steps"]
        return {kind: sum(step[kind] for step in steps) for kind in ("nan", "posinf", "neginf")}
    published = (experiment.result or {}).get("published")
    return {"nan": published["nan"], "posinf": published["inf"], "neginf": 0} if published else {}


def subnormals(experiment: Evidence) -> bool:
    any_subnormal = any(step["subnormal"] > 0 for step in (experiment.watch or {}).get("steps", ()))
    return any_subnormal or kind_lines(experiment, "subnormal") > 0


def text_of(experiment: Evidence | None) -> str | None:
    texts = (experiment.result or {}).get("text") if experiment else None
    return "\n".join(texts) if texts else None
