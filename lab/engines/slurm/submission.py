"""Submitting to Slurm through submitit: the parameters of a job, and the executor, its errors translated."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    first = steps[0]
    requested = common_parameters(options) | {
        "slurm_nodes": first.nodes,
        "slurm_array_parallelism": jobs,
        "slurm_job_name": f"lab-{first.name}"[:MOST_NAME_CHARACTERS],
    }
    if options.time_min is None:
        limits = [step.timeout_s for step in steps]
        longest_s = max(limit or 0 for limit in limits) if all(limits) else 60 * UNLIMITED_MIN
        requested["slurm_time"] = int(longest_s / 60) + LIMIT_MARGIN_MIN
    gres = options.gres or (f"gpu:{first.num_gpus}" if first.num_gpus else None)
    node = {"nodelist": first.node} if first.node else {}
    more = extra_parameters(options.extra) | ({"gres": gres} if gres else {}) | node
    return requested | ({"slurm_additional_parameters": more} if more else {})


def common_parameters(options: SlurmOptions) -> dict[str, Any]:
    """What every job requests."""
    values = {
        "slurm_partition": options.partition,
        "slurm_account": options.account,
        "slurm_qos": options.qos,
        "slurm_constraint": options.constraint,
        "slurm_time": options.time_min,
        "slurm_mem": options.mem,
        "slurm_cpus_per_task": options.cpus_per_task,
    }
    return {
        "slurm_ntasks_per_node": 1,
        **{name: value for name, value in values.items() if value is not None},
    }


def extra_parameters(extra: Sequence[str]) -> dict[str, str | bool]:
    """`KEY=VALUE`, or `KEY` alone for a flag."""
    parts = [text.removeprefix("--").partition("=") for text in extra]
    if not all(name for name, _, _ in parts):
        raise UsageError("--sbatch takes KEY=VALUE or KEY", fix="for example --sbatch exclusive=user")
    return {name: value if equals else True for name, equals, value in parts}


def alike(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that can share an array: same nodes, GPUs and limit, in their order."""
    groups: dict[tuple[object, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.nodes, step.node, step.num_gpus, step.timeout_s), []).append(step)
    return list(groups.values())


def submit_commands(
    folder: Path, options: SlurmOptions, parts: Sequence[Sequence[str]], last: Sequence[str], *, jobs: int
) -> tuple[str, str]:
    """lab's own commands as one array, and `last` after all of them have ended, well or not.

    `folder` gets the jobs' output. -> the array's job and the last one's.
    """
    common, more = common_parameters(options), extra_parameters(options.extra)
    array_only = {"slurm_array_parallelism": jobs, "slurm_additional_parameters": more}
    with submitit_executor(folder, common | array_only) as executor:
        array = executor.map_array(run_lab, [list(part) for part in parts])[0].job_id.split("_")[0]
    after = {"slurm_additional_parameters": {**more, "dependency": f"afterany:{array}"}}
    with submitit_executor(folder, common | after) as executor:
        end = executor.submit(run_lab, list(last)).job_id
    return str(array), str(end)


def run_lab(arguments: Sequence[str]) -> None:
    """A command of lab in this job; its exit code is the job's."""
    code = subprocess.run([sys.executable, "-m", "lab", *arguments], check=False).returncode
    if code:
        raise SystemExit(code)


def setup(root: Path) -> list[str]:
    """Lines of the job's script: its processes import the lab of this one, or end in words.

    A run's own copy is in its folder, which every node sees; else it is the tree of this lab.
    """
    sha256 = content_sha256(package_folder())
    copy = Path(import_path(sha256, str(root.absolute())))
    first = copy if copy.is_dir() else package_folder().parent
    path = f"{shlex.quote(str(first))}${{PYTHONPATH:+:$PYTHONPATH}}"
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
