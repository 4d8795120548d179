"""The docker program, called as a user would: the SDK cannot do what these Dockerfiles ask of a build.

Where the engine is that builds, tries and runs images; its programs; and the ways to reach BuildKit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.errors import EngineError
from lab.images.targets import Say

SOCKET = "unix:///var/run/docker.sock"
PODMAN_SOCKET = "unix:///run/podman/podman.sock"


def endpoint_of(env: Mapping[str, str]) -> str:
    """$DOCKER_HOST, else the context of Docker's program, else the first socket that this user may use: the
    system's Docker, the user's own Docker or podman, the system's podman. Without any, the first."""
    named = env.get("DOCKER_HOST", "")
    if named not in ("", "unix://"):  # as Docker's own client reads the second
        return named
    if context := _of_context(env):
        return context
    runtime_folder = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    usual = (
        SOCKET,
        f"unix://{runtime_folder}/docker.sock",
        f"unix://{runtime_folder}/podman/podman.sock",
        PODMAN_SOCKET,
    )
    return next(
        (socket for socket in usual if os.access(socket.removeprefix("unix://"), os.R_OK | os.W_OK)), SOCKET
    )


def _of_context(env: Mapping[str, str]) -> str | None:
    """The endpoint of $DOCKER_CONTEXT or of `docker context use`; None for the default one.

    A context that is not here is an endpoint, too: no engine answers there, and the error names it.
    """
    folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/nonexistent") / ".docker")
    name = env.get("DOCKER_CONTEXT") or _json(folder / "config.json").get("currentContext")
    if not name or name == "default":
        return None
    path = folder / "contexts/meta" / hashlib.sha256(str(name).encode()).hexdigest() / "meta.json"
    try:
        return str(json.loads(path.read_bytes())["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, LookupError, TypeError):
        return f"context://{name}"


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


NOISE = re.compile(r"#\d+ sha256:[0-9a-f]{64}$")  # BuildKit of Docker 20.10 prints one for each of its steps
TAIL_LINES = 200
ANSWER_S = 60.0  # an engine under load is slow, and neither dead nor one without images


class Advice(msgspec.Struct, frozen=True):
    """A row of messages.toml; `match`: the words that it was chosen by."""

    pattern: str
    fix: str
    reason: str = ""
    match: str = ""


def advice_on(table: Literal["pull", "build"], output: str) -> Advice | None:
    """What to do about a program that ended with this output."""
    text = Path(__file__).with_name("messages.toml").read_text(encoding="utf-8")
    for row in msgspec.toml.decode(text, type=dict[str, list[Advice]])[table]:
        if match := re.search(row.pattern, output, re.IGNORECASE):
            return msgspec.structs.replace(row, match=match[0])
    return None


def docker_programs() -> list[str]:
    """Every docker on PATH, each real file once."""
    programs: dict[str, str] = {}
    for folder in os.get_exec_path():
        program = shutil.which("docker", path=folder)
        if program:
            programs.setdefault(os.path.realpath(program), program)
    return list(programs.values())


def engine_cli() -> list[str] | None:
    """What a command for the engine that runs use begins with: docker's program or podman's, and its place.

    None: neither program is here.
    """
    endpoint = endpoint_of(os.environ)
    if endpoint.endswith("/podman.sock") and (podman := shutil.which("podman")):
        return [podman, "--remote", "--url", endpoint]
    docker = next(iter(docker_programs()), None)
    return [docker, "--host", endpoint] if docker else None


def listed(timeout_s: float = ANSWER_S) -> dict[str, str]:
    """Reference -> id of the images on the engine. Raises EngineError if none answers in time."""
    argv = ["image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}"]
    cli = engine_cli()
    if cli is None:
        raise EngineError("neither docker nor podman is on PATH", fix="install one: see lab doctor")
    try:
        process = subprocess.run(
            [*cli, *argv], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the engine did not answer in {timeout_s:g} s", fix="see lab doctor") from error
    except OSError as error:
        raise EngineError(f"cannot start {cli[0]}: {error.strerror}") from error
    if process.returncode:
        message = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EngineError(f"the engine does not list its images: {message}", fix="see lab doctor")
    return dict(line.split(" ", 1) for line in process.stdout.splitlines() if " " in line)


def id_of(ref: str, images: Mapping[str, str]) -> str | None:
    """The id of `ref` among what `listed` found; a reference without a tag means latest."""
    return images.get(ref if ":" in ref.rsplit("/", 1)[-1] else f"{ref}:latest")


def output_of(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    env = {**os.environ, **(env or {})}
    process = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", check=False)
    if process.returncode:
        raise EngineError((process.stderr.strip().splitlines() or ["failed"])[0], location=" ".join(argv[:3]))
    return process.stdout.strip()


def stream(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, say: Say) -> tuple[int, list[str]]:
    """Run a program and pass on each line as it comes; -> the exit code and the last lines."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
        )
    except OSError as error:
        raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error
    with process:
        assert process.stdout is not None
        try:
            for line in map(str.rstrip, process.stdout):
                if line and not NOISE.match(line):
                    tail.append(line)
                    say(line)
        except BaseException:
            process.terminate()  # the engine cancels a build whose client has gone
            raise
    return process.returncode, list(tail)


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
