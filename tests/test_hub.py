"""What the Hub's cache has, found without the Hub's library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.errors import BadDataError, MissingError, UsageError
from lab.hub import (
    MODELS,
    OFFLINE,
    State,
    check_hub_id,
    check_model,
    fetch_command,
    find_model,
    hub_cache,
    is_loadable,
    is_offline,
    offline_settings,
    revision_to_load,
)

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


# A step that lacks its model says so at once: that it is offline, and what to type.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("LAB_IMAGE", raising=False)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def said(model: str) -> str:
    with pytest.raises(MissingError) as raised:
        check_model(model)
    return str(raised.value)


def test_in_a_container_it_is_the_container_that_is_offline(cache, monkeypatch):
    monkeypatch.setenv("LAB_IMAGE", "cuda")
    text = said("org/m")
    assert "this container is offline" in text and "lab fetch org/m --image cuda" in text


def test_here_it_is_the_steps_that_run_offline(cache):
    text = said("org/m")
    assert "steps run offline" in text and text.endswith("lab fetch org/m")


def test_half_a_model_is_said_to_be_half_there(cache):
    cached(cache, "model.safetensors")
    assert "is only partly in the Hub's cache" in said("org/m")


def test_a_model_that_is_there_a_folder_and_a_step_that_may_download_pass(cache, tmp_path, monkeypatch):
    cached(cache, "config.json", "model.safetensors")
    check_model("org/m")
    check_model(str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    check_model("org/other")


def test_a_folder_that_the_container_does_not_have_is_not_offered_a_fetch(cache):
    text = said("/models/mine")
    assert "lab fetch" not in text and "containers see only" in text


def test_a_name_is_quoted_for_the_shell(cache):
    assert fetch_command("a;b") == "lab fetch 'a;b'"


@pytest.fixture
def run_of(cache, tmp_path, monkeypatch):
    """The folder of a run that began with this commit of org/m, as a step sees it: it works in there."""

    def begun(commit: str) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        folder.joinpath(MODELS).write_text(json.dumps([{"model": "org/m", "commit": commit, "without": ""}]))
        monkeypatch.chdir(folder)

    return begun


def test_a_step_loads_the_commit_that_its_run_began_with_though_a_fetch_brought_another(cache, run_of):
    cached(cache, "config.json", "model.safetensors")
    cached(cache, "config.json", commit="d" * 40)  # the next fetch, and half done
    assert revision_to_load("org/m") == "main" and not (cache / f"models--org--m/refs/{COMMIT}").exists()
    run_of(COMMIT)
    assert revision_to_load("org/m") == COMMIT and is_loadable("org/m")
    check_model("org/m")
    assert revision_to_load("org/other") == "main"


def test_steps_of_a_run_that_began_without_a_model_do_not_load_what_is_fetched_since(cache, run_of):
    run_of("")
    cached(cache, "config.json", "model.safetensors")
    assert not is_loadable("org/m")


def test_a_damaged_record_is_no_leave_to_load_anything(cache, run_of):
    run_of(COMMIT)
    with open(MODELS, "w") as file:
        file.write("{")
    with pytest.raises(BadDataError, match="not a list of models"):
        revision_to_load("org/m")
