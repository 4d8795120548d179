"""Ways to reach BuildKit, tried in turn."""

from __future__ import annotations

import os
import subprocess

import msgspec

from lab.errors import EngineError
from lab.images.docker_cli import docker_programs, output_of
from lab.images.endpoint import endpoint_of


class Builder(msgspec.Struct, frozen=True, kw_only=True):
    """A way to reach BuildKit: the start of the command line, and what the environment needs."""

    docker: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}


def find_builder() -> Builder:
    """The first builder that passes a probe: buildx, then the BuildKit inside each docker program on PATH.

    A newer docker without buildx cannot build with BuildKit where an older one beside it can. It builds on
    the engine that runs use, whichever context Docker's program has.
    """
    programs, env = docker_programs(), engine_env()
    if not programs:
        raise EngineError(
            "no docker program on PATH",
            fix="install Docker (with buildx), or docker.io of Debian 12",
        )
    candidates = [
        Builder(docker=docker, argv=(docker, "buildx", "build", "--load"), env=env) for docker in programs
    ]
    candidates += [with_buildkit(docker) for docker in programs]
    problems = []
    for builder in candidates:
        problem = _probe(builder)
        if problem is None:
            return builder
        problems.append(f"  {' '.join(builder.argv)}: {problem}")
    down = any("connect to the Docker daemon" in problem for problem in problems)
    raise EngineError(
        "no builder on this machine can build images:\n" + "\n".join(problems),
        fix="start the Docker engine" if down else "install docker-buildx-plugin (or docker-buildx)",
    )


def with_buildkit(docker: str) -> Builder:
    """The BuildKit inside this docker program."""
    return Builder(docker=docker, argv=(docker, "build"), env={"DOCKER_BUILDKIT": "1", **engine_env()})


def engine_env() -> dict[str, str]:
    """What leads docker's program to the engine that runs use; it builds on no podman."""
    endpoint = endpoint_of(os.environ)
    return {} if endpoint.endswith("/podman.sock") else {"DOCKER_HOST": endpoint}


def base_python(builder: Builder, base: str) -> str:
    """The version of python3 in the base, such as 3.12."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    run = [builder.docker, "run", "--rm", "--network", "none", "--entrypoint", "python3"]
    try:
        text = output_of([*run, base, "-c", code], env=builder.env)
    except EngineError as error:
        raise EngineError(
            f"the base {base} cannot be started: {error.problem}",
            fix="--base REF names another one, scripts/base-image.sh makes one here",
        ) from error
    return text.splitlines()[-1]


def _probe(builder: Builder) -> str | None:
    """None if this builder can build an empty image and discard it, else why not."""
    argv = [word for word in builder.argv if word != "--load"] + ["--output", "-", "-"]
    try:
        process = subprocess.run(
            argv,
            input=b"FROM scratch\nLABEL lab.probe=1\n",
            env={**os.environ, **builder.env},
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if process.returncode == 0:
        return None
    lines = process.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
    return next((line for line in lines if "error" in line.lower() or "connect" in line), lines[0])
