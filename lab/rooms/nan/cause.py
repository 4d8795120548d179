"""Why the first bad number was made, from the magnitudes around its birth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from lab.rooms.nan.evidence import HALF_MAX, LARGEST, Evidence

TYPE_NAMES = {"float16": "half", "bfloat16": "bfloat16", "float32": "float"}


class Cause(NamedTuple):
    """Confidence: `certain` where the numbers leave no other explanation, `likely` where they allow this one,
    `possible` where they do not rule it out."""

    text: str
    confidence: str
    evidence: str


NOT_KEPT = Cause("unknown", "possible", "the forward was not kept call by call")


def cause_of(experiment: Evidence, calls: pd.DataFrame | None) -> Cause | None:
    """The cause of the first birth; None where nothing was born."""
    watch, birth = experiment.watch, experiment.birth
    if not birth:
        return None
    if birth["how"] == "weights":
        bad = [
            _bad_weight(weight) for weight in watch["weights"] if weight["name"].startswith(birth["module"])
        ]
        return Cause("a weight is not finite", "certain", ", ".join(bad))
    if birth["how"] == "given":
        return Cause("it was in the model's inputs", "certain", birth["place"])
    if calls is None or calls.empty:
        return NOT_KEPT
    return _from_magnitudes(birth, calls[calls["step"] == birth["step"]])


def _bad_weight(weight: Mapping[str, Any]) -> str:
    infinite = int(weight["posinf"] + weight["neginf"])
    return f"{weight['name']}: {int(weight['nan'])} NaN, {infinite} infinite"


def _from_magnitudes(birth: Mapping[str, Any], calls: pd.DataFrame) -> Cause:
    """The cause by the magnitudes before the first bad leaf.

    An overflow shows as a product of finite factors that the type cannot hold, a masked row as NaN without
    one.
    """
    bad = calls[calls[["nan", "posinf", "neginf"]].clip(lower=0).sum(axis=1) > 0]
    if bad.empty:
        return NOT_KEPT
    leaf = bad.iloc[0]
    outputs = calls[(calls["seq"] < leaf["seq"]) & (calls["side"] == "out")]
    inside = outputs[outputs["module"].str.startswith(f"{birth['module']}.")]
    peaks = {_last(name): float(peak) for name, peak in inside.groupby("module")["absmax"].last().items()}
    if peaks.get("q_proj") and peaks.get("k_proj"):
        return _in_attention(leaf, peaks["q_proj"], peaks["k_proj"])
    # A product between modules takes the last two outputs, as a gated MLP does.
    names = [_last(name) for name in inside.drop_duplicates("module", keep="last")["module"]][-2:]
    return _outside_attention(birth, leaf, {name: peaks[name] for name in names})


def _in_attention(leaf: pd.Series, query: float, key: float) -> Cause:
    limit, product = _limit(leaf), query * key
    peaks = f"|q| reaches {query:.4g} and |k| {key:.4g}"
    if product > limit:
        return Cause(
            f"overflow of {_type(leaf)} in the attention scores",
            "likely",
            f"{peaks}: a single product can reach {product:.3g}, but {leaf['dtype']} holds at most "
            f"{limit:.5g}; the softmax turns inf - inf into NaN",
        )
    return Cause(
        "a fully masked row in the softmax: (-inf) - (-inf)",
        "possible",
        f"{peaks}: their products fit {leaf['dtype']}, so the scores themselves are finite; "
        f"{_kind(leaf)} first in {leaf['module']} {leaf['leaf']}",
    )


def _outside_attention(birth: Mapping[str, Any], leaf: pd.Series, factors: Mapping[str, float]) -> Cause:
    limit, peaks = _limit(leaf), list(factors.values())
    if len(peaks) == 2 and peaks[0] * peaks[1] > limit and birth["how"] == "between":
        return Cause(
            f"overflow of {_type(leaf)} in the product of {' and '.join(factors)}",
            "likely",
            f"they reach {peaks[0]:.4g} and {peaks[1]:.4g}; {leaf['dtype']} holds at most {limit:.5g}",
        )
    if _kind(leaf) == "infinity":
        return Cause(
            f"overflow of {_type(leaf)}",
            "likely",
            f"finite numbers went into {birth['module'] or 'the model'}, infinity came out",
        )
    return Cause("unknown", "possible", f"NaN first in {leaf['module']} {leaf['side']} {leaf['leaf']}")


def _limit(leaf: pd.Series) -> float:
    return LARGEST.get(str(leaf["dtype"]), HALF_MAX)


def _kind(leaf: pd.Series) -> str:
    return "NaN" if leaf["nan"] > 0 else "infinity"


def _type(leaf: pd.Series) -> str:
    return TYPE_NAMES.get(str(leaf["dtype"]), str(leaf["dtype"]))


def _last(module: object) -> str:
    return str(module).rsplit(".", 1)[-1]
