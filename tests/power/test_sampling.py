"""Clocks beside a step: a process of its own that ends with it and never fails it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import time

import pytest

from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.gpus.amd import amd_state
from lab.power import sampling
from lab.power.sampling import COLUMNS, sample, sampled
from tests.gpus.test_amd import Tree, tree  # noqa: F401
from tests.power.test_meters import FakeNvml, meter_on, no_library_is_left  # noqa: F401


def _amd(root: Tree, minor: int = 128, mhz: int = 2100) -> Gpu:
    folder = f"class/drm/renderD{minor}/device/hwmon/hwmon3"
    values = {"freq1_input": mhz * 10**6, "freq2_input": 1300 * 10**6, "power1_average": 412_000_000}
    for name, value in {**values, "temp1_input": 51_000, "temp2_input": 68_000}.items():
        root.write(f"{folder}/{name}", f"{value}\n")
    return Gpu(vendor="amd", index=0, uuid=f"GPU-{minor}", render_node=f"/dev/dri/renderD{minor}")


def _rows(folder):
    with (folder / sampling.SAMPLES).open() as file:
        return list(csv.DictReader(file))


def test_a_process_samples_every_gpu_until_the_step_ends_and_says_its_cost(tree, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("LAB_SYS_ROOT", tree.env["LAB_SYS_ROOT"])
    gpus, before = [_amd(tree), _amd(tree, 129, 1400)], time.time_ns()
    with sampled(gpus, tmp_path, interval_s=0.02):
        until = time.monotonic() + 300
        while time.monotonic() < until and not (
            (tmp_path / sampling.SAMPLES).exists() and len(_rows(tmp_path)) >= 6
        ):
            time.sleep(0.02)
    rows, summary = _rows(tmp_path), json.loads((tmp_path / sampling.SUMMARY).read_text())
    assert set(rows[0]) == set(COLUMNS) and {row["place"] for row in rows} == {"0", "1"}
    first = rows[0]
    assert (first["sm_clock_mhz"], first["mem_clock_mhz"], first["power_w"]) == ("2100", "1300", "412")
    assert (first["temperature_c"], first["throttle_bits"]) == ("68", "")
    assert before < int(first["unix_ns"]) < time.time_ns()
    assert summary["samples"] == len(rows) // 2 and summary["cpu_s"] > 0 and summary["wall_s"] > 0


def test_a_gpu_without_sensors_has_its_reason_and_the_step_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_SYS_ROOT", str(tmp_path / "none"))
    with sampled([Gpu(vendor="amd", index=0, uuid="GPU-x", render_node="/dev/dri/renderD7")], tmp_path):
        pass
    assert "no hwmon files" in json.loads((tmp_path / sampling.SUMMARY).read_text())["reasons"]["GPU-x"]
    assert _rows(tmp_path) == []


def test_a_step_without_gpus_starts_nothing(tmp_path):
    with sampled([], tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_sampler_that_cannot_start_or_dies_is_a_sentence(tmp_path, monkeypatch):
    gpu = Gpu(vendor="amd", index=0, uuid="GPU-x")

    def refuse(spec):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(sampling, "_start", refuse)
    with sampled([gpu], tmp_path):
        pass
    assert "Resource temporarily" in json.loads((tmp_path / sampling.SUMMARY).read_text())["reason"]
    (tmp_path / sampling.SUMMARY).unlink()
    monkeypatch.setattr(sampling, "_start", lambda spec: subprocess.Popen(["false"], stdin=subprocess.PIPE))
    with sampled([gpu], tmp_path):
        pass
    assert "failed" in json.loads((tmp_path / sampling.SUMMARY).read_text())["reason"]


def test_nvidia_is_asked_for_clocks_power_temperature_and_reasons(tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "NvmlMeter", lambda uuid: meter_on(FakeNvml(throttle=4), uuid))
    read, write = os.pipe()
    os.close(write)  # the step has ended already: one sample is taken
    done = sample(tmp_path, [Gpu(vendor="nvidia", index=0, uuid="GPU-1")], 0.01, read)
    os.close(read)
    (row,) = _rows(tmp_path)
    assert (row["sm_clock_mhz"], row["mem_clock_mhz"], row["power_w"]) == ("1980", "2619", "250")
    assert (row["temperature_c"], row["throttle_bits"], done["samples"]) == ("41", "4", 1)


def test_what_hwmon_does_not_hold_is_unknown(tree):  # noqa: F811
    tree.write("class/drm/renderD5/device/hwmon/hwmon0/freq1_input", "nonsense")
    assert set(amd_state("renderD5", tree.env)().values()) == {None}
    with pytest.raises(GpuError):
        amd_state(None, tree.env)
