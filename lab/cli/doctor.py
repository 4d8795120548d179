"""`lab doctor`: what this machine offers."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

import click
import msgspec

from lab.errors import LabError, StepFailed
from lab.gpus.discover import discover


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


def _checks() -> list[tuple[str, str, str]]:
    return [
        _check_python(),
        *(_check_package(*row) for row in PACKAGES),
        *_check_gpus(),
        _check_docker(),
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


def _check_python() -> tuple[str, str, str]:
    good = sys.version_info >= (3, 10)
    return (
        "python",
        "ok" if good else "bad",
        sys.version.split()[0] + ("" if good else ": lab needs 3.10 or newer"),
    )


def _check_package(name: str, extra: str) -> tuple[str, str, str]:
    try:
        return name, "ok", importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, "-", f"not installed (pip install 'lab[{extra}]')"


def _check_gpus() -> list[tuple[str, str, str]]:
    try:
        gpus = discover()
    except LabError as error:
        return [("gpu", "bad", str(error))]
    if not gpus:
        return [("gpu", "-", "none found: runs here use the CPU")]
    return [
        ("gpu", "ok", f"{g.index} {g.name} {g.uuid} driver {g.driver} {(g.mem_bytes or 0) / 2**30:.0f} GiB")
        for g in gpus
    ]


def _check_docker() -> tuple[str, str, str]:
    socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    path = Path(socket.removeprefix("unix://"))
    if not socket.startswith("unix://"):
        return "engine", "-", f"DOCKER_HOST={socket}: remote engines are not used"
    if not path.exists():
        return "engine", "-", f"no Docker engine at {path}: runs with --image need one"
    return (
        "engine",
        "ok" if os.access(path, os.W_OK) else "-",
        str(path) if os.access(path, os.W_OK) else f"no permission to use {path}: join the group docker",
    )


def _check_disk() -> tuple[str, str, str]:
    free = shutil.disk_usage(".").free
    return "disk", "ok" if free > 2**30 else "bad", f"{free / 2**30:.1f} GiB free here"
