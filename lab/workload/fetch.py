"""Download one model into the Hub's cache: `python -m lab.workload.fetch MODEL REVISION < settings`.

Standard input is one JSON object: `env` (token, proxies, endpoint), set here and in no other process, and
`certificates` (PEM text of a proxy's authority). The last line of output is one too: `fetched` or `error`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lab.core.words import size_text
from lab.errors import (
    BadDataError,
    LabError,
    MissingError,
    NetworkError,
    StorageError,
    needs,
)
from lab.hub import CERTIFICATES, CachedModel, State, fetch_command, find_model, hub_cache

# What transformers needs beside weights: configs, tokenizers, templates.
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.vocab", "*.bpe")
# The first of these that a repository has is downloaded; its other formats hold the same numbers again.
WEIGHT_FORMATS = (
    ("model.safetensors", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*.bin"),
    ("*.safetensors",),
    ("*.bin",),
)
HUB = "https://huggingface.co"
PROGRESS_S = 5.0
ANSWER_S = 20.0
NETWORK_PACKAGES = ("requests", "httpx", "httpx2", "httpcore", "urllib3")


def main(model: str, revision: str) -> int:
    """Fetch, print a JSON line for the driver, return the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="lab-fetch-") as folder:
            apply_settings(json.load(sys.stdin), Path(folder))
            downloaded = fetch(model, revision)
    except LabError as error:
        answer = {name: getattr(error, name) for name in ("problem", "location", "fix")}
        say(json.dumps({"error": {"kind": type(error).__name__, **answer}}))
        return error.exit_code
    say(json.dumps({"fetched": {"commit": downloaded.commit, "size_bytes": downloaded.size_bytes}}))
    return 0


def apply_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Set the environment; call before importing the Hub's libraries, which read it on import."""
    os.environ.update(settings["env"])
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # a bar of carriage returns spoils a log
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["HF_XET_CHUNK_CACHE_SIZE_BYTES"] = "0"  # it would fill a container's /tmp, which is memory
    if pem := settings.get("certificates"):
        path = folder / "certificates.pem"
        path.write_text(pem, encoding="utf-8")
        os.environ.update(dict.fromkeys(CERTIFICATES, str(path)))


def fetch(model: str, revision: str) -> CachedModel:
    """Download what transformers reads of a model; what is there already is kept.

    Raises MissingError for a model, revision or permission that is missing, NetworkError where the Hub
    cannot be reached, StorageError for a full disk.
    """
    with needs("workload"):
        import huggingface_hub
    cache = hub_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        info = huggingface_hub.HfApi().model_info(
            model, revision=revision, files_metadata=True, timeout=ANSWER_S
        )
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        if "config.json" not in sizes:
            raise BadDataError(
                f"{model} has no config.json, without which transformers cannot load it", location=endpoint()
            )
        wanted = choose(list(sizes))
        snapshot = cache / f"models--{model.replace('/', '--')}" / "snapshots" / str(info.sha)
        needed = sum(sizes[name] for name in wanted if not (snapshot / name).is_file())
        free = shutil.disk_usage(cache).free
        say(
            f"{model} at {str(info.sha)[:12]}: {len(wanted)} of {len(sizes)} files, "
            f"{size_text(sum(sizes[name] for name in wanted))}, {size_text(needed)} to download"
        )
        if needed > free:
            raise full_disk(cache, f": {size_text(needed)} needed, {size_text(free)} free")
        with progress(snapshot.parents[1] / "blobs", needed):
            huggingface_hub.snapshot_download(
                model, revision=revision, allow_patterns=[glob.escape(name) for name in wanted]
            )
    except LabError:
        raise
    except Exception as error:
        if translated := explain(error, model, revision, cache):
            raise translated from error
        raise
    downloaded = find_model(model, cache, revision)
    if downloaded.state in (State.absent, State.incomplete):
        raise BadDataError(
            f"the download of {model} is incomplete: {', '.join(downloaded.missing[:3]) or 'no snapshot'}",
            location=cache,
            fix="fetch it again; what is there is kept",
        )
    if downloaded.state is State.unclear:
        say("note: the repository has no weights under a name that transformers looks for")
    return downloaded


