"""What `lab gemm all` did last time, so that a second call on the same traces takes no time.

It is used only while traces, options, the analysis' own code and every file that it wrote are unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

import lab
from lab.core.files import sha256_of, write_atomic
from lab.core.run import MANIFEST, Run
from lab.rooms.sweep.gemm.places import Places, Report
from lab.rooms.sweep.layout import configs_of

MEMO = ".cache/gemm_all.json"
CODE = ("core", "report", "rooms/sweep", "stats", "recordings")


class Memo(msgspec.Struct, frozen=True):
    """The last complete result; files maps each path, relative to the home folder, to its SHA-256."""

    key: str
    files: dict[str, str]
    findings: list[str]
    problems: list[str]


def key_of(sweep: Path, options: Mapping[str, object]) -> str:
    """A hash of all that the result depends on; of traces, their names, sizes and modification times."""
    digest = hashlib.sha256(repr(sorted(options.items())).encode())
    package = Path(lab.__file__).parent
    for path in sorted(path for part in CODE for path in (package / part).rglob("*.py")):
        digest.update(path.read_bytes())
    configs = configs_of(sweep, may_be_empty=True)
    traces = [trace.path for config in configs for trace in config.traces]
    logs = [path for config in configs for path in config.nccl_logs]
    for path in (*traces, *logs, *([sweep / MANIFEST] if Run.is_run(sweep) else [])):
        state = path.stat()
        digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def recall(places: Places, key: str) -> Report | None:
    """The result for `key`, if all its files are there unchanged."""
    try:
        memo = msgspec.json.decode((places.home / MEMO).read_bytes(), type=Memo)
        files = {places.home / name: sha256 for name, sha256 in memo.files.items()}
        is_intact = memo.key == key and all(sha256_of(path) == sha256 for path, sha256 in files.items())
    except (OSError, msgspec.DecodeError):
        return None  # never done, cut short, or a file of it is gone
    return Report(list(files), [], memo.problems, memo.findings) if is_intact else None


def remember(places: Places, key: str, report: Report) -> None:
    """Keep a complete result for `recall`."""
    if report.missing:
        return
    files = {str(path.relative_to(places.home)): sha256_of(path) for path in report.files}
    memo = Memo(key, files, report.findings, report.problems)
    write_atomic(places.home / MEMO, msgspec.json.encode(memo))
