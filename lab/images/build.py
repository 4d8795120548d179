"""`lab images build`: one wheel of this tree, then each image on the first Docker builder that really works.

The wheel, and the wheels that only this host's pip can find, are made first and handed to the build as files; so one
tree gives the same wheel to every image, and an edit of lab rebuilds nothing else. Nothing here needs the Docker SDK,
whose own build call cannot do what the Dockerfiles ask.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lab import __version__
from lab.core import provenance
from lab.core.files import make_folder, write_atomic
from lab.errors import BadDataError, EngineError, MissingError, UsageError, writing
from lab.images import spec as images

Say = Callable[[str], None]
ROOT = Path(__file__).parents[2]
DIST = Path("build/images/dist")
WHEELHOUSE = Path("build/images/wheelhouse")
CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
PIP_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
# Docker knows these arguments by itself and keeps them out of the image's history.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One image to build. An image of lab has one, or two where its workloads run in another one than analysis."""

    name: str
    image: str
    ref: str
    base: str
    python_version: str
    dockerfile: Path
    lock: Path
    wheels: tuple[str, ...] = ()
    base_digest: str | None = None

    @property
    def base_ref(self) -> str:
        """The base by its content where image.toml knows it: a tag can be moved to other content, this cannot."""
        return f"{self.base}@{self.base_digest}" if self.base_digest else self.base


