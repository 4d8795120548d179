"""`lab doctor`: show what this machine offers."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Sequence

import click

from lab.cli.registry import EXTRAS, SCANNERS
from lab.core.gpu import Gpu
from lab.core.words import printable, size_text
from lab.errors import LabError, StepFailed
from lab.gpus.cdi import Devices, read_cdi, with_cdi_names
from lab.gpus.discover import look
from lab.gpus.health import Check, as_root, join_group_of
from lab.gpus.neighbours import processes_on, sentence
from lab.gpus.nvidia import cards_without_driver
from lab.images import spec
from lab.images.preflight import fitting_images, unsuited
from lab.terminal.options import as_json, print_json

MIN_SHM_BYTES = 2**30  # ranks on one host share memory through it


@click.command()
@as_json("One object per finding")
def doctor(as_json: bool) -> None:
    """Show what this machine offers: GPUs, engine, packages, disk. Exit code 0: a local run works here.

    Below a finding stands what to type to mend it.
    """
    checks = _checks()
    if as_json:
        print_json(
            [{"what": c.subject, "state": c.state, "detail": c.detail, "fix": c.fix or None} for c in checks]
        )
    for check in () if as_json else checks:
        click.echo(printable(f"{check.state:5} {check.subject:10} {check.detail}"))
        if check.fix:
            click.echo(f"{'':5} {'':10} fix: {check.fix}")
    if any(check.state == "bad" for check in checks):
        raise StepFailed("this machine cannot run lab as it is", fix="fix what the lines marked bad say")


def _checks() -> list[Check]:
    gpus, gpu_rows = _check_gpus(read_cdi())
    return [
        Check("python", "ok", platform.python_version()),
        *(_check_package(name, extra) for extra, names in EXTRAS.items() for name in names.split()),
        *(_check_reader(*row) for row in SCANNERS.items()),
        *gpu_rows,
        *_check_engine(gpus),
        *_check_shm(),
        _check_disk(),
    ]


def _check_package(name: str, extra: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "-", "not installed", f"pip install 'lab[{extra}]'")


def _check_reader(reads: str, module: str) -> Check:
    """Show whether C or plain Python scans one kind of file."""
    try:
        state = importlib.import_module(module).library_state()
    except ModuleNotFoundError as error:
        return Check("reader", "-", f"{reads}: {error.name} is not installed", "pip install 'lab[analysis]'")
    return Check("reader", "ok", f"{reads}: {state}")


def _check_gpus(cdi: Devices) -> tuple[list[Gpu], list[Check]]:
    cards = cards_without_driver(os.environ)
    load = f"{as_root('modprobe nvidia')}, or install the driver" if cards else ""
    try:
        gpus, notes, dead = look()
        gpus = with_cdi_names(gpus, cdi)
        in_use = processes_on(gpus)
    except LabError as error:
        return [], [Check("gpu", "bad", str(error), load)]
    rows = [_gpu_row(gpu) for gpu in gpus]
    if not gpus and cards:
        rows = [Check("gpu", "warn", f"{cards}: runs use the CPU", load)]
    elif not gpus:
        rows = [Check("gpu", "-", "none found: runs here use the CPU")]
    rows += [Check("gpu", "bad" if note in dead else "warn", note) for note in notes]
    rows += [Check("gpu", "warn", sentence(process, gpus)) for process in in_use]
    return gpus, rows + [Check("cdi", "warn", problem) for problem in cdi.problems]


def _gpu_row(gpu: Gpu) -> Check:
    memory = f"{gpu.mem_bytes / 2**30:.0f} GiB" if gpu.mem_bytes else "memory not reported"
    facts = [gpu.number, gpu.name, gpu.uuid, gpu.arch or "", f"driver {gpu.driver or 'unknown'}", memory]
    fitting = fitting_images(gpu)
    advice = f"--image {' or '.join(fitting)}" if fitting else f"no image of lab fits it{_reasons(gpu)}"
    text = " ".join(filter(None, facts))
    node = gpu.render_node
    if node and not os.access(node, os.R_OK | os.W_OK):
        group = f"the group {os.stat(node).st_gid} may" if os.path.exists(node) else "it does not exist"
        return Check("gpu", "warn", f"{text}: you may not open {node}: {group}", join_group_of(node))
    return Check("gpu", "ok", f"{text}: {advice}")


def _reasons(gpu: Gpu) -> str:
    """Why each image of the vendor does not fit: its code, its driver, what its base asks of the driver."""
    images = [image for image in map(spec.load, spec.names()) if image.vendor == gpu.vendor]
    return f" ({'; '.join(f'{image.name}: {unsuited(image, gpu)}' for image in images)})"


def _check_engine(gpus: Sequence[Gpu]) -> list[Check]:
    try:
        from lab.engines.docker.health import check_engine
    except ModuleNotFoundError as error:
        detail = f"not asked: {error.name} is not installed"
        return [Check("engine", "-", detail, "pip install 'lab[host]'")]
    return check_engine(os.environ, gpus)


def _check_shm() -> list[Check]:
    """Check the shared memory of local runs; a container's own size is in its image.toml."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return [Check("shm", "warn", "no /dev/shm here: ranks on one host share memory through it")]
    advice = "" if usage.free >= MIN_SHM_BYTES else ": ranks on one host need more (mount -o remount,size=)"
    detail = f"{size_text(usage.free)} of {size_text(usage.total)} free in /dev/shm{advice}"
    return [Check("shm", "warn" if advice else "ok", detail)]


def _check_disk() -> Check:
    free = shutil.disk_usage(".").free
    return Check("disk", "ok" if free > 1e9 else "bad", f"{size_text(free)} free here")
