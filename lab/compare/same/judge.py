"""The verdict over two recordings: by bits, by values against a measured floor, and by who made the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from lab.compare.same.floors import check_noise, is_random
from lab.compare.same.pairs import EPS, FLOATS, LEAST, moved, own_ratios, pair, relative
from lab.compare.same.places import Place as PlaceOfRow
from lab.compare.same.places import place_of, same_bits
from lab.core.words import first_few
from lab.workload.recorder.format import Recording, Row

BEYOND = 10.0  # times the floor
FEW = 8  # sampled elements, below which an output's own floor is a matter of luck
OWN = 50.0  # times the peers' own error; the worst of equal runs was 1.9
PAIRED = 0.5  # the share of A's rows that must have a partner
LISTED = 2000  # rows in the JSON; the counts are of all
BLIND = 0.05  # a floor of which ten times is half of the output: nothing could be seen
MOST_BLIND = 0.1  # the share of such outputs that a verdict bears
LEVELS = ("ends", "module", "op")  # from the fewest rows to the most


class Place(PlaceOfRow, kw_only=True):
    """A pair of outputs. ratio: relative over floor, None without a floor.

    own: the op's error against float64 on the inputs it got; own_ratio: over its peers'.
    """

    op_b: str
    bits_equal: bool | None  # None: another precision or checksum
    relative: float | None  # None: not finite on one side
    floor: float | None
    ratio: float | None
    own_error: float | None = msgspec.field(default=None, name="own")
    own_ratio: float | None = None
    side: str = ""  # the run whose own error it is


class Bits(msgspec.Struct):
    compared: int
    differ: int
    first_place: Place | None = msgspec.field(name="first")


class Values(msgspec.Struct):
    """floors: recordings that the floor rests on; unknown: paired outputs without a floor."""

    floors: int
    unknown: int
    beyond: int
    largest_ratio: float | None
    first_place: Place | None = msgspec.field(name="first")


class Verdict(msgspec.Struct, kw_only=True):
    """outcome: same bits | within noise | differs | undecided | not comparable."""

    outcome: str
    reason: str
    level: str
    precision: str  # "equal" or "float32 against bfloat16"
    paired: int
    bits: Bits
    values: Values
    made_by: list[Place]  # outputs whose own error is beyond their peers', in A's order
    on_equal_inputs: list[Place]  # ops whose inputs are bit-equal and whose outputs are not
    modules: list[Place]
    grads: list[Place]
    only_a: list[str] = []
    only_b: list[str] = []
    n_only_a: int = 0
    n_only_b: int = 0
    samples: int
    ops: int  # paired outputs of ops
    with_own_error: int  # of them, those whose own error both runs recorded (at another precision: either)
    renamed: int  # pairs whose module or weight has another name in B: paired by the order of equal ops
    masked: int  # pairs with NaN or infinity in both runs whose bits differ: norms say nothing of the rest
    not_finite: int  # pairs with NaN or infinity in both runs
    blind: int = 0  # pairs whose bits differ and whose floor is so large that any change would pass
    blind_modules: int = 0  # of them, outputs of modules
    problems: list[str] = []
    notes: list[str] = []  # of the recorder: what it could not see
    unwritten: dict[str, dict[str, int]] = {}  # by run, then by name: outputs that their op need not write


def judge(
    a: Recording,
    b: Recording,
    floors: Sequence[Recording],
    reference: Recording | None,
    *,
    level: str = "op",
) -> Verdict:
    """Compare. The floor is the largest difference to A of `floors` and of the float64 `reference`. Pure.

    level: of LEVELS, the most that is compared; what a recording does not have is not. Raises UsageError.
    """
    check_noise(a, floors, reference)
    level = min((_level(a), _level(b), level), key=LEVELS.index)
    rows_a, rows_b = ([row for row in recording.rows if _is_at(row, level)] for recording in (a, b))
    matched, only_a, only_b = pair(rows_a, rows_b)
    used = [*floors, *([reference] if reference else [])]
    pairs = _measured([(rows_a[k], rows_b[j]) for k, j in matched], a.checksum == b.checksum, used)
    sides = (("A", a), ("B", b))
    verdict = _counted(pairs, level, len(used))
    verdict.only_a = [_name(rows_a[k]) for k in only_a[:LISTED]]
    verdict.only_b = [_name(rows_b[k]) for k in only_b[:LISTED]]
    verdict.n_only_a, verdict.n_only_b = len(only_a), len(only_b)
    if level == "op":
        verdict.unwritten = {name: run.unwritten for name, run in sides if run.unwritten}
    verdict.notes = [f"{name}: {note}" for name, run in sides for note in run.notes]
    verdict.problems = [f"{run.path.name}: {lack}" for run in (a, b, *used) for lack in run.lacks]
    verdict.outcome, verdict.reason = _outcome(verdict, len(rows_a), len(rows_b))
    return verdict


def _outcome(verdict: Verdict, rows_a: int, rows_b: int) -> tuple[str, str]:
    """The outcome and why; what was not seen is never an all-clear."""
    # Where a level has no rows, no output differs, and none was compared.
    if not verdict.paired or verdict.paired < PAIRED * max(rows_a, rows_b):
        return "not comparable", f"{verdict.paired:,} of {rows_a:,} and {rows_b:,} outputs have a partner"
    place = verdict.bits.first_place
    if place and is_random(place.op) and not verdict.made_by:
        return "undecided", f"the first that differs is random ({place.op}): seed both runs alike"
    if verdict.values.beyond or verdict.made_by:
        return "differs", "an output is beyond the noise floor, or an op's own error beyond its peers'"
    unseen = [*verdict.problems]
    if verdict.n_only_a or verdict.n_only_b:
        unseen.append(f"{verdict.n_only_a:,} outputs of A and {verdict.n_only_b:,} of B have no partner")
    if unseen:
        return "undecided", "; ".join(unseen)
    if verdict.bits.compared == verdict.paired and not verdict.bits.differ:
        written = " that is written" if verdict.unwritten else ""
        unseen_notes = f"; {first_few(verdict.notes, between='; ')}" if verdict.notes else ""
        return "same bits", f"every output{written} is equal bit by bit{unseen_notes}"
    if verdict.masked:
        reason = f"{verdict.masked:,} outputs hold NaN or infinity in both runs and differ in bits: norms, "
        reason += "which would show how much, say nothing of them"
    elif verdict.precision != "equal":
        reason = f"other precision ({verdict.precision}): no op's own error stands out among its peers"
    elif not verdict.values.floors:
        reason = "bits differ and no noise floor was measured: give --floor or --reference"
    elif verdict.values.unknown:
        reason = f"{verdict.values.unknown:,} outputs have no noise floor"
    elif verdict.blind_modules or verdict.blind > MOST_BLIND * verdict.paired:
        reason = f"the noise floor of {verdict.blind:,} outputs is so large that any change would pass"
    else:
        return "within noise", f"no output is beyond {BEYOND:g} times the measured floor"
    return "undecided", reason


def _level(recording: Recording) -> str:
    level = str(recording.meta.get("level", "op"))
    return level if level in LEVELS else "op"


def _is_at(row: Row, level: str) -> bool:
    """Whether a recording at `level` has this row."""
    if level == "op":
        return True
    return row.kind not in ("op", "comm") and (level == "module" or row.kind != "module" or row.module == "")


def _steadied(pairs: Sequence[_Pair]) -> None:
    """Floors that a lucky draw cannot make too low: few recordings of one number may all lie close to A.

    An output of few elements has at least the median floor; norms, which are one number each, at least the
    floor of the elements, which bounds the change of the L2 norm.
    """
    known_floors = [p.floors[0] for p in pairs if not math.isnan(p.floors[0])]
    of_few = max(median(known_floors), LEAST) if known_floors else LEAST
    for p in pairs:
        # Of NaN and a number `max` gives its first argument.
        p.floors[0] = max(p.floors[0], of_few if len(p.a.sample) < FEW else LEAST)
        p.floors[1:] = [max(floor, p.floors[0]) for floor in p.floors[1:]]


def _differences(a: Row, b: Row) -> list[float]:
    """Of elements, L2 norm and largest magnitude. Elements: the larger of what the sampled ones and the sums
    of all under random signs say, else the norm."""
    norm, largest = relative((a.l2,), (b.l2,)), relative((a.absmax,), (b.absmax,))
    sampled = relative(a.sample, b.sample) if a.sample_at == b.sample_at else math.nan
    elements = [value for value in (sampled, moved(a, b)) if not math.isnan(value)]
    return [max(elements, default=norm), norm, largest]


class _Pair(NamedTuple):
    """Two rows; how far they are apart and their floors, by elements, L2 norm and largest magnitude."""

    a: Row
    b: Row
    differences: list[float]
    floors: list[float]  # NaN: unknown
    bits_equal: bool | None  # None: another precision or checksum

    @property
    def counts_differ(self) -> bool:
        return (self.a.nan, self.a.inf) != (self.b.nan, self.b.inf)

    @property
    def is_over(self) -> bool:
        return any(x > BEYOND * floor for x, floor in zip(self.differences, self.floors, strict=True))

    @property
    def is_beyond(self) -> bool:
        return (self.is_over or self.counts_differ) and not self.bits_equal

    @property
    def holds_nan(self) -> bool:
        return bool(self.a.nan or self.a.inf) and bool(self.b.nan or self.b.inf)

    @property
    def place(self) -> Place:
        relative, floor = self.differences[0], self.floors[0]
        return place_of(
            Place,
            self.a,
            op_b="" if self.a.op == self.b.op else self.b.op,
            bits_equal=self.bits_equal,
            relative=_finite(relative),
            floor=_finite(floor),
            ratio=_finite(relative / floor),
        )


def _measured(
    rows: Sequence[tuple[Row, Row]], is_comparable: bool, floors: Sequence[Recording]
) -> list[_Pair]:
    pairs = []
    for a, b in rows:
        bits_equal = same_bits(a, b) if is_comparable and a.dtype == b.dtype else None
        pairs.append(_Pair(a, b, _differences(a, b), [math.nan] * 3, bits_equal))
    for floor in floors:
        for k, j in pair([a for a, _ in rows], floor.rows).matched:
            a, b = pairs[k].a, floor.rows[j]
            if EPS.get(b.dtype, 0.0) <= EPS.get(a.dtype, 0.0):
                for index, difference in enumerate(_differences(a, b)):
                    if math.isfinite(difference):
                        pairs[k].floors[index] = max(difference, pairs[k].floors[index])
    _steadied(pairs)
    return pairs


def _counted(pairs: Sequence[_Pair], level: str, floors: int) -> Verdict:
    """What the paired outputs say, without an outcome yet."""
    precisions = {
        f"{p.a.dtype} against {p.b.dtype}"
        for p in pairs
        if p.a.dtype != p.b.dtype and {p.a.dtype, p.b.dtype} <= set(FLOATS)
    }
    unequal = [p for p in pairs if not p.bits_equal]
    differ = [p for p in unequal if p.bits_equal is False]
    on_equal_inputs = [p for p in differ if p.a.kind == "op" and p.a.in_ck and p.a.in_ck == p.b.in_ck]
    beyond = [p for p in pairs if (p.counts_differ if precisions else p.is_beyond)]
    blind = [p for p in unequal if p.floors[0] > BLIND]
    ratios = [p.differences[0] / p.floors[0] for p in pairs if not math.isnan(p.floors[0])]
    need = any if precisions else all
    return Verdict(
        outcome="",
        reason="",
        level=level,
        precision="; ".join(sorted(precisions)) or "equal",
        paired=len(pairs),
        bits=Bits(
            sum(p.bits_equal is not None for p in pairs), len(differ), differ[0].place if differ else None
        ),
        values=Values(
            floors=floors,
            unknown=len(pairs) - len(ratios),
            beyond=len(beyond),
            largest_ratio=_finite(max(ratios)) if ratios else None,
            first_place=_explained(beyond[0]) if beyond else None,
        ),
        made_by=_made_by(pairs, bool(precisions))[:LISTED],
        on_equal_inputs=[p.place for p in on_equal_inputs[:LISTED]],
        modules=[p.place for p in unequal if p.a.kind == "module"][:LISTED],
        grads=[p.place for p in unequal if p.a.kind == "grad"][:LISTED],
        samples=max((len(p.a.sample) for p in pairs), default=0),
        ops=sum(p.a.kind == "op" for p in pairs),
        with_own_error=sum(need(row.local_rel is not None for row in (p.a, p.b)) for p in pairs),
        renamed=sum(_is_renamed(p.a, p.b) for p in pairs),
        masked=sum(p.holds_nan and not p.is_beyond for p in unequal),
        not_finite=sum(p.holds_nan for p in pairs),
        blind=len(blind),
        # A gradient may be nothing but noise by nature.
        blind_modules=sum(p.a.kind == "module" and p.a.phase == "fwd" for p in blind),
    )


def _explained(beyond: _Pair) -> Place:
    """The place of a pair that is beyond, and by what."""
    a, b, place = beyond.a, beyond.b, beyond.place
    if beyond.counts_differ:
        place.explanation = f"{a.nan:,} NaN and {a.inf:,} infinities in A, {b.nan:,} and {b.inf:,} in B"
    elif not beyond.differences[0] > BEYOND * beyond.floors[0]:
        place.explanation = "in the norm of all elements or the largest one, not in single ones"
    return place


def _made_by(pairs: Sequence[_Pair], has_other_precision: bool) -> list[Place]:
    """Ops whose own error is far beyond that of their peers in the other run, at another precision of
    their peers in the same one."""
    a, b = [p.a for p in pairs], [p.b for p in pairs]
    peers = ((a,), (b,)) if has_other_precision else ((b, b), (a, a))
    of_a, of_b = own_ratios(a, *peers[0]), own_ratios(b, *peers[1])
    places = []
    for outputs, ratio_a, ratio_b in zip(pairs, of_a, of_b, strict=True):
        if max(ratio_a, ratio_b) > OWN:
            place = outputs.place
            place.side = "A" if ratio_a > ratio_b else "B"
            place.own_error = (outputs.a if place.side == "A" else outputs.b).local_rel
            place.own_ratio = max(ratio_a, ratio_b)
            places.append(place)
    return places


def _is_renamed(a: Row, b: Row) -> bool:
    return a.module != b.module or (a.kind in ("weight", "grad") and a.op != b.op)


def _name(row: Row) -> str:
    return f"{row.i} {row.kind} {row.op} {row.module} {list(row.shape)}".replace("  ", " ")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
