"""Any OCI image with Python 3.10 or newer as an Image: what it holds, by one look inside it per content.

Its own torch runs. lab and the few packages that lab needs are mounted: the packages from a wheelhouse for
the image's Python and machine, behind everything that the image has itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import cache_folder, make_folder
from lab.core.gpu import Gpu
from lab.errors import EngineError, LabError, MissingError, UsageError, writing
from lab.images import spec
from lab.images.check import UNPRIVILEGED, Row, docker_json
from lab.images.docker_cli import engine_cli
from lab.images.preflight import DISABLE_REQUIRE, unsuited
from lab.images.probe import Contents, looked_once, probe_argv
from lab.images.spec import Image, Mount, Vendor
from lab.images.wheel import download_argv

FLOOR = (3, 10)
DEPENDENCIES = ("click", "msgspec", "pyyaml", "rich", "nvidia-ml-py")  # as pip names them
FOR_310 = ("tomli", "typing_extensions")
TOOLS = ("nsys", "ncu", "nvdisasm", "nvcc", "gcc", "rocprofv3")
FOLDER = "/opt/lab/dependencies"
VARIABLE = "LAB_DEPENDENCIES"  # read by lab itself: a folder at the end of Python's path
PYTHONS = ("python3", "python", "/opt/conda/bin/python3", "/opt/venv/bin/python3")
# What names a vendor, in labels, variables and the image's own name.
MARKS: dict[Vendor, str] = {
    "amd": r"rocm|ROCM_(PATH|VERSION)|HIP_PATH|HCC_HOME|/amd",
    "nvidia": r"nvidia|cuda|NVIDIA_VISIBLE_DEVICES|CUDA_VERSION|NVARCH|vllm-openai",
}
RESERVED = ("/out", "/in", "/src", "/hf", "/cache", "/tmp", "/opt/lab", "/corpus")
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")


def is_reference(name: str) -> bool:
    """Whether this names an image of a registry or an engine, and not one of lab's by its short name."""
    return any(mark in name for mark in "/:@")


def image_of(
    name: str,
    *,
    vendor: str | None = None,
    mounts: Sequence[str] = (),
    looks: bool = True,
    mounts_deps: bool = True,
) -> Image:
    """One of lab's images, or any other by its reference, with folders of the person's.

    looks: whether an engine here can be asked what it holds. Raises UsageError for an unknown one.
    """
    if not is_reference(name):
        image = spec.load(name)
        if vendor not in (None, image.vendor):
            raise UsageError(f"the image {name!r} is for the vendor {image.vendor}", fix="drop --vendor")
    elif not re.fullmatch(r"\w[\w.:/@-]*", name, re.ASCII):  # docker's program would read an option
        raise UsageError(f"--image {name!r} is not a reference", fix="REGISTRY/NAME:TAG")
    elif looks:
        inside, described = inside_of(name)
        refuse_old_python(name, inside)
        image = _image(
            name, vendor, inside, described, (dependencies(inside) if mounts_deps else PLACEHOLDER,)
        )
    else:
        image = _image(name, vendor, None, {}, ())
    return msgspec.structs.replace(image, user_mounts=(*image.user_mounts, *map(parse_mount, mounts)))


def parse_mount(text: str) -> Mount:
    """`SRC[:DST[:ro]]`. Raises UsageError for a place inside that is lab's or the system's."""
    source, _, target_and_mode = text.partition(":")
    target, _, mode = target_and_mode.partition(":")
    target = os.path.normpath(target or source)
    parts = [f"{folder}/" for folder in (*RESERVED, *SYSTEM, "/var")]
    if mode not in ("", "ro", "rw") or not source.startswith("/") or not target.startswith("/"):
        raise UsageError(f"--mount {text!r} is not SRC[:DST[:ro]]", fix="--mount ~/data:/data:ro")
    if target == "/" or any(f"{target}/".startswith(part) for part in parts):
        raise UsageError(
            f"--mount {text!r}: {target} is a folder of lab or of the image's system",
            fix=f"name another place inside, such as {source}:/data{':ro' if mode == 'ro' else ''}",
        )
    return Mount(source=source, target=target, read_only=mode == "ro")


def mount_text(mount: Mount) -> str:
    """As --mount takes it."""
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"


def inside_of(ref: str) -> tuple[Contents, dict[str, Any]]:
    """What the image holds, kept under its content, and what the engine says of it.

    Raises EngineError if it is not on the engine, or has no Python.
    """
    cli = engine_cli()
    if cli is None:
        raise EngineError("neither docker nor podman is on PATH", fix="install one: see lab doctor")
    described = docker_json([*cli, "image", "inspect", "-f", "{{json .}}", ref])
    if isinstance(described, str):
        pull = f"{Path(cli[0]).name} pull {ref}"
        raise EngineError(
            f"the image {ref} is not on this engine: {described}", fix=f"{pull} (lab pulls nothing)"
        )
    argv = probe_argv(TOOLS)
    key = hashlib.sha256("\0".join(argv).encode()).hexdigest()[:8]
    look = partial(_look, cli, ref, argv)
    return looked_once(described["Id"], f"inside.{key}.json", Contents, look), described


def _look(cli: Sequence[str], ref: str, argv: Sequence[str]) -> Contents:
    problems = []
    for python in PYTHONS:
        answer = docker_json([*cli, "run", *UNPRIVILEGED, "--entrypoint", python, ref, *argv])
        if isinstance(answer, dict):
            return msgspec.convert(answer, Contents)
        problems.append(f"{python}: {answer}")
    raise EngineError(
        f"no Python of {ref} starts as an unknown user, read-only and without network ({problems[0]})",
        fix="lab needs an image with Python 3.10 or newer that every user may run",
    )


