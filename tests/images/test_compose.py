"""compose.yaml is what the images say, in words that docker-compose 1.29 and compose v2 both read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from lab.cli.main import cli
from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.images import spec as images
from tests.command import script

compose = script("compose")
FILE = compose.FILE
gpu_environment = script("images").gpu_environment
ALL_SERVICES = yaml.safe_load(FILE.read_text())["services"]
FOLDERS = {name: service for name, service in ALL_SERVICES.items() if name.endswith("-folders")}
SERVICES = {name: service for name, service in ALL_SERVICES.items() if name not in FOLDERS}

# The part of the compose specification that both generations share, as far as this file uses it.
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
FLAG, NUMBER = {"type": "boolean"}, {"type": "integer"}
TEXT_FIELDS = "user working_dir ipc shm_size hostname stop_signal"
TEXTS_FIELDS = "command extra_hosts profiles group_add volumes devices tmpfs cap_drop cap_add security_opt"
REQUIRED = "image pull_policy profiles user cap_drop security_opt read_only"


def closed(required: str = "", **fields):
    """An object of these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": fields,
    }


def mapping(kind):
    return {"type": "object", "additionalProperties": kind}


DEVICES = {
    "type": "array",
    "items": closed("capabilities", driver=TEXT, device_ids=TEXTS, capabilities=TEXTS),
}
SERVICE = closed(
    REQUIRED,
    **dict.fromkeys(TEXT_FIELDS.split(), TEXT),
    **dict.fromkeys(TEXTS_FIELDS.split(), TEXTS),
    image={"type": "string", "pattern": "^localhost/lab/"},
    pull_policy={"const": "never"},
    network_mode={"enum": ["none", "bridge", "host"]},
    pids_limit=NUMBER,
    init=FLAG,
    read_only=FLAG,
    depends_on={"type": "object"},
    environment=mapping(TEXT),
    ulimits=mapping(NUMBER),
    deploy=closed(resources=closed(reservations=closed(devices=DEVICES))),
)
BOTH = {**closed(services=mapping(SERVICE)), "patternProperties": {"^x-": {"type": "object"}}}


def test_the_file_is_what_the_images_say():
    text = FILE.read_text()
    assert text == compose.render(), "make compose"
    assert len(text.splitlines()) <= 250


def test_the_file_uses_only_what_both_generations_of_compose_read():
    jsonschema.validate(yaml.safe_load(FILE.read_text()), BOTH)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "lab", "services": SERVICES}, BOTH)


def test_every_image_has_a_service_that_runs_a_sweep_and_one_analyses_them_all():
    analysis = SERVICES["analysis"]
    assert set(SERVICES) == {*images.names(), "analysis"} and len(FOLDERS) == len(SERVICES)
    for name in images.names():
        command = SERVICES[name]["command"]
        assert SERVICES[name]["profiles"] == [name] and command[:2] == ["lab", "run"]
        folder = analysis["command"][-1].replace("${LAB_PROFILE:-cpu}", name)
        assert command[command.index("--output-dir") + 1] == folder
        typed = [word.replace("${LAB_RUN:-compose}", "compose") for word in command[2:]]  # as compose does
        plan = CliRunner().invoke(cli, ["run", "--dry-run", *typed])
        assert plan.exit_code == 0, plan.output
    assert analysis["image"] == "localhost/lab/cpu" and analysis["network_mode"] == "none"
    assert "devices" not in analysis and "deploy" not in analysis
    assert not any(volume.split(":")[-2] == "/hf" for volume in analysis["volumes"]), "no model"


def test_every_service_gets_the_least_and_runs_as_the_caller():
    for service in SERVICES.values():
        assert service["user"] == "${UID:-1000}:${GID:-1000}" and service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["read_only"] and service["init"]
        assert not any("docker.sock" in volume for volume in service["volumes"])


def test_what_hands_over_the_folders_may_do_nothing_else():
    for name, service in FOLDERS.items():
        assert service["cap_drop"] == ["ALL"] and service["cap_add"] == ["CHOWN"] and service["read_only"]
        assert service["network_mode"] == "none" and not any(v.endswith(":/hf") for v in service["volumes"])
        assert list(SERVICES[name.removesuffix("-folders")]["depends_on"]) == [name]


