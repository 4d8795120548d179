"""`lab images check`: whether built images contain what they promise.

Each finding is a row. What cannot be checked here (no engine, not built) is a row too, with its reason.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from lab.core.provenance import lab_with_content
from lab.errors import EngineError, LabError
from lab.images import spec as images
from lab.images.compare import differences, lab_difference
from lab.images.docker_cli import engine_cli, id_of, listed
from lab.images.probe import Contents, probe_argv, save_check, tools_of
from lab.images.spec import LOCAL, registry_of
from lab.images.targets import Target, refuse_unknown, targets_of

State = Literal["ok", "failed", "skipped"]
SHOWN_VERSIONS = ("torch", "triton", "transformers")
# An unknown user on a read-only root file system, without network or capabilities.
UNPRIVILEGED = (
    *("--pull", "never"),
    *("--rm", "--read-only", "--user", "1234:1234", "--network", "none"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--tmpfs", "/tmp:exec,mode=1777", "--env", "HOME=/tmp"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    check: str = msgspec.field(name="what")
    state: State
    detail: str = ""


def check(names: Sequence[str]) -> Iterator[Row]:
    """One row per check, as they end."""
    loaded = {name: _load(name) for name in images.names()}
    of_targets = [target.name for found in loaded.values() if isinstance(found, list) for target in found]
    refuse_unknown(names, [*loaded, *of_targets])
    ids = _listed()
    for name, loaded_targets in loaded.items():
        if isinstance(loaded_targets, LabError):
            if not names or name in names:
                yield Row(image=name, check="image.toml", state="failed", detail=str(loaded_targets))
            continue
        for target in loaded_targets:
            if not names or {name, target.name} & set(names):
                yield from _check_target(target, ids)


def _listed() -> dict[str, str] | EngineError:
    try:
        return listed()
    except EngineError as error:
        return error


def _load(name: str) -> list[Target] | LabError:
    try:
        return targets_of(images.load(name))
    except LabError as error:
        return error


def _check_target(target: Target, ids: Mapping[str, str] | EngineError) -> Iterator[Row]:
    unnamed = [] if registry_of(target.ref) else [f"{target.ref} names no registry: {LOCAL}/{target.ref}"]
    yield _row(target, "image.toml", unnamed, if_ok=target.ref)
    yield _check_built(target, ids)


def _row(target: Target, check: str, problems: Sequence[str], if_ok: str = "") -> Row:
    state: State = "failed" if problems else "ok"
    return Row(image=target.name, check=check, state=state, detail="; ".join(problems) or if_ok)


def _skipped(image: str, check: str, reason: str) -> Row:
    return Row(image=image, check=check, state="skipped", detail=reason)


def _check_built(target: Target, ids: Mapping[str, str] | EngineError) -> Row:
    check = "as built"
    if isinstance(ids, EngineError):
        return _skipped(target.name, check, f"{ids.problem}: see lab doctor")
    if not id_of(target.ref, ids):
        return _skipped(target.name, check, f"not built: lab images build {target.name}")
    image = images.load(target.image)
    cli = engine_cli() or ()
    described = docker_json([*cli, "image", "inspect", "-f", "{{json .}}", target.ref])
    answer = docker_json([*cli, "run", *UNPRIVILEGED, target.ref, "python3", *probe_argv(tools_of(image))])
    if isinstance(described, str) or isinstance(answer, str):
        return _row(target, check, [part for part in (described, answer) if isinstance(part, str)])
    contents = msgspec.convert(answer, Contents)
    labels = described.get("Config", {}).get("Labels") or {}
    lock_file = images.images_root() / target.image / target.lock.name  # in a wheel too
    lock = lock_file.read_text(encoding="utf-8") if lock_file.is_file() else ""
    problems, notes = differences(image, target, labels, contents, lock)
    content = described["Id"].removeprefix("sha256:")  # podman's program leaves the kind of hash out
    save_check(f"sha256:{content}", contents, ok=not problems)
    # Not part of what is saved: the image's content stays, this host's lab may be another one by then.
    difference = lab_difference(target, labels, contents.lab, contents.lab_sha256, lab_with_content())
    problems += [difference] if difference else []
    return _row(target, check, problems, if_ok=_summary(contents, notes))


def _summary(contents: Contents, notes: Sequence[str]) -> str:
    parts = [f"python {contents.python}", f"lab {contents.lab}", f"wheel {contents.wheel[:12]}"]
    parts += [f"{name} {contents.packages[name]}" for name in SHOWN_VERSIONS if name in contents.packages]
    parts += [" ".join(contents.archs)] if contents.archs else []
    return ", ".join(parts) + (f" ({'; '.join(notes)})" if notes else "")


def docker_json(argv: Sequence[str]) -> dict[str, Any] | str:
    """The JSON that the command printed, or why there is none."""
    try:
        process = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=300, check=False
        )
        if process.returncode == 0:
            return _last_json(process.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        return f"{' '.join(argv[:3])}: {error}"
    lines = [line for line in process.stderr.splitlines() if line.strip() and not line.startswith("Run '")]
    return (lines or [f"exit code {process.returncode}"])[-1]


def _last_json(text: str) -> dict[str, Any]:
    """The object in `text`: in its last line, or all of it, where podman prints a list over many lines.

    Raises ValueError where there is none.
    """
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        answer = json.loads((text.strip().splitlines() or [""])[-1])
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        raise ValueError("its answer is not a JSON object")
    return answer