def refuse_old_python(ref: str, inside: Contents) -> None:
    version = tuple(map(int, inside.python.split(".")))
    if version < FLOOR:
        raise EngineError(
            f"{ref} has Python {inside.python}, and lab needs 3.10 or newer", location=inside.program
        )


def _vendor(
    ref: str, vendor: str | None, labels: Mapping[str, str], env: Mapping[str, str], inside: Contents | None
) -> Vendor:
    """By --vendor, the image's own torch, its labels and variables, its name."""
    if vendor in ("nvidia", "amd", "none"):
        return vendor  # type: ignore[return-value]
    if inside and inside.torch:
        return "amd" if inside.hip else "nvidia" if inside.cuda else "none"
    text = " ".join([ref, *labels, *(f"{name}=" for name in env)])
    vendors = [name for name, words in MARKS.items() if re.search(words, text)]
    if not vendors and inside is None:
        raise UsageError(f"the vendor of {ref} is not known here", fix="--vendor nvidia, amd or none")
    return vendors[0] if vendors else "none"


def _image(
    ref: str,
    wanted_vendor: str | None,
    inside: Contents | None,
    described: Mapping[str, Any],
    mounts: tuple[Mount, ...],
) -> Image:
    """With the devices, caches and tools of lab's own image of this vendor."""
    config = described.get("Config") or {}
    env = dict(text.partition("=")[::2] for text in config.get("Env") or ())
    vendor = _vendor(ref, wanted_vendor, config.get("Labels") or {}, env, inside)
    model = spec.load({"nvidia": "cuda", "amd": "rocm70", "none": "cpu"}[vendor])
    have = {name for name, path in (inside.tools if inside else {}).items() if path}
    tools = {name: tool for name, tool in model.tools.items() if set(tool.needs) <= have}
    own_env = {name: value for name, value in model.env.items() if name != DISABLE_REQUIRE}
    lifted = DISABLE_REQUIRE in env
    return Image(
        name=ref,
        summary="an image of your own",
        vendor=vendor,
        ref=ref,
        base=ref,
        python=inside.program if inside else "python3",
        python_version=inside.python if inside else "3.12",
        dockerfile="",
        archs=inside.archs if inside else (),
        require="" if lifted else env.get("NVIDIA_REQUIRE_CUDA", ""),
        devices=model.devices,
        env={**own_env, VARIABLE: FOLDER},
        mounts=model.mounts,
        tools=tools,
        user_mounts=mounts,
        is_foreign=True,
    )


PLACEHOLDER = Mount(source="<lab's wheelhouse for the image's Python>", target=FOLDER, read_only=True)


def dependencies(inside: Contents) -> Mount:
    """The packages that lab needs, unpacked for this Python and machine; made once.

    Raises MissingError if this host's pip finds none.
    """
    packages = [*DEPENDENCIES, *(FOR_310 if inside.python == "3.10" else ())]
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    folder = cache_folder() / "wheelhouse" / f"py{inside.python}-{inside.machine}-{inside.libc}-{key}"
    site, wheels = folder / "site", folder / "wheels"
    if not (folder / "complete").exists():
        make_folder(wheels)
        argv = download_argv(packages, inside.python, wheels, machine=inside.machine, libc=inside.libc)
        process = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if process.returncode:
            raise MissingError(
                f"this host's pip cannot find {', '.join(packages)} for Python {inside.python}:\n"
                + "\n".join((process.stdout + process.stderr).strip().splitlines()[-3:]),
                fix=f"{sys.executable} needs an index, or PIP_FIND_LINKS=FOLDER with these wheels",
            )
        with writing(site):
            for wheel in sorted(wheels.glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(site)
            (folder / "complete").touch()
    return Mount(source=str(site), target=FOLDER, read_only=True)


def check_reference(
    ref: str, vendor: str | None, gpus: Sequence[Gpu], rooms: Mapping[str, str]
) -> Iterator[Row]:
    """What an image of someone else's lacks, a row each: of lab, of the GPUs here, and of every room.

    rooms: name -> the packages and, behind a `+`, the programs that it needs.
    """

    def row(subject: str, problem: str, good: str = "") -> Row:
        return Row(image=ref, check=subject, state="failed" if problem else "ok", detail=problem or good)

    try:
        inside, described = inside_of(ref)
        refuse_old_python(ref, inside)
    except EngineError as error:
        yield row("python", error.problem)
        return
    image = _image(ref, vendor, inside, described, ())
    yield row("python", "", f"{inside.python} at {inside.program}, {inside.machine}")
    try:
        yield row("packages", "", f"mounted from {dependencies(inside).source}")
    except LabError as error:
        yield row("packages", error.problem.splitlines()[0])
    kind = f"CUDA {inside.cuda}" if inside.cuda else f"HIP {inside.hip}" if inside.hip else "for the CPU"
    torch = f"{inside.packages.get('torch', '?')}, {kind}; vendor {image.vendor} {' '.join(inside.archs)}"
    yield row("torch", inside.torch_problem or ("" if inside.torch else "no torch"), torch.rstrip())
    for gpu in gpus:
        vendor_problem = f"the image is for {image.vendor}" if image.vendor != gpu.vendor else ""
        yield row(
            f"GPU {gpu.number}",
            vendor_problem or unsuited(image, gpu),
            f"{gpu.name} {gpu.arch or ''}".strip(),
        )
    have = {*inside.packages, *(f"+{tool}" for tool, path in inside.tools.items() if path)}
    for room, needs in rooms.items():
        missing = [word.removeprefix("+") for word in needs.split() if word not in have]
        yield row(room, f"lacks {', '.join(missing)}" if missing else "", "has what it needs")
