"""The verdict over two recordings: by bits, by values against a measured floor, and by who made the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from lab.compare.same.pairs import EPS, FLOATS, LEAST, change, moved, own_ratios, pair, relative, samples_of
from lab.compare.same.places import Place as PlaceOfRow
from lab.compare.same.places import place_of, same_bits
from lab.core.words import first_few
from lab.errors import UsageError
from lab.workload.recorder.format import Recording, Row

BEYOND = 10.0  # times the floor
FEW = 8  # sampled elements, below which an output's own floor is a matter of luck
OWN = 50.0  # times the peers' own error; the worst of equal runs was 1.9
PAIRED = 0.5  # the share of A's rows that must have a partner
LISTED = 2000  # rows in the JSON; the counts are of all
# What draws random numbers, by its name: torch, in A's first differing output.
RANDOM = ("bernoulli", "dropout", "rand", "aten.normal", "uniform", "multinomial", "exponential", "philox")
BLIND = 0.05  # a floor of which ten times is half of the output: nothing could be seen
MOST_BLIND = 0.1  # the share of such outputs that a verdict bears
# The smallest subnormal per dtype, near which an ulp is not a share.
TINIEST = {"float64": 1e-300, "float32": 1e-37, "float16": 6e-8, "bfloat16": 1e-37}
NOT_ROUNDING = 1e-3  # relative: two draws of random numbers, not rounding
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

    level: of LEVELS, the most that is compared; what a recording does not have is not.

    Raises UsageError for a floor of another precision than A or without any noise, and for a reference that
    is not in float64.
    """
    for floor in floors:
        _check_floor(a, floor)
    if reference:
        _check_reference(a, reference)
    level = min((_level(a), _level(b), level), key=LEVELS.index)
    rows_a, rows_b = ([row for row in recording.rows if _is_at(row, level)] for recording in (a, b))
    both, only_a, only_b = pair(rows_a, rows_b)
    used = [*floors, *([reference] if reference else [])]
    pairs = _measured([(rows_a[k], rows_b[j]) for k, j in both], a.checksum == b.checksum, used)
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


def _check_floor(a: Recording, floor: Recording) -> None:
    """A floor of lower precision would call everything noise."""
    types, floor_types = ({row.dtype for row in one.rows if row.dtype in FLOATS} for one in (a, floor))
    if types != floor_types:
        precisions = f"{', '.join(sorted(floor_types))}, A in {', '.join(sorted(types))}"
        raise UsageError(
            f"the floor {floor.path} is in {precisions}", fix="record the same model with nudged weights"
        )
    if [row.ck for row in a.rows] == [row.ck for row in floor.rows]:
        raise UsageError(
            f"the floor {floor.path} equals A bit by bit: it shows no noise",
            fix="record it inside lab.same.nudged",
        )
    _check_start(a, floor, "the floor", ulps_apart=1.0)
    _check_draws(a, floor)


def _check_reference(a: Recording, reference: Recording) -> None:
    types = [row.dtype for row in reference.rows if row.dtype in FLOATS]
    if 2 * types.count("float64") <= len(types):
        raise UsageError(
            f"{reference.path} is not in float64", fix="record model.double() on the same inputs"
        )
    _check_start(a, reference, "the reference", ulps_apart=0.5)  # it has A's values in float64


def _check_start(a: Recording, recording: Recording, name: str, *, ulps_apart: float) -> None:
    """Refuse other inputs or weights: then everything differs, and as a floor would call everything noise."""
    for kind in ("input", "weight"):
        rows, started = (
            [row for row in run.rows if row.kind == kind and (kind == "input" or row.dtype in FLOATS)]
            for run in (a, recording)
        )
        apart = [x.op for x, y in zip(rows, started, strict=False) if not _is_near(x, y, ulps_apart)]
        if rows and started and (apart or len(rows) != len(started)):
            example = f" (first: {apart[0]})" if apart else ""
            raise UsageError(
                f"{name} {recording.path} was recorded with other {kind}s than A{example}",
                fix="record the model of A on the same batch: a floor inside lab.same.nudged, a reference as "
                "model.double()",
            )


def _is_near(a: Row, b: Row, ulps_apart: float) -> bool:
    """Inputs of one type bit by bit. Of weights, and of inputs in another type, sampled elements differ by so
    many ULPs at most, and sums of all by no more than follows."""
    if a.shape != b.shape or (a.kind == "input" and a.dtype == b.dtype):
        return a.shape == b.shape and a.ck == b.ck
    near, least_value = 2 * ulps_apart * EPS.get(a.dtype, 0.0), TINIEST.get(a.dtype, 0.0)
    samples = samples_of([a]), samples_of([b])
    is_close = np.allclose(*samples, rtol=1.01 * near, atol=least_value, equal_nan=True)
    return a.sample_at == b.sample_at and is_close and not moved([a], [b])[0] > 8 * near + least_value


def _check_draws(a: Recording, floor: Recording) -> None:
    """Raise UsageError for other random numbers, which are not rounding: of draws that nothing before them
    could change."""
    for k, j in pair(a.rows, floor.rows).both:
        row, partner = a.rows[k], floor.rows[j]
        is_draw = _is_random(row.op) and row.ck != partner.ck and row.sample
        if not is_draw or row.sample_at != partner.sample_at:
            continue
        if relative(samples_of([row]), samples_of([partner]))[0] > NOT_ROUNDING:
            raise UsageError(
                f"the floor {floor.path} drew other random numbers than A (first: {row.op})",
                fix="seed both runs alike: torch.manual_seed before each recording",
            )


