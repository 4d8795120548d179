"""What is checked before a command runs under nixnan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from lab.errors import ConfigError, GpuError, MissingError, UsageError
from lab.rooms.nan.nixnan.running import preflight
from lab.rooms.nan.nixnan.running.preflight import read_bin_spec
from tests.rooms.nan.nixnan import nixgen

ELF = b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x03\x00\x3e\x00"  # 64-bit, shared object, x86-64


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "empty file"),
        (b"#!/bin/sh\n", "not an ELF"),
        (ELF[:10], "64-bit|not a shared"),
        (ELF[:4] + b"\x01" + ELF[5:], "64-bit"),
        (ELF[:16] + b"\x02\x00\x3e\x00", "not a shared object"),
        (ELF[:16] + b"\x03\x00\xb7\x00", "not built for x86-64"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_refused_before_any_container(tmp_path, content, complaint):
    path = tmp_path / "nixnan.so"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        preflight.check_shared_object(path)


def test_a_tool_that_is_no_shared_object_is_refused(tmp_path, env):
    text = tmp_path / "nixnan.so"
    text.write_text("not a library")
    with pytest.raises(UsageError, match="not an ELF shared object"):
        preflight.preflight(text, env)


def test_a_tool_with_a_missing_symbol_is_told_in_the_loaders_words(tmp_path, env):
    (tmp_path / "bad.c").write_text("extern void cuMissing(void); void f(void) { cuMissing(); }")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "bad.so", "bad.c", "-Wl,-z,now"], cwd=tmp_path, check=True
    )
    with pytest.raises(MissingError, match=r"cannot be loaded:.*cuMissing"):
        preflight.preflight(tmp_path / "bad.so", env)


def test_without_nvdisasm_nothing_starts(tmp_path, env, tool):
    with pytest.raises(MissingError, match="nvdisasm is not on PATH"):
        preflight.preflight(tool, {**env, "PATH": "/nowhere"})


def test_a_gpu_that_is_too_old_is_refused_by_name(tmp_path, env, tool):
    nixgen.fake(tmp_path, "nvidia-smi", "echo '6.1, NVIDIA GeForce GTX 1080 Ti'")
    with pytest.raises(GpuError, match=r"GTX 1080 Ti has compute capability 6\.1"):
        preflight.preflight(tool, env)
    nixgen.fake(tmp_path, "nvidia-smi", "echo '9.0, NVIDIA H200'")
    preflight.preflight(tool, env)


def test_another_injected_tool_is_not_pushed_aside(tmp_path, env, tool):
    with pytest.raises(UsageError, match="another tool"):
        preflight.preflight(tool, {**env, "CUDA_INJECTION64_PATH": "/opt/nsys/inject.so"})


def test_the_tool_is_named_by_the_user_or_lies_in_a_known_path(tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "KNOWN_PATHS", ("nixnan.so",))
    with pytest.raises(MissingError, match="NIXNAN_SO is not set"):
        preflight.find_tool({})
    with pytest.raises(MissingError, match="the file named in NIXNAN_SO does not exist"):
        preflight.find_tool({"NIXNAN_SO": "/no/such.so"})
    shutil.copy(tool, tmp_path / "nixnan.so")
    assert preflight.find_tool({}) == tmp_path / "nixnan.so"
    assert preflight.find_tool({"CUDA_INJECTION64_PATH": str(tool)}) == tool, "an image puts it there"


def test_only_this_tool_is_taken_out_of_an_environment():
    kept = preflight.scrubbed(
        {
            "LD_PRELOAD": "/x/libjemalloc.so:/y/nixnan.so",
            "SAMPLING": "3",
            "A": "b",
            "CUDA_INJECTION64_PATH": "/y",
        }
    )
    assert kept == {"LD_PRELOAD": "/x/libjemalloc.so", "A": "b"}


def test_a_tool_that_is_not_there_ends_the_plan_before_any_step_or_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.so"
    text.write_text("no library")
    for so, code, says in ((tmp_path / "no.so", 4, "NIXNAN_SO does not exist"), (text, 2, "not an ELF")):
        done = subprocess.run(
            [sys.executable, "-m", "lab", "run", "--image", "cuda", "--dry-run", "nixnan", "baseline"],
            env={**os.environ, "NIXNAN_SO": str(so)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code and says in done.stderr, done.stderr
        assert not (tmp_path / "experiments").exists()


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("{", "not JSON"),
        ("[]", "a bin specification is"),
        ('{"f16": []}', "a bin specification is"),
        ('{"count": 3, "f8": []}', "'f8' is not a type"),
        ('{"count": 3, "f16": [[3, 1]]}', "not a range"),
        ('{"count": 3, "f16": [[1]]}', "not a range"),
    ],
)
def test_a_bad_bin_specification_is_refused_before_it_ends_a_run_silently(tmp_path, text, complaint):
    path = tmp_path / "bins.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_bin_spec(path)
