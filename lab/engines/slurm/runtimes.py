"""A step inside the container runtime of the site, apptainer or pyxis: what lab.images.container decides, in
the words of their command lines.

Built from the tools' manuals and sources, and never run against them: docs/slurm.md says so.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.core.stop import Stop
from lab.engines.base import OnLine
from lab.engines.docker.host import host_context, node_name
from lab.engines.docker.refusals import checked
from lab.engines.docker.which_lab import with_lab
from lab.engines.local.engine import LocalEngine
from lab.errors import MissingError, UsageError
from lab.gpus.selection import visible_env
from lab.images.container import TMP, ContainerSpec, Mount, container_spec
from lab.images.spec import LOCAL, Image, registry_of

IMAGE_FILES = "LAB_IMAGE_FILES"  # a folder that all nodes see, with NAME.sif or NAME.sqsh
FABRIC = "/dev/infiniband"


@dataclass(frozen=True)
class Command:
    """What is started on the node: a command line, and the variables it gets on top of the node's."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class WrappedEngine(LocalEngine):
    """Runs steps through apptainer or pyxis, with the command, mounts and variables of a Docker container."""

    def __init__(self, runtime: str, image: Image, *, grace_s: float) -> None:
        # The container's variables name the GPUs, not those of apptainer or srun.
        super().__init__(vendor="none", grace_s=grace_s)
        self.name, self.image = runtime, image

    def run(self, run: Run, step: Step, gpus: Sequence[Gpu], *, on_line: OnLine, stop: Stop) -> Outcome:
        spec = checked(with_lab(self._spec(step, gpus, str(run.root.absolute())), run, step, self.image))
        with tempfile.TemporaryDirectory(prefix="lab-scratch-") as scratch:
            return super().run(
                run, self._wrapped(step, spec, gpus, scratch), gpus, on_line=on_line, stop=stop
            )

    def preview(self, step: Step, gpus: Sequence[Gpu], *, run_dir: str) -> dict[str, object]:
        wrapped = self._wrapped(step, self._spec(step, gpus, run_dir), gpus, "<scratch folder of the node>")
        return super().preview(wrapped, gpus, run_dir=run_dir)

    def _launched(self, run: Run, step: Step) -> list[str]:
        return self._argv(step)

    def _lab_env(self, run: Run, step: Step) -> dict[str, str]:
        """Nothing for apptainer or srun themselves: the container has the run's lab in its own variables."""
        return {}

    def _wrapped(self, step: Step, spec: ContainerSpec, gpus: Sequence[Gpu], scratch: str) -> Step:
        command = COMMANDS[self.name](spec, self.image.vendor, gpus, scratch)
        return msgspec.structs.replace(step, argv=command.argv, env=dict(command.env), tools=())

    def _spec(self, step: Step, gpus: Sequence[Gpu], run_dir: str) -> ContainerSpec:
        return container_spec(self.image, step, gpus, host_context(run_dir, gpus))


def apptainer(spec: ContainerSpec, vendor: str, gpus: Sequence[Gpu], scratch: str) -> Command:
    """`apptainer exec` with nothing of the host but the mounts; HOME and /tmp are folders in `scratch`.

    Variables go by APPTAINERENV_, because --env splits values at commas. HOME cannot be set that way.
    """
    flag = {"nvidia": ("--nv",), "amd": ("--rocm",)}.get(vendor, ()) if gpus else ()
    fabric = [Mount(source=FABRIC, target=FABRIC)] if any(d.startswith(FABRIC) for d in spec.devices) else []
    binds = (word for mount in (*spec.mounts, *fabric) for word in ("--mount", _apptainer_mount(mount)))
    isolation = ("--cleanenv", "--contain", "--workdir", scratch, "--pwd", spec.working_dir)
    env = {
        f"APPTAINERENV_{name}": value for name, value in _env(spec, vendor, gpus).items() if name != "HOME"
    }
    return Command(
        argv=("apptainer", "exec", *isolation, *flag, *binds, apptainer_image(spec.image), *spec.command),
        env=env,
    )


def pyxis(spec: ContainerSpec, vendor: str, gpus: Sequence[Gpu], scratch: str) -> Command:
    """`srun` with pyxis' options, as a step of this job on this node.

    Of the node's variables only SLURM's and those of the spec go along; these win over the image's own.
    """
    env = _env(spec, vendor, gpus)
    mounts = ",".join(_pyxis_mount(mount) for mount in (*spec.mounts, Mount(source=scratch, target=TMP)))
    return Command(
        argv=(
            *("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node_name()}"),
            *(f"--export={','.join(env)}", f"--container-env={','.join(env)}"),
            *(f"--container-image={pyxis_image(spec.image)}", f"--container-mounts={mounts}"),
            *(f"--container-workdir={spec.working_dir}", "--no-container-mount-home"),
            "--no-container-entrypoint",
            *spec.command,
        ),
        env=env,
    )


COMMANDS = {"apptainer": apptainer, "pyxis": pyxis}


def apptainer_image(ref: str) -> str:
    """A file of LAB_IMAGE_FILES; else the registry that the reference names, else the node's Docker."""
    registry, name, tag = _split(ref)
    daemon = f"docker-daemon:{name}{tag}"
    pulled = f"docker://{registry}/{name}{tag}" if registry else daemon
    return _image_file(name, ".sif", f"apptainer build {{}} {daemon}") or pulled


def pyxis_image(ref: str) -> str:
    """The same as enroot writes it, with a # behind the registry."""
    registry, name, tag = _split(ref)
    daemon = f"dockerd://{name}{tag}"
    pulled = f"docker://{registry}#{name}{tag}" if registry else daemon
    return _image_file(name, ".sqsh", f"enroot import -o {{}} {daemon}") or pulled


def _env(spec: ContainerSpec, vendor: str, gpus: Sequence[Gpu]) -> dict[str, str]:
    """The container's variables. Both tools show it all of the job's GPUs, so these name its own."""
    return {**spec.env, **(visible_env(gpus, vendor) if gpus else {})}


def _split(ref: str) -> tuple[str, str, str]:
    """A reference as its registry, its name in that, and its tag or digest (`:latest` if it has neither).

    The registry is "" for a name of the local engine, which nothing may pull.
    """
    match = re.fullmatch(r"(.+?)(@sha256:[0-9a-f]+|:[\w.-]+)?", ref)
    assert match
    registry = registry_of(match[1])
    if not registry or registry == LOCAL:
        return "", match[1], match[2] or ":latest"
    return registry, match[1].removeprefix(f"{registry}/"), match[2] or ":latest"


def _image_file(name: str, suffix: str, made_by: str) -> str | None:
    folder = os.environ.get(IMAGE_FILES)
    if not folder:
        return None
    path = Path(folder) / f"{name.rpartition('/')[2]}{suffix}"
    if not path.is_file():
        raise MissingError(
            f"{IMAGE_FILES} names a folder without the image's file", location=path, fix=made_by.format(path)
        )
    return str(path)


def _apptainer_mount(mount: Mount) -> str:
    """One line of CSV, so that any path is just a path."""
    line = io.StringIO()
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}"]
    csv.writer(line, lineterminator="").writerow([*fields, *(["ro"] if mount.read_only else [])])
    return line.getvalue()


def _pyxis_mount(mount: Mount) -> str:
    if re.search(r"[,:]", mount.source):
        raise UsageError(
            f"pyxis cannot mount a path with a comma or colon: {mount.source}", fix="rename the folder"
        )
    return f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
