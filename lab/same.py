"""Record what a model computes, to compare two runs of it with `lab same A B`.

    from lab import same
    with same.record(model, "a.same.jsonl.gz"):
        model(inputs).sum().backward()

    with same.nudged(model, seed=1), same.record(model, "floor1.same.jsonl.gz"):
        model(inputs).sum().backward()      # the noise floor: weights moved by at most one ulp

Nothing of a recorder stays on the model after the block.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any


def record(
    model: Any, path: str | Path, *, level: str = "op", reference: bool = True
) -> AbstractContextManager[None]:
    """Write to `path` (gzipped JSON lines) what `model`, a torch.nn.Module, computes inside the block.

    level: `op` for every dispatched op (eager models), `module` for the outputs of modules, `ends` for the
    model's inputs, outputs and gradients alone (a compiled model, whose graph the other levels would change).
    reference: call each op once more in float64 on its own inputs. Raises UsageError for a compiled model
    at another level than `ends`, and StorageError if `path` cannot be written.
    """
    from lab.errors import needs

    with needs("workload"):
        from lab.workload.recorder.record import recording
    return recording(model, Path(path), level, reference)


def nudged(model: Any, seed: int) -> AbstractContextManager[None]:
    """Make a quarter of the weights one ulp larger and a quarter one ulp smaller inside the block."""
    from lab.errors import needs

    with needs("workload"):
        from lab.workload.recorder.record import moved
    return moved(model, seed)
