"""The verdict over two recordings: by bits, by values against a measured floor, and by who made the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from lab.compare.same.numbers import (
    EPS,
    FLOATS,
    LEAST,
    change,
    local_ratio,
    moved,
    relative,
    samples_of,
    ulps,
)
from lab.compare.same.pairs import Pairs, pair
from lab.errors import UsageError
from lab.workload.recorder.format import Recording, Row, same_bits

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


class Place(msgspec.Struct, kw_only=True):
    """A pair of outputs. ratio: relative over floor, None without a floor.

    own: the op's error against float64 on the inputs it got; own_ratio: over its peers'.
    """

    i: int
    kind: str
    op: str
    op_b: str
    out: int
    phase: str
    module: str
    node: str
    shape: tuple[int, ...]
    bits_equal: bool | None  # None: another precision or checksum
    relative: float | None  # None: not finite on one side
    ulps: float | None
    floor: float | None
    ratio: float | None
    explanation: str = msgspec.field(default="", name="why")
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
    unwritten: dict[str, dict[str, int]] = {}  # by run, then by name: outputs that their op need not write


class _Columns(NamedTuple):
    """Per pair (n,): differences, floors (NaN: unknown), and whether bits are equal (1, 0; -1: unknown)."""

    rel: np.ndarray
    floor: np.ndarray
    beyond: np.ndarray
    bits: np.ndarray


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
    if reference and not _mostly_float64(reference):
        raise UsageError(
            f"{reference.path} is not in float64", fix="record model.double() on the same inputs"
        )
    if reference:
        _check_start(a, reference, "the reference", ulps_apart=0.5)
    level = min((_level(a), _level(b), level), key=LEVELS.index)
    rows_a, rows_b = _at(a, level), _at(b, level)
    pairs = pair([a.rows[k] for k in rows_a], [b.rows[k] for k in rows_b])
    at_a, at_b = rows_a[pairs.a], rows_b[pairs.b]
    used = [*floors, *([reference] if reference else [])]
    columns = _columns(a, b, at_a, at_b, used)
    used_a, used_b = [a.rows[k] for k in at_a], [b.rows[k] for k in at_b]
    places = _Places(used_a, used_b, samples_of(used_a), samples_of(used_b), columns)
    verdict = _verdict(places, used_a, used_b, columns, len(used))
    verdict.level = level
    verdict.only_a = [_name(a.rows[rows_a[k]]) for k in pairs.only_a[:LISTED]]
    verdict.only_b = [_name(b.rows[rows_b[k]]) for k in pairs.only_b[:LISTED]]
    verdict.n_only_a, verdict.n_only_b = len(pairs.only_a), len(pairs.only_b)
    if level == "op":
        verdict.unwritten = {
            name: recording.unwritten for name, recording in (("A", a), ("B", b)) if recording.unwritten
        }
    verdict.problems = [
        f"{recording.path.name}: {lack}" for recording in (a, b, *used) for lack in recording.lacks
    ]
    verdict.outcome, verdict.reason = _outcome(verdict, pairs, len(rows_a), len(rows_b))
    return verdict


def _verdict(
    places: _Places, rows_a: Sequence[Row], rows_b: Sequence[Row], columns: _Columns, floors: int
) -> Verdict:
    """What the paired outputs say, without an outcome yet. floors: recordings that the floor rests on."""
    types = {(x.dtype, y.dtype) for x, y in zip(rows_a, rows_b, strict=True) if _other(x, y)}
    precisions = sorted(" against ".join(both) for both in types)
    not_finite = _not_finite(rows_a, rows_b)
    blind = (np.nan_to_num(columns.floor) > BLIND) & (columns.bits != 1)
    return Verdict(
        outcome="",
        reason="",
        level="",
        precision="; ".join(precisions) or "equal",
        paired=len(rows_a),
        bits=Bits(
            int((columns.bits >= 0).sum()), int((columns.bits == 0).sum()), places.first(columns.bits == 0)
        ),
        values=_values(
            places, columns, _counts_differ(rows_a, rows_b) if precisions else columns.beyond, floors
        ),
        made_by=places.made_by(_own_errors(rows_a, rows_b, bool(precisions)))[:LISTED],
        on_equal_inputs=places.on_equal_inputs()[:LISTED],
        modules=places.of_kind("module")[:LISTED],
        grads=places.of_kind("grad")[:LISTED],
        samples=int(max((len(row.sample) for row in rows_a), default=0)),
        ops=sum(row.kind == "op" for row in rows_a),
        with_own_error=_with_own_error(rows_a, rows_b, bool(precisions)),
        renamed=sum(map(_has_other_name, rows_a, rows_b)),
        masked=int((not_finite & (columns.bits != 1) & ~columns.beyond).sum()),
        not_finite=int(not_finite.sum()),
        blind=int(blind.sum()),
        blind_modules=sum(
            row.kind == "module" and row.phase == "fwd"  # a gradient may be nothing but noise by nature
            for row, is_blind in zip(rows_a, blind.tolist(), strict=True)
            if is_blind
        ),
    )


def _values(places: _Places, columns: _Columns, beyond: np.ndarray, floors: int) -> Values:
    """beyond (n,): the pairs that no noise explains."""
    has_floor = ~np.isnan(columns.floor)
    ratio = columns.rel[has_floor] / columns.floor[has_floor]
    rows = np.flatnonzero(beyond).tolist()
    return Values(
        floors=floors,
        unknown=int((~has_floor).sum()),
        beyond=len(rows),
        largest_ratio=_finite(ratio.max()) if len(ratio) else None,
        first_place=places.at(rows[0], places.why(rows[0])) if rows else None,
    )


def _not_finite(a: Sequence[Row], b: Sequence[Row]) -> np.ndarray:
    """Pairs (n,) with NaN or infinity in both runs."""
    flags = [bool(x.nan or x.inf) and bool(y.nan or y.inf) for x, y in zip(a, b, strict=True)]
    return np.array(flags, dtype=bool)


def _has_other_name(a: Row, b: Row) -> bool:
    return a.module != b.module or (a.kind in ("weight", "grad") and a.op != b.op)


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


def _check_start(a: Recording, recording: Recording, name: str, *, ulps_apart: float) -> None:
    """Refuse other inputs or weights: then everything differs, and as a floor would call everything noise.

    ulps_apart: how far weights may be from A's; 0.5 for a reference, which has A's values in float64.
    """
    for kind in ("input", "weight"):
        rows, started = (
            [row for row in run.rows if row.kind == kind and (kind == "input" or row.dtype in FLOATS)]
            for run in (a, recording)
        )
        if not rows or not started:
            continue
        apart = [
            x.op
            for x, y in zip(rows, started, strict=False)
            if not (_near_weight(x, y, ulps_apart) if kind == "weight" else _near_input(x, y))
        ]
        if apart or len(rows) != len(started):
            example = f" (first: {apart[0]})" if apart else ""
            raise UsageError(
                f"{name} {recording.path} was recorded with other {kind}s than A{example}",
                fix="record the model of A on the same batch: a floor inside lab.same.nudged, a reference as "
                "model.double()",
            )


def _values_of(row: Row) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in row.sample], dtype=float)


def _near_input(a: Row, b: Row) -> bool:
    """Bit by bit; the same values in another type."""
    if a.shape != b.shape or a.dtype == b.dtype:
        return a.shape == b.shape and a.ck == b.ck
    near = EPS.get(a.dtype, 0.0)
    return np.allclose(_values_of(a), _values_of(b), rtol=near, atol=0.0, equal_nan=True)


def _near_weight(a: Row, b: Row, ulps_apart: float) -> bool:
    """Whether sampled elements differ by so many ULPs at most, and sums of all by no more than follows."""
    near = 2 * ulps_apart * EPS[a.dtype]
    if a.shape != b.shape or a.sample_at != b.sample_at:
        return False
    close = np.allclose(_values_of(a), _values_of(b), rtol=1.01 * near, atol=TINIEST[a.dtype], equal_nan=True)
    return close and not moved([a], [b])[0] > 8 * near + TINIEST[a.dtype]


def _check_draws(a: Recording, floor: Recording) -> None:
    """Raise UsageError for other random numbers, which are not rounding: of draws that nothing before them
    could change."""
    pairs = pair(a.rows, floor.rows)
    for k, j in zip(pairs.a.tolist(), pairs.b.tolist(), strict=True):
        row, partner = a.rows[k], floor.rows[j]
        if any(word in row.op for word in RANDOM) and _shown_apart(row, partner):
            raise UsageError(
                f"the floor {floor.path} drew other random numbers than A (first: {row.op})",
                fix="seed both runs alike: torch.manual_seed before each recording",
            )


def _shown_apart(a: Row, b: Row) -> bool:
    """Whether a draw differs by more than its inputs' rounding could: by a thousandth of its norm."""
    if a.sample_at != b.sample_at or not a.sample or a.ck == b.ck:
        return False
    return bool(relative(_values_of(a)[None], _values_of(b)[None])[0] > NOT_ROUNDING)


