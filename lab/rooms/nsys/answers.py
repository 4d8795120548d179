"""Questions a to e, answered from a cell's tables; every answer carries checks that could have failed.

A check that cannot be made (no model known, no twin) is `not checked` with its reason: it is neither passed nor failed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from lab.rooms.nsys import flops
from lab.rooms.nsys.analyze import (
    FINAL,
    PARTS,
    PHASES,
    SCORES,
    SOFTMAX,
    STEP,
    CellTables,
    Recording,
    of_phase,
)
from lab.rooms.nsys.layout import Found, Told

AGREE = 0.05  # two clocks agree when they differ by less
NOTABLE_PERCENT = 1.0
NOT_MATMUL = ("gemm", "gemv")
OK, FAILED, OPEN = "ok", "failed", "not checked"


@dataclass(frozen=True)
class Check:
    """What was expected, what was found, and whether that is the same (`ok`, `failed`, `not checked`)."""

    name: str
    state: str
    expected: str
    found: str


@dataclass(frozen=True)
class Answer:
    """A sentence, the numbers in it, and its checks. `given` is false where the data cannot answer."""

    part: str
    cell: str
    sentence: str
    values: dict[str, float | str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    given: bool = True

    @property
    def state(self) -> str:
        """`failed` if a check failed, `no answer` without one, else `ok`."""
        if not self.given:
            return "no answer"
        return FAILED if any(check.state == FAILED for check in self.checks) else OK


@dataclass(frozen=True)
class CellData:
    """A cell with what its capture says; `recording` is None where there is none to read."""

    found: Found
    recording: Recording | None = None
    tables: CellTables | None = None

    @property
    def label(self) -> str:
        return self.found.label

    def phase(self, name: str) -> pd.Series | None:
        """A phase's row; None where the capture has no such phase."""
        if self.tables is None:
            return None
        rows = self.tables.phases[self.tables.phases["phase"] == name]
        return rows.iloc[0] if len(rows) else None


def answers_of(cell: CellData, siblings: Sequence[CellData], parts: Iterable[str]) -> list[Answer]:
    """The answers that this cell's capture can give to `parts`; `siblings` are other cells of its size and context."""
    if cell.recording is None or cell.phase(STEP) is None:
        return []
    given = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e}
    kinds = {"a": "forward", "c": "forward", "d": "training", "e": "forward"}
    wanted = [part for part in parts if kinds.get(part, cell.found.cell.type) == cell.found.cell.type]
    return [given[part](cell, siblings) for part in wanted]


