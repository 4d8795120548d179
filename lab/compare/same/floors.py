"""What a noise floor and a float64 reference must be: of another computation they would excuse anything."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from lab.compare.same.pairs import EPS, FLOATS, moved, pair, relative
from lab.errors import UsageError
from lab.workload.recorder.format import Recording, Row

# What draws random numbers, by its name: torch, in A's first differing output.
RANDOM = ("bernoulli", "dropout", "rand", "aten.normal", "uniform", "multinomial", "exponential", "philox")
# The smallest subnormal per dtype, near which an ulp is not a share.
TINIEST = {"float64": 1e-300, "float32": 1e-37, "float16": 6e-8, "bfloat16": 1e-37}
NOT_ROUNDING = 1e-3  # relative: two draws of random numbers, not rounding


def check_noise(a: Recording, floors: Sequence[Recording], reference: Recording | None) -> None:
    """Raises UsageError for a floor of another precision than A or without any noise, for a reference that is
    not in float64, and for other inputs, weights or random numbers than A's."""
    for floor in floors:
        _check_floor(a, floor)
    if reference:
        _check_reference(a, reference)


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
        rows, started = ([row for row in run.rows if _is_given(row, kind)] for run in (a, recording))
        apart = [x.op for x, y in zip(rows, started, strict=False) if not _is_near(x, y, ulps_apart)]
        if rows and started and (apart or len(rows) != len(started)):
            example = f" (first: {apart[0]})" if apart else ""
            raise UsageError(
                f"{name} {recording.path} was recorded with other {kind}s than A{example}",
                fix="record the model of A on the same batch: a floor inside lab.same.nudged, a reference as "
                "model.double()",
            )


def _is_given(row: Row, kind: str) -> bool:
    """Whether a row is of what a run began with; after an update weights differ by what noise makes of it."""
    return row.kind == kind and (kind == "input" or (row.dtype in FLOATS and row.phase != "update"))


def _is_near(a: Row, b: Row, ulps_apart: float) -> bool:
    """Inputs of one type bit by bit. Of weights, and of inputs in another type, sampled elements differ by so
    many ULPs at most, and sums of all by no more than follows."""
    if a.shape != b.shape or (a.kind == "input" and a.dtype == b.dtype):
        return a.shape == b.shape and a.ck == b.ck
    near, least_value = 2 * ulps_apart * EPS.get(a.dtype, 0.0), TINIEST.get(a.dtype, 0.0)
    is_close = all(
        x == y or (x is not None and y is not None and abs(x - y) <= least_value + 1.01 * near * abs(y))
        for x, y in zip(a.sample, b.sample, strict=False)
    )
    return a.sample_at == b.sample_at and is_close and not moved(a, b) > 8 * near + least_value


def _check_draws(a: Recording, floor: Recording) -> None:
    """Raise UsageError for other random numbers, which are not rounding: of draws that nothing before them
    could change."""
    for k, j in pair(a.rows, floor.rows).matched:
        row, partner = a.rows[k], floor.rows[j]
        is_draw = is_random(row.op) and row.ck != partner.ck and row.sample
        is_sampled_alike = row.sample_at == partner.sample_at
        if is_draw and is_sampled_alike and relative(row.sample, partner.sample) > NOT_ROUNDING:
            raise UsageError(
                f"the floor {floor.path} drew other random numbers than A (first: {row.op})",
                fix="seed both runs alike: torch.manual_seed before each recording",
            )


@functools.cache
def is_random(op: str) -> bool:
    return any(word in op for word in RANDOM)
