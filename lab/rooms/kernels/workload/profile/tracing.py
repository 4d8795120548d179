"""The profiler's trace and torch's execution trace of one pass."""

from __future__ import annotations

import contextlib
import errno
import gzip
import inspect
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lab.core.files import replacing
from lab.errors import writing

log = logging.getLogger("lab.workload")


@contextlib.contextmanager
def tracing(out: Path, rank: int, device: torch.device, record_shapes: bool) -> Iterator[Any]:
    """Profile the block; call the yielded function after it to write the traces.

    The observer ends with the block, whatever ends it: a process group is left only after that.
    """
    draft = out / f".draft_trace_rank{rank}.json.gz"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    observer, nodes = execution_trace_observer(out / f".draft_execution_trace_rank{rank}.json")
    options = {"execution_trace_observer": observer} if observer else {}

    def keep() -> None:
        with writing(draft):
            profiler.export_chrome_trace(str(draft))
            if not draft.stat().st_size:  # torch does not report that it could not write
                raise OSError(errno.ENOSPC, "the trace could not be written", str(draft))
            draft.replace(out / f"trace_rank{rank}.json.gz")
        if observer:
            _pack(nodes, out / f"execution_trace_rank{rank}.json.gz")

    with contextlib.ExitStack() as ending:
        if observer:
            ending.callback(observer.unregister_callback)
        profiler = ending.enter_context(
            profile(activities=activities, record_shapes=record_shapes, **options)
        )
        yield keep


def execution_trace_observer(path: Path) -> tuple[Any, Path]:
    """torch's own observer, or None before torch 2.3; and the file it writes."""
    if "execution_trace_observer" not in inspect.signature(profile.__init__).parameters:
        log.info("torch %s has no execution trace: arguments come from the recorder", torch.__version__)
        return None, path
    from torch.profiler import ExecutionTraceObserver

    return ExecutionTraceObserver().register_callback(str(path)), path


def _pack(nodes: Path, target: Path) -> None:
    with (
        nodes.open("rb") as plain,
        replacing(target) as file,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed)
    nodes.unlink()
