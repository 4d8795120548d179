"""Numbers of one experiment, read from its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from lab.rooms.nan.evidence import Evidence

HALF_MAX = 65504.0
LARGEST = {"float16": HALF_MAX, "bfloat16": 3.3895e38, "float32": 3.4028e38}


def kind_lines(one: Evidence, kind: str) -> int:
    """Lines of operations with this kind, all types."""
    if one.log is None:
        return 0
    return sum(kinds.get(kind, 0) for name, kinds in one.log.counts.items() if name != "memory")


def reported(one: Evidence, types: Sequence[str], kind: str) -> tuple[int, int] | None:
    """(unique, repeats) of nixnan's own report; None without a report."""
    if one.log is None or one.log.report is None:
        return None
    cells = [one.log.report.get(name, {}).get(kind) for name in types]
    known = [cell for cell in cells if cell]
    return sum(cell["unique"] for cell in known), sum(cell["repeats"] or 0 for cell in known)


def bad_leaves(one: Evidence) -> int:
    return sum(step["bad_leaves"] for step in (one.watch or {}).get("steps", ()))


def python_totals(one: Evidence) -> dict[str, float]:
    """NaN and infinities over distinct output tensors of all forwards."""
    if one.watch:
        steps = one.watch["steps"]
        return {kind: sum(step[kind] for step in steps) for kind in ("nan", "posinf", "neginf")}
    published = (one.result or {}).get("published")
    return {"nan": published["nan"], "posinf": published["inf"], "neginf": 0} if published else {}


def subnormals(one: Evidence) -> bool:
    seen = any(step["subnormal"] > 0 for step in (one.watch or {}).get("steps", ()))
    return seen or kind_lines(one, "subnormal") > 0


def text_of(one: Evidence | None) -> str | None:
    texts = (one.result or {}).get("text") if one else None
    return "\n".join(texts) if texts else None