class Built(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ref: str
    id: str
    base: str
    size_bytes: int
    seconds: float
    wheel_sha256: str


class Builder(msgspec.Struct, frozen=True, kw_only=True):
    """A way to reach BuildKit: the words before the build's own arguments, and what the environment needs."""

    docker: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str


def build(
    names: Sequence[str], *, base: str | None, network: str, say: Say, root: Path = ROOT
) -> Iterator[Built]:
    """Build these images (all there are, without names) one by one; each is yielded when it is there."""
    wanted = targets(names)
    _check_tree(root)
    builder = find_builder()
    with _alone(root, say):
        wheel = make_wheel(root, say)
        for target in wanted:
            if target.wheels:
                fill_wheelhouse(target, base_python(builder, base or target.base_ref), root, say)
            yield _build_one(target, builder, wheel, base=base, network=network, say=say, root=root)


def prepare(names: Sequence[str], *, base: str | None, say: Say, root: Path = ROOT) -> dict[str, str]:
    """Make what builds of these images read, for a builder that lab does not call itself (`docker buildx bake`).

    -> the variables that docker-bake.json reads. Without `base`, wheels are those of the Python that image.toml names.
    """
    wanted = targets(names)
    _check_tree(root)
    with _alone(root, say):
        wheel = make_wheel(root, say)
        for target in (target for target in wanted if target.wheels):
            version = base_python(find_builder(), base) if base else target.python_version
            fill_wheelhouse(target, version, root, say)
    shared = {
        name: value
        for name, value in _provenance(wanted[0], wheel, root).items()
        if name != "LAB_LOCK_SHA256"
    }
    return {**shared, **{lock_variable(target): _sha256(root / target.lock) for target in wanted}}


def argument_names() -> list[str]:
    """The build arguments that say where an image comes from."""
    return ["LAB_VERSION", "LAB_REVISION", "LAB_SOURCE", "LAB_CREATED", "LAB_WHEEL_SHA256", "LAB_LOCK_SHA256"]


def targets(names: Sequence[str] = ()) -> list[Target]:
    """The targets of these names: an image's name means all it needs, a target's name only itself."""
    known = [target for name in images.names() for target in targets_of(images.load(name))]
    chosen = [target for target in known if not names or target.name in names or target.image in names]
    refuse_unknown(names, [word for target in known for word in (target.image, target.name)])
    return chosen


def refuse_unknown(names: Sequence[str], known: Sequence[str]) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(
            f"there is no image {unknown[0]!r}", fix=f"one of: {', '.join(dict.fromkeys(known))}"
        )


def targets_of(image: images.Image) -> list[Target]:
    common: dict[str, Any] = {
        "image": image.name,
        "base": image.base,
        "base_digest": image.base_digest,
        "python_version": image.python_version,
    }
    wheels = image.build.workload_wheels
    own = Target(
        name=_last(image.ref),
        ref=image.ref,
        dockerfile=Path(image.dockerfile),
        lock=Path("images", image.name, "requirements.lock"),
        wheels=() if image.workload_ref else wheels,
        **common,
    )
    if not (image.workload_ref and image.workload_dockerfile):
        return [own]
    work = Target(
        name=_last(image.workload_ref),
        ref=image.workload_ref,
        dockerfile=Path(image.workload_dockerfile),
        lock=Path("images", image.name, "workload.lock"),
        wheels=wheels,
        **common,
    )
    return [own, work]


def plan(names: Sequence[str], *, base: str | None, network: str, root: Path = ROOT) -> list[dict[str, Any]]:
    """What `build` would run, with a placeholder for what only the build itself finds out. Builds nothing."""
    builder = Builder(docker="docker", argv=("docker", "build"), env={"DOCKER_BUILDKIT": "1"})
    note = ""
    try:
        builder = find_builder()
    except EngineError as error:
        note = error.what
    wheel = Wheel(name="<the wheel of lab>", sha256="<its sha256>")
    return [
        {
            "name": t.name,
            "ref": t.ref,
            "base": base or t.base_ref,
            "wheels": t.wheels,
            "env": builder.env,
            "note": note,
            "argv": build_argv(
                t, builder, wheel, base=base, network=network, iidfile=Path("<file>"), root=root
            ),
        }
        for t in targets(names)
    ]


def _last(ref: str) -> str:
    return ref.rsplit("/", 1)[-1].split(":")[0]


# One build.


def _build_one(
    target: Target, builder: Builder, wheel: Wheel, *, base: str | None, network: str, say: Say, root: Path
) -> Built:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lab-build-") as folder:
        iidfile = Path(folder, "iid")
        argv = build_argv(target, builder, wheel, base=base, network=network, iidfile=iidfile, root=root)
        say(f"building {target.ref} on {base or target.base_ref}")
        code, tail = stream(argv, env=builder.env, cwd=root, say=say)
        if code:
            raise build_error(target, base or target.base_ref, tail)
        image_id = iidfile.read_text(encoding="utf-8").strip()
    size = _output([builder.docker, "image", "inspect", "-f", "{{.Size}}", image_id])
    return Built(
        name=target.name,
        ref=target.ref,
        id=image_id,
        base=base or target.base_ref,
        size_bytes=int(size),
        seconds=round(time.monotonic() - began, 1),
        wheel_sha256=wheel.sha256,
    )


def build_argv(
    target: Target,
    builder: Builder,
    wheel: Wheel,
    *,
    base: str | None,
    network: str,
    iidfile: Path,
    root: Path,
) -> list[str]:
    """The one command that builds `target`; its context is the tree's root, of which .dockerignore shows little."""
    arguments = {
        "BASE_IMAGE": base or target.base_ref,
        **_from_environment(os.environ),
        **_provenance(target, wheel, root),
    }
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    certificate = next(
        (os.environ[name] for name in CA_VARIABLES if Path(os.environ.get(name, "")).is_file()), None
    )
    secret = ["--secret", f"id=ca,src={certificate}"] if certificate else []
    return [
        *builder.argv,
        "--progress=plain",
        "--network",
        network,
        "--file",
        str(target.dockerfile),
        *words,
        *secret,
        "--iidfile",
        str(iidfile),
        "--tag",
        target.ref,
        ".",
    ]


def _from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """pip's index and the proxies. An index with a password would stay readable in the image's history."""
    for name in PIP_VARIABLES[:2]:
        for url in env.get(name, "").split():
            if "@" in urlsplit(url).netloc:
                raise UsageError(
                    f"{name} holds a password, which would stay in the image's history",
                    fix="use an index that needs none, or a proxy that adds it",
                )
    return {name: env[name] for name in (*PIP_VARIABLES, *PROXY_VARIABLES) if env.get(name)}


def _provenance(target: Target, wheel: Wheel, root: Path) -> dict[str, str]:
    """Created is the commit's time, not now: the same tree gives the same image."""
    identity = provenance.lab_identity()
    return {
        "LAB_VERSION": __version__,
        "LAB_REVISION": (identity.commit or "") + ("-dirty" if identity.dirty else ""),
        "LAB_SOURCE": _source_url(root),
        "LAB_CREATED": _git(root, "log", "-1", "--format=%cI"),
        "LAB_WHEEL_SHA256": wheel.sha256,
        "LAB_LOCK_SHA256": _sha256(root / target.lock),
    }


def _source_url(root: Path) -> str:
    """Where this tree was cloned from, if that says nothing private; else nothing."""
    url = _git(root, "remote", "get-url", "origin")
    return url if urlsplit(url).scheme == "https" and "@" not in urlsplit(url).netloc else ""


def _git(root: Path, *arguments: str) -> str:
    """What git says of this tree; nothing where there is no git, or no history."""
    if not shutil.which("git"):
        return ""
    argv = ["git", "-C", str(root), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def stream(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, say: Say) -> tuple[int, list[str]]:
    """Run, pass each line on as it comes; -> the exit code and the last lines."""
    tail: deque[str] = deque(maxlen=200)
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
        )
    except OSError as error:
        raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error
    with process:
        assert process.stdout is not None
        try:
            for line in map(str.rstrip, process.stdout):
                if line and not NOISE.match(line):
                    tail.append(line)
                    say(line)
        except BaseException:
            process.terminate()  # the engine cancels a build whose client has gone
            raise
    return process.returncode, list(tail)


NOISE = re.compile(r"#\d+ sha256:[0-9a-f]{64}$")  # BuildKit of 20.10 names each of its steps so

FAILURES = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "a proxy signs with its own authority: name its certificate file in SSL_CERT_FILE",
    ),
    (
        "DO NOT MATCH THE HASHES",
        "the index serves other files than the lock names: `make locks`, or another PIP_INDEX_URL",
    ),
    ("no space left on device", "free some space: docker system df shows who holds it"),
    (
        "pull access denied",
        "the base is not here: --base REF names another one, scripts/base-image.sh makes one",
    ),
    (
        "failed to do request",
        "the base is not here and its registry does not answer: --base REF, scripts/base-image.sh",
    ),
    (
        "no such host",
        "the base is not here and its registry does not answer: --base REF, scripts/base-image.sh",
    ),
    (
        "i/o timeout",
        "the base is not here and its registry does not answer: --base REF, scripts/base-image.sh",
    ),
    ("Cannot connect to the Docker daemon", "start the Docker engine, or scripts/docker-engine.sh for tests"),
    ("not found: manifest unknown", "the base's tag does not exist: --base REF"),
    (
        "Could not find a version",
        "the index lacks a file for the base's Python, or cannot be reached from a build",
    ),
)


