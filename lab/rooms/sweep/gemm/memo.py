"""What `lab gemm all` did last time, so that a second call on the same traces takes no time.

It is used only while traces, options, the analysis' own code and every file that it wrote are unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import lab
from lab.core.files import sha256_of, write_atomic
from lab.core.run import MANIFEST, Run
from lab.rooms.sweep.gemm.places import Places
from lab.rooms.sweep.layout import configs_of

if TYPE_CHECKING:
    from lab.rooms.sweep.gemm.report import Report

MEMO = ".cache/gemm_all.json"
CODE = ("core", "report", "rooms/sweep", "stats", "recordings")


class Memo(msgspec.Struct, frozen=True, kw_only=True):
    """The last result; files maps each path, relative to the home folder, to its SHA-256."""

    key: str = ""
    files: dict[str, str]
    findings: list[str]
    problems: list[str]
    missing: list[str] = msgspec.field(name="lacking")


def key_of(sweep: Path, options: Mapping[str, object]) -> str:
    """A hash of all that the result depends on; of traces, their names, sizes and modification times."""
    digest = hashlib.sha256(repr(sorted(options.items())).encode())
    for path in _code():
        digest.update(path.read_bytes())
    for path in _inputs(sweep):
        state = path.stat()
        digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def recall(places: Places, key: str) -> Memo | None:
    """The result for `key`, if all its files are there unchanged."""
    try:
        memo = msgspec.json.decode((places.home / MEMO).read_bytes(), type=Memo)
    except (OSError, msgspec.DecodeError):
        return None  # never done, or cut short
    if memo.key != key or memo.missing:
        return None
    return memo if all(_intact(places.home / name, file) for name, file in memo.files.items()) else None


def remember(places: Places, key: str, memo: Memo) -> None:
    """Keep a result for `recall`."""
    write_atomic(places.home / MEMO, msgspec.json.encode(msgspec.structs.replace(memo, key=key)))


def memo_of(places: Places, report: Report) -> Memo:
    """The result of all steps in the form that is kept."""
    files = {str(path.relative_to(places.home)): sha256_of(path) for path in report.files}
    return Memo(files=files, findings=report.findings, problems=report.problems, missing=report.missing)


def _intact(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _code() -> list[Path]:
    package = Path(lab.__file__).parent
    return sorted(path for part in CODE for path in (package / part).rglob("*.py"))


def _inputs(sweep: Path) -> list[Path]:
    configs = configs_of(sweep, may_be_empty=True)
    traces = [trace.path for config in configs for trace in config.traces]
    logs = [path for config in configs for path in config.nccl_logs]
    return [*traces, *logs, *([sweep / MANIFEST] if Run.is_run(sweep) else [])]
