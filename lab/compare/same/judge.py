"""The verdict over two recordings: by bits, by values against a measured floor, and by who made the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from lab.compare.same.pairs import (
    EPS,
    FLOATS,
    LEAST,
    change,
    local_ratio,
    moved,
    pair,
    relative,
    samples_of,
)
from lab.core.words import first_few
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
OF_A = ("i", "kind", "op", "out", "phase", "module", "node", "shape")  # what a place has of A's row


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
    pairs = pair(rows_a, rows_b)
    used = [*floors, *([reference] if reference else [])]
    paired = _Paired(
        [rows_a[k] for k in pairs.a], [rows_b[k] for k in pairs.b], a.checksum == b.checksum, used
    )
    verdict = paired.verdict(level)
    verdict.only_a = [_name(rows_a[k]) for k in pairs.only_a[:LISTED]]
    verdict.only_b = [_name(rows_b[k]) for k in pairs.only_b[:LISTED]]
    verdict.n_only_a, verdict.n_only_b = len(pairs.only_a), len(pairs.only_b)
    if level == "op":
        sides = (("A", a), ("B", b))
        verdict.unwritten = {name: recording.unwritten for name, recording in sides if recording.unwritten}
    verdict.notes = [f"{name}: {note}" for name, run in (("A", a), ("B", b)) for note in run.notes]
    verdict.problems = [
        f"{recording.path.name}: {lack}" for recording in (a, b, *used) for lack in recording.lacks
    ]
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
    pairs = pair(a.rows, floor.rows)
    for k, j in zip(pairs.a.tolist(), pairs.b.tolist(), strict=True):
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


class _Paired:
    """The paired rows of two runs, and per pair (n,): the difference of elements, its floor (NaN: not known),
    whether it is beyond, and whether bits are equal (1, 0; -1: of another type or checksum)."""

    def __init__(
        self, a: Sequence[Row], b: Sequence[Row], is_comparable: bool, floors: Sequence[Recording]
    ) -> None:
        self.a, self.b, self.floors = a, b, len(floors)
        differences = _differences(a, b)
        limits = [np.full(len(a), np.nan) for _ in differences]
        for floor in floors:
            pairs = pair(a, floor.rows)
            of_a, of_floor = [a[k] for k in pairs.a], [floor.rows[k] for k in pairs.b]
            eps_a, eps_floor = (
                np.array([EPS.get(row.dtype, 0.0) for row in rows]) for rows in (of_a, of_floor)
            )
            for limit, difference in zip(limits, _differences(of_a, of_floor), strict=True):
                usable = np.where(np.isfinite(difference) & (eps_floor <= eps_a), difference, np.nan)
                limit[pairs.a] = np.fmax(limit[pairs.a], usable)
        limits = _steadied(limits, np.array([len(row.sample) for row in a]))
        over = [d > BEYOND * limit for d, limit in zip(differences, limits, strict=True)]  # False: no floor
        self.relative, self.floor = differences[0], limits[0]
        self.counts_differ = self._where(lambda x, y: (x.nan, x.inf) != (y.nan, y.inf))
        equal = self._where(same_bits).astype(np.int64)
        self.bits = np.where(self._where(lambda x, y: is_comparable and x.dtype == y.dtype), equal, -1)
        self.beyond = (np.logical_or.reduce(over) | self.counts_differ) & (self.bits != 1)

    def _where(self, rule: Callable[[Row, Row], bool]) -> np.ndarray:
        """The pairs (n,) of which it holds."""
        return np.array([rule(x, y) for x, y in zip(self.a, self.b, strict=True)], dtype=bool)

    def verdict(self, level: str) -> Verdict:
        """What the paired outputs say, without an outcome yet."""
        a, b = self.a, self.b
        precisions = {
            f"{x.dtype} against {y.dtype}"
            for x, y in zip(a, b, strict=True)
            if x.dtype != y.dtype and {x.dtype, y.dtype} <= set(FLOATS)
        }
        not_finite = self._where(lambda x, y: bool(x.nan or x.inf) and bool(y.nan or y.inf))
        has_floor = ~np.isnan(self.floor)
        is_blind = (np.nan_to_num(self.floor) > BLIND) & (self.bits != 1)
        # A gradient may be nothing but noise by nature.
        is_output = self._where(lambda x, _: x.kind == "module" and x.phase == "fwd")
        on_equal_inputs = self._where(
            lambda x, y: x.kind == "op" and bool(x.in_ck) and x.in_ck == y.in_ck
        ) & (self.bits == 0)
        ratio = self.relative[has_floor] / self.floor[has_floor]
        beyond = np.flatnonzero(self.counts_differ if precisions else self.beyond).tolist()
        differ = np.flatnonzero(self.bits == 0).tolist()
        need = any if precisions else all
        has_own_error = self._where(lambda x, y: need(row.local_rel is not None for row in (x, y)))
        return Verdict(
            outcome="",
            reason="",
            level=level,
            precision="; ".join(sorted(precisions)) or "equal",
            paired=len(a),
            bits=Bits(int((self.bits >= 0).sum()), len(differ), self.place(differ[0]) if differ else None),
            values=Values(
                floors=self.floors,
                unknown=int((~has_floor).sum()),
                beyond=len(beyond),
                largest_ratio=_finite(ratio.max()) if len(ratio) else None,
                first_place=self.place(beyond[0], self.why(beyond[0])) if beyond else None,
            ),
            made_by=self.made_by(bool(precisions))[:LISTED],
            on_equal_inputs=self.places(on_equal_inputs),
            modules=self.places(self._where(lambda x, _: x.kind == "module") & (self.bits != 1)),
            grads=self.places(self._where(lambda x, _: x.kind == "grad") & (self.bits != 1)),
            samples=max((len(row.sample) for row in a), default=0),
            ops=sum(row.kind == "op" for row in a),
            with_own_error=int(has_own_error.sum()),
            renamed=int(self._where(_is_renamed).sum()),
            masked=int((not_finite & (self.bits != 1) & ~self.beyond).sum()),
            not_finite=int(not_finite.sum()),
            blind=int(is_blind.sum()),
            blind_modules=int((is_blind & is_output).sum()),
        )

    def places(self, mask: np.ndarray) -> list[Place]:
        return [self.place(index) for index in np.flatnonzero(mask)[:LISTED].tolist()]

    def place(self, index: int, explanation: str = "") -> Place:
        row, partner = self.a[index], self.b[index]
        same: dict[str, Any] = {name: getattr(row, name) for name in OF_A}
        return Place(
            **same,
            op_b="" if row.op == partner.op else partner.op,
            bits_equal=None if self.bits[index] < 0 else bool(self.bits[index]),
            relative=_finite(self.relative[index]),
            floor=_finite(self.floor[index]),
            ratio=_finite(self.relative[index] / self.floor[index]),
            explanation=explanation,
        )

    def why(self, index: int) -> str:
        a, b = self.a[index], self.b[index]
        if (a.nan, a.inf) != (b.nan, b.inf):
            return f"{a.nan:,} NaN and {a.inf:,} infinities in A, {b.nan:,} and {b.inf:,} in B"
        over = self.relative[index] > BEYOND * self.floor[index]
        return "" if over else "in the norm of all elements or the largest one, not in single ones"

    def made_by(self, other_precision: bool) -> list[Place]:
        """Ops whose own error is far beyond that of their peers in the other run, at another precision of
        their peers in the same one."""
        a, b = self.a, self.b
        ratios = (
            {"A": local_ratio(a, a), "B": local_ratio(b, b)}
            if other_precision
            else {"A": local_ratio(a, b, b), "B": local_ratio(b, a, a)}
        )
        places = []
        for index in np.flatnonzero((ratios["A"] > OWN) | (ratios["B"] > OWN)).tolist():
            place = self.place(index)
            place.side = max("BA", key=lambda side: np.nan_to_num(ratios[side][index]))
            place.own_error = (a if place.side == "A" else b)[index].local_rel
            place.own_ratio = _finite(ratios[place.side][index])
            places.append(place)
        return places


def _is_renamed(a: Row, b: Row) -> bool:
    return a.module != b.module or (a.kind in ("weight", "grad") and a.op != b.op)


def _name(row: Row) -> str:
    return f"{row.i} {row.kind} {row.op} {row.module} {list(row.shape)}".replace("  ", " ")


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
