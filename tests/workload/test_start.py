"""Every workload begins alike: its rank is known, its failures end in words and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest

from lab.errors import BadDataError, ConfigError, GpuError
from tests.conftest import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Config(msgspec.Struct):
    needed: int


PROGRAM = """
import argparse, json, os, sys
from pathlib import Path
from lab.errors import GpuError
from lab.workload.start import start

def run(case, env, out):
    os.environ.update(env)
    args, context = start(argparse.ArgumentParser(), ["--out", str(out)], own_log=case == "own log")
    print("rank", context.rank, "of", context.world_size, flush=True)
    if case in ("on purpose", "own log"):
        raise GpuError("no GPU in this test", fix="none needed")
    if case == "interrupted":
        raise KeyboardInterrupt
    if case == "bug":
        raise ZeroDivisionError("a bug")

for case, env in json.loads(sys.argv[1]).items():
    out = Path(sys.argv[2]) / case
    out.mkdir()
    if (pid := os.fork()) == 0:  # one import of torch for all
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(out / name, os.O_CREAT | os.O_WRONLY), fd)
        try:
            run(case, env, out)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(0)
    (out / "code").write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
"""
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
CASES = {
    "promised a GPU": {"LAB_NUM_GPUS": "1"},
    "promised none": {"LAB_NUM_GPUS": "0"},
    "of torchrun": {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
    "on purpose": {},
    "bug": {},
    "own log": {},
    "no number": {"RANK": "first"},
    "interrupted": {},
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How each case ended: exit code, stdout, stderr, and its folder."""
    root = tmp_path_factory.mktemp("start")
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES), str(root)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **NO_GPU}, timeout=900, check=True)

    def of_case(case):
        texts = [(root / case / name).read_text() for name in ("code", "stdout", "stderr")]
        return int(texts[0]), *texts[1:], root / case

    return of_case


def test_a_step_that_was_given_a_gpu_never_computes_on_the_cpu(ended):
    code, stdout, stderr, _ = ended("promised a GPU")
    assert code == GpuError.exit_code and "rank 0 of" not in stdout
    assert "was given 1 GPU" in stderr and "sees 0" in stderr and "--gpus none" in stderr
    assert ended("promised none")[:2] == (0, "rank 0 of 1\n")


def test_a_rank_reads_its_place_from_torchrun(ended):
    assert ended("of torchrun")[:2] == (0, "rank 1 of 2\n")


def test_an_error_on_purpose_has_its_exit_code_and_no_traceback(ended):
    code, _, stderr, _ = ended("on purpose")
    assert code == GpuError.exit_code
    assert "no GPU in this test" in stderr and "none needed" in stderr and "Traceback" not in stderr
    assert stderr.endswith("rank 0 failed: GpuError: no GPU in this test\n")


def test_a_bug_reaches_the_person_with_its_traceback(ended):
    code, _, stderr, _ = ended("bug")
    assert code == 1 and "Traceback" in stderr and "ZeroDivisionError: a bug" in stderr


def test_with_a_log_of_its_own_output_goes_there_and_the_failure_to_both(ended):
    code, stdout, stderr, folder = ended("own log")
    log = (folder / "rank0.log").read_text()
    assert code == GpuError.exit_code and "rank 0 of 1" not in stdout
    assert "rank 0 of 1" in log and "Traceback" in log and "no GPU in this test" in stderr


def test_a_rank_that_is_no_number_is_a_configuration_error(ended):
    code, _, stderr, _ = ended("no number")
    assert code == ConfigError.exit_code and "ConfigError" in stderr and "Traceback" not in stderr


def test_a_workload_that_is_interrupted_ends_with_130(ended):
    code, _, stderr, _ = ended("interrupted")
    assert code == 130 and "KeyboardInterrupt" in stderr


def test_a_configuration_that_does_not_fit_names_its_file(tmp_path):
    from lab.workload.start import read_config

    (tmp_path / "nan.json").write_text("{}")
    with pytest.raises(BadDataError, match="cannot read the configuration") as caught:
        read_config(tmp_path / "nan.json", Config)
    assert str(tmp_path / "nan.json") in str(caught.value)
