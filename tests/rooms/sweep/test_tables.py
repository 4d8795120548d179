from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from lab.errors import MissingError
from lab.rooms.sweep.gemm import data
from lab.rooms.sweep.gemm.rank import read_rank_tables
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import CONFIGS, EFFECTIVE, GEMM, TIMELINE, TIMELINE_MS
from tests.rooms.sweep.gemm.recorded import read_tables
from tests.tracegen import TraceWriter, training_step


def record(
    root: Path, threads: int, channels: int, rank: int, *, world: int = 2, step_us: float = 50
) -> Path:
    writer = TraceWriter(rank=rank, world_size=world)
    training_step(writer, 5, 1000)
    training_step(writer, 6, 1000 + step_us)
    folder = root / f"{threads}thread/nccl_{channels}channels/torch_profiler/rank{rank}"
    return writer.write(folder / "trace_step6.json.gz")


def small_sweep(root: Path) -> Path:
    for rank in (0, 1):
        record(root, 256, 28, rank)
        record(root, 256, 42, rank)
    (root / "256thread/nccl_28channels/nccl.host.1.log").write_text(
        "host:1:1 [0] NCCL INFO 28 coll channels, 28 collnet channels, 0 nvls channels\n"
    )
    return root


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_becomes_tables_whether_read_here_or_side_by_side(tmp_path, workers):
    seen = []
    tables = read_tables(small_sweep(tmp_path), workers=workers, progress=lambda *call: seen.append(call))
    assert [list(t.columns) for t in (tables.timeline, tables.effective, tables.gemm, tables.configs)] == [
        TIMELINE,
        EFFECTIVE,
        GEMM,
        CONFIGS,
    ]
    assert tables.timeline[["threads", "channel", "rank"]].values.tolist() == [
        [256, 28, 0],
        [256, 28, 1],
        [256, 42, 0],
        [256, 42, 1],
    ]
    assert tables.configs.status.tolist() == ["ok", "ok"] and tables.problems.empty
    assert tables.configs.total_time_ms.tolist() == pytest.approx([0.0815] * 2)
    assert [call[:2] for call in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_requested_stands_beside_effective_and_the_log(tmp_path):
    tables = read_tables(small_sweep(tmp_path), workers=1)
    row = tables.effective.iloc[0].to_dict()
    assert (row["collective"], row["count"], row["in_nelems"], row["msg_bytes"]) == (
        "allreduce",
        2,
        1024,
        4096,
    )
    assert (row["requested_channels"], row["effective_channels"], row["log_channels"]) == (28, 28, 28)
    assert (row["requested_threads"], row["effective_threads"]) == (256, 288)
    assert tables.configs.channels_verdict.tolist() == ["honoured", "clamped"]
    assert tables.configs.threads_verdict.tolist() == ["honoured", "honoured"]
    assert tables.configs.log_channels.tolist() == [28, -1]


@pytest.mark.parametrize("workers", [1, 2])
def test_one_broken_trace_is_a_row_and_the_rest_goes_on(tmp_path, workers):
    small_sweep(tmp_path)
    broken = tmp_path / "256thread/nccl_28channels/torch_profiler/rank1/trace_step6.json.gz"
    broken.write_bytes(broken.read_bytes()[:300])
    tables = read_tables(tmp_path, workers=workers)
    assert len(tables.timeline) == 3
    (problem,) = tables.problems.to_dict("records")
    assert (problem["channel"], problem["rank"], problem["file"]) == (
        28,
        1,
        str(broken.relative_to(tmp_path)),
    )
    assert "truncated" in problem["what"] and problem["fix"]
    first = tables.configs.iloc[0]
    assert (first.status, first.ranks_found, first.ranks_expected, first.missing_ranks) == (
        "incomplete",
        1,
        2,
        "1",
    )
    assert tables.configs.status[1] == "ok"


@pytest.mark.parametrize("torn", [0, 1])
def test_a_rank_that_lost_rows_makes_the_setting_incomplete_whichever_it_is(tmp_path, torn):
    for rank in (0, 1):
        path = record(tmp_path, 256, 28, rank)
        if rank == torn:
            trace = json.loads(gzip.decompress(path.read_bytes()))
            kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
            trace["traceEvents"].remove(kernels[len(kernels) // 2])
            path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    row = read_tables(tmp_path, workers=1).configs.iloc[0]
    assert (row.status, row.ranks_found) == ("incomplete", 2)
    assert row.reason.startswith(f"rank {torn}: ")


def test_missing_ranks_are_counted_against_the_world_of_the_trace(tmp_path):
    record(tmp_path, 256, 28, 1, world=8)
    record(tmp_path, 256, 28, 5, world=8)
    row = read_tables(tmp_path, workers=1).configs.iloc[0]
    assert (row.status, row.ranks_expected, row.missing_ranks) == ("incomplete", 8, "0, 2, 3, 4, 6, 7")


def test_what_failed_or_never_ran_has_a_row(tmp_path):
    small_sweep(tmp_path)
    (tmp_path / "512thread/nccl_28channels").mkdir(parents=True)
    planned = {
        Key(256, 28): ("ok", ""),
        Key(256, 42): ("oom", "out of GPU memory"),
        Key(512, 28): ("failed", "exit code 1"),
        Key(512, 42): ("skipped", "interrupted before it"),
        Key(512, 56): ("ok", ""),
    }
    configs = read_tables(tmp_path, workers=1, planned=planned).configs
    assert configs[["threads", "channel", "status"]].values.tolist() == [
        [256, 28, "ok"],
        [256, 42, "failed"],
        [512, 28, "failed"],
        [512, 42, "failed"],
        [512, 56, "missing"],
    ]
    assert configs.reason[1] == "oom: out of GPU memory" and configs.reason[2] == "exit code 1"
    assert "gone" in configs.reason[4]


def test_a_run_of_which_everything_failed_still_has_its_rows(tmp_path):
    planned = {Key(256, 28): ("failed", "no GPU")}
    tables = read_tables(tmp_path, planned=planned)
    assert tables.configs.reason.tolist() == ["no GPU"] and tables.timeline.empty
    with pytest.raises(MissingError):
        read_tables(tmp_path)


def test_the_rank_of_the_trace_counts_when_the_folder_says_another(tmp_path):
    record(tmp_path, 256, 28, 0)
    (tmp_path / "256thread/nccl_28channels/torch_profiler/rank0").rename(
        tmp_path / "256thread/nccl_28channels/torch_profiler/rank1"
    )
    tables = read_tables(tmp_path, workers=1)
    assert tables.timeline["rank"].tolist() == [0]
    assert "the folder says rank 1" in tables.problems.what[0]


def test_a_trace_without_events_is_no_readable_rank(tmp_path):
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        if rank == 0:
            writer.gemm(4, 4, 4, 100, 10)
        writer.write(tmp_path / f"rank{rank}" / "trace_step1.json")
    tables = read_tables(tmp_path, workers=1)
    assert tables.configs.status.tolist() == ["incomplete"]
    assert tables.problems.what.str.contains("has no events").sum() == 1


def killed(job, **options):
    if job.setting.channel == 42:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_rank_tables(job, **options)


def test_a_reader_that_is_killed_costs_its_own_rank_only(tmp_path, monkeypatch):
    small_sweep(tmp_path)
    monkeypatch.setattr(data, "read_rank_tables", killed)
    tables = read_tables(tmp_path, workers=2)
    assert tables.configs.status.tolist() == ["ok", "broken"]
    assert tables.problems.what.str.contains("killed").sum() == 2


def test_an_unreadable_log_is_a_problem_and_not_the_end(tmp_path):
    small_sweep(tmp_path)
    (tmp_path / "256thread/nccl_42channels/nccl.log").mkdir()
    tables = read_tables(tmp_path, workers=1)
    assert "NCCL log cannot be read" in tables.problems.what[0]
    assert tables.configs.status.tolist() == ["ok", "ok"]


REQUESTED_AND_EFFECTIVE = {
    # (collective, in_nelems): grid at 28 and 42 channels, block at 256 and 512 threads
    ("_allgather_base", 524544): ({28: 27, 42: 40}, {256: 640, 512: 640}, 8),
    ("_reduce_scatter_base", 4196352): ({28: 28, 42: 41}, {256: 640, 512: 640}, 16),
    ("_allgather_base", 6292480): ({28: 28, 42: 42}, {256: 288, 512: 544}, 96),
    ("_reduce_scatter_base", 50339840): ({28: 28, 42: 42}, {256: 288, 512: 544}, 192),
}


@pytest.mark.data
def test_the_h200_sweep_shows_what_was_requested_and_what_happened(shared_data):
    tables = read_tables(shared_data / "sweep_h200", workers=2)
    assert len(tables.timeline) == 32 and tables.problems.empty
    for (collective, nelems), (grid, block, mib) in REQUESTED_AND_EFFECTIVE.items():
        same = (tables.effective.collective == collective) & (tables.effective.in_nelems == nelems)
        rows = tables.effective[same]
        assert len(rows) == 32
        assert (rows.effective_channels == rows.requested_channels.map(grid)).all()
        assert (rows.effective_threads == rows.requested_threads.map(block)).all()
        assert (rows.msg_bytes / 2**20).round().unique().tolist() == [mib]
    configs = tables.configs
    assert configs.status.tolist() == ["ok"] * 4 and configs.log_channels.tolist() == [28, 42, 28, 42]
    assert set(configs.threads_verdict) == {"honoured for >= 96 MiB, ignored below"}
    assert configs.channels_verdict[0] == "honoured for >= 16 MiB, clamped below"
    assert configs.slowest_rank.tolist()[::3] == [1, 0]  # the straggler waits for nobody
    of_rank_0 = tables.gemm.query("rank == 0").groupby(["threads", "channel"])
    assert of_rank_0.n.sum().tolist() == [154] * 4
    assert (of_rank_0.sum_us.sum() / 1000).tolist() == pytest.approx(
        [30.030, 31.369, 21.667, 19.236], abs=0.001
    )
    assert configs[TIMELINE_MS].notna().all().all()


@pytest.mark.parametrize(("world", "missing"), [(2, "1"), (1, "")])
def test_traces_that_say_the_same_rank_are_named_and_make_the_setting_incomplete(tmp_path, world, missing):
    first = record(tmp_path, 256, 28, 0, world=world)
    shutil.copytree(first.parent, first.parent.with_name("rank1"))
    row = read_tables(tmp_path, workers=1).configs.iloc[0]
    assert (row.status, row.missing_ranks) == ("incomplete", missing)
    names = ", ".join(f"torch_profiler/rank{at}/trace_step6.json.gz" for at in (0, 1))
    assert row.reason.endswith(f"rank 0 is in 2 traces: {names}")
