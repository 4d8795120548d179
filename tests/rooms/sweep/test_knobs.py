"""What a setting requests, how its folder says it, and what NCCL refuses."""

from __future__ import annotations

import itertools

import pytest

from lab.rooms.sweep.knobs import ALGORITHMS, PROTOCOLS, Knobs, folder_of, how_in, refusal, serves, variables

DDP, FSDP = ("all_reduce",), ("all_gather", "reduce_scatter")


@pytest.mark.parametrize("how", [*itertools.product(("", *ALGORITHMS), ("", *PROTOCOLS))])
def test_a_folder_says_what_was_requested_and_is_read_back(how):
    name = folder_of(Knobs(256, 28, *how)).rpartition("/")[2]
    assert how_in(name) == how and name.startswith("nccl_28channels")


@pytest.mark.parametrize("name", ["nccl_28channels_slow5", "nccl_28channels_ring_old", "ring_ll", "x"])
def test_another_suffix_requests_nothing(name):
    assert how_in(name) == ("", "")


def test_an_algorithm_is_set_only_for_the_collectives_that_it_serves():
    assert variables(Knobs(0, 0, "ring", "ll128")) == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}
    assert variables(Knobs(0, 0, "tree")) == {"NCCL_ALGO": "AllReduce:Tree"}
    nvls = variables(Knobs(0, 0, "nvls", "simple"))
    assert nvls["NCCL_ALGO"] == "AllGather:NVLS;AllReduce:NVLS;ReduceScatter:NVLS"
    assert variables(Knobs(256, 28)) == {}
    assert variables(Knobs(0, 0, "collnet_chain"))["NCCL_COLLNET_ENABLE"] == "1"
    assert serves("ring", "broadcast") and serves("tree", "all_reduce") and not serves("tree", "all_gather")


@pytest.mark.parametrize(
    ("how", "kinds", "place", "reason"),
    [
        (("nvls", "ll"), DDP, {}, "nvls has kernels for simple only"),
        (("collnet_direct", "ll128"), DDP, {"nodes": 2}, "collnet_direct has kernels for simple only"),
        (("tree", ""), FSDP, {}, "tree serves all-reduce, and this training moves its data by all-gather"),
        (("pat", ""), DDP, {}, "pat serves all-gather and reduce-scatter, and this training"),
        (("pat", "simple"), FSDP, {}, "pat works with one rank per node, and 8 ranks are planned"),
        (("nvls_tree", ""), DDP, {}, "nvls_tree works over several nodes only"),
        (("collnet_chain", ""), DDP, {}, "collnet_chain works over several nodes only"),
        (("nvls", "simple"), FSDP, {"vendor": "amd"}, "nvls needs NVLink SHARP"),
    ],
)
def test_what_the_library_refuses_has_its_reason(how, kinds, place, reason):
    found = refusal(Knobs(0, 0, *how), kinds, **{"vendor": "nvidia", "nodes": 1, "ranks": 8, **place})
    assert found is not None and found.startswith(reason)


@pytest.mark.parametrize(
    ("how", "kinds", "place"),
    [
        (("", "ll"), FSDP, {}),
        (("ring", "ll128"), FSDP, {}),
        (("tree", "ll128"), DDP, {}),
        (("nvls", ""), FSDP, {}),
        (("nvls_tree", "simple"), DDP, {"nodes": 2}),
        (("pat", "simple"), FSDP, {"nodes": 8, "ranks": 1}),
        (("tree", ""), FSDP, {"vendor": "none"}),
    ],
)
def test_what_it_has_kernels_for_runs(how, kinds, place):
    assert refusal(Knobs(0, 0, *how), kinds, **{"vendor": "nvidia", "nodes": 1, "ranks": 8, **place}) is None
