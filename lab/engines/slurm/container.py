"""A step inside the container runtime of the site: its command line with apptainer's or pyxis' in front.

Built from the tools' manuals and never run against them: docs/slurm.md says so.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from lab.core.run import LAB, Run
from lab.core.snapshot import step_env
from lab.core.step import Step
from lab.engines.local.engine import LocalEngine
from lab.errors import EngineError


class WrappedEngine(LocalEngine):
    """Runs steps through apptainer or pyxis. The run folder is /out inside, as with the Docker engine."""

    def __init__(self, runtime: str, ref: str, *, vendor: str, grace_s: float) -> None:
        super().__init__(vendor=vendor, grace_s=grace_s)
        self.name, self._runtime, self._ref = runtime, runtime, ref

    def _command(self, run: Run, step: Step) -> list[str]:
        mounted, run_dir = run.manifest.lab.used == "mounted", str(run.root.absolute())
        argv = wrapped(self._runtime, self._ref, self.vendor, run_dir, step.argv, mounted=mounted)
        return super()._command(run, msgspec.structs.replace(step, argv=argv))

    def _lab_env(self, run: Run, step: Step) -> dict[str, str]:
        """Both runtimes pass the environment on; paths are those inside."""
        return step_env(run, step, "/out", step.env.get("PYTHONPATH", ""))


def wrapped(
    runtime: str, ref: str, vendor: str, run_dir: str, argv: Sequence[str], *, mounted: bool = False
) -> tuple[str, ...]:
    """The command line of a step in the site's container runtime; `mounted`: with the run's lab read-only."""
    folders = [f"{run_dir}:/out", *([f"{run_dir}/{LAB}:/out/{LAB}:ro"] if mounted else [])]
    if runtime == "apptainer":
        gpu = {"nvidia": ("--nv",), "amd": ("--rocm",)}.get(vendor, ())
        image = ref if "://" in ref or ref.endswith(".sif") else f"docker-daemon://{ref}"
        binds = (word for folder in folders for word in ("--bind", folder))
        return ("apptainer", "exec", *gpu, "--no-home", *binds, "--pwd", "/out", image, *argv)
    if runtime == "pyxis":
        here = ("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={socket.gethostname()}")
        inside = (
            f"--container-mounts={','.join(folders)}",
            "--container-workdir=/out",
            "--no-container-mount-home",
        )
        return (*here, f"--container-image={ref}", *inside, *argv)
    raise EngineError(f"there is no container runtime {runtime!r}", fix="none, docker, pyxis or apptainer")
