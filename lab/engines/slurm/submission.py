"""Jobs submitted to Slurm through submitit: their parameters, and the executor with its errors translated."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.content import EXPECTED, content_sha256
from lab.core.files import make_folder
from lab.core.options import SlurmOptions
from lab.core.snapshot import import_path, package_folder
from lab.core.step import Step
from lab.engines.slurm.records import FOLDER
from lab.errors import EngineError, UsageError

LIMIT_MARGIN_MIN, UNLIMITED_MIN = 10, 240  # submitit's own default is five minutes
MOST_NAME_CHARACTERS = 60


def step_parameters(options: SlurmOptions, steps: Sequence[Step], *, jobs: int) -> dict[str, Any]:
    """What one array of like `steps` requests; at most `jobs` of its tasks run at a time."""
    step = steps[0]
    limits = [s.timeout_s for s in steps]
    longest_s = max(limit or 0 for limit in limits) if all(limits) else 60 * UNLIMITED_MIN
    gpus = {"gres": f"gpu:{step.num_gpus}"} if step.num_gpus else {}
    node = {"nodelist": step.node} if step.node else {}
    return {
        "slurm_ntasks_per_node": 1,
        "slurm_nodes": step.nodes,
        "slurm_array_parallelism": jobs,
        "slurm_job_name": f"lab-{step.name}"[:MOST_NAME_CHARACTERS],
        "slurm_time": options.time_min or int(longest_s / 60) + LIMIT_MARGIN_MIN,
        "slurm_additional_parameters": gpus | extra_parameters(options.extra) | node,
    }


def extra_parameters(extra: Sequence[str]) -> dict[str, str | bool]:
    """`KEY=VALUE`, or `KEY` alone for a flag."""
    parts = [text.removeprefix("--").partition("=") for text in extra]
    if not all(name for name, _, _ in parts):
        raise UsageError("--sbatch takes KEY=VALUE or KEY", fix="for example --sbatch exclusive=user")
    if any(name in ("t", "time") for name, _, _ in parts):
        # submitit takes a job that ends before the limit it was told for preempted, and requeues it.
        raise UsageError("--sbatch does not take the time limit", fix="--time MINUTES")
    return {name: value if equals else True for name, equals, value in parts}


def alike(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that can share an array: same nodes, GPUs and limit, in their order."""
    groups: dict[tuple[object, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.nodes, step.node, step.num_gpus, step.timeout_s), []).append(step)
    return list(groups.values())


def submit_after(
    folder: Path,
    options: SlurmOptions,
    arrays: Sequence[str],
    parameters: Mapping[str, Any],
    function: Callable[[], None],
) -> str:
    """Submit a call that starts when these arrays have ended, however they end; -> its job."""
    extra = {"dependency": f"afterany:{':'.join(arrays)}", **extra_parameters(options.extra)}
    extra.pop("gres", None)  # the analysis would hold GPUs that it does not use
    requested = {"slurm_ntasks_per_node": 1, **parameters, "slurm_additional_parameters": extra}
    with submitit_executor(folder, requested) as executor:
        return str(executor.submit(function).job_id)


def setup(root: Path) -> list[str]:
    """Lines of the job's script: its processes import this lab, or end with an error that names the other.

    A run's own copy is in its folder, which every node sees; else it is the tree of this lab.
    """
    sha256 = content_sha256(package_folder())
    copy = Path(import_path(sha256, str(root.absolute())))
    import_folder = copy if copy.is_dir() else package_folder().parent
    path = f"{shlex.quote(str(import_folder))}${{PYTHONPATH:+:$PYTHONPATH}}"
    return [f"export PYTHONPATH={path}", f"export {EXPECTED}={sha256}"]


@contextlib.contextmanager
def submitit_executor(root: Path, parameters: Mapping[str, Any]) -> Iterator[Any]:
    """submitit's executor; its errors become lab's."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise EngineError("the slurm engine needs submitit", fix="pip install 'lab[slurm]'") from error
    folder = root.absolute() / FOLDER / "submitit"
    make_folder(folder)
    try:
        executor = submitit.AutoExecutor(
            folder=str(folder / "%j"), cluster="slurm", slurm_python=sys.executable
        )
        executor.update_parameters(**parameters, slurm_setup=setup(root))
        yield executor
    except submitit.core.utils.FailedJobError as error:
        raise EngineError(f"Slurm refuses the job: {error}", fix="see sinfo and the site's limits") from error
    except RuntimeError as error:
        raise EngineError(f"cannot submit: {error}", fix="run where sbatch works") from error