@pytest.mark.docker
@pytest.mark.root
def test_compose_runs_in_a_fresh_folder_as_any_user(tmp_path, cpu_images):
    """Also where the engine makes the folders, as root's."""
    program = generation("v1") or generation("v2")
    if not program:
        pytest.skip("no compose is here")
    text = FILE.read_text()
    for target, built in cpu_images.items():
        text = text.replace(f"image: localhost/lab/{target}\n", f"image: {built.ref}\n")
    (tmp_path / "compose").mkdir()
    (tmp_path / "compose/compose.yaml").write_text(text)
    base = [*program, "-p", f"lab{os.getpid()}", "-f", str(tmp_path / "compose/compose.yaml")]
    env = {**os.environ, "UID": "23456", "GID": "23457"}
    try:
        up = [*base, "--profile", "cpu", "up"]
        done = subprocess.run(up, env=env, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        manifest = tmp_path / "experiments/compose_cpu/manifest.json"
        assert all(
            record["outcome"]["status"] == "ok" for record in json.loads(manifest.read_text())["steps"]
        )
        assert manifest.stat().st_uid == 23456 and (tmp_path / "experiments").stat().st_gid == 23457
    finally:
        subprocess.run(
            [*base, "--profile", "cpu", "down", "-t", "1"], env=env, capture_output=True, check=False
        )


def test_a_profile_uses_one_gpu_that_a_variable_names():
    for name in ("cuda", "pascal"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == ["${LAB_GPU:-0}"] and "gpu" in device["capabilities"]
        assert "devices" not in SERVICES[name] and "--ranks 1 " in " ".join(SERVICES[name]["command"])
        assert SERVICES[name]["environment"]["LAB_NUM_GPUS"] == "1", "without its GPU it fails"
    rocm = SERVICES["rocm70"]
    assert "deploy" not in rocm and rocm["group_add"] == ["${RENDER_GID:-RENDER_GID_is_not_set}"]
    assert len(rocm["devices"]) == 2 and "/dev/kfd" in rocm["devices"][0]
    assert "${LAB_RENDER:-LAB_RENDER_is_not_set}:" in rocm["devices"][1], "no node is guessed"
    assert "deploy" not in SERVICES["cpu"] and "devices" not in SERVICES["cpu"]


def test_the_variables_of_a_gpu_come_from_this_machine(tmp_path):
    (tmp_path / "dri").mkdir()
    node = tmp_path / "dri/renderD137"
    for path in (tmp_path / "kfd", node):
        path.touch()
    gpu = Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=str(node))
    own = {"LAB_RENDER": "renderD137", "RENDER_GID": str(node.stat().st_gid)}
    assert gpu_environment(gpu) == own
    assert gpu_environment(Gpu(vendor="nvidia", index=3, uuid="MIG-a")) == {"LAB_GPU": "MIG-a"}
    node.unlink()
    with pytest.raises(GpuError, match="not of one group"):
        gpu_environment(msgspec.structs.replace(gpu, render_node=str(tmp_path / "x/y/z")))


@pytest.mark.root
def test_nodes_of_two_groups_are_left_to_lab_run(tmp_path):
    (tmp_path / "dri").mkdir()
    node = tmp_path / "dri/renderD128"
    for number, path in enumerate((tmp_path / "kfd", node)):
        path.touch()
        os.chown(path, 0, 4400 + number)
    with pytest.raises(GpuError, match="not of one group") as caught:
        gpu_environment(Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=str(node)))
    assert "4400" in str(caught.value) and "4401" in str(caught.value)


def generation(kind: str) -> list[str]:
    """v2 is a part of docker, v1.29 a program of its own; either may be here, or both."""
    if kind == "v1":
        older = shutil.which("docker-compose")
        return [older] if older and " 1." in _says([older, "--version"]) else []
    return ["docker", "compose"] if shutil.which("docker") and _says(["docker", "compose", "version"]) else []


def _says(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_compose_itself_reads_every_profile(kind):
    program = generation(kind)
    if not program:
        pytest.skip(f"compose {kind} is not here")
    profiles = [*images.names(), "analysis"]
    named = [word for profile in profiles for word in ("--profile", profile)]
    done = subprocess.run(
        [*program, "-f", FILE, *named, "config"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "UID": "1234", "GID": "5678"},
    )
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    for service in map(services.get, profiles):
        assert service["user"] == "1234:5678" and not re.search(r"\$\{", json.dumps(service))


def of_caller(experiments: Path) -> dict[str, str]:
    """The environment of a caller 1234:5678 who owns `experiments` and its caches."""
    for folder in ("", ".cache/hf", ".cache/lab"):
        (experiments / folder).mkdir(parents=True, exist_ok=True)
    for path in [experiments, *experiments.rglob("*")]:
        os.chown(path, 1234, 5678)
    folders = {"LAB_EXPERIMENTS": str(experiments), "LAB_CACHE": f"{experiments}/.cache"}
    return {**os.environ, "UID": "1234", "GID": "5678", **folders}


@pytest.mark.docker
@pytest.mark.root
@pytest.mark.timeout(1200)
def test_a_sweep_and_its_analysis_run_and_the_results_are_the_callers(cpu_images, tmp_path):
    program = generation("v2") or generation("v1")
    if not program:
        pytest.skip("neither docker compose nor docker-compose is here")
    file, project = tmp_path / "compose.yaml", f"lab-test-{uuid.uuid4().hex[:8]}"
    file.write_text(compose.render())  # the same with the names of the tests' own images
    env = of_caller(tmp_path / "experiments")
    call = [*program, "-p", project, "-f", str(file)]
    try:
        for words in (["cpu"], ["analysis"], ["analysis", "lab", "--version"]):
            done = subprocess.run(
                [*call, "run", "--rm", "-T", *words], env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    finally:
        subprocess.run([*call, "down"], env=env, capture_output=True, check=False)
    run = tmp_path / "experiments/compose_cpu"
    assert (run / "report.html").is_file() and list((run / "tables").glob("*.csv"))
    assert {(p.stat().st_uid, p.stat().st_gid) for p in run.rglob("*")} == {(1234, 5678)}
