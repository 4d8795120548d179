"""`lab check BASE HEAD -- CMD`: both sides in fresh processes, interleaved, until the gate can decide.

The order is B H H B B H H B, so that drift of the machine falls on both. The first process of each side warms
up and is dropped. The gate looks at 3, 6 and 12 processes a side, and each look has its part of the allowed
false alarms (check.looks).

Before that BASE runs some processes by itself, once per machine and workload: how much equal processes differ
here (check.floors).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lab.compare.check import floors as kept_floors
from lab.compare.check.confirm import FOLDER as SECOND
from lab.compare.check.confirm import confirmed, shows_all
from lab.compare.check.floors import Floors
from lab.compare.check.gate import Verdict, judge
from lab.compare.check.in_image import command_in, containers, end, inside
from lab.compare.check.looks import LOOKS, share_of, share_within
from lab.compare.check.progress import FILE, Asked, Progress
from lab.compare.check.samples import LOG, Process, processes
from lab.compare.check.sides import Side, described, notes
from lab.core.files import exclusive, make_folder
from lab.core.words import plural
from lab.engines.local.process import guarded
from lab.errors import BadDataError, BusyError, LabError, MissingError, UsageError
from lab.gpus.environment import relevant_env

PLACE = "{out}"  # in the command: the recording that this process writes
VARIABLE = "LAB_CHECK_OUT"  # the same, for a program that reads its environment
LAST_LINES = 5
AA = "aa"  # the folder of BASE's processes that measure the floors
PROGRAMS = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
LOCK, RUNNING = ".lock", ".running"  # held by the check, and by the guard of its process
GO_ON = "undecided, more to come"
GRACE_S = 10.0
CONTAINER = "lab-check-"  # what the name of every container of a check begins with
KILLED = 137  # of a process whose guard was killed with it


class Held(NamedTuple):
    """What a process holds: its container's name, and the lock that the next one waits for, because an
    earlier start's process may be ending, whose lab was killed."""

    container: str
    lock: Path


def schedule(looks: Sequence[int] = LOOKS) -> list[tuple[int, str]]:
    """(round, side) of every process in order; round 0 warms up."""
    order = (("base", "head"), ("head", "base"))
    return [(turn, name) for turn in range(looks[-1] + 1) for name in order[turn % 2]]


def repeat(
    both: tuple[Side, Side],
    command: Sequence[str],
    out: Path,
    allowed: float,
    say: Callable[[str], None],
    *,
    with_floors: bool = True,
) -> Verdict:
    """Run processes until the gate decides or the last look is over; recordings and logs stay in `out`, and
    with them the A/A floors, which are measured first if this machine has none of this workload.

    A check that was ended or killed goes on: what ended is in `out` (check.progress), and a look that
    was made is not made again. Raises UsageError for a command without a place for its recording and for an
    earlier check of something else, BusyError for a folder with recordings of no check or a check that runs,
    MissingError for a process that fails or records nothing, BadDataError for recordings that were changed.
    """
    if not command:
        raise UsageError(
            "no command to run", fix="lab check BASE HEAD -o OUT -- python train.py --trace {out}"
        )
    _raise_for_others(both, out)
    for side in both:
        make_folder(out / side.name)
    with exclusive(out / LOCK, busy="another lab check runs in this folder", fix="wait for it"):
        progress = Progress.begin(out, _asked(both, command, allowed, with_floors))
        if progress.resumed:
            say(f"going on: {plural(len(progress.state.ended), 'process', 'processes')} ended before")
        found_notes = [*notes(both), *(_left_over(out, say) if both[0].image or both[1].image else ())]
        for note in found_notes:
            say(note)
        check = _Check(both, command, out, progress, say)
        found = check.verdict(allowed, check.floors() if with_floors else None)
        found.notes = [*found.notes, *found_notes, *check.notes, *progress.notes()]
        return found


def _raise_for_others(both: Sequence[Side], out: Path) -> None:
    """Raises BusyError for recordings of which no check knows."""
    if (out / FILE).is_file():
        return
    for name in (*(side.name for side in both), AA):
        folder = out / name
        if folder.is_dir() and any(folder.iterdir()):
            raise BusyError(
                "recordings of earlier processes are here",
                location=folder,
                fix=f"name another -o; what is here is judged by: lab check {out / 'base'} {out / 'head'}",
            )


def _left_over(out: Path, say: Callable[[str], None]) -> list[str]:
    """End the containers of earlier starts of this check, which nothing ends where lab and its guards were
    killed; name those of other checks, beside which its processes would run."""
    others = []
    for name in containers(CONTAINER):
        if name.startswith(_containers_of(out)):
            end(name)
            say(f"ended {name}, the container of an earlier start that was killed")
        else:
            others.append(name)
    if not others:
        return []
    names = ", ".join(others)
    return [
        f"containers of another check were here at the start: {names} (rm --force ends one that was left)"
    ]


