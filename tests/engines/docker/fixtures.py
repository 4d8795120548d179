"""What the tests of containers share: a 2 MB image made of busybox, runs in it, and what they leave."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.run import Run
from lab.core.step import Outcome, Step
from lab.core.stop import Stop
from lab.engines.docker import leftovers as leftover_containers
from lab.engines.docker.client import ask, connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.errors import Context
from lab.engines.docker.leftovers import Leftover, leftovers
from lab.images.docker_cli import endpoint_of
from lab.images.spec import Devices, Image, MountRule
from tests.conftest import ROOT
from tests.core.test_manifest import a_manifest
from tests.wire import Wire

CONTEXT = Context(
    endpoint="unix:///x.sock",
    image="cuda",
    ref="lab/cuda",
    step="s",
    driver="535.1",
    run_dir="/runs/r",
)

REF = "lab-test/busybox:engine"
WHEEL = "0" * 64
APPLETS = (
    "sh cat dd echo env grep head hostname id kill ls mkdir printf seq sleep stat tail touch tr true yes"
)
HOOK_FLAG = Path("/run/lab-fake-nvidia-hook")
HOOK_LOCK = Path("/run/lab-fake-nvidia-hook.lock")  # the engine is everybody's, and so is its hook


@pytest.fixture(scope="session")
def busybox() -> str:
    """The test image; a machine without a static busybox skips."""
    tree = a_test_image()
    content = hashlib.sha256(tree).hexdigest()
    asked = ["docker", "image", "inspect", "-f", '{{index .Config.Labels "lab.test.content"}}', REF]
    if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == content:
        return REF  # each import would leave the one before without a name
    label = f"LABEL lab.test=engine lab.test.content={content} lab.wheel.sha256={WHEEL}"
    command = ["docker", "import", "-c", label, "-c", "ENV PATH=/bin", "-", REF]
    subprocess.run(command, input=tree, check=True, capture_output=True)
    return REF


def a_test_image() -> bytes:
    """The files of the test image, as a tar."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("no busybox here (Debian: busybox-static)")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("bin", "tmp", "out", "hf", "cache", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        tar.add(program, "bin/busybox")
        for applet in APPLETS.split():
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        broken = tarfile.TarInfo("bin/not-executable")
        broken.mode = 0o644
        tar.addfile(broken)
    return buffer.getvalue()


def an_image(vendor: str = "none", **devices) -> Image:
    return Image(
        name=f"test-{vendor}",
        summary="",
        vendor=vendor,
        ref=REF,
        base="scratch",
        python="sh",
        python_version="3.12",
        dockerfile="none",
        mounts=(MountRule(source="hf_cache", target="/hf"), MountRule(source="cache", target="/cache")),
        devices=Devices(shm_size="64m", capabilities=("gpu", "compute", "utility"), **devices),
    )


def shell(script: str, **fields) -> Step:
    return Step(
        name=fields.pop("name", "s"), argv=("sh", "-c", script), folder=fields.pop("folder", "s"), **fields
    )


@dataclass
class Ran:
    run: Run
    step: Step
    outcome: Outcome
    lines: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return self.run.log(self.step).read_text(encoding="utf-8")


def run_step(
    root: Path,
    step: Step,
    gpus=(),
    *,
    image: Image | None = None,
    stop: Stop | None = None,
    grace_s=2.0,
    daemon=None,
    meanwhile: Callable[[Run, str], object] | None = None,
) -> Ran:
    """meanwhile: what is done with each line while the step runs."""
    run, lines = begun(root, step), []

    def heard(line: str) -> None:
        lines.append(line)
        if meanwhile:
            meanwhile(run, line)

    engine = DockerEngine(image or an_image(), grace_s=grace_s, daemon=daemon)
    outcome = engine.run(run, step, list(gpus), on_line=heard, stop=stop or Stop())
    return Ran(run, step, outcome, lines)


def begun(root: Path, step: Step) -> Run:
    run = a_docker_run(root, step)
    run.begin(step)
    return run


def a_docker_run(root: Path, *steps: Step) -> Run:
    manifest = msgspec.structs.replace(a_manifest(*steps), id=root.name or "r", engine="docker")
    return Run.create(root, manifest)


def left_of(run: Run) -> list[str]:
    """The states of this run's containers; an engine under load takes seconds to remove one."""
    return [one.state for one in leftovers(run_dir=run.root) if one.state != "removing"]


def reap_below(folder: Path, **asked) -> list[Leftover]:
    """What the reaper takes of the runs in `folder`: others' tests, and people, share this engine."""

    def of_folder(**how) -> list[Leftover]:
        return [one for one in leftovers(**how) if Path(one.run_dir).is_relative_to(folder.resolve())]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftover_containers, "leftovers", of_folder)
        return leftover_containers.reap(**asked)


@contextlib.contextmanager
def hook_says(text: str) -> Iterator[None]:
    """Make the stand-in for NVIDIA's hook fail with this text while the block runs, for nobody else."""
    with _hook(fcntl.LOCK_EX):
        HOOK_FLAG.write_text(text)
        try:
            yield
        finally:
            HOOK_FLAG.unlink()


@pytest.fixture
def quiet_hook() -> Iterator[None]:
    """No test that runs beside this one makes NVIDIA's hook fail meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    with _hook(fcntl.LOCK_EX):
        HOOK_FLAG.unlink(missing_ok=True)  # of a test that was killed
    with _hook(fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _hook(how: int) -> Iterator[None]:
    with HOOK_LOCK.open("a") as file:
        fcntl.flock(file, how)
        yield


class EngineWire(Wire):
    """A socket in front of the engine's, to be cut: the engine itself is everybody's and stays up."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "wire.sock"
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(self.path))
        server.listen(64)
        super().__init__(server, endpoint_of(os.environ).removeprefix("unix://"))

    def connect(self):
        return connect({"DOCKER_HOST": f"unix://{self.path}"})

    def cut(self) -> None:
        self.path.unlink(missing_ok=True)
        super().cut()


@pytest.fixture
def systems_engine() -> None:
    """Skips on a rootless engine: no stand-in hook, no limits on cgroup v1."""
    nature = ask(endpoint_of(os.environ), 60)
    if nature and nature.user_mapping != "same":
        pytest.skip(f"the engine here is {nature.user_mapping}")


@pytest.fixture
def own_caches(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


DRIVER = """
    import sys
    from pathlib import Path
    from lab.core.run import Run
    from lab.engines.docker.engine import DockerEngine
    from lab.core.stop import Stop
    from tests.engines.docker.fixtures import an_image
    run = Run.open(Path(sys.argv[1]))
    step = run.manifest.steps[0].step
    run.begin(step)
    DockerEngine(an_image()).run(run, step, [], on_line=lambda line: print(line, flush=True), stop=Stop())
"""


def kill_driver_of(root: Path, step: Step) -> Run:
    """A driver that has seen the step's first line, killed by SIGKILL."""
    a_docker_run(root, step)
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(root)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert driver.stdout and driver.stdout.readline() == b"up\n"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    return Run.open(root)


def nvidia(*indices: int) -> list[Gpu]:
    return [Gpu(vendor="nvidia", index=i, uuid=f"GPU-1234-{i}", driver="535.1") for i in indices]


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout
