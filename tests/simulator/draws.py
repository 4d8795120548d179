"""Hypothesis draws programs, formats and faults. Strategies are made once, for that takes longest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from tests.simulator import faults
from tests.simulator.faults import Fault, damaged
from tests.simulator.figures import Answers, ask
from tests.simulator.judge import miscounted, silent
from tests.simulator.program import (
    Action,
    Bare,
    Collective,
    Copy,
    Merge,
    Op,
    Pause,
    Program,
    Range,
    Replay,
    Sync,
    step,
)
from tests.simulator.truth import truth_of
from tests.simulator.writers import FORMATS

PLACES = st.sampled_from(("start", "middle", "end"))
COUNTS = st.integers(1, 4)
KERNELS_NS = st.integers(1_000, 60_000)
SIZES = st.sampled_from(((64, 64, 64), (512, 256, 1024), (2048, 2048, 64)))
COUNTING = ("nsys", "rocpd", "rocprofv3", "rocprofv3_csv")  # formats that count rows, or number dispatches
STREAMS = st.sampled_from((0, 0, 0, 1, 2))


@dataclass(frozen=True)
class Draw:
    """One recording to be made and asked about. merge: of two processes in one file, instead of one."""

    program: Program
    format: str
    faults: tuple[Fault, ...] = ()
    merge: Merge | None = None
    pages: bool = False

    def outcome(self, scratch: Path) -> tuple[Answers, list[str]]:
        """What lab answers, and what of it is silently different from the truth."""
        form = FORMATS[self.format]
        played = self.merge.play(self.program) if self.merge else self.program.play(amd=form.amd)
        recorded, true = damaged(played, self.faults)
        asked = ask(form.write(recorded, scratch / form.file), scratch, pages=self.pages)
        pairs = list(zip(recorded, true, strict=True))
        truths = {
            index if right.label else right.pid: truth_of(right, process.rows)
            for index, (process, right) in enumerate(pairs)
        }
        whole = not self.merge and all(process == right for process, right in pairs)
        operators = form.operators and any(process.ops for process in recorded)
        # A row that could be of two processes is in the bounds of neither.
        sentences = silent(asked, truths, whole=whole, operators=operators, bounded=not self.merge)
        if len(self.faults) <= 1 and not self.merge:
            sentences += miscounted(asked, *pairs[0])
        return asked, sentences


@cache
def operators() -> st.SearchStrategy[Op]:
    plain = st.builds(
        Op,
        kernels_ns=st.tuples(KERNELS_NS) | st.tuples(KERNELS_NS, KERNELS_NS),
        stream=STREAMS,
        thread=st.sampled_from((0, 0, 1)),
        inside=st.booleans(),
    )
    products = st.builds(
        Op,
        kernels_ns=st.tuples(KERNELS_NS) | st.tuples(KERNELS_NS, KERNELS_NS),
        sizes=SIZES,
        stream=STREAMS,
        inside=st.booleans(),
    )
    return plain | products


@cache
def actions() -> st.SearchStrategy[Action]:
    return st.one_of(
        operators(),
        operators(),
        st.builds(Bare, dur_ns=KERNELS_NS, stream=STREAMS),
        st.builds(Copy, dur_ns=KERNELS_NS, size=st.integers(1, 1 << 20), fill=st.booleans()),
        st.builds(Replay, kernels_ns=st.lists(KERNELS_NS, min_size=2, max_size=5).map(tuple)),
        st.builds(Collective, transfer_ns=KERNELS_NS),
        st.just(Sync()),
        st.builds(Pause, dur_ns=st.integers(1_000, 200_000)),
    )


@cache
def blocks() -> st.SearchStrategy[tuple[Action, ...]]:
    """A few actions, some of them in named ranges."""
    several = st.lists(actions(), min_size=1, max_size=4).map(tuple)
    named = st.builds(Range, st.sampled_from(("forward", "backward", "optimizer_step")), several)
    return st.lists(actions() | named, min_size=1, max_size=4).map(tuple)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    before, after = draw(blocks()), draw(blocks())
    first = draw(st.integers(0, 9))
    steps = tuple(step(first + index, Op(), *draw(blocks())) for index in range(draw(st.integers(0, 3))))
    return Program(
        (*(before if draw(st.booleans()) else ()), Op(), *steps, *(after if draw(st.booleans()) else ()))
    )


@cache
def damages(form: str, *, every: bool) -> st.SearchStrategy[Fault]:
    """Faults that leave a trace in the format.

    A lost fill leaves one where the recorder counts: a memset of 0 bytes makes no row either; a lost range,
    where events are counted; a call that is there twice, but in .rpd, where each has a number of its own.
    every: also all rows or calls at once, of which one kind has to stay, or it is a recording of a CPU.
    """
    what = ["rows", "calls"]
    if FORMATS[form].operators:
        what += ["ops", "ranges"]
    if form == "nsys":
        what += ["ranges"]
    damages = [
        st.builds(faults.Lost, st.sampled_from(what), PLACES, COUNTS, fills=st.just(form in COUNTING)),
        st.just(faults.LostStream()),
        st.builds(
            faults.Twice, st.sampled_from(("rows", "rows" if form == "rpd" else "calls")), PLACES, COUNTS
        ),
        st.builds(faults.TooLong, PLACES, st.sampled_from((2_000_000, 90_000_000, 1_600_000_000))),
        st.builds(faults.Timeless, PLACES, COUNTS),
        st.builds(faults.Nameless, PLACES, COUNTS),
        st.builds(faults.ClockJump, st.sampled_from((-3_600_000_000_000, -20_000_000, 20_000_000, 10**12))),
        st.builds(
            faults.ClockOff,
            st.sampled_from((-5_000_000, -2_000, 0, 3_000, 5_000_000)),
            st.integers(-200, 200),
        ),
        st.just(faults.Renamed()),
    ]
    if every:
        damages.append(st.builds(faults.Lost, st.sampled_from(("rows", "calls")), every=st.just(True)))
    if FORMATS[form].operators:  # ranges that are pushed and popped cannot overlap
        damages.append(st.builds(faults.StepsOverlap, st.sampled_from(faults.STEP_OVERLAPS_NS)))
    return st.one_of(damages)


@cache
def merges() -> st.SearchStrategy[Merge]:
    shifts_ns = st.sampled_from((0, 500, 12_000, 700_000, 50_000_000, 3_600_000_000_000))
    return st.builds(Merge, shifts_ns, labels=st.booleans(), one_gpu=st.booleans())


@st.composite
def recordings(draw: st.DrawFn) -> Draw:
    """One process per file; most with one fault, some with none or two."""
    form = draw(st.sampled_from(sorted(FORMATS)))
    number = draw(st.sampled_from((0, 1, 1, 1, 2)))
    chosen = tuple(draw(damages(form, every=index == 0)) for index in range(number))
    if any(isinstance(fault, faults.Lost) and fault.what == "calls" for fault in chosen):
        # The call is the witness: of a stream whose rows are lost, of a clock that jumps, and, where it
        # waits, of a last row that is too long.
        unseen = (faults.LostStream, faults.TooLong, faults.ClockJump)
        chosen = tuple(fault for fault in chosen if not isinstance(fault, unseen))
    return Draw(draw(programs()), form, chosen, pages=draw(st.sampled_from((False, False, False, True))))


def merged() -> st.SearchStrategy[Draw]:
    """Two processes in one file."""
    fault = st.just(()) | st.tuples(damages("kineto", every=False))
    return st.builds(Draw, programs(), st.just("kineto"), fault, merges(), st.booleans())
