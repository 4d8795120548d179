"""`lab check BASE HEAD -- CMD`: both sides in fresh processes, interleaved, until the gate can decide.

The order is B H H B B H H B, so that drift of the machine falls on both. The first process of each side warms
up and is dropped. A check that was stopped begins again with another folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from lab.compare.check import FOLDER as SECOND
from lab.compare.check import LOOKS, SHARES, Verdict, confirmed, judge
from lab.compare.check.samples import LOG, Process, processes
from lab.core.files import exclusive, make_folder, write_atomic
from lab.core.step import Step
from lab.core.words import plural
from lab.engines.docker.client import ask
from lab.engines.docker.host import host_context
from lab.engines.local.process import guarded
from lab.errors import BusyError, EngineError, MissingError, UsageError
from lab.gpus.discover import discover
from lab.images import spec as images
from lab.images.command_line import arguments_of
from lab.images.container import Mount, container_spec
from lab.images.docker_cli import endpoint_of, engine_cli
from lab.images.spec import Image, Vendor

PLACE = "{out}"  # in the command: the recording that this process writes
VARIABLE = "LAB_CHECK_OUT"  # the same, for a program that reads its environment
FILE = "check.json"  # the verdict, beside base/ and head/
LAST_LINES = 5
LOCK, RUNNING = ".lock", ".running"  # held by the check, and by the guard of its process
GRACE_S = 10.0
CONTAINER = "lab-check-"  # what the name of every container of a check begins with
KILLED = 137  # of a process whose guard was killed with it
Say = Callable[[str], None]


def schedule(rounds: int) -> list[tuple[int, str]]:
    """(round, side) of every process in order; round 0 warms up."""
    # Warming GPUs and other load drift: B H H B gives both sides the same share of a linear drift.
    order = (("base", "head"), ("head", "base"))
    return [(turn, name) for turn in range(rounds + 1) for name in order[turn % 2]]


def repeat(sides: tuple[Side, Side], command: Sequence[str], out: Path, allowed: float, say: Say) -> Verdict:
    """Run processes until the gate decides or the last look is over; recordings and logs stay in `out`.

    Raises BusyError for earlier recordings or a check that runs, MissingError for a process that fails.
    """
    if not command:
        raise UsageError(
            "no command to run", fix="lab check BASE HEAD -o OUT -- python train.py --trace {out}"
        )
    make_folder(out)
    with exclusive(out / LOCK, busy="another lab check runs in this folder", fix="wait for it"):
        for name in ("base", "head", SECOND):
            # Mixed with recordings of another time, drift of the machine would look like a change.
            if (out / name).is_dir() and any((out / name).iterdir()):
                raise BusyError(
                    "recordings of earlier processes are here",
                    location=out / name,
                    fix=f"name another -o; these are judged by: lab check {out / 'base'} {out / 'head'}",
                )
        about_sides = notes(sides)
        for note in about_sides:
            say(note)
        runs = _Runs(sides, command, out, say)
        runs.warm_up()
        verdict, of_looks = _looked_at(runs, allowed, say)
        verdict.notes = [*verdict.notes, *about_sides, *of_looks]
        write_atomic(out / FILE, msgspec.json.format(msgspec.json.encode(verdict), indent=1) + b"\n")
        return verdict


def _looked_at(runs: _Runs, allowed: float, say: Say) -> tuple[Verdict, list[str]]:
    """The verdict of the first look that decides, and notes of those before it.

    What one look proves has to show in as many processes of a second set alone. What few of them do not show,
    more of both sets may.
    """
    of_looks: list[str] = []
    for count in LOOKS:
        verdict = judge(*runs.upto(count), allowed, share=SHARES[count])
        n = plural(count, "process", "processes")
        say(f"look at {n} per side: {verdict.outcome}")
        if verdict.outcome == "regression":
            say(f"a slowdown is proven: a second set of {count} per side has to show it, too")
            verdict = confirmed(verdict, *runs.upto(count, SECOND))
            if verdict.outcome != "regression" and not verdict.doubts and count < LOOKS[-1]:
                of_looks.append(f"the look at {n} per side proved a slowdown that a second set did not show")
                say(f"{of_looks[-1]}: going on")
                continue
        if verdict.outcome != "undecided" or verdict.doubts:
            break
    return verdict, of_looks


class _Runs:
    """The processes of one check."""

    def __init__(self, sides: tuple[Side, Side], command: Sequence[str], out: Path, say: Say) -> None:
        self.sides = {side.name: side for side in sides}
        self.command, self.out, self.say = command, out, say
        self.sets: dict[str, dict[str, list[Process]]] = {}  # by folder and side, in the order of the rounds

    def warm_up(self) -> None:
        for name, side in self.sides.items():
            self._run(side, self.out / "warm-up" / f"{name}_00.json", 0)
            self.say(f"{name} 0, warm-up, dropped")

    def upto(self, rounds: int, folder: str = "") -> tuple[list[Process], list[Process]]:
        """The first `rounds` processes of both sides, those that have not run yet after they have; folder:
        of the set, in `out`."""
        samples = self.sets.setdefault(folder, {name: [] for name in self.sides})
        # +1: round 0 of the schedule is the warm-up.
        for turn, name in schedule(rounds)[2 * (len(samples["base"]) + 1) :]:
            label = f"{folder}_{name}" if folder else name
            recording = self.out / folder / name / f"{label}_{turn:02}.json"
            self._run(self.sides[name], recording, turn)
            self.say(f"{f'{folder} set: ' if folder else ''}{name} {turn} of {rounds}")
            samples[name] += processes(recording)
        return samples["base"], samples["head"]

    def _run(self, side: Side, recording: Path, turn: int) -> None:
        """One fresh process, which writes `recording`. Raises MissingError if it fails or writes none."""
        make_folder(recording.parent)
        log = recording.with_suffix(LOG)
        with log.open("wb") as file:
            code = self._start(side, recording.resolve(), file)
        if code:
            last_lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise MissingError(
                f"{side.name}, process {turn}, ended with {code}: "
                + (" | ".join(last_lines) or "it printed nothing"),
                location=log,
                fix="a process that fails cannot be a sample: mend it, or see its log",
            )
        if not recording.is_file():
            raise MissingError(
                f"{side.name}, process {turn}, wrote no recording",
                location=recording,
                fix=f"write a trace to {PLACE} in the command, or to the path in {VARIABLE}",
            )

    def _start(self, side: Side, recording: Path, log: BinaryIO) -> int:
        """Run the command to its end, here or in the side's image, under a guard: nothing that it started
        outlives it, or lab. Its exit code."""
        path = f"{OUT}/{recording.name}" if side.image else str(recording)
        words = [word.replace(PLACE, path) for word in self.command]
        env = {**os.environ, VARIABLE: path}
        # Named by the path of the recording, so two checks never take each other's container.
        digest = hashlib.sha256(str(recording).encode()).hexdigest()[:12]
        name = f"{CONTAINER}{digest}-{recording.stem}"
        if side.image:
            words = command_in(side.image, words, side.folder, recording.parent, {VARIABLE: path}, name)
            env = dict(os.environ)
        try:
            with guarded(
                words,
                name=name,
                cwd=side.folder,
                env=env,
                lock=self.out.resolve() / RUNNING,
                grace_s=GRACE_S,
            ) as process:
                shutil.copyfileobj(process.output, log)  # to the end of the guard, which is its last owner
                report = process.report()
        except BaseException:
            if side.image:
                remove_container(name)  # the engine goes on with a container whose client was interrupted
            raise
        if "start_error" in report:
            raise MissingError(f"cannot start {report['start_error']}", location=side.folder)
        return int(report.get("exit_code", KILLED))


PREFIX = "image:"  # before the name of an image, so that no folder or revision is taken for one
WORK, OUT = "/work", "/out"  # inside: where the command runs, read-only, and where its recordings go
ENGINE_S = 60.0  # under load an engine is slow, and would be taken for one that maps no users


class Side(NamedTuple):
    """`name` is base or head; the command runs in `folder`, with an image in a container of it."""

    name: str
    folder: Path
    image: Image | None = None
    commit: str = ""  # of a worktree, whose folder is another each time


@contextlib.contextmanager
def sides(base: str, head: str) -> Iterator[tuple[Side, Side]]:
    """Where each side's command runs: a folder as it is, a git revision in a worktree that goes away again,
    or an image (`image:NAME`) with the folder that the caller is in.

    Raises MissingError for what is none of these.
    """
    with tempfile.TemporaryDirectory(prefix="lab-check-") as root, contextlib.ExitStack() as stack:
        pair = []
        for name, text in (("base", base), ("head", head)):
            if text.startswith(PREFIX):
                pair.append(Side(name, Path.cwd(), image_named(text.removeprefix(PREFIX))))
            elif Path(text).is_dir():
                pair.append(Side(name, Path(text)))
            else:
                commit = _git(
                    # A revision that begins with `-` must not become an option of git.
                    *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"),
                    location=text,
                )
                folder = stack.enter_context(_worktree(text, commit, Path(root) / name))
                pair.append(Side(name, folder, commit=commit))
        yield pair[0], pair[1]


@contextlib.contextmanager
def _worktree(revision: str, commit: str, folder: Path) -> Iterator[Path]:
    _git("worktree", "add", "--detach", str(folder), commit, location=revision)
    try:
        yield folder
    finally:
        # --force, because the command may have left files in it.
        _git("worktree", "remove", "--force", str(folder), location=revision)


def _git(*words: str, location: str) -> str:
    try:
        result = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingError("git is not installed", location=location, fix="give two folders") from error
    if result.returncode:
        raise MissingError(
            result.stderr.strip() or "no such folder or git revision here",
            location=location,
            fix="name a folder, or a revision of the repository you are in",
        )
    return result.stdout.strip()


def notes(pair: tuple[Side, Side]) -> list[str]:
    """Notes on what was not compared though a reader may expect it."""
    base, head = (side.commit for side in pair)
    texts = []
    if base and base == head:
        texts.append(f"BASE and HEAD are the same commit ({base[:12]}): equal programs are compared")
    status = ("status", "--porcelain", "--untracked-files=no")
    if base and head and _git(*status, location="this checkout"):
        texts.append("the checkout has changes that are not committed: they are on neither side")
    return texts


def image_named(text: str) -> Image:
    """One of lab's images by name, else any reference that the engine has.

    Of a stranger's image the vendor is that of this machine's GPUs. Raises UsageError for no name.
    """
    if not text or text.startswith("-"):
        raise UsageError(f"{PREFIX}{text} names no image", fix=f"{PREFIX}cuda, or {PREFIX}REFERENCE")
    if text in images.names():
        return images.load(text)
    gpus = discover()
    vendor: Vendor = "none" if not gpus else "amd" if gpus[0].vendor == "amd" else "nvidia"
    return Image(
        name="given",
        summary="",
        vendor=vendor,
        ref=text,
        base="",
        python="python3",
        python_version="",
        dockerfile="",
    )


def command_in(
    image: Image, words: Sequence[str], folder: Path, out: Path, variables: dict[str, str], name: str
) -> list[str]:
    """The engine's command line: `folder` read-only at /work, `out` at /out, this machine's GPUs if the image
    is for them, no network. Nothing is pulled. Raises EngineError where no engine is here."""
    cli = engine_cli()
    if cli is None:
        raise EngineError("neither docker nor podman is on PATH", fix="install one: see lab doctor")
    gpus = [gpu for gpu in discover() if gpu.vendor == image.vendor]
    host = host_context(str(out), gpus, ask(endpoint_of(os.environ), ENGINE_S))
    spec = container_spec(image, Step(name="check", argv=tuple(words), num_gpus=len(gpus)), gpus, host)
    spec = msgspec.structs.replace(
        spec,
        env={**spec.env, **variables},
        mounts=(*spec.mounts, Mount(source=str(folder), target=WORK, read_only=True)),
        working_dir=WORK,
    )
    return [*cli, "run", "--rm", "--pull", "never", "--name", name, *arguments_of(spec)]


def remove_container(name: str) -> None:
    """Remove a container whose client was interrupted. Raises EngineError for an engine that hangs."""
    if cli := engine_cli():
        try:
            subprocess.run([*cli, "rm", "--force", name], capture_output=True, check=False, timeout=ENGINE_S)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"the engine did not remove the container {name} in {ENGINE_S:g} s",
                fix="see lab doctor",
            ) from error
