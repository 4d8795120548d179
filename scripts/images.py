"""What images are built and pinned with, besides `lab images`: run from a checkout.

python scripts/images.py show cpu           everything in one image's image.toml
python scripts/images.py prepare cpu        make what `docker buildx bake` reads, print its variables
python scripts/images.py pin [NAME]...      write the digests of the bases into images/*/image.toml
python scripts/images.py gpu-env rocm70     the variables by which compose.yaml names a GPU of this machine
python scripts/images.py bake               write docker-bake.json anew from images/
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import write_atomic
from lab.core.gpu import Gpu
from lab.core.options import Options
from lab.errors import EngineError, GpuError, LabError, UsageError
from lab.images import spec as images
from lab.images.build import LOCK_HASH, PIP_VARIABLES, PROVENANCE, shared_provenance
from lab.images.docker_cli import base_python, docker_programs, find_builder
from lab.images.spec import repository_of
from lab.images.targets import ROOT, Say, Target, build_lock, check_tree, file_hash, refuse_unknown, targets
from lab.images.wheel import fill_wheelhouse, make_wheel

BAKE_FILE = ROOT / "docker-bake.json"
REGISTRY_TIMEOUT_S = 120


def prepare(
    names: Sequence[str], *, base: str | None, say: Say, resolve_base: bool = False, root: Path = ROOT
) -> dict[str, str]:
    """Make what builds of these images read; -> the variables that docker-bake.json reads.

    Without `base`, wheels are for the Python that image.toml names. `resolve_base` asks the registries for
    the digests that the bases' tags have now.
    """
    selected = targets(names)
    check_tree(root)
    with build_lock(root, say):
        wheel = make_wheel(root, say)
        for target in (target for target in selected if target.wheels):
            version = base_python(find_builder(), base) if base else target.python_version
            fill_wheelhouse(target, version, root, say)
    locks = {lock_variable(target): file_hash(root / target.lock) for target in selected}
    bases = {base_variable(target): pinned_base(target) for target in selected} if resolve_base else {}
    return {**shared_provenance(wheel, root), **locks, **bases}


def pinned_base(target: Target) -> str:
    """The base by digest: the one in image.toml, or what its tag is now."""
    return target.base_ref if target.base_digest else f"{target.base}@{query_digest(target.base)}"


def lock_variable(target: Target) -> str:
    """The variable with the hash of this target's lock, such as LAB_LOCK_SHA256_CPU_TORCH."""
    return f"LAB_LOCK_SHA256_{_as_variable(target)}"


def base_variable(target: Target) -> str:
    """The variable with the base that this target is built on, such as LAB_BASE_CPU_TORCH."""
    return f"LAB_BASE_{_as_variable(target)}"


def _as_variable(target: Target) -> str:
    return re.sub(r"\W", "_", target.name).upper()


def render_bake() -> str:
    """The text of docker-bake.json: every image as a target of `docker buildx bake`."""
    selected = targets()
    shared = [*PIP_VARIABLES, *PROVENANCE]
    names = [name for name in shared if name != LOCK_HASH] + [lock_variable(t) for t in selected]
    defaults = {
        "REGISTRY": "localhost/",
        "TAG": "latest",
        **dict.fromkeys(names, ""),
        "PIP_DEFAULT_TIMEOUT": "60",
        **{base_variable(target): target.base_ref for target in selected},
    }
    document = {
        "variable": {name: {"default": value} for name, value in defaults.items()},
        "group": {"default": {"targets": [target.name for target in selected]}},
        "target": {target.name: _bake_target(target, shared) for target in selected},
    }
    return json.dumps(document, indent=2) + "\n"


def _bake_target(target: Target, shared: Sequence[str]) -> dict[str, Any]:
    values = {name: f"${{{name}}}" for name in shared} | {LOCK_HASH: f"${{{lock_variable(target)}}}"}
    return {
        "context": ".",
        "dockerfile": str(target.dockerfile),
        "args": {"BASE_IMAGE": f"${{{base_variable(target)}}}", **values},
        "tags": [f"${{REGISTRY}}{repository_of(target.ref)}:${{TAG}}"],
    }


def pin(names: Sequence[str], root: Path | None = None) -> Iterator[tuple[str, str]]:
    """-> (image, digest) as they are written. If one fails, those written before it stay.

    A tag can be moved to other content overnight; a build from a digest cannot change under its name.
    """
    folder = root or images.images_root()
    available = images.names(folder)
    refuse_unknown(names, available)
    for name in names or available:
        digest = query_digest(images.load(name, folder).base)
        path = folder / name / "image.toml"
        write_atomic(path, with_digest(path.read_text(encoding="utf-8"), digest))
        images.load(name, folder)  # the written file must be readable
        yield name, digest


