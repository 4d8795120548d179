"""Sections of a sweep: `lab analyze SWEEP --only ranks,gemm`."""

from __future__ import annotations

import json

from lab.errors import MissingError
from tests.rooms.sweep.gemm.recorded import write_sweep
from tests.tracegen import TraceWriter, cpu_step


def test_a_sweep_has_the_account_of_its_ranks_and_the_gemm_pipeline(only, tmp_path):
    sweep = write_sweep(tmp_path / "sweep")
    done = only(sweep, "ranks,gemm", "--json")
    assert done.exception is None, done.output
    document = json.loads(done.stdout)
    assert document["lacking"] == [] and document["status"] == "ok"
    assert (tmp_path / "out/ranks/ranks.html").is_file()
    assert (tmp_path / "out/tracelens_analysis/top5_gemm_kernels_time_variance.csv").is_file()


def _cpu_rank(rank: int, world_size: int) -> TraceWriter:
    writer = TraceWriter(vendor="none", rank=rank, world_size=world_size)
    cpu_step(writer, 1, 100)
    return writer


def test_gemms_are_looked_at_though_the_first_rank_recorded_no_gpu(only, tmp_path):
    sweep = write_sweep(tmp_path / "sweep", threads=(256,))
    first = next(sweep.rglob("rank0/*.json.gz"))
    first.unlink()
    _cpu_rank(0, 2).write(first)
    verdict = json.loads(only(sweep, "gemm", "--json").stdout)["verdict"]
    assert any("varies most" in text for text in verdict)


def test_a_sweep_on_a_cpu_has_no_gemms_to_look_at(only, tmp_path):
    _cpu_rank(0, 1).write(tmp_path / "s/256thread/nccl_28channels/torch_profiler/rank0/trace_step1.json")
    assert isinstance(only(tmp_path / "s", "gemm").exception, MissingError)
