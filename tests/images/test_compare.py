"""What is found in an image is compared with what the image promises."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from lab.core.manifest import Lab
from lab.images import spec as images
from lab.images.compare import differences, lab_difference, serves
from lab.images.targets import targets
from tests.images.made import CONTENTS, LOCK

CUDA, PASCAL, CPU, ROCM = (images.load(name) for name in ("cuda", "pascal", "cpu", "rocm70"))


# As a person has them: in .ci/run LAB_IMAGES names the tests' own images, which carry a label.
TARGET = {target.name: msgspec.structs.replace(target, labels={}) for target in targets()}


def labels(lock: str = LOCK, base: str = CUDA.base) -> dict[str, str]:
    return {
        "lab.wheel.sha256": "w",
        "lab.lock.sha256": hashlib.sha256(lock.encode()).hexdigest(),
        "org.opencontainers.image.base.name": base,
    }


def compared(image=CUDA, name="cuda", found_labels=None, **changed):
    return differences(
        image, TARGET[name], found_labels or labels(), msgspec.structs.replace(CONTENTS, **changed), LOCK
    )


def test_an_image_that_holds_what_it_claims_has_nothing_against_it():
    assert compared() == ([], [])


@pytest.mark.parametrize(
    "changed, complaint",
    [
        ({"wheel": "other"}, "not the one that its label names"),
        ({"command": None}, "lab is not on PATH"),
        ({"uid": 0}, "runs as root"),
        ({"root_writable": True}, "the root file system is writable"),
        ({"torch": False}, "contains no torch"),
        ({"python": "3.11"}, "python 3.11, image.toml says 3.12"),
        ({"tools": {"nvdisasm": "/x"}}, "no nsys"),
        ({"archs": ("sm_80", "sm_90", "sm_100", "sm_120", "sm_86")[:3]}, "torch has no code for sm_120"),
        ({"packages": {"torch": "2.10.0", "numpy": "2.4.0"}}, "numpy 2.4.0, its lock says 2.2.6 or 2.5.5"),
    ],
)
def test_an_image_that_lacks_what_it_claims_is_told_so(changed, complaint):
    wrong, _ = compared(**changed)
    assert any(complaint in line for line in wrong), wrong


def test_what_another_base_lacks_is_said_and_no_fault_of_the_image():
    wrong, notes = compared(found_labels=labels(base="local/debian"), python="3.11", tools={})
    assert wrong == [] and notes == ["python 3.11, image.toml says 3.12", "no ncu", "no nsys", "no nvdisasm"]


def test_a_base_named_with_its_digest_is_still_the_base():
    wrong, _ = compared(found_labels=labels(base=f"{CUDA.base}@sha256:{'0' * 64}"), python="3.11")
    assert wrong == ["python 3.11, image.toml says 3.12"]


def test_an_image_built_from_an_older_lock_is_not_held_against_the_newer():
    wrong, notes = compared(found_labels=labels("numpy==1.0\n"), packages={"numpy": "1.0"})
    assert wrong == [] and notes == ["older than its lock: build it again"]


def test_the_analysis_image_must_not_hold_torch_and_the_rocm_one_must_keep_its_own():
    assert "contains torch, which analysis does not need" in compared(CPU, "cpu", labels(base=CPU.base))[0]
    assert "its torch is not a ROCm build" in compared(ROCM, "rocm70", labels(base=ROCM.base))[0]
    assert (
        "torch has no code for gfx942"
        in compared(ROCM, "rocm70", labels(base=ROCM.base), archs=("gfx90a", "gfx950"))[0]
    )


HOST_LAB = Lab(version="0.2.0", sha256="a" * 64)


@pytest.mark.parametrize(
    "labels_inside, sha256, text",
    [
        ({}, "a" * 64, None),
        ({}, "b" * 64, "holds lab 0.1.0 (bbbbbbbbbbbb), this host runs lab 0.2.0 (aaaaaaaaaaaa)"),
        ({"lab.wheel.sha256": "w"}, None, "holds no lab, this host runs lab 0.2.0"),
        ({}, None, None),  # never one of lab's: runs mount this host's lab into it
        ({"lab.test": "1"}, "a" * 64, "was built by lab's own tests"),
    ],
)
def test_another_lab_in_an_image_is_said_with_what_to_type(labels_inside, sha256, text):
    difference = lab_difference(TARGET["cuda"], labels_inside, "0.1.0", sha256, HOST_LAB)
    assert difference is None if text is None else text in difference
    assert text is None or difference.endswith(": lab images build cuda")


def test_the_tests_own_images_are_theirs():
    target = msgspec.structs.replace(TARGET["cuda"], labels={"lab.test": "1"})
    assert lab_difference(target, {"lab.test": "1"}, "0.2.0", "a" * 64, HOST_LAB) is None


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
