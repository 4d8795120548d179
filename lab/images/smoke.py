"""`lab images smoke`: whether a built image works, by lab's own commands and small experiments run in it.

A container gets exactly what `lab run` would give it. Stand-ins for GPUs, if asked for, test how GPUs reach
the container; the experiment computes on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from lab.core.gpu import PROMISE, Gpu
from lab.core.step import Step
from lab.images import spec as images
from lab.images.check import Row
from lab.images.command_line import arguments_of
from lab.images.container import ContainerSpec, HostContext, UserMapping, container_spec
from lab.images.docker_cli import engine_cli, id_of, listed
from lab.images.spec import Image
from lab.images.targets import Target, targets

Rooms = Mapping[str, tuple[str, ...]]


class Box(NamedTuple):
    """What containers are tried with here: the engine's users, and GPUs of this host."""

    user_mapping: UserMapping = "same"
    cdi: bool = False
    gpus: tuple[Gpu, ...] = ()  # an image gets those of its vendor
    device_gids: tuple[str, ...] = ()


TIMEOUT_S = 300.0
ORDINARY_UID = 1234  # what root runs containers as
STAND_INS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001")

ANALYSIS = """
import matplotlib, pandas, pyarrow, isal.igzip, jinja2
import importlib, pathlib, pkgutil
from lab import rooms
for name in rooms.names():
    room = importlib.import_module(f"lab.rooms.{name}")
    for part in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
        if part.name.endswith((".analyze", ".findings", ".report")):
            importlib.import_module(part.name)
from lab.report import figures
matplotlib.use("Agg")
from matplotlib import pyplot
figure, axes = pyplot.subplots()
axes.plot([0, 1], [1, 0])
figure.savefig("/out/figure.png")
from lab.report.excel import write_workbook
write_workbook({"kernels": pandas.DataFrame({"dur_us": [1.0, 2.0]})}, pathlib.Path("/out/table.xlsx"))
print("figure and workbook written")
"""
BASICS = {"version": ("lab", "--version"), "doctor": ("lab", "doctor")}
FOR_ANALYSIS = {**BASICS, "analysis": ("python3", "-c", ANALYSIS)}


def smoke(
    names: Sequence[str],
    rooms: Rooms,
    *,
    stand_in: bool = False,
    box: Box | None = None,
) -> Iterator[Row]:
    """One row per command, as they end. An image that is not built fails, because it was asked for.

    rooms: name -> the arguments of `lab run` for its smallest experiment. A container that gets GPUs of `box`
    fails unless it sees them all.
    """
    ids, cli = listed(), engine_cli() or ()
    for target in targets(names):
        if not id_of(target.ref, ids):
            detail = f"not built: lab images build {target.name}"
            yield Row(image=target.name, check="built", state="failed", detail=detail)
            continue
        with tempfile.TemporaryDirectory(prefix="lab-smoke-") as folder:
            yield from _smoke_one(cli, target, Path(folder), rooms, stand_in, box or Box())


def _smoke_one(
    cli: Sequence[str],
    target: Target,
    folder: Path,
    rooms: Rooms,
    stand_in: bool,
    box: Box,
) -> Iterator[Row]:
    image = images.load(target.image)
    for_analysis = bool(image.workload_ref) and target.ref == image.ref
    gpus = gpu_stand_ins(image, folder) if stand_in else [g for g in box.gpus if g.vendor == image.vendor]
    host = msgspec.structs.replace(_host(folder), user_mapping=box.user_mapping, cdi=box.cdi)
    if gpus and not stand_in:
        host = msgspec.structs.replace(host, device_gids=box.device_gids)
    commands = FOR_ANALYSIS if for_analysis else {**BASICS, **experiments(rooms)}
    for name, argv in commands.items():
        spec = container_spec(image, Step(name=name, argv=argv, num_gpus=len(gpus)), gpus, host)
        env = _without_promise(spec.env) if stand_in else spec.env
        spec = msgspec.structs.replace(spec, image=target.ref, env=env)
        began = time.monotonic()
        problem, last_line = _run(cli, docker_run_arguments(spec))
        detail = problem or f"{time.monotonic() - began:.1f} s: {last_line}"
        yield Row(image=target.name, check=name, state="failed" if problem else "ok", detail=detail)


def _without_promise(env: Mapping[str, str]) -> dict[str, str]:
    """Nothing can compute on a stand-in, so the experiment is not told that it has GPUs."""
    return {name: value for name, value in env.items() if name != PROMISE}


def experiments(rooms: Rooms) -> dict[str, tuple[str, ...]]:
    """The command line of each room's smallest experiment."""
    return {
        name: ("lab", "run", "--analysis", "none", "-o", f"/out/{name}", *words)
        for name, words in rooms.items()
    }


def docker_run_arguments(spec: ContainerSpec) -> list[str]:
    """The arguments of `docker run` for exactly what lab decided."""
    return ["run", "--pull", "never", "--rm", *arguments_of(spec)]


def gpu_stand_ins(image: Image, folder: Path) -> list[Gpu]:
    """Two pretended GPUs: ids for a stand-in of NVIDIA's hook, or links to /dev/null as AMD's nodes."""
    if image.vendor == "nvidia":
        return [Gpu(vendor="nvidia", index=i, uuid=uuid) for i, uuid in enumerate(STAND_INS)]
    if image.vendor != "amd":
        return []
    nodes = folder / "dev" / "dri"
    nodes.mkdir(parents=True)
    links = [nodes.parent / "kfd", nodes / "renderD128", nodes / "renderD129"]
    for link in links:
        link.symlink_to("/dev/null")
    return [
        Gpu(vendor="amd", index=i, uuid=STAND_INS[i], render_node=str(link))
        for i, link in enumerate(links[1:])
    ]


def _host(folder: Path) -> HostContext:
    """The folders of one smoke run, writable for its containers; root runs them as another user."""
    for name in ("out", "hf", "cache"):
        (folder / name).mkdir()
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        uid = gid = ORDINARY_UID
        for path in (folder, *(folder / name for name in ("out", "hf", "cache"))):
            os.chown(path, uid, gid)
    return HostContext(
        run_dir=str(folder / "out"),
        hf_cache=str(folder / "hf"),
        cache=str(folder / "cache"),
        uid=uid,
        gid=gid,
        device_gids=(str(os.stat("/dev/null").st_gid),),
    )


def _run(cli: Sequence[str], argv: Sequence[str]) -> tuple[str | None, str]:
    """-> what went wrong, or None, and the last line printed."""
    name = f"lab-smoke-{os.getpid()}-{time.monotonic_ns()}"
    words = [*cli, *argv[:1], "--name", name, *argv[1:]]
    try:
        process = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        # Killing the client does not end its container.
        subprocess.run([*cli, "rm", "--force", name], capture_output=True, check=False)
        return f"did not end in {TIMEOUT_S:.0f} s", ""
    lines = (process.stdout.strip() or process.stderr.strip()).splitlines()
    if process.returncode:
        errors = (process.stderr.strip() or process.stdout.strip()).splitlines()
        return f"exit code {process.returncode}: {' | '.join(errors[-3:])}", ""
    return None, lines[-1] if lines else ""
