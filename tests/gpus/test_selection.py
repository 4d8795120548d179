"""A --gpus value names GPUs that are present, or is refused."""

from __future__ import annotations

import pytest

from lab.core.gpu import Gpu
from lab.errors import GpuError, UsageError
from lab.gpus.selection import HIDING, parse_spec, placeholders, select, visible_env


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
        ("0:1,2:0", ["0:1", "2:0"]),
        ("MIG-c6d4f1ef-42e4", ["MIG-c6d4f1ef-42e4"]),
        ("nvidia.com/gpu=0:1,amd.com/gpu=2", ["nvidia.com/gpu=0:1", "amd.com/gpu=2"]),
    ],
)
def test_a_gpu_spec_is_read(spec, wanted):
    assert parse_spec(spec) == wanted


MEANINGLESS = "0 , 3-1 a 0,0 0-1,1 -1 1.5 0-99999999 GPU-a;rm \u00b2 0..3 0: x.com/gpu=0"


@pytest.mark.parametrize("spec", ["", *MEANINGLESS.split()])
def test_a_gpu_spec_that_means_nothing_is_refused(spec):
    with pytest.raises(UsageError):
        parse_spec(spec)


def test_a_plain_process_sees_only_its_gpus():
    gpu = Gpu(vendor="nvidia", index=3, uuid="GPU-x")
    assert visible_env([gpu], "nvidia")["CUDA_VISIBLE_DEVICES"] == "GPU-x"
    for vendor in ("nvidia", "amd", "none"):
        assert set(visible_env([], vendor).items()) == {(name, "-1") for name in HIDING}
    assert visible_env([gpu], "amd") == {"ROCR_VISIBLE_DEVICES": "3"}


THREE = [Gpu(vendor="amd", index=i, uuid=f"GPU-{i}{i}", name=f"card{i}") for i in (4, 5, 6)]


@pytest.mark.parametrize(
    "spec, indices",
    [
        ("all", [4, 5, 6]),
        ("none", []),
        ("1", [4]),
        ("3", [4, 5, 6]),  # exactly as many as there are
        ("6,4", [6, 4]),
        ("5-6", [5, 6]),
        ("GPU-6,4", [6, 4]),
        ("GPU-55", [5]),
    ],
)
def test_gpus_are_chosen_in_the_order_of_the_wish(spec, indices):
    assert [gpu.index for gpu in select(THREE, spec)] == indices


@pytest.mark.parametrize(
    "spec, complaint",
    [("4", "3 GPUs"), ("7", "3 GPUs"), ("0,4", "no GPU .* 0"), ("GPU-7", "no GPU .* 'GPU-7'")],
)
def test_a_wish_that_cannot_be_met_lists_what_is_there(spec, complaint):
    with pytest.raises(GpuError, match=complaint) as caught:
        select(THREE, spec)
    assert caught.value.location == "present: 4 card4 GPU-44, 5 card5 GPU-55, 6 card6 GPU-66"


def test_a_machine_without_gpus_says_none():
    with pytest.raises(GpuError, match="0 GPUs") as caught:
        select([], "1")
    assert caught.value.location == "present: none"
    assert select([], "all") == []
    with pytest.raises(GpuError) as caught:
        select([], "2")
    assert caught.value.fix == "--gpus none runs on the CPU"


def test_a_prefix_of_two_gpus_is_refused():
    twins = [Gpu(vendor="nvidia", index=i, uuid=f"GPU-a{i}") for i in range(2)]
    with pytest.raises(GpuError, match="more than one GPU"):
        select(twins, "GPU-a")
    assert select(twins, "GPU-a1") == twins[1:]


def test_a_range_of_indices_has_at_most_1024():
    assert parse_spec("0-1023") == list(range(1024))
    assert parse_spec("1000-2023") == list(range(1000, 2024))
    with pytest.raises(UsageError, match="not a valid range"):
        parse_spec("0-1024")


@pytest.mark.parametrize(
    "spec, complaint", [("0,a", "0,a.* 'a'"), ("0,3-1", "0,3-1.* '3-1'"), ("1,1", "twice"), (",", "no GPU")]
)
def test_a_refused_value_is_quoted_with_the_part_that_is_wrong(spec, complaint):
    with pytest.raises(UsageError, match=complaint) as caught:
        parse_spec(spec)
    assert "0-3" in caught.value.fix


