"""`lab doctor`: what this machine offers."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TypeAlias

import click
import msgspec

from lab.core.gpu import Gpu
from lab.errors import LabError, StepFailed
from lab.gpus.cdi import Devices, read_cdi, with_cdi_names
from lab.gpus.discover import discover
from lab.gpus.nvidia import cards_without_driver
from lab.images import spec as images
from lab.images.preflight import suits

Finding: TypeAlias = tuple[str, str, str]  # what, state (ok, -: absent, warn: unusable, bad), detail


@click.command()
@click.option("--json", "as_json", is_flag=True)
def doctor(as_json: bool) -> None:
    """Say what this machine offers: GPUs, engine, packages, disk. Exit code 0: a local run works here."""
    checks = _checks()
    if as_json:
        click.echo(
            msgspec.json.encode(
                [{"what": what, "state": state, "detail": text} for what, state, text in checks]
            ).decode()
        )
    else:
        for what, state, text in checks:
            click.echo(f"{state:5} {what:10} {text}")
    if any(state == "bad" for _, state, _ in checks):
        raise StepFailed("this machine cannot run lab as it is", fix="fix what the lines marked bad say")


def _checks() -> list[Finding]:
    gpus, gpu_rows = _check_gpus(read_cdi())
    return [
        _check_python(),
        *(_check_package(*row) for row in PACKAGES),
        *gpu_rows,
        *_check_engine(gpus),
        _check_disk(),
    ]


PACKAGES = (
    ("numpy", "analysis"),
    ("pandas", "analysis"),
    ("matplotlib", "analysis"),
    ("torch", "workload"),
    ("triton", "workload"),
    ("transformers", "workload"),
    ("docker", "host"),
)


def _check_python() -> Finding:
    good = sys.version_info >= (3, 10)
    return (
        "python",
        "ok" if good else "bad",
        sys.version.split()[0] + ("" if good else ": lab needs 3.10 or newer"),
    )


def _check_package(name: str, extra: str) -> Finding:
    try:
        return name, "ok", importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, "-", f"not installed (pip install 'lab[{extra}]')"


def _check_gpus(cdi: Devices) -> tuple[list[Gpu], list[Finding]]:
    try:
        gpus = with_cdi_names(discover(), cdi)
    except LabError as error:
        return [], [("gpu", "bad", str(error))]
    rows = [_gpu_row(gpu) for gpu in gpus] or [_no_gpu_row()]
    return gpus, rows + [("cdi", "warn", f"not read: {problem}") for problem in cdi.problems]


def _no_gpu_row() -> Finding:
    cards = cards_without_driver(os.environ)
    return (
        ("gpu", "warn", f"{cards}: runs use the CPU")
        if cards
        else ("gpu", "-", "none found: runs here use the CPU")
    )


def _gpu_row(gpu: Gpu) -> Finding:
    memory = f"{gpu.mem_bytes / 2**30:.0f} GiB" if gpu.mem_bytes else "memory not reported"
    facts = [gpu.number, gpu.name, gpu.uuid, gpu.arch or "", f"driver {gpu.driver or 'unknown'}", memory]
    fitting = [name for name in images.names() if suits(images.load(name), gpu)]
    advice = f"--image {' or '.join(fitting)}" if fitting else "no image of lab fits it"
    text = " ".join(filter(None, facts))
    node = gpu.render_node
    if node and not os.access(node, os.R_OK | os.W_OK):
        group = f"the group {os.stat(node).st_gid} may" if os.path.exists(node) else "it does not exist"
        return "gpu", "warn", f"{text}: you may not open {node}: {group}"
    return "gpu", "ok", f"{text}: {advice}"


def _check_engine(gpus: Sequence[Gpu]) -> list[Finding]:
    try:
        from lab.engines.docker.health import check_engine
    except ModuleNotFoundError as error:
        return [("engine", "-", f"not asked: {error.name} is not installed (pip install 'lab[host]')")]
    return [(row.what, row.state, row.detail) for row in check_engine(os.environ, gpus)]


def _check_disk() -> Finding:
    free = shutil.disk_usage(".").free
    return "disk", "ok" if free > 2**30 else "bad", f"{free / 2**30:.1f} GiB free here"
