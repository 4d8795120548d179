"""The verdict in words."""

from __future__ import annotations

from lab.compare.same.judge import BEYOND, BLIND, OWN, Place, Verdict
from lab.compare.same.recording import Recording
from lab.core.words import plural, printable


def text(found: Verdict, a: Recording, b: Recording, top: int) -> str:
    """Most important first: the verdict, bits, values, who made it, modules, gradients, unpaired outputs."""
    lines = [
        f"A: {_about(a)}",
        f"B: {_about(b)}",
        f"{found.outcome}: {found.reason}",
        "",
        _bits(found),
        _values(found),
    ]
    if found.not_finite:
        lines.append(f"! {plural(found.not_finite, 'output')} with NaN or infinity in both runs")
    if found.blind:
        blind = plural(found.blind, "output")
        lines.append(f"! {blind} with a noise floor above {BLIND:.0%}: any change of them would pass")
    if found.renamed:
        renamed = plural(found.renamed, "output")
        lines.append(
            f"modules or weights have other names in B ({renamed}): paired by the order of equal ops"
        )
    lines += _unwritten(found, top)
    lines += _made_by(found, top)
    if found.on_equal_inputs:
        first = found.on_equal_inputs[0]
        outputs = plural(len(found.on_equal_inputs), "output")
        lines.append(f"bits differ though the op's inputs are bit-equal: {outputs}, first {_where(first)}")
    for title, places in (("modules", found.modules), ("gradients", found.grads)):
        lines += _table(f"{title} that are not known to be bit-equal", places, top)
    for side, names, count in (("A", found.only_a, found.n_only_a), ("B", found.only_b, found.n_only_b)):
        if count:
            lines.append(f"only in {side}, not compared: {plural(count, 'output')}: {'; '.join(names[:3])}")
    return "\n".join([*lines, *(f"! {one}" for one in found.problems)])


def _about(one: Recording) -> str:
    names = [name for name in ("dtype", "torch", "device", "threads") if name in one.meta]
    words = ", ".join(f"{name} {printable(str(one.meta[name]))}" for name in names)
    return f"{printable(str(one.path))} ({words}; {plural(len(one.rows), 'output')})"


def _bits(found: Verdict) -> str:
    bits = found.bits
    if not bits.compared:
        return (
            f"bits: not comparable ({found.precision if found.precision != 'equal' else 'other checksums'})"
        )
    first = f", first {_where(bits.first)}" if bits.first else ""
    return f"bits: {bits.differ:,} of {plural(bits.compared, 'output')} differ{first}"


def _values(found: Verdict) -> str:
    values = found.values
    seen = f"up to {found.samples} sampled elements per output, and norms of all elements"
    if found.precision != "equal":
        return f"values: other precision ({found.precision}), judged by each op's own error, not by a floor"
    if not values.floors:
        beyond = f"; {_where(values.first)}: {values.first.why}" if values.first else ""
        return f"values: no noise floor was measured (--floor, --reference){beyond}"
    largest = "none known" if values.largest_ratio is None else f"{values.largest_ratio:.2g}"
    count = plural(values.floors, "recording")
    head = f"values: largest difference {largest} times the floor of {count} ({seen})"
    if values.unknown:
        head += f"; {plural(values.unknown, 'output')} without a floor"
    if values.first is None:
        return f"{head}; none beyond {BEYOND:g} times"
    return f"{head}; {values.beyond:,} beyond {BEYOND:g} times, first {_figures(values.first)}"


def _made_by(found: Verdict, top: int) -> list[str]:
    if not found.with_own_error:
        return ["own errors: not judged, no op has one in both recordings"]
    if not found.made_by:
        judged = f"{found.with_own_error:,} of {plural(found.ops, 'output')} of ops have one"
        return [f"own errors: no op is more than {OWN:g} times worse than its peers ({judged})"]
    lines = [f"made by (own error against float64 on its own inputs, over {OWN:g} times its peers'):"]
    for one in found.made_by[:top]:
        own = "unknown" if one.own is None else f"{one.own:.1e}"
        ratio = "" if one.own_ratio is None else f", {one.own_ratio:,.0f} times its peers"
        lines.append(f"  in {one.side}: {_figures(one)}; own error {own}{ratio}")
    more = len(found.made_by) - top
    return [*lines, *([f"  and {more:,} more"] if more > 0 else [])]


def _unwritten(found: Verdict, top: int) -> list[str]:
    """What was not compared, because it holds what was in memory before; once if it is the same in both."""
    runs = found.unwritten
    if "A" in runs and runs["A"] == runs.get("B"):
        runs = {"each": runs["A"]}
    lines = []
    for run, left in runs.items():
        names = ", ".join(f"{count:,} of {name}" for name, count in list(left.items())[:top])
        more = f" and {plural(len(left) - top, 'kind')} more" if len(left) > top else ""
        outputs = plural(sum(left.values()), "output")
        lines.append(f"not compared, because nobody need write them: {outputs} in {run}: {names}{more}")
    return lines


def _table(title: str, places: list[Place], top: int) -> list[str]:
    if not places:
        return []
    more = f" (first {top} of {len(places):,})" if len(places) > top else ""
    return [f"{title}{more}:", *(f"  {_figures(one)}" for one in places[:top])]


def _where(one: Place | None) -> str:
    if one is None:
        return "none"
    about = " ".join(part for part in (one.phase, one.node, f"in {one.module}" if one.module else "") if part)
    name = f"{one.op} (in B {one.op_b})" if one.op_b else one.op
    if one.kind == "module":
        reached = "gradient at the output of " if one.phase == "bwd" else ""
        return f"{reached}module {one.module or '(the model)'} ({name})"
    if one.kind != "op":
        return f"{'gradient of ' if one.kind == 'grad' else one.kind + ' '}{name}"
    return f"{one.i} {name}{f' output {one.out}' if one.out else ''} ({about})"


def _figures(one: Place) -> str:
    rel = "not finite" if one.relative is None else f"{one.relative:.2g}"
    steps = "" if one.ulps is None else f", {one.ulps:,.0f} ULP"
    ratio = "" if one.ratio is None else f", {one.ratio:,.3g} times the floor"
    return f"{_where(one)}: relative {rel}{steps}{ratio}{f' ({one.why})' if one.why else ''}"
