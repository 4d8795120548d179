"""`lab fetch` as a person types it, against a stand-in for the Hub."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.core.step import Outcome, Status
from lab.driver.fetch import raise_for, settings
from lab.errors import LabError, NetworkError, StepFailed
from tests.command import until
from tests.conftest import small_disk
from tests.hub import COMMIT, TOKEN, StandIn, mistral_repo, serving, tiny_repo

NAN = ("nan", "baseline", "--quant", "none", "--max-new-tokens", "2", "--dtype", "float32")
# What a person may have set, and what would lead to another Hub or cache.
CLEARED = ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy")
CLEARED += ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "XDG_CACHE_HOME", "XDG_STATE_HOME")


@pytest.fixture
def hub():
    pytest.importorskip("huggingface_hub")
    repo = tiny_repo(**{"pytorch_model.bin": b"b" * 5000, "tokenizer.json": b"{}"})
    with serving(StandIn({"org/m": repo, "org/gated": repo}, gated=frozenset({"org/gated"}))) as one:
        yield one


def start(home: Path, *words: str, **env: str):
    kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
    return subprocess.Popen(
        [sys.executable, "-m", "lab", *words],
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**kept, "HOME": str(home), "HF_HOME": str(home / "hf"), **env},
    )


def lab(home: Path, *words: str, code: int = 0, **env: str) -> tuple[str, str]:
    process = start(home, *words, **env)
    out, err = process.communicate(timeout=900)
    assert process.returncode == code, f"{out}\n{err}"
    return out, err


def files_with(text: str, folder: Path) -> list[Path]:
    found = []
    for root, _, names in os.walk(folder):  # what a process removes meanwhile holds nothing
        for path in (Path(root) / name for name in names):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and text.encode() in path.read_bytes():
                    found.append(path)
    return found


def test_a_model_arrives_in_the_shared_cache_and_says_so(hub, tmp_path):
    out, err = lab(tmp_path, "fetch", "org/m", "--json", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    assert json.loads(out)["state"] == "complete" and json.loads(out)["commit"] == COMMIT
    snapshot = tmp_path / "hf/hub/models--org--m/snapshots" / COMMIT
    assert {p.name for p in snapshot.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert set(hub.tokens) == {f"Bearer {TOKEN}"} and "✓ org/m" in err
    assert not files_with(TOKEN, tmp_path)


def test_the_token_of_the_hubs_own_login_is_used_and_never_shown(hub, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/token").write_text(TOKEN)
    lab(tmp_path, "fetch", "org/gated", HF_ENDPOINT=hub.url)
    assert files_with(TOKEN, tmp_path) == [tmp_path / "hf/token"]


@pytest.mark.parametrize(
    "model, more, code, said",
    [
        ("org/none", {}, 4, "the Hub has no model org/none"),
        ("org/gated", {}, 4, "org/gated is gated, and HF_TOKEN is not set"),
        ("org/gated", {"HF_TOKEN": "hf_of_somebody_else"}, 4, "this token may not read it"),
        ("org/m", {"HF_ENDPOINT": "http://127.0.0.1:9"}, 8, "the Hub does not answer"),
        ("org/m", {"HTTP_PROXY": "http://me:planted_pw@127.0.0.1:9"}, 8, "the Hub does not answer"),
        ("org/../m", {}, 2, "is not a Hub id"),
        ("org/m", {"HF_TOKEN": "hf_planted_pw\nhf_x"}, 2, "the token for the Hub has a line break"),
    ],
)
def test_what_goes_wrong_is_said_with_its_exit_code(hub, tmp_path, model, more, code, said):
    out, err = lab(tmp_path, "fetch", model, code=code, **{"HF_ENDPOINT": hub.url, **more})
    assert said in err and "Traceback" not in err and "planted_pw" not in out + err


def test_a_disk_without_room_is_known_before_the_download(hub, tmp_path):
    hub.pretend_bytes = 10**17
    _, err = lab(tmp_path, "fetch", "org/m", code=9, HF_ENDPOINT=hub.url)
    assert "no space left for the model" in err and str(tmp_path / "hf/hub") in err
    assert not [line for line in hub.asked if "/resolve/" in line]


@pytest.mark.root
def test_a_disk_that_fills_up_during_the_download_is_the_same_error(hub, tmp_path):
    hub.repos["org/big"] = tiny_repo(**{"model.safetensors": b"w" * 3_000_000})
    hub.pretend_bytes = 1000  # the listing lies
    with small_disk(tmp_path / "disk", "1m") as disk:
        _, err = lab(tmp_path, "fetch", "org/big", code=9, HF_ENDPOINT=hub.url, HF_HUB_CACHE=str(disk))
    assert "no space left for the model" in err


def test_a_dry_run_names_what_would_be_given_and_asks_nobody(hub, tmp_path):
    out, _ = lab(tmp_path, "fetch", "org/m", "-n", "--json", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    plan = json.loads(out)
    assert plan["config"]["cached"]["state"] == "absent"
    assert plan["config"]["stdin"] == ["HF_ENDPOINT", "HF_TOKEN"]
    assert TOKEN not in out and not hub.asked and not (tmp_path / "hf").exists()


def test_kill_9_at_six_moments_leaves_the_token_nowhere_and_the_next_fetch_succeeds(hub, tmp_path):
    hub.slow_s = 0.3
    for moment in range(6):
        driver = start(
            tmp_path, "fetch", "org/gated", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN, TMPDIR=str(tmp_path)
        )
        time.sleep(0.1 + moment * 0.4)
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        assert not files_with(TOKEN, tmp_path)
    lab(tmp_path, "fetch", "org/gated", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)


def test_ctrl_c_keeps_what_is_there_and_says_how_to_go_on(hub, tmp_path):
    hub.slow_s = 60.0
    driver = start(tmp_path, "fetch", "org/m", HF_ENDPOINT=hub.url)
    until(lambda: any("/resolve/" in line for line in hub.asked))
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=900)
    assert driver.returncode == 130 and "lab fetch org/m goes on where it stopped" in err


def ended(status: Status, *tail: str) -> Outcome:
    return Outcome(status=status, reason="exit code 1", tail=tail)


@pytest.mark.parametrize(
    "line, kind",
    [
        ('{"error": {"kind": "NetworkError", "problem": "no"}}', NetworkError),
        ('{"error": {"kind": "annotations", "problem": "no"}}', LabError),
        ('{"error": ["x"]}', StepFailed),
        ("{broken", StepFailed),
        ("Killed", StepFailed),
    ],
)
def test_a_download_that_ends_badly_is_an_error_whatever_it_printed(line, kind):
    with pytest.raises(kind) as raised:
        raise_for(ended(Status.failed, line), [line])
    assert type(raised.value) is kind


def test_an_exit_code_of_0_without_the_last_line_is_no_success():
    with pytest.raises(StepFailed):
        raise_for(ended(Status.ok), [])
    raise_for(ended(Status.ok), ['{"fetched": {}}'])


@pytest.mark.torch
def test_a_fetched_model_is_measured_offline_and_recorded(tmp_path):
    """From 'it is not here' over one command to a result, in which the Hub is never asked."""
    pytest.importorskip("transformers")
    made = tmp_path / "made"
    made.mkdir()
    words = ("run", "-o", "run", "--analysis", "none", *NAN, "--model", "org/mistral")
    with serving(StandIn({"org/mistral": mistral_repo(made)})) as hub:
        _, err = lab(tmp_path, *words, code=4, HF_ENDPOINT=hub.url)
        assert "fix:   lab fetch org/mistral" in err and not (tmp_path / "run").exists() and not hub.asked
        lab(tmp_path, "fetch", "org/mistral", HF_ENDPOINT=hub.url)
        hub.asked.clear()
        _, err = lab(tmp_path, *words, HF_ENDPOINT=hub.url)
    assert f"commit {COMMIT[:12]}" in err and not hub.asked
    recorded = json.loads((tmp_path / "run/models.json").read_text())
    assert recorded == [{"model": "org/mistral", "commit": COMMIT, "without": ""}]


def test_a_certificate_travels_as_text_because_containers_lack_its_file(tmp_path):
    (tmp_path / "ca.pem").write_text("PEM")
    env = {"HF_HOME": str(tmp_path), "SSL_CERT_FILE": str(tmp_path / "ca.pem"), "AWS_SECRET": "no"}
    assert json.loads(settings(env)) == {"env": {}, "certificates": "PEM"}
    assert json.loads(settings({"HF_HOME": "/x", "SSL_CERT_FILE": "/gone"}))["certificates"] is None


@pytest.mark.docker
@pytest.mark.root
def test_a_fetch_in_the_image_survives_its_driver_until_it_is_stopped(hub, cpu_images, tmp_path):
    hub.slow_s = 8.0
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    driver = start(tmp_path, "fetch", "org/gated", "--image", "cpu", TMPDIR=str(tmp_path), **env)
    until(lambda: any("GET" in line and "/resolve/" in line for line in hub.asked))
    driver.kill()
    driver.communicate()
    (folder,) = tmp_path.glob("lab-fetch-*/fetch")
    _, err = lab(tmp_path, "runs", "stop", str(folder))
    assert "fetch" in err and not files_with(TOKEN, tmp_path)
    lab(tmp_path, "fetch", "org/gated", "--image", "cpu", **env)
    assert (tmp_path / "hf/hub/models--org--gated/snapshots" / COMMIT / "model.safetensors").is_file()
