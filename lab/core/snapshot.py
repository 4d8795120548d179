"""The lab that a run's steps import: a copy in the run folder, made once, so that later edits do not run.

Every process of a step gets the copy's hash in its environment and checks itself (`lab.core.content`).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import lab
from lab.core import content
from lab.core.content import EXPECTED, content_sha256, is_left_out
from lab.core.files import make_folder
from lab.core.gpu import ATTEMPT, REPORTED, STEP
from lab.core.manifest import Lab
from lab.core.run import IMPORTED, LAB, REPORT, Run
from lab.core.step import Step
from lab.errors import BusyError, writing
from lab.native import PACKAGED


def package_folder() -> Path:
    """The package that this process imports."""
    return Path(lab.__file__).absolute().parent


def take_snapshot(root: Path, identity: Lab) -> None:
    """Copy the lab of this process into the run folder, unless it is there.

    Raises BusyError when the files were edited since `identity` was read.
    """
    target = Path(import_path(str(identity.sha256), str(root)))
    if (target / "lab").is_dir() and content_sha256(target / "lab") == identity.sha256:
        return
    new, package = root / LAB / ".new", package_folder()
    with writing(root / LAB):
        for old in (new, target):
            shutil.rmtree(old, ignore_errors=True)
        make_folder(new)
        shutil.copytree(package, new / "lab", ignore=lambda _, names: list(filter(is_left_out, names)))
        shutil.copytree(_images_data(package), new / "lab" / "_images")
        if PACKAGED.is_dir():
            shutil.copytree(PACKAGED, new / "lab" / PACKAGED.name)
        if content_sha256(new / "lab") != identity.sha256:
            shutil.rmtree(new)
            raise BusyError(
                "lab was edited while this run began", location=package, fix="start again when it is saved"
            )
        new.rename(target)


def import_path(sha256: str, root: str) -> str:
    """What comes first on sys.path; `root` is the run folder as the step sees it."""
    return f"{root}/{LAB}/{sha256[:16]}"


def step_env(run: Run, step: Step, root: str, inherited: str = "") -> dict[str, str]:
    """The variables that make a step import the run's lab, and say so; {} for a run that names none.

    `inherited`: PYTHONPATH as it would be without them.
    """
    identity = run.manifest.lab
    if identity.sha256 is None:
        return {}
    report = PurePosixPath(root) / step.folder / IMPORTED
    shown = {"PYTHONPATH": ":".join(filter(None, [import_path(identity.sha256, root), inherited]))}
    import_env = shown if identity.used != "image" else {}
    return {EXPECTED: identity.sha256, content.REPORT: str(report), **import_env}


def launched(run: Run, step: Step, root: str, python: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The command behind a program of the run's lab that reports what the step sees, then becomes it."""
    if run.manifest.lab.sha256 is None:
        return tuple(argv)
    program = f"{import_path(run.manifest.lab.sha256, root)}/lab/workload/launch.py"
    report = f"{root}/{PurePosixPath(step.folder) / REPORT}"
    return (python, "-I", "-S", program, report, "--", *argv)


def report_env(run: Run, step: Step) -> dict[str, str]:
    """What identifies the step's processes, and its report."""
    names = {REPORTED: ",".join(step.env)} if step.env else {}
    return {STEP: f"{run.manifest.id}/{step.name}", ATTEMPT: str(run.attempt(step)), **names}


def imports_lab(step: Step) -> bool:
    """Whether the step's command runs a module of lab, and so must report what it imported."""
    pairs = zip(step.argv, step.argv[1:], strict=False)
    return any(flag == "-m" and module.split(".")[0] == "lab" for flag, module in pairs)


def _images_data(package: Path) -> Path:
    """Beside the package in a checkout, inside it in a wheel."""
    inside = package / "_images"
    return inside if inside.is_dir() else package.parent / "images"
