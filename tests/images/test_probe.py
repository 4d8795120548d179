"""What is found inside an image is held against what the image claims, and kept for the manifests of runs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import msgspec
import pytest

from lab.images import probe as imageprobe
from lab.images import spec as images
from lab.images.build import targets
from lab.images.probe import PROBE, Seen, differences, recall, remember, serves, tools_of

CUDA, PASCAL, CPU, ROCM = (images.load(name) for name in ("cuda", "pascal", "cpu", "rocm70"))
TARGET = {target.name: target for target in targets()}
LOCK = "torch==2.10.0 \\\n    --hash=sha256:aa\nnumpy==2.2.6 ; python_full_version < '3.11' \\\n    --hash=sha256:bb\nnumpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:cc\n"
SEEN = Seen(
    python="3.12",
    lab="0.1.0",
    wheel="w",
    command="/opt/lab/bin/lab",
    torch=True,
    uid=1234,
    root_writable=False,
    archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    cuda="12.8",
    packages={"torch": "2.10.0", "numpy": "2.5.5"},
    tools={"nsys": "/x", "nvdisasm": "/x", "nvcc": None},
)


def labels(lock: str = LOCK, base: str = CUDA.base) -> dict[str, str]:
    return {
        "lab.wheel.sha256": "w",
        "lab.lock.sha256": hashlib.sha256(lock.encode()).hexdigest(),
        "org.opencontainers.image.base.name": base,
    }


def judged(image=CUDA, name="cuda", said=None, **changed):
    return differences(image, TARGET[name], said or labels(), msgspec.structs.replace(SEEN, **changed), LOCK)


def test_an_image_that_holds_what_it_claims_has_nothing_against_it():
    assert judged() == ([], [])


@pytest.mark.parametrize(
    "changed, complaint",
    [
        ({"wheel": "other"}, "not the one its label names"),
        ({"command": None}, "lab is not on PATH"),
        ({"uid": 0}, "runs as root"),
        ({"root_writable": True}, "the root can be written"),
        ({"torch": False}, "holds no torch"),
        ({"python": "3.11"}, "python 3.11, image.toml says 3.12"),
        ({"tools": {"nvdisasm": "/x"}}, "no nsys"),
        ({"archs": ("sm_80", "sm_90", "sm_100", "sm_120", "sm_86")[:3]}, "torch has no code for sm_120"),
        ({"packages": {"torch": "2.10.0", "numpy": "2.4.0"}}, "numpy 2.4.0, its lock says 2.2.6 or 2.5.5"),
    ],
)
def test_an_image_that_lacks_what_it_claims_is_told_so(changed, complaint):
    wrong, _ = judged(**changed)
    assert any(complaint in line for line in wrong), wrong


def test_what_another_base_lacks_is_said_and_no_fault_of_the_image():
    wrong, notes = judged(said=labels(base="local/debian"), python="3.11", tools={})
    assert wrong == [] and notes == ["python 3.11, image.toml says 3.12", "no nsys", "no nvdisasm"]


def test_a_base_named_with_its_digest_is_still_the_base():
    wrong, _ = judged(said=labels(base=f"{CUDA.base}@sha256:{'0' * 64}"), python="3.11")
    assert wrong == ["python 3.11, image.toml says 3.12"]


def test_an_image_built_from_an_older_lock_is_not_held_against_the_newer():
    wrong, notes = judged(said=labels("numpy==1.0\n"), packages={"numpy": "1.0"})
    assert wrong == [] and notes == ["older than its lock: build it again"]


def test_the_analysis_image_must_not_hold_torch_and_the_rocm_one_must_keep_its_own():
    assert "holds torch, which analysis does without" in judged(CPU, "cpu", labels(base=CPU.base))[0]
    assert "its torch is not one for ROCm" in judged(ROCM, "rocm70", labels(base=ROCM.base))[0]
    assert (
        "torch has no code for gfx942"
        in judged(ROCM, "rocm70", labels(base=ROCM.base), archs=("gfx90a", "gfx950"))[0]
    )


@pytest.mark.parametrize(
    "have, wanted, runs",
    [
        (["sm_86"], "sm_89", True),
        (["sm_90"], "sm_86", False),
        (["sm_60"], "sm_61", True),
        (["sm_60"], "sm_70", False),
        (["sm_100"], "sm_120", False),
        (["sm_120"], "sm_121", True),
        (["gfx942"], "gfx942", True),
        (["gfx90a"], "gfx942", False),
        ([], "sm_80", False),
    ],
)
def test_code_for_a_gpu_runs_on_later_ones_of_its_major_version_only(have, wanted, runs):
    assert serves(have, wanted) is runs


def test_the_probe_prints_what_seen_reads(tmp_path):
    sums = tmp_path / "SHA256SUMS"
    sums.write_text("abc  lab-0-py3-none-any.whl\n")
    program = PROBE.replace("/usr/share/lab/SHA256SUMS", str(sums)).replace(
        '"/lab-probe"', repr(str(tmp_path / "p"))
    )
    program = program.replace('importlib.util.find_spec("torch") is not None', "False")
    done = subprocess.run(
        [sys.executable, "-c", program, "sh", "no-such-tool"], capture_output=True, text=True, check=True
    )
    seen = msgspec.convert(json.loads(done.stdout), Seen)
    assert seen.wheel == "abc" and seen.packages["msgspec"] == msgspec.__version__ and seen.root_writable
    assert seen.tools["sh"] and seen.tools["no-such-tool"] is None


def test_tools_that_the_image_promises_are_looked_for():
    assert {"nsys", "nvdisasm", "gcc"} <= set(tools_of(CUDA)) and tools_of(CPU) == []


def test_an_answer_is_kept_for_its_image_and_for_no_other(tmp_path):
    kept = remember("sha256:aa", SEEN, ok=True, root=tmp_path)
    assert recall("sha256:aa", tmp_path) == kept and recall("sha256:bb", tmp_path) is None
    assert kept.versions == {"torch": "2.10.0", "numpy": "2.5.5"} and kept.tools == ("nsys", "nvdisasm")
    imageprobe._path("sha256:aa", tmp_path).write_text("{")
    assert recall("sha256:aa", tmp_path) is None
