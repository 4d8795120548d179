"""Where in the program each operation was launched: its phase, and the path of modules around it.

Modules are the profiler's own (with_modules, with_stack), else the program's ranges. An operation of the
backward pass lies in the module of its forward operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.recordings.capture import MODULE, OP, Capture
from lab.recordings.graphs.frames import modules_of
from lab.recordings.phase_names import is_step, is_warmup
from lab.recordings.projection import PhaseNames, Projection, project
from lab.recordings.projection.sums import forward_operators
from lab.recordings.views import launch_calls

Path = tuple[str, ...]  # instances of modules, outermost first
DEEPEST = 64  # modules inside each other; what is deeper counts to the last of them
_LIBRARIES = ("nccl", "rccl", "cub::", "cublas", "cudnn")


@dataclass(frozen=True)
class Places:
    """phase and module (n,) index `phases` and `modules`, as the rows of `Trace.kernels`.

    "" stands for an unknown phase, () for an unknown module. source says where modules come from: "recorded",
    "ranges" or "".
    """

    phase: np.ndarray
    phases: list[str]
    module: np.ndarray
    modules: list[Path]
    source: str


def places_of(trace: Capture) -> Places:
    projection = project(trace)
    capture = projection.capture
    names = _names(capture)
    phase, phases = _along(projection, projection.ops.path, names.phases)
    own_module, paths = _along(projection, projection.ops.path, names.modules)
    forward_module, first_paths = _along(projection, np.maximum(projection.ops.origin, 0), names.modules)
    paths = [*paths, *first_paths]
    module = np.where(projection.ops.origin > 0, forward_module + len(paths) - len(first_paths), own_module)
    source = "ranges" if any(paths[one] for one in np.unique(module).tolist()) else ""
    if trace.meta.stacks:
        recorded = _recorded(trace, projection)
        if any(recorded):
            source = "recorded"
            recorded = [path[:DEEPEST] for path in recorded]
            index_of = {path: index for index, path in enumerate(dict.fromkeys(recorded))}
            paths, module = list(index_of), np.array([index_of[path] for path in recorded], dtype=np.int64)
    return Places(phase, [path[-1] if path else "" for path in phases], module, paths, source)


@dataclass(frozen=True)
class _Names:
    """Per string of the capture, "" at the end: the phase that it names; the module, "" for none."""

    phases: list[str]
    modules: list[str]


def _names(capture: Capture) -> _Names:
    is_named = np.zeros(len(capture.strings) + 1, dtype=bool)
    is_named[capture.ranges.name_id[capture.ranges.kind != OP]] = True
    phase_names = PhaseNames()
    phases, modules = [], []
    for text, named in zip([*capture.strings, ""], is_named.tolist(), strict=True):
        phase = phase_names.phase_of(text) if named else ""
        is_module = named and not phase and not is_step(text) and not is_warmup(text)
        is_module &= "#" not in text and "::" not in text and not text.lower().startswith(_LIBRARIES)
        phases.append(phase)
        modules.append(text.removeprefix(MODULE) if is_module else "")
    return _Names(phases, modules)


def _along(projection: Projection, path: np.ndarray, texts: list[str]) -> tuple[np.ndarray, list[Path]]:
    """The texts along the path (n,) of each operation, as indices of a list."""
    paths: list[Path] = [()]
    for node in range(1, len(projection.tree)):
        above, text = paths[int(projection.tree.parent[node])], texts[int(projection.tree.name_id[node])]
        paths.append((*above, text) if text and len(above) < DEEPEST else above)
    index_of = {fromkey: index for index, fromkey in enumerate(dict.fromkeys(paths))}
    of_node = np.array([index_of[path] for path in paths], dtype=np.int64)
    return of_node[path], list(index_of)


def _recorded(trace: Capture, projection: Projection) -> list[Path]:
    """The modules around each operation's launch, else around its forward operator."""
    frames = modules_of(trace)
    call = launch_calls(trace)
    has_call = call >= 0
    paths: list[Path] = [()] * len(call)
    calls = trace.api.take(call[has_call])
    for row, path in zip(
        np.flatnonzero(has_call).tolist(), frames.modules(calls.pid, calls.tid, calls.start_ns), strict=True
    ):
        paths[row] = path
    ranges = projection.capture.ranges
    bare = np.flatnonzero([not path for path in paths])
    forward = forward_operators(ranges, projection.instances.parent, projection.ops.range[bare])
    bare, forward = bare[forward >= 0], forward[forward >= 0]
    forward_paths = frames.modules(ranges.pid[forward], ranges.tid[forward], ranges.start_ns[forward])
    for row, path in zip(bare.tolist(), forward_paths, strict=True):
        paths[row] = path
    return paths
