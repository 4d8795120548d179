"""A --gpus value names GPUs that are present, or is refused."""

from __future__ import annotations

import pytest

from lab.core.gpu import Gpu
from lab.errors import GpuError, UsageError
from lab.gpus.nvidia import parse_nvidia_smi
from lab.gpus.selection import parse_spec, select, visible_env

H200 = "NVIDIA H200, 580.159.04, 143771"
TWO_H200 = f"""\
0, GPU-aaaa1111-0000-0000-0000-000000000000, {H200}, 700.00, 1980, 3201, 9.0
1, GPU-bbbb2222-0000-0000-0000-000000000000, {H200}, [N/A], [Not Supported], 3201, 9.0
"""


@pytest.mark.parametrize(
    "spec, wanted",
    [
        ("all", "all"),
        ("none", []),
        ("2", 2),
        ("0,2", [0, 2]),
        ("0-3", [0, 1, 2, 3]),
        ("0-0", [0]),
        ("0-1,5", [0, 1, 5]),
        ("GPU-aaaa1111", ["GPU-aaaa1111"]),
        (" 1, 0 ", [1, 0]),
        ("3,", [3]),
    ],
)
def test_a_gpu_spec_is_read(spec, wanted):
    assert parse_spec(spec) == wanted


@pytest.mark.parametrize(
    "spec", ["0", "", ",", "3-1", "a", "0,0", "0-1,1", "-1", "1.5", "0-99999999", "GPU-a;rm", "0..3"]
)
def test_a_gpu_spec_that_means_nothing_is_refused(spec):
    with pytest.raises(UsageError):
        parse_spec(spec)


def test_gpus_that_are_not_here_are_an_error_that_lists_those_present():
    here = parse_nvidia_smi(TWO_H200)
    for spec in ("3", "0,7", "GPU-cccc"):
        with pytest.raises(GpuError, match="GPU") as caught:
            select(here, spec)
        assert "GPU-aaaa1111" in str(caught.value)
    assert [gpu.index for gpu in select(here, "1-1")] == [1]
    assert [gpu.index for gpu in select(here, "1")] == [0]
    assert select(here, "none") == []


def test_a_plain_process_sees_only_its_gpus():
    gpu = Gpu(vendor="nvidia", index=3, uuid="GPU-x")
    assert visible_env([gpu], "nvidia")["CUDA_VISIBLE_DEVICES"] == "GPU-x"
    assert visible_env([], "nvidia")["CUDA_VISIBLE_DEVICES"] == ""
    assert visible_env([gpu], "amd") == {"ROCR_VISIBLE_DEVICES": "3"}
