"""GPU metrics and traffic of unified memory, from planted exports; and what is said where there are none."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from lab.recordings.load import load_capture
from lab.rooms.nsys.cli import nsys
from tests.conftest import SHARED
from tests.recordings.sqlgen import PREFIX, Export, global_tid

PID, MAIN = 7, (7, 1)
PERIOD_NS = 1000
METRICS = {
    11: "SMs Active [Throughput %]",
    12: "Tensor Active [Throughput %]",
    13: "DRAM Read Bandwidth [Throughput %]",
    14: "DRAM Write Bandwidth [Throughput %]",
    15: "GPC Clock Frequency [MHz]",
}
SAMPLER, OTHER = 3, 0  # the sampler's numbers of the process's GPU, and of another one


def steps_with_work():
    """Two steps: `forward` has a GEMM of 10 us, `optimizer_step` a kernel of half a sampling period."""
    export = Export()
    for number in range(2):
        t = 30_000 * number
        export.range(f"step_{number}", MAIN, t, t + 20_000)
        export.range("forward", MAIN, t + 100, t + 9_000)
        export.launch("gemm_a", MAIN, (t + 200, t + 210), (t + 2_000, t + 12_000))
        export.range("optimizer_step", MAIN, t + 13_000, t + 19_000)
        export.launch("adam", MAIN, (t + 13_100, t + 13_110), (t + 15_000, t + 15_500))
    return export


def sampled(export, *, mapped=True, gpus=(SAMPLER, OTHER)):
    """Samples of every metric: inside the GEMM 80, 60, 40 and 20 %, elsewhere 1 %; of the other GPU 99 %."""
    for metric, name in METRICS.items():
        for gpu in gpus:
            export.add("TARGET_INFO_GPU_METRICS", typeId=0x7F00 | gpu, metricId=metric, metricName=name)
            for time in range(500, 60_000, PERIOD_NS):
                inside = 2_000 <= time % 30_000 <= 12_000
                value = (
                    99
                    if gpu == OTHER
                    else {11: 80, 12: 60, 13: 40, 14: 20, 15: 1980}[metric]
                    if inside
                    else 1
                )
                export.add("GPU_METRICS", timestamp=time, typeId=0x7F00 | gpu, metricId=metric, value=value)
    if mapped:
        export.add("TARGET_INFO_GPU", id=0, name="H", pwGpuId=OTHER)
        export.add("TARGET_INFO_GPU", id=1, name="H", pwGpuId=SAMPLER)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=PID)
    return export


def migrated(export, *, faults=True):
    """1.5 MB to the GPU and 3 faults of it in each `forward`; 1 MB to the CPU and a fault between steps."""
    for start, size, kind in ((3_000, 1_500_000, 11), (33_000, 1_500_000, 11), (25_000, 1_000_000, 12)):
        export.add(
            PREFIX + "MEMCPY",
            start=start,
            end=start + 10,
            deviceId=0,
            contextId=1,
            streamId=9,
            correlationId=0,
            globalPid=global_tid(PID),
            bytes=size,
            copyKind=kind,
            srcKind=4,
            dstKind=4,
        )
    if faults:
        for start in (2_500, 32_500):
            row = {"start": start, "end": start + 5, "numberOfPageFaults": 3, "deviceId": 0, "address": 4096}
            export.add("CUDA_UM_GPU_PAGE_FAULT_EVENTS", **row, globalPid=global_tid(PID))
        export.add("CUDA_UM_CPU_PAGE_FAULT_EVENTS", start=24_900, address=4096, globalPid=global_tid(PID))
    return export


def call(*words):
    done = CliRunner().invoke(nsys, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def rows_of(table):
    return {"/".join(row["path"]): row for row in table["ranges"]}


def test_a_metric_is_the_mean_of_the_samples_that_lie_in_the_work_of_a_range_or_kernel(tmp_path):
    path = sampled(steps_with_work()).write(tmp_path / "a.sqlite")
    metrics = json.loads(call("summary", path, "--json"))["gpu_metrics"]
    assert metrics["period_us"] == 1
    forward = rows_of(metrics)["forward"]
    # From 3,000 to 11,000 ns a whole period on either side lies in the GEMM: 8 samples in each step.
    assert forward["samples"] == 16
    names = ("sm_active", "tensor_active", "dram_read", "dram_write")
    assert [forward[f"{name}_percent"] for name in names] == [80, 60, 40, 20], "none of the other GPU's 99"
    step = rows_of(metrics)[""]
    assert step["samples"] == 2 * 12, "from 3,000 to 14,500 ns, where the last kernel ends a period later"
    assert step["sm_active_percent"] == pytest.approx((9 * 80 + 3 * 1) / 12)
    kernels = {row["name"]: row for row in metrics["kernels"]}
    assert kernels["gemm_a"]["tensor_active_percent"] == 60
    assert kernels["adam"] == {"name": "adam", "samples": 0, **{f"{name}_percent": None for name in names}}
    text = call("summary", path)
    assert "GPU metrics, mean % of the peak" in text and "a sample per 1 us and GPU" in text
    assert "unified memory: not recorded" in text


def test_metrics_of_a_gpu_that_no_device_is_known_to_be_are_unknown(tmp_path):
    path = sampled(steps_with_work(), mapped=False).write(tmp_path / "a.sqlite")
    document = json.loads(call("summary", path, "--json"))
    assert document["gpu_metrics"] is None and len(document["unknown"]) == 1
    text = call("summary", path)
    assert "GPU metrics were sampled, but on which" in text and "GPU metrics: not recorded" not in text
    alone = sampled(steps_with_work(), mapped=False, gpus=(SAMPLER,)).write(tmp_path / "b.sqlite")
    metrics = json.loads(call("summary", alone, "--json"))["gpu_metrics"]
    assert rows_of(metrics)["forward"]["sm_active_percent"] == 80


def test_values_that_are_no_percent_are_left_out_and_counted(tmp_path):
    export = sampled(steps_with_work())
    export.add("GPU_METRICS", timestamp=5_500, typeId=0x7F00 | SAMPLER, metricId=11, value=-4)
    path = export.write(tmp_path / "a.sqlite")
    document = json.loads(call("summary", path, "--json"))
    assert rows_of(document["gpu_metrics"])["forward"]["sm_active_percent"] == 80
    assert "GPU_METRICS: 1 sample outside 0 to 100 %, left out" in document["problems"]


def test_columns_that_lab_does_not_know_leave_the_recording_readable(tmp_path):
    export = steps_with_work()
    export.add("TARGET_INFO_GPU_METRICS", metricId=11, metricName=METRICS[11])
    export.add("GPU_METRICS", timestamp=1, deviceId=0, metricId=11, value=3)
    document = json.loads(call("summary", export.write(tmp_path / "a.sqlite"), "--json"))
    assert document["gpu_metrics"] is None and document["phases"][0]["kernels"] == [2]
    assert any("GPU_METRICS has no column typeId" in problem for problem in document["problems"])


def test_migrations_and_faults_belong_to_the_ranges_in_which_they_begin(tmp_path):
    path = migrated(steps_with_work()).write(tmp_path / "a.sqlite")
    memory = json.loads(call("summary", path, "--json"))["unified_memory"]
    per_step = {"to_device_mb": 1.5, "to_host_mb": 0, "between_gpus_mb": 0, "cpu_page_faults": 0}
    assert rows_of(memory)["forward"] == {"path": ["forward"], **per_step, "gpu_page_faults": 3}
    assert rows_of(memory)["optimizer_step"]["to_device_mb"] == 0
    in_all = {"to_device_mb": 3.0, "to_host_mb": 1.0, "between_gpus_mb": 0, "cpu_page_faults": 1}
    assert memory["in_all"] == {**in_all, "gpu_page_faults": 6}
    assert "GPU metrics: not recorded" in call("summary", path)
    part = json.loads(call("summary", path, "--json", "--step", "0"))
    assert part["unified_memory"] is None and "unified memory: not divided by part" in call(
        "summary", path, "--step", "0"
    )


def test_faults_that_were_not_traced_are_not_recorded_rather_than_zero(tmp_path):
    path = migrated(steps_with_work(), faults=False).write(tmp_path / "a.sqlite")
    memory = json.loads(call("summary", path, "--json"))["unified_memory"]
    assert memory["in_all"]["to_device_mb"] == 3 and memory["in_all"]["gpu_page_faults"] is None
    assert call("summary", path).count("not recorded") > 2


def test_the_page_has_both_tables_and_a_copy_without_secrets_keeps_them(tmp_path):
    path = migrated(sampled(steps_with_work())).write(tmp_path / "a.sqlite")
    CliRunner().invoke(cli, ["analyze", str(path), "-o", str(tmp_path / "page")], catch_exceptions=False)
    metrics = pd.read_csv(tmp_path / "page" / "tables" / "gpu_metrics.csv").set_index("name")
    assert metrics.loc["forward", "sm_active_percent"] == 80 and metrics.loc["gemm_a", "samples"] == 16
    traffic = pd.read_csv(tmp_path / "page" / "tables" / "unified_memory.csv")
    assert list(traffic["phase"])[-1] == "the whole recording" and traffic["to_device_mb"].iloc[-1] == 3
    page = (tmp_path / "page" / "report.html").read_text()
    assert "GPU metrics" in page and "Unified memory" in page
    call("summary", path, "--scrubbed", tmp_path / "clean.sqlite")
    before, after = (
        json.loads(call("summary", file, "--json")) for file in (path, tmp_path / "clean.sqlite")
    )
    for name in ("gpu_metrics", "unified_memory"):
        assert before[name] == after[name]


@pytest.mark.data
def test_a_recording_with_migrations_has_their_bytes():
    path = SHARED / "cases" / "recordings" / "healthy_nsys_unified_memory.sqlite.gz"
    if not path.exists():
        pytest.skip("no shared data")
    ops = load_capture(path).ops
    memory = json.loads(call("summary", path, "--json"))["unified_memory"]["in_all"]
    for kind, column in ((11, "to_device_mb"), (12, "to_host_mb")):
        assert memory[column] == pytest.approx(int(ops.bytes[ops.copy_kind == kind].sum()) / 1e6)
    assert memory["cpu_page_faults"] is None
