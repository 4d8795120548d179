"""A step inside the container runtime of the site: its command line with apptainer's or pyxis' in front.

Built from the tools' manuals and never run against them: docs/slurm.md says so.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from lab.core.run import Run
from lab.core.step import Step
from lab.engines.local.engine import LocalEngine
from lab.errors import EngineError


class WrappedEngine(LocalEngine):
    """Runs steps through apptainer or pyxis. The run folder is /out inside, as with the Docker engine."""

    def __init__(self, runtime: str, ref: str, *, vendor: str, grace_s: float) -> None:
        super().__init__(vendor=vendor, grace_s=grace_s)
        self.name, self._runtime, self._ref = runtime, runtime, ref

    def _command(self, run: Run, step: Step) -> list[str]:
        argv = wrapped(self._runtime, self._ref, self.vendor, str(run.root.absolute()), step.argv)
        return super()._command(run, msgspec.structs.replace(step, argv=argv))


def wrapped(runtime: str, ref: str, vendor: str, run_dir: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line of a step in the site's container runtime."""
    if runtime == "apptainer":
        gpu = {"nvidia": ("--nv",), "amd": ("--rocm",)}.get(vendor, ())
        image = ref if "://" in ref or ref.endswith(".sif") else f"docker-daemon://{ref}"
        mounts = ("--no-home", "--bind", f"{run_dir}:/out", "--pwd", "/out")
        return ("apptainer", "exec", *gpu, *mounts, image, *argv)
    if runtime == "pyxis":
        here = ("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={socket.gethostname()}")
        folders = (
            f"--container-mounts={run_dir}:/out",
            "--container-workdir=/out",
            "--no-container-mount-home",
        )
        return (*here, f"--container-image={ref}", *folders, *argv)
    raise EngineError(f"there is no container runtime {runtime!r}", fix="none, docker, pyxis or apptainer")
