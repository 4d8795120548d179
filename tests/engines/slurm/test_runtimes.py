"""apptainer and pyxis, which no package of Debian or PyPI brings: their command lines, and a stand-in that
does what apptainer's manual says of these options."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.manifest import Lab
from lab.core.options import SlurmOptions
from lab.core.provenance import lab_with_content
from lab.core.run import IMPORTED, LAB, Run
from lab.core.snapshot import take_snapshot
from lab.core.step import Step
from lab.core.stop import Stop
from lab.engines.slurm import runtimes
from lab.engines.slurm.engine import SlurmEngine
from lab.engines.slurm.records import Ticket
from lab.engines.slurm.runtimes import apptainer, apptainer_image, pyxis, pyxis_image
from lab.engines.slurm.task import engine_of
from lab.errors import MissingError, UsageError
from lab.images import spec as images
from lab.images.container import HostContext, container_spec
from tests.conftest import ROOT
from tests.core.test_manifest import a_manifest

HOST = HostContext(run_dir="/runs/r", hf_cache="/hf cache", cache="/c", uid=1, gid=1, host_env={})
NVIDIA = [Gpu(vendor="nvidia", index=i, uuid=f"GPU-{i}") for i in (2, 3)]
DIGEST = "@sha256:" + "0" * 64
STAND_IN = ROOT / "tests/engines/slurm/apptainer.py"


def spec(name="cuda", gpus=NVIDIA, host=HOST, **fields):
    step = Step(name="s", argv=("python", "-m", "x"), folder="steps/s", env={"A": "1,2"}, **fields)
    return container_spec(images.load(name), step, gpus, host)


def with_lab_mounted(step, ours):
    return msgspec.structs.replace(a_manifest(step), lab=msgspec.structs.replace(ours, used="mounted"))


def after(argv, word):
    return [argv[n + 1] for n, one in enumerate(argv) if one == word]


def test_apptainer_gets_mounts_environment_tools_and_a_tag():
    got = apptainer(spec(tools=("nsys",)), "nvidia", NVIDIA, "/scratch")
    assert got.argv[:6] == ("apptainer", "exec", "--cleanenv", "--contain", "--workdir", "/scratch")
    assert "--nv" in got.argv and after(got.argv, "--pwd") == ["/out"]
    assert after(got.argv, "--mount") == [
        "type=bind,source=/runs/r,destination=/out",
        "type=bind,source=/hf cache,destination=/hf,ro",
        "type=bind,source=/c,destination=/cache",
    ]
    at = got.argv.index("docker-daemon:localhost/lab/cuda:latest")
    assert got.argv[at + 1 : at + 3] == ("nsys", "profile") and got.argv[-3:] == ("python3", "-m", "x")
    assert got.env["APPTAINERENV_A"] == "1,2" and got.env["APPTAINERENV_HF_HUB_CACHE"] == "/hf"
    assert got.env["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-3"
    assert got.env["APPTAINERENV_LAB_NUM_GPUS"] == "2"
    assert "APPTAINERENV_HOME" not in got.env, "apptainer does not permit it, and sets HOME itself"


def test_apptainer_without_gpus_is_told_of_none():
    got = apptainer(spec("cpu", ()), "none", (), "/scratch")
    assert not {"--nv", "--rocm"} & set(got.argv) and "APPTAINERENV_CUDA_VISIBLE_DEVICES" not in got.env
    assert "docker-daemon:localhost/lab/cpu-torch:latest" in got.argv, "workloads need torch"


def test_apptainer_on_amd_and_a_fabric():
    amd = [Gpu(vendor="amd", index=1, uuid="GPU-1", render_node="/dev/dri/renderD129")]
    host = msgspec.structs.replace(HOST, infiniband=True)
    got = apptainer(spec("rocm70", amd, host), "amd", amd, "/s")
    assert "--rocm" in got.argv and got.env["APPTAINERENV_ROCR_VISIBLE_DEVICES"] == "1"
    assert "type=bind,source=/dev/infiniband,destination=/dev/infiniband" in after(got.argv, "--mount")


def test_any_path_is_just_a_path_for_apptainer_and_pyxis_says_what_it_cannot_take():
    odd = msgspec.structs.replace(HOST, run_dir='/runs/a,b:c "d"')
    got = apptainer(spec(host=odd), "nvidia", NVIDIA, "/s")
    assert after(got.argv, "--mount")[0] == 'type=bind,"source=/runs/a,b:c ""d""",destination=/out'
    with pytest.raises(UsageError, match="comma or colon"):
        pyxis(spec(host=odd), "nvidia", NVIDIA, "/s")