def test_zero_gpus_are_asked_for_by_another_word():
    with pytest.raises(UsageError, match="zero") as caught:
        parse_spec("00")
    assert "--gpus none" in caught.value.fix and "0-0" in caught.value.fix


@pytest.mark.parametrize(
    "spec, found",
    [
        ("all", [(0, "<uuid of GPU 0>"), (1, "<uuid of GPU 1>")]),
        ("1", [(0, "<uuid of GPU 0>")]),
        ("3", [(n, f"<uuid of GPU {n}>") for n in range(3)]),
        ("5,2", [(5, "<uuid of GPU 5>"), (2, "<uuid of GPU 2>")]),
        ("7,GPU-a", [(7, "<uuid of GPU 7>"), (1, "GPU-a")]),
        ("none", []),
    ],
)
def test_a_placeholder_stands_for_each_gpu_that_is_not_here(spec, found):
    gpus = placeholders("nvidia", spec, 2)
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == found
    assert {(gpu.vendor, gpu.render_node) for gpu in gpus} <= {("nvidia", None)}
    assert all("not resolved" in gpu.name for gpu in gpus)


def test_a_placeholder_of_amd_has_a_device_node():
    nodes = [gpu.render_node for gpu in placeholders("amd", "3,GPU-x", 1)]
    assert all(node.startswith("/dev/dri/") for node in nodes)
    assert [name in node for name, node in zip(("GPU 3", "GPU GPU-x"), nodes, strict=True)] == [True] * 2


def test_a_process_sees_several_gpus_in_the_order_of_the_bus():
    assert visible_env(THREE[:2], "nvidia") == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-44,GPU-55",
    }
    assert visible_env(THREE[:2], "amd") == {"ROCR_VISIBLE_DEVICES": "4,5"}


# MIG instances and CDI names

SLICES = [
    Gpu(vendor="nvidia", index=0, uuid="GPU-aa"),
    *(Gpu(vendor="nvidia", index=1, uuid=f"MIG-b{i}", parent="GPU-bb", instance=i) for i in range(2)),
    Gpu(vendor="nvidia", index=2, uuid="MIG-c0", parent="GPU-cc", instance=0),
]


@pytest.mark.parametrize(
    "spec, uuids",
    [
        ("1:1,0", ["MIG-b1", "GPU-aa"]),
        ("MIG-b0", ["MIG-b0"]),
        ("2", ["GPU-aa", "MIG-b0"]),  # a count
        ("2-2", ["MIG-c0"]),  # the only instance of that GPU
        ("GPU-cc", ["MIG-c0"]),
        ("nvidia.com/gpu=0,nvidia.com/gpu=1:0", ["GPU-aa", "MIG-b0"]),
        ("nvidia.com/gpu=MIG-c0", ["MIG-c0"]),
        ("nvidia.com/gpu=mig1:1", ["MIG-b1"]),
    ],
)
def test_instances_are_chosen_by_number_uuid_or_cdi_name(spec, uuids):
    assert [gpu.uuid for gpu in select(SLICES, spec)] == uuids


@pytest.mark.parametrize("spec", ["1-1", "GPU-bb"])
def test_a_divided_gpu_is_not_chosen_as_a_whole(spec):
    with pytest.raises(GpuError, match="MIG divides into 2 instances") as caught:
        select(SLICES, spec)
    assert "--gpus 1:0" in str(caught.value)


@pytest.mark.parametrize("spec", ["0:0", "1:2", "nvidia.com/gpu=1", "nvidia.com/gpu=all", "amd.com/gpu=0"])
def test_an_instance_or_name_that_is_not_here_is_refused(spec):
    with pytest.raises(GpuError, match="no GPU on this machine"):
        select(SLICES, spec)


def test_an_amd_gpu_is_known_by_the_name_that_its_specification_gives_it():
    gpus = [Gpu(vendor="amd", index=i, uuid=f"GPU-{i}", cdi=f"amd.com/gpu={1 - i}") for i in range(2)]
    assert [gpu.index for gpu in select(gpus, "amd.com/gpu=0")] == [1]


def test_a_process_sees_its_instance():
    assert visible_env(SLICES[1:2], "nvidia")["CUDA_VISIBLE_DEVICES"] == "MIG-b0"
