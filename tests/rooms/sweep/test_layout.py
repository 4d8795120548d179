from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.errors import MissingError, UsageError
from lab.rooms.sweep.layout import find_configs, in_order


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def config(threads: int, channels: int, rest: str = "torch_profiler/rank0/trace_step3.json.gz") -> str:
    return f"{threads}thread/nccl_{channels}channels/{rest}"


def test_settings_are_ordered_as_numbers_and_not_as_text(tmp_path):
    touch(tmp_path, config(1024, 8), config(256, 112), config(256, 56))
    found = find_configs(tmp_path)
    assert [(c.threads, c.channels) for c in found] == [(256, 56), (256, 112), (1024, 8)]
    assert all(c.repeat == 1 and len(c.traces) == 1 and not c.notes for c in found)


@pytest.mark.parametrize("rank", ["rank3", "rank_3", "rank_03", "rank-3"])
def test_a_rank_may_be_written_in_several_ways(tmp_path, rank):
    touch(tmp_path, config(256, 28, f"torch_profiler/{rank}/trace_step1.json"))
    assert [t.rank for t in find_configs(tmp_path)[0].traces] == [3]


def test_ranks_are_ordered_as_numbers(tmp_path):
    touch(tmp_path, *(config(256, 28, f"torch_profiler/rank{r}/trace_step1.json") for r in (10, 2, 0)))
    assert [t.rank for t in find_configs(tmp_path)[0].traces] == [0, 2, 10]


@pytest.mark.parametrize(
    ("names", "chosen", "step"),
    [
        (["trace_step9.json.gz", "trace_step10.json.gz"], "trace_step10.json.gz", 10),
        (["customer_trace_step7.json", "customer_trace_step70.json"], "customer_trace_step70.json", 70),
        (["mine_step2.json.gz", "other.json"], "mine_step2.json.gz", 2),
        (["h_1.9.pt.trace.json", "h_1.10.pt.trace.json.gz"], "h_1.10.pt.trace.json.gz", None),
        (["a.pt.trace.json", "z.json"], "a.pt.trace.json", None),
        (["a.json", "notes.txt"], "a.json", None),
    ],
)
def test_of_several_traces_the_newest_step_wins(tmp_path, names, chosen, step):
    touch(tmp_path, *names)
    assert in_order(tmp_path.iterdir())[-1] == (tmp_path / chosen, step)


def test_no_trace_among_the_files_is_none(tmp_path):
    assert in_order([tmp_path / "rank0.log", tmp_path / "rank_00_metrics.jsonl"]) == []


def test_windows_of_the_profiler_are_kept_in_order_and_named_where_only_the_newest_counts(tmp_path):
    for rank, steps in ((0, (7, 19)), (1, (7, 19)), (2, (19,))):
        touch(tmp_path, *(config(256, 28, f"torch_profiler/rank{rank}/trace_step{n}.json") for n in steps))
    (whole,) = find_configs(tmp_path)
    assert [trace.step for trace in whole.traces] == [19, 19, 19]
    assert [[(t.rank, t.step) for t in window.traces] for window in whole.windows()] == [
        [(0, 7), (1, 7)],
        [(0, 19), (1, 19), (2, 19)],
    ]
    (text,) = whole.left_out()
    assert text == "2 older traces of ranks 0, 1 left out (trace_step7.json): lab ranks reads them too"


@pytest.mark.parametrize(
    "name", ["rank{}.sqlite", "rank{}/profile.nsys-rep", "rank{}.pftrace", "trace_rank{}.out2"]
)
def test_a_rank_may_be_a_file_of_any_recorder(tmp_path, name):
    touch(tmp_path, name.format(0), name.format(1), "rank0.log")
    (run,) = find_configs(tmp_path)
    assert [trace.rank for trace in run.traces] == [0, 1]


@pytest.mark.parametrize("name", ["node{}/rank{}.json", "host_{}/torch_profiler/rank{}/trace_step3.json.gz"])
def test_local_ranks_of_several_nodes_are_numbered_node_by_node(tmp_path, name):
    touch(tmp_path, *(name.format(node, rank) for node in (0, 1) for rank in (0, 1)))
    (run,) = find_configs(tmp_path)
    assert [trace.rank for trace in run.traces] == [0, 1, 2, 3] and "2 nodes of 2 ranks" in run.notes[0]


