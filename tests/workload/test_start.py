"""Every workload begins alike: its rank is known, its failures end in words and an exit code."""

from __future__ import annotations

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
import argparse, sys
from lab.errors import GpuError
from lab.workload.start import start
args, context = start(argparse.ArgumentParser(), sys.argv[2:], own_log="own" in sys.argv[1])
print("rank", context.rank, "of", context.world_size, flush=True)
if "gpu" in sys.argv[1]:
    raise GpuError("no GPU in this test", fix="none needed")
if "interrupted" in sys.argv[1]:
    raise KeyboardInterrupt
if "bug" in sys.argv[1]:
    raise ZeroDivisionError("a bug")
"""


def test_a_step_that_was_given_a_gpu_never_computes_on_the_cpu(tmp_path):
    done = workload("plain", tmp_path, LAB_NUM_GPUS="1", CUDA_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="")
    assert done.returncode == GpuError.exit_code and "rank 0 of" not in done.stdout
    assert "was given 1 GPU" in done.stderr and "sees 0" in done.stderr and "--gpus none" in done.stderr
    assert workload("plain", tmp_path, LAB_NUM_GPUS="0", CUDA_VISIBLE_DEVICES="").returncode == 0


def workload(what, tmp_path, **env):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, what, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=900,
    )


def test_a_rank_reads_its_place_from_torchrun(tmp_path):
    done = workload("fine", tmp_path, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert done.returncode == 0 and done.stdout == "rank 1 of 2\n"


def test_an_error_on_purpose_has_its_exit_code_and_no_traceback(tmp_path):
    done = workload("gpu", tmp_path)
    assert done.returncode == GpuError.exit_code
    assert (
        "no GPU in this test" in done.stderr
        and "none needed" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert done.stderr.endswith("rank 0 failed: GpuError: no GPU in this test\n")


def test_a_bug_reaches_the_person_with_its_traceback(tmp_path):
    done = workload("bug", tmp_path)
    assert done.returncode == 1 and "Traceback" in done.stderr and "ZeroDivisionError: a bug" in done.stderr


def test_with_a_log_of_its_own_output_goes_there_and_the_failure_to_both(tmp_path):
    done = workload("own gpu", tmp_path)
    log = (tmp_path / "rank0.log").read_text()
    assert done.returncode == GpuError.exit_code and "rank 0 of 1" not in done.stdout
    assert "rank 0 of 1" in log and "Traceback" in log and "no GPU in this test" in done.stderr


def test_a_rank_that_is_no_number_is_a_configuration_error(tmp_path):
    done = workload("fine", tmp_path, RANK="first")
    assert done.returncode == ConfigError.exit_code and ConfigError.__name__ in done.stderr
    assert "Traceback" not in done.stderr


def test_a_workload_that_is_interrupted_ends_with_130(tmp_path):
    done = workload("interrupted", tmp_path)
    assert done.returncode == 130 and "KeyboardInterrupt" in done.stderr


def test_a_configuration_that_does_not_fit_names_its_file(tmp_path):
    from lab.workload.start import read_config

    (tmp_path / "nan.json").write_text("{}")
    with pytest.raises(BadDataError, match="not a configuration") as caught:
        read_config(tmp_path / "nan.json", Config)
    assert str(tmp_path / "nan.json") in str(caught.value)
