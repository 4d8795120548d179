"""Counters of `nvidia-smi -q` and Xid events of the kernel's log; what cannot be read is never healthy."""

from __future__ import annotations

import pytest

from lab.rooms.trials.gpus.health import (
    concerns,
    parse_buses,
    parse_health,
    parse_xids,
    read_health,
)

GPU = """
GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA H200
    GPU UUID                              : {uuid}
    ECC Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 3
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {volatile}
        Aggregate
            SRAM Correctable              : 5
            DRAM Uncorrectable            : {aggregate}
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : {rows}
        Pending                           : {pending}
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
    Clocks Event Reasons
        Idle                              : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : Not Active
"""
GOOD = {"volatile": 0, "aggregate": 0, "rows": 0, "pending": "No", "thermal": "Not Active"}
HEAD = "==============NVSMI LOG==============\n\nAttached GPUs                             : 2\n"
LISTING = (
    HEAD
    + GPU.format(bus="18", uuid="GPU-aa", **GOOD)
    + GPU.format(
        bus="2A", uuid="GPU-bb", **{**GOOD, "aggregate": 2, "rows": 1, "pending": "Yes", "thermal": "Active"}
    )
)


def test_counters_are_those_of_each_gpu():
    found = parse_health(LISTING)
    assert found["GPU-aa"]["ecc_uncorrectable"] == 0 and found["GPU-aa"]["ecc_correctable"] == 5
    assert found["GPU-bb"]["ecc_uncorrectable"] == 2 and found["GPU-bb"]["remap_pending"] == 1
    assert concerns(found["GPU-aa"]) == []
    assert concerns(found["GPU-bb"]) == [
        "2 uncorrectable ECC errors",
        "1 rows remapped after uncorrectable errors",
        "a row remapping that waits for a reset",
        "a thermal slowdown",
    ]


def test_a_counter_that_the_driver_does_not_give_is_absent_and_not_zero():
    assert "ecc_uncorrectable" not in parse_health(LISTING.replace(": 0", ": N/A"))["GPU-aa"]


def test_old_drivers_say_double_bit_and_throttle_reasons():
    text = """
GPU 00000000:04:00.0
    GPU UUID                        : GPU-old
    ECC Errors
        Aggregate
            Double Bit
                Device Memory       : 4
                Total               : 4
    Retired Pages
        Double Bit ECC              : 1
        Pending Page Blacklist      : Yes
    Clocks Throttle Reasons
        HW Slowdown                 : Active
"""
    assert parse_health(text)["GPU-old"] == {
        "ecc_uncorrectable": 4,
        "pages_retired": 1,
        "retirement_pending": 1,
        "hw_slowdown": 1,
    }


def test_xids_belong_to_the_gpu_of_their_address():
    log = (
        "[ 12.0] NVRM: Xid (PCI:0000:2a:00): 79, pid=1, GPU has fallen off the bus.\n"
        "[ 13.0] NVRM: Xid (PCI:0000:2a:00): 63, row remap \x1b[31mevent\n"
        "[ 14.0] NVRM: Xid (PCI:0000:99:00): 31, MMU fault\n"
    )
    found = parse_xids(log, parse_buses(LISTING))
    assert [one[:3] for one in found["GPU-bb"]] == ["79:", "63:"] and "\x1b" not in found["GPU-bb"][1]
    assert list(found) == ["GPU-bb", "PCI 0000:99:00"]


@pytest.mark.parametrize("text", ["", "no devices", "GPU 00000000:18:00.0\n", "\x00" * 100, LISTING[:300]])
def test_a_report_without_gpus_gives_none(text):
    assert all(not concerns(one) for one in parse_health(text).values())


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Puts programs of these names alone on PATH."""

    def put(**programs):
        for name, body in programs.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


def test_without_the_tools_the_answer_is_not_read_and_why(tools):
    tools()
    health, no_health, xids, no_xids = read_health()
    assert (health, xids) == ({}, None) and "nvidia-smi" in no_health and "cannot be read" in no_xids


def test_tools_that_fail_are_not_healthy(tools):
    tools(nvidia_smi="echo 'GPU is lost'; exit 15", dmesg="echo 'Operation not permitted' >&2; exit 1")
    health, no_health, xids, _ = read_health()
    assert (health, xids) == ({}, None) and no_health.endswith("GPU is lost")


def test_tools_that_answer(tools, tmp_path):
    (tmp_path / "listing").write_text(LISTING)
    echo = f"while IFS= read -r line; do printf '%s\\n' \"$line\"; done < {tmp_path}/listing"
    tools(nvidia_smi=echo, dmesg="echo 'NVRM: Xid (PCI:0000:18:00): 48, DBE'")
    health, _, xids, _ = read_health()
    assert set(health) == {"GPU-aa", "GPU-bb"} and xids == {"GPU-aa": ["48: DBE"]}