def _mostly_float64(recording: Recording) -> bool:
    types = [row.dtype for row in recording.rows if row.dtype in FLOATS]
    return 2 * types.count("float64") > len(types)


def _outcome(verdict: Verdict, pairs: Pairs, rows_a: int, rows_b: int) -> tuple[str, str]:
    """The outcome and why; what was not seen is never an all-clear."""
    if verdict.paired < PAIRED * max(rows_a, rows_b):
        return "not comparable", f"{verdict.paired:,} of {rows_a:,} and {rows_b:,} outputs have a partner"
    place = verdict.bits.first_place
    if place and any(word in place.op for word in RANDOM) and not verdict.made_by:
        return "undecided", f"the first that differs is random ({place.op}): seed both runs alike"
    if verdict.values.beyond or verdict.made_by:
        return "differs", "an output is beyond the noise floor, or an op's own error beyond its peers'"
    unseen = [*verdict.problems]
    if pairs.only_a or pairs.only_b:
        unseen.append(f"{len(pairs.only_a):,} outputs of A and {len(pairs.only_b):,} of B have no partner")
    if unseen:
        return "undecided", "; ".join(unseen)
    if verdict.bits.compared == verdict.paired and not verdict.bits.differ:
        return (
            "same bits",
            f"every output{' that is written' if verdict.unwritten else ''} is equal bit by bit",
        )
    if verdict.masked:
        return (
            "undecided",
            f"{verdict.masked:,} outputs hold NaN or infinity in both runs and differ in bits: norms, which "
            "would show how much, say nothing of them",
        )
    if verdict.precision != "equal":
        return (
            "undecided",
            f"other precision ({verdict.precision}): no op's own error stands out among its peers",
        )
    if not verdict.values.floors:
        return "undecided", "bits differ and no noise floor was measured: give --floor or --reference"
    if verdict.values.unknown:
        return "undecided", f"{verdict.values.unknown:,} outputs have no noise floor"
    if verdict.blind_modules or verdict.blind > MOST_BLIND * verdict.paired:
        return (
            "undecided",
            f"the noise floor of {verdict.blind:,} outputs is so large that any change would pass",
        )
    return "within noise", f"no output is beyond {BEYOND:g} times the measured floor"


