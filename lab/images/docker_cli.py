"""The docker program, called as a user would: the SDK cannot do what these Dockerfiles ask of a build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from lab.errors import EngineError
from lab.images.endpoint import endpoint_of
from lab.images.tree import Say

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