def part_a(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The forward range's wall time beside Python's clock, profiled and not, and why they differ if they do."""
    row = cell.phase("forward")
    if row is None:
        return no_answer("a", cell, "the capture has no range `forward`")
    values: dict[str, float | str] = {"range_ms": row.wall_ms, "range_sd_ms": row.wall_sd_ms}
    if cell.recording is not None and cell.recording.has_kernels:
        values |= {"busy_ms": row.busy_ms, "span_ms": row.span_ms, "kernel_ms": row.kernel_ms}
    told, twin = cell.found.told, cell.found.twin
    inside = python_ms(told, "forward")
    plain = python_ms(twin, "forward")
    plain_sd = python_sd_ms(twin, "forward")
    values |= {
        name: value
        for name, value in (("python_profiled_ms", inside), ("python_plain_ms", plain))
        if value is not None
    }
    sentence = f"The range `forward` takes {spread(row.wall_ms, row.wall_sd_ms)} ms"
    if plain is None:
        sentence += (
            "; the same steps were not timed without a profiler, so there is nothing to compare it with."
        )
    else:
        values["overhead_percent"] = 100 * (row.wall_ms - plain) / plain
        sentence += f", Python without a profiler {spread(plain, plain_sd)} ms: {_agreement(cell, row, plain, plain_sd)}"
    if cell.recording is not None and cell.recording.has_kernels:
        sentence += f" The GPU is busy for {row.busy_ms:.2f} ms of it ({100 - row.idle_percent:.0f} %)."
    return Answer("a", cell.label, sentence, values, (*_times_nest(cell), _clocks(cell)))


def _agreement(cell: CellData, row: pd.Series, plain: float, plain_sd: float) -> str:
    over = 100 * (row.wall_ms - plain) / plain
    if abs(over) <= 100 * AGREE:
        return f"they agree within {abs(over):.1f} %."
    if abs(row.wall_ms - plain) < 2 * math.hypot(row.wall_sd_ms, plain_sd):
        return f"a difference of {over:+.0f} % that the steps' own spread covers."
    if over < 0:
        return f"the profiled run was {-over:.0f} % faster: the two runs met other clocks, or too few steps were measured."
    if cell.recording is None or not cell.recording.has_kernels:
        return f"the profiler adds {over:.0f} %."
    if row.idle_percent > 20:
        return (
            f"{over:.0f} % more, because the GPU waits {row.idle_percent:.0f} % of the range for launches, "
            "and the profiler makes each launch dearer."
        )
    return f"{over:.0f} % more, though the GPU is busy nearly all the time: the profiler's own work on the device."


def part_b(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The costliest kernel of the forward pass (and of forward plus backward), with its launches a pass."""
    assert cell.tables is not None
    kernels = cell.tables.kernels
    forward = kernels[kernels["phase"] == "forward"]
    if forward.empty:
        return no_answer("b", cell, "no kernel lies in the range `forward`")
    top = forward.iloc[0]
    values: dict[str, float | str] = {
        "kernel": top.kernel,
        "launches": top.launches,
        "ms": top.ms,
        "percent": top.percent,
        "name": top["name"],
    }
    sentence = f"In forward, {_kernel_words(top)}."
    whole = kernels[kernels["phase"].isin(("forward", "backward"))]
    if (whole["phase"] == "backward").any():
        summed = whole.groupby("name", sort=False).agg(
            {"kernel": "first", "launches": "sum", "ms": "sum", "class": "first", "same_in_all_steps": "all"}
        )
        summed = summed.assign(percent=100 * summed["ms"] / summed["ms"].sum()).sort_values(
            "ms", ascending=False
        )
        both = summed.iloc[0]
        same = "the same kernel" if summed.index[0] == top["name"] else "another one"
        values |= {
            "both_kernel": both.kernel,
            "both_launches": both.launches,
            "both_ms": both.ms,
            "both_percent": both.percent,
        }
        sentence += f" Over forward and backward it is {same}: {_kernel_words(both)}."
    return Answer("b", cell.label, sentence, values, (_integers(cell, top), *_gemm_counts(cell)))


def _kernel_words(row: pd.Series) -> str:
    times = (
        f"{row.launches:g} launches a pass"
        if row.same_in_all_steps
        else f"{row.launches:.1f} launches a pass on average"
    )
    return f"`{brief(row.kernel)}` ({row['class']}) costs most: {row.ms:.2f} ms, {row.percent:.0f} % of kernel time, {times}"


def brief(name: str, most: int = 56) -> str:
    """A kernel's name for a sentence: the table has it whole."""
    return name if len(name) <= most else f"{name[: most - 12]}…{name[-11:]}"


def part_c(cell: CellData, _: Sequence[CellData]) -> Answer:
    """Classes other than matrix products with a notable share of the forward pass's kernel time."""
    assert cell.tables is not None
    classes = cell.tables.classes
    forward = classes[classes["phase"] == "forward"]
    if forward.empty:
        return no_answer("c", cell, "no kernel lies in the range `forward`")
    others = forward[~forward["class"].isin(NOT_MATMUL)]
    notable = others[others["percent"] >= NOTABLE_PERCENT]
    share = float(others["percent"].sum())
    values: dict[str, float | str] = {f"{row['class']}_percent": row.percent for _, row in others.iterrows()}
    values["not_matmul_percent"] = share
    named = ", ".join(
        f"{row['class']} {row.percent:.1f} % ({row.launches:g} launches)" for _, row in notable.iterrows()
    )
    sentence = f"{share:.1f} % of forward's kernel time is not matrix products: {named or 'no class of them reaches 1 %'}."
    total = float(forward["percent"].sum())
    return Answer(
        "c",
        cell.label,
        sentence,
        values,
        (
            check("shares of all classes add up", abs(total - 100) < 1e-6, "100 %", f"{total:.6f} %"),
            _attributed(cell),
        ),
    )


def part_d(cell: CellData, siblings: Sequence[CellData]) -> Answer:
    """The share of matrix products in inference, in each phase of training, and over the whole step."""
    step = cell.phase(STEP)
    if cell.phase("optimizer_step") is None:
        return no_answer("d", cell, "the capture has no range `optimizer_step`: it is not of training")
    phases = {name: row for name in PHASES if (row := cell.phase(name)) is not None}
    if step is None or not step.kernels > 0 or "forward" not in phases:
        return no_answer("d", cell, "no kernels in the step's phases")
    inference = next(
        (
            row
            for other in siblings
            if other.found.cell.type == "forward"
            and (row := other.phase("forward")) is not None
            and row.kernels > 0
        ),
        None,
    )
    values: dict[str, float | str] = {
        f"{name}_matmul_percent": row.matmul_percent for name, row in phases.items()
    }
    values |= {f"{name}_ms": row.kernel_ms for name, row in phases.items()}
    values |= {"step_matmul_percent": step.matmul_percent, "step_ms": step.kernel_ms}
    if inference is not None:
        values["inference_matmul_percent"] = inference.matmul_percent
    before = inference if inference is not None else phases["forward"]
    kind = "inference" if inference is not None else "training's own forward (inference was not recorded)"
    each = ", ".join(f"{name} {_share(row)} of {row.kernel_ms:.2f} ms" for name, row in phases.items())
    sentence = (
        f"Matrix products take {before.matmul_percent:.1f} % of {kind} and {step.matmul_percent:.1f} % of a whole "
        f"training step's kernel time ({each}). {_unowned(cell)}"
    )
    return Answer("d", cell.label, sentence.strip(), values, _checks_d(cell, step, phases, inference))


def _share(row: pd.Series) -> str:
    return f"{row.matmul_percent:.1f} %" if row.kernels > 0 else "no kernels"


def _unowned(cell: CellData) -> str:
    """What nsys' own rule would have lost: operations that only the search across threads gave an owner."""
    assert cell.recording is not None
    lost, lost_ms = cell.recording.coverage.get("cross", (0, 0.0))
    steps = len(cell.recording.steps)
    if not lost:
        return ""
    return (
        f"By the launching thread alone, {lost / steps:.0f} operations of a step ({lost_ms / steps:.1f} ms) would belong to "
        "no phase."
    )


def _checks_d(
    cell: CellData, step: pd.Series, phases: dict[str, pd.Series], inference: pd.Series | None
) -> tuple[Check, ...]:
    summed = sum(row.kernel_ms for row in phases.values())
    checks = [
        check(
            "phases add up to the step",
            abs(summed - step.kernel_ms) <= 1e-3 * step.kernel_ms,
            f"{step.kernel_ms:.4f} ms",
            f"{summed:.4f} ms",
        ),
        _attributed(cell),
        *_gemm_counts(cell),
    ]
    if inference is None:
        checks.append(Check("forward multiplies as often as inference", OPEN, "a forward capture", "none"))
    else:
        ours = phases["forward"].matmuls
        checks.append(
            check(
                "forward multiplies as often as inference",
                ours == inference.matmuls,
                f"{inference.matmuls:g}",
                f"{ours:g}",
            )
        )
    return tuple(checks)


def part_e(cell: CellData, _: Sequence[CellData]) -> Answer:
    """Softmax beside attention's matrix products, per layer: time, FLOPs, and what was achieved of both."""
    assert cell.tables is not None
    rows = {row["part"]: row for _, row in cell.tables.parts.iterrows()}
    if SOFTMAX not in rows or SCORES not in rows or not rows[SCORES]["matmul_us_per_layer"] > 0:
        what = (
            "the capture has no ranges inside attention"
            if SOFTMAX not in rows
            else "no GEMM lies in the scores' range"
        )
        return no_answer("e", cell, what)
    softmax_us = float(rows[SOFTMAX]["us_per_layer"])
    scores_us = float(rows[SCORES]["matmul_us_per_layer"])
    values: dict[str, float | str] = {f"{part}_us": float(row["us_per_layer"]) for part, row in rows.items()}
    values |= {"qk_gemm_us": scores_us, "time_ratio": softmax_us / scores_us}
    sentence = (
        f"Per layer, softmax takes {softmax_us:.1f} µs and the GEMM of QK^T {scores_us:.1f} µs: "
        f"{softmax_us / scores_us:.2f} times as long"
    )
    if FINAL in rows:
        values["av_gemm_us"] = float(rows[FINAL]["matmul_us_per_layer"])
        sentence += f" (weights times values: {values['av_gemm_us']:.1f} µs)"
    return Answer(
        "e", cell.label, sentence + _by_flop(cell, rows, values), values, tuple(_checks_e(cell, rows))
    )


def _by_flop(cell: CellData, rows: dict[str, pd.Series], values: dict[str, float | str]) -> str:
    spec = cell.found.spec
    if spec is None or pd.isna(rows[SOFTMAX]["flop"]):
        return "; the model's shape is not known, so there are no FLOPs to set beside it."
    ratio = rows[SCORES]["flop"] / rows[SOFTMAX]["flop"]
    values |= {
        "flop_ratio": ratio,
        "softmax_gb_per_s": rows[SOFTMAX]["gb_per_s"],
        "qk_tflops": rows[SCORES]["tflops"],
    }
    softmax, gemm = rows[SOFTMAX]["gb_per_s"], rows[SCORES]["tflops"]
    of_memory = of_rate = ""
    if (known := ceilings(cell)) is not None:
        of_rate = f", {100 * gemm * 1e12 / known.flop_per_s:.0f} % of the {known.units}"
        if known.bytes_per_s:
            of_memory = f", {100 * softmax * 1e9 / known.bytes_per_s:.0f} % of the bandwidth"
    return (
        f", for 1/{ratio:.1f} of the FLOPs: softmax moves memory (at least {softmax:.0f} GB/s{of_memory}), "
        f"the GEMM computes ({gemm:.1f} TFLOP/s{of_rate})."
    )


def ceilings(cell: CellData) -> flops.Peaks | None:
    """The ceilings of the cell's GPU for its dtype; None where the GPU is not known."""
    if cell.recording is None or not cell.recording.has_kernels:
        return None
    told = cell.found.told
    device = {**(told.device if told else {}), **cell.recording.gpu}
    return flops.peaks(
        str(device.get("capability")),
        device.get("sm_count") or 0,
        device.get("clock_hz") or 0,
        device.get("bytes_per_s"),
        told.asked.dtype if told else "fp32",
    )


def _checks_e(cell: CellData, rows: dict[str, pd.Series]) -> Iterable[Check]:
    for part in (SCORES, FINAL):
        if part in rows:
            found = rows[part]["matmuls_per_layer"]
            yield check(f"one GEMM in every `{part}`", found == 1, "1", f"{found:g}")
    spec = cell.found.spec
    if spec is None:
        yield Check("ranges are as many as layers", OPEN, "the model's shape", "unknown")
        return
    counts = {float(row["ranges"]) for row in rows.values()}
    yield check("ranges are as many as layers", counts == {spec.layers}, str(spec.layers), _some(counts))
    ratio, due = rows[SCORES]["flop"] / rows[SOFTMAX]["flop"], 2 * spec.d_head / 5
    yield check(
        "FLOPs of QK^T over softmax are 2 d_head / 5", abs(ratio - due) < 1e-9, f"{due:g}", f"{ratio:g}"
    )


def no_answer(part: str, cell: CellData, why: str) -> Answer:
    """The question stands, and so does the reason it has no answer here."""
    if cell.recording is not None and not cell.recording.has_kernels:
        why = (
            "the capture has no GPU kernels (no_gpu_data): it was made on a CPU, or the collector saw no GPU"
        )
    return Answer(part, cell.label, f"Cannot be answered: {why}.", given=False)


def check(name: str, passed: bool, expected: str, found: str) -> Check:
    return Check(name, OK if passed else FAILED, expected, found)


def _times_nest(cell: CellData) -> tuple[Check, ...]:
    """busy <= span <= wall, which holds because every phase ends with a synchronisation inside its range."""
    row = cell.phase("forward")
    if row is None or cell.recording is None or not cell.recording.has_kernels:
        return (Check("busy <= span <= wall", OPEN, "kernels", "none"),)
    passed = row.busy_ms <= row.span_ms * (1 + 1e-9) and row.span_ms <= row.wall_ms * (1 + 1e-3)
    return (
        check(
            "busy <= span <= wall",
            passed,
            "in this order",
            f"{row.busy_ms:.3f} <= {row.span_ms:.3f} <= {row.wall_ms:.3f} ms",
        ),
    )


def _clocks(cell: CellData) -> Check:
    """Python's clock around each `forward` against the range itself: the median over the steps, so that one step that
    another process interrupted does not decide."""
    name = "Python's clock around the range agrees with it"
    told, walls = cell.found.told, _walls_ms(cell)
    python = [step["forward_ms"] for step in told.steps if "forward_ms" in step] if told else []
    if not python or len(python) != len(walls):
        return Check(name, OPEN, "as many times in cell.json as steps", f"{len(python)} and {len(walls)}")
    range_ms = statistics.median(walls)
    over = statistics.median(one - other for one, other in zip(python, walls, strict=True))
    passed = -0.02 * range_ms <= over <= AGREE * range_ms + 0.2
    return check(name, passed, f"{range_ms:.3f} ms", f"{range_ms + over:.3f} ms")


def _walls_ms(cell: CellData) -> list[float]:
    """Wall ms of `forward` in each step, in order."""
    if cell.recording is None:
        return []
    rows = cell.recording.ranges[cell.recording.ranges["name"] == "forward"]
    took = (rows["end_ns"] - rows["start_ns"]).groupby(rows["step"]).sum()
    return [float(ns) / 1e6 for ns in took]


def _integers(cell: CellData, top: pd.Series) -> Check:
    """Launches a pass: equal in every step, or else the counts of each step, so that one sees which is odd."""
    row = cell.phase("forward")
    assert row is not None and cell.recording is not None
    passed = bool(top.same_in_all_steps and row.same_in_all_steps)
    found = f"{top.launches:g} of the top kernel, {row.kernels:g} in all"
    if not passed:
        forward = of_phase(cell.recording.ops[cell.recording.ops["kernel"]], "forward")
        own = forward[forward["name"] == top["name"]]
        counts = [
            (int((own["step"] == n).sum()), int((forward["step"] == n).sum())) for n in cell.recording.steps
        ]
        found = "by step: " + ", ".join(f"{of_top} of {every}" for of_top, every in counts)
    return check("launches a pass are the same in every step", passed, "integers", found)


def _gemm_counts(cell: CellData) -> tuple[Check, ...]:
    """GEMM kernels against the model: 9 L + 1 forward, twice as many backward; split-K sums are no GEMMs."""
    spec = cell.found.spec
    due: dict[str, Callable[[flops.ModelSpec], int]] = {
        "forward": lambda s: s.forward_gemms,
        "backward": lambda s: s.backward_gemms,
    }
    checks = []
    for phase, count in due.items():
        row = cell.phase(phase)
        if row is None:
            continue
        name = f"GEMMs of {phase} are the model's"
        if spec is None:
            checks.append(Check(name, OPEN, "the model's shape", f"{row.matmuls:g}"))
        else:
            checks.append(check(name, row.matmuls == count(spec), str(count(spec)), f"{row.matmuls:g}"))
    return tuple(checks)


def _attributed(cell: CellData) -> Check:
    """Every kernel launched in a step belongs to a phase, and none to two."""
    assert cell.recording is not None
    ops = cell.recording.ops
    kernels = ops[ops["kernel"]]
    outside = int((kernels["phase"] == "").sum())
    found = f"{len(kernels) - outside} of {len(kernels)}"
    if cell.recording.ambiguous:
        found += f", {cell.recording.ambiguous} ambiguous"
    return check(
        "every kernel of a step has a phase",
        outside == 0 and not cell.recording.ambiguous,
        f"{len(kernels)} of {len(kernels)}",
        found,
    )


def python_ms(told: Told | None, phase: str) -> float | None:
    """Mean ms of a phase by Python's clock; None where it was not timed."""
    times = [step[f"{phase}_ms"] for step in told.steps if f"{phase}_ms" in step] if told else []
    return sum(times) / len(times) if times else None


def python_sd_ms(told: Told | None, phase: str) -> float:
    """Sample standard deviation of a phase by Python's clock; 0 for a single step."""
    times = [step[f"{phase}_ms"] for step in told.steps if f"{phase}_ms" in step] if told else []
    return statistics.stdev(times) if len(times) > 1 else 0.0


def spread(mean: float, sd: float) -> str:
    return f"{mean:.2f} ± {sd:.2f}"


def _some(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values))


