"""Analysis of a run or a recording: here in this process, or in the torch-free cpu image."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from lab import images
from lab.console import Console
from lab.core.files import make_folder
from lab.core.manifest import ImageRecord
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.engines.base import Engine
from lab.engines.stop import on_signals
from lab.errors import EngineError, Interrupted, writing
from lab.rooms import Findings, room, room_of
from lab.survey import Options

STAGING = ".analysis"
LIMIT_S = 3600.0  # traces come from outside: an analysis that never ends is an error, not a wait


def analyse(folder: Path, out: Path | None, console: Console) -> Findings:
    """Tables, figures and page of a run, or of a recording that lab did not make."""
    run = Run.open(folder) if Run.is_run(folder) else None
    house = room(run.manifest.room) if run else room_of(folder)
    target = out or home_of(folder)
    make_folder(target)
    return house.analyse(folder, target, run, console.detail)


def home_of(folder: Path) -> Path:
    """Where an analysis goes by itself: into a run of lab; a recording that lab did not make is not written to."""
    if Run.is_run(folder):
        return folder
    return Path("experiments") / f"{folder.resolve().name}_analysis"


def analyse_run(run: Run, engine: Engine, options: Options, console: Console) -> Findings | None:
    """After the steps: in the cpu image where the steps ran in containers, else here; not at all if so asked."""
    if options.analysis == "none":
        return None
    if engine.name == "docker" and options.analysis == "auto":
        return analyse_in_image(run, console)
    return analyse(run.root, None, console)


class Told(msgspec.Struct):
    """Findings as `lab analyze --json` tells them. `paths` becomes `files`."""

    verdict: list[str]
    status: str
    paths: list[str] = msgspec.field(name="files")
    terminal: str
    lacking: list[str]

    @property
    def files(self) -> list[Path]:
        return [Path(path) for path in self.paths]


def analyse_in_image(run: Run, console: Console) -> Told:
    """`lab analyze` in a container: the run read-only at /in, no network, no GPU; the results are moved into the run.

    Raises EngineError when the container brings no findings; nothing falls back to this host silently.
    """
    from lab.engines.docker import DockerEngine, place

    image = images.load("cpu")
    staging = run.root / STAGING / "out"
    shutil.rmtree(run.root / STAGING, ignore_errors=True)
    make_folder(staging)
    step = Step(name="analysis", argv=("lab",), folder=STAGING, timeout_s=LIMIT_S)
    spec = images.analysis_spec(image, place(str(staging.absolute()), ()), inputs=str(run.root.absolute()))
    lines: list[str] = []
    engine = DockerEngine(image)
    console.detail(f"analysis in {image.ref}")
    if warning := two_labs(run.manifest.image, engine.image_record(image.ref)):
        console.say(f"note: {warning}")
    with on_signals(console.say) as stop:
        outcome = engine.run_spec(run, step, spec, on_line=lines.append, stop=stop)
    if stop.is_set():
        raise Interrupted("the analysis was interrupted; the run is complete", where=run.root,
                          fix=f"lab analyze {run.root}")  # fmt: skip
    told = _told(lines, outcome, run)
    _move_in(staging, run.root)
    shutil.rmtree(run.root / STAGING)
    return told


def two_labs(measured: ImageRecord | None, analysing: ImageRecord) -> str | None:
    """A warning when the image that measured and the one that analyses were built from different trees."""
    wheels = (measured.wheel_sha256 if measured else None, analysing.wheel_sha256)
    if measured is None or None in wheels or wheels[0] == wheels[1]:
        return None
    return f"{measured.ref} and {analysing.ref} hold different labs; `lab images build` makes them one"


def _told(lines: list[str], outcome: Outcome, run: Run) -> Told:
    """The findings among the container's lines, with its paths made those of the host."""
    answer = next((line for line in reversed(lines) if line.startswith("{")), None)
    if answer is None:
        words = "\n".join(f"  | {line}" for line in outcome.tail[-15:])
        raise EngineError(f"the analysis in the image {outcome.status.value}: {outcome.reason}\n{words}", where=run.root,
                          fix=f"lab analyze {run.root} analyses here; --analysis host asks for that at once")  # fmt: skip
    try:
        told = msgspec.json.decode(answer, type=Told)
    except msgspec.DecodeError as error:
        raise EngineError(f"the lab in the image speaks another language than this one: {error}", where="lab/cpu",
                          fix="lab images build cpu") from error  # fmt: skip
    return msgspec.structs.replace(
        told,
        paths=[path.replace("/out", str(run.root), 1) for path in told.paths],
        terminal=told.terminal.replace("/out/", f"{run.root}/"),
    )


def _move_in(staging: Path, root: Path) -> None:
    """Put new results in the place of old ones, each by a rename."""
    for new in sorted(staging.iterdir()):
        old, aside = root / new.name, root / STAGING / f"old_{new.name}"
        with writing(old):
            if old.is_dir():
                old.rename(aside)
            new.rename(old)
