"""The lines of a verdict over two recordings, and over ranks and their twin."""

from __future__ import annotations

from lab.compare.same import parallel
from lab.compare.same.judge import BEYOND, BLIND, OWN, Place, Verdict
from lab.compare.same.places import unwritten_text
from lab.core.words import plural, printable
from lab.workload.recorder.format import Recording


def text(verdict: Verdict, a: Recording, b: Recording, top: int) -> str:
    """Most important first: the verdict, bits, values, who made it, modules, gradients, unpaired outputs."""
    lines = [f"A: {_about(a)}", f"B: {_about(b)}", f"{verdict.outcome}: {verdict.reason}", ""]
    lines += [_bits(verdict), _values(verdict)]
    if verdict.not_finite:
        lines.append(f"! {plural(verdict.not_finite, 'output')} with NaN or infinity in both runs")
    if verdict.blind:
        blind = plural(verdict.blind, "output")
        lines.append(f"! {blind} with a noise floor above {BLIND:.0%}: any change of them would pass")
    if verdict.renamed:
        renamed = plural(verdict.renamed, "output")
        lines.append(
            f"modules or weights have other names in B ({renamed}): paired by the order of equal ops"
        )
    lines += [*_unwritten(verdict, top), *_made_by(verdict, top)]
    if verdict.on_equal_inputs:
        outputs = plural(len(verdict.on_equal_inputs), "output")
        example = _named(verdict.on_equal_inputs[0])
        lines.append(f"bits differ though the op's inputs are bit-equal: {outputs}, first at {example}")
    for title, places in (("modules", verdict.modules), ("gradients", verdict.grads)):
        lines += _table(f"{title} that are not known to be bit-equal", places, top)
    sides = (("A", verdict.only_a, verdict.n_only_a), ("B", verdict.only_b, verdict.n_only_b))
    for side, names, count in sides:
        if count:
            lines.append(f"only in {side}, not compared: {plural(count, 'output')}: {'; '.join(names[:3])}")
    return "\n".join([*lines, *(f"! {text}" for text in (*verdict.problems, *verdict.notes))])


def parallel_text(verdict: parallel.Verdict, top: int) -> str:
    source = "measured" if verdict.measured else "derived from the type, because no floor was measured"
    lines = [
        f"{verdict.outcome}: {verdict.reason}",
        f"largest difference {verdict.largest_ratio:.2g} times its threshold ({source})",
    ]
    if len(verdict.places) > 1:
        lines.append("next, which may follow from the first:")
        lines += [f"  {parallel.place_text(place)}" for place in verdict.places[1 : top + 1]]
    lines += [f"not compared: {plural(n, 'tensor')}, {why}" for why, n in verdict.not_compared.items()]
    return "\n".join([*lines, *(f"! {text}" for text in (*verdict.problems, *verdict.notes))])


def _about(recording: Recording) -> str:
    names = [name for name in ("dtype", "torch", "device", "threads") if name in recording.meta]
    words = ", ".join(f"{name} {printable(str(recording.meta[name]))}" for name in names)
    return f"{printable(str(recording.path))} ({words}; {plural(len(recording.rows), 'output')})"


def _bits(verdict: Verdict) -> str:
    bits = verdict.bits
    if not bits.compared:
        reason = verdict.precision if verdict.precision != "equal" else "other checksums"
        return f"bits: not comparable ({reason})"
    example = f", first at {_named(bits.first_place)}" if bits.first_place else ""
    return f"bits: {bits.differ:,} of {plural(bits.compared, 'output')} differ{example}"


def _values(verdict: Verdict) -> str:
    values = verdict.values
    coverage = f"up to {verdict.samples} sampled elements per output, and norms of all elements"
    if verdict.precision != "equal":
        return f"values: other precision ({verdict.precision}), judged by each op's own error, not by a floor"
    if not values.floors:
        place = values.first_place
        beyond = f"; {_named(place)}: {place.explanation}" if place else ""
        return f"values: no noise floor was measured (--floor, --reference){beyond}"
    largest = "none known" if values.largest_ratio is None else f"{values.largest_ratio:.2g}"
    count = plural(values.floors, "recording")
    head = f"values: largest difference {largest} times the floor of {count} ({coverage})"
    if values.unknown:
        head += f"; {plural(values.unknown, 'output')} without a floor"
    if values.first_place is None:
        return f"{head}; none beyond {BEYOND:g} times"
    return f"{head}; {values.beyond:,} beyond {BEYOND:g} times, first at {_figures(values.first_place)}"


def _made_by(verdict: Verdict, top: int) -> list[str]:
    if not verdict.with_own_error:
        return ["own errors: not judged, no op has one in both recordings"]
    if not verdict.made_by:
        judged = f"{verdict.with_own_error:,} of {plural(verdict.ops, 'output')} of ops have one"
        return [f"own errors: no op is more than {OWN:g} times worse than its peers ({judged})"]
    lines = [f"made by (own error against float64 on its own inputs, over {OWN:g} times its peers'):"]
    for place in verdict.made_by[:top]:
        error = "unknown" if place.own_error is None else f"{place.own_error:.1e}"
        ratio = "" if place.own_ratio is None else f", {place.own_ratio:,.0f} times its peers"
        lines.append(f"  in {place.side}: {_figures(place)}; own error {error}{ratio}")
    left = len(verdict.made_by) - top
    return [*lines, *([f"  and {left:,} more"] if left > 0 else [])]


def _unwritten(verdict: Verdict, top: int) -> list[str]:
    """Once if it is the same in both runs."""
    runs = verdict.unwritten
    if "A" in runs and runs["A"] == runs.get("B"):
        runs = {"each run": runs["A"]}
    return [f"in {run} {unwritten_text(counts, top)}" for run, counts in runs.items()]


def _table(title: str, places: list[Place], top: int) -> list[str]:
    if not places:
        return []
    extra = f" (first {top} of {len(places):,})" if len(places) > top else ""
    return [f"{title}{extra}:", *(f"  {_figures(place)}" for place in places[:top])]


def _named(place: Place) -> str:
    name = f" (in B {place.op_b})" if place.op_b else ""
    return f"{place}{f', call {place.i}' if place.kind == 'op' else ''}{name}"


def _figures(place: Place) -> str:
    rel = "not finite" if place.relative is None else f"{place.relative:.2g}"
    ratio = "" if place.ratio is None else f", {place.ratio:,.3g} times the floor"
    explanation = f" ({place.explanation})" if place.explanation else ""
    return f"{_named(place)}: relative {rel}{ratio}{explanation}"
