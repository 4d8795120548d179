"""The plan of a sweep: its settings, steps and environment, and what it will be able to show."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lab.core.gpu import Gpu
from lab.core.plan import Site
from lab.errors import BadDataError, GpuError, UsageError
from lab.rooms.sweep.config.train import SweepConfig
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.plan import collective_env, design_note, detectable_sd, inherited_notes, plan

HERE = Site(vendor="none")


def eight(vendor: str) -> Site:
    return Site(vendor=vendor, gpus=tuple(Gpu(vendor=vendor, index=i, uuid=f"GPU-{i}") for i in range(8)))


def planned(site: Site = HERE, root: Path = Path("nowhere"), **knobs):
    return plan(SweepConfig(**knobs), site, root)


def test_every_setting_runs_once_a_repeat_in_a_folder_users_know():
    steps = planned(channels=[28, 42], threads=[256, 512], repeats=2, order="given").steps
    assert [s.folder for s in steps[:4]] == [
        f"{t}thread/nccl_{c}channels" for t in (256, 512) for c in (28, 42)
    ]
    assert steps[4].folder == "256thread/nccl_28channels/repeat2" and len({s.name for s in steps}) == 8


def test_the_random_order_is_seeded_and_each_repeat_is_a_whole_pass():
    first, again, other = (planned(repeats=3, seed=seed).steps for seed in (1, 1, 2))
    assert first == again and first != other
    for k in range(3):
        assert len({(s.labels["threads"], s.labels["channels"]) for s in first[8 * k : 8 * k + 8]}) == 8


def test_ranks_are_the_gpus_or_two_and_never_more_than_gpus():
    assert [planned(site).config["ranks"] for site in (HERE, eight("nvidia"), eight("amd"))] == [2, 8, 8]
    with pytest.raises(GpuError, match="9 ranks requested on 8 GPUs"):
        planned(eight("nvidia"), ranks=9)


def test_over_nodes_ranks_are_those_of_each_node_and_every_one_must_leave_its_trace():
    step = planned(eight("nvidia"), nodes=4).steps[0]
    assert (step.nodes, step.num_gpus, len(step.expects)) == (4, 8, 32)
    assert {"--nnodes=4", "--node_rank={node_rank}", "--rdzv_backend=static"} <= set(step.argv)


def test_torchrun_starts_several_ranks_and_one_rank_needs_no_rendezvous():
    two, one = (planned(ranks=ranks).steps[0].argv for ranks in (2, 1))
    assert two[:4] == ("python", "-m", "torch.distributed.run", "--nproc_per_node=2")
    assert one[:3] == ("python", "-m", "lab.rooms.sweep.workload") and "torch.distributed.run" not in one


def test_every_rank_must_leave_its_trace():
    step = planned(ranks=3).steps[0]
    assert [p.rsplit("/", 2)[1] for p in step.expects] == ["rank0", "rank1", "rank2"]
    step = planned(ranks=2, overrides=["profiling.enabled=false"]).steps[0]
    assert all(p.endswith("_metrics.jsonl") for p in step.expects)


@pytest.mark.parametrize(
    "vendor, has, lacks",
    [
        (
            "nvidia",
            {"NCCL_NTHREADS": "256", "NCCL_MIN_NCHANNELS": "28", "NCCL_MAX_NCHANNELS": "28"},
            {"RCCL_THREADS_PER_BLOCK", "HSA_ENABLE_SDMA"},
        ),
        (
            "amd",
            {
                "RCCL_THREADS_PER_BLOCK": "256",
                "NCCL_MIN_NCHANNELS": "28",
                "NCCL_MAX_NCHANNELS": "28",
                "HSA_ENABLE_SDMA": "0",
            },
            {"NCCL_NTHREADS"},
        ),
        ("none", {}, {"NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "RCCL_THREADS_PER_BLOCK"}),
    ],
)
def test_each_vendor_gets_its_own_variables(vendor, has, lacks):
    env = collective_env(vendor, Knobs(256, 28), "f", "pin")
    assert has.items() <= env.items() and not lacks & set(env)
    assert "NCCL_MIN_NCHANNELS" not in collective_env(vendor, Knobs(256, 28), "f", "max")


def test_existing_results_are_skipped_only_when_every_rank_is_there(tmp_path):
    config = SweepConfig(channels=[28, 42], threads=[256], ranks=2, order="given")
    for rank, channels in ((0, 28), (1, 28), (0, 42)):
        trace = tmp_path / f"256thread/nccl_{channels}channels/torch_profiler/rank{rank}/trace_step4.json.gz"
        trace.parent.mkdir(parents=True)
        trace.write_bytes(b"x")
    assert plan(config, HERE, tmp_path, skip_existing=True).skipped.keys() == {"256t_28ch"}
    assert plan(config, HERE, tmp_path).skipped == {}


def test_a_run_under_a_tuners_file_requests_no_channels_and_has_the_file_as_input(tmp_path):
    file = tmp_path / "mine.conf"
    file.write_text("# head\nallreduce,1,2,ring,simple,28,-1,8\n")
    knobs = {"channels": [0], "threads": [0], "tuner": str(file)}
    made = planned(eight("nvidia"), **knobs, tuner_plugin="/opt/tuner.so")
    env = made.steps[0].env
    assert env["NCCL_TUNER_CONFIG_FILE"] == "tuner.conf" and env["NCCL_TUNER_PLUGIN"] == "/opt/tuner.so"
    assert not {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS"} & set(env)
    assert made.inputs["tuner.conf"] == file.read_text()
    assert "NCCL_TUNER_PLUGIN" not in planned(eight("amd"), **knobs).steps[0].env
    file.write_text("allgathr,1,2,ring,simple,28,-1,8\n")
    with pytest.raises(BadDataError, match="allgathr"):
        planned(eight("nvidia"), **knobs)


@pytest.mark.parametrize(
    ("mem_bytes", "preset"), [(150_000_000_000, "llm_wide"), (24_000_000_000, "llm"), (None, "llm")]
)
def test_large_gpus_train_the_model_that_keeps_them_busy(mem_bytes, preset):
    gpus = tuple(Gpu(vendor="nvidia", index=i, uuid=f"GPU-{i}", mem_bytes=mem_bytes) for i in range(2))
    site = Site(vendor="nvidia", gpus=gpus)
    assert planned(site).config["config"] == preset and planned(HERE).config["config"] == "tiny"
    told = [note for note in planned(site, config="llm").notes if "hosts set the pace" in note]
    assert bool(told) is (preset == "llm_wide")


def test_algorithms_and_protocols_are_further_factors_of_every_block():
    knobs = {"channels": [28], "threads": [0], "config": "encoder20", "repeats": 2}
    made = planned(eight("nvidia"), **knobs, algorithms=["", "ring", "tree"], protocols=["simple", "ll128"])
    assert len(made.steps) == 12 and len({step.name for step in made.steps}) == 12
    for block in (made.steps[:6], made.steps[6:]):
        assert len({(step.labels.get("algorithm"), step.labels["protocol"]) for step in block}) == 6
    step = next(step for step in made.steps if step.name == "0t_28ch_tree_ll128_repeat2")
    assert step.folder == "0thread/nccl_28channels_tree_ll128/repeat2"
    assert (step.env["NCCL_ALGO"], step.env["NCCL_PROTO"]) == ("AllReduce:Tree", "LL128")
    assert any("2 repeats of 6 settings" in note for note in made.notes)
    assert any("ll128 may corrupt data" in note for note in made.notes)
    plain = planned(eight("nvidia"), **knobs).steps[0]
    assert not {"NCCL_ALGO", "NCCL_PROTO"} & set(plain.env) and "algorithm" not in plain.labels


def test_what_nccl_refuses_is_named_before_anything_runs_and_is_in_no_block():
    knobs = {"channels": [28], "threads": [0], "config": "llm"}
    made = planned(eight("nvidia"), **knobs, algorithms=["ring", "tree", "nvls"], protocols=["ll", "simple"])
    assert sorted(step.name for step in made.steps) == [
        "0t_28ch_nvls_simple",
        "0t_28ch_ring_ll",
        "0t_28ch_ring_simple",
    ]
    assert made.notes[:3] == (
        "tree ll is left out: tree serves all-reduce, and this training moves its data by all-gather and "
        "reduce-scatter",
        "tree simple is left out: tree serves all-reduce, and this training moves its data by all-gather and "
        "reduce-scatter",
        "nvls ll is left out: nvls has kernels for simple only",
    )
    with pytest.raises(UsageError, match="no setting is left to run:\n  tree is left out"):
        planned(eight("nvidia"), **knobs, algorithms=["tree"])


def test_gloo_runs_the_same_settings_without_their_variables_and_says_so():
    made = planned(channels=[28], threads=[256], algorithms=["ring", "tree"], protocols=["ll"])
    assert [step.labels["algorithm"] for step in made.steps] != [] and len(made.steps) == 2
    assert not any({"NCCL_ALGO", "NCCL_PROTO"} & set(step.env) for step in made.steps)
    assert any("gloo has no algorithms or protocols" in note for note in made.notes)


def test_what_the_callers_environment_requests_is_said():
    env = {"NCCL_ALGO": "Ring\x1b[31m", "NCCL_DEBUG": "INFO", "NCCL_MAX_NCHANNELS": "8"}
    (note,) = inherited_notes(env)
    assert note.startswith("your environment has NCCL_ALGO=Ring") and "\x1b" not in note
    assert "NCCL_MAX_NCHANNELS=8: without a container" in note and "NCCL_DEBUG" not in note
    assert inherited_notes({"PATH": "/bin"}) == ()


@pytest.mark.parametrize(("repeats", "dunnett_sd"), [(3, 2.4), (4, 2.0)])
def test_the_limit_lies_just_above_dunnetts(repeats, dunnett_sd):
    assert dunnett_sd < detectable_sd(8, repeats) < 1.1 * dunnett_sd + 0.05


def test_one_repeat_shows_nothing_and_more_repeats_show_more():
    assert math.isinf(detectable_sd(8, 1))
    limits = [detectable_sd(8, repeats) for repeats in range(2, 12)]
    assert limits == sorted(limits, reverse=True)
    assert "cannot tell" in (design_note(8, 1) or "") and design_note(1, 5) is None
    assert "3 repeats of 8 settings" in (design_note(8, 3) or "")