def build_error(target: Target, base: str, tail: Sequence[str]) -> EngineError:
    text = "\n".join(tail)
    fix = next((fix for mark, fix in FAILURES if mark.lower() in text.lower()), None)
    last = "\n".join(f"      | {line}" for line in tail[-15:])
    return EngineError(
        f"{target.ref} did not build:\n{last}", where=f"{target.dockerfile} on {base}", fix=fix
    )


# Builders.


def find_builder() -> Builder:
    """The first builder that passes a probe: buildx, then the BuildKit inside each docker program on PATH.

    A newer docker without its buildx part cannot build with BuildKit where an older one beside it can.
    """
    programs = docker_programs()
    if not programs:
        raise EngineError(
            "there is no docker program on PATH",
            fix="install Docker (with buildx), or docker.io of Debian 12",
        )
    ways = [Builder(docker=docker, argv=(docker, "buildx", "build", "--load")) for docker in programs]
    ways += [
        Builder(docker=docker, argv=(docker, "build"), env={"DOCKER_BUILDKIT": "1"}) for docker in programs
    ]
    complaints = []
    for way in ways:
        complaint = _probe(way)
        if complaint is None:
            return way
        complaints.append(f"  {' '.join(way.argv)}: {complaint}")
    down = any("connect to the Docker daemon" in complaint for complaint in complaints)
    raise EngineError(
        "no builder here can build images:\n" + "\n".join(complaints),
        fix="start the Docker engine" if down else "install docker-buildx-plugin (or docker-buildx)",
    )


def docker_programs() -> list[str]:
    """Every docker on PATH, each real file once."""
    found: dict[str, str] = {}
    for folder in os.get_exec_path():
        program = shutil.which("docker", path=folder)
        if program:
            found.setdefault(os.path.realpath(program), program)
    return list(found.values())


def _probe(way: Builder) -> str | None:
    """None if this builder builds an empty image into nowhere, else why not."""
    argv = [word for word in way.argv if word != "--load"] + ["--output", "-", "-"]
    try:
        done = subprocess.run(
            argv,
            input=b"FROM scratch\nLABEL lab.probe=1\n",
            env={**os.environ, **way.env},
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 0:
        return None
    return next(
        (line for line in lines if "error" in line.lower() or "connect" in line),
        lines[0] if lines else "failed",
    )


# What is made on this host before a build.


def make_wheel(root: Path, say: Say) -> Wheel:
    """The wheel of this tree, in build/images/dist beside its SHA256SUMS. The same tree gives the same bytes."""
    say("making the wheel of lab")
    with tempfile.TemporaryDirectory(prefix="lab-wheel-") as folder:
        argv = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            folder,
            ".",
        ]
        code, tail = stream(argv, env={"SOURCE_DATE_EPOCH": "1580601600"}, cwd=root, say=say)
        made = sorted(Path(folder).glob("lab-*.whl"))
        if code or len(made) != 1:
            raise MissingError(
                "the wheel of lab cannot be made:\n" + "\n".join(tail[-8:]),
                where=root,
                fix=f"{sys.executable} needs pip, and pip an index with hatchling",
            )
        wheel = Wheel(name=made[0].name, sha256=_sha256(made[0]))
        with writing(root / DIST):
            shutil.rmtree(root / DIST, ignore_errors=True)
            make_folder(root / DIST)
            shutil.copyfile(made[0], root / DIST / wheel.name)
        write_atomic(root / DIST / "SHA256SUMS", f"{wheel.sha256}  {wheel.name}\n")
    return wheel


