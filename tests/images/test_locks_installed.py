"""The pascal lock, really installed: torch 1.12.1 stays beside transformers; bitsandbytes is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.errors import EngineError, UsageError
from lab.images.docker_cli import id_of, listed
from lab.images.probe import probe_argv
from lab.images.targets import ROOT
from tests.built import REPOSITORY
from tests.images.made import in_container

LOCK = (ROOT / "images/pascal/requirements.lock").read_text()
SECTIONS = {path.parent.name: path.read_text() for path in (ROOT / "images").glob("*/requirements.lock")}


def names(text: str) -> set[str]:
    return {name.lower() for name in re.findall(r"^([A-Za-z0-9][\w.-]*)==", text, re.MULTILINE)}


def test_the_pascal_lock_keeps_the_last_torch_for_its_gpus_and_nothing_that_would_replace_it():
    """accelerate (from 1.3 on) and bitsandbytes ask for a torch of 2.x, whose code leaves these GPUs out."""
    assert "\ntorch==1.12.1 " in LOCK and not names(LOCK) & {"bitsandbytes", "triton", "torchvision"}
    assert not [name for name in names(LOCK) if name.startswith("nvidia-") and name != "nvidia-ml-py"], (
        "its torch brings CUDA in its own wheel"
    )
    numpy, transformers = (
        re.search(rf"^{n}==([\d.]+)", LOCK, re.MULTILINE) for n in ("numpy", "transformers")
    )
    assert numpy and int(numpy[1].split(".")[0]) < 2
    assert transformers and tuple(map(int, transformers[1].split("."))) <= (4, 48, 3)


def test_the_rocm_lock_holds_neither_torch_nor_cuda():
    held = names(SECTIONS["rocm70"])
    assert "transformers" in held and not [
        n for n in held if re.match(r"(torch|triton|nvidia-|cuda-|pytorch)", n)
    ]


@pytest.fixture(scope="module")
def pascal() -> str:
    """lab/pascal as it is here: building it anew takes minutes, which `make images` spends."""
    ref = f"{REPOSITORY}/pascal"
    try:
        ids = listed()
    except EngineError as error:
        pytest.skip(error.problem)
    if not id_of(ref, ids):
        pytest.skip(f"{ref} is not built here: .ci/run")
    return ref


@pytest.mark.docker
def test_what_the_lock_names_is_what_the_image_holds_and_torch_works_with_it(pascal):
    seen = json.loads(in_container(pascal, "python3", *probe_argv(())))
    said = dict(re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", LOCK, re.MULTILINE))
    assert {name: version for name, version in seen["packages"].items() if name != "lab"} == said
    assert "sm_60" in seen["archs"] and seen["cuda"] == "10.2"
    program = "import torch, transformers, lab; assert transformers.is_torch_available(); "
    program += "print(torch.__version__, (torch.ones(2) @ torch.ones(2)).item())"
    assert in_container(pascal, "python3", "-c", program).split() == ["1.12.1+cu102", "2.0"]


@pytest.mark.docker
def test_an_image_built_upon_it_cannot_get_another_torch(pascal):
    held = in_container(pascal, "sh", "-c", 'cat "$PIP_CONSTRAINT"').split()
    assert "torch==1.12.1" in held and "numpy==1.26.4" in held and len(held) == len(names(LOCK))


def test_eight_bit_weights_are_refused_with_the_reason_before_anything_runs():
    done = CliRunner().invoke(
        cli, ["run", "--image", "pascal", "--gpus", "none", "--dry-run", "kernels", "profile", "--8bit"]
    )
    assert isinstance(done.exception, UsageError) or done.exit_code == 2
    said = str(done.exception) + done.output
    assert "bitsandbytes" in said and "torch 2.3, which has no code" in said


@pytest.mark.docker
@pytest.mark.root
@pytest.mark.usefixtures("own_names")
def test_the_bar_a_nan_baseline_runs_under_torch_1_12_in_the_built_image(pascal, open_folder: Path):
    from tests.driver.test_docker_run import lab

    words = "run --image pascal -o run --analysis host nan baseline --model tiny --device cpu"
    lab(f"{words} --layers 2 --max-new-tokens 2", cwd=open_folder)
    said = json.loads((open_folder / "run/manifest.json").read_text())
    assert [step["outcome"]["status"] for step in said["steps"]] == ["ok"]
    assert said["versions"]["torch"].startswith("1.12.1") and (open_folder / "run/report.html").is_file()
