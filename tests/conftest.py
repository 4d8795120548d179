"""What the tests ask of a machine, and how they say that it is not there."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import importlib.util
import itertools
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the image's own tests run without it
    pass
else:
    # No test times anything, and machines are loaded; floats of 16 bits are found among others by chance.
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    settings.register_profile("chance", deadline=None, suppress_health_check=checks)
    # The same examples each time: what fails was broken by the change. LAB_TEST_CHANCE=1 seeks new ones.
    settings.register_profile("lab", settings.get_profile("chance"), derandomize=True)
    settings.load_profile("chance" if os.environ.get("LAB_TEST_CHANCE") else "lab")

from tests.built import (  # noqa: F401  fixtures of several files
    cpu_images,
    debian_base,
    names_mean_the_tests_images,
    own_names,
)

ROOT = Path(__file__).parent.parent
PODMAN_USER = os.environ.get("LAB_PODMAN_USER", "lab-podman")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHARED = Path(os.environ.get("LAB_SHARED_DATA", ROOT.parent / "shared" / "data"))


PORTS = itertools.count(os.getpid() % 100 * 100)


def free_port() -> int:
    """A port for a process that is about to listen, below those that the kernel gives to others meanwhile."""
    for number in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port := 10_000 + number % 10_000))
            return port
    raise AssertionError("no end of numbers")


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of so few bytes ("400k") at `place`, for tests of what a full one does; needs root."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    return (
        bool(docker)
        and subprocess.run([docker, "info"], capture_output=True, check=False, timeout=300).returncode == 0
    )


def podman_socket() -> Path:
    """Of the user whom scripts/podman-user.sh made."""
    try:
        return Path(f"/run/user/{pwd.getpwnam(PODMAN_USER).pw_uid}/podman/podman.sock")
    except KeyError:
        return Path("/run/user/nobody")


def _podman_answers() -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(podman_socket()))
    except OSError:
        return False
    return True


def _slurm_answers() -> bool:
    sinfo = shutil.which("sinfo")
    if not sinfo:
        return False
    done = subprocess.run([sinfo, "-h", "-o", "%t"], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode == 0 and any(word in done.stdout for word in ("idle", "mix", "alloc"))


NEEDS = {
    "torch": (lambda: importlib.util.find_spec("torch") is not None, "torch is not installed here"),
    "docker": (_docker_answers, "no Docker engine answers here (scripts/docker-engine.sh starts one)"),
    "podman": (_podman_answers, "no rootless podman answers here (scripts/podman-user.sh starts one)"),
    "slurm": (_slurm_answers, "no Slurm answers here (scripts/slurm-node.sh starts one)"),
    "browser": (lambda: any(map(shutil.which, BROWSERS)), "no Chromium here"),
    "gpu": (lambda: Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists(), "no GPU here"),
    "root": (lambda: os.geteuid() == 0, "needs root"),
    "long": (lambda: bool(os.environ.get("LAB_TEST_LONG")), "takes minutes: set LAB_TEST_LONG=1"),
    "data": (SHARED.is_dir, f"the shared recordings are not at {SHARED}"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    used = {marker.name for item in items for marker in item.iter_markers()} & set(NEEDS)
    absent = {name: reason for name in used for there, reason in [NEEDS[name]] if not there()}
    for item in items:
        for marker in item.iter_markers():
            if marker.name in absent:
                item.add_marker(pytest.mark.skip(reason=absent[marker.name]))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items[:] = mixed(items)


WAITING = {"docker", "podman", "slurm", "browser"}


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files with many tests first, and one that mostly waits for every six others: they compute meanwhile.

    Few of the simulator's tests take minutes each: at the end one worker would be busy with them alone.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting, computing = [], []
    by_length = sorted(files.values(), key=len, reverse=True)
    for file in sorted(by_length, key=lambda file: "simulator" not in file[0].path.parts):
        waits = any(marker.name in WAITING for item in file for marker in item.iter_markers())
        (waiting if waits else computing).append(file)
    order, rest = [], iter(waiting)
    for at, file in enumerate(computing):
        order += [*itertools.islice(rest, at % 6 == 0), file]
    return [item for file in [*order, *rest] for item in file]


@pytest.fixture
def shared_data() -> Path:
    there, reason = NEEDS["data"]
    if not there():
        pytest.skip(reason)
    return SHARED


@pytest.fixture
def unpacked(shared_data: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a gzipped recording of the shared data into the test's own folder, where it may be changed."""

    def unpack(name: str) -> Path:
        source, target = shared_data / name, tmp_path / Path(name).stem
        if not source.exists():
            pytest.skip(f"no shared {name}")
        target.write_bytes(gzip.decompress(source.read_bytes()))
        return target

    return unpack


@pytest.fixture
def cluster_alone() -> Iterator[None]:
    """For tests that drain nodes or preempt jobs, and for those of other workers that would be met by it."""
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)  # which any user may lock
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may reach and write; pytest's own are the caller's alone."""
    with tempfile.TemporaryDirectory(prefix="lab-test-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_gpu_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests decide themselves what a scheduler would have set."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LAB_IMAGES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def the_same_in_any_order() -> None:
    """Dice as in a fresh process, whichever tests came before; one thread: workers share the cores."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)
        torch.set_num_threads(1)


@pytest.fixture
def browse(tmp_path: Path):
    """Runs headless Chromium on a page and returns what it printed (stdout, stderr)."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")

    def run(page: Path, *flags: str) -> tuple[str, str]:
        argv = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            *flags,
            page.as_uri(),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=True)
        return done.stdout, done.stderr

    return run