def _level(recording: Recording) -> str:
    level = str(recording.meta.get("level", "op"))
    return level if level in LEVELS else "op"


def _at(recording: Recording, level: str) -> np.ndarray:
    """The rows of a recording that a recording at `level` has too."""
    if level == "op":
        return np.arange(len(recording.rows))
    keep = [
        row.kind not in ("op", "comm") and (level == "module" or row.kind != "module" or row.module == "")
        for row in recording.rows
    ]
    return np.flatnonzero(keep)


def _columns(
    a: Recording, b: Recording, at_a: np.ndarray, at_b: np.ndarray, floors: Sequence[Recording]
) -> _Columns:
    used_a, used_b = [a.rows[k] for k in at_a], [b.rows[k] for k in at_b]
    differences = _differences(used_a, used_b)
    limits = [np.full(len(at_a), np.nan) for _ in differences]
    for floor in floors:
        pairs = pair(used_a, floor.rows)
        paired_a = [used_a[k] for k in pairs.a]
        paired_b = [floor.rows[k] for k in pairs.b]
        of_floor = _differences(paired_a, paired_b)
        coarser = [
            EPS.get(y.dtype, 0.0) > EPS.get(x.dtype, 0.0) for x, y in zip(paired_a, paired_b, strict=True)
        ]
        for limit, difference in zip(limits, of_floor, strict=True):
            usable = np.isfinite(difference) & ~np.array(coarser, dtype=bool)
            limit[pairs.a] = np.fmax(limit[pairs.a], np.where(usable, difference, np.nan))
    limits = _steadied(limits, np.array([len(row.sample) for row in used_a]))
    over = [d > BEYOND * limit for d, limit in zip(differences, limits, strict=True)]  # False without a floor
    beyond = np.logical_or.reduce(over) | _counts_differ(used_a, used_b)
    comparable = a.checksum == b.checksum
    alike = [comparable and x.dtype == y.dtype for x, y in zip(used_a, used_b, strict=True)]
    equal = np.array([same_bits(x, y) for x, y in zip(used_a, used_b, strict=True)], dtype=np.int64)
    bits = np.where(np.array(alike, dtype=bool), equal, -1)
    return _Columns(differences[0], limits[0], beyond & (bits != 1), bits)


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


