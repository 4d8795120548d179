"""What the Hub's cache has, found without the Hub's library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.errors import UsageError
from lab.hub import OFFLINE, State, check_hub_id, find_model, hub_cache, is_offline, offline_settings

COMMIT = "c" * 40


def cached(cache: Path, *files: str, commit: str = COMMIT, **content: str) -> Path:
    """A snapshot with these files, the way the Hub's library lays it out: links to blobs."""
    folder = cache / "models--org--m"
    snapshot = folder / "snapshots" / commit
    for part in (snapshot, folder / "blobs", folder / "refs"):
        part.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for name in files:
        (folder / "blobs" / name).write_text(content.get(name.split(".")[0], "12345"))
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    return snapshot


def index(*parts: str) -> str:
    return json.dumps({"weight_map": {f"layer{n}": part for n, part in enumerate(parts)}})


def test_the_cache_is_where_the_hubs_library_looks():
    assert hub_cache({"HOME": "/x", "HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert hub_cache({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}) == Path("/b/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert hub_cache({}) == Path.home() / ".cache/huggingface/hub"


def test_it_agrees_with_the_library_itself(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    import importlib
    import sys

    for settings in ({"HF_HOME": str(tmp_path)}, {"XDG_CACHE_HOME": str(tmp_path)}, {}):
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            assert Path(importlib.reload(constants).HF_HUB_CACHE) == hub_cache()
    importlib.reload(sys.modules["huggingface_hub.constants"])


@pytest.mark.parametrize(
    "files, content, state",
    [
        (("config.json", "model.safetensors"), {}, State.complete),
        (("config.json", "pytorch_model.bin"), {}, State.complete),
        (("config.json", "tokenizer.json"), {}, State.unclear),
        (("model.safetensors",), {}, State.incomplete),
        (
            ("config.json", "model.safetensors.index.json"),
            {"model": index("a.safetensors")},
            State.incomplete,
        ),
        (
            ("config.json", "model.safetensors.index.json", "a.safetensors"),
            {"model": index("a.safetensors", "a.safetensors")},
            State.complete,
        ),
        (("config.json", "model.safetensors.index.json"), {"model": "[1"}, State.incomplete),
        (("config.json", "model.safetensors.index.json"), {"model": "[]"}, State.incomplete),
        (("config.json", "model.safetensors.index.json"), {"model": "[" * 100_000}, State.incomplete),
    ],
)
def test_a_model_is_there_only_with_every_file_that_its_index_names(tmp_path, files, content, state):
    cached(tmp_path, *files, **content)
    found = find_model("org/m", tmp_path)
    assert (found.state, found.commit) == (state, COMMIT)


def test_a_link_whose_blob_is_gone_is_a_missing_file(tmp_path):
    snapshot = cached(tmp_path, "config.json", "model.safetensors")
    (snapshot / "model.safetensors").resolve().unlink()
    found = find_model("org/m", tmp_path)
    assert (found.state, found.missing) == (State.incomplete, ("model.safetensors",))


def test_a_download_that_has_only_begun_is_incomplete(tmp_path):
    blobs = tmp_path / "models--org--m" / "blobs"
    blobs.mkdir(parents=True)
    assert find_model("org/m", tmp_path).state is State.absent
    (blobs / "abc.incomplete").touch()
    assert find_model("org/m", tmp_path).state is State.incomplete


def test_a_commit_is_found_by_its_own_name_and_a_branch_by_its_ref(tmp_path):
    cached(tmp_path, "config.json", "model.safetensors")
    assert find_model("org/m", tmp_path, COMMIT).state is State.complete
    assert find_model("org/m", tmp_path, "other").state is State.absent


@pytest.mark.parametrize(
    "bad", ["", "/etc", "../x", "a/b/c", "a/../b", "a b", "a\nb", "-x/y", "a--b/c", "a/b\n"]
)
def test_what_is_no_hub_id_is_refused(bad):
    with pytest.raises(UsageError, match="not a Hub id"):
        check_hub_id(bad)


def test_hub_ids_and_revisions_are_accepted():
    for model in ("gpt2", "BioMistral/BioMistral-7B", "lmsys/vicuna-7b-v1.5"):
        check_hub_id(model, "refs/pr/1")
    with pytest.raises(UsageError, match="not a revision"):
        check_hub_id("gpt2", "../main")


def test_steps_are_offline_unless_the_caller_says_otherwise():
    assert offline_settings({}) == OFFLINE and is_offline(OFFLINE)
    for name in OFFLINE:
        asked = offline_settings({name: "0"})
        assert asked == dict.fromkeys(OFFLINE, "0") and not is_offline(asked)
    assert not is_offline({})