def roofline_points(cell: CellData) -> list[dict[str, float | str]]:
    """What the cell achieved at which intensity (FLOP per least byte): attention's parts, linear layers, forward GEMMs."""
    spec, batch = cell.found.spec, cell.found.batch
    if cell.tables is None or spec is None or batch is None:
        return []
    points: list[dict[str, float | str]] = []
    in_attention_ms = 0.0
    for _, row in cell.tables.parts.iterrows():
        if row["part"] in PARTS and row["tflops"] > 0:
            points.append(
                _point(cell, row["part"], row["flop"], row["least_bytes"], row["flop"] / row["tflops"] / 1e12)
            )
        if row["matmul_us_per_layer"] > 0:
            in_attention_ms += row["matmul_us_per_layer"] * spec.layers / 1e3
    forward = cell.phase("forward")
    if forward is not None and in_attention_ms and forward.matmul_ms > in_attention_ms:
        context, dtype = cell.found.cell.context, (cell.found.told.asked.dtype if cell.found.told else "fp32")
        moved = flops.linear_bytes(spec, batch, context, 2 if dtype in ("bf16", "fp16") else 4)
        seconds = (forward.matmul_ms - in_attention_ms) / 1e3
        points.append(_point(cell, "linear layers", flops.linear_flop(spec, batch, context), moved, seconds))
    return points


def _point(cell: CellData, what: str, flop: float, moved: float, seconds: float) -> dict[str, float | str]:
    return {
        "cell": cell.label,
        "what": what,
        "flop_per_byte": flop / moved,
        "tflops": flop / seconds / 1e12,
        "gb_per_s": moved / seconds / 1e9,
    }
