"""A step that lacks its model says so at once: that it is offline, and what to type."""

from __future__ import annotations

import json

import pytest

from lab.errors import BadDataError, MissingError
from lab.hub import MODELS, OFFLINE, fetch_command
from lab.workload.models import check_model, is_loadable, revision_to_load
from tests.test_hub import COMMIT, cached


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