def _containers_of(out: Path) -> str:
    """What the names of this check's containers begin with, the same at every start."""
    return f"{CONTAINER}{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:12]}-"


def _asked(both: tuple[Side, Side], command: Sequence[str], allowed: float, with_floors: bool) -> Asked:
    base, head = both
    return Asked(
        command=list(command),
        base=described(base),
        head=described(head),
        machine=kept_floors.this_machine(),
        # A queue's numbers are others each time, and lab's own variables shape no program.
        environment={k: v for k, v in relevant_env().items() if not k.startswith(("SLURM_", "LAB_"))}
        | {name: os.environ[name] for name in PROGRAMS if name in os.environ}
        | ({} if base.image and head.image else {"program": shutil.which(command[0]) or command[0]}),
        looks=list(LOOKS),
        max_slowdown=allowed,
        floors=with_floors,
    )


class _Check:
    """One start of a check: what has ended is read, what has not is run."""

    def __init__(
        self,
        both: tuple[Side, Side],
        command: Sequence[str],
        out: Path,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.sides = {side.name: side for side in both}
        self.command, self.out, self.progress, self.say = command, out, progress, say
        self.warm: set[str] = set()  # what warmed up in this start
        self.notes: list[str] = []  # for the verdict, of its looks

    def verdict(self, allowed: float, floors: Floors | None) -> Verdict:
        """That of the first look that decides."""
        for done, units in self._rounds(LOOKS[-1], ""):
            if done in LOOKS and (found := self._look(done, units, allowed, floors)) is not None:
                return found
        raise AssertionError("the last look ends the loop")

    def _rounds(self, most: int, below: str) -> Iterator[tuple[int, dict[str, list[Process]]]]:
        """After every round: how many there were, and their processes by side. below: the set's folder."""
        units: dict[str, list[Process]] = {name: [] for name in self.sides}
        for turn, name in schedule((most,))[2:]:  # what warms up comes before the first that runs now
            label = f"{below}_{name}" if below else name
            recording = self._recording(str(Path(below, name)), label, turn)
            if not self.progress.has(recording):
                self._after_break(recording, sum(map(len, units.values())))
                self._run(self.sides[name], recording, turn, label)
                self.say(f"{f'{below} set: ' if below else ''}{name} {turn} of {most}")
            units[name].append(self._read(recording))
            if len(units["base"]) == len(units["head"]):
                yield turn, units

    def _look(
        self, done: int, units: dict[str, list[Process]], allowed: float, floors: Floors | None
    ) -> Verdict | None:
        """Its verdict if it ends the check. A look that was made before has the outcome that it had.

        What one look proves and few processes of a second set do not show, more of both sets may.
        """
        before = self.progress.look(done)
        if before == GO_ON:
            return None
        found = judge(units["base"], units["head"], allowed, share=share_of(done), floors=floors)
        ends = found.outcome != "undecided" or bool(found.doubts) or done == LOOKS[-1]
        outcome = found.outcome if ends else GO_ON
        if before is None:
            self.progress.add_look(done, outcome, share_of(done))
            self.say(f"look at {plural(done, 'process', 'processes')} a side: {found.outcome}")
            if ends and floors and found.floors is None:
                _forget(floors, found.floors_words, self.say)
        elif before != outcome:
            raise BadDataError(
                f"this look was {before}, and the same processes are {outcome} to this lab",
                location=self.out / FILE,
                fix="another version of lab made it: begin again with another -o",
            )
        if found.outcome == "regression":
            found = self._confirmed(found, done, floors)
            if found.outcome != "regression" and not found.doubts and done < LOOKS[-1]:
                n = plural(done, "process", "processes")
                self.notes.append(f"the look at {n} a side proved a slowdown that a second set did not show")
                self.say(f"{self.notes[-1]}: going on")
                return None
        return found if ends else None

    def _confirmed(self, found: Verdict, most: int, floors: Floors | None) -> Verdict:
        """By further processes, `most` a side: what is proven has to show in them, by themselves, too."""
        if not self.progress.has_any(SECOND):
            self.say(f"a slowdown is proven: a second set of up to {most} a side has to show it, too")
        for turn, units in self._rounds(most, SECOND):
            if turn not in LOOKS:
                continue
            again, share = (units["base"], units["head"]), share_within(turn, most)
            if turn == most or shows_all(found, *again, floors, share):
                return confirmed(found, *again, floors, share)
        raise AssertionError("the second set ends at the size of the first")

    def floors(self) -> Floors:
        """Those of this check, or else of this machine and workload, measured now if there are none that are
        young enough and fit."""
        base, here = self.sides["base"], self.out / kept_floors.FILE
        if self.progress.has_floors(here):
            return kept_floors.read(here)
        machine, workload = kept_floors.this_machine(), _workload(base, self.command)
        place = kept_floors.place_of(machine, workload)
        found, why = kept_floors.kept(place, time.time())
        if found is None or self.progress.has_any(AA):
            if not self.progress.has_any(AA):
                self.say(f"A/A floors: {why}; BASE runs {kept_floors.PROCESSES} processes by itself first")
            equal = [self._equal(turn) for turn in range(1, kept_floors.PROCESSES + 1)]
            found = kept_floors.of_processes(equal, machine, workload)
            kept_floors.save(found, place)
        kept_floors.save(found, here)
        self.progress.keep_floors(here)
        return found

    def _equal(self, turn: int) -> Process:
        """A process of BASE that measures the floors."""
        recording = self._recording(AA, AA, turn)
        if not self.progress.has(recording):
            self._warm_up(AA, [(AA, self.sides["base"])])
            self._run(self.sides["base"], recording, turn, AA)
            self.say(f"A/A {turn} of {kept_floors.PROCESSES}")
        return self._read(recording)

    def _after_break(self, recording: Path, n_before: int) -> None:
        """Both sides warm up before the first process that runs now, which may come long after the last."""
        if "both" not in self.warm and n_before:
            self.progress.add_break(recording, cut=n_before % 2 == 1)
        self._warm_up("both", list(self.sides.items()))

    def _warm_up(self, what: str, sides: Sequence[tuple[str, Side]]) -> None:
        if what in self.warm:
            return
        for label, side in sides:
            _one(side, self.command, self._recording("warm-up", label, 0), 0, self._held(label, 0))
            self.say(f"{'A/A' if label == AA else label} 0, warm-up, dropped")
        self.warm.add(what)

    def _run(self, side: Side, recording: Path, turn: int, label: str) -> None:
        try:
            _one(side, self.command, recording, turn, self._held(label, turn))
        except LabError as error:
            self.progress.add_failure(recording, error.problem)
            raise
        self.progress.add(recording)

    def _read(self, recording: Path) -> Process:
        try:
            (found,) = processes(recording)
        except LabError as error:
            self.progress.add_failure(recording, f"{recording.stem}: {error.problem}")
            raise
        return found

    def _recording(self, folder: str, label: str, turn: int) -> Path:
        return self.out / folder / f"{label}_{turn:02}.json"

    def _held(self, label: str, turn: int) -> Held:
        return Held(f"{_containers_of(self.out)}{label}-{turn}", self.out.resolve() / RUNNING)


def _forget(floors: Floors, why: str, say: Callable[[str], None]) -> None:
    """Another workload under the same command: its floors are measured at the next check."""
    kept_floors.place_of(floors.machine, floors.workload).unlink(missing_ok=True)
    say(f"{why} They are measured again at the next check.")


def _workload(base: Side, command: Sequence[str]) -> dict[str, str]:
    """What tells one workload from another: the command, where it runs, and the image."""
    place = Path.cwd() if base.commit else base.folder.resolve()
    image = f"{base.image.name} {base.image.ref}" if base.image else "none"
    return {"command": "\0".join(command), "folder": str(place), "image": image}


def _one(side: Side, command: Sequence[str], recording: Path, turn: int, held: Held) -> None:
    """One fresh process, which writes `recording`. Raises MissingError if it fails or writes none."""
    make_folder(recording.parent)
    if side.image:
        end(held.container)  # of a process that was killed, and might still write its recording
    recording.unlink(missing_ok=True)
    log = recording.with_suffix(LOG)
    with log.open("wb") as file:
        code = _start(side, command, recording.resolve(), file, held)
    if code:
        last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise MissingError(
            f"{side.name}, process {turn}, ended with {code}: " + (" | ".join(last) or "it printed nothing"),
            location=log,
            fix="a process that fails is no sample: mend it, or see its log",
        )
    if not recording.is_file():
        raise MissingError(
            f"{side.name}, process {turn}, wrote no recording",
            location=recording,
            fix=f"write a trace to {PLACE} in the command, or to the path in {VARIABLE}",
        )


def _start(side: Side, command: Sequence[str], recording: Path, log: BinaryIO, held: Held) -> int:
    """Run the command to its end, here or in the side's image, under a guard: nothing that it started
    outlives it, or lab. Its exit code."""
    place = inside(recording) if side.image else str(recording)
    words = [word.replace(PLACE, place) for word in command]
    env = {**os.environ, VARIABLE: place}
    if side.image:
        words = command_in(
            side.image, words, side.folder, recording.parent, {VARIABLE: place}, held.container
        )
        env = dict(os.environ)
    try:
        with guarded(
            words, name=held.container, cwd=side.folder, env=env, lock=held.lock, grace_s=GRACE_S
        ) as process:
            shutil.copyfileobj(process.output, log)  # to the end of the guard, which is its last owner
            report = process.report()
    except BaseException:
        if side.image:
            end(held.container)  # the engine goes on with a container whose client was interrupted
        raise
    if "start_error" in report:
        raise MissingError(f"cannot start {report['start_error']}", location=side.folder)
    return int(report.get("exit_code", KILLED))
