"""Jobs of several ranks, one file per rank: who waits for whom, and how long, on clocks that differ."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from tests.simulator import faults
from tests.simulator.faults import Fault, damaged
from tests.simulator.figures import Answer, lab
from tests.simulator.kineto import write_kineto
from tests.simulator.program import Action, Bare, Collective, Copy, Job, Op, Pause, Program, Sync, step
from tests.simulator.truth import waits_ms

TOLERANCE_NS = 2_000  # a clock's offset is estimated
PARTS = ("compute_ns", "copy_ns", "transfer_ns", "wait_ns")


@dataclass(frozen=True)
class RanksDraw:
    """offsets_ns: how much the clock of each rank's machine is ahead; fault: in the file of the last rank."""

    program: Program
    offsets_ns: tuple[int, ...]
    fault: Fault | None = None

    def outcome(self, scratch: Path) -> tuple[Answer, list[str]]:
        """What `lab ranks` answers, and what of it is silently different from the truth."""
        job = self.program.play()
        true = parts_of(job)
        for process, offset_ns in zip(job, self.offsets_ns, strict=True):
            faults.ClockOff(offset_ns).damage(process)
            for span in [*process.calls, *process.ops, *process.ranges]:
                span.start_ns += offset_ns
                span.end_ns += offset_ns
        if self.fault:
            job[-1:] = damaged(job[-1:], (self.fault,))[0]
        for process in job:
            folder = scratch / f"rank{process.rank}"
            folder.mkdir()
            write_kineto([process], folder / "trace.json")
        answer = lab("ranks --json -w 1", scratch)
        return answer, [] if answer.code and self.fault else self._differences(answer, true)

    def _differences(self, answer: Answer, true: dict[int, dict[str, int]]) -> list[str]:
        if answer.code:
            return [f"exit code {answer.code}: {answer.stderr.strip()[-300:]}"]
        sums: dict[tuple[int, str], int] = defaultdict(int)
        for row in answer.json()["steps"]:
            parts_ns = sum(row[part] for part in row if part.endswith("_ns") and part not in _BESIDE)
            if parts_ns != row["step_ns"]:
                return [f"rank {row['rank']}: parts of step {row['step']} add up to {parts_ns} ns: {row}"]
            for part in PARTS:
                sums[row["rank"], part] += row[part]
        return [
            f"rank {rank}, {part}: {sums[rank, part]}, true {value}"
            for rank, parts in true.items()
            for part, value in parts.items()
            if abs(sums[rank, part] - value) > TOLERANCE_NS
        ]


_BESIDE = ("step_ns", "not_separable_ns", "entered_late_ns")  # no parts of a step


def parts_of(job: Job) -> dict[int, dict[str, int]]:
    """rank -> ns by part, of a job in which nothing runs beside anything."""
    waits = waits_ms(job)
    parts = {}
    for process in job:
        lengths: dict[str, int] = defaultdict(int)
        for row in process.rows:
            part = "transfer_ns" if row.message else "copy_ns" if row.kind == "copy" else "compute_ns"
            lengths[part] += row.end_ns - row.start_ns
        wait_ns = round(waits[process.rank] * 1e6)
        lengths["transfer_ns"] -= wait_ns
        parts[process.rank] = {part: lengths[part] for part in PARTS} | {"wait_ns": wait_ns}
    return parts


@st.composite
def jobs(draw: st.DrawFn) -> RanksDraw:
    world = draw(st.integers(2, 4))
    kernels_ns = st.integers(5_000, 200_000)
    operator = st.builds(Op, st.tuples(kernels_ns))
    product = st.builds(Op, st.tuples(kernels_ns), st.just((512, 256, 1024)))
    body: st.SearchStrategy[Action] = st.one_of(
        operator,
        product,
        st.builds(Bare, kernels_ns),
        st.builds(Copy, kernels_ns),
        st.builds(Pause, st.integers(1_000, 80_000)),
        st.builds(Collective, st.integers(5_000, 90_000)),
    )
    actions = (Op(), *draw(st.lists(body, min_size=1, max_size=6)), Collective(), Sync())
    slow_percent = draw(st.tuples(*[st.sampled_from((0, 0, 3, 30))] * world))
    program = Program(tuple(step(number, *actions) for number in range(2, 6)), slow_percent)
    offsets_ns = draw(st.tuples(*[st.sampled_from((0, 0, 400_000, -7_000_000, 3_600_000_000_000))] * world))
    fault = st.one_of(
        st.builds(faults.Lost, st.just("rows"), st.just("middle"), st.integers(1, 4)),
        st.just(faults.Twice()),
        st.just(faults.TooLong()),
        st.just(faults.Timeless()),
    )
    return RanksDraw(program, offsets_ns, draw(st.none() | fault))
