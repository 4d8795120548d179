"""`lab check BASE HEAD -- CMD`: both sides in fresh processes, interleaved, until the gate can decide.

The order is B H H B B H H B, so that drift of the machine falls on both. The first process of each side warms
up and is dropped. The gate looks at 3, 6 and 12 processes a side, each look with a third of the allowed false
alarms, because looking again and again at the full level calls equal sides different.

Before that BASE runs some processes by itself, once per machine and workload: how much equal processes differ
here (lab.compare.floors).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lab.compare import floors as kept_floors
from lab.compare.floors import Floors
from lab.compare.gate import Verdict, judge
from lab.compare.in_image import PREFIX, command_in, end, image_named, inside
from lab.compare.samples import LOG, Process, processes
from lab.core.files import exclusive, holder_pid, make_folder
from lab.core.words import plural
from lab.errors import BusyError, MissingError, UsageError
from lab.images.spec import Image

LOOKS = (3, 6, 12)  # processes a side
PLACE = "{out}"  # in the command: the recording that this process writes
VARIABLE = "LAB_CHECK_OUT"  # the same, for a program that reads its environment
LAST_LINES = 5
AA = "aa"  # the folder of BASE's processes that measure the floors
TEMPORARY, HELD = "lab-check-", "held"  # a folder of worktrees, and the file in it that its check locks


class Side(NamedTuple):
    """`name` is base or head; the command runs in `folder`, with an image in a container of it."""

    name: str
    folder: Path
    image: Image | None = None
    commit: str = ""  # of a worktree, whose folder is another each time


def schedule(looks: Sequence[int] = LOOKS) -> list[tuple[int, str]]:
    """(round, side) of every process in order; round 0 warms up."""
    order = (("base", "head"), ("head", "base"))
    return [(turn, name) for turn in range(looks[-1] + 1) for name in order[turn % 2]]


@contextlib.contextmanager
def sides(base: str, head: str) -> Iterator[tuple[Side, Side]]:
    """Where each side's command runs: a folder as it is, a git revision in a worktree that goes away again,
    or an image (`image:NAME`) with the folder that the caller is in.

    Raises MissingError for what is none of these.
    """
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as root, contextlib.ExitStack() as stack:
        stack.enter_context(exclusive(Path(root) / HELD, busy="a check runs here", fix="run it again"))
        found = []
        for name, given in (("base", base), ("head", head)):
            if given.startswith(PREFIX):
                found.append(Side(name, Path.cwd(), image_named(given.removeprefix(PREFIX))))
            elif Path(given).is_dir():
                found.append(Side(name, Path(given)))
            else:
                commit = _git(
                    *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}"),
                    where=given,
                )
                _remove_left_over()
                folder = stack.enter_context(_worktree(given, commit, Path(root) / name))
                found.append(Side(name, folder, commit=commit))
        yield found[0], found[1]


def _remove_left_over() -> None:
    """The worktrees of checks that were killed: nobody holds their folders any more."""
    listed = _git("worktree", "list", "--porcelain", where="this repository").splitlines()
    for line in listed:
        folder = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and _is_left_over(folder.parent):
            # Another check may remove it at the same time: what is left is the next one's.
            words = ["git", "worktree", "remove", "--force", "--force", str(folder)]
            subprocess.run(words, capture_output=True, check=False)


def _is_left_over(root: Path) -> bool:
    """Whether a check of this user, which was killed, left this folder of worktrees."""
    held = root / HELD
    try:
        is_ours = root.name.startswith(TEMPORARY) and held.stat().st_uid == os.getuid()
    except OSError:  # not there, or in another user's folder
        return False
    return is_ours and holder_pid(held) is None


@contextlib.contextmanager
def _worktree(revision: str, commit: str, folder: Path) -> Iterator[Path]:
    _git("worktree", "add", "--detach", str(folder), commit, where=revision)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder), where=revision)


def _git(*words: str, where: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingError("git is not installed", where=where, fix="give two folders instead") from error
    if done.returncode:
        said = done.stderr.strip() or "no such folder or git revision here"
        raise MissingError(said, where=where, fix="name a folder, or a revision of the repository you are in")
    return done.stdout.strip()


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

    Raises UsageError for a command without a place for its recording, BusyError for a folder with earlier
    recordings, MissingError for a process that fails or records nothing.
    """
    if not command:
        raise UsageError(
            "no command to run", fix="lab check BASE HEAD -o OUT -- python train.py --trace {out}"
        )
    for name in (*(side.name for side in both), AA):
        folder = out / name
        if folder.is_dir() and any(folder.iterdir()):
            raise BusyError(
                "recordings of earlier processes are here",
                where=folder,
                fix=f"name another -o; what is here is judged by: lab check {out / 'base'} {out / 'head'}",
            )
    for side in both:
        make_folder(out / side.name)
    notes = _notes(both)
    for note in notes:
        say(note)
    floors = _floors(both[0], command, out, say) if with_floors else None
    by_name = {side.name: side for side in both}
    units: dict[str, list[Process]] = {side.name: [] for side in both}
    for turn, name in schedule():
        recording = _one(by_name[name], command, out / ("warm-up" if turn == 0 else name), turn)
        if turn:
            units[name] += processes(recording)
        say(f"{name} {turn} of {LOOKS[-1]}" + ("" if turn else ", warm-up, dropped"))
        done = min(len(one) for one in units.values())
        if done in LOOKS and len(units["base"]) == len(units["head"]):
            found = judge(units["base"], units["head"], allowed, looks=len(LOOKS), floors=floors)
            say(f"look at {plural(done, 'process', 'processes')} a side: {found.outcome}")
            if found.outcome != "undecided" or found.doubts or done == LOOKS[-1]:
                if floors and found.floors is None:
                    _forget(floors, found.floors_words, say)
                found.notes = notes
                return found
    raise AssertionError("the last look ends the loop")