def test_pyxis_gets_the_same(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    got = pyxis(spec(tools=("nsys",)), "nvidia", NVIDIA, "/scratch")
    asked = got.argv[: got.argv.index("nsys")]
    options = dict(word[2:].split("=", 1) for word in asked if "=" in word)
    assert got.argv[:2] == ("srun", "--overlap") and options["nodelist"] == "n7"
    assert options["container-image"] == "dockerd://localhost/lab/cuda:latest"
    assert options["container-mounts"] == "/runs/r:/out,/hf cache:/hf:ro,/c:/cache,/scratch:/tmp"
    names = options["container-env"].split(",")
    assert options["export"].split(",") == names and set(names) == set(got.env)
    assert (
        got.env["A"] == "1,2"
        and got.env["HOME"] == "/tmp"
        and got.env["CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-3"
        and got.env["LAB_NUM_GPUS"] == "2"
    )
    assert got.argv[got.argv.index("nsys") :][:2] == ("nsys", "profile") and got.argv[-2:] == ("-m", "x")


@pytest.mark.parametrize(
    ("ref", "for_apptainer", "for_pyxis"),
    [
        ("lab/cpu", "docker-daemon:lab/cpu:latest", "dockerd://lab/cpu:latest"),
        ("localhost/a/b", "docker-daemon:localhost/a/b:latest", "dockerd://localhost/a/b:latest"),
        ("lab/cpu:1.2", "docker-daemon:lab/cpu:1.2", "dockerd://lab/cpu:1.2"),
        ("ghcr.io/me/lab-cpu", "docker://ghcr.io/me/lab-cpu:latest", "docker://ghcr.io#me/lab-cpu:latest"),
        ("localhost:5000/cpu:2", "docker://localhost:5000/cpu:2", "docker://localhost:5000#cpu:2"),
        (f"h.io/cpu{DIGEST}", f"docker://h.io/cpu{DIGEST}", f"docker://h.io#cpu{DIGEST}"),
    ],
)
def test_a_reference_names_its_registry_or_the_nodes_engine(ref, for_apptainer, for_pyxis, monkeypatch):
    monkeypatch.delenv(runtimes.IMAGE_FILES, raising=False)
    assert (apptainer_image(ref), pyxis_image(ref)) == (for_apptainer, for_pyxis)


def test_a_file_that_all_nodes_see_is_used_and_one_that_is_missing_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setenv(runtimes.IMAGE_FILES, str(tmp_path))
    with pytest.raises(MissingError) as caught:
        apptainer_image("lab/cpu-torch:1")
    assert caught.value.fix == f"apptainer build {tmp_path}/cpu-torch.sif docker-daemon:lab/cpu-torch:1"
    (tmp_path / "cpu-torch.sif").write_text("")
    (tmp_path / "cpu-torch.sqsh").write_text("")
    assert apptainer_image("lab/cpu-torch:1") == f"{tmp_path}/cpu-torch.sif"
    assert pyxis_image("h.io/lab/cpu-torch") == f"{tmp_path}/cpu-torch.sqsh"


def test_a_dry_run_prints_the_whole_command():
    engine = SlurmEngine(
        SlurmOptions(container="apptainer", experimental=True), image=images.load("cpu"), vendor="none"
    )
    shown = engine.preview(Step(name="s", argv=("python",), folder="s"), (), run_dir="/runs/r")
    assert (
        shown["argv"][:2] == ["apptainer", "exec"]
        and "docker-daemon:localhost/lab/cpu-torch:latest" in shown["argv"]
    )
    assert shown["env"]["APPTAINERENV_XDG_CACHE_HOME"] == "/cache" and "sbatch" in shown
    assert engine.provenance("/runs/r", ())[0].ref == "localhost/lab/cpu-torch"


# With a stand-in.


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A folder of nothing but the mounts and the system's programs, as apptainer's would be the image's."""
    can = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], check=False).returncode == 0
    if not can or not shutil.which("python3", path="/usr/bin"):
        pytest.skip("no user namespaces, or no Python of the system, for a stand-in of apptainer")
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("PLANTED", "of the host")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")