def test_a_pattern_of_two_groups_is_node_and_local_rank(tmp_path):
    touch(tmp_path, *(f"job/box{node}/gpu{gpu}/t.sqlite" for node in (3, 5) for gpu in (0, 1)), "rank0.json")
    (run,) = find_configs(tmp_path, ranks=re.compile(r"box(\d+)/gpu(\d+)/"))
    assert [(trace.rank, trace.path.parts[-3:-1]) for trace in run.traces] == [
        (0, ("box3", "gpu0")),
        (1, ("box3", "gpu1")),
        (2, ("box5", "gpu0")),
        (3, ("box5", "gpu1")),
    ]
    assert run.left_out() == ["1 trace not matched by --ranks: rank0.json"]


def test_later_repeats_lie_in_folders_of_their_own_beside_the_first(tmp_path):
    touch(tmp_path, config(256, 28), config(256, 28, "repeat10/torch_profiler/rank0/trace_step3.json"))
    touch(tmp_path, config(256, 28, "repeat2/torch_profiler/rank0/trace_step3.json"))
    found = find_configs(tmp_path)
    assert [(c.repeat, c.threads, c.channels, len(c.traces)) for c in found] == [
        (1, 256, 28, 1),
        (2, 256, 28, 1),
        (10, 256, 28, 1),
    ]


def test_a_first_repeat_may_have_its_own_folder_too(tmp_path):
    touch(tmp_path, *(config(256, 28, f"repeat{k}/torch_profiler/rank0/trace_step3.json") for k in (1, 2)))
    assert [c.repeat for c in find_configs(tmp_path)] == [1, 2]


def test_a_setting_without_traces_is_listed_with_a_note(tmp_path):
    (tmp_path / "256thread/nccl_28channels").mkdir(parents=True)
    (found,) = find_configs(tmp_path)
    assert found.traces == () and "no traces" in found.notes[0]


def test_every_nccl_log_of_a_setting_is_found(tmp_path):
    touch(
        tmp_path, config(256, 28), config(256, 28, "nccl.node1.77.log"), config(256, 28, "nccl_channels.log")
    )
    touch(tmp_path, config(256, 28, "run_output.log"))
    logs = ["nccl.node1.77.log", "nccl_channels.log", "run_output.log"]
    assert [p.name for p in find_configs(tmp_path)[0].nccl_logs] == logs


@pytest.mark.parametrize("start", ["", "256thread", "256thread/nccl_28channels"])
def test_any_level_of_a_sweep_may_be_given(tmp_path, start):
    touch(tmp_path, config(256, 28))
    (found,) = find_configs(tmp_path / start)
    assert (found.threads, found.channels, len(found.traces)) == (256, 28, 1)


@pytest.mark.parametrize(
    "names",
    [
        ["rank0/trace_step1.json", "rank1/trace_step1.json"],
        ["torch_profiler/rank0/t_step1.json", "torch_profiler/rank1/t_step1.json"],
        ["trace_rank0.json", "trace_rank1.json.gz"],
    ],
)
def test_a_flat_folder_of_ranks_is_one_unknown_setting(tmp_path, names):
    touch(tmp_path, *names)
    (found,) = find_configs(tmp_path)
    assert (found.threads, found.channels, [t.rank for t in found.traces]) == (None, None, [0, 1])
    assert "gives no threads and channels" in found.notes[0]


def test_unnamed_tensorboard_traces_are_all_kept_because_each_may_be_a_rank(tmp_path):
    touch(tmp_path, "host_11.170.pt.trace.json", "host_12.171.pt.trace.json.gz", "manifest.json")
    (found,) = find_configs(tmp_path)
    assert [t.rank for t in found.traces] == [None, None]


def test_folders_without_a_sweep_are_refused(tmp_path):
    with pytest.raises(MissingError, match="neither"):
        find_configs(tmp_path)
    with pytest.raises(MissingError, match="no such folder"):
        find_configs(tmp_path / "none")