def _is_random(op: str) -> bool:
    return any(word in op for word in RANDOM)


def _outcome(verdict: Verdict, rows_a: int, rows_b: int) -> tuple[str, str]:
    """The outcome and why; what was not seen is never an all-clear."""
    # Where a level has no rows, no output differs, and none was compared.
    if not verdict.paired or verdict.paired < PAIRED * max(rows_a, rows_b):
        return "not comparable", f"{verdict.paired:,} of {rows_a:,} and {rows_b:,} outputs have a partner"
    place = verdict.bits.first_place
    if place and _is_random(place.op) and not verdict.made_by:
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


def _steadied(limits: list[np.ndarray], sampled: np.ndarray) -> list[np.ndarray]:
    """Floors that a lucky draw cannot make too low: few recordings of one number may all lie close to A.

    An output of few elements has at least the median floor; norms, which are one number each, at least the
    floor of the elements, which bounds the change of the L2 norm.
    """
    elements, *norms = limits
    finite = elements[~np.isnan(elements)]
    of_few = max(float(np.median(finite)), LEAST) if len(finite) else LEAST
    smallest = np.where(sampled < FEW, of_few, LEAST)
    elements = np.where(np.isnan(elements), np.nan, np.fmax(elements, smallest))
    return [elements, *(np.where(np.isnan(norm), np.nan, np.fmax(norm, elements)) for norm in norms)]


def _differences(a: Sequence[Row], b: Sequence[Row]) -> list[np.ndarray]:
    """Differences of elements, L2 norm and largest magnitude (three columns (n,)). Elements: the larger of
    what the sampled ones and the sums of all under random signs say, else the norm."""
    elsewhere = [x.sample_at != y.sample_at for x, y in zip(a, b, strict=True)]
    sampled = np.where(elsewhere, np.nan, relative(samples_of(a), samples_of(b)))
    norms = change([x.l2 for x in a], [y.l2 for y in b])
    elements = np.fmax(sampled, moved(a, b))
    elements = np.where(np.isnan(elements), norms, elements)
    return [elements, norms, change([x.absmax for x in a], [y.absmax for y in b])]


class _Pair(NamedTuple):
    """Two rows; how far they are apart and their floors, by elements, L2 norm and largest magnitude."""

    a: Row
    b: Row
    differences: list[float]
    floors: list[float]  # NaN: not known
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
    a, b = [x for x, _ in rows], [y for _, y in rows]
    differences = _differences(a, b)
    limits = [np.full(len(a), np.nan) for _ in differences]
    for floor in floors:
        both = pair(a, floor.rows).both
        of_a, of_floor = [a[k] for k, _ in both], [floor.rows[j] for _, j in both]
        coarser = [EPS.get(y.dtype, 0.0) > EPS.get(x.dtype, 0.0) for x, y in zip(of_a, of_floor, strict=True)]
        numbers = np.array([k for k, _ in both], dtype=np.int64)
        for limit, difference in zip(limits, _differences(of_a, of_floor), strict=True):
            usable = np.where(np.isfinite(difference) & ~np.array(coarser, dtype=bool), difference, np.nan)
            limit[numbers] = np.fmax(limit[numbers], usable)
    limits = _steadied(limits, np.array([len(row.sample) for row in a]))
    columns = (np.stack(column, axis=1).tolist() for column in (differences, limits))
    return [
        _Pair(x, y, off, floor, same_bits(x, y) if is_comparable and x.dtype == y.dtype else None)
        for x, y, off, floor in zip(a, b, *columns, strict=True)
    ]


def _counted(pairs: Sequence[_Pair], level: str, floors: int) -> Verdict:
    """What the paired outputs say, without an outcome yet."""
    precisions = {
        f"{p.a.dtype} against {p.b.dtype}"
        for p in pairs
        if p.a.dtype != p.b.dtype and {p.a.dtype, p.b.dtype} <= set(FLOATS)
    }
    differ = [p for p in pairs if p.bits_equal is False]
    beyond = [p for p in pairs if (p.counts_differ if precisions else p.is_beyond)]
    blind = [p for p in pairs if p.floors[0] > BLIND and not p.bits_equal]
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
        on_equal_inputs=[
            p.place for p in differ if p.a.kind == "op" and p.a.in_ck and p.a.in_ck == p.b.in_ck
        ][:LISTED],
        modules=[p.place for p in pairs if p.a.kind == "module" and not p.bits_equal][:LISTED],
        grads=[p.place for p in pairs if p.a.kind == "grad" and not p.bits_equal][:LISTED],
        samples=max((len(p.a.sample) for p in pairs), default=0),
        ops=sum(p.a.kind == "op" for p in pairs),
        with_own_error=sum(need(row.local_rel is not None for row in (p.a, p.b)) for p in pairs),
        renamed=sum(_is_renamed(p.a, p.b) for p in pairs),
        masked=sum(p.holds_nan and not p.bits_equal and not p.is_beyond for p in pairs),
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
    for both, ratio_a, ratio_b in zip(pairs, of_a, of_b, strict=True):
        if max(ratio_a, ratio_b) > OWN:
            place = both.place
            place.side = "A" if ratio_a > ratio_b else "B"
            place.own_error = (both.a if place.side == "A" else both.b).local_rel
            place.own_ratio = max(ratio_a, ratio_b)
            places.append(place)
    return places


def _is_renamed(a: Row, b: Row) -> bool:
    return a.module != b.module or (a.kind in ("weight", "grad") and a.op != b.op)


def _name(row: Row) -> str:
    return f"{row.i} {row.kind} {row.op} {row.module} {list(row.shape)}".replace("  ", " ")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
