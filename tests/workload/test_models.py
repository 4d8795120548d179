"""A step that lacks its model says so at once: that it is offline, and what to type."""

from __future__ import annotations

import pytest

from lab.core.hub import OFFLINE
from lab.errors import MissingError
from lab.workload.models import check_model, fetch_command
from tests.core.test_hub import cached


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