@pytest.mark.data
def test_the_h200_sweep_is_found_whole(shared_data):
    found = find_configs(shared_data / "sweep_h200")
    assert [(c.threads, c.channels) for c in found] == [(256, 28), (256, 42), (512, 28), (512, 42)]
    assert [[t.rank for t in c.traces] for c in found] == [list(range(8))] * 4
    assert all(len(c.nccl_logs) == 1 and c.traces[0].step == 7 for c in found)


def test_a_parent_of_worker_traces_is_a_run_and_workers_are_ranks(tmp_path):
    touch(tmp_path, *(f"job/out/worker{n}.17.pt.trace.json.gz" for n in (0, 1, 10)))
    (found,) = find_configs(tmp_path)
    assert found.path == tmp_path / "job/out" and [trace.rank for trace in found.traces] == [0, 1, 10]


def test_a_tree_of_runs_is_one_configuration_per_folder_of_ranks(tmp_path):
    touch(tmp_path, *(f"{run}/deep/rank{rank}/trace_step3.json" for run in "ab" for rank in (0, 1)))
    found = find_configs(tmp_path)
    assert [config.path for config in found] == [tmp_path / "a/deep", tmp_path / "b/deep"]


def test_older_runs_beside_the_settings_of_a_sweep_are_no_repeats_of_them(tmp_path):
    touch(tmp_path, config(256, 28), f"old/{config(256, 28)}", "merged/rank0/t.json")
    assert [found.path for found in find_configs(tmp_path)] == [tmp_path / "256thread/nccl_28channels"]


@pytest.mark.parametrize(
    "stray",
    [
        "rank0_trace.json",
        "merged.pt.trace.json",
        "256thread/rank1.json",
        "rank0/notes",
        "256thread/repeat2/t.json",
    ],
)
def test_what_lies_beside_settings_hides_none_of_them(tmp_path, stray):
    touch(tmp_path, config(256, 28), config(256, 56), stray)
    found = find_configs(tmp_path)
    assert [(c.threads, c.channels, len(c.traces)) for c in found] == [(256, 28, 1), (256, 56, 1)]


def test_a_link_to_a_folder_above_repeats_no_setting(tmp_path):
    touch(tmp_path, config(256, 28))
    (tmp_path / "256thread/512threads").symlink_to(".")
    (tmp_path / "256thread/128thread").symlink_to("..")
    assert [(c.threads, c.repeat) for c in find_configs(tmp_path)] == [(256, 1)]


def test_a_pattern_leaves_out_no_folder_that_cannot_be_read(tmp_path, monkeypatch):
    touch(tmp_path, "a/rank0/t.json", "b/rank0/t.json")

    def iterdir(path: Path, plain=Path.iterdir):
        if path.name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(PermissionError):
        find_configs(tmp_path, ranks=re.compile(r"rank(\d+)/"))


def test_settings_with_a_suffix_are_found_and_told_apart(tmp_path):
    touch(tmp_path, config(256, 28), "256thread/nccl_28channels_slow5/torch_profiler/rank0/trace_step3.json")
    found = find_configs(tmp_path)
    assert [(c.channels, c.repeat) for c in found] == [(28, 1), (28, 2)]
    assert found[1].notes == ("nccl_28channels_slow5: counted as repeat 2 of its setting",)
    (alone,) = find_configs(tmp_path / "256thread/nccl_28channels_slow5")
    assert alone.channels == 28 and len(alone.traces) == 1


def test_a_pattern_says_which_part_of_any_path_is_the_rank(tmp_path):
    touch(tmp_path, *(f"host{host}/gpu{gpu}/t.json" for host in (0, 1) for gpu in (0, 1)))
    touch(tmp_path, "host0/gpu0/notes.txt")
    runs = find_configs(tmp_path, ranks=re.compile(r"gpu(\d+)/"))
    assert [[trace.rank for trace in run.traces] for run in runs] == [[0, 1], [0, 1]]
    (hosts,) = find_configs(tmp_path, ranks=re.compile(r"host(\d+)/gpu1/"))
    assert [trace.rank for trace in hosts.traces] == [0, 1]
    with pytest.raises(UsageError, match="no group"):
        find_configs(tmp_path, ranks=re.compile(r"gpu\d+/"))
