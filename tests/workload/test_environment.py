"""What a workload says of the machine it ran on."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from lab.workload.environment import NVIDIA_FIELDS, gpu_state, parse_nvidia_smi

pytestmark = pytest.mark.torch


def test_nvidia_smi_rows_become_named_values() -> None:
    row = "0, NVIDIA H200, GPU-1, 570.86, 1980, 3201, 1980, 31, 77.10, 700.00"
    (gpu,) = parse_nvidia_smi(row + "\n")
    assert list(gpu) == NVIDIA_FIELDS.split(",")
    assert (gpu["name"], gpu["clocks.sm"], gpu["power.limit"]) == ("NVIDIA H200", "1980", "700.00")


def test_a_failing_vendor_tool_is_a_reason_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    state = gpu_state()
    assert (state["tool"], state["gpus"]) == ("nvidia-smi", None) and "exit status 9" in state["reason"]