def _notes(both: tuple[Side, Side]) -> list[str]:
    """What a reader of the verdict may take for compared, and is not."""
    base, head = (side.commit for side in both)
    found = []
    if base and base == head:
        found.append(f"BASE and HEAD are the same commit ({base[:12]}): equal programs are compared")
    changed = base and head and _git("status", "--porcelain", "--untracked-files=no", where="this checkout")
    if changed:
        found.append("the checkout has changes that are not committed: they are on neither side")
    return found


def _floors(base: Side, command: Sequence[str], out: Path, say: Callable[[str], None]) -> Floors:
    """Those of this machine and workload, measured now if there are none that are young enough and fit."""
    machine, workload = kept_floors.this_machine(), _workload(base, command)
    place = kept_floors.place_of(machine, workload)
    found, why = kept_floors.kept(place, time.time())
    if found is None:
        say(f"A/A floors: {why}; BASE runs {kept_floors.PROCESSES} processes by itself first")
        equal = [_aa(base, command, out, turn, say) for turn in range(kept_floors.PROCESSES + 1)]
        found = kept_floors.of_processes(equal[1:], machine, workload)
        kept_floors.save(found, place)
    kept_floors.save(found, out / kept_floors.FILE)
    return found


def _forget(floors: Floors, why: str, say: Callable[[str], None]) -> None:
    """Another workload under the same command: its floors are measured at the next check."""
    kept_floors.place_of(floors.machine, floors.workload).unlink(missing_ok=True)
    say(f"{why} They are measured again at the next check.")


def _aa(base: Side, command: Sequence[str], out: Path, turn: int, say: Callable[[str], None]) -> Process:
    (found,) = processes(_one(base, command, out / (AA if turn else "warm-up"), turn, AA))
    say(f"A/A {turn} of {kept_floors.PROCESSES}" + ("" if turn else ", warm-up, dropped"))
    return found


def _workload(base: Side, command: Sequence[str]) -> dict[str, str]:
    """What tells one workload from another: the command, where it runs, and the image."""
    place = Path.cwd() if base.commit else base.folder.resolve()
    image = f"{base.image.name} {base.image.ref}" if base.image else "none"
    return {"command": "\0".join(command), "folder": str(place), "image": image}


def _one(side: Side, command: Sequence[str], folder: Path, turn: int, label: str = "") -> Path:
    """One fresh process; its recording."""
    make_folder(folder)
    recording = (folder / f"{label or side.name}_{turn:02}.json").resolve()
    log = recording.with_suffix(LOG)
    with log.open("wb") as file:
        code = _start(side, command, recording, file)
    if code:
        last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise MissingError(
            f"{side.name}, process {turn}, ended with {code}: " + (" | ".join(last) or "it printed nothing"),
            where=log,
            fix="a process that fails is no sample: mend it, or see its log",
        )
    if not recording.is_file():
        raise MissingError(
            f"{side.name}, process {turn}, wrote no recording",
            where=recording,
            fix=f"write a trace to {PLACE} in the command, or to the path in {VARIABLE}",
        )
    return recording


def _start(side: Side, command: Sequence[str], recording: Path, log: BinaryIO) -> int:
    """Run the command to its end, here or in the side's image; its exit code."""
    place = inside(recording) if side.image else str(recording)
    words = [word.replace(PLACE, place) for word in command]
    env, name = {**os.environ, VARIABLE: place}, f"lab-check-{os.getpid()}-{time.monotonic_ns()}"
    if side.image:
        words = command_in(side.image, words, side.folder, recording.parent, {VARIABLE: place}, name)
        env = dict(os.environ)
    try:
        return subprocess.run(
            words,
            cwd=side.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    except OSError as error:
        raise MissingError(f"cannot start {words[0]}: {error.strerror}", where=side.folder) from error
    except BaseException:
        if side.image:
            end(name)  # the engine goes on with a container whose client was interrupted
        raise
