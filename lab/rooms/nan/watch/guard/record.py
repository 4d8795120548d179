"""The record of one guard: what `lab nan analyze` joins into one page. One file per process and model."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

FORMAT = 1
_numbers = itertools.count()
_identity: dict[int, str] = {}  # by pid: a forked child is another process


def record(guard: Any) -> dict[str, Any]:
    """The guard's findings as plain values. Raises nothing that the guard itself does not."""
    status, event = guard.status, guard.first
    headroom = guard.headroom
    return {
        "format": FORMAT,
        "ended": guard.ended,
        "process": identity(),
        "model": type(guard.model).__name__,
        "rank": rank(),
        "world": world(),
        "host": socket.gethostname(),
        "torch": str(torch.__version__),
        "strategy": guard.strategy.name,
        "counter": guard.counter,
        "status": status,
        "updates": guard.step,
        "skipped_steps": guard.skipped_steps,
        "unread_updates": guard.weights.unread,
        "first": event.as_dict() if event is not None else None,
        "sentence": guard.sentence(),
        "steps": [
            {"step": step.number, "events": [event.as_dict() for event in step.events]}
            for step in guard.steps[:16]
        ],
        "seen": dict(guard.seen)
        | {"forwards": guard.watch.forwards, "modules_called": len(guard.watch.called)},
        "not_seen": guard.not_seen()[:50],
        "alarm": guard.scaling.alarm(),
        "notes": [*guard.notes, *guard.watch.notes][:50],
        "headroom": [
            {
                "class": kind,
                "dtype": dtype,
                "largest": peak,
                "sampled_at": headroom.sampled_at,
                "shares": [vars(one) for one in headroom.shares.get((kind, dtype), ())],
            }
            for (kind, dtype), peak in headroom.peaks.items()
        ],
        "headroom_sentences": headroom.near_edge(),
        "absorbed": dict(guard.watch.absorbed.most_common(20)),
        "steps_by": guard.state.counted_by,
    }


def identity() -> str:
    """This process among all of all machines, past and to come: HOST_PID_START."""
    pid = os.getpid()
    if pid not in _identity:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
        _identity[pid] = f"{host}_{pid}_{time.time_ns() // 1_000_000}"
    return _identity[pid]


def number_of_guard() -> int:
    """Each guard of a process has a record of its own."""
    return next(_numbers)


def write(guard: Any, folder: str | Path, *, ended: bool | None = None) -> Path:
    """Write a guard's record into `folder`, whole or not at all. Raises OSError."""
    values = record(guard)
    if ended is not None:
        values["ended"] = ended
    return write_record(Path(folder) / f"guard_{identity()}_{guard.index}.json", values)


def write_record(path: Path, values: dict[str, Any]) -> Path:
    """Write plain values as JSON, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(values), indent=1, allow_nan=False)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _finite(value: Any) -> Any:
    """JSON has no NaN: such a number is a string."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value


@dataclass(frozen=True)
class Strategy:
    """How the model is spread over ranks."""

    name: str
    reduces: bool = False  # gradients at the update are not this rank's own
    reduces_at_once: bool = False  # the reduction follows the accumulation at once: count before
    no_replay: str = ""


def strategy_of(model: nn.Module) -> Strategy:
    """By what the model is made of: DDP or FSDP wrappers, distributed weights."""
    kinds = {type(module).__name__ for module in model.modules()}
    bases = {base.__name__ for module in model.modules() for base in type(module).__mro__[:3]}
    alone = "a forward holds collectives, which one rank cannot run again alone"
    if "FSDPModule" in bases or "FullyShardedDataParallel" in kinds:
        return Strategy("FSDP", True, False, alone)
    if any(hasattr(parameter, "placements") for parameter in model.parameters()):
        return Strategy("tensor parallel", False, False, alone)
    if world() > 1:
        # Inside DDP's wrapper or outside of it: the model cannot tell.
        return Strategy("DDP" if "DistributedDataParallel" in kinds else "data parallel", True, True)
    return Strategy("one process")


def world() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0
