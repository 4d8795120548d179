"""amd-smi, by a stand-in that prints what the real one prints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.gpus.amd import AmdSmi, bus_of
from lab.power import sampling
from lab.power.meters import STATE
from lab.power.sampling import sample

BUSES = {128: "0000:0c:00.0", 129: "0000:22:00.0"}
LIST = [
    {"gpu": 0, "bdf": "0000:0C:00.0", "uuid": "76ff74a1-0000-1000-80e9-0a2c8ca6d65f", "kfd_id": 45412},
    {"gpu": 1, "bdf": "0000:22:00.0", "uuid": "aeff74a1-0000-1000-8061-b6a1a2d4a1f1", "kfd_id": 59851},
]


def _value(value: float | str, unit: str) -> object:
    return value if value == "N/A" else {"value": value, "unit": unit}


def _metric(gpu: int, mhz: list[float | str], watt: float | str, celsius: float | str) -> dict[str, object]:
    """One GPU of `amd-smi metric --clock --power --temperature --json` (ROCm 6.3; 7 wraps the list)."""
    clocks: dict[str, object] = {
        f"gfx_{die}": {
            "clk": _value(one, "MHz"),
            "min_clk": {"value": 132, "unit": "MHz"},
            "max_clk": {"value": 2100, "unit": "MHz"},
            "clk_locked": "DISABLED",
            "deep_sleep": "DISABLED",
        }
        for die, one in enumerate(mhz)
    }
    clocks["mem_0"] = {"clk": {"value": 1300, "unit": "MHz"}, "min_clk": {"value": 900, "unit": "MHz"}}
    clocks["vclk_0"] = {"clk": {"value": 29, "unit": "MHz"}}
    power = {"socket_power": _value(watt, "W"), "gfx_voltage": "N/A", "power_management": "ENABLED"}
    heat = {"edge": "N/A", "hotspot": _value(celsius, "C"), "mem": {"value": 38, "unit": "C"}}
    return {"gpu": gpu, "power": power, "clock": clocks, "temperature": heat}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A /sys with two GPUs and no hwmon, and a folder for the tools."""
    for minor, bus in BUSES.items():
        device = tmp_path / "sys/devices/pci0000:00" / bus
        device.mkdir(parents=True)
        link = tmp_path / f"sys/class/drm/renderD{minor}"
        link.mkdir(parents=True)
        (link / "device").symlink_to(device)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("LAB_SYS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def _tool(host: Path, name: str, answers: dict[str, object], *, banner: str = "", code: int = 0) -> None:
    """A tool that prints the answer whose key is its first word or option."""
    lines = ["#!/bin/sh", f'echo x >> "{host}/asked"', 'case "$1" in']
    for word, answer in answers.items():
        path = host / f"{name}{word}.json"
        path.write_text(answer if isinstance(answer, str) else banner + json.dumps(answer))
        lines.append(f'  {word}) cat "{path}";;')
    file = host / "bin" / name
    file.write_text("\n".join([*lines, "esac", f"exit {code}"]) + "\n")
    file.chmod(0o755)


def test_the_kernels_tree_says_which_pci_address_a_device_node_has(host):
    assert [bus_of(f"/dev/dri/renderD{minor}", os.environ) for minor in BUSES] == list(BUSES.values())
    assert bus_of("/dev/dri/renderD7", os.environ) is None and bus_of(None, os.environ) is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_is_read_by_pci_address_whatever_its_order(host, wrapped):
    rows = [_metric(1, [1400, "N/A", 1500, 1450], "N/A", 55), _metric(0, [2100] * 8, 712, 68)]
    answer = {"gpu_data": rows} if wrapped else rows
    _tool(host, "amd-smi", {"list": LIST, "metric": answer}, banner="WARNING: User is missing groups\n")
    tools = AmdSmi(os.environ)
    first, second = (tools.reader(f"/dev/dri/renderD{minor}")() for minor in BUSES)
    assert first == {
        "sm_clock_mhz": 2100,
        "mem_clock_mhz": 1300,
        "power_w": 712,
        "temperature_c": 68,
        "throttle_bits": None,
    }
    assert (second["sm_clock_mhz"], second["power_w"], second["temperature_c"]) == (1450, None, 55)


def test_one_answer_serves_all_gpus_and_the_next_round_asks_again(host):
    rows = [_metric(0, [2100], 700, 60), _metric(1, [2000], 700, 60)]
    _tool(host, "amd-smi", {"list": LIST, "metric": rows})
    tools = AmdSmi(os.environ)
    readers = [tools.reader(f"/dev/dri/renderD{minor}") for minor in BUSES]
    asked = host / "asked"
    for rounds in (1, 2, 3):
        assert [read()["sm_clock_mhz"] for read in readers] == [2100, 2000]
        assert asked.read_text().count("x") == 2 * rounds  # list and metric
    (host / "amd-smimetric.json").write_text("no JSON")
    assert [read()["sm_clock_mhz"] for read in readers] == [None, None]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"list": "not JSON [", "metric": "[]"}, "is not JSON"),
        ({"list": LIST, "metric": {"gpu_data": 7}}, "lists no GPU at PCI address"),
        ({"list": [{"gpu": 0}], "metric": [_metric(0, [1], 1, 1)]}, "lists no GPU at PCI address"),
        ({"list": "[" * 100_000, "metric": "[]"}, "amd-smi"),
    ],
)
def test_odd_answers_are_reasons(host, answers, why):
    _tool(host, "amd-smi", answers)
    with pytest.raises(GpuError, match=why):
        AmdSmi(os.environ).reader("/dev/dri/renderD128")


