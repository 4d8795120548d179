"""Any image by its reference: what it is, what may be mounted into it, what it lacks."""

from __future__ import annotations

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.errors import EngineError, UsageError
from lab.images import foreign
from lab.images.container import HostContext, container_spec
from lab.images.foreign import check_reference, image_of, is_reference, parse_mount
from lab.images.spec import Mount
from tests.command import lab
from tests.images.made import CONTENTS

CUDA = msgspec.structs.replace(
    CONTENTS, program="/opt/venv/bin/python3", machine="x86_64", lab=None, wheel=""
)
CPU = msgspec.structs.replace(CUDA, archs=(), cuda=None, tools={})


@pytest.fixture
def inside(monkeypatch):
    """Makes a look inside find this, with these labels and variables."""

    def make(contents, env=(), labels=None) -> None:
        described = {"Id": "sha256:1", "Config": {"Env": list(env), "Labels": labels}}
        monkeypatch.setattr(foreign, "inside_of", lambda ref: (contents, described))
        mount = Mount(source="/wheels", target=foreign.FOLDER, read_only=True)
        monkeypatch.setattr(foreign, "dependencies", lambda contents: mount)

    return make


@pytest.mark.parametrize("name", ["nvcr.io/nvidia/pytorch:25.01-py3", "mine:1", "a/b", "x@sha256:00"])
def test_a_reference_is_told_from_a_short_name_of_lab(name):
    assert is_reference(name) and not is_reference("cuda")


@pytest.mark.parametrize(
    "contents, env, labels, vendor",
    [
        (CUDA, (), None, "nvidia"),
        (msgspec.structs.replace(CPU, hip="7.0"), (), None, "amd"),
        (CPU, ("NVIDIA_VISIBLE_DEVICES=all",), None, "none"),
        (msgspec.structs.replace(CPU, torch=False), ("CUDA_VERSION=12.8",), None, "nvidia"),
        (msgspec.structs.replace(CPU, torch=False), ("ROCM_PATH=/opt/rocm",), None, "amd"),
        (msgspec.structs.replace(CPU, torch=False), (), {"com.nvidia.volumes.needed": "x"}, "nvidia"),
    ],
)
def test_the_vendor_is_that_of_its_torch_else_of_its_marks(inside, contents, env, labels, vendor):
    inside(contents, env, labels)
    assert image_of("mine:1").vendor == vendor
    assert image_of("mine:1", vendor="none").vendor == "none"


def test_its_container_runs_its_own_python_with_labs_packages_behind_its_own(inside):
    without_ncu = msgspec.structs.replace(CUDA, tools={**CUDA.tools, "ncu": None})
    inside(without_ncu, ["NVIDIA_REQUIRE_CUDA=cuda>=12.8"])
    image = image_of("mine:1", mounts=["/data:/data:ro"])
    host = HostContext(run_dir="/r", hf_cache="/h", cache="/c", uid=1, gid=2)
    spec = container_spec(image, Step(name="s", argv=("python", "-m", "x")), [], host)
    assert spec.command[0] == "/opt/venv/bin/python3" and spec.overrides_entrypoint
    assert spec.env["LAB_DEPENDENCIES"] == foreign.FOLDER and "NVIDIA_DISABLE_REQUIRE" not in spec.env
    assert {(m.source, m.target, m.read_only) for m in spec.mounts} >= {
        ("/wheels", foreign.FOLDER, True),
        ("/data", "/data", True),
    }
    assert (
        image.require == "cuda>=12.8" and set(image.tools) >= {"nsys", "nixnan"} and "ncu" not in image.tools
    )


def test_without_a_look_the_vendor_is_guessed_by_the_name_or_asked_for():
    assert image_of("rocm/pytorch:latest", looks=False).vendor == "amd"
    assert image_of("vllm/vllm-openai:v1", looks=False).vendor == "nvidia"
    with pytest.raises(UsageError, match="vendor of mine:1 is not known"):
        image_of("mine:1", looks=False)


@pytest.mark.parametrize("name", ["--volume=/:/host", "a b/c", "/x", "a/b\n", "a/b;c"])
def test_what_cannot_be_a_reference_never_reaches_the_engine(name):
    with pytest.raises(UsageError, match="is not a reference"):
        image_of(name)


def test_a_python_below_the_floor_is_refused(inside):
    inside(msgspec.structs.replace(CUDA, python="3.9"))
    with pytest.raises(EngineError, match=r"Python 3\.9, and lab needs 3\.10"):
        image_of("mine:1")


@pytest.mark.parametrize("text, mount", [("/a:/data:ro", ("/a", "/data", True)), ("/a", ("/a", "/a", False))])
def test_a_mount_is_read_as_docker_reads_it(text, mount):
    assert parse_mount(text) == Mount(source=mount[0], target=mount[1], read_only=mount[2])


@pytest.mark.parametrize(
    "target",
    ["/", "/out", "/out/x", "/hf", "/cache", "/tmp", "/usr/lib", "/etc", "/opt/lab/x", "/data/../etc"],
)
def test_a_place_of_lab_or_the_system_inside_is_refused(target):
    with pytest.raises(UsageError, match="folder of lab or of the image's system"):
        parse_mount(f"/a:{target}")


@pytest.mark.parametrize("text", ["/a:data", "/a:/b:rx", "a:/b"])
def test_what_is_no_mount_is_refused(text):
    with pytest.raises(UsageError, match="is not SRC"):
        parse_mount(text)


def test_a_check_says_what_each_room_lacks_and_which_gpus_it_fits(inside):
    inside(CPU)
    gpu = Gpu(vendor="nvidia", index=0, uuid="GPU-a", name="H100", arch="sm_90")
    rows = {
        row.check: row
        for row in check_reference("mine:1", None, [gpu], {"nan": "torch transformers", "x": ""})
    }
    assert rows["torch"].state == "ok" and "for the CPU; vendor none" in rows["torch"].detail
    assert (rows["nan"].state, rows["nan"].detail) == ("failed", "lacks transformers")
    assert rows["x"].state == "ok" and "the image is for none" in rows["GPU 0"].detail


@pytest.mark.docker
def test_a_bare_debian_python_runs_a_step_of_lab(debian_base, tmp_path):
    """Without any package of lab inside: they come from the wheelhouse."""
    words = ["-o", "run", "trials", "-n", "1", "--", "python3", "-c", "pass"]
    done = lab("run --quiet --analysis none", "--image", debian_base, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