def fill_wheelhouse(target: Target, python_version: str, root: Path, say: Say) -> None:
    """The wheels that only this host's pip finds (a torch without CUDA), for the base's Python."""
    folder, stamp = root / WHEELHOUSE / target.name, root / WHEELHOUSE / f"{target.name}.for"
    wanted = f"{python_version} {' '.join(target.wheels)}\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted and any(folder.glob("*.whl")):
        return
    say(f"asking this host's pip for {', '.join(target.wheels)} (Python {python_version})")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    code, tail = stream(download_argv(target.wheels, python_version, folder), env={}, cwd=root, say=say)
    if code:
        raise MissingError(
            f"this host's pip does not find {', '.join(target.wheels)} for Python {python_version}:\n"
            + "\n".join(tail[-5:]),
            fix="point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS at one",
        )
    for wheel in folder.glob("*.whl"):
        _refuse_gpu_build(wheel)
    write_atomic(stamp, wanted)


def download_argv(wheels: Sequence[str], python_version: str, folder: Path) -> list[str]:
    platforms = [
        f"{tag}_{platform.machine()}"
        for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux")
    ]
    return [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        python_version,
        *(word for tag in platforms for word in ("--platform", tag)),
        "--dest",
        str(folder),
        *wheels,
    ]


def _refuse_gpu_build(wheel: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(
                name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
            )
            metadata = archive.read(name).decode("utf-8", "replace")
    except (zipfile.BadZipFile, StopIteration, OSError) as error:
        raise BadDataError(f"not a wheel: {error}", where=wheel) from error
    needs = re.findall(r"^Requires-Dist: ((?:nvidia|cuda|triton)[^;\s]*)", metadata, re.MULTILINE)
    if needs:
        raise UsageError(
            f"this host's pip finds a GPU build (it needs {needs[0]} and {len(needs) - 1} more), not one for the CPU",
            where=wheel.name,
            fix="point PIP_EXTRA_INDEX_URL at torch's index of CPU builds, or PIP_FIND_LINKS at a folder with one",
        )


def base_python(builder: Builder, base: str) -> str:
    """The version of python3 inside the base, such as 3.12."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        text = _output(
            [builder.docker, "run", "--rm", "--network", "none", "--entrypoint", "python3", base, "-c", code]
        )
    except EngineError as error:
        raise EngineError(
            f"the base {base} cannot be started: {error.what}",
            fix="--base REF names another one, scripts/base-image.sh makes one here",
        ) from error
    return text.splitlines()[-1]


def _output(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise EngineError((done.stderr.strip().splitlines() or ["failed"])[0], where=" ".join(argv[:3]))
    return done.stdout.strip()


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise MissingError(f"cannot read: {error.strerror}", where=path) from error


def _check_tree(root: Path) -> None:
    if not (root / "pyproject.toml").is_file() or not (root / "docker").is_dir():
        raise MissingError(
            "images are built from lab's source tree, and this lab is installed without it",
            where=root,
            fix="run `lab images build` from a checkout: pip install -e .",
        )


@contextlib.contextmanager
def _alone(root: Path, say: Say) -> Iterator[None]:
    """Two builds at once would change each other's build/images; the second waits for the first."""
    make_folder(root / "build/images")
    with writing(root / "build/images"), (root / "build/images/.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of this tree")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def built(timeout_s: float = 3.0) -> dict[str, str]:
    """Reference -> id of what the engine holds; empty where none answers in time."""
    argv = ["docker", "image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def holds(have: Mapping[str, str], ref: str) -> str | None:
    """The id of `ref` among what `built` found; a reference without a tag means latest."""
    return have.get(ref if ":" in ref.rsplit("/", 1)[-1] else f"{ref}:latest")


def lock_variable(target: Target) -> str:
    """The variable that names the hash of this target's lock, such as LAB_LOCK_SHA256_CPU_TORCH."""
    return "LAB_LOCK_SHA256_" + re.sub(r"\W", "_", target.name).upper()
