"""What is downloaded of a repository, and what lab says when that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lab.errors import MissingError, NetworkError, StorageError
from lab.workload import fetch
from lab.workload.fetch import apply_settings, choose, explain

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize(
    "files, wanted",
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], ["config.json", "model.safetensors"]),
        (
            ["config.json", *SHARDS, "model.safetensors.index.json", "pytorch_model.bin.index.json"],
            ["config.json", *SHARDS, "model.safetensors.index.json"],
        ),
        (
            ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "tokenizer.model"],
            ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", "tokenizer.model"],
        ),
        (
            ["config.json", "consolidated.safetensors", "model.safetensors"],
            ["config.json", "model.safetensors"],
        ),
        (["config.json", "adapter_model.safetensors"], ["adapter_model.safetensors", "config.json"]),
        (["config.json", "tf_model.h5", "onnx/model.onnx", "x.gguf", "README.md", "run.py"], ["config.json"]),
        (
            ["config.json", "chat_template.jinja", "vocab.txt"],
            ["chat_template.jinja", "config.json", "vocab.txt"],
        ),
    ],
)
def test_weights_come_in_one_format_and_code_never(files, wanted):
    assert choose(files) == wanted


class HubError(Exception):
    def __init__(self, status):
        super().__init__(f"{status} error")
        self.response = type("Response", (), {"status_code": status})()


class GatedRepoError(HubError): ...


class RevisionNotFoundError(HubError): ...


Refused = type("ConnectError", (Exception,), {"__module__": "httpx2"})


@pytest.mark.parametrize(
    "error, kind, said",
    [
        (HubError(404), MissingError, "has no model"),
        (HubError(401), MissingError, "has no model"),
        (GatedRepoError(401), MissingError, "gated, and HF_TOKEN is not set"),
        (HubError(403), MissingError, "gated"),
        (RevisionNotFoundError(404), MissingError, "no revision"),
        (HubError(503), NetworkError, "does not answer"),
        (HubError(429), NetworkError, "does not answer"),
        (Refused("refused"), NetworkError, "refused"),
        (TimeoutError("slow"), NetworkError, "slow"),
        (OSError(errno.ENOSPC, "full"), StorageError, "no space left"),
        (OSError(errno.EDQUOT, "quota"), StorageError, "no space left"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), StorageError, "no space left"),
        (OSError(errno.EROFS, "read-only"), StorageError, "not allowed to write"),
        (PermissionError(errno.EACCES, "no"), StorageError, "not allowed to write"),
    ],
)
def test_each_failure_has_its_words_and_exit_code(error, kind, said, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    got = explain(error, "a/b", "main", Path("/hf"))
    assert type(got) is kind and said in str(got)


def test_a_failure_is_recognised_below_what_the_library_wraps_it_in(monkeypatch):
    try:
        try:
            raise Refused("connection refused")
        except Exception as inner:
            raise FileNotFoundError("cannot find an appropriate snapshot folder") from inner
    except FileNotFoundError as error:
        assert type(explain(error, "a/b", "main", Path("/hf"))) is NetworkError


def test_a_fault_of_lab_is_not_dressed_up_as_the_hubs():
    assert explain(TypeError("bug"), "a/b", "main", Path("/hf")) is None


def test_a_token_that_may_not_read_is_said_apart_from_no_token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret_1234")
    text = str(explain(GatedRepoError(403), "a/b", "main", Path("/hf")))
    assert "this token may not read it" in text and "planted" not in text


def test_an_endpoint_with_a_password_is_shown_without_it(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@mirror.example/")
    assert fetch.endpoint() == "mirror.example"


def test_settings_reach_the_libraries_by_this_process_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    apply_settings({"env": {"HF_TOKEN": "t", "HTTPS_PROXY": "p"}, "certificates": "PEM"}, tmp_path)
    assert (os.environ["HF_TOKEN"], os.environ["HTTPS_PROXY"]) == ("t", "p")
    assert Path(os.environ["REQUESTS_CA_BUNDLE"]).read_text() == "PEM"