def test_without_amd_smi_it_says_so(host, monkeypatch):
    monkeypatch.setenv("PATH", str(host / "bin"))
    with pytest.raises(GpuError, match="amd-smi is not installed"):
        AmdSmi(os.environ)


def _gpu(uuid, render_node):
    return Gpu(vendor="amd", index=0, uuid=uuid, render_node=render_node)


def test_a_gpu_without_hwmon_is_sampled_by_the_tool_and_the_cost_counts_it(host):
    rows = [_metric(0, [2100], 700, 60), _metric(1, [2000], 650, 61)]
    _tool(host, "amd-smi", {"list": LIST, "metric": rows})
    read, write = os.pipe()
    os.close(write)  # the step has ended already: one sample is taken
    gpus = [_gpu(f"GPU-{minor}", f"/dev/dri/renderD{minor}") for minor in BUSES]
    found = sample(host, gpus, 0.01, read, node=1)
    os.close(read)
    lines = (host / "gpu_clocks.node1.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1:6] for line in lines] == [
        ["2", "GPU-128", "2100", "1300", "700"],
        ["3", "GPU-129", "2000", "1300", "650"],
    ]
    assert found["reasons"] == {} and (host / "gpu_clocks.node1.json").exists()


@pytest.mark.parametrize(("slow", "rest_s"), [(True, 0.5 * 19), (False, 0.0)])
def test_a_slow_tool_is_asked_so_rarely_that_it_costs_little(tmp_path, monkeypatch, slow, rest_s):
    waits = []
    state = dict.fromkeys(STATE)

    def select(_read, _write, _odd, seconds):
        waits.append(seconds)
        return [0], [], []

    clock = iter([0.0, 10.0, 10.5, 11.0])  # a sample takes half a second
    readers = [(0, "GPU-0", lambda: state)]
    monkeypatch.setattr(sampling, "_readers", lambda _: (readers, {}, slow))
    monkeypatch.setattr(sampling, "select", select)
    monkeypatch.setattr(sampling.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sampling.os, "read", lambda *_: b"")
    sample(tmp_path, [_gpu("GPU-0", None)], 0.25, 0)
    assert waits == [pytest.approx(rest_s)]


def test_both_reasons_are_said_where_neither_way_works(host, monkeypatch):
    monkeypatch.setenv("PATH", str(host / "bin"))
    read, write = os.pipe()
    os.close(write)
    found = sample(host, [_gpu("GPU-0", "/dev/dri/renderD128")], 0.01, read)
    os.close(read)
    assert (
        "no hwmon files" in found["reasons"]["GPU-0"]
        and "amd-smi is not installed" in found["reasons"]["GPU-0"]
    )
