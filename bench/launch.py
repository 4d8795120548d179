"""A no-op step through the Docker engine against `docker run` of the same image with the same flags.

Bar: a median ratio of at most 1.25, one by one and for 200 steps two at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.table import Row, at_most, measured

PAIRS = 25
STEPS, JOBS, ROUNDS, BAR = 200, 2, 3, 1.25
FOLDERS = {"HF_HOME": "hf", "XDG_CACHE_HOME": "cache"}


def main() -> None:
    if reason := _absent():
        measured(Row("a no-op step through the Docker engine", absent=reason))
        return
    from tests.engines.docker.fixtures import make_busybox

    make_busybox()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ.update({variable: str(root / folder) for variable, folder in FOLDERS.items()})
        _one_by_one(root / "alone")
        _many(root / "many", JOBS)


def _absent() -> str | None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return "no Docker engine answers here (scripts/docker-engine.sh starts one)"
    return None if shutil.which("busybox") else "no busybox here (Debian: busybox-static)"


def _one_by_one(root: Path) -> None:
    """Pairs in turn, so that whatever else the machine does meets both alike."""
    from lab.core.stop import Stop
    from lab.engines.docker.engine import DockerEngine
    from tests.engines.docker.fixtures import a_docker_run, an_image

    steps = _no_ops(PAIRS + 1)
    run = a_docker_run(root / "one", *steps)
    engine = DockerEngine(an_image())
    argv = docker_run_argv(root / "one")
    pairs = []
    for step in steps:
        run.begin(step)
        ours, outcome = _timed(lambda step=step: engine.run(run, step, [], on_line=_ignore, stop=Stop()))
        theirs, _ = _timed(lambda: subprocess.run(argv, check=True, capture_output=True))
        assert outcome.ok, outcome
        pairs.append((ours, theirs))
    ours, theirs = ([pair[i] for pair in pairs[1:]] for i in (0, 1))  # the first one connects
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    limit, met = at_most(ratio, BAR, "x")
    measured(
        Row(
            "one no-op step",
            size=f"{PAIRS} pairs",
            cost=f"{statistics.median(ours) * 1e3:.0f} ms (the first {pairs[0][0] * 1e3:.0f} ms)",
            peer=f"docker run {statistics.median(theirs) * 1e3:.0f} ms",
            ratio=1 / ratio,
            limit=f"{limit} the time",
            met=met,
        )
    )


def _many(root: Path, jobs: int) -> None:
    from tests.engines.docker.fixtures import a_docker_run

    ratios, last = [], (0.0, 0.0)
    for number in range(ROUNDS):
        run = a_docker_run(root / str(number), *_no_ops(STEPS))
        argv = docker_run_argv(run.root)
        turns = [lambda run=run: _through_lab(run, jobs), lambda argv=argv: _through_the_cli(argv, jobs)]
        # Taking turns at going first: the second one finds the engine warm, or the disk busy.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        times = {turn: _timed(turns[turn])[0] for turn in order}
        ours, theirs = times[0], times[1]
        ratios.append(ours / theirs)
        last = (ours, theirs)
    ratio = statistics.median(ratios)
    limit, met = at_most(ratio, BAR, "x")
    measured(
        Row(
            f"{STEPS} no-op steps, {jobs} at a time",
            size=f"{ROUNDS} rounds",
            cost=f"{last[0]:.2f} s",
            peer=f"docker run {last[1]:.2f} s",
            ratio=1 / ratio,
            limit=f"{limit} the time",
            met=met,
        )
    )


def _through_lab(run, jobs: int) -> None:
    from lab.core.stop import Stop
    from lab.driver.execute import StepRunner
    from lab.engines.docker.engine import DockerEngine
    from tests.engines.docker.fixtures import an_image

    runner = StepRunner(run, DockerEngine(an_image()), [], Stop(), _no_lease)
    runner.execute([record.step for record in run.manifest.steps], [], jobs=jobs)
    assert all(record.outcome and record.outcome.ok for record in run.manifest.steps)


def _through_the_cli(argv: list[str], jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        for done in pool.map(lambda _: subprocess.run(argv, capture_output=True, check=False), range(STEPS)):
            done.check_returncode()


def docker_run_argv(run_dir: Path) -> list[str]:
    """`docker run` with every flag that lab gives such a container."""
    from lab.engines.docker.engine import host_context
    from lab.images.container import container_spec
    from tests.engines.docker.fixtures import an_image

    spec = container_spec(an_image(), _no_ops(1)[0], [], host_context(str(run_dir), []))
    flags = [
        "--rm",
        "--init",
        "--read-only",
        f"--user={spec.user}",
        f"--workdir={spec.working_dir}",
        f"--stop-signal={spec.stop_signal}",
        f"--network={spec.network_mode}",
        f"--hostname={spec.hostname}",
        f"--ipc={spec.ipc_mode}",
        f"--shm-size={spec.shm_size}",
        "--log-driver=json-file",
        "--label=lab.bench=launch",
    ]
    many = {
        "cap-drop": spec.cap_drop,
        "security-opt": spec.security_opt,
        "env": [f"{name}={value}" for name, value in spec.env.items()],
        "ulimit": [f"{name}={value}:{value}" for name, value in spec.ulimits.items()],
        "tmpfs": [f"{target}:{how}" for target, how in spec.tmpfs.items()],
        "mount": [
            f"type=bind,source={m.source},target={m.target}" + (",readonly" if m.read_only else "")
            for m in spec.mounts
        ],
    }
    repeated = itertools.chain.from_iterable(
        (f"--{name}={value}" for value in values) for name, values in many.items()
    )
    return ["docker", "run", *flags, *repeated, spec.image, *spec.command]


def _no_ops(number: int) -> list:
    from tests.engines.docker.fixtures import shell

    return [shell("true", name=f"s{n}", folder=f"s{n}") for n in range(number)]


def _timed(work):
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


@contextlib.contextmanager
def _no_lease(_gpus) -> Iterator[bool]:
    yield True


def _ignore(_line: str) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
