"""Atomic writes (to a temporary name, flushed to disk, then renamed), locks and JSON."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from lab.errors import BadDataError, BusyError, ConfigError, MissingError, writing

Document = TypeVar("Document")


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` when the block succeeds, and is removed when it fails."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Version(msgspec.Struct):
    schema_version: int


def read_json(
    path: Path, kind: type[Document], name: str, *, version: int | None = None, fix: str | None = None
) -> Document:
    """Read a JSON file, called `name` in errors, whose schema_version must be `version`.

    Raises MissingError, with `fix`, if it cannot be read; BadDataError if it does not fit its schema.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingError(f"cannot read {name}: {error.strerror}", location=path, fix=fix) from error
    try:
        written = version and msgspec.json.decode(data, type=_Version).schema_version
        if written == version:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ConfigError, RecursionError) as error:
        raise BadDataError(f"cannot read {name}: {error}", location=path) from error
    raise BadDataError(
        f"{name} has schema version {written}, this lab reads {version}",
        location=path,
        fix="use the version of lab that wrote it",
    )


def read_or_none(path: Path, kind: type[Document]) -> Document | None:
    """Read a JSON file; None where there is none that fits."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def make_folder(path: Path) -> Path:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def home_folder() -> Path:
    """The caller's home. Raises MissingError without one: no HOME, and no entry in passwd."""
    home = os.path.expanduser("~")
    if home.startswith("~"):
        fix = "set HOME, or XDG_CACHE_HOME, to a folder of yours"
        raise MissingError(f"the user {os.getuid()} has no home folder here", location="HOME", fix=fix)
    return Path(home)


def cache_folder() -> Path:
    """Where lab keeps what can be made again; an empty variable is as good as none."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "lab"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(path: Path, *, busy: str, fix: str) -> Iterator[None]:
    """Hold an flock on `path`, which the kernel releases when this process dies, however it dies."""
    with writing(path):
        # A child that inherited it would hold the lock after this process.
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(busy, location=path, fix=fix) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def holder_pid(path: Path) -> int | None:
    """The process that holds `exclusive(path)` now, or None."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # of another user's run, too
    except OSError:
        return None  # never locked, or not ours to read
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.pread(handle, 32, 0)
        return int(content) if content.isdigit() else None
    finally:
        os.close(handle)
    return None