def _counts_differ(a: Sequence[Row], b: Sequence[Row]) -> np.ndarray:
    return np.array([(x.nan, x.inf) != (y.nan, y.inf) for x, y in zip(a, b, strict=True)], dtype=bool)


def _other(a: Row, b: Row) -> bool:
    return a.dtype != b.dtype and a.dtype in FLOATS and b.dtype in FLOATS


def _own_errors(a: Sequence[Row], b: Sequence[Row], other_precision: bool) -> tuple[np.ndarray, np.ndarray]:
    """For A and for B each op's own error over its peers' in the other run; at another precision its own."""
    return (
        (local_ratio(a, a), local_ratio(b, b))
        if other_precision
        else (local_ratio(a, b, b), local_ratio(b, a, a))
    )


def _with_own_error(a: Sequence[Row], b: Sequence[Row], other_precision: bool) -> int:
    need = any if other_precision else all
    return sum(need(row.local_rel is not None for row in rows) for rows in zip(a, b, strict=True))


class _Places:
    """Pairs as rows of the verdict."""

    def __init__(
        self, a: Sequence[Row], b: Sequence[Row], at_a: np.ndarray, at_b: np.ndarray, columns: _Columns
    ) -> None:
        self._a, self._b, self._at_a, self._at_b, self._columns = a, b, at_a, at_b, columns

    def at(self, index: int, explanation: str = "") -> Place:
        a, b, columns = self._a[index], self._b[index], self._columns
        floor = columns.floor[index]
        alike = a.dtype == b.dtype and a.sample_at == b.sample_at
        steps = ulps(*_of_size(self._at_a[index], self._at_b[index]), a.dtype) if alike else np.nan
        return Place(
            i=a.i,
            kind=a.kind,
            op=a.op,
            op_b="" if a.op == b.op else b.op,
            out=a.out,
            phase=a.phase,
            module=a.module,
            node=a.node,
            shape=a.shape,
            bits_equal=None if columns.bits[index] < 0 else bool(columns.bits[index]),
            relative=_finite(columns.rel[index]),
            ulps=_finite(steps),
            floor=_finite(floor),
            ratio=_finite(columns.rel[index] / floor),
            explanation=explanation,
        )

    def first(self, mask: np.ndarray) -> Place | None:
        rows = np.flatnonzero(mask)
        return self.at(int(rows[0])) if len(rows) else None

    def why(self, index: int) -> str:
        a, b = self._a[index], self._b[index]
        if (a.nan, a.inf) != (b.nan, b.inf):
            return f"{a.nan:,} NaN and {a.inf:,} infinities in A, {b.nan:,} and {b.inf:,} in B"
        over = self._columns.rel[index] > BEYOND * self._columns.floor[index]
        return "" if over else "in the norm of all elements or the largest one, not in single ones"

    def made_by(self, ratios: tuple[np.ndarray, np.ndarray]) -> list[Place]:
        places = []
        for index in np.flatnonzero((ratios[0] > OWN) | (ratios[1] > OWN)).tolist():
            side = "B" if np.nan_to_num(ratios[1][index]) >= np.nan_to_num(ratios[0][index]) else "A"
            row = (self._a if side == "A" else self._b)[index]
            place = self.at(index)
            place.own_error, place.side = row.local_rel, side
            place.own_ratio = _finite(ratios[side == "B"][index])
            places.append(place)
        return places

    def on_equal_inputs(self) -> list[Place]:
        pairs = zip(self._a, self._b, self._columns.bits, strict=True)
        return [
            self.at(index)
            for index, (a, b, equal) in enumerate(pairs)
            if equal == 0 and a.kind == "op" and a.in_ck and a.in_ck == b.in_ck
        ]

    def of_kind(self, kind: str) -> list[Place]:
        """Outputs of one kind whose bits are not known to be equal."""
        bits = self._columns.bits
        return [self.at(k) for k, row in enumerate(self._a) if row.kind == kind and bits[k] != 1]


def _of_size(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The elements whose ULPs mean something: of one sign, and not far below the RMS of their output."""
    # Far below the RMS an element is what a cancellation left: its ULPs say nothing.
    size = np.abs(a)
    keep = (size >= np.sqrt(np.nanmean(np.square(a))) / 16 if np.isfinite(a).any() else size < 0) & (
        a * b >= 0
    )
    return a[keep], b[keep]


def _name(row: Row) -> str:
    return f"{row.i} {row.kind} {row.op} {row.module} {list(row.shape)}".replace("  ", " ")


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