INSIDE = """
    import json, os, pathlib
    for folder in ("/out/s", "/cache", "/tmp", os.environ["HOME"]):
        pathlib.Path(folder, "written").write_text("x")
    print(json.dumps({"cwd": os.getcwd(), "root": sorted(os.listdir("/")), "corpus": os.listdir("/corpus")}))
    for folder in ("/corpus", "/hf", "/out/.lab"):
        try:
            pathlib.Path(folder, "written").write_text("x")
        except OSError as error:
            print(folder, error.strerror)
    import lab
    print(lab.__file__)
    names = ("IMAGE", "HF_HUB_CACHE", "XDG_CACHE_HOME", "NCCL_DEBUG", "PLANTED", "LAB_IMAGE", "ODD")
    print(json.dumps({name: os.environ.get(name) for name in names}))
"""


def test_a_step_in_apptainer_has_its_mounts_environment_and_tools(stand_in, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.wav").write_text("")
    monkeypatch.setenv("LAB_CORPUS", str(corpus))
    step = Step(
        name="s",
        folder="s",
        argv=("python", "-c", textwrap.dedent(INSIDE)),
        env={"ODD": "a,b c=d"},
        tools=("corpus",),
        expects=("s/written",),
    )
    ours = lab_with_content()
    run = Run.create(tmp_path / "odd, name", with_lab_mounted(step, ours))
    take_snapshot(run.root, ours)
    run.begin(step)
    engine = engine_of(Ticket(run_dir=str(run.root), step="s", attempt=1, image="cpu", container="apptainer"))
    lines: list[str] = []
    outcome = engine.run(run, step, (), on_line=lines.append, stop=Stop())
    assert outcome.ok, (outcome, lines)
    place, *refused, imported, env = lines
    home = os.path.expanduser("~").split("/")[1]
    assert '"cwd": "/out"' in place and '"corpus": ["a.wav"]' in place
    seen = set(json.loads(place)["root"])
    assert seen <= {
        *["usr", "bin", "lib", "lib64", "etc", "proc", "dev", "tmp", "out", "hf", "cache", "corpus"],
        home,
    }
    assert refused == [f"{folder} Read-only file system" for folder in ("/corpus", "/hf", "/out/.lab")]
    assert imported == f"/out/.lab/{str(ours.sha256)[:16]}/lab/__init__.py"
    assert (run.root / "s" / IMPORTED).read_text() == ours.sha256
    assert '"IMAGE": "docker-daemon:localhost/lab/cpu-torch:latest"' in env and '"HF_HUB_CACHE": "/hf"' in env
    assert '"NCCL_DEBUG": "INFO"' in env and '"PLANTED": null' in env and '"ODD": "a,b c=d"' in env
    for written in (run.root / "s", tmp_path / "caches" / "lab"):
        assert (written / "written").read_text() == "x"


@pytest.mark.parametrize("used", ["mounted", None])
@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_the_runs_lab_is_mounted_read_only_and_nothing_of_it_reaches_the_tool(
    tmp_path, monkeypatch, runtime, used
):
    """A stand-in that prints what it was started with."""
    program = tmp_path / "bin" / {"apptainer": "apptainer", "pyxis": "srun"}[runtime]
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\nenv\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    step = Step(name="s", argv=("python", "-m", "lab.x"), folder="s")
    ours = Lab(version="1", sha256="1" * 64, used=used) if used else Lab(version="1")
    run = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(step), lab=ours))
    run.begin(step)
    (run.root / LAB).mkdir(exist_ok=True)
    lines: list[str] = []
    engine = engine_of(Ticket(run_dir=str(run.root), step="s", attempt=1, image="cpu", container=runtime))
    assert engine.run(run, step, (), on_line=lines.append, stop=Stop()).ok
    prefix = "APPTAINERENV_" if runtime == "apptainer" else ""
    mount = {
        "apptainer": f"source={run.root}/.lab,destination=/out/.lab,ro",
        "pyxis": f"{run.root}/.lab:/out/.lab:ro",
    }[runtime]
    assert (mount in lines[0]) is bool(used)
    assert (f"{prefix}PYTHONPATH=/out/.lab/{'1' * 16}" in lines) is bool(used)
    assert (f"{prefix}LAB_CODE_REPORT=/out/s/.lab_imported" in lines) is bool(used)
