"""`lab run --image` as a person types it, on a real engine, with images built from this tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.built import own_image_names
from tests.command import start, until

pytestmark = [pytest.mark.docker, pytest.mark.root]
SWEEP = ("sweep", "-t", "256", "--ranks", "2")


def lab(*words, cwd, code=0, **env):
    process = start(*words, cwd=cwd, env=env)
    out, err = process.communicate(timeout=900)
    assert process.returncode == code, f"{out}\n{err}"
    return out, err


def manifest(run: Path) -> dict:
    return json.loads((run / "manifest.json").read_text())


def containers_of(run: Path, which: str = "-aq") -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", which, "--filter", f"label=lab.run_dir={run.resolve()}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


@pytest.fixture(scope="module")
def finished(cpu_images, tmp_path_factory) -> Path:
    """One sweep over two settings in lab/cpu-torch, analysed in lab/cpu, with secrets around."""
    folder = tmp_path_factory.mktemp("a sweep, 'in' containers")
    secrets = {"HF_TOKEN": "hf_planted_secret_1234", "AWS_SECRET_ACCESS_KEY": "planted_secret_5678"}
    with own_image_names():
        lab("run", "--image", "cpu", "-o", "run", *SWEEP, "-c", "28,42", cwd=folder, **secrets)
    return folder / "run"


def test_the_run_is_complete_and_nothing_is_left_on_the_engine(finished):
    assert [s["outcome"]["status"] for s in manifest(finished)["steps"]] == ["ok", "ok"]
    assert (finished / "report.html").stat().st_size > 10_000 and not (finished / ".analysis").exists()
    assert not containers_of(finished)


def test_the_manifest_says_image_wheel_identity_and_mounts(finished, cpu_images):
    said = manifest(finished)
    assert said["image"]["id"] == cpu_images["cpu-torch"].id and len(said["image"]["wheel_sha256"]) == 64
    assert (said["container"]["uid"], said["container"]["gid"]) == (os.getuid(), os.getgid())
    assert {"source": str(finished), "target": "/out", "read_only": False} in said["container"]["mounts"]
    assert said["engine"] == "docker" and said["versions"]["torch"].startswith("2.")
    assert said["analysis_image"]["id"] == cpu_images["cpu"].id and "API" in said["engine_version"]


def test_images_built_from_this_tree_run_their_own_lab_and_the_manifest_proves_it(finished):
    said = manifest(finished)
    ours = said["lab"]["sha256"]
    assert said["lab"]["used"] == "image"
    assert {said["image"]["lab_sha256"], said["analysis_image"]["lab_sha256"]} == {ours}
    assert [step["lab_sha256"] for step in said["steps"]] == [ours, ours]


def test_tables_made_in_the_image_are_byte_equal_to_those_made_on_the_host(finished, tmp_path):
    lab("analyze", finished, "--out", "here", cwd=tmp_path)
    made_here = sorted((tmp_path / "here" / "tables").iterdir())
    assert made_here
    for table in made_here:
        assert table.read_bytes() == (finished / "tables" / table.name).read_bytes(), table.name


def test_a_planted_secret_is_in_no_file_of_the_run(finished):
    for path in finished.rglob("*"):
        if path.is_file():
            assert b"planted_secret" not in path.read_bytes(), path


def test_files_belong_to_the_caller_who_is_not_root(cpu_images, open_folder):
    group = str(os.stat("/var/run/docker.sock").st_gid)
    caller = ["setpriv", "--reuid", "1234", "--regid", "1235", "--groups", group]
    home = {
        "HOME": str(open_folder),
        "XDG_CACHE_HOME": str(open_folder / "cache"),
        "HF_HOME": str(open_folder / "hf"),
    }
    lines = [*caller, sys.executable, "-m", "lab", "run", "--image", "cpu", "-o", "run", *SWEEP, "-c", "28"]
    done = subprocess.run(
        lines, cwd=open_folder, env={**os.environ, **home}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in (open_folder / "run").rglob("*")}
    assert owners == {(1234, 1235)}


def test_a_caller_who_may_not_use_the_engine_is_told_what_to_do(open_folder):
    caller = ["setpriv", "--reuid", "1234", "--regid", "1235", "--clear-groups"]
    done = subprocess.run(
        [*caller, sys.executable, "-m", "lab", "run", "--image", "cpu", "-o", "run", *SWEEP],
        cwd=open_folder,
        env={**os.environ, "HOME": str(open_folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6 and "usermod -aG docker" in done.stderr and "Traceback" not in done.stderr
    assert not (open_folder / "run").exists()


def test_an_image_that_is_not_built_is_an_error_with_the_command_that_builds_it(tmp_path):
    shutil.copytree(Path(__file__).parents[2] / "images", tmp_path / "images")
    toml = tmp_path / "images" / "cpu" / "image.toml"
    toml.write_text(toml.read_text().replace('"localhost/lab/cpu-torch"', '"lab/never-built"'))
    images = str(tmp_path / "images")
    _, err = lab("run --image cpu -o run", *SWEEP, cwd=tmp_path, code=6, LAB_IMAGES=images)
    assert "lab images build cpu" in err and not (tmp_path / "run").exists()


def test_ctrl_c_stops_the_container_and_the_run_resumes(cpu_images, tmp_path):
    driver = start("run", "--image", "cpu", "-o", "run", *SWEEP, "-c", "28", cwd=tmp_path)
    until(lambda: containers_of(tmp_path / "run"))
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=900)
    assert driver.returncode == 130 and "--resume" in err and not containers_of(tmp_path / "run")
    assert manifest(tmp_path / "run")["steps"][0]["outcome"]["status"] == "interrupted"
    lab("run", "--resume", "run", cwd=tmp_path)
    assert manifest(tmp_path / "run")["steps"][0]["outcome"]["status"] == "ok"


def test_after_kill_9_of_the_driver_resume_brings_log_and_result(cpu_images, tmp_path):
    driver = start("run", "--image", "cpu", "-o", "run", *SWEEP, "-c", "28", cwd=tmp_path)
    until(lambda: containers_of(tmp_path / "run", "-q"))  # running, not only created
    driver.kill()
    driver.wait()
    assert containers_of(tmp_path / "run"), "the container lives on"
    lab("run", "--resume", "run", cwd=tmp_path)
    (step,) = manifest(tmp_path / "run")["steps"]
    assert (step["attempts"], step["outcome"]["status"]) == (1, "ok")
    assert "training encoder" in (tmp_path / "run" / step["step"]["folder"] / "run_output.log").read_text()
    assert (tmp_path / "run" / "report.html").exists() and not containers_of(tmp_path / "run")


def test_runs_stop_ends_what_a_killed_driver_left(cpu_images, tmp_path):
    driver = start("run", "--image", "cpu", "-o", "run", *SWEEP, "-c", "28", cwd=tmp_path)
    until(lambda: containers_of(tmp_path / "run", "-q"))  # running, not only created
    driver.kill()
    driver.wait()
    lab("runs", "stop", "run", cwd=tmp_path)
    assert not containers_of(tmp_path / "run")
    assert manifest(tmp_path / "run")["steps"][0]["outcome"]["status"] == "interrupted"


def test_a_run_does_not_go_on_with_another_image(finished, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    said = manifest(copy)
    said["image"]["id"] = "sha256:" + "0" * 64
    (copy / "manifest.json").write_text(json.dumps(said))
    _, err = lab("run", "--resume", "run", cwd=tmp_path, code=2)
    assert "this run began with another image" in err