def query_digest(base: str) -> str:
    """The digest of `base` in its registry. Raises EngineError with the registry's own message."""
    problem = "no docker program on PATH"
    for docker in docker_programs():
        argv = [docker, "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", base]
        try:
            process = subprocess.run(
                argv, capture_output=True, text=True, timeout=REGISTRY_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            problem = f"no answer in {REGISTRY_TIMEOUT_S} s"
            continue
        digest = process.stdout.strip()
        if process.returncode == 0 and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            return digest
        lines = process.stderr.strip().splitlines() or [digest or "no answer"]
        # A registry's answer is the last ERROR; without buildx the first line says so, and hints follow.
        problem = next((line for line in reversed(lines) if line.upper().startswith("ERROR")), lines[0])
    raise EngineError(
        f"cannot get the digest of {base}: {problem}",
        fix="install docker buildx and give it access to the registry; until then builds use the tag",
    )


def with_digest(text: str, digest: str) -> str:
    """The text of an image.toml with this digest after its base; an older one is replaced."""
    text = re.sub(r"^base_digest = .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^(base = .*\n)", rf'\1base_digest = "{digest}"\n', text, count=1, flags=re.MULTILINE)


def gpu_variables(name: str, gpus: str) -> dict[str, str]:
    """The variables for the service of this image; empty for an image without GPUs."""
    from lab.engines.docker.host import site_for

    image = images.load(name)
    if image.vendor == "none":
        return {}
    chosen = site_for(image, Options(image=name, gpus=gpus)).gpus
    if len(chosen) > 1:
        raise UsageError("a service of compose uses one GPU", fix="--gpus 0-0, or use lab run --image")
    return gpu_environment(chosen[0]) if chosen else {}


def gpu_environment(gpu: Gpu) -> dict[str, str]:
    """The variables that name this GPU. Raises GpuError where one group does not open all of its nodes."""
    if gpu.vendor == "nvidia":
        return {"LAB_GPU": gpu.uuid}
    node = Path(gpu.render_node or "")
    kfd = node.parent.parent / "kfd"
    groups = {path: path.stat().st_gid for path in (kfd, node) if path.exists()}
    if len(set(groups.values())) != 1:
        raise GpuError(
            "the GPU's nodes are not of one group, which compose could name",
            location=", ".join(f"{path}: {gid}" for path, gid in groups.items()) or f"{node} does not exist",
            fix="use lab run --image, which names each group",
        )
    return {"LAB_RENDER": node.name, "RENDER_GID": str(groups[node])}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bake")
    of_image = commands.add_parser("show")
    of_image.add_argument("name")
    of_image.add_argument("--json", action="store_true", help="the same in one line")
    of_gpu = commands.add_parser("gpu-env")
    of_gpu.add_argument("name")
    of_gpu.add_argument("--gpus", default="1", help="which GPU, as for lab run")
    commands.add_parser("pin").add_argument("names", nargs="*")
    of_build = commands.add_parser("prepare")
    of_build.add_argument("names", nargs="*")
    of_build.add_argument("--base", help="ask this image for its Python, instead of image.toml")
    of_build.add_argument(
        "--resolve-base", action="store_true", help="name each base by the digest that its registry has now"
    )
    of_build.add_argument("-q", "--quiet", action="store_true", help="hide pip's own output")
    words = parser.parse_args(argv)
    try:
        for line in _lines(words):
            print(line)
    except LabError as error:
        sys.exit(f"Error: {error}")


def _lines(words: argparse.Namespace) -> Iterator[str]:
    if words.command == "bake":
        write_atomic(BAKE_FILE, render_bake())
    elif words.command == "show":
        text = msgspec.json.encode(images.load(words.name))
        yield (text if words.json else msgspec.json.format(text, indent=2)).decode()
    elif words.command == "gpu-env":
        yield from (f"{name}={value}" for name, value in gpu_variables(words.name, words.gpus).items())
    elif words.command == "pin":
        yield from (f"{name}: {digest}" for name, digest in pin(words.names))
    else:
        say: Say = (lambda line: None) if words.quiet else _to_stderr
        variables = prepare(words.names, base=words.base, resolve_base=words.resolve_base, say=say)
        yield from (f"{name}={value}" for name, value in variables.items())


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
