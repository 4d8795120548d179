"""Which of the caller's variables belong to GPU work: what passes into a container and what a record keeps.

The families are rows of environment.json. Of these a value stays outside that means something else inside: a
path of this host, a network interface that the container does not have, GPUs by the host's numbers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.core.words import first_few, plural
from lab.errors import UsageError
from lab.secrets import is_secret, redact_env, secret_values

TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PREFIXES, NAMES = tuple(TABLE["families"]), frozenset(TABLE["names"])
RECORDED = ("LAB_", "NVIDIA_", "SLURM_JOB")  # kept in a record besides, and passed nowhere
ELSEWHERE = tuple(TABLE["elsewhere"])
MASK = re.compile(r"_VISIBLE_DEVICES$|^GPU_DEVICE_ORDINAL$")
# By the name, because a bare folder or version has no mark of its own in the value.
OF_THE_HOST = re.compile(r"_(HOME|PATH|PATH64|ROOT|DIR|FILE|VERSION|PREFIX)$|^CUDA_CACHE_|^RANK$")
INTERFACE = re.compile(r"_(SOCKET_)?IFNAME$|_NET_DEVICES$|_IB_HCA$|_IFACE$")
HERE_ALONE = ("lo", "^docker0,lo", "^lo,docker0", "^lo")
A_PATH = re.compile(r"(?:^|[=,:;])(~?/[^\s,:;]*|\.\.?/[^\s,:;]*)")


class Passage(NamedTuple):
    """What enters a container, and the sentences on what stays outside."""

    passed: dict[str, str]
    notes: tuple[str, ...]


def belongs(name: str) -> bool:
    """Whether the variable is of a family of GPU work, and no secret."""
    return (name.startswith(PREFIXES) or name in NAMES) and not is_secret(name)


def relevant_env(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables that shape a GPU run, secrets redacted."""
    source = os.environ if env is None else env
    variables = {name: source[name] for name in sorted(source) if belongs(name) or name.startswith(RECORDED)}
    return redact_env(variables, secret_values(source))


def parse_variable(text: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME with the caller's own value.

    Raises UsageError for a secret, for a variable that lab sets itself, and for one that is not set.
    """
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise UsageError(f"--env {text!r} is not NAME or NAME=VALUE")
    if is_secret(name):
        raise UsageError(
            f"--env {name}: a secret would stand in the run's record and in `docker inspect`",
            fix="lab fetch downloads models; mount a file of your own with --mount",
        )
    if MASK.search(name) or name.startswith("LAB_"):
        raise UsageError(f"--env {name}: lab sets this variable itself", fix="--gpus picks a run's GPUs")
    if not equals and name not in os.environ:
        raise UsageError(f"--env {name}: it is not set here", fix=f"--env {name}=VALUE")
    return name, value if equals else os.environ[name]


def passage(env: Mapping[str, str], *, network: str = "none", inside: Sequence[str] = ()) -> Passage:
    """Sort the caller's variables; `inside`: the folders and files that the container has of this host."""
    passed: dict[str, str] = {}
    notes: list[str] = []
    of_host: list[str] = []
    for name, value in sorted(env.items()):
        if not belongs(name):
            of_host += [name] if name.startswith(ELSEWHERE) and value else []
        elif MASK.search(name):
            continue  # lab itself has chosen the GPUs by it
        elif OF_THE_HOST.search(name):
            of_host.append(name)
        elif INTERFACE.search(name) and network != "host" and value not in HERE_ALONE:
            reason = f"the container's network has no interface {value}"
            notes.append(f"{name}={value} does not enter containers: {reason} (--env {name} passes it)")
        elif (path := _outside(value, inside)) is not None:
            reason = f"it has no file {path} (--mount {path}:{path}:ro brings it, and the variable passes)"
            notes.append(f"{name}={value} does not enter containers: {reason}")
        else:
            passed[name] = value
    if of_host:
        subject = f"{plural(len(of_host), 'variable')} of this host"
        verb = "does" if len(of_host) == 1 else "do"
        notes.append(
            f"{subject} {verb} not enter containers: {first_few(of_host, 8)} (--env NAME passes one)"
        )
    return Passage(passed, tuple(notes))


def _outside(value: str, inside: Sequence[str]) -> str | None:
    """The first path in this value that the container does not have."""
    paths = [match[1] for match in A_PATH.finditer(value)]
    return next((path for path in paths if not any(f"{path}/".startswith(f"{top}/") for top in inside)), None)