def choose(files: Sequence[str]) -> list[str]:
    """The files that transformers reads: small ones at the top, and weights in one format."""
    top = [name for name in files if "/" not in name]
    small = [name for name in top if any(fnmatch(name, pattern) for pattern in SMALL_FILES)]
    formats = ([n for n in top if any(fnmatch(n, p) for p in patterns)] for patterns in WEIGHT_FORMATS)
    weights = next(filter(None, formats), [])
    unused = [f"{name}.index.json" for name in ("model.safetensors", "pytorch_model.bin")]
    indexes = {name for name in unused if not any(n.startswith(name.split(".")[0] + "-") for n in weights)}
    return sorted({*small, *weights} - indexes)


def explain(error: BaseException, model: str, revision: str, cache: Path) -> LabError | None:
    """lab's error for one of the Hub's libraries, whose classes differ from version to version."""
    chain = [error]
    while (deeper := chain[-1].__cause__ or chain[-1].__context__) and deeper not in chain:
        chain.append(deeper)
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    packages = {type(link).__module__.split(".")[0] for link in chain}
    responses = (getattr(link, "response", None) for link in chain)
    status = next(filter(None, (getattr(response, "status_code", None) for response in responses)), None)
    has_token = bool(os.environ.get("HF_TOKEN"))
    if any(_is_full(link) for link in chain):
        return full_disk(cache)
    if any(isinstance(link, PermissionError) or getattr(link, "errno", 0) == errno.EROFS for link in chain):
        return StorageError("not allowed to write to the Hub's cache", location=cache, fix="set HF_HUB_CACHE")
    if "GatedRepoError" in names or status == 403:
        problem, fix = "HF_TOKEN is not set", f"then: HF_TOKEN=... {fetch_command(model)}"
        if has_token:
            problem, fix = "this token may not read it", "with the token's account, and give it read access"
        return MissingError(
            f"{model} is gated, and {problem}",
            location=f"{endpoint()}/{model}",
            fix=f"accept its conditions on that page, {fix}",
        )
    if "RevisionNotFoundError" in names:
        return MissingError(f"{model} has no revision {revision!r}", fix="see its page for branches and tags")
    if "RepositoryNotFoundError" in names or status in (401, 404):
        # The Hub answers the same for a model that does not exist and for one that the caller may not see.
        problem = "this token is not valid or may not see it" if has_token else "it is private: set HF_TOKEN"
        return MissingError(
            f"the Hub has no model {model}, or {problem}", location=endpoint(), fix="check ORGANISATION/MODEL"
        )
    if packages & set(NETWORK_PACKAGES) or status or names & {"ConnectionError", "TimeoutError", "gaierror"}:
        text = " ".join(str(error).split()) or type(error).__name__
        return NetworkError(
            f"the Hub does not answer: {text[:300]}",
            location=endpoint(),
            fix="check the network, HTTPS_PROXY, HF_ENDPOINT, and SSL_CERT_FILE behind a proxy of your own",
        )
    return None


def full_disk(cache: Path, detail: str = "") -> StorageError:
    return StorageError(
        f"no space left for the model{detail}",
        location=cache,
        fix="free some space, or set HF_HUB_CACHE to a folder on another disk; what is there is kept",
    )


def _is_full(error: BaseException) -> bool:
    full = (errno.ENOSPC, errno.EDQUOT)
    # hf_xet reports the system's error only as text.
    return getattr(error, "errno", None) in full or "(os error 28)" in str(error)


def endpoint() -> str:
    """The Hub's address, without a password."""
    return os.environ.get("HF_ENDPOINT", HUB).rstrip("/").rpartition("@")[2]


@contextlib.contextmanager
def progress(blobs: Path, needed: int) -> Iterator[None]:
    """One line every few seconds while the block downloads into `blobs`."""
    start_bytes, stopped = _size(blobs), threading.Event()

    def report() -> None:
        while not stopped.wait(PROGRESS_S):
            say(f"{size_text(max(0, _size(blobs) - start_bytes))} of {size_text(needed)}")

    thread = threading.Thread(target=report, daemon=True, name="lab-progress")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # a part that has just become a whole file
            total += path.stat().st_size
    return total


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
